//! Bookkeeping for create, update and patch.

use ferry_api::Object;
use serde_json::{Map, Value};

use super::Write;
use super::compare::{self, Changes};
use super::entry::{self, Entry, Operation};
use super::field_set::FieldSet;
use super::settle::settle;
use crate::strategic;

/// Writes the managers of `new` into it: fields that differ from `live` belong to the writer now, and
/// to no one else. `live` is None on create.
pub fn update(live: Option<&Object>, new: &mut Object, write: &Write<'_>) {
    let sent = new.remove_meta("managedFields").unwrap_or(Value::Null);
    let stored = live.and_then(|live| live.meta("managedFields")).unwrap_or(&Value::Null);
    let (mut entries, in_order) = managers(sent, stored, write);
    // An object without managers stays so until somebody applies to it.
    if entries.is_empty() && live.is_some() {
        return;
    }
    let blank;
    let old = match live {
        Some(live) => &live.0,
        None => {
            blank = write.blank();
            &blank
        }
    };
    let changes = write.changes(old, &new.0);
    if changes.is_empty() && in_order {
        put(new, entries.into_iter().map(Entry::into_row).collect());
        return;
    }
    // Built-in kinds do not change their rows within a version; custom ones may at any time.
    if !strategic::is_supported(write.schema) {
        settle_all(&mut entries, write);
    }
    note(&mut entries, old, new, changes, write.manager(), write);
    entry::cap(&mut entries);
    put(new, entry::encode(entries));
}

/// Brings sets that were written by older rows up to date.
pub(super) fn settle_all(entries: &mut [Entry], write: &Write<'_>) {
    for entry in entries.iter_mut().filter(|entry| entry.api_version() == write.api_version) {
        settle(&mut entry.fields, write.schema);
    }
}

/// Gives changed fields to `manager` and takes them from everyone else.
pub(super) fn note(
    entries: &mut Vec<Entry>,
    old: &Map<String, Value>,
    new: &Object,
    changes: Changes,
    manager: &str,
    write: &Write<'_>,
) {
    take_from_others(entries, old, &new.0, &changes, write, |_| true);
    let Changes { mut modified, added, .. } = changes;
    modified.union(added);
    modified.subtract(compare::unmanaged());
    if modified.is_empty() {
        return;
    }
    let (version, subresource) = (write.api_version, write.subresource);
    let own = entries.iter_mut().find(|entry| entry.is(manager, Operation::Update, version, subresource));
    match own {
        Some(entry) => {
            entry.fields.union(modified);
            entry.set_time(write.now);
        }
        None => {
            let mut entry = Entry::new(manager, Operation::Update, version, subresource, modified);
            entry.set_time(write.now);
            entries.push(entry);
        }
    }
}

/// Takes changed fields from the entries that are not the writer's own, and drops entries that hold
/// nothing any more.
pub(super) fn take_from_others(
    entries: &mut Vec<Entry>,
    old: &Map<String, Value>,
    new: &Map<String, Value>,
    changes: &Changes,
    write: &Write<'_>,
    is_other: impl Fn(&Entry) -> bool,
) {
    let mut elsewhere = OtherVersions::default();
    entries.retain_mut(|entry| {
        if is_other(entry) {
            match elsewhere.changes(entry.api_version(), old, new, changes, write) {
                Some(changes) => {
                    entry.fields.subtract(&changes.modified);
                    entry.fields.subtract(&changes.added);
                    entry.fields.subtract(&changes.removed);
                }
                None => return false,
            }
        }
        !entry.fields.is_empty()
    });
}

/// The same changes, seen through other versions. Each version is looked at once.
#[derive(Default)]
pub(super) struct OtherVersions(Vec<(String, Option<Changes>)>);

impl OtherVersions {
    pub fn changes<'c>(
        &'c mut self,
        api_version: &str,
        old: &Map<String, Value>,
        new: &Map<String, Value>,
        changes: &'c Changes,
        write: &Write<'_>,
    ) -> Option<&'c Changes> {
        if api_version == write.api_version || write.versions.same_fields(api_version, write.api_version) {
            return Some(changes);
        }
        let known = self.0.iter().position(|(version, _)| version == api_version);
        let place = known.unwrap_or_else(|| {
            let convert =
                |object: &Map<String, Value>| write.versions.convert(&Object(object.clone()), api_version);
            let seen = match (convert(old), convert(new)) {
                (Some((old, schema)), Some((new, _))) => Some(compare::objects(&old.0, &new.0, &schema)),
                _ => None,
            };
            self.0.push((api_version.to_string(), seen));
            self.0.len() - 1
        });
        self.0[place].1.as_ref()
    }
}

/// The managers before this write, and whether they are already in the order they are stored in.
fn managers(sent: Value, stored: &Value, write: &Write<'_>) -> (Vec<Entry>, bool) {
    let stored_entries = |stored: Value| entry::decode(stored, true).unwrap_or_else(|_| Vec::new());
    // Nearly always the object carries the managers it was read with.
    if sent == *stored {
        return (stored_entries(sent), true);
    }
    // A subresource cannot set them.
    if !write.subresource.is_empty() {
        return (stored_entries(stored.clone()), true);
    }
    if is_reset(&sent) {
        return (Vec::new(), true);
    }
    match entry::decode(sent, false) {
        Ok(entries) if !entries.is_empty() => (entries, false),
        _ => (stored_entries(stored.clone()), true),
    }
}

/// An empty list, or a list of one empty entry, asks to forget all managers.
fn is_reset(sent: &Value) -> bool {
    match sent.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([Value::Object(entry)]) => {
            entry.values().all(|value| value.is_null() || value.as_str() == Some(""))
        }
        _ => false,
    }
}

pub(super) fn put(object: &mut Object, managed_fields: Value) {
    match managed_fields {
        Value::Array(rows) if rows.is_empty() => {
            object.remove_meta("managedFields");
        }
        rows => object.set_meta("managedFields", rows),
    }
}

/// Puts the old times back when nothing but times changed, so that a write that changes nothing is
/// not stored. To be called once `new` is complete.
pub fn keep_times(live: &Object, new: &mut Object) {
    let (Some(Value::Array(old_rows)), Some(Value::Array(new_rows))) =
        (live.meta("managedFields"), new.meta("managedFields"))
    else {
        return;
    };
    if old_rows.len() != new_rows.len() || old_rows == new_rows {
        return;
    }
    let same_row = |a: &Value, b: &Value| match (a.as_object(), b.as_object()) {
        (Some(a), Some(b)) => equal_but(a, b, "time"),
        _ => false,
    };
    if !old_rows.iter().zip(new_rows).all(|(a, b)| same_row(a, b)) {
        return;
    }
    let same_metadata = match (live.0.get("metadata"), new.0.get("metadata")) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => equal_but(a, b, "managedFields"),
        _ => false,
    };
    if same_metadata && equal_but(&live.0, &new.0, "metadata") {
        let rows = old_rows.clone();
        new.set_meta("managedFields", rows);
    }
}

/// Equal, but for one field.
fn equal_but(a: &Map<String, Value>, b: &Map<String, Value>, field: &str) -> bool {
    let others = |map: &'_ Map<String, Value>| map.iter().filter(|(key, _)| *key != field).count();
    others(a) == others(b)
        && a.iter().filter(|(key, _)| *key != field).all(|(key, value)| b.get(key) == Some(value))
}

/// Fields that are in any of the three sets.
pub(super) fn taken(changes: &Changes) -> FieldSet {
    let mut taken = changes.modified.clone();
    taken.union(changes.added.clone());
    taken
}
