//! Labels, annotations, tolerations and selectors, one entry per line.

use ferry_api::selector::LabelSelector;
use serde_json::Value;

use crate::fields::Fields;
use crate::write::LAST_APPLIED;
use ferry_api::json_path::to_text;

const MAX_ANNOTATION: usize = 140;

/// `Labels:` and its entries; further ones stand below the first.
pub fn labels(title: &str, object: &Value, path: &str, indent: &str) -> String {
    let entries: Vec<String> =
        object.entries(path).into_iter().map(|(key, value)| format!("{key}={}", to_text(value))).collect();
    lines(title, &entries, indent)
}

/// A title and its entries, the first beside it.
pub fn lines(title: &str, entries: &[String], indent: &str) -> String {
    if entries.is_empty() {
        return format!("{indent}{title}:\t<none>\n");
    }
    let mut text = String::new();
    for (position, entry) in entries.iter().enumerate() {
        if position == 0 {
            text.push_str(&format!("{indent}{title}:\t{entry}\n"));
        } else {
            text.push_str(&format!("\t{entry}\n"));
        }
    }
    text
}

/// All annotations but the bookkeeping of apply; long ones are broken and cut.
pub fn annotations(object: &Value, indent: &str) -> String {
    let entries: Vec<(&str, String)> = object
        .entries("metadata.annotations")
        .into_iter()
        .filter(|(key, _)| *key != LAST_APPLIED)
        .map(|(key, value)| (key, to_text(value).trim_end_matches('\n').to_owned()))
        .collect();
    if entries.is_empty() {
        return format!("{indent}Annotations:\t<none>\n");
    }
    let mut text = format!("{indent}Annotations:\t");
    for (position, (key, value)) in entries.iter().enumerate() {
        if position > 0 {
            text.push_str(&format!("{indent}\t"));
        }
        if key.len() + value.len() + 2 <= MAX_ANNOTATION && !value.contains('\n') {
            text.push_str(&format!("{key}: {value}\n"));
            continue;
        }
        text.push_str(&format!("{key}:\n"));
        for line in value.split('\n') {
            text.push_str(&format!("{indent}\t  {}\n", shortened(line, MAX_ANNOTATION - 2)));
        }
    }
    text
}

fn shortened(line: &str, limit: usize) -> String {
    if line.chars().count() <= limit {
        return line.to_owned();
    }
    format!("{}...", line.chars().take(limit).collect::<String>())
}

pub fn tolerations(tolerations: &[Value], indent: &str) -> String {
    let mut entries: Vec<&Value> = tolerations.iter().collect();
    entries.sort_by_key(|toleration| toleration.text("key").to_owned());
    let entries: Vec<String> = entries.into_iter().map(toleration).collect();
    lines("Tolerations", &entries, indent)
}

fn toleration(toleration: &Value) -> String {
    let (key, value, effect) = (toleration.text("key"), toleration.text("value"), toleration.text("effect"));
    let mut text = key.to_owned();
    if !value.is_empty() {
        text.push_str(&format!("={value}"));
    }
    if !effect.is_empty() {
        text.push_str(&format!(":{effect}"));
    }
    if toleration.text("operator") == "Exists" && value.is_empty() {
        text.push_str(if text.is_empty() { "op=Exists" } else { " op=Exists" });
    }
    if let Some(seconds) = toleration.int("tolerationSeconds") {
        text.push_str(&format!(" for {seconds}s"));
    }
    text
}

pub fn taints(taints: &[Value]) -> String {
    let mut entries: Vec<&Value> = taints.iter().collect();
    entries.sort_by_key(|taint| (taint.text("effect").to_owned(), taint.text("key").to_owned()));
    let entries: Vec<String> = entries
        .into_iter()
        .map(|taint| match taint.text("value") {
            "" => format!("{}:{}", taint.text("key"), taint.text("effect")),
            value => format!("{}={value}:{}", taint.text("key"), taint.text("effect")),
        })
        .collect();
    lines("Taints", &entries, "")
}

/// A structured selector in the words of the command line.
pub fn selector(selector: &Value) -> String {
    if selector.is_null() {
        return "<unset>".to_owned();
    }
    match LabelSelector::from_structured(Some(selector)) {
        Ok(parsed) => super::or_none(parsed.to_string()),
        Err(_) => "<invalid>".to_owned(),
    }
}

/// `Controlled By:` for what something else made.
pub fn controller(object: &Value) -> String {
    match object.list("metadata.ownerReferences").iter().find(|owner| owner.flag("controller")) {
        Some(owner) => format!("Controlled By:\t{}/{}\n", owner.text("kind"), owner.text("name")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn entries_stand_below_each_other() {
        let object = json!({"metadata": {"labels": {"a": "b", "c": "d"}, "annotations": {"n": "one\ntwo", LAST_APPLIED: "{}"}}});
        assert_eq!(labels("Labels", &object, "metadata.labels", ""), "Labels:\ta=b\n\tc=d\n");
        assert_eq!(annotations(&object, ""), "Annotations:\tn:\n\t  one\n\t  two\n");
        assert_eq!(annotations(&json!({}), "  "), "  Annotations:\t<none>\n");
    }

    #[test]
    fn tolerations_are_short() {
        assert_eq!(
            toleration(
                &json!({"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
            ),
            "k:NoExecute op=Exists for 300s"
        );
        assert_eq!(toleration(&json!({"operator": "Exists"})), "op=Exists");
        assert_eq!(toleration(&json!({"key": "k", "value": "v", "effect": "NoSchedule"})), "k=v:NoSchedule");
    }
}
