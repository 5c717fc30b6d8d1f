//! Who manages which field of an object: server-side apply and the bookkeeping it rests on
//! (KEP-555).
//!
//! [`update`] runs on every create, update and patch: it compares the object before and after, takes
//! changed fields from whoever managed them and notes the writer. [`apply`] runs for apply patches:
//! it lays a configuration over the object, refuses to take fields others manage with another value
//! unless forced, and removes what the manager applied before and does not apply any more.
//!
//! Objects are in the form the decoder gives them: what is empty is left out, what is always written
//! is there. Callers run [`update`] before admission and the kind's own preparation, whose changes
//! nobody manages, and [`keep_times`] after them.
//!
//! `field_set` is the set of paths, `element` one step of a path, `rows` what the types say,
//! `compare`, `claims`, `merge` and `pick` the walks over objects, `entry` a row of managedFields.

mod apply;
mod claims;
mod compare;
pub mod csa;
mod element;
mod entry;
mod field_set;
mod merge;
mod pick;
mod rows;
mod update;

use ferry_api::{Object, Schema};
use jiff::Timestamp;
use serde_json::{Map, Value};

pub use apply::{ApplyError, Conflict, Conflicts, apply};
pub use entry::{Entry, Operation};
pub use field_set::{BadFields, FieldSet};
pub use update::{keep_times, update};

use compare::Changes;

/// A write: who makes it, to what, and when.
#[derive(Clone, Copy)]
pub struct Write<'a> {
    /// The field manager; see [`manager_name`].
    pub manager: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// The version the request speaks, `apps/v1`.
    pub api_version: &'a str,
    pub now: Timestamp,
    /// The rows of `api_version`.
    pub schema: &'a Schema,
    pub reset: Reset<'a>,
    pub versions: &'a dyn Versions,
}

/// Fields a write cannot set, because the kind's strategy takes them from the stored object. A path
/// is of field names; `*` stands for any element.
#[derive(Clone, Copy)]
pub enum Reset<'a> {
    Nothing,
    /// These and everything below them.
    Fields(&'a [&'a [&'a str]]),
    /// Everything but these.
    AllBut(&'a [&'a [&'a str]]),
}

/// How objects look in other versions, for managers that wrote through them.
pub trait Versions {
    /// The object in `api_version` with that version's rows, or None where the version is gone and
    /// its managers with it.
    fn convert(&self, object: &Object, api_version: &str) -> Option<(Object, Schema)>;

    /// Whether the fields of both versions are the same, so that nothing needs to be converted.
    fn same_fields(&self, a: &str, b: &str) -> bool;
}

/// For kinds whose versions have the same fields.
pub struct OneVersion;

impl Versions for OneVersion {
    fn convert(&self, _: &Object, _: &str) -> Option<(Object, Schema)> {
        None
    }

    fn same_fields(&self, _: &str, _: &str) -> bool {
        true
    }
}

/// The manager a request speaks for: the one it names, or the program in its User-Agent.
pub fn manager_name(field_manager: &str, user_agent: &str) -> String {
    const MAX_LENGTH: usize = 128;
    if !field_manager.is_empty() {
        return field_manager.to_string();
    }
    let program = user_agent.split('/').next().unwrap_or("");
    let mut name = String::new();
    for c in program.chars().filter(|c| !c.is_control()) {
        if name.len() + c.len_utf8() > MAX_LENGTH {
            break;
        }
        name.push(c);
    }
    name
}

/// All fields an object gives a value for, by its rows.
pub fn fields_of(object: &Object, schema: &Schema) -> FieldSet {
    claims::of_object(&object.0, schema)
}

/// The part of an object that the fields of `set` make up, keys of list elements included: what its
/// manager would apply again.
pub fn extract(object: &Object, set: &FieldSet, schema: &Schema) -> Object {
    Object(pick::extract(&object.0, set, schema))
}

/// The object without the fields of `set`.
pub fn remove(object: &Object, set: &FieldSet, schema: &Schema) -> Object {
    Object(pick::remove(&object.0, set, schema))
}

/// Reads `metadata.managedFields`, strictly.
pub fn entries(managed_fields: &Value) -> Result<Vec<Entry>, String> {
    entry::decode(managed_fields.clone(), false)
}

impl Write<'_> {
    fn manager(&self) -> &str {
        if self.manager.is_empty() { "unknown" } else { self.manager }
    }

    /// An object of this kind before anybody wrote a field.
    fn blank(&self) -> Map<String, Value> {
        let shape = ferry_api::Shape::Struct(self.schema.root);
        match ferry_api::zero::of_shape(&shape, &self.schema.types) {
            Value::Object(blank) => blank,
            _ => Map::new(),
        }
    }

    fn changes(&self, old: &Map<String, Value>, new: &Map<String, Value>) -> Changes {
        let mut changes = compare::objects(old, new, self.schema);
        changes.each(|set| self.reset.filter(set));
        changes
    }
}

impl Reset<'_> {
    fn filter(&self, set: &mut FieldSet) {
        match self {
            Reset::Nothing => {}
            Reset::Fields(paths) => set.remove_matching(paths),
            Reset::AllBut(paths) => set.retain_matching(paths),
        }
    }
}
