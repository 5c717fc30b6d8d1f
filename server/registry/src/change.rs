//! A summary of a write for its span: the changed fields, with values only where these cannot be secret.
//!
//! `spec.replicas=1→3; spec.template.spec.containers[web].image=nginx:1.27→nginx:1.29; metadata.labels[tier]`.
//!
//! A value is told if it is a number or a truth, or a text in one of the few fields of built-in kinds that hold a name
//! or a verdict ([`PLAIN`]). Everything else is a path alone: a label, an annotation, an environment variable, a
//! ConfigMap's and a Secret's data may hold anything. Of a Secret no value is told at all.

use ferry_api::Object;
use ferry_trace::lives::{CREATE, DELETE, MARK, UPDATE};
use ferry_trace::{Span, Value as Fact};
use serde_json::Value;

/// Tells a commit's span what it does to the object.
pub fn describe(span: &mut Span, old: Option<&Object>, new: Option<&Object>, is_builtin: bool) {
    if !span.is_recorded() {
        return;
    }
    let verb = match (old, new) {
        (None, _) => CREATE,
        (Some(_), None) => DELETE,
        (Some(old), Some(new)) if new.is_deleting() && !old.is_deleting() => MARK,
        (Some(_), Some(_)) => UPDATE,
    };
    span.set("verb", verb);
    if let Some(object) = new.or(old) {
        span.set("uid", object.uid());
    }
    if let Some((old, new)) = old.zip(new) {
        let changed = changed(old, new, is_builtin);
        if !changed.is_empty() {
            span.set("changed", changed);
        }
    }
}

/// Text fields that hold a name or a verdict of Kubernetes' own, wherever they stand in spec and status.
const PLAIN: &[&str] = &[
    "clusterIP",
    "cpu",
    "effect",
    "ephemeral-storage",
    "image",
    "maxSurge",
    "maxUnavailable",
    "memory",
    "minAvailable",
    "nodeName",
    "phase",
    "reason",
    "restartPolicy",
    "schedulerName",
    "serviceAccountName",
    "status",
    "type",
];
/// The system's own book-keeping.
const SILENT: &[&str] = &["managedFields", "resourceVersion", "generation", "creationTimestamp", "uid"];
/// Times say when, which the span does too.
const TIMES: &[&str] = &[
    "lastTransitionTime",
    "lastProbeTime",
    "lastHeartbeatTime",
    "lastUpdateTime",
    "startedAt",
    "finishedAt",
    "observedGeneration",
];
/// Longer text is no name.
const MAX_VALUE: usize = 64;

/// What somebody wants first, then what is observed; as much as fits into a fact.
fn changed(old: &Object, new: &Object, is_builtin: bool) -> String {
    let is_secret = new.0.get("kind").and_then(Value::as_str) == Some("Secret");
    let mut differences = Differences { found: Vec::new(), is_builtin, is_secret };
    let mut sections: Vec<&String> = old.0.keys().chain(new.0.keys()).collect();
    sections
        .sort_by_key(|section| (section.as_str() == "status", section.as_str() != "spec", section.as_str()));
    sections.dedup();
    for section in sections {
        differences.compare(section.clone(), section, old.0.get(section), new.0.get(section));
    }
    fitted(differences.found)
}

struct Differences {
    found: Vec<String>,
    is_builtin: bool,
    is_secret: bool,
}

impl Differences {
    fn compare(&mut self, path: String, name: &str, old: Option<&Value>, new: Option<&Value>) {
        if old == new || SILENT.contains(&name) || TIMES.contains(&name) {
            return;
        }
        match (old, new) {
            // What was not there is compared with nothing, so that a new condition tells its status and reason.
            (Some(Value::Object(_)) | None, Some(Value::Object(_)) | None) => {
                let empty = serde_json::Map::new();
                let before = old.and_then(Value::as_object).unwrap_or(&empty);
                let after = new.and_then(Value::as_object).unwrap_or(&empty);
                let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
                names.sort_unstable();
                names.dedup();
                let is_open = matches!(name, "labels" | "annotations" | "data" | "stringData" | "binaryData");
                for field in names {
                    let is_plain = !is_open && !field.contains(['.', '/', '[', ']']);
                    let below = if is_plain { format!("{path}.{field}") } else { format!("{path}[{field}]") };
                    // The keys of what users fill in are names of theirs and no fields.
                    let name = if is_plain { field.as_str() } else { "" };
                    self.compare(below, name, before.get(field), after.get(field));
                }
            }
            (Some(Value::Array(before)), Some(Value::Array(after))) => {
                self.compare_lists(&path, before, after)
            }
            (None, Some(Value::Array(after))) => self.compare_lists(&path, &[], after),
            (Some(Value::Array(before)), None) => self.compare_lists(&path, before, &[]),
            _ => self.tell(path, name, old, new),
        }
    }

    /// Elements are known by the key of their kind; a list without one changed as a whole.
    fn compare_lists(&mut self, path: &str, before: &[Value], after: &[Value]) {
        let mut keys: Vec<(&str, &str)> = Vec::new();
        for element in before.iter().chain(after) {
            let Some(key) = key(element) else { return self.found.push(path.to_owned()) };
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        for wanted in keys {
            let old = before.iter().find(|element| key(element) == Some(wanted));
            let new = after.iter().find(|element| key(element) == Some(wanted));
            let element = format!("{path}[{}]", wanted.1);
            let known = self.found.len();
            self.compare(element.clone(), "", old, new);
            // The key itself stands in the path already.
            let of_key = format!("{element}.{}", wanted.0);
            let is_key = |found: &String| {
                found.strip_prefix(&of_key).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
            };
            if let Some(at) = self.found[known..].iter().position(is_key) {
                match self.found.len() - known {
                    1 => self.found[known] = element,
                    _ => drop(self.found.remove(known + at)),
                }
            }
        }
    }

    fn tell(&mut self, path: String, name: &str, old: Option<&Value>, new: Option<&Value>) {
        let is_told = |value: Option<&Value>| value.is_none_or(|value| self.is_plain(&path, name, value));
        if self.is_secret || !is_told(old) || !is_told(new) {
            return self.found.push(path);
        }
        let text = |value: Option<&Value>| match value {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        self.found.push(format!("{path}={}→{}", text(old), text(new)));
    }

    fn is_plain(&self, path: &str, name: &str, value: &Value) -> bool {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => true,
            Value::String(text) => {
                let is_name = text.len() <= MAX_VALUE && !text.contains([';', '→', '=']);
                let is_of_kubernetes = path.starts_with("spec.") || path.starts_with("status.");
                self.is_builtin && is_of_kubernetes && is_name && PLAIN.contains(&name)
            }
            Value::Array(_) | Value::Object(_) => false,
        }
    }
}

/// What tells elements of a list apart: a container's name, a condition's type, a taint's key.
fn key(element: &Value) -> Option<(&'static str, &str)> {
    ["name", "type", "key", "uid", "ip"]
        .into_iter()
        .find_map(|field| Some((field, element.get(field)?.as_str()?)))
}

fn fitted(found: Vec<String>) -> String {
    const MORE: &str = "; …";
    let mut text = String::new();
    for difference in found {
        let separator = if text.is_empty() { "" } else { "; " };
        if text.len() + separator.len() + difference.len() + MORE.len() > Fact::MAX_TEXT {
            text.push_str(if text.is_empty() { "…" } else { MORE });
            break;
        }
        text.push_str(separator);
        text.push_str(&difference);
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Object {
        Object::new(value.as_object().cloned().unwrap_or_default())
    }

    fn check(old: Value, new: Value, expected: &str) {
        assert_eq!(changed(&object(old), &object(new), true), expected);
    }

    #[test]
    fn numbers_truths_and_names_are_told_with_their_values() {
        check(json!({"spec": {"replicas": 1}}), json!({"spec": {"replicas": 3}}), "spec.replicas=1→3");
        check(json!({"spec": {}}), json!({"spec": {"paused": true}}), "spec.paused=→true");
        check(json!({"spec": {"paused": true}}), json!({"spec": {}}), "spec.paused=true→");
        check(
            json!({"spec": {"containers": [{"name": "web", "image": "nginx:1"}]}}),
            json!({"spec": {"containers": [{"name": "web", "image": "nginx:2"}, {"name": "side", "image": "x"}]}}),
            "spec.containers[web].image=nginx:1→nginx:2; spec.containers[side].image=→x",
        );
        check(
            json!({"status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "1"}]}}),
            json!({"status": {"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2", "reason": "R"}]}}),
            "status.conditions[Ready].reason=→R; status.conditions[Ready].status=True→False",
        );
        check(
            json!({"metadata": {"generation": 1, "resourceVersion": "5", "managedFields": []}}),
            json!({"metadata": {"generation": 2, "resourceVersion": "6"}}),
            "",
        );
    }

    #[test]
    fn changes_of_possible_secrets_contain_only_the_path() {
        check(
            json!({"metadata": {"labels": {"image": "a"}, "annotations": {"x.io/pin": "1"}}}),
            json!({"metadata": {"labels": {"image": "b"}, "annotations": {"x.io/pin": "2"}}}),
            "metadata.annotations[x.io/pin]; metadata.labels[image]",
        );
        check(json!({"data": {"status": "a"}}), json!({"data": {"status": "b"}}), "data[status]");
        check(
            json!({"spec": {"containers": [{"name": "c", "env": [{"name": "TOKEN", "value": "a"}], "args": ["a"]}]}}),
            json!({"spec": {"containers": [{"name": "c", "env": [{"name": "TOKEN", "value": "b"}], "args": ["b"]}]}}),
            "spec.containers[c].args; spec.containers[c].env[TOKEN].value",
        );
        check(
            json!({"kind": "Secret", "immutable": false, "type": "a"}),
            json!({"kind": "Secret", "immutable": true, "type": "b"}),
            "immutable; type",
        );
        let (old, new) = (
            object(json!({"spec": {"image": "a", "n": 1}})),
            object(json!({"spec": {"image": "b", "n": 2}})),
        );
        assert_eq!(
            changed(&old, &new, false),
            "spec.image; spec.n=1→2",
            "a custom resource's text may be anything"
        );
    }

    #[test]
    fn spec_changes_come_first_and_are_complete() {
        let many = |value: u32| {
            let fields: serde_json::Map<String, Value> =
                (0..50).map(|n| (format!("field{n:02}"), json!(value))).collect();
            json!({"status": fields, "spec": {"replicas": value}})
        };
        let text = changed(&object(many(1)), &object(many(2)), true);
        assert!(text.starts_with("spec.replicas=1→2; status.field00=1→2; "), "{text}");
        assert!(text.len() <= Fact::MAX_TEXT && text.ends_with("; …"), "{text}");
    }
}
