//! Bookkeeping for create, update and patch.

use ferry_api::{ManagedFieldsEntry, Object};
use serde_json::{Map, Value};

use super::Write;
use super::compare::{self, Changes};
use super::entry::{self, ManagerEntry, Operation};
use super::field_set::FieldSet;
use super::fresh;
use super::reconcile::reconcile_with_schema;
use crate::strategic;

/// Writes the managers of `new` into it: fields that differ from `live` belong to the writer now, and
/// to no one else. `live` is None on create.
pub fn update(live: Option<&Object>, new: &mut Object, write: &Write<'_>) {
    let sent = new.take_managers();
    if live.is_none()
        && sent.is_empty()
        && let Some(managers) = fresh::managers(&new.0, write)
    {
        new.set_managers(managers);
        return;
    }
    let (mut entries, in_order) = managers(sent, live.map_or(&[], Object::managers), write);
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
        new.set_managers(entries.into_iter().map(ManagerEntry::into_row).collect());
        return;
    }
    // Built-in kinds do not change their rows within a version; custom ones may at any time.
    if !strategic::is_supported(write.schema) {
        reconcile_all(&mut entries, write);
    }
    note(&mut entries, old, new, changes, write.manager(), write);
    entry::cap(&mut entries);
    new.set_managers(entry::encode(entries));
}

/// Brings sets that were written by older rows up to date.
pub(super) fn reconcile_all(entries: &mut [ManagerEntry], write: &Write<'_>) {
    for entry in entries.iter_mut().filter(|entry| entry.api_version() == write.api_version) {
        reconcile_with_schema(entry.fields_mut(), write.schema);
    }
}

/// Gives changed fields to `manager` and takes them from everyone else.
pub(super) fn note(
    entries: &mut Vec<ManagerEntry>,
    old: &Map<String, Value>,
    new: &Object,
    changes: Changes,
    manager: &str,
    write: &Write<'_>,
) {
    let (version, subresource) = (write.api_version, write.subresource);
    let is_own = |entry: &ManagerEntry| entry.is(manager, Operation::Update, version, subresource);
    let has_all_already = |entry: &ManagerEntry| {
        let given = [&changes.modified, &changes.added];
        given.iter().all(|set| entry.has_all(set)) && !entry.may_have(&changes.removed)
    };
    // Who writes the same fields again, and that is most who write, has nothing to be given.
    if let Some(own) = entries.iter_mut().find(|entry| is_own(entry))
        && has_all_already(own)
    {
        if !changes.modified.is_empty() || !changes.added.is_empty() {
            own.set_time(write.now);
        }
        take_from_others(entries, old, &new.0, &changes, write, |entry| !is_own(entry));
        return;
    }
    take_from_others(entries, old, &new.0, &changes, write, |_| true);
    let Changes { mut modified, added, .. } = changes;
    modified.union(added);
    modified.subtract(compare::unmanaged());
    if modified.is_empty() {
        return;
    }
    match entries.iter_mut().find(|entry| is_own(entry)) {
        Some(entry) => {
            entry.add(modified);
            entry.set_time(write.now);
        }
        None => {
            let mut entry = ManagerEntry::new(manager, Operation::Update, version, subresource, modified);
            entry.set_time(write.now);
            entries.push(entry);
        }
    }
}

/// Takes changed fields from the entries that are not the writer's own, and drops entries that hold
/// nothing any more.
pub(super) fn take_from_others(
    entries: &mut Vec<ManagerEntry>,
    old: &Map<String, Value>,
    new: &Map<String, Value>,
    changes: &Changes,
    write: &Write<'_>,
    is_other: impl Fn(&ManagerEntry) -> bool,
) {
    let mut elsewhere = OtherVersions::default();
    entries.retain_mut(|entry| {
        if is_other(entry) {
            match elsewhere.changes(entry.api_version(), old, new, changes, write) {
                Some(changes) => {
                    for set in [&changes.modified, &changes.added, &changes.removed] {
                        if entry.may_have(set) {
                            entry.fields_mut().subtract(set);
                        }
                    }
                }
                None => return false,
            }
        }
        !entry.is_empty()
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
            let convert = |object: &Map<String, Value>| {
                write.versions.convert(&Object::new(object.clone()), api_version)
            };
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
fn managers(
    sent: Vec<ManagedFieldsEntry>,
    stored: &[ManagedFieldsEntry],
    write: &Write<'_>,
) -> (Vec<ManagerEntry>, bool) {
    let of_stored =
        |stored: Vec<ManagedFieldsEntry>| entry::decode(stored, true).unwrap_or_else(|_| Vec::new());
    // Nearly always the object carries the managers it was read with.
    if sent == stored {
        return (of_stored(sent), true);
    }
    // A subresource cannot set them.
    if !write.subresource.is_empty() {
        return (of_stored(stored.to_vec()), true);
    }
    // One empty entry asks to forget all managers.
    if sent == [ManagedFieldsEntry::default()] {
        return (Vec::new(), true);
    }
    match entry::decode(sent, false) {
        Ok(entries) if !entries.is_empty() => (entries, false),
        _ => (of_stored(stored.to_vec()), true),
    }
}

/// Puts the old times back when nothing but times changed, so that a write that changes nothing is
/// not stored. To be called once `new` is complete.
pub fn keep_times(live: &Object, new: &mut Object) {
    let (old_rows, new_rows) = (live.managers(), new.managers());
    if old_rows.len() != new_rows.len() || old_rows == new_rows {
        return;
    }
    let same_row = |(a, b): (&ManagedFieldsEntry, &ManagedFieldsEntry)| {
        let times_apart = ManagedFieldsEntry { time: a.time.clone(), ..b.clone() };
        *a == times_apart
    };
    if old_rows.iter().zip(new_rows).all(same_row) && live.0 == new.0 {
        new.set_managers(old_rows.to_vec());
    }
}

/// Fields that are in any of the three sets.
pub(super) fn taken(changes: &Changes) -> FieldSet {
    let mut taken = changes.modified.clone();
    taken.union(changes.added.clone());
    taken
}
