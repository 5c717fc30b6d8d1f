//! A summary of a write for its span: the changed fields, with values only where these cannot be secret.
//!
//! `spec.replicas=1→3; spec.template.spec.containers[web].image=nginx:1.27→nginx:1.29; metadata.labels[tier]`.
//!
//! A value is told if it is a number or a truth, or a text in one of the few fields of built-in kinds that hold a name
//! or a verdict ([`PLAIN`]). Everything else is a path alone: a label, an annotation, an environment variable, a
//! ConfigMap's and a Secret's data may hold anything. Of a Secret no value is told at all. The field rows say what is a field
//! of Kubernetes' own and what is a map or an extension that users fill in.

use ferry_api::{Object, Schema, Shape, Types};
use ferry_trace::lives::{CREATE, DELETE, MARK, UPDATE};
use ferry_trace::{Span, Value as Fact};
use serde_json::Value;

/// Tells a commit's span what it does to the object.
///
/// `rows` are those of a built-in kind; a custom one has none.
pub fn describe(span: &mut Span, old: Option<&Object>, new: Option<&Object>, rows: Option<&Schema>) {
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
        let changed = changed(old, new, rows);
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
/// Maps that users fill in, where no row says so.
const OPEN: &[&str] = &["labels", "annotations", "data", "stringData", "binaryData"];
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
fn changed(old: &Object, new: &Object, rows: Option<&Schema>) -> String {
    fitted(differences(old, new, rows))
}

fn differences(old: &Object, new: &Object, rows: Option<&Schema>) -> Vec<String> {
    let is_secret = new.0.get("kind").and_then(Value::as_str) == Some("Secret");
    let mut differences = Differences { found: Vec::new(), types: rows.map(|rows| &*rows.types), is_secret };
    let mut sections: Vec<&String> = old.0.keys().chain(new.0.keys()).collect();
    sections
        .sort_by_key(|section| (section.as_str() == "status", section.as_str() != "spec", section.as_str()));
    sections.dedup();
    for section in sections {
        let shape = rows.and_then(|rows| Some(&rows.root().field(section)?.shape));
        differences.compare(section.clone(), section, shape, old.0.get(section), new.0.get(section));
    }
    // As a fact holds a few of them only, those come first that `ferry why` judges by.
    differences.found.sort_by_key(|found| rank(found));
    differences.found
}

/// The smaller, the earlier. A restart comes with a dozen changes of a pod's status; what matters is that, and why.
fn rank(found: &str) -> u8 {
    const RESTARTED: &[&str] =
        &[".restartCount=", ".lastState.terminated.exitCode=", ".lastState.terminated.reason="];
    const TELLING: &[&str] = &[
        ".conditions[DisruptionTarget].reason=",
        ".conditions[Ready].status=",
        ".conditions[Ready].reason=",
        "status.phase=",
        "status.reason=",
    ];
    match found {
        _ if !found.starts_with("status") => 0,
        _ if RESTARTED.iter().any(|field| found.contains(field)) => 1,
        _ if TELLING.iter().any(|field| found.contains(field)) => 2,
        _ if found.contains('=') => 3,
        _ => 4,
    }
}

struct Differences<'t> {
    found: Vec<String>,
    /// Absent for a custom resource.
    types: Option<&'t Types>,
    is_secret: bool,
}

impl<'t> Differences<'t> {
    /// `shape` is what the rows say of the field; absent below a custom resource and an extension.
    fn compare(
        &mut self,
        path: String,
        name: &str,
        shape: Option<&'t Shape>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) {
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
                let is_open = match shape {
                    Some(Shape::Map(of)) => **of != Shape::Quantity,
                    Some(Shape::Raw | Shape::Json | Shape::FieldsV1) => true,
                    Some(_) => false,
                    None => OPEN.contains(&name),
                };
                for field in names {
                    let is_plain = !is_open && !field.contains(['.', '/', '[', ']']);
                    let below = if is_plain { format!("{path}.{field}") } else { format!("{path}[{field}]") };
                    // The keys of what users fill in are names of theirs and no fields.
                    let name = if is_plain { field.as_str() } else { "" };
                    self.compare(below, name, self.below(shape, field), before.get(field), after.get(field));
                }
            }
            (Some(Value::Array(before)), Some(Value::Array(after))) => {
                self.compare_lists(&path, shape, before, after)
            }
            (None, Some(Value::Array(after))) => self.compare_lists(&path, shape, &[], after),
            (Some(Value::Array(before)), None) => self.compare_lists(&path, shape, before, &[]),
            _ => self.tell(path, name, shape, old, new),
        }
    }

    fn below(&self, shape: Option<&'t Shape>, field: &str) -> Option<&'t Shape> {
        match shape? {
            Shape::Struct(id) => Some(&self.types?.get(*id).field(field)?.shape),
            Shape::Map(of) => Some(of),
            _ => None,
        }
    }

    /// Elements are known by the key of their kind; a list without one changed as a whole.
    fn compare_lists(&mut self, path: &str, shape: Option<&'t Shape>, before: &[Value], after: &[Value]) {
        let shape = match shape {
            Some(Shape::List(of)) => Some(&**of),
            _ => None,
        };
        let is_custom = self.types.is_none();
        let mut keys: Vec<(&str, &str)> = Vec::new();
        for element in before.iter().chain(after) {
            let Some(key) = key(element, shape, is_custom) else { return self.found.push(path.to_owned()) };
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        for wanted in keys {
            let old = before.iter().find(|element| key(element, shape, is_custom) == Some(wanted));
            let new = after.iter().find(|element| key(element, shape, is_custom) == Some(wanted));
            let element = format!("{path}[{}]", wanted.1);
            let known = self.found.len();
            self.compare(element.clone(), "", shape, old, new);
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

    fn tell(
        &mut self,
        path: String,
        name: &str,
        shape: Option<&Shape>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) {
        let is_told = |value: Option<&Value>| value.is_none_or(|value| is_plain(&path, name, shape, value));
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
}

fn is_plain(path: &str, name: &str, shape: Option<&Shape>, value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
        Value::String(text) => {
            let is_name = text.len() <= MAX_VALUE && !text.contains([';', '→', '=']);
            let is_of_kubernetes = path.starts_with("spec.") || path.starts_with("status.");
            let is_known = PLAIN.contains(&name) || shape == Some(&Shape::Quantity);
            shape.is_some() && is_of_kubernetes && is_name && is_known
        }
        Value::Array(_) | Value::Object(_) => false,
    }
}

/// What tells elements of a list apart: a container's name, a condition's type, a taint's key. A custom resource may
/// keep anything in fields of these names, so only what looks like a name counts there; an extension has no such fields.
fn key<'e>(element: &'e Value, shape: Option<&Shape>, is_custom: bool) -> Option<(&'static str, &'e str)> {
    const OF_BUILTIN: &[&str] = &["name", "type", "key", "uid", "ip"];
    let is_known = matches!(shape, Some(Shape::Struct(_)));
    let fields = match is_known {
        true => OF_BUILTIN,
        false if is_custom => &OF_BUILTIN[..2],
        false => &[],
    };
    let key = fields.iter().find_map(|field| Some((*field, element.get(field)?.as_str()?)))?;
    (is_known || is_short_name(key.1)).then_some(key)
}

/// A DNS label, or the one word of a condition's type.
fn is_short_name(text: &str) -> bool {
    const LONGEST: usize = 63;
    (1..=LONGEST).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte))
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
    use ferry_api::kinds::GroupVersionKind;
    use ferry_api::types::TypeId;
    use serde_json::json;

    use super::*;

    fn rows(group: &'static str, version: &'static str, kind: &'static str) -> Schema {
        Schema::builtin(&GroupVersionKind::new(group, version, kind)).expect("a built-in kind")
    }

    fn object(value: Value) -> Object {
        Object::new(value.as_object().cloned().unwrap_or_default())
    }

    fn check_of(rows: &Schema, old: Value, new: Value, expected: &str) {
        assert_eq!(changed(&object(old), &object(new), Some(rows)), expected);
    }

    fn check(old: Value, new: Value, expected: &str) {
        check_of(&rows("", "v1", "Pod"), old, new, expected);
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
            changed(&old, &new, None),
            "spec.image; spec.n=1→2",
            "a custom resource's text may be anything"
        );
        let (old, new) = (
            object(
                json!({"spec": {"keys": [{"key": "a"}], "users": [{"name": "a b", "n": 1}], "parts": [{"name": "x", "n": 1}]}}),
            ),
            object(
                json!({"spec": {"keys": [{"key": "b"}], "users": [{"name": "a b", "n": 2}], "parts": [{"name": "x", "n": 2}]}}),
            ),
        );
        let expected = "spec.keys; spec.parts[x].n=1→2; spec.users";
        assert_eq!(changed(&old, &new, None), expected, "nor does it stand in a path, unless it is a name");
    }

    #[test]
    fn a_restart_is_told_among_all_that_changes_with_it() {
        let pod = |restarts: u32, ready: &str| {
            let ended = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled", "containerID": "containerd://0123456789abcdef", "message": "x"}});
            let conditions = ["ContainersReady", "PodReadyToStartContainers", "Ready"].map(
                |name| json!({"type": name, "status": ready, "reason": "ContainersNotReady", "message": ready}),
            );
            json!({"status": {
                "conditions": conditions,
                "containerStatuses": [{"name": "web-frontend", "image": format!("i:{restarts}"), "imageID": restarts.to_string(), "containerID": restarts.to_string(),
                    "ready": ready == "True", "started": ready == "True", "restartCount": restarts, "lastState": if restarts > 0 { ended } else { json!({}) }}],
            }})
        };
        let text = changed(&object(pod(0, "True")), &object(pod(1, "False")), Some(&rows("", "v1", "Pod")));
        for telling in ["restartCount=0→1", "exitCode=→137", "reason=→OOMKilled"] {
            assert!(text.contains(telling), "{telling}: {text}");
        }
    }

    #[test]
    fn spec_changes_come_first_and_are_complete() {
        let many = |value: u32| {
            let fields: serde_json::Map<String, Value> =
                (0..50).map(|n| (format!("field{n:02}"), json!(value))).collect();
            json!({"status": fields, "spec": {"replicas": value}})
        };
        let text = changed(&object(many(1)), &object(many(2)), Some(&rows("", "v1", "Pod")));
        assert!(text.starts_with("spec.replicas=1→2; status.field00=1→2; "), "{text}");
        assert!(text.len() <= Fact::MAX_TEXT && text.ends_with("; …"), "{text}");
    }
    #[test]
    fn maps_and_extensions_of_built_in_kinds_hold_what_users_fill_in() {
        let volume =
            |text: &str| json!({"spec": {"csi": {"volumeAttributes": {"type": text, "status": text}}}});
        let expected = "spec.csi.volumeAttributes[status]; spec.csi.volumeAttributes[type]";
        check_of(&rows("", "v1", "PersistentVolume"), volume("a"), volume("b"), expected);
        let selector = |text: &str| json!({"spec": {"selector": {"matchLabels": {"image": text}}}});
        let expected = "spec.selector.matchLabels[image]";
        check_of(&rows("apps", "v1", "Deployment"), selector("a"), selector("b"), expected);
        let limits = |text: &str| json!({"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": text, "example.com/gpu": text}}}]}});
        let expected = "spec.containers[c].resources.limits.cpu=1→2; spec.containers[c].resources.limits[example.com/gpu]=1→2";
        check(limits("1"), limits("2"), expected);
    }

    /// Every field of a type; one that stands in itself ends there. Where a user may write any text it is `text`.
    fn filled(types: &Types, id: TypeId, within: &mut Vec<TypeId>, text: &str) -> Option<Value> {
        if within.contains(&id) {
            return None;
        }
        within.push(id);
        let mut filled = serde_json::Map::new();
        for field in &types.get(id).fields {
            // What tells elements apart stands in paths.
            let is_name =
                ["name", "type", "key", "uid", "ip"].contains(&&*field.name) || PLAIN.contains(&&*field.name);
            let value = match is_name && field.shape == Shape::String {
                true => Some(json!("name")),
                false => value(types, &field.shape, within, text),
            };
            filled.extend(value.map(|value| (field.name.to_string(), value)));
        }
        within.pop();
        Some(Value::Object(filled))
    }

    fn value(types: &Types, shape: &Shape, within: &mut Vec<TypeId>, text: &str) -> Option<Value> {
        Some(match shape {
            Shape::Bool => json!(true),
            Shape::Int32 | Shape::Int64 | Shape::Double | Shape::Quantity | Shape::IntOrString => json!(1),
            Shape::String | Shape::Bytes | Shape::Time | Shape::MicroTime | Shape::Duration => json!(text),
            Shape::Raw | Shape::Json | Shape::FieldsV1 => {
                let list = json!([{"key": text, "name": format!("{text} {text}")}]);
                json!({"type": text, "image": text, "below": {"status": text}, "list": list})
            }
            Shape::ExtraValue => json!([text]),
            Shape::Struct(id) => filled(types, *id, within, text)?,
            Shape::List(of) => json!([value(types, of, within, text)?]),
            Shape::Map(of) => {
                let value = value(types, of, within, text)?;
                json!({"type": value, "image": value, "status": value, "reason": value})
            }
        })
    }

    #[test]
    fn no_built_in_kind_has_a_place_for_text_whose_value_is_told() {
        let types = Types::builtin();
        let mut kinds = 0;
        for kind in types.iter().flat_map(|known| &known.kinds) {
            let rows = Schema::builtin(kind).expect("it was just listed");
            let of = |text: &str| object(filled(types, rows.root, &mut Vec::new(), text).expect("an object"));
            let found = differences(&of("hunter1"), &of("hunter2"), Some(&rows));
            let told: Vec<&String> = found.iter().filter(|found| found.contains("hunter")).collect();
            assert!(told.is_empty(), "{kind:?}: {told:?}");
            kinds += usize::from(!found.is_empty());
        }
        assert!(kinds > 100, "{kinds} kinds differ");
    }
}
