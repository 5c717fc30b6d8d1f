//! Reading messages: bounded in depth, every length checked, and no byte skipped.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Number, Value};

use super::{Error, PREFIX, WireType, error, wire_type};
use crate::depth;
use crate::read;
use crate::time::{self, Precision};
use crate::types::{Either, Field, SchemaOr, Shape, Type, Types, Wire};
use crate::{duration, quantity, zero};

pub struct Envelope<'b> {
    pub api_version: String,
    pub kind: String,
    pub message: &'b [u8],
}

pub fn envelope(bytes: &[u8]) -> Result<Envelope<'_>, Error> {
    let unknown = match bytes.strip_prefix(PREFIX) {
        Some(b"") => return Err(error("empty body")),
        Some(unknown) => unknown,
        None if bytes.is_empty() => return Err(error("empty data")),
        None => {
            return Err(error(
                "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]",
            ));
        }
    };
    let mut envelope = Envelope { api_version: String::new(), kind: String::new(), message: &[] };
    let mut reader = Reader(unknown);
    while let Some((tag, wire)) = reader.key()? {
        match tag {
            1 => {
                let mut meta = Reader(reader.bytes(wire)?);
                while let Some((tag, wire)) = meta.key()? {
                    match tag {
                        1 => envelope.api_version = text(meta.bytes(wire)?),
                        2 => envelope.kind = text(meta.bytes(wire)?),
                        _ => return Err(error(format!("the type has no field {tag}"))),
                    }
                }
            }
            2 => envelope.message = reader.bytes(wire)?,
            3 if reader.bytes(wire)?.is_empty() => {}
            4 => {
                let content_type = reader.bytes(wire)?;
                if !content_type.is_empty() && content_type != super::CONTENT_TYPE.as_bytes() {
                    return Err(error(format!("the envelope holds {}", text(content_type))));
                }
            }
            _ => return Err(error(format!("the envelope has an unknown field {tag}"))),
        }
    }
    Ok(envelope)
}

/// Reads a message that nests at most `depth` levels, those of documents inside it included.
pub fn message(bytes: &[u8], ty: &Type, types: &Types, depth: usize) -> Result<Map<String, Value>, Error> {
    let mut map = Map::new();
    whole(&mut map, bytes, ty, types, depth)?;
    Ok(map)
}

/// Reads a message that is a JSON object of its own.
fn whole(
    map: &mut Map<String, Value>,
    bytes: &[u8],
    ty: &Type,
    types: &Types,
    depth: usize,
) -> Result<(), Error> {
    fields(map, bytes, ty, types, depth)?;
    zero::fill(map, ty, types);
    Ok(())
}

fn fields(
    map: &mut Map<String, Value>,
    bytes: &[u8],
    ty: &Type,
    types: &Types,
    depth: usize,
) -> Result<(), Error> {
    let depth = inside(depth)?;
    let mut reader = Reader(bytes);
    while let Some((tag, wire)) = reader.key()? {
        let place = ty
            .wire
            .binary_search_by_key(&tag, Wire::tag)
            .map_err(|_| error(format!("{} has no field {tag}", ty.name)))?;
        match &ty.wire[place] {
            Wire::Inline { message, .. } => {
                fields(map, reader.bytes(wire)?, types.get(*message), types, depth)?;
            }
            Wire::Field { index, .. } => field(map, &ty.fields[*index], &mut reader, wire, types, depth)?,
        }
    }
    Ok(())
}

fn field(
    map: &mut Map<String, Value>,
    field: &Field,
    reader: &mut Reader<'_>,
    wire: WireType,
    types: &Types,
    depth: usize,
) -> Result<(), Error> {
    let name = field.name.as_ref();
    match &field.shape {
        Shape::List(element) => {
            let depth = inside(depth)?;
            let items = match map.get_mut(name) {
                Some(Value::Array(items)) => items,
                _ => {
                    map.insert(name.to_string(), Value::Array(Vec::new()));
                    let Some(Value::Array(items)) = map.get_mut(name) else {
                        unreachable!("inserted a list above")
                    };
                    items
                }
            };
            if wire == WireType::Bytes && wire_type(element) != WireType::Bytes {
                // numbers may also come packed into one field
                let mut packed = Reader(reader.bytes(wire)?);
                while !packed.0.is_empty() {
                    items.push(value(element, &mut packed, wire_type(element), types, depth)?);
                }
            } else {
                items.push(value(element, reader, wire, types, depth)?);
            }
        }
        Shape::Map(element) => {
            let depth = inside(depth)?;
            let (key, value) = entry(element, reader.bytes(wire)?, types, depth)?;
            match map.get_mut(name) {
                Some(Value::Object(entries)) => {
                    entries.insert(key, value);
                }
                _ => {
                    map.insert(name.to_string(), Value::Object(Map::from_iter([(key, value)])));
                }
            }
        }
        shape => {
            let read = value(shape, reader, wire, types, depth)?;
            if zero::is_left_out(field, &read) {
                map.remove(name);
            } else {
                map.insert(name.to_string(), read);
            }
        }
    }
    Ok(())
}

fn inside(depth: usize) -> Result<usize, Error> {
    depth.checked_sub(1).ok_or_else(|| error(depth::TOO_DEEP))
}

fn entry(element: &Shape, bytes: &[u8], types: &Types, depth: usize) -> Result<(String, Value), Error> {
    let mut key = String::new();
    let mut read = None;
    let mut reader = Reader(bytes);
    while let Some((tag, wire)) = reader.key()? {
        match tag {
            1 => key = text(reader.bytes(wire)?),
            2 => read = Some(value(element, &mut reader, wire, types, depth)?),
            _ => return Err(error(format!("a map entry has no field {tag}"))),
        }
    }
    Ok((key, read.unwrap_or_else(|| zero::of_shape(element, types))))
}

fn value(
    shape: &Shape,
    reader: &mut Reader<'_>,
    wire: WireType,
    types: &Types,
    depth: usize,
) -> Result<Value, Error> {
    Ok(match shape {
        Shape::Bool => Value::Bool(reader.varint_of(wire)? != 0),
        Shape::Int32 => Value::from(reader.varint_of(wire)? as i32),
        Shape::Int64 => Value::from(reader.varint_of(wire)? as i64),
        Shape::Double => {
            let number = reader.fixed64(wire)?;
            Value::Number(
                Number::from_f64(number).ok_or_else(|| error(format!("{number} is no JSON number")))?,
            )
        }
        Shape::String => Value::String(text(reader.bytes(wire)?)),
        Shape::Bytes => Value::String(STANDARD.encode(reader.bytes(wire)?)),
        Shape::Struct(id) => {
            let ty = types.get(*id);
            let bytes = reader.bytes(wire)?;
            match ty.either {
                Some(either) => either_value(either, bytes, types, depth)?,
                None => {
                    let mut map = Map::new();
                    whole(&mut map, bytes, ty, types, depth)?;
                    Value::Object(map)
                }
            }
        }
        _ => nested(shape, reader.bytes(wire)?, depth)?,
    })
}

/// A value that is a message on the wire but a scalar, or JSON bytes, in the table.
fn nested(shape: &Shape, bytes: &[u8], depth: usize) -> Result<Value, Error> {
    let mut reader = Reader(bytes);
    let (mut kind, mut number, mut string, mut nanos) = (0, 0i64, String::new(), 0);
    let mut raw: Option<&[u8]> = None;
    let mut strings = Vec::new();
    while let Some((tag, wire)) = reader.key()? {
        match (shape, tag) {
            (Shape::Quantity, 1) => string = text(reader.bytes(wire)?),
            (Shape::IntOrString, 1) => kind = reader.varint_of(wire)?,
            (Shape::IntOrString, 2) => number = (reader.varint_of(wire)? as i32).into(),
            (Shape::IntOrString, 3) => string = text(reader.bytes(wire)?),
            (Shape::Time | Shape::MicroTime | Shape::Duration, 1) => number = reader.varint_of(wire)? as i64,
            (Shape::Time | Shape::MicroTime, 2) => nanos = reader.varint_of(wire)? as i32,
            (Shape::Raw | Shape::Json | Shape::FieldsV1, 1) => raw = Some(reader.bytes(wire)?),
            (Shape::ExtraValue, 1) => strings.push(Value::String(text(reader.bytes(wire)?))),
            _ => return Err(error(format!("{shape:?} has no field {tag}"))),
        }
    }
    Ok(match shape {
        Shape::Quantity if string.is_empty() => Value::from("0"),
        Shape::Quantity => {
            Value::from(quantity::canonical(&string).map_err(|why| error(why.to_string()))?.into_owned())
        }
        Shape::IntOrString if kind == 1 => Value::String(string),
        Shape::IntOrString => Value::from(number),
        Shape::Time | Shape::MicroTime if bytes.is_empty() => Value::Null,
        Shape::Time => instant(number, 0, Precision::Seconds)?,
        Shape::MicroTime => instant(number, nanos, Precision::Micros)?,
        Shape::Duration => Value::String(duration::format(number)),
        Shape::ExtraValue => Value::Array(strings),
        _ => match raw {
            None | Some(b"") => Value::Null,
            Some(raw) if *shape == Shape::Raw && super::is_envelope(raw) => {
                super::decode_within(raw, depth).map_err(|why| error(why.message))?.1.into_value()
            }
            Some(raw) => {
                // A set of fields stands beside the object and is no part of its depth, as in JSON.
                let depth = if *shape == Shape::FieldsV1 { depth::MAX_DEPTH + 1 } else { depth };
                read::document_within(raw, depth).map_err(|why| error(format!("embedded JSON: {why}")))?
            }
        },
    })
}

fn instant(seconds: i64, nanos: i32, precision: Precision) -> Result<Value, Error> {
    let time = Timestamp::new(seconds, nanos).map_err(|_| error(format!("{seconds} is no time")))?;
    if time::is_zero(time) {
        return Ok(Value::Null);
    }
    Ok(Value::String(time::format(time, precision)))
}

fn either_value(either: Either, bytes: &[u8], types: &Types, depth: usize) -> Result<Value, Error> {
    let schema = Shape::Struct(either.schema);
    let mut reader = Reader(bytes);
    let mut allows = false;
    let mut given = None;
    let mut items = Vec::new();
    while let Some((tag, wire)) = reader.key()? {
        match (either.other, tag) {
            (SchemaOr::Bool, 1) => allows = reader.varint_of(wire)? != 0,
            (SchemaOr::Bool, 2) | (SchemaOr::List | SchemaOr::Strings, 1) => {
                given = Some(value(&schema, &mut reader, wire, types, depth)?);
            }
            (SchemaOr::List, 2) => items.push(value(&schema, &mut reader, wire, types, depth)?),
            (SchemaOr::Strings, 2) => items.push(Value::String(text(reader.bytes(wire)?))),
            _ => return Err(error(format!("a schema or something else has no field {tag}"))),
        }
    }
    Ok(match (either.other, given) {
        (SchemaOr::Bool, Some(schema)) => schema,
        (SchemaOr::Bool, None) => Value::Bool(allows),
        (_, Some(schema)) if items.is_empty() => schema,
        (_, None) if items.is_empty() => Value::Null,
        _ => Value::Array(items),
    })
}

/// Text of a client that is not UTF-8 would not survive JSON either; it becomes what JSON makes of it.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn key(&mut self) -> Result<Option<(u32, WireType)>, Error> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let tag = u32::try_from(key >> 3).ok().filter(|tag| *tag > 0);
        let tag = tag.ok_or_else(|| error("illegal field number"))?;
        let wire = match key & 7 {
            0 => WireType::Varint,
            1 => WireType::Fixed64,
            2 => WireType::Bytes,
            other => return Err(error(format!("field {tag} has the unknown wire type {other}"))),
        };
        Ok(Some((tag, wire)))
    }

    fn varint(&mut self) -> Result<u64, Error> {
        let mut value = 0;
        for (position, byte) in self.0.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f) << (7 * position);
            if byte & 0x80 == 0 {
                self.0 = &self.0[position + 1..];
                return Ok(value);
            }
        }
        Err(error(if self.0.len() < 10 { "unexpected EOF" } else { "integer overflow" }))
    }

    fn varint_of(&mut self, wire: WireType) -> Result<u64, Error> {
        if wire != WireType::Varint {
            return Err(error(format!("a number came as {wire:?}")));
        }
        self.varint()
    }

    fn fixed64(&mut self, wire: WireType) -> Result<f64, Error> {
        match (wire, self.0.split_first_chunk::<8>()) {
            (WireType::Fixed64, Some((bytes, rest))) => {
                self.0 = rest;
                Ok(f64::from_le_bytes(*bytes))
            }
            (WireType::Fixed64, None) => Err(error("unexpected EOF")),
            _ => Err(error(format!("a double came as {wire:?}"))),
        }
    }

    fn bytes(&mut self, wire: WireType) -> Result<&'b [u8], Error> {
        if wire != WireType::Bytes {
            return Err(error(format!("a length was expected, {wire:?} came")));
        }
        let length = usize::try_from(self.varint()?).map_err(|_| error("invalid length"))?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or_else(|| error("unexpected EOF"))?;
        self.0 = rest;
        Ok(bytes)
    }
}
