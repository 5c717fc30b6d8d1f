//! Typed views of objects: for judging, never for writing back.
//!
//! A view leaves `metadata.managedFields` out. No rule looks at who owns which field, and reading them would cost as
//! much as reading the rest of a small object.

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, MapAccess, Visitor};
use serde_json::{Error, Map, Value};

/// The object as a `T`. Fails where the JSON does not fit the type. Clients write `null` for a zero time, which
/// no type takes: then it is read again with that time spelt out.
pub fn view<T: DeserializeOwned>(object: &Map<String, Value>) -> Result<T, Error> {
    let read = |map| T::deserialize(Fields { map, part: Part::Object });
    read(object).or_else(|_| {
        let spelt_out = with_zero_times(object);
        T::deserialize(Fields { map: &spelt_out, part: Part::Object })
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Object,
    Metadata,
}

/// Unlike `Value`'s own deserializer this one borrows.
#[derive(Clone, Copy)]
struct Fields<'a> {
    map: &'a Map<String, Value>,
    part: Part,
}

impl<'de> serde::Deserializer<'de> for Fields<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(Walk { fields: self, rest: self.map.iter(), value: None })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

struct Walk<'a> {
    fields: Fields<'a>,
    rest: serde_json::map::Iter<'a>,
    value: Option<(&'a str, &'a Value)>,
}

impl<'de> MapAccess<'de> for Walk<'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let part = self.fields.part;
        let next = self.rest.find(|(key, _)| part == Part::Object || *key != "managedFields");
        self.value = next.map(|(key, value)| (key.as_str(), value));
        let key = self.value.map(|(key, _)| seed.deserialize(BorrowedStrDeserializer::new(key)));
        key.transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        match self.value.take() {
            Some(("metadata", Value::Object(map))) if self.fields.part == Part::Object => {
                seed.deserialize(Fields { map, part: Part::Metadata })
            }
            Some((_, value)) => seed.deserialize(value),
            None => Err(serde::de::Error::custom("a value was asked for before its key")),
        }
    }
}

/// The time of a field that was never set, as Go writes it.
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

fn with_zero_times(map: &Map<String, Value>) -> Map<String, Value> {
    fn spell_out(value: &Value) -> Value {
        match value {
            Value::Object(map) => Value::Object(with_zero_times(map)),
            Value::Array(items) => Value::Array(items.iter().map(spell_out).collect()),
            other => other.clone(),
        }
    }
    let entries = map.iter().map(|(key, value)| match value {
        Value::Null if key.ends_with("Time") || key.ends_with("Timestamp") => (key.clone(), ZERO_TIME.into()),
        value => (key.clone(), spell_out(value)),
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    #[test]
    fn a_view_has_all_but_who_manages_what() {
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "labels": {"managedFields": "x"}, "managedFields": [{"manager": "m"}]},
            "spec": {"containers": [{"name": "c"}]},
        });
        let pod: Pod = view(object.as_object().expect("an object")).expect("a pod");
        assert_eq!(pod.metadata.name.as_deref(), Some("p"));
        assert_eq!(pod.metadata.labels.expect("labels")["managedFields"], "x");
        assert_eq!(pod.metadata.managed_fields, None);
        assert_eq!(pod.spec.expect("a spec").containers[0].name, "c");
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": 3}});
        let error = view::<Pod>(object.as_object().expect("an object")).expect_err("a number is no name");
        assert!(error.to_string().contains("invalid type"), "{error}");
    }
}
