//! Writing messages. The buffer fills from its end towards its start, so the length of a nested
//! message is known when the bytes before it are written, and nothing is measured twice.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::{Error, WireType, error, wire_type};
use crate::types::{Either, Field, Schema, SchemaOr, Shape, Type, Types, Wire};
use crate::{Object, duration, managers, time};

#[derive(Default)]
pub struct Backward {
    buffer: Vec<u8>,
    start: usize,
}

impl Backward {
    pub fn with_capacity(capacity: usize) -> Backward {
        Backward { buffer: vec![0; capacity], start: capacity }
    }

    pub fn len(&self) -> usize {
        self.buffer.len() - self.start
    }

    pub fn into_vec(mut self) -> Vec<u8> {
        self.buffer.drain(..self.start);
        self.buffer
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        if self.start < bytes.len() {
            self.grow(bytes.len());
        }
        self.start -= bytes.len();
        self.buffer[self.start..self.start + bytes.len()].copy_from_slice(bytes);
    }

    fn grow(&mut self, wanted: usize) {
        let used = self.len();
        let size = (self.buffer.len() * 2).max(used + wanted).max(512);
        let mut larger = vec![0; size];
        larger[size - used..].copy_from_slice(&self.buffer[self.start..]);
        self.start = size - used;
        self.buffer = larger;
    }

    fn varint(&mut self, mut value: u64) {
        let mut bytes = [0; 10];
        let mut length = 0;
        while value >= 0x80 {
            bytes[length] = value as u8 | 0x80;
            value >>= 7;
            length += 1;
        }
        bytes[length] = value as u8;
        self.raw(&bytes[..=length]);
    }

    fn key(&mut self, tag: u32, wire_type: WireType) {
        let code = match wire_type {
            WireType::Varint => 0,
            WireType::Fixed64 => 1,
            WireType::Bytes => 2,
        };
        self.varint(u64::from(tag) << 3 | code);
    }

    pub fn number(&mut self, tag: u32, number: i64) {
        self.varint(number as u64);
        self.key(tag, WireType::Varint);
    }

    pub fn double(&mut self, tag: u32, number: f64) {
        self.raw(&number.to_le_bytes());
        self.key(tag, WireType::Fixed64);
    }

    pub fn bytes(&mut self, tag: u32, bytes: &[u8]) {
        self.raw(bytes);
        self.varint(bytes.len() as u64);
        self.key(tag, WireType::Bytes);
    }

    /// Closes a nested message: what was written since `end` is field `tag`.
    pub fn length_since(&mut self, end: usize, tag: u32) {
        self.length(self.len() - end, tag);
    }

    /// Field `tag` is `length` bytes long.
    pub fn length(&mut self, length: usize, tag: u32) {
        self.varint(length as u64);
        self.key(tag, WireType::Bytes);
    }

    /// The message of an object, with its managers where they belong.
    pub fn object(&mut self, object: &Object, schema: &Schema) -> Result<(), Error> {
        let Some(rows) = object.managed_fields() else {
            return self.message(&object.0, schema.root(), &schema.types);
        };
        let mut metadata = object.0.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
        metadata.insert(managers::FIELD.to_string(), rows);
        let metadata = Value::Object(metadata);
        let fields = |name: &str| if name == "metadata" { Some(&metadata) } else { object.0.get(name) };
        self.message_of(&fields, schema.root(), &schema.types)
    }

    pub fn message(&mut self, map: &Map<String, Value>, ty: &Type, types: &Types) -> Result<(), Error> {
        self.message_of(&|name| map.get(name), ty, types)
    }

    fn message_of<'v>(
        &mut self,
        given: &dyn Fn(&str) -> Option<&'v Value>,
        ty: &Type,
        types: &Types,
    ) -> Result<(), Error> {
        if ty.wire.is_empty() && ty.fields.iter().any(|f| !matches!(f.name.as_ref(), "kind" | "apiVersion")) {
            return Err(error(format!("{} has no protobuf form", ty.name)));
        }
        for wire in ty.wire.iter().rev() {
            match wire {
                Wire::Field { tag, index } => {
                    let field = &ty.fields[*index];
                    self.field(*tag, field, given(&field.name), types)
                        .map_err(|error| error.inside(ty, field))?;
                }
                Wire::Inline { tag, message, .. } => {
                    let end = self.len();
                    self.message_of(given, types.get(*message), types)?;
                    self.length_since(end, *tag);
                }
            }
        }
        Ok(())
    }

    fn field(&mut self, tag: u32, field: &Field, value: Option<&Value>, types: &Types) -> Result<(), Error> {
        let value = value.unwrap_or(&Value::Null);
        match (&field.shape, value) {
            (Shape::List(element), Value::Array(items)) => {
                for item in items.iter().rev() {
                    self.value(tag, element, item, types)?;
                }
                Ok(())
            }
            (Shape::Map(element), Value::Object(entries)) => {
                for (key, value) in entries.iter().rev() {
                    let end = self.len();
                    self.value(2, element, value, types)?;
                    self.bytes(1, key.as_bytes());
                    self.length_since(end, tag);
                }
                Ok(())
            }
            // What has no value is not there; anything else is written even when it is zero.
            (Shape::List(_) | Shape::Map(_) | Shape::Bytes, Value::Null) => Ok(()),
            (_, Value::Null) if field.pointer => Ok(()),
            (shape, value) => self.value(tag, shape, value, types),
        }
    }

    fn value(&mut self, tag: u32, shape: &Shape, value: &Value, types: &Types) -> Result<(), Error> {
        match (shape, value) {
            (Shape::String, Value::String(text)) => self.bytes(tag, text.as_bytes()),
            (Shape::String | Shape::Bytes, Value::Null) => self.bytes(tag, b""),
            (Shape::Bytes, Value::String(text)) => {
                let bytes = STANDARD.decode(text).map_err(|why| error(format!("no base64: {why}")))?;
                self.bytes(tag, &bytes);
            }
            (Shape::Bool, Value::Bool(given)) => self.number(tag, (*given).into()),
            (Shape::Bool | Shape::Int32 | Shape::Int64, Value::Null) => self.number(tag, 0),
            (Shape::Int32 | Shape::Int64, Value::Number(number)) => {
                self.number(tag, number.as_i64().ok_or_else(|| error(format!("{number} is no integer")))?)
            }
            (Shape::Double, Value::Number(number)) => {
                self.double(tag, number.as_f64().ok_or_else(|| error(format!("{number} is no double")))?)
            }
            (Shape::Double, Value::Null) => self.double(tag, 0.0),
            _ => {
                debug_assert_eq!(wire_type(shape), WireType::Bytes);
                let end = self.len();
                self.nested(shape, value, types)?;
                self.length_since(end, tag);
            }
        }
        Ok(())
    }

    /// The inside of a value that is a message on the wire.
    fn nested(&mut self, shape: &Shape, value: &Value, types: &Types) -> Result<(), Error> {
        match (shape, value) {
            (Shape::Quantity, Value::String(text)) => self.bytes(1, text.as_bytes()),
            (Shape::Quantity, Value::Null) => self.bytes(1, b"0"),
            (Shape::IntOrString, Value::String(text)) => self.int_or_string(1, 0, text),
            (Shape::IntOrString, Value::Null) => self.int_or_string(0, 0, ""),
            (Shape::IntOrString, Value::Number(number)) => {
                let number = number.as_i64().ok_or_else(|| error(format!("{number} is no integer")))?;
                self.int_or_string(0, number, "");
            }
            (Shape::Time | Shape::MicroTime, Value::Null) => {}
            (Shape::Time | Shape::MicroTime, Value::String(text)) => {
                let time = time::parse(text).ok_or_else(|| error(format!("{text:?} is no time")))?;
                let nanos = match shape {
                    Shape::Time => 0,
                    _ => time.subsec_nanosecond() / 1000 * 1000,
                };
                self.number(2, nanos.into());
                self.number(1, time.as_second());
            }
            (Shape::Duration, Value::Null) => self.number(1, 0),
            (Shape::Duration, Value::String(text)) => {
                let length =
                    duration::parse(text).ok_or_else(|| error(format!("{text:?} is no duration")))?;
                self.number(1, length);
            }
            (Shape::Raw | Shape::Json | Shape::FieldsV1, value) => {
                if !value.is_null() {
                    let json = serde_json::to_vec(value).map_err(|why| error(why.to_string()))?;
                    self.bytes(1, &json);
                }
            }
            (Shape::ExtraValue, Value::Array(items)) => {
                for item in items.iter().rev() {
                    self.value(1, &Shape::String, item, types)?;
                }
            }
            (Shape::ExtraValue, Value::Null) => {}
            (Shape::Struct(id), value) => {
                let ty = types.get(*id);
                match (ty.either, value) {
                    (Some(either), value) => self.either(either, value, types)?,
                    (None, Value::Object(map)) => self.message(map, ty, types)?,
                    (None, Value::Null) => self.message(&Map::new(), ty, types)?,
                    _ => return Err(error(format!("{} is no {}", name(value), ty.short_name()))),
                }
            }
            _ => return Err(error(format!("{} is no {shape:?}", name(value)))),
        }
        Ok(())
    }

    fn int_or_string(&mut self, kind: i64, number: i64, text: &str) {
        self.bytes(3, text.as_bytes());
        self.number(2, number);
        self.number(1, kind);
    }

    fn either(&mut self, either: Either, value: &Value, types: &Types) -> Result<(), Error> {
        let schema = Shape::Struct(either.schema);
        match (either.other, value) {
            (SchemaOr::Bool, Value::Object(_)) => {
                self.value(2, &schema, value, types)?;
                self.number(1, 1);
            }
            (SchemaOr::Bool, Value::Bool(given)) => self.number(1, (*given).into()),
            (SchemaOr::Bool, Value::Null) => self.number(1, 0),
            (SchemaOr::List, Value::Array(items)) => {
                for item in items.iter().rev() {
                    self.value(2, &schema, item, types)?;
                }
            }
            (SchemaOr::Strings, Value::Array(items)) => {
                for item in items.iter().rev() {
                    self.value(2, &Shape::String, item, types)?;
                }
            }
            (_, Value::Object(_)) => self.value(1, &schema, value, types)?,
            (_, Value::Null) => {}
            _ => return Err(error(format!("{} is no schema", name(value)))),
        }
        Ok(())
    }
}

impl Error {
    /// Says where it happened, the innermost place only.
    fn inside(self, ty: &Type, field: &Field) -> Error {
        if self.why.contains(" of io.k8s") {
            return self;
        }
        error(format!("{} in {} of {}", self.why, field.name, ty.name))
    }
}

fn name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a bool",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
