//! Who manages which fields of an object: the rows of `metadata.managedFields`, kept beside the object and not in it.
//!
//! They are half of a small object's text, each write reads and writes them, and nobody but server-side apply looks into
//! their sets of fields. So a set stays the JSON text it came as until somebody does.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::{read, write};

pub(crate) const FIELD: &str = "managedFields";
pub(crate) const FIELDS_V1: &str = "fieldsV1";

/// One row. What is empty was not given; a row of which nothing was given, alone, asks to forget all managers, and so does
/// an empty list, which is read as such a row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ManagedFieldsEntry {
    pub api_version: String,
    pub fields_type: String,
    /// JSON text without spaces.
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

/// Takes the rows out of an object whose sets of fields are text already, as [`Text`] reads them.
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

/// The value that a text stands for. Texts come from [`Text`] or are written by the server: they are JSON.
pub(crate) fn tree(text: &str) -> Value {
    read::document(text.as_bytes()).unwrap_or_else(|_| Value::String(text.to_string()))
}

/// Reads any value as its JSON text, without spaces, from any deserializer.
pub(crate) struct Text<'o>(pub &'o mut Vec<u8>);

impl<'de> DeserializeSeed<'de> for Text<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// The value, as its text.
pub(crate) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    let mut out = Vec::with_capacity(1024);
    Text(&mut out).deserialize(deserializer)?;
    let text = String::from_utf8(out).expect("JSON is written as UTF-8");
    Ok(if text == "null" { Value::Null } else { Value::String(text) })
}

impl<'de> Visitor<'de> for Text<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_bool<E>(self, given: bool) -> Result<(), E> {
        write::value(self.0, &Value::Bool(given));
        Ok(())
    }

    fn visit_i64<E>(self, number: i64) -> Result<(), E> {
        write::value(self.0, &number.into());
        Ok(())
    }

    fn visit_u64<E>(self, number: u64) -> Result<(), E> {
        write::value(self.0, &number.into());
        Ok(())
    }

    fn visit_f64<E>(self, number: f64) -> Result<(), E> {
        write::value(self.0, &Number::from_f64(number).map_or(Value::Null, Value::Number));
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        write::text(self.0, text);
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        write::value(self.0, &Value::Null);
        Ok(())
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<(), E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<(), A::Error> {
        self.0.push(b'[');
        let start = self.0.len();
        loop {
            let before = self.0.len();
            if before > start {
                self.0.push(b',');
            }
            if access.next_element_seed(Text(self.0))?.is_none() {
                self.0.truncate(before);
                break;
            }
        }
        self.0.push(b']');
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<(), A::Error> {
        self.0.push(b'{');
        let start = self.0.len();
        loop {
            let before = self.0.len();
            if before > start {
                self.0.push(b',');
            }
            if access.next_key_seed(Text(self.0))?.is_none() {
                self.0.truncate(before);
                break;
            }
            self.0.push(b':');
            access.next_value_seed(Text(self.0))?;
        }
        self.0.push(b'}');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_value_is_read_as_the_text_it_would_be_written_as() {
        for given in [
            json!({"f:spec": {".": {}, "k:{\"name\":\"a\"}": {"f:image": {}}, "v:\"é\\n\"": {}}}),
            json!([]),
            json!([1, -1, 1.5, u64::MAX, true, false, null, "a\"\u{1}", [[]], {}, {"a": [{}]}]),
            json!("text"),
            json!(7),
        ] {
            let written = serde_json::to_string_pretty(&given).expect("JSON");
            let read = text(&mut serde_json::Deserializer::from_str(&written)).expect("JSON");
            assert_eq!(read, Value::String(given.to_string()));
            assert_eq!(text(given.clone()).expect("a value"), read);
            assert_eq!(tree(read.as_str().expect("text")), given);
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
