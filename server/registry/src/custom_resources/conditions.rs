//! The conditions in a definition's status.

use serde_json::{Value, json};

/// Sets a condition; its time changes only with its status.
pub fn set(status: &mut Value, kind: &str, is_true: bool, reason: &str, message: &str, now: &str) {
    let value = if is_true { "True" } else { "False" };
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let Some(conditions) = status["conditions"].as_array_mut() else { return };
    let old = conditions.iter_mut().find(|condition| condition["type"] == kind);
    let since = match &old {
        Some(old) if old["status"] == value => old["lastTransitionTime"].clone(),
        _ => now.into(),
    };
    let mut new = json!({"type": kind, "status": value, "lastTransitionTime": since, "reason": reason, "message": message});
    match old {
        Some(old) => {
            // Whoever wrote it keeps it up to date.
            if let Some(generation) = old.get("observedGeneration") {
                new["observedGeneration"] = generation.clone();
            }
            *old = new;
        }
        None => conditions.push(new),
    }
}

pub fn is_true(status: &Value, kind: &str) -> bool {
    let conditions = status["conditions"].as_array();
    conditions.into_iter().flatten().any(|it| it["type"] == kind && it["status"] == "True")
}
