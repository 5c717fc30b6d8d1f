//! APIService: the server of an API group's version.

use ferry_api::{FieldErrors, Object, names};
use jiff::Timestamp;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::{APIService, APIServiceSpec};
use serde_json::json;

use super::checks::{self, Path};
use crate::columns::Column;
use crate::metadata::timestamp;
use crate::strategy::{NameRule, Rules, StrategyOptions, Typed};

pub static STRATEGY: Typed<APIService, ApiServiceRules> = Typed::new(ApiServiceRules);

pub struct ApiServiceRules;

const STATUSES: &[&str] = &["True", "False", "Unknown"];

impl Rules<APIService> for ApiServiceRules {
    /// A local APIService is available at once.
    fn prepare_create(&self, object: &mut Object) {
        if object.get(&["spec", "service"]).is_some() {
            return;
        }
        let condition = json!({
            "type": "Available", "status": "True", "lastTransitionTime": timestamp(Timestamp::now().as_second()),
            "reason": "Local", "message": "Local APIServices are always available",
        });
        object.0.insert("status".into(), json!({"conditions": [condition]}));
    }

    fn validate(&self, service: &APIService, errors: &mut FieldErrors) {
        let empty = Default::default();
        let spec = service.spec.as_ref().unwrap_or(&empty);
        let (group, version) =
            (spec.group.as_deref().unwrap_or_default(), spec.version.as_deref().unwrap_or_default());
        let name = service.metadata.name.as_deref().unwrap_or_default();
        let required = format!("{version}.{group}");
        if !name.is_empty() && name != required {
            errors.invalid(
                "metadata.name",
                name,
                &format!("must be `spec.version+\".\"+spec.group`: {required:?}"),
            );
        }
        if group.is_empty() && version != "v1" {
            errors.required("spec.group", "only v1 may have an empty group and it better be legacy kube");
        }
        let path = Path::root("spec");
        if !group.is_empty() {
            checks::named(errors, path.child("group"), group, names::dns1123_subdomain);
        }
        checks::named(errors, path.child("version"), version, names::dns1035_label);
        if !(1..=20_000).contains(&spec.group_priority_minimum) {
            errors.invalid(
                "spec.groupPriorityMinimum",
                spec.group_priority_minimum,
                "must be positive and less than 20000",
            );
        }
        if !(1..=1000).contains(&spec.version_priority) {
            errors.invalid(
                "spec.versionPriority",
                spec.version_priority,
                "must be positive and less than 1000",
            );
        }
        validate_backend(spec, errors);
    }

    fn judges_status(&self) -> bool {
        true
    }

    fn validate_status_update(&self, new: &APIService, _old: &APIService, errors: &mut FieldErrors) {
        let conditions = new.status.as_ref().and_then(|status| status.conditions.as_deref());
        for (at, condition) in conditions.unwrap_or_default().iter().enumerate() {
            if !STATUSES.contains(&condition.status.as_str()) {
                errors.not_supported(
                    format!("status.conditions[{at}].status"),
                    condition.status.as_str(),
                    STATUSES,
                );
            }
        }
    }

    fn columns(&self) -> &[Column] {
        super::tables::cluster::API_SERVICE
    }

    /// The core group's is called "v1.", which is no DNS name.
    fn options(&self) -> StrategyOptions {
        StrategyOptions { name: NameRule::PathSegment, unconditional_update: false, ..StrategyOptions::PLAIN }
    }
}

/// A local APIService, which this server serves itself, has no backend and no TLS settings.
fn validate_backend(spec: &APIServiceSpec, errors: &mut FieldErrors) {
    let bundle = spec.ca_bundle.as_ref().map_or(0, |bundle| bundle.0.len());
    let skips = spec.insecure_skip_tls_verify == Some(true);
    let Some(backend) = &spec.service else {
        if bundle > 0 {
            let value = format!("{bundle} bytes");
            errors.invalid("spec.caBundle", value, "local APIServices may not have a caBundle");
        }
        if skips {
            errors.invalid(
                "spec.insecureSkipTLSVerify",
                true,
                "local APIServices may not have insecureSkipTLSVerify",
            );
        }
        return;
    };
    for (field, value) in [("namespace", &backend.namespace), ("name", &backend.name)] {
        if value.as_deref().unwrap_or_default().is_empty() {
            errors.required(format!("spec.service.{field}"), "");
        }
    }
    if skips && bundle > 0 {
        errors.invalid("spec.insecureSkipTLSVerify", true, "may not be true if caBundle is present");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn check(name: &str, spec: Value, expected: &[&str]) {
        let service = json!({"metadata": {"name": name}, "spec": spec});
        let service: APIService = serde_json::from_value(service).expect("an APIService");
        let mut errors = FieldErrors::default();
        ApiServiceRules.validate(&service, &mut errors);
        let found: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn services_are_judged_in_upstreams_words() {
        let service = json!({"namespace": "a", "name": "b", "port": 443});
        check("v1.", json!({"version": "v1", "groupPriorityMinimum": 18000, "versionPriority": 1}), &[]);
        check(
            "v1.a.b",
            json!({"group": "a.b", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1, "service": service}),
            &[],
        );
        check(
            "x",
            json!({"version": "v2", "groupPriorityMinimum": 20001, "versionPriority": 0, "caBundle": "aGk=", "insecureSkipTLSVerify": true}),
            &[
                "metadata.name: Invalid value: \"x\": must be `spec.version+\".\"+spec.group`: \"v2.\"",
                "spec.group: Required value: only v1 may have an empty group and it better be legacy kube",
                "spec.groupPriorityMinimum: Invalid value: 20001: must be positive and less than 20000",
                "spec.versionPriority: Invalid value: 0: must be positive and less than 1000",
                "spec.caBundle: Invalid value: \"2 bytes\": local APIServices may not have a caBundle",
                "spec.insecureSkipTLSVerify: Invalid value: true: local APIServices may not have insecureSkipTLSVerify",
            ],
        );
        check(
            "v1.a",
            json!({"group": "a", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1, "caBundle": "aGk=", "insecureSkipTLSVerify": true, "service": {}}),
            &[
                "spec.service.namespace: Required value",
                "spec.service.name: Required value",
                "spec.insecureSkipTLSVerify: Invalid value: true: may not be true if caBundle is present",
            ],
        );
    }
}
