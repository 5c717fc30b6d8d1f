//! MutatingWebhookConfiguration and ValidatingWebhookConfiguration: both are lists of webhooks, and a
//! webhook that cannot work is refused when it is written, not when it is called.

use std::collections::HashSet;

use base64::Engine;
use ferry_api::{FieldErrors, names};
use ferry_cel::{Environment, Type};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde::Deserialize;

use super::super::checks::{self, Path};
use super::super::tables::cluster;
use super::rule::{self, Rule};
use crate::columns::Column;
use crate::strategy::{Rules, StrategyOptions, Typed};

pub static MUTATING: Typed<Configuration, WebhookConfigurationRules> =
    Typed::new(WebhookConfigurationRules { mutating: true });
pub static VALIDATING: Typed<Configuration, WebhookConfigurationRules> =
    Typed::new(WebhookConfigurationRules { mutating: false });

pub struct WebhookConfigurationRules {
    mutating: bool,
}

/// What the two kinds have in common, which is all but the reinvocation.
#[derive(Debug, Deserialize)]
pub struct Configuration {
    #[serde(default)]
    webhooks: Vec<Webhook>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Webhook {
    name: String,
    client_config: ClientConfig,
    rules: Vec<Rule>,
    failure_policy: Option<String>,
    match_policy: Option<String>,
    namespace_selector: Option<LabelSelector>,
    object_selector: Option<LabelSelector>,
    side_effects: Option<String>,
    timeout_seconds: Option<i32>,
    admission_review_versions: Vec<String>,
    reinvocation_policy: Option<String>,
    match_conditions: Vec<MatchCondition>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientConfig {
    url: Option<String>,
    service: Option<Service>,
    pub ca_bundle: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Service {
    namespace: String,
    name: String,
    path: Option<String>,
    port: Option<i32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct MatchCondition {
    pub name: String,
    pub expression: String,
}

const MOST_CONDITIONS: usize = 64;
const KNOWN_REVIEWS: &[&str] = &["v1", "v1beta1"];

impl Rules<Configuration> for WebhookConfigurationRules {
    fn validate(&self, configuration: &Configuration, errors: &mut FieldErrors) {
        let root = Path::root("webhooks");
        let mut seen = HashSet::new();
        for (index, webhook) in configuration.webhooks.iter().enumerate() {
            let path = root.index(index);
            self.webhook(webhook, path, errors);
            if !seen.insert(webhook.name.as_str()) {
                errors.duplicate(path.child("name"), webhook.name.as_str());
            }
        }
    }

    fn columns(&self) -> &[Column] {
        cluster::WEBHOOKS
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions { generation: true, unconditional_update: false, ..StrategyOptions::PLAIN }
    }
}

impl WebhookConfigurationRules {
    fn webhook(&self, webhook: &Webhook, path: Path<'_>, errors: &mut FieldErrors) {
        full_name(&webhook.name, path.child("name"), errors);
        let rules = path.child("rules");
        for (index, one) in webhook.rules.iter().enumerate() {
            rule::validate(one, rules.index(index), errors);
        }
        let one_of = |field, value: &Option<String>, allowed: &[&str], errors: &mut FieldErrors| {
            checks::may_be(errors, path.child(field), value.as_deref(), allowed);
        };
        one_of("failurePolicy", &webhook.failure_policy, &["Fail", "Ignore"], errors);
        one_of("matchPolicy", &webhook.match_policy, &["Equivalent", "Exact"], errors);
        match &webhook.side_effects {
            None => errors.required(path.child("sideEffects"), "must specify one of None, NoneOnDryRun"),
            Some(_) => one_of("sideEffects", &webhook.side_effects, &["None", "NoneOnDryRun"], errors),
        }
        if let Some(seconds) = webhook.timeout_seconds.filter(|seconds| !(1..=30).contains(seconds)) {
            let why = "the timeout value must be between 1 and 30 seconds";
            errors.invalid(path.child("timeoutSeconds"), seconds, why);
        }
        for (field, selector) in
            [("namespaceSelector", &webhook.namespace_selector), ("objectSelector", &webhook.object_selector)]
        {
            if let Some(selector) = selector {
                checks::selector(errors, path.child(field), selector);
            }
        }
        if self.mutating {
            one_of("reinvocationPolicy", &webhook.reinvocation_policy, &["IfNeeded", "Never"], errors);
        }
        let client_config = path.child("clientConfig");
        target(&webhook.client_config, client_config, errors);
        match_conditions(&webhook.match_conditions, path.child("matchConditions"), errors);
        review_versions(&webhook.admission_review_versions, path.child("admissionReviewVersions"), errors);
    }
}

/// A name with at least three parts, so that it belongs to somebody.
pub fn full_name(name: &str, path: Path<'_>, errors: &mut FieldErrors) {
    if name.is_empty() {
        errors.required(path, "");
        return;
    }
    let faults = names::dns1123_subdomain(name);
    for why in &faults {
        errors.invalid(path, name, why);
    }
    if faults.is_empty() && name.split('.').count() < 3 {
        errors.invalid(path, name, "should be a domain with at least three segments separated by dots");
    }
}

/// Whom a webhook calls: an address or a service.
pub fn target(config: &ClientConfig, path: Path<'_>, errors: &mut FieldErrors) {
    match (&config.url, &config.service) {
        (Some(url), None) => self::url(url, path.child("url"), errors),
        (None, Some(service)) => self::service(service, path.child("service"), errors),
        _ => errors.required(path, "exactly one of url or service is required"),
    }
}

pub fn ca_bundle(config: &ClientConfig, path: Path<'_>, errors: &mut FieldErrors) {
    if let Some(bundle) = config.ca_bundle.as_deref().filter(|bundle| !bundle.is_empty())
        && !is_ca_bundle(bundle)
    {
        let why = "unable to load root certificates: unable to parse bytes as PEM block";
        errors.invalid(path.child("caBundle"), bundle, why);
    }
}

/// Whether at least one certificate can be read.
pub fn is_ca_bundle(bundle: &str) -> bool {
    let pem = base64::engine::general_purpose::STANDARD.decode(bundle);
    pem.is_ok_and(|pem| CertificateDer::pem_slice_iter(&pem).any(|certificate| certificate.is_ok()))
}

fn url(url: &str, path: Path<'_>, errors: &mut FieldErrors) {
    const FORM: &str = "; desired format: https://host[/path]";
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    if scheme != "https" {
        errors.invalid(path, scheme, &format!("'https' is the only allowed URL scheme{FORM}"));
    }
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = rest.split('/').next().unwrap_or("");
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if scheme.is_empty() || host.is_empty() {
        errors.invalid(path, "", &format!("host must be specified{FORM}"));
    }
    if !user.is_empty() {
        errors.invalid(path, user, "user information is not permitted in the URL");
    }
    if !fragment.is_empty() {
        errors.invalid(path, fragment, "fragments are not permitted in the URL");
    }
    if !query.is_empty() {
        errors.invalid(path, query, "query parameters are not permitted in the URL");
    }
}

fn service(service: &Service, path: Path<'_>, errors: &mut FieldErrors) {
    if service.name.is_empty() {
        errors.required(path.child("name"), "");
    }
    if service.namespace.is_empty() {
        errors.required(path.child("namespace"), "");
    }
    let port = service.port.unwrap_or(443);
    let faults = names::port_number(i64::from(port));
    if !faults.is_empty() {
        errors.invalid(path.child("port"), port, &format!("port is not valid: {}", faults.join(", ")));
    }
    let path = path.child("path");
    let called = service.path.as_deref().unwrap_or("");
    if ["", "/"].contains(&called) {
        return;
    }
    if called == "//" {
        errors.invalid(path, called, "segment[0] may not be empty");
        return;
    }
    if !called.starts_with('/') {
        errors.invalid(path, called, "must start with a '/'");
    }
    // Its first character goes, whatever it is.
    let steps = called.get(called.chars().next().map_or(0, char::len_utf8)..).unwrap_or_default();
    for (index, step) in steps.strip_suffix('/').unwrap_or(steps).split('/').enumerate() {
        if step.is_empty() {
            errors.invalid(path, called, &format!("segment[{index}] may not be empty"));
            continue;
        }
        for why in names::dns1123_subdomain(step) {
            errors.invalid(path, called, &format!("segment[{index}]: {why}"));
        }
    }
}

fn match_conditions(conditions: &[MatchCondition], path: Path<'_>, errors: &mut FieldErrors) {
    match_conditions_in(&ferry_cel::admission::environment(false, true), conditions, path, errors);
}

/// Policies with parameters may name them in their conditions.
pub fn match_conditions_in(
    environment: &Environment,
    conditions: &[MatchCondition],
    path: Path<'_>,
    errors: &mut FieldErrors,
) {
    if conditions.len() > MOST_CONDITIONS {
        errors.too_many(path, conditions.len(), MOST_CONDITIONS);
    }
    let mut seen = HashSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let place = path.index(index);
        let expression = condition.expression.trim();
        if expression.is_empty() {
            errors.required(place.child("expression"), "");
        } else if let Err(error) = environment.compile(&condition.expression, &[Type::Bool]) {
            errors.invalid(place.child("expression"), condition.expression.as_str(), &error.0);
        }
        if condition.name.is_empty() {
            errors.required(place.child("name"), "");
        } else {
            for why in names::qualified_name(&condition.name) {
                errors.invalid(place.child("name"), condition.name.as_str(), &why);
            }
            if !seen.insert(condition.name.as_str()) {
                errors.duplicate(place.child("name"), condition.name.as_str());
            }
        }
    }
}

fn review_versions(versions: &[String], path: Path<'_>, errors: &mut FieldErrors) {
    if versions.is_empty() {
        errors.required(path, "must specify one of v1, v1beta1");
        return;
    }
    for (index, version) in versions.iter().enumerate() {
        if versions[..index].contains(version) {
            errors.invalid(path.index(index), version.as_str(), "duplicate version");
        }
        for why in names::dns1035_label(version) {
            errors.invalid(path.index(index), version.as_str(), &why);
        }
    }
    if !versions.iter().any(|version| KNOWN_REVIEWS.contains(&version.as_str())) {
        errors.invalid(path, versions, "must include at least one of v1, v1beta1");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn faults(change: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut webhook = json!({
            "name": "a.example.com", "clientConfig": {"url": "https://127.0.0.1/x"}, "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        });
        change(&mut webhook);
        let configuration = serde_json::from_value(json!({"webhooks": [webhook]})).expect("a view");
        let mut errors = FieldErrors::default();
        WebhookConfigurationRules { mutating: true }.validate(&configuration, &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_webhook_that_cannot_work_is_refused_with_every_reason() {
        let check = |change: fn(&mut Value), expected: &[&str]| assert_eq!(faults(change), expected);
        check(|_| {}, &[]);
        check(
            |webhook| webhook["name"] = json!("short"),
            &[
                "webhooks[0].name: Invalid value: \"short\": should be a domain with at least three segments separated by dots",
            ],
        );
        check(
            |webhook| webhook["clientConfig"] = json!({"url": "http://u@h/p?q=1#f"}),
            &[
                "webhooks[0].clientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]",
                "webhooks[0].clientConfig.url: Invalid value: \"u\": user information is not permitted in the URL",
                "webhooks[0].clientConfig.url: Invalid value: \"f\": fragments are not permitted in the URL",
                "webhooks[0].clientConfig.url: Invalid value: \"q=1\": query parameters are not permitted in the URL",
            ],
        );
        check(
            |webhook| {
                webhook["clientConfig"] =
                    json!({"service": {"name": "s", "namespace": "n", "path": "/a//b", "port": 0}})
            },
            &[
                "webhooks[0].clientConfig.service.port: Invalid value: 0: port is not valid: must be between 1 and 65535, inclusive",
                "webhooks[0].clientConfig.service.path: Invalid value: \"/a//b\": segment[1] may not be empty",
            ],
        );
        check(
            |webhook| webhook["clientConfig"] = json!({}),
            &["webhooks[0].clientConfig: Required value: exactly one of url or service is required"],
        );
        check(
            |webhook| {
                webhook["timeoutSeconds"] = json!(31);
                webhook["sideEffects"] = json!("Some");
                webhook["admissionReviewVersions"] = json!(["v2"]);
            },
            &[
                "webhooks[0].sideEffects: Unsupported value: \"Some\": supported values: \"None\", \"NoneOnDryRun\"",
                "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds",
                "webhooks[0].admissionReviewVersions: Invalid value: [\"v2\"]: must include at least one of v1, v1beta1",
            ],
        );
        check(
            |webhook| webhook["rules"][0]["resources"] = json!(["*/*", "pods"]),
            &[
                "webhooks[0].rules[0].resources: Invalid value: [\"*/*\",\"pods\"]: if '*/*' is present, must not specify other resources",
            ],
        );
    }

    #[test]
    fn match_conditions_are_compiled_when_they_are_written() {
        let condition = |expression: &str| {
            let expression = expression.to_string();
            faults(move |webhook| {
                webhook["matchConditions"] = json!([{"name": "a", "expression": expression}]);
            })
        };
        assert!(condition("request.operation == 'CREATE' && has(object.metadata.labels)").is_empty());
        assert_eq!(
            condition("1 + 1"),
            [
                "webhooks[0].matchConditions[0].expression: Invalid value: \"1 + 1\": must evaluate to bool but got int"
            ]
        );
        assert!(condition("nothing")[0].contains("undeclared reference to 'nothing' (in container '')"));
        assert_eq!(condition(""), ["webhooks[0].matchConditions[0].expression: Required value"]);
    }
}
