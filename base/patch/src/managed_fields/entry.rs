//! The rows of `metadata.managedFields`: who manages which fields, by which operation.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::field_set::FieldSet;

/// Updating managers beyond this number are folded into one, oldest first.
const MAX_UPDATE_MANAGERS: usize = 10;
const OLDEST_MANAGERS: &str = "ancient-changes";

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

/// One row. It keeps the JSON it came from, so that a row nobody touched goes back as it was.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    row: Map<String, Value>,
    pub operation: Operation,
    pub fields: FieldSet,
}

impl Entry {
    pub fn new(
        manager: &str,
        operation: Operation,
        api_version: &str,
        subresource: &str,
        fields: FieldSet,
    ) -> Entry {
        let mut row = Map::new();
        row.insert("manager".to_string(), manager.into());
        row.insert("operation".to_string(), operation.as_str().into());
        row.insert("apiVersion".to_string(), api_version.into());
        row.insert("fieldsType".to_string(), "FieldsV1".into());
        if !subresource.is_empty() {
            row.insert("subresource".to_string(), subresource.into());
        }
        Entry { row, operation, fields }
    }

    pub fn manager(&self) -> &str {
        self.text("manager")
    }

    pub fn api_version(&self) -> &str {
        self.text("apiVersion")
    }

    pub fn subresource(&self) -> &str {
        self.text("subresource")
    }

    pub fn time(&self) -> Option<&str> {
        self.row.get("time").and_then(Value::as_str)
    }

    pub fn set_time(&mut self, now: Timestamp) {
        self.row.insert("time".to_string(), ferry_api::time::format_seconds(now).into());
    }

    pub(super) fn set_time_of(&mut self, other: &Entry) {
        match other.row.get("time") {
            Some(time) => self.row.insert("time".to_string(), time.clone()),
            None => self.row.remove("time"),
        };
    }

    pub(super) fn rename(&mut self, manager: &str, operation: Operation) {
        self.row.insert("manager".to_string(), manager.into());
        self.row.insert("operation".to_string(), operation.as_str().into());
        self.operation = operation;
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

    pub(super) fn into_row(self) -> Value {
        let Entry { mut row, fields, .. } = self;
        match row.get_mut("fieldsV1") {
            Some(slot) => *slot = fields.into_value(),
            None => {
                row.insert("fieldsV1".to_string(), fields.into_value());
            }
        }
        Value::Object(row)
    }

    fn text(&self, field: &str) -> &str {
        self.row.get(field).and_then(Value::as_str).unwrap_or("")
    }

    fn seconds(&self) -> i64 {
        self.time().and_then(ferry_api::time::parse).map_or(0, |time| time.as_second())
    }
}

/// Reads rows. `stored` rows were checked when they were written and are taken as they are.
pub fn decode(managed_fields: Value, stored: bool) -> Result<Vec<Entry>, String> {
    let rows = match managed_fields {
        Value::Null => return Ok(Vec::new()),
        Value::Array(rows) => rows,
        _ => return Err("managedFields must be a list".to_string()),
    };
    let mut entries: Vec<Entry> = Vec::with_capacity(rows.len());
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

fn decode_row(index: usize, row: Value, stored: bool) -> Result<Entry, String> {
    let Value::Object(mut row) = row else {
        return Err(format!("managed fields entry {index} must be an object"));
    };
    let operation = match row.get("operation").and_then(Value::as_str) {
        Some("Apply") => Operation::Apply,
        Some("Update") => Operation::Update,
        _ => return Err("operation must be `Apply` or `Update`".to_string()),
    };
    if row.get("apiVersion").and_then(Value::as_str).is_none_or(str::is_empty) {
        return Err("apiVersion must not be empty".to_string());
    }
    match row.get("fieldsType").and_then(Value::as_str) {
        Some("FieldsV1") => {}
        None | Some("") => return Err(format!("missing fieldsType in managed fields entry {index}")),
        Some(other) => return Err(format!("invalid fieldsType {other:?} in managed fields entry {index}")),
    }
    let fields = row.get_mut("fieldsV1").map_or(Value::Null, Value::take);
    let fields = match stored {
        true => FieldSet::trust(fields),
        false => FieldSet::parse(&fields).map_err(|error| format!("error decoding set: {}", error.0))?,
    };
    Ok(Entry { row, operation, fields })
}

/// Writes rows in their order: who applies first, then by age, then by name.
pub fn encode(mut entries: Vec<Entry>) -> Value {
    entries.sort_by(|a, b| {
        (a.operation, a.seconds())
            .cmp(&(b.operation, b.seconds()))
            .then_with(|| a.manager().cmp(b.manager()))
            .then_with(|| a.api_version().cmp(b.api_version()))
            .then_with(|| a.subresource().cmp(b.subresource()))
    });
    Value::Array(entries.into_iter().map(Entry::into_row).collect())
}

/// Folds the oldest updating managers together until no more than ten are left, so that an object
/// that many write to does not grow without end. Managers of one version go into one row.
pub fn cap(entries: &mut Vec<Entry>) {
    let updates = |entry: &Entry| entry.operation == Operation::Update;
    let mut count = entries.iter().filter(|entry| updates(entry)).count();
    if count <= MAX_UPDATE_MANAGERS {
        return;
    }
    let (mut updaters, mut kept): (Vec<Entry>, Vec<Entry>) = entries.drain(..).partition(updates);
    updaters.sort_by_cached_key(|entry| (entry.seconds(), entry.identity()));
    // Where the folded managers of a version are: at first in the oldest, which keeps its name until
    // another one joins it.
    let mut buckets: HashMap<String, usize> = HashMap::new();
    let existing = updaters.iter().enumerate().filter(|(_, entry)| entry.manager() == OLDEST_MANAGERS);
    let existing: HashMap<String, usize> = existing
        .filter(|(_, entry)| entry.subresource().is_empty())
        .map(|(place, entry)| (entry.api_version().to_string(), place))
        .collect();
    let mut slots: Vec<Option<Entry>> = updaters.into_iter().map(Some).collect();
    for place in 0..slots.len() {
        if count <= MAX_UPDATE_MANAGERS {
            break;
        }
        let Some(entry) = slots[place].take() else { continue };
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
            bucket.row.remove("subresource");
            bucket.set_time_of(&entry);
            bucket.fields.union(entry.fields);
        }
        count -= 1;
    }
    kept.extend(slots.into_iter().flatten());
    *entries = kept;
}
