//! Reads labels and selectable fields out of an object, or out of its JSON, skipping everything else. It runs once
//! per written object, so it allocates only the requested values.

use std::fmt;

use ferry_api::Object;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use serde_json::{Map, Value};

use crate::strategy::Selectable;

/// Which fields to read: a tree of field names whose leaves are positions in the answer.
#[derive(Debug, Default)]
pub struct Paths {
    root: Node,
    absent: Vec<&'static str>,
    /// The position that has a field's value where its own path leads nowhere.
    otherwise: Vec<Option<usize>>,
}

#[derive(Debug, Default)]
struct Node {
    /// Usually one; a field may have two names.
    leaves: Vec<usize>,
    children: Vec<(Box<str>, Node)>,
    labels: bool,
    /// That it is there is all that counts.
    presence: bool,
}

#[derive(Debug, PartialEq)]
pub struct Peeked {
    pub uninitialized: bool,
    pub labels: Box<[(Box<str>, Box<str>)]>,
    pub fields: Box<[Box<str>]>,
}

impl Paths {
    pub fn new(selectable: &[Selectable]) -> Paths {
        let mut paths = Paths::default();
        paths.root.child("metadata").child("labels").labels = true;
        paths.root.child("metadata").child("initializers").presence = true;
        for (position, field) in selectable.iter().enumerate() {
            let mut node = &mut paths.root;
            for step in field.path.split('.') {
                node = node.child(step);
            }
            node.leaves.push(position);
            paths.absent.push(field.absent);
            let later = &selectable[position + 1..];
            let again = later.iter().position(|other| other.field == field.field);
            paths.otherwise.push(again.map(|offset| position + 1 + offset));
        }
        paths
    }

    pub fn read(&self, json: &[u8]) -> Result<Peeked, serde_json::Error> {
        let mut found = self.nothing_yet();
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        Walk { node: &self.root, found: &mut found }.deserialize(&mut deserializer)?;
        Ok(self.complete(found))
    }

    /// The same, of an object that is still at hand.
    pub fn of(&self, object: &Object) -> Peeked {
        let mut found = self.nothing_yet();
        found.look_into(&self.root, &object.0);
        self.complete(found)
    }

    fn nothing_yet(&self) -> Found {
        Found { labels: Vec::new(), fields: vec![None; self.absent.len()], uninitialized: false }
    }

    fn complete(&self, mut found: Found) -> Peeked {
        for (position, otherwise) in self.otherwise.iter().enumerate() {
            if let (None, Some(other)) = (&found.fields[position], otherwise) {
                found.fields[position] = found.fields[*other].clone();
            }
        }
        let fields = found
            .fields
            .into_iter()
            .zip(&self.absent)
            .map(|(value, absent)| value.unwrap_or_else(|| (*absent).into()));
        Peeked { uninitialized: found.uninitialized, labels: found.labels.into(), fields: fields.collect() }
    }
}

impl Node {
    fn child(&mut self, name: &str) -> &mut Node {
        let at = match self.children.iter().position(|(have, _)| **have == *name) {
            Some(at) => at,
            None => {
                self.children.push((name.into(), Node::default()));
                self.children.len() - 1
            }
        };
        &mut self.children[at].1
    }
}

struct Found {
    labels: Vec<(Box<str>, Box<str>)>,
    fields: Vec<Option<Box<str>>>,
    uninitialized: bool,
}

impl Found {
    fn look_into(&mut self, node: &Node, map: &Map<String, Value>) {
        if node.labels {
            let texts =
                map.iter().filter_map(|(key, value)| Some((key.as_str().into(), value.as_str()?.into())));
            self.labels.extend(texts);
            return;
        }
        self.uninitialized |= node.presence;
        for (name, child) in &node.children {
            match map.get(&**name) {
                Some(Value::Object(inner)) => self.look_into(child, inner),
                Some(Value::String(text)) => self.leaf(child, text.as_str()),
                Some(Value::Bool(value)) => self.leaf(child, if *value { "true" } else { "false" }),
                Some(Value::Number(number)) => self.leaf(child, number.to_string()),
                Some(Value::Array(_) | Value::Null) | None => {}
            }
        }
    }

    fn leaf(&mut self, node: &Node, text: impl Into<Box<str>>) {
        if let [first, others @ ..] = node.leaves.as_slice() {
            let text = text.into();
            for position in others {
                self.fields[*position] = Some(text.clone());
            }
            self.fields[*first] = Some(text);
        }
    }
}

struct Walk<'a> {
    node: &'a Node,
    found: &'a mut Found,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Walk<'_> {
    fn leaf(self, text: impl Into<Box<str>>) {
        self.found.leaf(self.node, text);
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of the API")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.leaf(text);
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.leaf(if value { "true" } else { "false" });
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.leaf(value.to_string());
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.leaf(value.to_string());
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.leaf(value.to_string());
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        if self.node.labels {
            while let Some((key, value)) = map.next_entry::<Box<str>, Box<str>>()? {
                self.found.labels.push((key, value));
            }
            return Ok(());
        }
        self.found.uninitialized |= self.node.presence;
        while let Some(child) = map.next_key_seed(Step(self.node))? {
            match child {
                Some(node) => map.next_value_seed(Walk { node, found: self.found })?,
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// Finds the child that a key leads to, without keeping the key.
struct Step<'a>(&'a Node);

impl<'a, 'de> DeserializeSeed<'de> for Step<'a> {
    type Value = Option<&'a Node>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'a, 'de> Visitor<'de> for Step<'a> {
    type Value = Option<&'a Node>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.0.children.iter().find(|(name, _)| **name == *key).map(|(_, node)| node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static FIELDS: &[Selectable] = &[
        Selectable::new("spec.nodeName", "spec.nodeName", ""),
        Selectable::new("spec.unschedulable", "spec.unschedulable", "false"),
        Selectable::new("status.phase", "status.phase", ""),
    ];

    #[test]
    fn only_what_selectors_ask_for_is_read() {
        let json = br#"{"metadata":{"labels":{"a":"b"},"name":"x"},"spec":{"nodeName":"n","list":[{"nodeName":"other"}]}}"#;
        let peeked = Paths::new(FIELDS).read(json).expect("valid JSON");
        assert_eq!(&*peeked.labels, &[("a".into(), "b".into())]);
        assert_eq!(&*peeked.fields, &["n".into(), "false".into(), Box::from("")]);
    }

    #[test]
    fn an_object_shows_what_its_json_does() {
        static MORE: &[Selectable] = &[
            Selectable::new("spec.nodeName", "spec.nodeName", ""),
            Selectable::new("type", "type", "none"),
            Selectable::new("reportingComponent", "reportingComponent", ""),
            Selectable::new("reportingComponent", "source.component", ""),
            Selectable::new("spec.count", "spec.count", "0"),
            Selectable::new("spec.on", "spec.on", "false"),
        ];
        let paths = Paths::new(MORE);
        for json in [
            r#"{}"#,
            r#"{"metadata":{"labels":{"a":"1","b":"2"},"initializers":{"pending":[]}}}"#,
            r#"{"metadata":{"labels":null},"spec":{"nodeName":"n","count":-7,"on":true},"type":"x"}"#,
            r#"{"spec":{"nodeName":null,"count":1.5,"on":false},"source":{"component":"c"},"type":["x"]}"#,
            r#"{"spec":"none","reportingComponent":"r","source":{"component":"c"}}"#,
        ] {
            let object = Object::read(json.as_bytes()).expect("JSON");
            assert_eq!(paths.of(&object), paths.read(json.as_bytes()).expect("JSON"), "{json}");
        }
    }
}
