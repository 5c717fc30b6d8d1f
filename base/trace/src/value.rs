//! The small facts a span carries.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A name, a count, a verdict or a revision. Text of up to 22 bytes needs no allocation.
#[derive(Clone)]
pub struct Value(Inner);

#[derive(Clone)]
enum Inner {
    Integer(i64),
    Boolean(bool),
    Short(u8, [u8; SHORT]),
    Long(Box<str>),
}

const SHORT: usize = 22;

impl Value {
    /// Longer text is cut, so that no caller can fill the ring with one error message.
    pub const MAX_TEXT: usize = 256;

    fn text(text: &str) -> Self {
        let text = cut(text);
        let mut bytes = [0; SHORT];
        match bytes.get_mut(..text.len()) {
            Some(short) => {
                short.copy_from_slice(text.as_bytes());
                Value(Inner::Short(text.len() as u8, bytes))
            }
            None => Value(Inner::Long(text.into())),
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match &self.0 {
            Inner::Short(length, bytes) => {
                Some(std::str::from_utf8(&bytes[..usize::from(*length)]).expect("was copied from a str"))
            }
            Inner::Long(text) => Some(text),
            Inner::Integer(_) | Inner::Boolean(_) => None,
        }
    }

    pub fn as_i64(&self) -> Option<i64> {
        match self.0 {
            Inner::Integer(number) => Some(number),
            _ => None,
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        match self.0 {
            Inner::Boolean(truth) => Some(truth),
            _ => None,
        }
    }
}

/// The longest prefix of whole characters within [`Value::MAX_TEXT`].
pub(crate) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(Value::MAX_TEXT)]
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::text(text)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::text(&text)
    }
}

impl From<&String> for Value {
    fn from(text: &String) -> Self {
        Value::text(text)
    }
}

impl From<bool> for Value {
    fn from(truth: bool) -> Self {
        Value(Inner::Boolean(truth))
    }
}

macro_rules! from_integer {
    ($($number:ty)*) => {$(
        impl From<$number> for Value {
            fn from(number: $number) -> Self {
                Value(Inner::Integer(i64::try_from(number).unwrap_or(i64::MAX)))
            }
        }
    )*};
}

from_integer!(i8 i16 i32 i64 isize u8 u16 u32 u64 u128 usize);

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
            && self.as_i64() == other.as_i64()
            && self.as_bool() == other.as_bool()
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Inner::Integer(number) => number.fmt(f),
            Inner::Boolean(truth) => truth.fmt(f),
            Inner::Short(..) | Inner::Long(_) => f.write_str(self.as_str().expect("is text")),
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_str() {
            Some(text) => fmt::Debug::fmt(text, f),
            None => fmt::Display::fmt(self, f),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Inner::Integer(number) => serializer.serialize_i64(*number),
            Inner::Boolean(truth) => serializer.serialize_bool(*truth),
            Inner::Short(..) | Inner::Long(_) => serializer.serialize_str(self.as_str().expect("is text")),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text, an integer or a boolean")
            }

            fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
                Ok(truth.into())
            }

            fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
                Ok(number.into())
            }

            fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
                Ok(number.into())
            }

            fn visit_str<E>(self, text: &str) -> Result<Value, E> {
                Ok(text.into())
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_text_read_back_and_longer_text_is_cut_between_characters() {
        for text in ["", "Ready", "exactly 22 bytes long!", "23 bytes are kept whole"] {
            assert_eq!(Value::from(text).as_str(), Some(text));
        }
        let long = "é".repeat(Value::MAX_TEXT);
        assert_eq!(Value::from(long.as_str()).as_str().map(str::len), Some(Value::MAX_TEXT));
    }

    #[test]
    fn json_keeps_the_type() {
        for value in [Value::from("a"), Value::from(-3), Value::from(true)] {
            let json = serde_json::to_string(&value).unwrap();
            assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value);
        }
    }
}
