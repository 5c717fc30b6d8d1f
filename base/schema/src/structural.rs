//! One version's schema, compact: what validation, pruning and defaulting read, without descriptions.
//!
//! Equal parts of a schema are one [`Node`] (a pod template repeats the same fields many times), so a node
//! is compared by its address once a schema is read. Rare constraints live in [`More`], behind a pointer.

mod read;
mod rows;

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use ferry_api::{GroupVersionKind, Schema};
use serde_json::Value;

use crate::field_path;
use crate::format::Format;

pub(crate) type Text = Arc<str>;

/// Schemas nest at most this deep; every walk over a schema is recursive. Upstream sets no limit of its own.
pub const MAX_DEPTH: usize = 128;

/// One version's schema.
#[derive(Debug, Clone)]
pub struct Structural {
    pub(crate) root: Ref,
}

/// A shared node. Two of them are equal when they are the same node.
#[derive(Debug, Clone)]
pub(crate) struct Ref(Arc<Node>);

/// A schema, or a part of one below `allOf` and its like.
#[derive(Debug, PartialEq)]
pub(crate) struct Node {
    pub kind: Kind,
    pub list: List,
    pub additional: Additional,
    pub flags: u8,
    /// Ordered by name.
    pub properties: Box<[(Text, Ref)]>,
    /// Of the elements of an array, or of the values of a map (see `additional`).
    pub inner: Option<Ref>,
    more: Option<Box<More>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// No type is named.
    Any,
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum List {
    Unset,
    Atomic,
    Set,
    Map,
}

/// What `additionalProperties` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Additional {
    Unset,
    No,
    Yes,
    /// `inner` is the schema.
    Schema,
}

pub(crate) const NULLABLE: u8 = 1;
pub(crate) const PRESERVE_UNKNOWN: u8 = 1 << 1;
pub(crate) const EMBEDDED: u8 = 1 << 2;
pub(crate) const INT_OR_STRING: u8 = 1 << 3;
/// `x-kubernetes-map-type: atomic`.
pub(crate) const ATOMIC_MAP: u8 = 1 << 4;
pub(crate) const UNIQUE_ITEMS: u8 = 1 << 5;
/// A default stands here or below.
pub(crate) const DEFAULTS: u8 = 1 << 6;
/// An embedded resource stands here or below.
pub(crate) const EMBEDS: u8 = 1 << 7;

/// What few nodes have.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct More {
    pub format: Option<(Format, Text)>,
    pub bounds: Option<Box<Bounds>>,
    pub sizes: Option<Box<Sizes>>,
    pub pattern: Option<Text>,
    pub values: Box<[Value]>,
    pub required: Box<[Text]>,
    pub default: Option<Box<Value>>,
    pub list_keys: Box<[Text]>,
    pub logic: Option<Box<Logic>>,
    pub rules: Box<[Rule]>,
}

/// What a number may be.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Bounds {
    pub maximum: Option<Bound>,
    pub minimum: Option<Bound>,
    pub multiple_of: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bound {
    pub value: f64,
    pub exclusive: bool,
}

/// How long a string, an array or a map may be.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Sizes {
    pub max_length: Option<i64>,
    pub min_length: Option<i64>,
    pub max_items: Option<i64>,
    pub min_items: Option<i64>,
    pub max_properties: Option<i64>,
    pub min_properties: Option<i64>,
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Logic {
    pub all_of: Box<[Ref]>,
    pub any_of: Box<[Ref]>,
    pub one_of: Box<[Ref]>,
    pub not: Option<Ref>,
}

/// One of `x-kubernetes-validations`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Rule {
    pub rule: Text,
    pub message: Option<Text>,
    pub message_expression: Option<Text>,
    pub reason: Option<Text>,
    pub field_path: Option<Text>,
    pub optional_old_self: Option<bool>,
}

impl Structural {
    /// Reads the `openAPIV3Schema` of a version: one that [`crate::check::schema`] found no fault with.
    pub fn parse(open_api_v3_schema: &Value) -> Result<Structural, String> {
        read::read(open_api_v3_schema).map(|root| Structural { root })
    }

    /// The schema as field rows, for server-side apply and for decoding what is typed.
    pub fn rows(&self, gvk: &GroupVersionKind) -> Schema {
        rows::rows(&self.root, gvk)
    }

    /// The schema of one field of the root, as a schema of its own: `status` is judged alone.
    pub fn property(&self, name: &str) -> Option<Structural> {
        self.root.property(name).map(|root| Structural { root: root.clone() })
    }

    /// Path and type of the field that a `jsonPath` of `selectableFields` names (`.spec.size` is `spec.size`, an
    /// `integer`); or what is wrong with it.
    pub fn field_at(&self, json_path: &str) -> Result<(String, &'static str), String> {
        let (path, node) = field_path::resolve(json_path, &self.root, false)?;
        Ok((path, node.kind.name()))
    }

    /// Whether fields that the schema does not name are kept at the root.
    pub fn preserves_unknown_fields(&self) -> bool {
        self.root.is(PRESERVE_UNKNOWN)
    }

    /// Bytes of memory that the schema holds.
    pub fn heap_bytes(&self) -> usize {
        let mut seen = Seen::default();
        seen.node(&self.root);
        seen.bytes
    }
}

impl Deref for Ref {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.0
    }
}

impl PartialEq for Ref {
    fn eq(&self, other: &Ref) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Ref {
    pub fn new(node: Node) -> Ref {
        Ref(Arc::new(node))
    }

    /// Stands for the node while the schema lives.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }
}

impl Node {
    pub fn new(kind: Kind) -> Node {
        Node {
            kind,
            list: List::Unset,
            additional: Additional::Unset,
            flags: 0,
            properties: Box::default(),
            inner: None,
            more: None,
        }
    }

    pub fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub fn property(&self, name: &str) -> Option<&Ref> {
        let at = self.properties.binary_search_by(|(have, _)| (**have).cmp(name)).ok()?;
        Some(&self.properties[at].1)
    }

    /// The schema of the elements.
    pub fn items(&self) -> Option<&Ref> {
        if self.additional == Additional::Schema { None } else { self.inner.as_ref() }
    }

    /// The schema of a map's values.
    pub fn values(&self) -> Option<&Ref> {
        if self.additional == Additional::Schema { self.inner.as_ref() } else { None }
    }

    /// The schema of the value under a key.
    pub fn field(&self, name: &str) -> Option<&Ref> {
        self.property(name).or_else(|| self.values())
    }

    pub fn more(&self) -> &More {
        static NOTHING: LazyLock<More> = LazyLock::new(More::default);
        self.more.as_deref().unwrap_or(&NOTHING)
    }

    pub fn set_more(&mut self, more: More) {
        self.more = (more != More::default()).then(|| Box::new(more));
    }

    pub fn default(&self) -> Option<&Value> {
        self.more.as_ref()?.default.as_deref()
    }

    pub fn rules(&self) -> &[Rule] {
        self.more.as_ref().map_or(&[], |more| &more.rules)
    }

    pub fn logic(&self) -> Option<&Logic> {
        self.more.as_ref()?.logic.as_deref()
    }

    pub fn sizes(&self) -> &Sizes {
        static NOTHING: Sizes = Sizes {
            max_length: None,
            min_length: None,
            max_items: None,
            min_items: None,
            max_properties: None,
            min_properties: None,
        };
        self.more.as_ref().and_then(|more| more.sizes.as_deref()).unwrap_or(&NOTHING)
    }

    /// The format as it is written.
    pub fn format(&self) -> Option<&str> {
        self.more.as_ref()?.format.as_ref().map(|(_, name)| &**name)
    }
}

impl Logic {
    pub fn iter(&self) -> impl Iterator<Item = &Ref> {
        self.all_of.iter().chain(&self.any_of).chain(&self.one_of).chain(&self.not)
    }
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Any => "",
            Kind::Object => "object",
            Kind::Array => "array",
            Kind::String => "string",
            Kind::Integer => "integer",
            Kind::Number => "number",
            Kind::Boolean => "boolean",
        }
    }

    pub fn named(name: &str) -> Option<Kind> {
        let all =
            [Kind::Object, Kind::Array, Kind::String, Kind::Integer, Kind::Number, Kind::Boolean, Kind::Any];
        all.into_iter().find(|kind| kind.name() == name)
    }
}

/// Adds up what nodes hold, shared ones once.
#[derive(Default)]
struct Seen {
    nodes: HashSet<usize>,
    texts: HashSet<usize>,
    bytes: usize,
}

/// The two counters before what an `Arc` points to.
const COUNTERS: usize = 2 * size_of::<usize>();

impl Seen {
    fn node(&mut self, node: &Ref) {
        if !self.nodes.insert(node.address()) {
            return;
        }
        self.bytes += COUNTERS + size_of::<Node>() + size_of_val(&*node.properties);
        for (name, property) in &node.properties {
            self.text(name);
            self.node(property);
        }
        node.inner.iter().for_each(|inner| self.node(inner));
        if let Some(more) = &node.more {
            self.more(more);
        }
    }

    fn more(&mut self, more: &More) {
        self.bytes += size_of::<More>()
            + size_of_val(&*more.values)
            + size_of_val(&*more.required)
            + size_of_val(&*more.list_keys)
            + size_of_val(&*more.rules)
            + more.sizes.as_ref().map_or(0, |_| size_of::<Sizes>())
            + more.bounds.as_ref().map_or(0, |_| size_of::<Bounds>());
        more.format.iter().for_each(|(_, name)| self.text(name));
        more.pattern.iter().chain(&more.required).chain(&more.list_keys).for_each(|text| self.text(text));
        self.bytes += more.values.iter().map(heap_of).sum::<usize>();
        self.bytes += more.default.as_ref().map_or(0, |value| size_of::<Value>() + heap_of(value));
        for rule in &more.rules {
            self.text(&rule.rule);
            let rest = [&rule.message, &rule.message_expression, &rule.reason, &rule.field_path];
            rest.into_iter().flatten().for_each(|text| self.text(text));
        }
        if let Some(logic) = &more.logic {
            self.bytes += size_of::<Logic>();
            for node in logic.iter() {
                self.bytes += size_of::<Ref>();
                self.node(node);
            }
        }
    }

    fn text(&mut self, text: &Text) {
        if self.texts.insert(Arc::as_ptr(text).cast::<u8>() as usize) {
            self.bytes += COUNTERS + text.len();
        }
    }
}

fn heap_of(value: &Value) -> usize {
    match value {
        Value::String(text) => text.capacity(),
        Value::Array(items) => items.iter().map(|item| size_of::<Value>() + heap_of(item)).sum(),
        Value::Object(fields) => {
            // A node of the map holds keys and values in their own arrays.
            let entry = |(key, value): (&String, &Value)| {
                size_of::<String>() + size_of::<Value>() + key.capacity() + heap_of(value)
            };
            fields.iter().map(entry).sum()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}
