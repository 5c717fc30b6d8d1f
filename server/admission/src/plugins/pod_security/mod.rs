//! PodSecurity: the level of a namespace refuses pods, returns warnings or adds audit annotations. Pod templates only cause
//! warnings and annotations, since their pods are checked later.
//!
//! [`policy`] determines the level, [`checks`] contains its rules.

mod checks;
mod policy;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{GroupResource, Object, Status};
use ferry_registry::Registry;
use ferry_registry::cache::Entry;
use ferry_registry::verbs::Operation;
use serde_json::Value;

use self::checks::{Subject, Violation, violations};
use self::policy::{Configuration, Exemptions, Level, LevelVersion, PREFIX, Policy};
use super::Context;
use crate::chain::{Phase, Plugin, Request};
use crate::configuration::BadConfiguration;
use crate::lookup::in_namespace;

/// How many pods are looked at when a namespace gets a stricter level.
const MOST_PODS: usize = 3000;

/// Kinds that make pods, and where their template stands.
const TEMPLATES: [(&str, &str, &[&str]); 8] = [
    ("", "podtemplates", &["template"]),
    ("", "replicationcontrollers", &["spec", "template"]),
    ("apps", "daemonsets", &["spec", "template"]),
    ("apps", "deployments", &["spec", "template"]),
    ("apps", "replicasets", &["spec", "template"]),
    ("apps", "statefulsets", &["spec", "template"]),
    ("batch", "cronjobs", &["spec", "jobTemplate", "spec", "template"]),
    ("batch", "jobs", &["spec", "template"]),
];

/// Everything else that can be asked of a pod could change it, and is looked at.
const HARMLESS: [&str; 8] =
    ["exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status"];

pub fn make(context: &Context) -> Result<Arc<dyn Plugin>, BadConfiguration> {
    let configuration: Configuration = context.configuration.of("PodSecurity")?;
    let default = configuration
        .policy()
        .map_err(|why| BadConfiguration(format!("configuration of PodSecurity: {why}")))?;
    let registry = context.registry.clone();
    Ok(Arc::new(PodSecurity { registry, default, exempt: configuration.exemptions }))
}

struct PodSecurity {
    registry: Arc<Registry>,
    default: Policy,
    exempt: Exemptions,
}

#[async_trait]
impl Plugin for PodSecurity {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Validate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        let (group, plural) = (&*request.call.kind.group, &*request.call.kind.plural);
        request.operation != Operation::Delete
            && match (group, plural) {
                ("", "pods") => !HARMLESS.contains(&request.call.subresource),
                ("", "namespaces") => request.call.subresource.is_empty(),
                _ => request.call.subresource.is_empty() && template_of(group, plural).is_some(),
            }
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let Some(object) = object else { return Ok(()) };
        match (&*request.call.kind.group, &*request.call.kind.plural) {
            ("", "namespaces") => self.namespace(request, object, old),
            ("", "pods") => self.pod(request, object, old),
            (group, plural) => {
                let path = template_of(group, plural).unwrap_or(&[]);
                self.template(request, object.get(path));
                Ok(())
            }
        }
    }
}

fn template_of(group: &str, plural: &str) -> Option<&'static [&'static str]> {
    let row = TEMPLATES.iter().find(|(of, name, _)| (*of, *name) == (group, plural));
    row.map(|(_, _, path)| *path)
}

fn annotate(request: &Request<'_>, key: &str, value: impl Into<String>) {
    request.annotate(format!("{PREFIX}{key}"), value.into());
}

impl PodSecurity {
    /// The user or the namespace is past judging.
    fn is_exempt(&self, request: &Request<'_>) -> bool {
        let why = match () {
            () if self.exempt.namespaces.iter().any(|name| name == request.call.namespace) => "namespace",
            () if self.exempt.usernames.contains(&request.call.user.name) => "user",
            () => return false,
        };
        annotate(request, "exempt", why);
        true
    }

    fn is_exempt_class(&self, spec: &Value) -> bool {
        let class = spec.get("runtimeClassName").and_then(Value::as_str).unwrap_or("");
        !class.is_empty() && self.exempt.runtime_classes.iter().any(|name| name == class)
    }

    fn namespace_entry(&self, name: &str) -> Option<Arc<Entry>> {
        self.registry.resource(&GroupResource::new("", "namespaces"))?.cache.get(name)
    }

    fn pod(&self, request: &Request<'_>, pod: &Object, old: Option<&Object>) -> Result<(), Status> {
        if self.is_exempt(request) {
            return Ok(());
        }
        let Some(namespace) = self.namespace_entry(request.call.namespace) else {
            return Err(Status::internal(format!("failed to lookup namespace {:?}", request.call.namespace)));
        };
        let (policy, errors) = Policy::of(|key| namespace.label(key), self.default);
        if errors.is_empty() && policy.is_privileged() {
            annotate(request, "enforce-policy", LevelVersion::PRIVILEGED.to_string());
            return Ok(());
        }
        // An update can change the images of a pod, and add containers for debugging.
        if old.is_some_and(|old| images(old) == images(pod)) {
            return Ok(());
        }
        let empty = Value::Null;
        let spec = pod.get(&["spec"]).unwrap_or(&empty);
        let subject = Subject { annotations: pod.meta("annotations").and_then(Value::as_object), spec };
        self.judge(request, &policy, &errors, subject, true)
    }

    fn template(&self, request: &Request<'_>, template: Option<&Value>) {
        let Some(template) = template.filter(|template| template.is_object()) else { return };
        if self.is_exempt(request) {
            return;
        }
        let Some(namespace) = self.namespace_entry(request.call.namespace) else {
            annotate(request, "error", format!("failed to lookup namespace {:?}", request.call.namespace));
            return;
        };
        let (policy, errors) = Policy::of(|key| namespace.label(key), self.default);
        if errors.is_empty() && [policy.warn, policy.audit].iter().all(|one| one.level == Level::Privileged) {
            return;
        }
        let annotations = template.pointer("/metadata/annotations").and_then(Value::as_object);
        let empty = Value::Null;
        let spec = template.get("spec").unwrap_or(&empty);
        // Nothing is enforced on a template, so nothing is refused.
        let _ = self.judge(request, &policy, &errors, Subject { annotations, spec }, false);
    }

    fn judge(
        &self,
        request: &Request<'_>,
        policy: &Policy,
        errors: &ferry_api::FieldErrors,
        pod: Subject<'_>,
        enforce: bool,
    ) -> Result<(), Status> {
        if self.is_exempt_class(pod.spec) {
            annotate(request, "exempt", "runtimeClass");
            return Ok(());
        }
        if !errors.is_empty() {
            let list: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
            let list = if list.len() == 1 { list.concat() } else { format!("[{}]", list.join(", ")) };
            annotate(request, "error", format!("Failed to parse policy: {list}"));
        }
        let mut refusal = None;
        if enforce {
            annotate(request, "enforce-policy", policy.enforce.to_string());
            let found = violations(policy.enforce, pod);
            if !found.is_empty() {
                let why = format!("violates PodSecurity \"{}\": {}", policy.enforce, details(&found));
                refusal = Some(request.forbid(why));
            }
        }
        let would = |policy: LevelVersion| {
            let found = violations(policy, pod);
            (!found.is_empty())
                .then(|| format!("would violate PodSecurity \"{policy}\": {}", details(&found)))
        };
        if let Some(violated) = would(policy.audit) {
            annotate(request, "audit-violations", violated);
        }
        // Who is refused need not be warned.
        match (refusal, would(policy.warn)) {
            (Some(refusal), _) => return Err(refusal),
            (None, Some(warning)) => request.warn(warning),
            (None, None) => {}
        }
        Ok(())
    }

    fn namespace(&self, request: &Request<'_>, new: &Object, old: Option<&Object>) -> Result<(), Status> {
        let (policy, errors) = Policy::of(|key| new.label(key), self.default);
        let before = old.map(|old| Policy::of(|key| old.label(key), self.default));
        if !errors.is_empty() && before.as_ref().is_none_or(|(_, known)| known.0 != errors.0) {
            return Err(Status::invalid("", "Namespace", request.name, &errors));
        }
        let exempt = self.exempt.namespaces.iter().any(|name| name == new.name());
        let stricter = before.is_none_or(|(before, _)| {
            let (new, old) = (policy.enforce, before.enforce);
            new != old
                && new.level != Level::Privileged
                && (new.version != old.version || new.level > old.level)
        });
        if stricter && exempt {
            if let Some(warning) = self.exempt_warning(new, &policy) {
                request.warn(warning);
            }
        } else if stricter && old.is_some() {
            for warning in self.warnings_of_pods(new.name(), policy.enforce)? {
                request.warn(warning);
            }
        }
        Ok(())
    }

    /// Labels on an exempt namespace do nothing, which may not be what was meant.
    fn exempt_warning(&self, namespace: &Object, policy: &Policy) -> Option<String> {
        if policy.is_privileged() || policy.same_as(&self.default) {
            return None;
        }
        let modes = [("enforce", policy.enforce), ("audit", policy.audit), ("warn", policy.warn)];
        let said = |mode: &str| {
            let keys = [format!("{PREFIX}{mode}"), format!("{PREFIX}{mode}-version")];
            keys.iter().any(|key| namespace.label(key).is_some())
        };
        let labels: Vec<String> = modes
            .iter()
            .filter(|(mode, one)| one.level != Level::Privileged && said(mode))
            .map(|(mode, one)| format!("{mode}={one}"))
            .collect();
        Some(format!(
            "namespace {:?} is exempt from Pod Security, and the policy ({}) will be ignored",
            namespace.name(),
            labels.join(", ")
        ))
    }

    /// What is in the namespace already and would be refused now.
    fn warnings_of_pods(&self, namespace: &str, enforce: LevelVersion) -> Result<Vec<String>, Status> {
        let Some(resource) = self.registry.resource(&GroupResource::new("", "pods")) else {
            return Ok(Vec::new());
        };
        let entries = in_namespace(&resource, namespace);
        let total = entries.len();
        // The pods of one controller violate the same; each different violation is told once, with a pod's name.
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for entry in entries.iter().take(MOST_PODS) {
            let pod = entry.read_object()?;
            let empty = Value::Null;
            let spec = pod.get(&["spec"]).unwrap_or(&empty);
            if self.is_exempt_class(spec) {
                continue;
            }
            let annotations = pod.meta("annotations").and_then(Value::as_object);
            let violated = violations(enforce, Subject { annotations, spec });
            if !violated.is_empty() {
                let reasons = violated.iter().map(|one| one.reason.as_str()).collect::<Vec<_>>().join(", ");
                found.entry(reasons).or_default().push(pod.name().to_string());
            }
        }
        let mut warnings = Vec::new();
        if total > MOST_PODS {
            warnings.push(format!(
                "new PodSecurity enforce level only checked against the first {MOST_PODS} of {total} existing pods"
            ));
        }
        if !found.is_empty() {
            warnings.push(format!(
                "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{enforce}\""
            ));
        }
        let mut lines: Vec<String> = found.iter().map(|(reasons, pods)| told(reasons, pods)).collect();
        lines.sort();
        warnings.extend(lines);
        Ok(warnings)
    }
}

fn told(reasons: &str, pods: &[String]) -> String {
    let first = pods.iter().min().map_or("", String::as_str);
    match pods.len() {
        1 => format!("{first}: {reasons}"),
        2 => format!("{first} (and 1 other pod): {reasons}"),
        many => format!("{first} (and {} other pods): {reasons}", many - 1),
    }
}

fn details(found: &[Violation]) -> String {
    let lines = found.iter().map(|one| format!("{} ({})", one.reason, one.detail));
    lines.collect::<Vec<_>>().join(", ")
}

fn images(pod: &Object) -> Vec<(&str, &str)> {
    let lists = ["containers", "initContainers", "ephemeralContainers"].into_iter();
    let containers =
        lists.flat_map(|list| pod.get(&["spec", list]).and_then(Value::as_array).into_iter().flatten());
    containers
        .map(|container| {
            (
                container.get("name").and_then(Value::as_str).unwrap_or(""),
                container.get("image").and_then(Value::as_str).unwrap_or(""),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_violate_the_same_are_told_of_together() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(told("privileged", &names(&["b"])), "b: privileged");
        assert_eq!(told("privileged", &names(&["b", "a"])), "a (and 1 other pod): privileged");
        assert_eq!(told("privileged", &names(&["b", "a", "c"])), "a (and 2 other pods): privileged");
    }

    #[test]
    fn templates_are_found_where_kinds_have_them() {
        assert_eq!(template_of("batch", "cronjobs"), Some(&["spec", "jobTemplate", "spec", "template"][..]));
        assert_eq!(template_of("", "configmaps"), None);
    }
}
