//! The way from client-side apply to server-side apply. `kubectl apply` without `--server-side` keeps
//! its last configuration in an annotation and writes as an updating manager; with `--server-side` it
//! must get at those fields without a conflict with itself.

use ferry_api::Object;
use serde_json::Value;

use super::apply::{ApplyError, Conflicts};
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
