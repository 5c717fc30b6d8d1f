//! The status of a definition: its accepted names, and whether it is served. Pure.

use ferry_api::{Kind, Object};
use ferry_registry::custom_resources::approval::{self, Approval};
use ferry_registry::custom_resources::{Definition, conditions};
use serde_json::{Map, Value, json};

/// The kinds that may have names already.
pub struct NameOwners<'a> {
    pub definitions: Vec<&'a Definition>,
    pub builtin: Vec<&'a Kind>,
}

/// The status as it should be; `None` where it is so already.
pub fn status(object: &Object, definition: &Definition, others: &NameOwners<'_>, now: &str) -> Option<Value> {
    let old = object.0.get("status").cloned().unwrap_or_else(|| json!({}));
    let mut new = old.clone();
    let (accepted, conflict) = accept(definition, others);
    new["acceptedNames"] = accepted;
    let is_accepted = conflict.is_none();
    let (reason, message) = conflict.unwrap_or(("NoConflicts", "no conflicts found".into()));
    conditions::set(&mut new, "NamesAccepted", is_accepted, reason, &message, now);
    match (definition.established, is_accepted) {
        // Once served, a definition stays so.
        (true, _) => {}
        (false, true) => {
            let message = "the initial names have been accepted";
            conditions::set(&mut new, "Established", true, "InitialNamesAccepted", message, now);
        }
        (false, false) => {
            conditions::set(&mut new, "Established", false, "NotAccepted", "not all names are accepted", now);
        }
    }
    if let Some((approved, reason, message)) = approved(object, &definition.group) {
        let kind = "KubernetesAPIApprovalPolicyConformant";
        conditions::set(&mut new, kind, approved, reason, &message, now);
    }
    (new != old).then_some(new)
}

/// The names that the definition gets, and what is in the way of the others. A name that another definition or a
/// built-in kind of the group has is not given twice; what was accepted once stays. Of several conflicts the last is
/// told, as upstream does.
fn accept(definition: &Definition, others: &NameOwners<'_>) -> (Value, Option<(&'static str, String)>) {
    let definitions = others.definitions.iter().filter(|other| other.group == definition.group);
    let accepted: Vec<_> = definitions.map(|other| &other.accepted).collect();
    let builtin: Vec<_> = others.builtin.iter().filter(|kind| kind.group == definition.group).collect();
    let mut resources: Vec<&str> = Vec::new();
    let mut kinds: Vec<&str> = Vec::new();
    for names in accepted {
        resources.extend([names.plural.as_str(), &names.singular]);
        resources.extend(names.short_names.iter().map(String::as_str));
        kinds.extend([names.kind.as_str(), &names.list_kind]);
    }
    for kind in builtin {
        resources.extend([&*kind.plural, &*kind.singular]);
        resources.extend(kind.short_names.iter().map(|name| &**name));
        kinds.extend([&*kind.kind, &*kind.list_kind]);
    }
    let (wanted, had) = (&definition.names, &definition.accepted);
    let mut names = Map::new();
    let mut give = |field: &str, wanted: &str, had: &str, taken: &[&str], reason: &'static str| {
        let free = wanted == had || !taken.contains(&wanted);
        let given = if free { wanted } else { had };
        if !given.is_empty() {
            names.insert(field.into(), given.into());
        }
        (!free).then(|| (reason, format!("{wanted:?} is already in use")))
    };
    let plural = give("plural", &wanted.plural, &had.plural, &resources, "PluralConflict");
    let singular = give("singular", &wanted.singular, &had.singular, &resources, "SingularConflict");
    let kind = give("kind", &wanted.kind, &had.kind, &kinds, "KindConflict");
    let list_kind = give("listKind", &wanted.list_kind, &had.list_kind, &kinds, "ListKindConflict");
    let is_new = |name: &&String| !had.short_names.contains(name);
    let taken = wanted.short_names.iter().filter(is_new).filter(|name| resources.contains(&name.as_str()));
    let taken: Vec<String> = taken.map(|name| format!("{name:?} is already in use")).collect();
    let (short_names, short) = match taken.as_slice() {
        [] => (&wanted.short_names, None),
        [one] => (&had.short_names, Some(one.clone())),
        several => (&had.short_names, Some(format!("[{}]", several.join(", ")))),
    };
    if !short_names.is_empty() {
        names.insert("shortNames".into(), json!(short_names));
    }
    let short = short.map(|message| ("ShortNamesConflict", message));
    if !wanted.categories.is_empty() {
        names.insert("categories".into(), json!(wanted.categories));
    }
    (Value::Object(names), list_kind.or(kind).or(short).or(singular).or(plural))
}

/// Whether a group that belongs to the Kubernetes project was approved; nothing is said of other groups.
fn approved(object: &Object, group: &str) -> Option<(bool, &'static str, String)> {
    if !approval::is_protected(group) {
        return None;
    }
    let (state, why) = approval::approval(object.annotation(approval::ANNOTATION).unwrap_or(""));
    let reason = match state {
        Approval::Approved => "ApprovedAnnotation",
        Approval::Bypassed => "UnapprovedAnnotation",
        Approval::Missing => "MissingAnnotation",
        Approval::Invalid => "InvalidAnnotation",
    };
    Some((state == Approval::Approved, reason, why))
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

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn alone() -> NameOwners<'static> {
        NameOwners { definitions: Vec::new(), builtin: Vec::new() }
    }

    fn condition<'s>(status: &'s Value, kind: &str) -> (&'s str, &'s str, &'s str) {
        let found = status["conditions"].as_array().expect("conditions").iter().find(|c| c["type"] == kind);
        let text = |field: &str| found.expect(kind)[field].as_str().expect("text");
        (text("status"), text("reason"), text("message"))
    }

    #[test]
    fn names_that_are_free_are_accepted_and_the_definition_is_established() {
        let (object, fresh) = definition("widgets", "Widget", json!({}));
        let status = status(&object, &fresh, &alone(), NOW).expect("a status");
        assert_eq!(condition(&status, "NamesAccepted"), ("True", "NoConflicts", "no conflicts found"));
        assert_eq!(
            condition(&status, "Established"),
            ("True", "InitialNamesAccepted", "the initial names have been accepted")
        );
        assert_eq!(status["acceptedNames"]["listKind"], "WidgetList");
        let (object, settled) = definition("widgets", "Widget", status);
        assert_eq!(super::status(&object, &settled, &alone(), "later"), None, "nothing is written twice");
    }

    #[test]
    fn a_name_that_another_definition_has_is_in_conflict() {
        let accepted = json!({"acceptedNames": {"plural": "widgets", "singular": "widget", "kind": "Widget",
            "listKind": "WidgetList", "shortNames": ["w"]}});
        let (_, first) = definition("widgets", "Widget", accepted);
        let (object, second) = definition("gadgets", "Widget", json!({}));
        let others = NameOwners { definitions: vec![&first], builtin: Vec::new() };
        let status = status(&object, &second, &others, NOW).expect("a status");
        let (is_accepted, reason, message) = condition(&status, "NamesAccepted");
        assert_eq!(
            (is_accepted, reason, message),
            ("False", "ListKindConflict", "\"WidgetList\" is already in use")
        );
        assert_eq!(condition(&status, "Established").0, "False");
        assert_eq!(status["acceptedNames"]["plural"], "gadgets");
        assert!(status["acceptedNames"].get("kind").is_none());
    }

    #[test]
    fn the_name_of_a_built_in_kind_of_the_group_is_taken() {
        let object = json!({
            "metadata": {"name": "ingresses.networking.k8s.io"},
            "spec": {
                "group": "networking.k8s.io", "scope": "Namespaced",
                "names": {"plural": "ingresses", "singular": "mine", "kind": "Mine", "listKind": "MineList"},
                "versions": [{"name": "v7", "served": true, "storage": true}],
            },
        });
        let object = Object::from_value(object).expect("an object");
        let definition = Definition::read(&object).expect("a definition");
        let builtin = ferry_api::kinds::builtin().iter().map(|kind| &**kind).collect();
        let others = NameOwners { definitions: Vec::new(), builtin };
        let status = status(&object, &definition, &others, NOW).expect("a status");
        assert_eq!(
            condition(&status, "NamesAccepted"),
            ("False", "PluralConflict", "\"ingresses\" is already in use")
        );
        assert_eq!(condition(&status, "Established").0, "False");
    }

    #[test]
    fn groups_of_the_kubernetes_project_tell_who_approved_them() {
        let object = Object::from_value(json!({"metadata": {"annotations": {
            approval::ANNOTATION: "unapproved, for tests",
        }}}));
        let (is_approved, reason, _) =
            approved(&object.expect("an object"), "gateway.networking.k8s.io").expect("a protected group");
        assert_eq!((is_approved, reason), (false, "UnapprovedAnnotation"));
        assert_eq!(approved(&Object::default(), "example.com"), None);
    }
}
