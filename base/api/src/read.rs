//! JSON text into a value, as `serde_json` reads it, in two thirds of the instructions: the bytes are known to be UTF-8
//! once and not string by string, and a map is made of all its members at once, which is less work than finding each
//! one's place in it, in order as they nearly always are.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::depth;
use crate::{managers, word};

/// Reads one whole document.
pub fn document(json: &[u8]) -> Result<Value, serde_json::Error> {
    whole(json, Any::STORED)
}

/// Reads JSON that came in as a part of something else, with what that has left of its depth.
pub(crate) fn document_within(json: &[u8], levels: usize) -> Result<Value, serde_json::Error> {
    whole(json, Any::within(levels))
}

/// Reads one object, its managers' fields as text.
pub(crate) fn object(json: &[u8]) -> Result<Map<String, Value>, serde_json::Error> {
    match whole(json, Any { place: Place::Object, ..Any::STORED })? {
        Value::Object(fields) => Ok(fields),
        _ => Err(serde_json::Error::custom("the text is no object")),
    }
}

fn whole(json: &[u8], seed: Any) -> Result<Value, serde_json::Error> {
    let text = std::str::from_utf8(json).map_err(serde_json::Error::custom)?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = seed.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// The texts of some members of an object's text, each `None` where there is no such member. Written as this project
/// writes it, without spaces; `None` for other text. What else the object holds is passed over and not checked, and what
/// comes after the last of them not looked at.
pub fn members<'a, const N: usize>(object: &'a [u8], names: [&str; N]) -> Option<[Option<&'a [u8]>; N]> {
    let mut found = [None; N];
    for member in MemberTexts::of(object)? {
        let (key, value) = member?;
        if let Some(at) = names.iter().position(|name| name.as_bytes() == key) {
            found[at] = Some(value);
            if found.iter().all(Option::is_some) {
                break;
            }
        }
    }
    Some(found)
}

/// The members of an object's text: the name as it is written between its quotes, and the text of the value. `None`,
/// and it is over, where the text is not as this project writes it.
pub struct MemberTexts<'a> {
    /// From the next member's name on; nothing after the last one.
    rest: Option<&'a [u8]>,
}

impl<'a> MemberTexts<'a> {
    pub fn of(object: &'a [u8]) -> Option<MemberTexts<'a>> {
        let inner = object.strip_prefix(b"{")?;
        Some(MemberTexts { rest: (inner.first() != Some(&b'}')).then_some(inner) })
    }

    fn step(&mut self, rest: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let (key, after) = rest.split_at(text_length(rest)?);
        let value = after.strip_prefix(b":")?;
        let (value, after) = value.split_at(value_length(value)?);
        match after.first()? {
            b',' => self.rest = Some(&after[1..]),
            b'}' => {}
            _ => return None,
        }
        Some((&key[1..key.len() - 1], value))
    }
}

impl<'a> Iterator for MemberTexts<'a> {
    type Item = Option<(&'a [u8], &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.rest.take()?;
        Some(self.step(rest))
    }
}

/// The text of a document without the members that a path leads to; `*` leads to every element of a list. Written as this
/// project writes it, see [`members`]; what is left out is not checked. The text is gone through once, however long the path.
pub fn without(document: &[u8], path: &[&str]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut rest = document;
    copy_without(&mut out, &mut rest, path)?;
    rest.is_empty().then_some(out)
}

/// Copies the value that `rest` begins with, and leaves in `rest` what follows it.
fn copy_without(out: &mut Vec<u8>, rest: &mut &[u8], path: &[&str]) -> Option<()> {
    match (rest.first()?, path) {
        (b'[', ["*", path @ ..]) => {
            out.push(take(rest, 1)?[0]);
            while *rest.first()? != b']' {
                copy_without(out, rest, path)?;
                if *rest.first()? == b',' {
                    out.push(take(rest, 1)?[0]);
                }
            }
            out.push(take(rest, 1)?[0]);
        }
        (b'{', [name, path @ ..]) => copy_members_without(out, rest, name, path)?,
        _ => out.extend_from_slice(take_value(rest)?),
    }
    Some(())
}

fn copy_members_without(out: &mut Vec<u8>, rest: &mut &[u8], name: &str, path: &[&str]) -> Option<()> {
    out.push(take(rest, 1)?[0]);
    let begin = out.len();
    while *rest.first()? != b'}' {
        let key = take(rest, text_length(rest)?)?;
        if take(rest, 1)? != b":" {
            return None;
        }
        let is_on_path = &key[1..key.len() - 1] == name.as_bytes();
        if is_on_path && path.is_empty() {
            take_value(rest)?;
        } else {
            if out.len() > begin {
                out.push(b',');
            }
            out.extend_from_slice(key);
            out.push(b':');
            copy_without(out, rest, if is_on_path { path } else { &[] })?;
        }
        if *rest.first()? == b',' {
            take(rest, 1)?;
        }
    }
    out.push(take(rest, 1)?[0]);
    Some(())
}

/// Nothing is no value, or text that is none would be looked at for ever.
fn take_value<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = value_length(rest).filter(|length| *length > 0)?;
    take(rest, length)
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(taken)
}

fn value_length(json: &[u8]) -> Option<usize> {
    let mut depth = 0;
    let mut at = 0;
    loop {
        match json.get(at)? {
            b'"' => {
                at += text_length(&json[at..])?;
                if depth == 0 {
                    return Some(at);
                }
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 0 => return Some(at),
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            b',' if depth == 0 => return Some(at),
            _ => {}
        }
        at += 1;
    }
}

/// Of a string, with its quotes.
fn text_length(json: &[u8]) -> Option<usize> {
    json.first().filter(|first| **first == b'"')?;
    let mut at = 1;
    loop {
        at += quote_or_escape(json.get(at..)?)? + 1;
        match json[at - 1] {
            b'"' => return Some(at),
            _ => at += 1,
        }
    }
}

/// Where the first quote or backslash is. Eight bytes are looked at together: most strings end within the second eight.
fn quote_or_escape(bytes: &[u8]) -> Option<usize> {
    let (words, rest) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let marked = word::equal(word, b'"') | word::equal(word, b'\\');
        if marked != 0 {
            return Some(index * 8 + marked.trailing_zeros() as usize / 8);
        }
    }
    let found = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
    Some(words.len() * 8 + found)
}

/// Any value; of members of the same name the last counts.
#[derive(Clone, Copy)]
pub(crate) struct Any {
    place: Place,
    /// How many levels may follow.
    levels: usize,
}

impl Any {
    /// What is stored was checked when it came in. The parser has a limit of its own.
    const STORED: Any = Any::within(usize::MAX);

    pub const fn within(levels: usize) -> Any {
        Any { place: Place::Anywhere, levels }
    }

    fn inside<E: Error>(self) -> Result<Any, E> {
        let levels = self.levels.checked_sub(1).ok_or_else(|| E::custom(depth::TOO_DEEP))?;
        Ok(Any { levels, ..self })
    }
}

/// Where a value stands, as far as that matters for how it is read.
#[derive(Clone, Copy)]
enum Place {
    Anywhere,
    Object,
    Metadata,
    Managers,
    Manager,
    ManagersFields,
}

impl Place {
    fn of_member(self, name: &str) -> Place {
        match (self, name) {
            (Place::Object, "metadata") => Place::Metadata,
            (Place::Metadata, managers::FIELD) => Place::Managers,
            (Place::Manager, managers::FIELDS_V1) => Place::ManagersFields,
            _ => Place::Anywhere,
        }
    }
}

impl<'de> DeserializeSeed<'de> for Any {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.place {
            Place::ManagersFields => managers::text(deserializer),
            _ => deserializer.deserialize_any(self),
        }
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
        let place = if matches!(self.place, Place::Managers) { Place::Manager } else { Place::Anywhere };
        let inside = Any { place, ..self.inside()? };
        while let Some(item) = access.next_element_seed(inside)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut members = Members::default();
        let inside: Any = self.inside()?;
        while let Some(name) = access.next_key::<String>()? {
            let place = self.place.of_member(&name);
            members.add(name, access.next_value_seed(Any { place, ..inside })?);
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

    /// For the rare member that is given twice: it looks at all of them.
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

    #[test]
    fn members_are_found_without_reading_the_others() {
        let json = br#"{"a":"}\"{\\","b":[{"c":[1,{}]},"]"],"c":-1.5,"d":null,"e":{},"":"","f":{"c":2}}"#;
        let whole: Value = serde_json::from_slice(json).expect("JSON");
        for (name, value) in whole.as_object().expect("an object") {
            let [found, none] = members(json, [name, "g"]).expect("our text");
            assert_eq!(found.map(String::from_utf8_lossy), Some(value.to_string().into()), "{name}");
            assert_eq!(none, None);
        }
        assert_eq!(members(json, ["f", "d"]), Some([Some(&br#"{"c":2}"#[..]), Some(b"null")]));
        assert_eq!(members(b"{}", ["a"]), Some([None]));
        for cut in 0..json.len() {
            assert_eq!(members(&json[..cut], ["g"]), None);
        }
        assert_eq!(members(br#"{ "a": 1}"#, ["a"]), None, "others' spaces");
        assert_eq!(members(b"[1]", ["a"]), None);
    }

    #[test]
    fn the_value_at_a_path_is_removed_from_the_text() {
        let json = br#"{"a":{"b":[{"c":{"d":"}]"},"e":1},{"c":[]},3,{"e":2,"c":null},{"f":{"c":1}}],"c":1},"c":{"a":2},"g":[]}"#;
        let check = |path: &[&str], expected: &str| {
            let left = without(json, path).map(|text| String::from_utf8(text).expect("text"));
            assert_eq!(left.as_deref(), Some(expected), "{path:?}");
        };
        check(&["a"], r#"{"c":{"a":2},"g":[]}"#);
        check(&["c", "a"], &String::from_utf8_lossy(json).replace(r#"{"a":2}"#, "{}"));
        let kept = r#"{"a":{"b":[{"e":1},{},3,{"e":2},{"f":{"c":1}}],"c":1},"c":{"a":2},"g":[]}"#;
        check(&["a", "b", "*", "c"], kept);
        for nowhere in [&["x"][..], &["a", "x"], &["a", "c", "x"], &["g", "*", "x"], &["a", "*", "b"], &[]] {
            check(nowhere, &String::from_utf8_lossy(json));
        }
        for cut in 0..json.len() {
            assert_eq!(without(&json[..cut], &["a", "b", "*", "c"]), None);
        }
        for broken in ["[}", "[1}", "[", "[1"] {
            assert_eq!(without(broken.as_bytes(), &["*", "a"]), None, "{broken}");
        }
        for broken in
            ["{]", r#"{"a"}"#, r#"{"a":}"#, r#"{"a":]}"#, "{} ", r#"{"a":[}}"#, r#"{"a":[1}}"#, "{1}"]
        {
            assert_eq!(without(broken.as_bytes(), &["a", "*", "b"]), None, "{broken}");
        }
    }

    #[test]
    fn a_string_ends_where_its_quote_is() {
        for (length, place) in (0..20).flat_map(|length| (0..=length).map(move |place| (length, place))) {
            for inner in ["", "\\\"", "\\\\", "!", "#", "[", "]", "\u{a2}\u{dc}"] {
                let mut text = "x".repeat(length);
                text.insert_str(place, inner);
                let quoted = format!("\"{text}\"");
                for after in ["", ",\"\"", "\"", "\\"] {
                    let given = format!("{quoted}{after}");
                    assert_eq!(text_length(given.as_bytes()), Some(quoted.len()), "{given}");
                }
                assert_eq!(
                    text_length(&quoted.as_bytes()[..quoted.len() - 1]),
                    None,
                    "{quoted} without its end"
                );
            }
        }
    }
}
