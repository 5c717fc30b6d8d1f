//! The rows of `metadata.managedFields`: who manages which fields, by which operation.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};

use ferry_api::{ManagedFieldsEntry, read};
use jiff::Timestamp;
use serde_json::Value;

use super::field_set::FieldSet;
use super::in_text;

/// Updating managers beyond this number are folded into one, oldest first.
const MAX_UPDATE_MANAGERS: usize = 10;
const OLDEST_MANAGERS: &str = "ancient-changes";
const FIELDS_TYPE: &str = "FieldsV1";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

/// One row. Its fields are text until somebody looks into them, and as a rule nobody does: a write changes other fields
/// than those of most managers.
#[derive(Debug, Clone)]
pub struct ManagerEntry {
    row: ManagedFieldsEntry,
    pub operation: Operation,
    fields: OnceCell<FieldSet>,
    /// Whether the text is still what the fields are.
    is_text: bool,
}

impl ManagerEntry {
    pub fn new(
        manager: &str,
        operation: Operation,
        api_version: &str,
        subresource: &str,
        fields: FieldSet,
    ) -> ManagerEntry {
        let row = row(manager, operation, api_version, subresource);
        ManagerEntry { row, operation, fields: OnceCell::from(fields), is_text: false }
    }

    pub fn manager(&self) -> &str {
        &self.row.manager
    }

    pub fn api_version(&self) -> &str {
        &self.row.api_version
    }

    pub fn subresource(&self) -> &str {
        &self.row.subresource
    }

    pub fn time(&self) -> Option<&str> {
        Some(self.row.time.as_str()).filter(|time| !time.is_empty())
    }

    pub fn set_time(&mut self, now: Timestamp) {
        self.row.time = ferry_api::time::format_seconds(now);
    }

    pub(super) fn set_time_of(&mut self, other: &ManagerEntry) {
        self.row.time.clone_from(&other.row.time);
    }

    pub(super) fn rename(&mut self, manager: &str, operation: Operation) {
        self.row.manager = manager.to_string();
        self.row.operation = operation.as_str().to_string();
        self.operation = operation;
    }

    pub fn fields(&self) -> &FieldSet {
        // What was stored was checked before that; what is no JSON after all says nothing.
        let read = || read::document(self.row.fields_v1.as_bytes()).unwrap_or(Value::Null);
        self.fields.get_or_init(|| FieldSet::trust(read()))
    }

    pub(super) fn fields_mut(&mut self) -> &mut FieldSet {
        self.fields();
        self.is_text = false;
        self.fields.get_mut().expect("read above")
    }

    /// Gives these fields to the manager.
    pub(super) fn add(&mut self, set: FieldSet) {
        match self.unread().and_then(|text| in_text::union(text, &set)) {
            Some(text) => self.row.fields_v1 = text,
            None => self.fields_mut().union(set),
        }
    }

    /// Whether any of these fields may be the manager's.
    pub(super) fn may_have(&self, set: &FieldSet) -> bool {
        match self.unread() {
            Some(text) => in_text::may_have(text, set),
            None => !set.is_empty(),
        }
    }

    /// Whether all of these fields are the manager's.
    pub(super) fn has_all(&self, set: &FieldSet) -> bool {
        let unread = self.unread().and_then(|text| in_text::has_all(text, set));
        unread.unwrap_or_else(|| set.is_within(self.fields()))
    }

    fn unread(&self) -> Option<&str> {
        self.fields.get().is_none().then_some(&self.row.fields_v1)
    }

    pub(super) fn is_empty(&self) -> bool {
        match self.fields.get() {
            Some(fields) => fields.is_empty(),
            None => matches!(self.row.fields_v1.as_str(), "" | "{}"),
        }
    }

    /// Whether two rows are of one manager. Who applies may move between versions and stays the same.
    pub fn is(&self, manager: &str, operation: Operation, api_version: &str, subresource: &str) -> bool {
        self.operation == operation
            && self.manager() == manager
            && self.subresource() == subresource
            && (operation == Operation::Apply || self.api_version() == api_version)
    }

    fn identity(&self) -> [String; 4] {
        let api_version = if self.operation == Operation::Apply { "" } else { self.api_version() };
        [self.manager(), self.operation.as_str(), api_version, self.subresource()].map(str::to_string)
    }

    /// As messages name it: `"kubectl" using apps/v1`.
    pub fn describe(&self) -> String {
        let mut text = format!("{:?}", self.manager());
        if !self.subresource().is_empty() {
            text.push_str(&format!(" with subresource {:?}", self.subresource()));
        }
        if self.operation == Operation::Update {
            text.push_str(&format!(" using {}", self.api_version()));
        }
        text
    }

    pub(super) fn into_row(self) -> ManagedFieldsEntry {
        let ManagerEntry { mut row, fields, is_text, .. } = self;
        if !is_text && let Some(fields) = fields.into_inner() {
            row.fields_v1 = fields.text();
        }
        row
    }

    fn seconds(&self) -> i64 {
        self.time().and_then(ferry_api::time::parse).map_or(0, |time| time.as_second())
    }
}

/// A row that says nothing of its fields and its time yet.
pub(super) fn row(
    manager: &str,
    operation: Operation,
    api_version: &str,
    subresource: &str,
) -> ManagedFieldsEntry {
    ManagedFieldsEntry {
        manager: manager.to_string(),
        operation: operation.as_str().to_string(),
        api_version: api_version.to_string(),
        fields_type: FIELDS_TYPE.to_string(),
        subresource: subresource.to_string(),
        ..ManagedFieldsEntry::default()
    }
}

/// Reads rows. `stored` rows were checked when they were written and are taken as they are.
pub fn decode(rows: Vec<ManagedFieldsEntry>, stored: bool) -> Result<Vec<ManagerEntry>, String> {
    let mut entries: Vec<ManagerEntry> = Vec::with_capacity(rows.len());
    for (index, row) in rows.into_iter().enumerate() {
        entries.push(decode_row(index, row, stored)?);
    }
    // Of two rows of one manager the later one counts. Stored rows are never two.
    if !stored {
        let mut seen: HashSet<[String; 4]> = HashSet::with_capacity(entries.len());
        entries.reverse();
        entries.retain(|entry| seen.insert(entry.identity()));
        entries.reverse();
    }
    Ok(entries)
}

fn decode_row(index: usize, row: ManagedFieldsEntry, stored: bool) -> Result<ManagerEntry, String> {
    let operation = match row.operation.as_str() {
        "Apply" => Operation::Apply,
        "Update" => Operation::Update,
        _ => return Err("operation must be `Apply` or `Update`".to_string()),
    };
    if row.api_version.is_empty() {
        return Err("apiVersion must not be empty".to_string());
    }
    match row.fields_type.as_str() {
        FIELDS_TYPE => {}
        "" => return Err(format!("missing fieldsType in managed fields entry {index}")),
        other => return Err(format!("invalid fieldsType {other:?} in managed fields entry {index}")),
    }
    if stored {
        return Ok(ManagerEntry { row, operation, fields: OnceCell::new(), is_text: true });
    }
    let fields = match row.fields_v1.as_str() {
        "" => Value::Null,
        text => read::document(text.as_bytes()).map_err(|error| format!("error decoding set: {error}"))?,
    };
    let fields = FieldSet::parse(&fields).map_err(|error| format!("error decoding set: {}", error.0))?;
    Ok(ManagerEntry { row, operation, fields: OnceCell::from(fields), is_text: false })
}

/// Writes rows in their order: who applies first, then by age, then by name.
pub fn encode(mut entries: Vec<ManagerEntry>) -> Vec<ManagedFieldsEntry> {
    entries.sort_by(|a, b| {
        (a.operation, a.seconds())
            .cmp(&(b.operation, b.seconds()))
            .then_with(|| a.manager().cmp(b.manager()))
            .then_with(|| a.api_version().cmp(b.api_version()))
            .then_with(|| a.subresource().cmp(b.subresource()))
    });
    entries.into_iter().map(ManagerEntry::into_row).collect()
}

/// Folds the oldest updating managers together until no more than ten are left, so that an object
/// that many write to does not grow without end. Managers of one version go into one row.
pub fn cap(entries: &mut Vec<ManagerEntry>) {
    let updates = |entry: &ManagerEntry| entry.operation == Operation::Update;
    let mut count = entries.iter().filter(|entry| updates(entry)).count();
    if count <= MAX_UPDATE_MANAGERS {
        return;
    }
    let (mut updaters, mut kept): (Vec<ManagerEntry>, Vec<ManagerEntry>) =
        entries.drain(..).partition(updates);
    updaters.sort_by_cached_key(|entry| (entry.seconds(), entry.identity()));
    // Where the folded managers of a version are: at first in the oldest, which keeps its name until
    // another one joins it.
    let mut buckets: HashMap<String, usize> = HashMap::new();
    let existing = updaters.iter().enumerate().filter(|(_, entry)| entry.manager() == OLDEST_MANAGERS);
    let existing: HashMap<String, usize> = existing
        .filter(|(_, entry)| entry.subresource().is_empty())
        .map(|(place, entry)| (entry.api_version().to_string(), place))
        .collect();
    let mut slots: Vec<Option<ManagerEntry>> = updaters.into_iter().map(Some).collect();
    for place in 0..slots.len() {
        if count <= MAX_UPDATE_MANAGERS {
            break;
        }
        let Some(mut entry) = slots[place].take() else { continue };
        let version = entry.api_version().to_string();
        let Some(first) = buckets.get(&version).copied() else {
            buckets.insert(version, place);
            slots[place] = Some(entry);
            continue;
        };
        let target = match existing.get(&version) {
            Some(&bucket) if bucket != place && slots[bucket].is_some() => bucket,
            _ => first,
        };
        if let Some(bucket) = &mut slots[target] {
            bucket.rename(OLDEST_MANAGERS, Operation::Update);
            bucket.row.subresource.clear();
            bucket.set_time_of(&entry);
            bucket.fields_mut().union(std::mem::take(entry.fields_mut()));
        }
        count -= 1;
    }
    kept.extend(slots.into_iter().flatten());
    *entries = kept;
}
