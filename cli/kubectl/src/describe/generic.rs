//! Any kind: its fields, with names turned into words, in alphabetical order.

use serde_json::Value;

use super::metadata::{annotations, labels};
use crate::fields::{self, Fields};
use ferry_api::json_path::to_text;

/// What stands at the top already, or interests nobody.
const SKIPPED: &[&str] = &[
    "apiVersion",
    "kind",
    "metadata.name",
    "metadata.namespace",
    "metadata.labels",
    "metadata.annotations",
    "metadata.managedFields",
];

pub fn page(object: &Value) -> String {
    let mut text = format!("Name:\t{}\nNamespace:\t{}\n", object.name(), object.namespace());
    text.push_str(&labels("Labels", object, "metadata.labels", ""));
    text.push_str(&annotations(object, ""));
    text.push_str(&format!("API Version:\t{}\nKind:\t{}\n", object.text("apiVersion"), object.kind()));
    let mut rest = object.clone();
    SKIPPED.iter().for_each(|path| fields::remove(&mut rest, path));
    map(&rest, 0, &mut text);
    text
}

fn map(value: &Value, level: usize, text: &mut String) {
    let indent = "  ".repeat(level);
    let mut entries: Vec<(String, &Value)> =
        value.as_object().into_iter().flatten().map(|(key, value)| (label(key), value)).collect();
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    for (label, value) in entries {
        match value {
            Value::Object(_) => {
                text.push_str(&format!("{indent}{label}:\n"));
                map(value, level + 1, text);
            }
            Value::Array(items) => {
                text.push_str(&format!("{indent}{label}:\n"));
                list(items, level + 1, text);
            }
            other => text.push_str(&format!("{indent}{label}:\t{}\n", scalar(other))),
        }
    }
}

fn list(items: &[Value], level: usize, text: &mut String) {
    let indent = "  ".repeat(level);
    for item in items {
        match item {
            Value::Object(_) => map(item, level, text),
            Value::Array(inner) => list(inner, level + 1, text),
            other => text.push_str(&format!("{indent}{}\n", scalar(other))),
        }
    }
}

fn scalar(value: &Value) -> String {
    if value.is_null() { "<nil>".to_owned() } else { to_text(value) }
}

/// `podCIDR` becomes `Pod CIDR`, `x-kubernetes` becomes `X - Kubernetes`; what is no word (`openAPIV3Schema`) stays.
fn label(key: &str) -> String {
    if key.contains(|c: char| !c.is_alphabetic() && c != '-') {
        return key.to_owned();
    }
    let mut words: Vec<String> = Vec::new();
    let characters: Vec<char> = key.chars().collect();
    let class = |c: char| match c {
        c if c.is_lowercase() => 0,
        c if c.is_uppercase() => 1,
        c if c.is_numeric() => 2,
        _ => 3,
    };
    for (position, character) in characters.iter().enumerate() {
        let starts = position == 0 || class(characters[position - 1]) != class(*character);
        match words.last_mut() {
            Some(word) if !starts => word.push(*character),
            // the capital that begins a lower-case word belongs to it, not to the run before
            Some(word) if class(*character) == 0 && word.chars().all(char::is_uppercase) => {
                let first = word.pop();
                if word.is_empty() {
                    words.pop();
                }
                words.push(first.into_iter().chain([*character]).collect());
            }
            _ => words.push(character.to_string()),
        }
    }
    let mut merged: Vec<String> = Vec::new();
    let mut words = words.into_iter().peekable();
    while let Some(mut word) = words.next() {
        // an acronym in the plural: `UR` and `Ls` are `URLs`
        let is_acronym = word.len() >= 2 && !word.chars().any(char::is_lowercase);
        if is_acronym && words.peek().is_some_and(|next| next.starts_with(char::is_uppercase)) {
            word.extend(words.next());
        }
        merged.push(word);
    }
    let titled: Vec<String> = merged
        .iter()
        .map(|word| {
            let upper = word.to_uppercase();
            if ["API", "URL", "UID", "GUID"].contains(&upper.as_str()) {
                return upper;
            }
            let mut letters = word.chars();
            letters
                .next()
                .map(|first| first.to_uppercase().collect::<String>() + letters.as_str())
                .unwrap_or_default()
        })
        .collect();
    titled.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_names_become_words() {
        let check = |key: &str, expected: &str| assert_eq!(label(key), expected);
        check("creationTimestamp", "Creation Timestamp");
        check("uid", "UID");
        check("apiGroups", "API Groups");
        check("nonResourceURLs", "Non Resource URLs");
        check("ipv4", "ipv4");
        check("podCIDR", "Pod CIDR");
        check("x-kubernetes-preserve-unknown-fields", "X - Kubernetes - Preserve - Unknown - Fields");
        check("openAPIV3Schema", "openAPIV3Schema");
        check("clusterIPs", "Cluster I Ps");
        check("color", "Color");
    }
}
