//! `openAPIV3Schema` → nodes.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::{
    ATOMIC_MAP, Additional, Bound, Bounds, DEFAULTS, EMBEDDED, EMBEDS, INT_OR_STRING, Kind, List, Logic,
    MAX_DEPTH, More, NULLABLE, Node, PRESERVE_UNKNOWN, Ref, Rule, Sizes, Text, UNIQUE_ITEMS,
};
use crate::format::Format;

pub fn read(schema: &Value) -> Result<Ref, String> {
    Reader::default().node(schema, 0)
}

/// Keeps each node and each text once.
#[derive(Default)]
struct Reader {
    nodes: HashMap<u64, Vec<Ref>>,
    texts: HashSet<Text>,
}

impl Reader {
    fn node(&mut self, schema: &Value, depth: usize) -> Result<Ref, String> {
        if depth > MAX_DEPTH {
            return Err(format!("the schema nests more than {MAX_DEPTH} levels deep"));
        }
        let nothing = Map::new();
        let schema = match schema {
            Value::Null => &nothing,
            schema => schema.as_object().ok_or("a schema must be an object")?,
        };
        if schema.contains_key("$ref") {
            return Err("the schema refers to another ($ref)".to_string());
        }
        let kind = text_of(schema, "type").unwrap_or_default();
        let kind = Kind::named(kind).ok_or_else(|| format!("unknown type {kind:?}"))?;
        let mut node = Node::new(kind);
        for (name, flag) in FLAGS {
            if schema.get(*name).and_then(Value::as_bool) == Some(true) {
                node.flags |= flag;
            }
        }
        node.flags |= if text_of(schema, "x-kubernetes-map-type") == Some("atomic") { ATOMIC_MAP } else { 0 };
        node.list = match text_of(schema, "x-kubernetes-list-type") {
            Some("atomic") => List::Atomic,
            Some("set") => List::Set,
            Some("map") => List::Map,
            _ => List::Unset,
        };
        self.children(&mut node, schema, depth)?;
        let more = self.more(&node, schema, depth)?;
        node.flags |= if more.default.is_some() { DEFAULTS } else { 0 };
        node.flags |= if node.is(EMBEDDED) { EMBEDS } else { 0 };
        let below = node.properties.iter().map(|(_, property)| property).chain(&node.inner);
        node.flags |= below.fold(0, |flags, below| flags | below.flags & (DEFAULTS | EMBEDS));
        node.set_more(more);
        Ok(self.shared(node))
    }

    fn children(&mut self, node: &mut Node, schema: &Map<String, Value>, depth: usize) -> Result<(), String> {
        if let Some(Value::Object(properties)) = schema.get("properties") {
            let mut read = Vec::with_capacity(properties.len());
            for (name, property) in properties {
                read.push((self.text(name), self.node(property, depth + 1)?));
            }
            read.sort_by(|a, b| a.0.cmp(&b.0));
            node.properties = read.into();
        }
        match schema.get("items") {
            None | Some(Value::Null) => {}
            Some(Value::Array(_)) => return Err("items must be a schema, but is an array".to_string()),
            Some(items) => node.inner = Some(self.node(items, depth + 1)?),
        }
        match schema.get("additionalProperties") {
            None | Some(Value::Null) => {}
            Some(Value::Bool(true)) => node.additional = Additional::Yes,
            Some(Value::Bool(false)) => node.additional = Additional::No,
            Some(values) => {
                // Only one of the two can be of use: a value is an array or an object.
                let read = self.node(values, depth + 1)?;
                if node.kind != Kind::Array {
                    node.inner = Some(read);
                    node.additional = Additional::Schema;
                }
            }
        }
        Ok(())
    }

    fn more(&mut self, node: &Node, schema: &Map<String, Value>, depth: usize) -> Result<More, String> {
        let number = |name: &str| schema.get(name).and_then(Value::as_f64);
        let count = |name: &str| schema.get(name).and_then(Value::as_i64);
        let bound = |name: &str, exclusive: &str| {
            let exclusive = schema.get(exclusive).and_then(Value::as_bool).unwrap_or(false);
            number(name).map(|value| Bound { value, exclusive })
        };
        let bounds = Bounds {
            maximum: bound("maximum", "exclusiveMaximum"),
            minimum: bound("minimum", "exclusiveMinimum"),
            multiple_of: number("multipleOf"),
        };
        let sizes = Sizes {
            max_length: count("maxLength"),
            min_length: count("minLength"),
            max_items: count("maxItems"),
            min_items: count("minItems"),
            max_properties: count("maxProperties"),
            min_properties: count("minProperties"),
        };
        let format = text_of(schema, "format");
        let kind = if node.is(INT_OR_STRING) { None } else { Some(node.kind) };
        Ok(More {
            format: format.and_then(|name| Some((Format::named(name, kind)?, self.text(name)))),
            bounds: (bounds != Bounds::default()).then(|| Box::new(bounds)),
            sizes: (sizes != Sizes::default()).then(|| Box::new(sizes)),
            pattern: text_of(schema, "pattern").filter(|text| !text.is_empty()).map(|text| self.text(text)),
            values: schema.get("enum").and_then(Value::as_array).cloned().unwrap_or_default().into(),
            required: self.texts(schema, "required"),
            default: schema.get("default").filter(|value| !value.is_null()).cloned().map(Box::new),
            list_keys: self.texts(schema, "x-kubernetes-list-map-keys"),
            logic: self.logic(schema, depth)?,
            rules: self.rules(schema),
        })
    }

    fn logic(&mut self, schema: &Map<String, Value>, depth: usize) -> Result<Option<Box<Logic>>, String> {
        let mut several = |name: &str| -> Result<Box<[Ref]>, String> {
            let schemas = schema.get(name).and_then(Value::as_array).into_iter().flatten();
            schemas.map(|schema| self.node(schema, depth + 1)).collect()
        };
        let mut logic = Logic {
            all_of: several("allOf")?,
            any_of: several("anyOf")?,
            one_of: several("oneOf")?,
            not: None,
        };
        if let Some(not) = schema.get("not").filter(|not| !not.is_null()) {
            logic.not = Some(self.node(not, depth + 1)?);
        }
        Ok((logic != Logic::default()).then(|| Box::new(logic)))
    }

    fn rules(&mut self, schema: &Map<String, Value>) -> Box<[Rule]> {
        let rules = schema.get("x-kubernetes-validations").and_then(Value::as_array).into_iter().flatten();
        rules
            .filter_map(Value::as_object)
            .map(|rule| {
                let mut text =
                    |name: &str| text_of(rule, name).filter(|text| !text.is_empty()).map(|t| self.text(t));
                Rule {
                    rule: text("rule").unwrap_or_default(),
                    message: text("message"),
                    message_expression: text("messageExpression"),
                    reason: text("reason"),
                    field_path: text("fieldPath"),
                    optional_old_self: rule.get("optionalOldSelf").and_then(Value::as_bool),
                }
            })
            .collect()
    }

    fn texts(&mut self, schema: &Map<String, Value>, name: &str) -> Box<[Text]> {
        let texts = schema.get(name).and_then(Value::as_array).into_iter().flatten();
        texts.filter_map(Value::as_str).map(|text| self.text(text)).collect()
    }

    fn text(&mut self, text: &str) -> Text {
        if let Some(have) = self.texts.get(text) {
            return have.clone();
        }
        let text: Text = Arc::from(text);
        self.texts.insert(text.clone());
        text
    }

    /// The node that is already there, or this one.
    fn shared(&mut self, node: Node) -> Ref {
        let alike = self.nodes.entry(fingerprint(&node)).or_default();
        if let Some(have) = alike.iter().find(|have| ***have == node) {
            return have.clone();
        }
        let node = Ref::new(node);
        alike.push(node.clone());
        node
    }
}

const FLAGS: &[(&str, u8)] = &[
    ("nullable", NULLABLE),
    ("x-kubernetes-preserve-unknown-fields", PRESERVE_UNKNOWN),
    ("x-kubernetes-embedded-resource", EMBEDDED),
    ("x-kubernetes-int-or-string", INT_OR_STRING),
    ("uniqueItems", UNIQUE_ITEMS),
];

fn text_of<'v>(schema: &'v Map<String, Value>, name: &str) -> Option<&'v str> {
    schema.get(name)?.as_str()
}

/// Equal nodes have the same; of the rare parts only those that differ most are in it.
fn fingerprint(node: &Node) -> u64 {
    let mut hasher = DefaultHasher::new();
    (node.kind, node.list, node.additional, node.flags).hash(&mut hasher);
    for (name, property) in &node.properties {
        (name, property.address()).hash(&mut hasher);
    }
    node.inner.as_ref().map(Ref::address).hash(&mut hasher);
    let more = node.more();
    (&more.pattern, &more.required, more.values.len(), more.rules.len()).hash(&mut hasher);
    more.format.as_ref().map(|(_, name)| name).hash(&mut hasher);
    if let Some(bounds) = &more.bounds {
        for bound in [bounds.maximum, bounds.minimum].into_iter().flatten() {
            bound.value.to_bits().hash(&mut hasher);
        }
    }
    if let Some(sizes) = &more.sizes {
        (sizes.max_length, sizes.max_items, sizes.min_length).hash(&mut hasher);
    }
    for value in &more.values {
        value.as_str().hash(&mut hasher);
    }
    for node in more.logic.iter().flat_map(|logic| logic.iter()) {
        node.address().hash(&mut hasher);
    }
    hasher.finish()
}
