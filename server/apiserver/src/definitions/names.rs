//! What a definition's status says: the names it got, and whether it is served. Pure.

use ferry_api::Object;
use ferry_registry::custom_resources::Definition;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// The annotation that groups of the Kubernetes project need.
pub const APPROVED: &str = "api-approved.kubernetes.io";

/// The status as it should be; `None` where it is so already. `others` are all other definitions.
pub fn status(
    object: &Object,
    definition: &Definition,
    others: &[&Definition],
    now: Timestamp,
) -> Option<Value> {
    let old = object.0.get("status").cloned().unwrap_or_else(|| json!({}));
    let mut new = old.clone();
    let (accepted, conflict) = accept(definition, others);
    new["acceptedNames"] = accepted;
    let is_accepted = conflict.is_none();
    let (reason, message) = conflict.unwrap_or(("NoConflicts", "no conflicts found".into()));
    set_condition(&mut new, "NamesAccepted", is_accepted, reason, &message, now);
    match (definition.established, is_accepted) {
        // Once served, a definition stays so.
        (true, _) => {}
        (false, true) => {
            let message = "the initial names have been accepted";
            set_condition(&mut new, "Established", true, "InitialNamesAccepted", message, now);
        }
        (false, false) => {
            set_condition(&mut new, "Established", false, "NotAccepted", "not all names are accepted", now);
        }
    }
    if let Some((approved, reason, message)) = approval(object, &definition.group) {
        let kind = "KubernetesAPIApprovalPolicyConformant";
        set_condition(&mut new, kind, approved, reason, &message, now);
    }
    (new != old).then_some(new)
}

/// The names that the definition gets, and what is in the way of the others. A name that another definition of the
/// group has is not given twice; what was accepted once stays.
fn accept(definition: &Definition, others: &[&Definition]) -> (Value, Option<(&'static str, String)>) {
    let others: Vec<_> =
        others.iter().filter(|other| other.group == definition.group).map(|other| &other.accepted).collect();
    let resources: Vec<&str> = others
        .iter()
        .flat_map(|names| [names.plural.as_str(), &names.singular])
        .chain(others.iter().flat_map(|names| names.short_names.iter().map(String::as_str)))
        .collect();
    let kinds: Vec<&str> = others.iter().flat_map(|names| [names.kind.as_str(), &names.list_kind]).collect();
    let (wanted, had) = (&definition.names, &definition.accepted);
    let mut names = Map::new();
    let mut conflict = None;
    let mut give = |field: &str, wanted: &str, had: &str, taken: &[&str], reason: &'static str| {
        let free = wanted == had || !taken.contains(&wanted);
        let given = if free { wanted } else { had };
        if !free && conflict.is_none() {
            conflict = Some((reason, format!("{wanted:?} is already in use")));
        }
        if !given.is_empty() {
            names.insert(field.into(), given.into());
        }
    };
    give("plural", &wanted.plural, &had.plural, &resources, "PluralConflict");
    give("singular", &wanted.singular, &had.singular, &resources, "SingularConflict");
    give("kind", &wanted.kind, &had.kind, &kinds, "KindConflict");
    give("listKind", &wanted.list_kind, &had.list_kind, &kinds, "ListKindConflict");
    let taken: Vec<&String> = wanted
        .short_names
        .iter()
        .filter(|name| !had.short_names.contains(name) && resources.contains(&name.as_str()))
        .collect();
    let short_names = if taken.is_empty() { &wanted.short_names } else { &had.short_names };
    if !taken.is_empty() && conflict.is_none() {
        let each: Vec<String> = taken.iter().map(|name| format!("{name:?} is already in use")).collect();
        let message = if each.len() == 1 { each[0].clone() } else { format!("[{}]", each.join(", ")) };
        conflict = Some(("ShortNamesConflict", message));
    }
    if !short_names.is_empty() {
        names.insert("shortNames".into(), json!(short_names));
    }
    if !wanted.categories.is_empty() {
        names.insert("categories".into(), json!(wanted.categories));
    }
    (Value::Object(names), conflict)
}

/// Whether a group that belongs to the Kubernetes project was approved; nothing is said of other groups.
fn approval(object: &Object, group: &str) -> Option<(bool, &'static str, String)> {
    let protected = ["k8s.io", "kubernetes.io"];
    if !protected.iter().any(|own| group == *own || group.ends_with(&format!(".{own}"))) {
        return None;
    }
    const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";
    let annotation = object.annotation(APPROVED).unwrap_or("");
    let is_address = annotation
        .split_once("://")
        .is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty() && !rest.starts_with('/'));
    Some(match annotation {
        "" => {
            let message = format!("protected groups must have approval annotation {APPROVED:?}, {SEE}");
            (false, "MissingAnnotation", message)
        }
        text if text.starts_with("unapproved") => {
            (false, "UnapprovedAnnotation", format!("not approved: {text:?}"))
        }
        text if is_address => (true, "ApprovedAnnotation", format!("approved in {text}")),
        _ => {
            let message = format!(
                "protected groups must have approval annotation {APPROVED:?} with either a URL or a reason starting with \"unapproved\", {SEE}"
            );
            (false, "InvalidAnnotation", message)
        }
    })
}

/// Sets a condition; its time changes only with its status.
pub fn set_condition(
    status: &mut Value,
    kind: &str,
    is_true: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let value = if is_true { "True" } else { "False" };
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let Some(conditions) = status["conditions"].as_array_mut() else { return };
    let old = conditions.iter_mut().find(|condition| condition["type"] == kind);
    let since = match &old {
        Some(old) if old["status"] == value => old["lastTransitionTime"].clone(),
        _ => ferry_registry::metadata::timestamp(now.as_second()).into(),
    };
    let mut new = json!({"type": kind, "status": value, "lastTransitionTime": since, "reason": reason, "message": message});
    match old {
        Some(old) => {
            // A field that this server does not know stays.
            if let Some(generation) = old.get("observedGeneration") {
                new["observedGeneration"] = generation.clone();
            }
            *old = new;
        }
        None => conditions.push(new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(plural: &str, kind: &str, status: Value) -> (Object, Definition) {
        let object = Object::from_value(json!({
            "metadata": {"name": format!("{plural}.example.com"), "uid": plural},
            "spec": {
                "group": "example.com", "scope": "Namespaced",
                "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind,
                    "listKind": format!("{kind}List"), "shortNames": ["w"]},
                "versions": [{"name": "v1", "served": true, "storage": true}],
            },
            "status": status,
        }));
        let object = object.expect("an object");
        let definition = Definition::read(&object).expect("a definition");
        (object, definition)
    }

    fn condition<'s>(status: &'s Value, kind: &str) -> (&'s str, &'s str, &'s str) {
        let found = status["conditions"].as_array().expect("conditions").iter().find(|c| c["type"] == kind);
        let text = |field: &str| found.expect(kind)[field].as_str().expect("text");
        (text("status"), text("reason"), text("message"))
    }

    #[test]
    fn names_that_are_free_are_accepted_and_the_definition_is_established() {
        let (object, fresh) = definition("widgets", "Widget", json!({}));
        let status = status(&object, &fresh, &[], Timestamp::UNIX_EPOCH).expect("a status");
        assert_eq!(condition(&status, "NamesAccepted"), ("True", "NoConflicts", "no conflicts found"));
        assert_eq!(
            condition(&status, "Established"),
            ("True", "InitialNamesAccepted", "the initial names have been accepted")
        );
        assert_eq!(status["acceptedNames"]["listKind"], "WidgetList");
        let (object, settled) = definition("widgets", "Widget", status);
        assert_eq!(super::status(&object, &settled, &[], Timestamp::now()), None, "nothing is written twice");
    }

    #[test]
    fn a_name_that_another_definition_has_is_in_conflict() {
        let accepted = json!({"acceptedNames": {"plural": "widgets", "singular": "widget", "kind": "Widget",
            "listKind": "WidgetList", "shortNames": ["w"]}});
        let (_, first) = definition("widgets", "Widget", accepted);
        let (object, second) = definition("gadgets", "Widget", json!({}));
        let status = status(&object, &second, &[&first], Timestamp::UNIX_EPOCH).expect("a status");
        let (is_accepted, reason, message) = condition(&status, "NamesAccepted");
        assert_eq!(
            (is_accepted, reason, message),
            ("False", "SingularConflict", "\"widget\" is already in use")
        );
        assert_eq!(condition(&status, "Established").0, "False");
        assert_eq!(status["acceptedNames"]["plural"], "gadgets");
        assert!(status["acceptedNames"].get("kind").is_none());
    }

    #[test]
    fn groups_of_the_kubernetes_project_tell_who_approved_them() {
        let check = |annotation: &str, expected: (bool, &str)| {
            let metadata = json!({"metadata": {"annotations": {APPROVED: annotation}}});
            let object = Object::from_value(metadata).expect("an object");
            let (approved, reason, _) =
                approval(&object, "gateway.networking.k8s.io").expect("a protected group");
            assert_eq!((approved, reason), expected, "{annotation}");
        };
        check("https://github.com/kubernetes-sigs/gateway-api/pull/2997", (true, "ApprovedAnnotation"));
        check("unapproved, for tests", (false, "UnapprovedAnnotation"));
        check("because", (false, "InvalidAnnotation"));
        check("", (false, "MissingAnnotation"));
        assert_eq!(approval(&Object::default(), "example.com"), None);
    }
}
