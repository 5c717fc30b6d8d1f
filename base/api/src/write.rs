//! JSON text of a value in memory, byte for byte what `serde_json` writes. Each write makes this text once, of hundreds
//! of short strings: looking at a string eight bytes at a time and calling no generic layer for it takes a third of the
//! instructions.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::types::{Schema, Shape, Type, Types};
use crate::word;

pub fn value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(number) => by_serde(out, number),
        Value::String(string) => text(out, string),
        Value::Array(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                self::value(out, item);
            }
            out.push(b']');
        }
        Value::Object(fields) => object(out, fields),
    }
}

pub fn object(out: &mut Vec<u8>, fields: &Map<String, Value>) {
    members(out, fields.iter());
}

/// An object of these members, in this order.
pub fn members<'a>(out: &mut Vec<u8>, members: impl Iterator<Item = (&'a String, &'a Value)>) {
    out.push(b'{');
    for (index, (name, member)) in members.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        text(out, name);
        out.push(b':');
        value(out, member);
    }
    out.push(b'}');
}

/// An object with its fields in the order they are declared, as upstream's encoder has them; what the rows do not know
/// stands behind. Documents that are made once are written so: some clients look for pieces of their text.
pub fn in_declared_order(out: &mut Vec<u8>, value: &Value, schema: &Schema) {
    structure(out, value, schema.root(), &schema.types);
}

fn structure(out: &mut Vec<u8>, value: &Value, ty: &Type, types: &Types) {
    let Value::Object(fields) = value else { return self::value(out, value) };
    let declared = ty.declared.iter().filter_map(|name| fields.get_key_value(name.as_ref()));
    let others = fields.iter().filter(|(name, _)| ty.field(name).is_none());
    out.push(b'{');
    for (index, (name, member)) in declared.chain(others).enumerate() {
        if index > 0 {
            out.push(b',');
        }
        text(out, name);
        out.push(b':');
        match ty.field(name) {
            Some(field) => shaped(out, member, &field.shape, types),
            None => self::value(out, member),
        }
    }
    out.push(b'}');
}

fn shaped(out: &mut Vec<u8>, value: &Value, shape: &Shape, types: &Types) {
    match (shape, value) {
        (Shape::Struct(id), _) => structure(out, value, types.get(*id), types),
        (Shape::List(element), Value::Array(items)) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                shaped(out, item, element, types);
            }
            out.push(b']');
        }
        _ => self::value(out, value),
    }
}

pub fn text(out: &mut Vec<u8>, text: &str) {
    text_after(out, "", text);
}

/// The text after a prefix that needs no escapes.
pub fn text_after(out: &mut Vec<u8>, prefix: &str, text: &str) {
    if needs_escapes(text.as_bytes()) {
        return by_serde(out, &format!("{prefix}{text}"));
    }
    out.reserve(prefix.len() + text.len() + 2);
    out.push(b'"');
    out.extend_from_slice(prefix.as_bytes());
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

fn by_serde(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    serde_json::to_writer(out, value).expect("a JSON value writes to memory");
}

/// Quotes, backslashes and control characters cannot stand for themselves.
fn needs_escapes(bytes: &[u8]) -> bool {
    // What does not fill a last word is looked at together with some of what was before it.
    if let Some(last) = bytes.last_chunk::<8>() {
        let (words, _) = bytes.as_chunks::<8>();
        return words.iter().chain([last]).any(|word| word_needs_escapes(u64::from_le_bytes(*word)));
    }
    match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        (Some(first), Some(last)) => {
            let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
            word_needs_escapes(u64::from(first) << 32 | u64::from(last))
        }
        _ => bytes.iter().any(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)),
    }
}

fn word_needs_escapes(word: u64) -> bool {
    (word::below(word, 0x20) | word::equal(word, b'"') | word::equal(word, b'\\')) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn written(given: &Value) -> String {
        let mut out = Vec::new();
        value(&mut out, given);
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn every_byte_in_every_place_is_written_as_serde_does() {
        for (length, place) in (1..18).flat_map(|length| (0..length).map(move |place| (length, place))) {
            for c in ('\0'..='\u{ff}').chain(['\u{7ff}', '\u{2028}', '\u{1f600}']) {
                let mut string = "x".repeat(length);
                string.replace_range(place..=place, c.encode_utf8(&mut [0; 4]));
                let given = Value::String(string);
                assert_eq!(written(&given), given.to_string());
            }
        }
    }

    #[test]
    fn fields_stand_in_the_order_they_are_declared() {
        let gvk = crate::kinds::GroupVersionKind::new("", "v1", "APIResourceList");
        let schema = Schema::builtin(&gvk).expect("in the table");
        let resource =
            json!({"kind": "Pod", "verbs": ["get"], "name": "pods", "zz": 1, "singularName": "pod"});
        let list = json!({"resources": [resource], "groupVersion": "v1", "kind": "APIResourceList"});
        let mut out = Vec::new();
        in_declared_order(&mut out, &list, &schema);
        let expected = concat!(
            r#"{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods","singularName":"pod","#,
            r#""kind":"Pod","verbs":["get"],"zz":1}]}"#
        );
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }

    #[test]
    fn whole_values_are_written_as_serde_does() {
        let given = json!({"a": [], "b": {}, "c": [null, true, false, 1, -1, 1.5, u64::MAX, "é\n"], "d\"": {"e": [{}]}});
        assert_eq!(written(&given), given.to_string());
    }
}
