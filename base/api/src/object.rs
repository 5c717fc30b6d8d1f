//! An object of the API while it is being worked on: a JSON object with accessors for what every
//! kind has, and its managers beside it. Where a kind's own fields matter, [`Object::view`] gives a typed
//! `k8s-openapi` view.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::managers::{self, ManagedFieldsEntry};
use crate::{kinds, read, write};

/// All fields but `metadata.managedFields`, which are apart: see [`managers`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Object(pub Map<String, Value>, Vec<ManagedFieldsEntry>);

impl Object {
    /// An object of these fields, without managers.
    pub fn new(fields: Map<String, Value>) -> Object {
        Object(fields, Vec::new())
    }

    /// An object that was read with its managers' fields as text.
    pub(crate) fn from_read(mut fields: Map<String, Value>) -> Object {
        let managers = managers::take_read(&mut fields);
        Object(fields, managers)
    }

    /// Reads JSON that the server itself wrote.
    pub fn read(json: &[u8]) -> Result<Object, serde_json::Error> {
        read::object(json).map(Object::from_read)
    }

    /// An object that has its managers among its fields.
    pub fn from_fields(mut fields: Map<String, Value>) -> Object {
        let managers = managers::take_given(&mut fields);
        Object(fields, managers)
    }

    pub fn from_value(value: Value) -> Option<Object> {
        match value {
            Value::Object(fields) => Some(Object::from_fields(fields)),
            _ => None,
        }
    }

    /// The object as others see it, managers included.
    pub fn into_value(mut self) -> Value {
        if let Some(rows) = self.managed_fields() {
            self.set_meta(managers::FIELD, rows);
        }
        Value::Object(self.0)
    }

    /// The managers as others see them, where there are any.
    pub fn managed_fields(&self) -> Option<Value> {
        (!self.1.is_empty()).then(|| self.1.iter().map(ManagedFieldsEntry::to_value).collect())
    }

    pub fn managers(&self) -> &[ManagedFieldsEntry] {
        &self.1
    }

    pub fn set_managers(&mut self, managers: Vec<ManagedFieldsEntry>) {
        self.1 = managers;
        if !self.1.is_empty() {
            // It is where they are written.
            self.metadata_mut();
        }
    }

    pub fn take_managers(&mut self) -> Vec<ManagedFieldsEntry> {
        std::mem::take(&mut self.1)
    }

    pub fn api_version(&self) -> &str {
        self.text("apiVersion")
    }

    pub fn kind(&self) -> &str {
        self.text("kind")
    }

    pub fn set_type(&mut self, api_version: &str, kind: &str) {
        self.0.insert("apiVersion".into(), api_version.into());
        self.0.insert("kind".into(), kind.into());
    }

    pub fn name(&self) -> &str {
        self.meta_text("name")
    }

    pub fn namespace(&self) -> &str {
        self.meta_text("namespace")
    }

    pub fn uid(&self) -> &str {
        self.meta_text("uid")
    }

    pub fn resource_version(&self) -> &str {
        self.meta_text("resourceVersion")
    }

    pub fn generation(&self) -> i64 {
        self.meta("generation").and_then(Value::as_i64).unwrap_or(0)
    }

    pub fn is_deleting(&self) -> bool {
        self.meta("deletionTimestamp").is_some()
    }

    pub fn finalizers(&self) -> impl Iterator<Item = &str> {
        self.meta("finalizers").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.meta("labels")?.get(key)?.as_str()
    }

    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.meta("annotations")?.get(key)?.as_str()
    }

    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.meta("labels")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
    }

    /// A field of `metadata`.
    pub fn meta(&self, field: &str) -> Option<&Value> {
        self.0.get("metadata")?.get(field)
    }

    pub fn meta_text(&self, field: &str) -> &str {
        self.meta(field).and_then(Value::as_str).unwrap_or("")
    }

    pub fn set_meta(&mut self, field: &str, value: impl Into<Value>) {
        self.metadata_mut().insert(field.into(), value.into());
    }

    pub fn remove_meta(&mut self, field: &str) -> Option<Value> {
        self.metadata_mut().remove(field)
    }

    /// `metadata`, made when it is missing. Decoding refuses a metadata that is no object.
    pub fn metadata_mut(&mut self) -> &mut Map<String, Value> {
        object_at(&mut self.0, "metadata")
    }

    /// The value at a path of field names: `get(&["spec", "replicas"])`.
    pub fn get(&self, path: &[&str]) -> Option<&Value> {
        let (first, rest) = path.split_first()?;
        rest.iter().try_fold(self.0.get(*first)?, |value, field| value.get(field))
    }

    /// The string at a path, or "" when it is absent.
    pub fn text_at(&self, path: &[&str]) -> &str {
        self.get(path).and_then(Value::as_str).unwrap_or("")
    }

    /// The struct at `field`, made when it is missing.
    pub fn section_mut(&mut self, field: &str) -> &mut Map<String, Value> {
        object_at(&mut self.0, field)
    }

    /// The typed view of this object, without its managers.
    pub fn view<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        crate::view::of_object(&self.0)
    }

    /// The JSON that goes out: kind and apiVersion first, so that a list can leave them off, then metadata. Upstream's built-in
    /// kinds are structs, which Go writes as they are declared, kind first; its custom resources are maps, written by name.
    pub fn to_json(&self) -> Vec<u8> {
        let group = self.api_version().rsplit_once('/').map_or("", |(group, _)| group);
        match kinds::is_builtin_group(group) {
            true => self.write(["kind", "apiVersion", "metadata"], &[]),
            false => self.write(["apiVersion", "kind", "metadata"], &[]),
        }
    }

    /// The JSON that is stored: without the resourceVersion, which is the store's revision and can be put in without decoding.
    /// It begins with the apiVersion whatever the kind: so it is told from what upstream's servers store.
    pub fn to_stored_json(&self) -> Vec<u8> {
        self.write(["apiVersion", "kind", "metadata"], &["resourceVersion"])
    }

    fn write(&self, first: [&str; 3], left_out_of_metadata: &[&str]) -> Vec<u8> {
        let mut out = Vec::with_capacity(4096);
        out.push(b'{');
        let mut comma = false;
        let ahead = first.iter().filter_map(|key| self.0.get_key_value(*key));
        let others = self.0.iter().filter(|(key, _)| !first.contains(&key.as_str()));
        for (key, value) in ahead.chain(others) {
            if comma {
                out.push(b',');
            }
            comma = true;
            write::text(&mut out, key);
            out.push(b':');
            match value {
                Value::Object(metadata) if key == "metadata" => {
                    self.write_metadata(&mut out, metadata, left_out_of_metadata);
                }
                value => write::value(&mut out, value),
            }
        }
        out.push(b'}');
        out
    }

    fn write_metadata(&self, out: &mut Vec<u8>, metadata: &Map<String, Value>, left_out: &[&str]) {
        let mut rows = Some(&self.1).filter(|rows| !rows.is_empty());
        let mut before = b'{';
        let mut name = |out: &mut Vec<u8>, name: &str| {
            out.push(before);
            before = b',';
            write::text(out, name);
            out.push(b':');
        };
        let write_rows = |out: &mut Vec<u8>, rows: &[ManagedFieldsEntry]| {
            for (index, row) in rows.iter().enumerate() {
                out.push(if index == 0 { b'[' } else { b',' });
                row.write(out);
            }
            out.push(b']');
        };
        for (key, value) in metadata.iter().filter(|(key, _)| !left_out.contains(&key.as_str())) {
            if key.as_str() > managers::FIELD
                && let Some(rows) = rows.take()
            {
                name(out, managers::FIELD);
                write_rows(out, rows);
            }
            name(out, key);
            write::value(out, value);
        }
        if let Some(rows) = rows {
            name(out, managers::FIELD);
            write_rows(out, rows);
        }
        if before == b'{' {
            out.push(b'{');
        }
        out.push(b'}');
    }

    fn text(&self, field: &str) -> &str {
        self.0.get(field).and_then(Value::as_str).unwrap_or("")
    }
}

/// `map[field]` as an object, made when it is missing or no object.
pub fn object_at<'a>(map: &'a mut Map<String, Value>, field: &str) -> &'a mut Map<String, Value> {
    let slot = map.entry(field).or_insert_with(|| Value::Object(Map::new()));
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut().expect("made an object above")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_type_comes_first_in_the_json_that_goes_out() {
        let object = |api_version: &str| {
            Object::from_value(json!({"data": {"a": "b"}, "kind": "ConfigMap", "apiVersion": api_version}))
                .expect("an object")
        };
        let text = |json: Vec<u8>| String::from_utf8(json).expect("UTF-8");
        assert_eq!(
            text(object("v1").to_json()),
            r#"{"kind":"ConfigMap","apiVersion":"v1","data":{"a":"b"}}"#
        );
        assert_eq!(
            text(object("example.org/v1").to_json()),
            r#"{"apiVersion":"example.org/v1","kind":"ConfigMap","data":{"a":"b"}}"#
        );
        assert_eq!(
            text(object("v1").to_stored_json()),
            r#"{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"b"}}"#
        );
    }

    #[test]
    fn a_time_that_is_null_is_the_zero_time() {
        let condition = json!({"type": "A", "status": "True", "lastTransitionTime": null});
        let object = Object::from_value(json!({"status": {"conditions": [condition]}})).expect("an object");
        let view: k8s_openapi::api::core::v1::Service = object.view().expect("a Service");
        let conditions = view.status.and_then(|status| status.conditions).expect("conditions");
        assert_eq!(conditions[0].type_, "A");
    }

    #[test]
    fn the_revision_is_not_stored() {
        let object =
            Object::from_value(json!({"metadata": {"name": "a", "resourceVersion": "7", "uid": "u"}}))
                .expect("an object");
        assert_eq!(
            String::from_utf8(object.to_stored_json()).expect("UTF-8"),
            r#"{"metadata":{"name":"a","uid":"u"}}"#
        );
        let bare = Object::from_value(json!({"metadata": {"resourceVersion": "7"}})).expect("an object");
        assert_eq!(bare.to_stored_json(), br#"{"metadata":{}}"#);
    }

    #[test]
    fn managers_are_written_where_their_field_belongs() {
        let rows = json!([{"fieldsV1": {"f:a": {}}, "manager": "m"}, {"manager": "n"}]);
        for metadata in [
            json!({"annotations": {"a": "b"}, "managedFields": rows, "name": "a", "resourceVersion": "7"}),
            json!({"labels": {"a": "b"}, "managedFields": rows}),
            json!({"managedFields": rows, "resourceVersion": "7"}),
            json!({"managedFields": rows}),
            json!({"name": "a"}),
        ] {
            let value =
                json!({"kind": "A", "metadata": metadata, "spec": {"metadata": {"managedFields": rows}}});
            let object = Object::from_value(value.clone()).expect("an object");
            assert_eq!(object.meta("managedFields"), None);
            assert_eq!(String::from_utf8(object.to_json()).expect("UTF-8"), value.to_string());
            let mut stored = value.clone();
            stored["metadata"].as_object_mut().expect("an object").remove("resourceVersion");
            assert_eq!(String::from_utf8(object.to_stored_json()).expect("UTF-8"), stored.to_string());
            assert_eq!(Object::read(value.to_string().as_bytes()).expect("JSON"), object);
            assert_eq!(object.into_value(), value);
        }
    }

    #[test]
    fn json_that_is_not_an_object_is_refused() {
        for text in ["", "[]", "null", "{} {}", r#"{"metadata":{"managedFields":[{"fieldsV1":{]}}"#] {
            Object::read(text.as_bytes()).expect_err(text);
        }
        // Odd as it is, nothing of it is lost or refused.
        for text in [r#"{"metadata":null}"#, r#"{"metadata":[{"managedFields":1}]}"#, "{}"] {
            assert_eq!(Object::read(text.as_bytes()).expect(text).to_json(), text.as_bytes());
        }
    }

    #[test]
    fn a_typed_view_borrows_the_object() {
        let object =
            Object::from_value(json!({"metadata": {"name": "a"}, "data": {"k": "v"}})).expect("an object");
        let view: k8s_openapi::api::core::v1::ConfigMap = object.view().expect("a ConfigMap");
        assert_eq!(view.metadata.name.as_deref(), Some("a"));
    }
}
