//! Who manages which field of an object: server-side apply and the bookkeeping it rests on
//! (KEP-555).
//!
//! [`update()`] runs on every create, update and patch: it compares the object before and after, takes
//! changed fields from whoever managed them and notes the writer. [`apply()`] runs for apply patches:
//! it lays a configuration over the object, refuses to take fields others manage with another value
//! unless forced, and removes what the manager applied before and does not apply any more.
//!
//! Objects are in the form the decoder gives them: what is empty is left out, what is always written
//! is there. Callers run [`update()`] before admission and the kind's own preparation, whose changes
//! nobody manages, and [`keep_times`] after them.
//!
//! `field_set` is the set of paths, `element` one step of a path, `rows` what the types say,
//! `compare`, `fresh`, `claims`, `merge` and `pick` the walks over objects, `entry` a row of managedFields,
//! `in_text` what can be told of it unread, `settle` and `csa` the ways from older records to newer ones.

mod apply;
mod claims;
mod compare;
mod csa;
mod element;
mod entry;
mod field_set;
mod fresh;
mod in_text;
mod merge;
mod overlay;
mod pick;
mod reconcile;
mod rows;
mod update;

use ferry_api::{Object, Schema};
use jiff::Timestamp;
use serde_json::{Map, Value};

pub use apply::{ApplyError, Conflict, Conflicts, apply};
pub use claims::check as check_declared;
pub use entry::{ManagerEntry, Operation};
pub use field_set::{BadFields, FieldSet};
pub use overlay::{OverlayError, overlay};
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
    Object::new(pick::extract(&object.0, set, schema))
}

/// The object without the fields of `set`.
pub fn remove(object: &Object, set: &FieldSet, schema: &Schema) -> Object {
    Object::new(pick::remove(&object.0, set, schema))
}

/// The managers of an object, read strictly.
pub fn entries(object: &Object) -> Result<Vec<ManagerEntry>, String> {
    entry::decode(object.managers().to_vec(), false)
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

#[cfg(test)]
mod tests {
    use super::*;
    use ferry_api::GroupVersionKind;
    use serde_json::json;

    fn schema() -> Schema {
        Schema::builtin(&GroupVersionKind::new("apps", "v1", "Deployment")).expect("Deployment")
    }

    fn object(value: Value) -> Object {
        Object::from_value(value).expect("an object")
    }

    #[test]
    fn extracting_keeps_the_keys_of_list_elements() {
        let deployment =
            object(json!({"apiVersion": "apps/v1", "spec": {"replicas": 2, "template": {"spec": {
            "containers": [{"name": "a", "image": "x", "tty": true}, {"name": "b", "image": "y"}]}}}}));
        let set = FieldSet::parse(&json!({"f:spec": {"f:template": {"f:spec": {"f:containers": {
            "k:{\"name\":\"a\"}": {"f:image": {}}}}}}}))
        .expect("a set");
        assert_eq!(
            extract(&deployment, &set, &schema()).into_value(),
            json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "x"}]}}}})
        );
        assert_eq!(
            remove(&deployment, &set, &schema()).get(&["spec", "template", "spec", "containers"]),
            Some(&json!([{"name": "a", "tty": true}, {"name": "b", "image": "y"}]))
        );
    }

    #[test]
    fn a_program_names_its_manager() {
        assert_eq!(manager_name("mine", "kubectl/v1.36"), "mine");
        assert_eq!(manager_name("", "kubectl/v1.36 (linux)"), "kubectl");
        assert_eq!(manager_name("", &"x".repeat(200)).len(), 128);
        assert_eq!(manager_name("", "a\u{7}b/1"), "ab");
    }

    /// A second version that calls `replicas` by another name.
    struct Renamed(Schema);

    impl Versions for Renamed {
        fn convert(&self, object: &Object, api_version: &str) -> Option<(Object, Schema)> {
            let (from, to) = match api_version {
                "apps/v1" => ("paused", "replicas"),
                "apps/v2" => ("replicas", "paused"),
                _ => return None,
            };
            let mut object = object.clone();
            let spec = object.section_mut("spec");
            if let Some(value) = spec.remove(from) {
                spec.insert(to.to_string(), value);
            }
            Some((object, self.0.clone()))
        }

        fn same_fields(&self, a: &str, b: &str) -> bool {
            a == b
        }
    }

    #[test]
    fn managers_of_other_versions_are_asked_in_their_version() {
        let schema = schema();
        let versions = Renamed(schema.clone());
        let row = |manager: &str, version: &str, field: &str| {
            json!({"manager": manager, "operation": "Update", "apiVersion": version, "fieldsType": "FieldsV1",
                "fieldsV1": {"f:spec": {format!("f:{field}"): {}, "f:minReadySeconds": {}}}})
        };
        let live = object(json!({"apiVersion": "apps/v1", "metadata": {"managedFields": [
            row("old", "apps/v2", "paused"), row("gone", "apps/v0", "replicas")]},
            "spec": {"replicas": 1, "minReadySeconds": 5}}));
        let mut new = live.clone();
        new.section_mut("spec").insert("replicas".to_string(), json!(2));
        let write = Write {
            manager: "new",
            subresource: "",
            api_version: "apps/v1",
            now: Timestamp::UNIX_EPOCH,
            schema: &schema,
            reset: Reset::Nothing,
            versions: &versions,
        };
        update(Some(&live), &mut new, &write);
        let managers: Vec<(String, Value)> = entries(&new)
            .expect("entries")
            .into_iter()
            .map(|entry| (entry.manager().to_string(), entry.fields().clone().into_value()))
            .collect();
        assert_eq!(
            managers,
            [
                ("new".to_string(), json!({"f:spec": {"f:replicas": {}}})),
                ("old".to_string(), json!({"f:spec": {"f:minReadySeconds": {}}})),
            ]
        );

        let applied = object(json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 3}}));
        let refused = apply(Some(&live), &applied, false, &write).expect_err("a conflict");
        assert_eq!(
            refused.to_string(),
            "Apply failed with 1 conflict: conflict with \"old\" using apps/v2: .spec.paused"
        );
    }
}
