//! What a commit says that it changed: `spec.replicas=1→3; spec.paused; status.phase=Pending→Running`.
//!
//! The registry writes it; a value stands there only where it can be no secret.

use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    pub field: String,
    /// Absent if it is not recorded, or was not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

pub fn changes(text: &str) -> Vec<Change> {
    text.split("; ").filter(|part| !part.is_empty() && *part != "…").map(change).collect()
}

fn change(text: &str) -> Change {
    let value = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let split = text.split_once('=').and_then(|(field, values)| Some((field, values.split_once('→')?)));
    match split {
        Some((field, (from, to))) => Change { field: field.to_owned(), from: value(from), to: value(to) },
        None => Change { field: text.to_owned(), from: None, to: None },
    }
}

impl Change {
    /// Whether it is a change of this field, or of something in it.
    pub fn is_of(&self, field: &str) -> bool {
        self.field.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    }

    /// What somebody wants, in contrast to what is observed.
    pub fn is_wanted(&self) -> bool {
        !self.field.starts_with("status") && self.field != "metadata.deletionTimestamp"
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let field = &self.field;
        match (&self.from, &self.to) {
            (Some(from), Some(to)) => write!(formatter, "{field} {from}→{to}"),
            (None, Some(to)) => write!(formatter, "{field} set to {to}"),
            (Some(from), None) => write!(formatter, "{field} {from} removed"),
            (None, None) => write!(formatter, "{field} changed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_commit_says_is_read_and_told() {
        let told: Vec<String> = changes("spec.replicas=1→3; data[a=b]; status.phase=→Running; spec.x=5→; …")
            .iter()
            .map(Change::to_string)
            .collect();
        assert_eq!(
            told,
            ["spec.replicas 1→3", "data[a=b] changed", "status.phase set to Running", "spec.x 5 removed"]
        );
        assert!(changes("").is_empty());
    }

    #[test]
    fn a_field_is_itself_and_what_is_in_it() {
        let of = |field: &str| changes("spec.template.containers[web].image=a→b")[0].is_of(field);
        assert!(of("spec") && of("spec.template.containers") && of("spec.template.containers[web].image"));
        assert!(!of("spec.temp") && !of("spec.template.containers[web].imagePullPolicy"));
    }
}
