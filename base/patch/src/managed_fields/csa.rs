//! The way from client-side apply to server-side apply. `kubectl apply` without `--server-side` keeps
//! its last configuration in an annotation and writes as an updating manager; with `--server-side` it
//! must get at those fields without a conflict with itself.

use ferry_api::Object;
use serde_json::Value;

use super::apply::{ApplyError, Conflicts};
use super::entry::{self, Operation};
use super::{Write, claims, compare};

/// The manager `kubectl apply --server-side` speaks for.
pub const KUBECTL: &str = "kubectl";
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// All annotations of an object together may have this many bytes.
const MAX_ANNOTATIONS: usize = 256 << 10;

/// Whether the manager may take the conflicting fields: it may where the annotation says that kubectl
/// applied them itself and their values still are what it applied.
pub(super) fn may_take(
    live: Option<&Object>,
    write: &Write<'_>,
    conflicts: Conflicts,
) -> Result<(), ApplyError> {
    let Some(allowed) = live.and_then(|live| still_applied(live, write)) else {
        return Err(ApplyError::Conflicts(conflicts));
    };
    let left: Vec<_> = conflicts.0.into_iter().filter(|conflict| !allowed.contains(&conflict.path)).collect();
    if left.is_empty() { Ok(()) } else { Err(ApplyError::Conflicts(Conflicts(left))) }
}

/// The paths of the last applied configuration whose values are still live.
fn still_applied(live: &Object, write: &Write<'_>) -> Option<Vec<String>> {
    let last: Value = serde_json::from_str(live.annotation(LAST_APPLIED)?).ok()?;
    let last = Object::from_value(last)?;
    if last.api_version() != write.api_version || claims::check(&last.0, write.schema).is_err() {
        return None;
    }
    let mut fields = claims::of_object(&last.0, write.schema);
    let changes = compare::objects(&last.0, &live.0, write.schema);
    fields.subtract(&changes.modified);
    fields.subtract(&changes.added);
    fields.subtract(&changes.removed);
    Some(fields.paths())
}

/// Keeps the annotation true for clients that still apply from their side.
pub(super) fn refresh_last_applied(object: &mut Object, applied: &Object) {
    if object.annotation(LAST_APPLIED).is_none_or(str::is_empty) {
        return;
    }
    let mut configuration = applied.clone();
    if let Some(Value::Object(annotations)) = configuration.metadata_mut().get_mut("annotations") {
        annotations.remove(LAST_APPLIED);
        if annotations.is_empty() {
            configuration.remove_meta("annotations");
        }
    }
    let text = html_safe(&configuration.into_value().to_string());
    let Some(Value::Object(annotations)) = object.metadata_mut().get_mut("annotations") else { return };
    annotations.insert(LAST_APPLIED.to_string(), Value::String(text + "\n"));
    let size: usize =
        annotations.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > MAX_ANNOTATIONS {
        annotations.remove(LAST_APPLIED);
    }
}

/// Upstream's encoder escapes these everywhere; they stand only inside strings.
fn html_safe(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// The rows of managers with what `csa_managers` wrote handed to `ssa_manager`, which applies. None
/// when there is nothing to hand over.
pub fn upgrade(
    managed_fields: &Value,
    csa_managers: &[&str],
    ssa_manager: &str,
    subresource: &str,
) -> Result<Option<Value>, String> {
    let mut entries = entry::decode(managed_fields.clone(), false)?;
    let before = entries.clone();
    for csa_manager in csa_managers {
        let is_csa = |entry: &entry::Entry| {
            entry.manager() == *csa_manager
                && entry.operation == Operation::Update
                && entry.subresource() == subresource
        };
        let ssa = entries.iter().position(|entry| entry.is(ssa_manager, Operation::Apply, "", subresource));
        let target = match (ssa, entries.iter().position(is_csa)) {
            (Some(ssa), _) => ssa,
            (None, Some(csa)) => {
                entries[csa].rename(ssa_manager, Operation::Apply);
                csa
            }
            (None, None) => continue,
        };
        let version = entries[target].api_version().to_string();
        let same_version = entries.iter().position(|entry| is_csa(entry) && entry.api_version() == version);
        if let Some(csa) = same_version {
            let fields = entries[csa].fields.clone();
            entries[target].fields.union(fields);
        }
        entries.retain(|entry| !is_csa(entry));
    }
    if entries == before {
        return Ok(None);
    }
    Ok(Some(Value::Array(entries.into_iter().map(entry::Entry::into_row).collect())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(manager: &str, operation: &str, version: &str, fields: Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": version, "fieldsType": "FieldsV1",
            "fieldsV1": fields, "time": "2026-01-01T00:00:00Z"})
    }

    fn check(rows: Vec<Value>, expected: Option<Vec<Value>>) {
        let upgraded = upgrade(&Value::Array(rows), &["kubectl-client-side-apply"], "kubectl", "");
        assert_eq!(upgraded, Ok(expected.map(Value::Array)));
    }

    #[test]
    fn what_was_applied_by_the_client_is_applied_on_the_server() {
        let csa = "kubectl-client-side-apply";
        let (a, b) = (json!({"f:a": {}}), json!({"f:b": {}}));
        let both = json!({"f:a": {}, "f:b": {}});
        // The client's row turns into the server's.
        check(
            vec![row(csa, "Update", "v1", a.clone()), row("x", "Update", "v1", b.clone())],
            Some(vec![row("kubectl", "Apply", "v1", a.clone()), row("x", "Update", "v1", b.clone())]),
        );
        // Both rows become one; a row of another version is dropped.
        check(
            vec![
                row("kubectl", "Apply", "v1", a.clone()),
                row(csa, "Update", "v1", b.clone()),
                row(csa, "Update", "v1beta1", json!({"f:c": {}})),
            ],
            Some(vec![row("kubectl", "Apply", "v1", both)]),
        );
        // Nothing to hand over.
        check(vec![row("x", "Update", "v1", b)], None);
        check(vec![row("kubectl", "Apply", "v1", a)], None);
    }
}
