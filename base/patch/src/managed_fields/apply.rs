//! Server-side apply.

use std::fmt::{self, Display};

use ferry_api::{Object, Schema, excerpt};
use serde_json::{Map, Value};

use super::entry::{self, ManagerEntry, Operation};
use super::field_set::FieldSet;
use super::rows::same_fields;
use super::update::{OtherVersions, note, reconcile_all, take_from_others, taken};
use super::{Write, claims, compare, csa, merge, pick};

/// Conflicts beyond this number are not told.
const MAX_CONFLICTS: usize = 100;

const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Why a configuration was not applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApplyError {
    /// Others manage these fields with other values: 409.
    Conflicts(Conflicts),
    /// The request is wrong whatever the object: 400.
    BadRequest(String),
    /// The configuration says what the kind does not have, which upstream answers with 500.
    Invalid(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflicts(pub Vec<Conflict>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// As messages name it: `"kubectl" using apps/v1`.
    pub manager: String,
    /// `.spec.replicas`
    pub path: String,
}

/// Lays `applied` over `live` (None: the object does not exist) and notes what the writer manages.
/// When nothing changes, the object comes back as it was.
pub fn apply(
    live: Option<&Object>,
    applied: &Object,
    force: bool,
    write: &Write<'_>,
) -> Result<Object, ApplyError> {
    if !applied.managers().is_empty() {
        return Err(ApplyError::BadRequest("metadata.managedFields must be nil".to_string()));
    }
    if applied.api_version() != write.api_version {
        return Err(ApplyError::BadRequest(format!(
            "Incorrect version specified in apply patch. Specified patch version: {}, expected: {}",
            applied.api_version(),
            write.api_version
        )));
    }
    claims::check(&applied.0, write.schema).map_err(|why| {
        ApplyError::Invalid(format!("failed to create typed patch object ({}): {why}", identity(applied)))
    })?;
    let rows = live.map_or(&[][..], Object::managers);
    let mut entries = entry::decode(rows.to_vec(), true)
        .map_err(|why| ApplyError::Invalid(format!("failed to decode managed fields: {why}")))?;
    reconcile_all(&mut entries, write);
    let request = Request { live, applied, write };
    if write.manager != csa::KUBECTL {
        return request.run(entries, force);
    }
    let mut result = match request.run(entries.clone(), force) {
        Err(ApplyError::Conflicts(conflicts)) => {
            // kubectl may take over what it applied itself, from the client's side, before.
            csa::may_take(live, write, conflicts)?;
            request.run(entries, true)
        }
        other => other,
    }?;
    csa::refresh_last_applied(&mut result, applied);
    Ok(result)
}

struct Request<'a> {
    live: Option<&'a Object>,
    applied: &'a Object,
    write: &'a Write<'a>,
}

impl Request<'_> {
    fn run(&self, mut entries: Vec<ManagerEntry>, force: bool) -> Result<Object, ApplyError> {
        let write = self.write;
        let blank = match self.live {
            Some(_) => Map::new(),
            None => write.blank(),
        };
        let live = self.live.map_or(&blank, |live| &live.0);
        if entries.is_empty()
            && let Some(live) = self.live
        {
            // What is there already has a manager from now on.
            let blank = write.blank();
            let changes = write.changes(&blank, &live.0);
            note(&mut entries, &blank, live, changes, BEFORE_FIRST_APPLY, write);
        }
        let mut merged = live.clone();
        merge::onto(&mut merged, &self.applied.0, write.schema).map_err(|merge::NoElement| {
            ApplyError::Invalid("failed to merge config: an element of a list has no keys".to_string())
        })?;
        let mut claimed = claims::of_object(&self.applied.0, write.schema);
        write.reset.filter(&mut claimed);

        let (manager, subresource) = (write.manager(), write.subresource);
        let own = |entry: &ManagerEntry| entry.is(manager, Operation::Apply, "", subresource);
        let last = entries.iter().position(own).map(|place| entries.remove(place));
        let mut entry = ManagerEntry::new(manager, Operation::Apply, write.api_version, subresource, claimed);
        if let Some(last) = &last {
            entry.set_time_of(last);
        }
        // Who applies again all that they applied before has nothing to give up.
        let drops = last.filter(|last| !last.fields().is_within(entry.fields()));
        entries.push(entry);
        let pruned = match drops {
            Some(last) => {
                Pruning { entries: &entries, write }.prune(merged, last.api_version(), last.fields())
            }
            None => merged,
        };
        let changes = write.changes(live, &pruned);
        if !force {
            self.refuse_conflicts(&entries, live, &pruned, &changes, own)?;
        }
        take_from_others(&mut entries, live, &pruned, &changes, write, |entry| !own(entry));

        let changed = !same_fields(live, &pruned);
        let mut object = Object::new(pruned);
        if let Some(place) = entries.iter().position(own) {
            entries[place].fields_mut().subtract(compare::unmanaged());
            if entries[place].is_empty() {
                entries.remove(place);
            } else if changed {
                entries[place].set_time(write.now);
            }
        }
        object.set_managers(entry::encode(entries));
        Ok(object)
    }

    fn refuse_conflicts(
        &self,
        entries: &[ManagerEntry],
        live: &Map<String, Value>,
        new: &Map<String, Value>,
        changes: &compare::Changes,
        own: impl Fn(&ManagerEntry) -> bool,
    ) -> Result<(), ApplyError> {
        let mut elsewhere = OtherVersions::default();
        let mut others: Vec<&ManagerEntry> = entries.iter().filter(|entry| !own(entry)).collect();
        others.sort_by(|a, b| (a.manager(), a.operation).cmp(&(b.manager(), b.operation)));
        let mut conflicts = Vec::new();
        for entry in others {
            let version = entry.api_version();
            let Some(changes) = elsewhere.changes(version, live, new, changes, self.write) else { continue };
            let room = MAX_CONFLICTS - conflicts.len();
            let paths = entry.fields().intersection(&taken(changes)).first_paths(room);
            let manager = excerpt::of_owned(entry.describe(), excerpt::LONGEST_PATH);
            let paths = paths.into_iter().map(|path| excerpt::of_owned(path, excerpt::LONGEST_PATH));
            conflicts.extend(paths.map(|path| Conflict { manager: manager.clone(), path }));
        }
        if conflicts.is_empty() { Ok(()) } else { Err(ApplyError::Conflicts(Conflicts(conflicts))) }
    }
}

/// Removing what the manager applied before and does not apply any more.
struct Pruning<'a> {
    /// All managers, with what the writer applies now.
    entries: &'a [ManagerEntry],
    write: &'a Write<'a>,
}

impl Pruning<'_> {
    /// What only `last` holds goes. What somebody else manages stays, and so does what lies inside a
    /// struct or list element that stays for another reason.
    fn prune(&self, merged: Map<String, Value>, version: &str, last: &FieldSet) -> Map<String, Value> {
        let write = self.write;
        if self.is_current(version) {
            return self.prune_in(&merged, write.schema, version, last);
        }
        // The manager last applied through another version: look at the object as it did.
        let Some((converted, schema)) = write.versions.convert(&Object::new(merged.clone()), version) else {
            return merged;
        };
        let pruned = self.prune_in(&converted.0, &schema, version, last);
        match write.versions.convert(&Object::new(pruned), write.api_version) {
            Some((pruned, _)) => pruned.0,
            None => merged,
        }
    }

    fn prune_in(
        &self,
        merged: &Map<String, Value>,
        schema: &Schema,
        version: &str,
        last: &FieldSet,
    ) -> Map<String, Value> {
        let named = |set: &FieldSet| pick::with_named_fields(set, schema);
        let all = |object: &Map<String, Value>| named(&claims::of_object(object, schema));
        let last = named(last);
        let merged_set = all(merged);

        let mut kept = all(&pick::remove(merged, &last, schema));
        for entry in self.entries {
            if entry.api_version() == version || self.write.versions.same_fields(entry.api_version(), version)
            {
                kept.union(named(entry.fields()));
            }
        }
        let mut unowned = merged_set.clone();
        unowned.subtract(&kept);
        let mut pruned = pick::remove(merged, &unowned, schema);
        for other in self.other_versions(version) {
            pruned = self.add_back(merged, pruned, version, &other).unwrap_or_else(|| merged.clone());
        }

        let mut gone = merged_set;
        gone.subtract(&all(&pruned));
        pick::remove(merged, &gone.intersection(&last), schema)
    }

    /// Puts back what managers of another version hold.
    fn add_back(
        &self,
        merged: &Map<String, Value>,
        pruned: Map<String, Value>,
        version: &str,
        other: &str,
    ) -> Option<Map<String, Value>> {
        let versions = self.write.versions;
        let (merged_there, schema) = versions.convert(&Object::new(merged.clone()), other)?;
        let (pruned_there, _) = versions.convert(&Object::new(pruned), other)?;
        let named = |set: &FieldSet| pick::with_named_fields(set, &schema);
        let all = |object: &Map<String, Value>| named(&claims::of_object(object, &schema));
        let mut unowned = all(&merged_there.0);
        unowned.subtract(&all(&pruned_there.0));
        for entry in self.entries.iter().filter(|entry| entry.api_version() == other) {
            unowned.subtract(&named(entry.fields()));
        }
        let pruned = Object::new(pick::remove(&merged_there.0, &unowned, &schema));
        Some(versions.convert(&pruned, version)?.0.0)
    }

    fn is_current(&self, version: &str) -> bool {
        version == self.write.api_version || self.write.versions.same_fields(version, self.write.api_version)
    }

    fn other_versions(&self, version: &str) -> Vec<String> {
        let mut others: Vec<String> = self
            .entries
            .iter()
            .map(|entry| entry.api_version().to_string())
            .filter(|other| other != version && !self.write.versions.same_fields(other, version))
            .collect();
        others.sort();
        others.dedup();
        others
    }
}

/// `default/web; apps/v1, Kind=Deployment`
fn identity(object: &Object) -> String {
    format!(
        "{}/{}; {}, Kind={}",
        object.namespace(),
        object.name(),
        match object.api_version() {
            core if !core.contains('/') => format!("/{core}"),
            other => other.to_string(),
        },
        object.kind()
    )
}

impl Conflicts {
    fn message(&self) -> String {
        if let [conflict] = self.0.as_slice() {
            return format!(
                "Apply failed with 1 conflict: conflict with {}: {}",
                conflict.manager, conflict.path
            );
        }
        let mut lines: Vec<String> = Vec::new();
        let mut manager = "";
        for conflict in &self.0 {
            if conflict.manager != manager {
                manager = &conflict.manager;
                lines.push(format!("conflicts with {manager}:"));
            }
            lines.push(format!("- {}", conflict.path));
        }
        format!("Apply failed with {} conflicts: {}", self.0.len(), lines.join("\n"))
    }
}

impl Conflict {
    /// The message of the cause that names this field.
    pub fn cause(&self) -> String {
        format!("conflict with {}", self.manager)
    }
}

impl Display for Conflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())
    }
}

impl Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApplyError::Conflicts(conflicts) => conflicts.fmt(f),
            ApplyError::BadRequest(why) | ApplyError::Invalid(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for ApplyError {}
