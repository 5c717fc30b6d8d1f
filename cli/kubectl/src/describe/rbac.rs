//! Roles and bindings.

use serde_json::{Value, json};

use super::metadata::{annotations, labels};
use crate::fields::Fields;

pub fn role(object: &Value) -> String {
    let mut text = head(object);
    text.push_str("PolicyRule:\n  Resources\tNon-Resource URLs\tResource Names\tVerbs\n  ---------\t-----------------\t--------------\t-----\n");
    for (what, row) in rows(object.list("rules")) {
        let words =
            |field: &str| row.list(field).iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ");
        text.push_str(&format!(
            "  {what}\t[{}]\t[{}]\t[{}]\n",
            words("nonResourceURLs"),
            words("resourceNames"),
            words("verbs")
        ));
    }
    text
}

fn head(object: &Value) -> String {
    let mut text = format!("Name:\t{}\n", object.name());
    text.push_str(&labels("Labels", object, "metadata.labels", ""));
    text.push_str(&annotations(object, ""));
    text
}

/// One row per resource, with the verbs of all rules about it, sorted.
fn rows(rules: &[Value]) -> Vec<(String, Value)> {
    let mut rows: Vec<(String, String, Value)> = Vec::new();
    for rule in rules {
        for url in rule.list("nonResourceURLs") {
            rows.push((
                String::new(),
                format!("APIGroups:[],Resources:[],ResourceNames:[],NonResourceURLs:{url}"),
                json!({"nonResourceURLs": [url], "verbs": rule.at("verbs")}),
            ));
        }
        for group in rule.list("apiGroups").iter().filter_map(Value::as_str) {
            for resource in rule.list("resources").iter().filter_map(Value::as_str) {
                let names = rule.list("resourceNames");
                let each: Vec<Vec<&Value>> = if names.is_empty() {
                    vec![Vec::new()]
                } else {
                    names.iter().map(|name| vec![name]).collect()
                };
                for names in each {
                    let what = match (group, resource.split_once('/')) {
                        ("", _) => resource.to_owned(),
                        (group, Some((resource, subresource))) => format!("{resource}.{group}/{subresource}"),
                        (group, None) => format!("{resource}.{group}"),
                    };
                    match rows.iter_mut().find(|(known, _, row)| {
                        *known == what && row.list("resourceNames").iter().eq(names.iter().copied())
                    }) {
                        Some((_, _, row)) => add_verbs(row, rule.list("verbs")),
                        None => {
                            let key =
                                format!("APIGroups:[{group}],Resources:[{resource}],ResourceNames:{names:?}");
                            rows.push((
                                what,
                                key,
                                json!({"resourceNames": names, "verbs": rule.at("verbs")}),
                            ));
                        }
                    }
                }
            }
        }
    }
    rows.sort_by_key(|(_, key, row)| format!("{}{key}", rule_order(row)));
    rows.into_iter().map(|(what, _, row)| (what, row)).collect()
}

/// Rules stand in the order of their verbs first.
pub fn rule_order(rule: &Value) -> String {
    let verbs: Vec<&str> = rule.list("verbs").iter().filter_map(Value::as_str).collect();
    format!("Verbs:[{}],", verbs.join(" "))
}

fn add_verbs(row: &mut Value, verbs: &[Value]) {
    if let Some(known) = row["verbs"].as_array_mut() {
        for verb in verbs {
            if !known.contains(verb) {
                known.push(verb.clone());
            }
        }
    }
}

pub fn binding(object: &Value) -> String {
    let mut text = head(object);
    text.push_str(&format!(
        "Role:\n  Kind:\t{}\n  Name:\t{}\n",
        object.text("roleRef.kind"),
        object.text("roleRef.name")
    ));
    text.push_str("Subjects:\n  Kind\tName\tNamespace\n  ----\t----\t---------\n");
    for subject in object.list("subjects") {
        text.push_str(&format!(
            "  {}\t{}\t{}\n",
            subject.text("kind"),
            subject.text("name"),
            subject.text("namespace")
        ));
    }
    text
}
