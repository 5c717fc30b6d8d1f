//! Who manages which fields of an object: the rows of `metadata.managedFields`, kept beside the object and not in it.
//!
//! They are half of a small object's text, each write reads and writes them, and nobody but server-side apply looks into
//! their sets of fields. So a set stays the JSON text it came as until somebody does.

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::{read, write};

pub(crate) const FIELD: &str = "managedFields";
pub(crate) const FIELDS_V1: &str = "fieldsV1";

/// One row. What is empty was not given; a row of which nothing was given, alone, asks to forget all managers, and so does
/// an empty list, which is read as such a row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ManagedFieldsEntry {
    pub api_version: String,
    pub fields_type: String,
    /// JSON text, as it came. What is stored has no spaces.
    pub fields_v1: String,
    pub manager: String,
    pub operation: String,
    pub subresource: String,
    pub time: String,
}

impl ManagedFieldsEntry {
    /// `text` says what is to be kept of `fieldsV1`.
    fn from_value(row: Value, text: fn(Value) -> String) -> ManagedFieldsEntry {
        let Value::Object(mut row) = row else { return ManagedFieldsEntry::default() };
        let fields_v1 = row.remove(FIELDS_V1).map_or_else(String::new, text);
        let mut take = |name: &str| match row.remove(name) {
            Some(Value::String(given)) => given,
            _ => String::new(),
        };
        ManagedFieldsEntry {
            api_version: take("apiVersion"),
            fields_type: take("fieldsType"),
            fields_v1,
            manager: take("manager"),
            operation: take("operation"),
            subresource: take("subresource"),
            time: take("time"),
        }
    }

    pub fn to_value(&self) -> Value {
        let given = self.members().into_iter().filter(|(_, text)| !text.is_empty());
        given
            .map(|(name, text)| (name.to_string(), if name == FIELDS_V1 { tree(text) } else { text.into() }))
            .collect()
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        let mut comma = false;
        for (name, text) in self.members().into_iter().filter(|(_, text)| !text.is_empty()) {
            if comma {
                out.push(b',');
            }
            comma = true;
            write::text(out, name);
            out.push(b':');
            match name {
                FIELDS_V1 => out.extend_from_slice(text.as_bytes()),
                _ => write::text(out, text),
            }
        }
        out.push(b'}');
    }

    /// In the order of their names, as all objects are written.
    fn members(&self) -> [(&'static str, &str); 7] {
        [
            ("apiVersion", &self.api_version),
            ("fieldsType", &self.fields_type),
            (FIELDS_V1, &self.fields_v1),
            ("manager", &self.manager),
            ("operation", &self.operation),
            ("subresource", &self.subresource),
            ("time", &self.time),
        ]
    }
}

/// Takes the rows out of an object whose sets of fields are text already, as [`text`] reads them.
pub(crate) fn take_read(object: &mut Map<String, Value>) -> Vec<ManagedFieldsEntry> {
    take(object, |fields| match fields {
        Value::String(text) => text,
        _ => String::new(),
    })
}

/// Takes the rows out of an object that has them as any other field.
pub(crate) fn take_given(object: &mut Map<String, Value>) -> Vec<ManagedFieldsEntry> {
    take(object, |fields| if fields.is_null() { String::new() } else { fields.to_string() })
}

fn take(object: &mut Map<String, Value>, text: fn(Value) -> String) -> Vec<ManagedFieldsEntry> {
    let Some(Value::Object(metadata)) = object.get_mut("metadata") else { return Vec::new() };
    match metadata.remove(FIELD) {
        Some(Value::Array(rows)) if rows.is_empty() => vec![ManagedFieldsEntry::default()],
        Some(Value::Array(rows)) => {
            rows.into_iter().map(|row| ManagedFieldsEntry::from_value(row, text)).collect()
        }
        _ => Vec::new(),
    }
}

/// The value that a text stands for. Texts come from [`text`] or are written by the server: they are JSON.
pub(crate) fn tree(text: &str) -> Value {
    read::document(text.as_bytes()).unwrap_or_else(|_| Value::String(text.to_string()))
}

/// The value as its text. Of the deserializers that objects come through, each can give it.
pub(crate) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    let text = String::from(Box::<str>::from(Box::<RawValue>::deserialize(deserializer)?));
    Ok(if text == "null" { Value::Null } else { Value::String(text) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_value_is_read_as_its_text() {
        for given in [
            json!({"f:spec": {".": {}, "k:{\"name\":\"a\"}": {"f:image": {}}, "v:\"é\\n\"": {}}}),
            json!([1, -1, 1.5, u64::MAX, true, false, null, "a\"\u{1}", [[]], {}, {"a": [{}]}]),
            json!("text"),
            json!(7),
        ] {
            let written = given.to_string();
            let read = text(&mut serde_json::Deserializer::from_str(&written)).expect("JSON");
            assert_eq!(read, Value::String(written.clone()));
            assert_eq!(
                text(&mut serde_json::Deserializer::from_slice(written.as_bytes())).expect("JSON"),
                read
            );
            assert_eq!(text(given.clone()).expect("a value"), read);
            assert_eq!(tree(&written), given);
        }
        assert_eq!(text(Value::Null).expect("a value"), Value::Null);
        for broken in ["{", "{\"a\"}", "[1,]", "nul", "{\"a\":1,}"] {
            text(&mut serde_json::Deserializer::from_str(broken)).expect_err(broken);
        }
    }

    #[test]
    fn rows_come_out_as_they_went_in() {
        let rows = json!([
            {"apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:a": {}}, "manager": "m",
             "operation": "Update", "subresource": "status", "time": "2026-01-01T00:00:00Z"},
            {},
        ]);
        let mut object = json!({"metadata": {"name": "a", "managedFields": rows}});
        let taken = take_given(object.as_object_mut().expect("an object"));
        assert_eq!(object, json!({"metadata": {"name": "a"}}));
        assert_eq!(taken.iter().map(ManagedFieldsEntry::to_value).collect::<Value>(), rows);
        let mut out = Vec::new();
        taken.iter().for_each(|row| row.write(&mut out));
        assert_eq!(String::from_utf8(out).expect("UTF-8"), format!("{}{}", rows[0], rows[1]));
    }
}
