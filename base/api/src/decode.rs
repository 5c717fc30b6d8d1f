//! The one pass that turns a document into an [`Object`], guided by the field rows:
//! it keeps what the rows know, checks and normalises every value, and notes unknown and duplicate
//! fields with their paths. JSON, YAML and values already in memory all come through here, as any
//! serde deserializer can drive it.

use std::borrow::Cow;
use std::fmt::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::depth::{self, MAX_DEPTH};
use crate::excerpt;
use crate::managers;
use crate::object::Object;
use crate::quantity;
use crate::read::{Any, Members};
use crate::time::{self, Precision};
use crate::types::{Either, Schema, SchemaOr, Shape, Type, TypeId, Types};
use crate::zero;

/// What a document is read as to learn its kind, as messages print it.
const TYPE_META: &str =
    r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;

/// Findings beyond this number are dropped: they no longer help anybody.
pub(crate) const MAX_FINDINGS: usize = 100;

/// How a document is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A whole object: what is empty is left out or written as zero, as the rows say.
    Whole,
    /// What an apply configuration says: nothing is added or dropped, as each field given is a claim.
    Applied,
}

/// What the pass noticed on the way.
#[derive(Debug, Default)]
pub struct Findings {
    /// `unknown field "spec.foo"`, `duplicate field "spec.foo"`.
    pub strict: Vec<String>,
    /// Why the document cannot be read, in the words clients know; unset where the syntax is at fault.
    pub mismatch: Option<String>,
    /// The document is no object at all.
    pub no_object: bool,
}

/// Reads one object of the schema's type.
pub fn object<'de, D: Deserializer<'de>>(
    deserializer: D,
    schema: &Schema,
    form: Form,
) -> (Result<Object, D::Error>, Findings) {
    let mut walk = Walk::new(&schema.types, form);
    let shape = Shape::Struct(schema.root);
    let read = Seed { walk: &mut walk, shape: &shape, owner: None }.deserialize(deserializer);
    (read.map(|value| Object::from_read(into_map(value))), walk.findings)
}

/// Reads one object of which no rows are known.
pub fn untyped<'de, D: Deserializer<'de>>(deserializer: D) -> (Result<Object, D::Error>, Findings) {
    let types = Types::default();
    let mut walk = Walk::new(&types, Form::Applied);
    let read = Untyped { walk: &mut walk, root: true }.deserialize(deserializer);
    (read.map(|value| Object::from_fields(into_map(value))), walk.findings)
}

fn into_map(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => unreachable!("the root is read as an object or refused"),
    }
}

struct Walk<'a> {
    types: &'a Types,
    form: Form,
    path: Vec<Segment<'a>>,
    findings: Findings,
}

enum Segment<'a> {
    Field(&'a str),
    Key(String),
    Index(usize),
}

impl<'a> Walk<'a> {
    fn new(types: &'a Types, form: Form) -> Walk<'a> {
        Walk { types, form, path: Vec::with_capacity(16), findings: Findings::default() }
    }

    /// Whether this is the list of the object's own managers, and not of a template's.
    fn is_at_managers(&self) -> bool {
        matches!(self.path.as_slice(), [Segment::Field("metadata"), Segment::Field(managers::FIELD)])
    }

    /// Whether this is a field in a row of them.
    fn is_in_managers(&self) -> bool {
        use Segment::{Field, Index};
        matches!(self.path.as_slice(), [Field("metadata"), Field(managers::FIELD), Index(_), Field(_)])
    }

    /// A list or an object may begin here.
    fn enter<E: de::Error>(&mut self) -> Result<(), E> {
        if self.path.len() < MAX_DEPTH { Ok(()) } else { Err(self.refuse(depth::TOO_DEEP.to_string())) }
    }

    #[cold]
    fn note(&mut self, what: &str, name: &str) {
        if self.findings.strict.len() >= MAX_FINDINGS {
            return;
        }
        let mut path = String::new();
        for segment in &self.path {
            let _ = match segment {
                Segment::Field(name) => write!(path, "{}{name}", dot(&path)),
                Segment::Key(name) => {
                    write!(path, "{}{}", dot(&path), excerpt::of(name, excerpt::LONGEST_PATH))
                }
                Segment::Index(index) => write!(path, "[{index}]"),
            };
        }
        let name = excerpt::of(name, excerpt::LONGEST_PATH);
        let path = excerpt::of_owned(format!("{path}{}{name}", dot(&path)), 2 * excerpt::LONGEST_PATH);
        let finding = format!("{what} field {path:?}");
        if !self.findings.strict.contains(&finding) {
            self.findings.strict.push(finding);
        }
    }

    /// The value given does not fit the field.
    #[cold]
    fn mismatch<E: de::Error>(&mut self, given: &str, wanted: &str, owner: Option<&Type>) -> E {
        let names: Vec<&str> = self
            .path
            .iter()
            .filter_map(|segment| match segment {
                Segment::Field(name) => Some(*name),
                Segment::Key(_) | Segment::Index(_) => None,
            })
            .collect();
        match owner {
            Some(owner) => self.refuse(format!(
                "json: cannot unmarshal {given} into Go struct field {}.{} of type {wanted}",
                owner.short_name(),
                names.join(".")
            )),
            None => {
                self.findings.no_object = self.path.is_empty();
                self.refuse(format!("json: cannot unmarshal {given} into Go value of type {wanted}"))
            }
        }
    }

    #[cold]
    fn refuse<E: de::Error>(&mut self, why: String) -> E {
        let why = excerpt::of_owned(why, 2 * excerpt::LONGEST_VALUE);
        let error = E::custom(&why);
        self.findings.mismatch = Some(why);
        error
    }
}

fn dot(path: &str) -> &'static str {
    if path.is_empty() { "" } else { "." }
}

/// Reads a value of one shape.
struct Seed<'w, 'a> {
    walk: &'w mut Walk<'a>,
    shape: &'w Shape,
    /// The struct whose field this is.
    owner: Option<&'a Type>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.shape {
            Shape::FieldsV1 if self.walk.is_in_managers() => {
                let text = managers::text(deserializer)?;
                // The text is kept as it is and read later; a set nests one level deeper than the object does.
                let is_shallow = |text: &str| depth::is_within(text.as_bytes(), MAX_DEPTH + 1);
                if text.as_str().is_some_and(|text| !is_shallow(text)) {
                    return Err(self.walk.refuse(depth::TOO_DEEP.to_string()));
                }
                Ok(text)
            }
            Shape::Raw | Shape::Json | Shape::FieldsV1 => {
                let read =
                    Any::within(MAX_DEPTH.saturating_sub(self.walk.path.len())).deserialize(deserializer);
                read.map_err(|error| match error.to_string().starts_with(depth::TOO_DEEP) {
                    true => self.walk.refuse(depth::TOO_DEEP.to_string()),
                    false => error,
                })
            }
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'a> Seed<'_, 'a> {
    fn wrong<E: de::Error>(self, given: &str) -> E {
        match self.shape {
            Shape::Quantity => self.walk.refuse(quantity::BadQuantity::Form.to_string()),
            // a time that is no string fails before anybody knows it is meant to be a time
            Shape::Time | Shape::MicroTime => self.walk.mismatch(given, "string", self.owner),
            // so does a document whose kind is looked for first
            _ if self.walk.path.is_empty() => self.walk.mismatch(given, TYPE_META, None),
            shape => {
                let wanted = go_type(shape, self.walk.types);
                self.walk.mismatch(given, &wanted, self.owner)
            }
        }
    }

    fn text<E: de::Error>(self, text: Cow<'_, str>) -> Result<Value, E> {
        let canonical = self.walk.form == Form::Whole;
        match self.shape {
            Shape::String | Shape::IntOrString | Shape::Duration => Ok(Value::String(text.into_owned())),
            Shape::Quantity => match quantity::canonical(&text) {
                Ok(clean) if canonical => Ok(Value::String(clean.into_owned())),
                Ok(_) => Ok(Value::String(text.into_owned())),
                Err(error) => Err(self.walk.refuse(error.to_string())),
            },
            Shape::Time | Shape::MicroTime => {
                let precision =
                    if *self.shape == Shape::Time { Precision::Seconds } else { Precision::Micros };
                match time::canonical(&text, precision) {
                    Ok(Some(clean)) if canonical => Ok(Value::String(clean.into_owned())),
                    Ok(None) if canonical => Ok(Value::Null),
                    Ok(_) => Ok(Value::String(text.into_owned())),
                    Err(error) => Err(self.walk.refuse(error.to_string())),
                }
            }
            Shape::Bytes => match STANDARD.decode(text.as_bytes()) {
                Ok(_) => Ok(Value::String(text.into_owned())),
                Err(error) => {
                    // line breaks are allowed, and do not come back
                    let joined = text.replace(['\n', '\r'], "");
                    if joined.len() != text.len() && STANDARD.decode(joined.as_bytes()).is_ok() {
                        return Ok(Value::String(joined));
                    }
                    let at = match error {
                        base64::DecodeError::InvalidByte(at, _) => at,
                        base64::DecodeError::InvalidLastSymbol(at, _) => at,
                        _ => text.len(),
                    };
                    Err(self.walk.refuse(format!("illegal base64 data at input byte {at}")))
                }
            },
            _ => Err(self.wrong("string")),
        }
    }

    fn number<E: de::Error>(self, number: Number) -> Result<Value, E> {
        let fits = match self.shape {
            Shape::Int32 | Shape::IntOrString => number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
            Shape::Int64 => number.as_i64().is_some(),
            Shape::Double => true,
            Shape::Quantity => return self.text(number.to_string().into()),
            _ => return Err(self.wrong("number")),
        };
        if fits { Ok(Value::Number(number)) } else { Err(self.wrong(&format!("number {number}"))) }
    }

    /// null in the place of a field means the field was not given; elsewhere it stands for zero.
    fn element_zero(&self, element: &Shape) -> Value {
        match self.walk.form {
            Form::Whole => zero::of_shape(element, self.walk.types),
            Form::Applied => Value::Null,
        }
    }

    fn list<'de, A: SeqAccess<'de>>(self, element: &Shape, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::with_capacity(access.size_hint().unwrap_or(0).min(1024));
        loop {
            self.walk.path.push(Segment::Index(items.len()));
            let seed = Seed { walk: self.walk, shape: element, owner: self.owner };
            let Some(item) = access.next_element_seed(seed)? else { break };
            self.walk.path.pop();
            items.push(if item.is_null() { self.element_zero(element) } else { item });
        }
        self.walk.path.pop();
        if items.is_empty() && self.walk.is_at_managers() {
            // Left out like any empty list, it could not ask for what it asks for.
            items.push(Value::Object(Map::new()));
        }
        Ok(Value::Array(items))
    }

    fn entries<'de, A: MapAccess<'de>>(self, value: &Shape, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if map.contains_key(&key) {
                self.walk.note("duplicate", &key);
            }
            self.walk.path.push(Segment::Key(key));
            let seed = Seed { walk: self.walk, shape: value, owner: self.owner };
            let read = access.next_value_seed(seed)?;
            let Some(Segment::Key(key)) = self.walk.path.pop() else {
                unreachable!("what was pushed above is popped here")
            };
            let read = if read.is_null() { self.element_zero(value) } else { read };
            map.insert(key, read);
        }
        Ok(Value::Object(map))
    }

    fn structure<'de, A: MapAccess<'de>>(self, id: TypeId, mut access: A) -> Result<Value, A::Error> {
        let types: &'a Types = self.walk.types;
        let ty: &'a Type = types.get(id);
        if let Some(Either { schema, .. }) = ty.either {
            return Seed { walk: self.walk, shape: &Shape::Struct(schema), owner: self.owner }
                .structure(schema, access);
        }
        let whole = self.walk.form == Form::Whole;
        let mut members = Members::default();
        let mut strangers = Map::new();
        let mut seen = Seen::default();
        while let Some(key) = access.next_key_seed(Key { ty })? {
            match key {
                Named::Field(index) => {
                    let field = &ty.fields[index];
                    let again = seen.twice(index);
                    if again {
                        self.walk.note("duplicate", &field.name);
                    }
                    self.walk.path.push(Segment::Field(&field.name));
                    let seed = Seed { walk: self.walk, shape: &field.shape, owner: Some(ty) };
                    let value = access.next_value_seed(seed)?;
                    self.walk.path.pop();
                    if again {
                        members.remove(&field.name);
                    }
                    if !whole || !(value.is_null() || zero::is_left_out(field, &value)) {
                        members.add(field.name.as_ref().to_owned(), value);
                    }
                }
                // An apply configuration keeps them too: whoever claims a field that is not declared is refused.
                Named::Unknown(name) if ty.preserve_unknown || !whole => {
                    if strangers.contains_key(&name) {
                        self.walk.note("duplicate", &name);
                    }
                    self.walk.path.push(Segment::Key(name));
                    let value = access.next_value_seed(Untyped { walk: self.walk, root: false })?;
                    if let Some(Segment::Key(name)) = self.walk.path.pop() {
                        strangers.insert(name, value);
                    }
                }
                Named::Unknown(name) => {
                    self.walk.note("unknown", &name);
                    access.next_value::<IgnoredAny>()?;
                }
            }
        }
        let mut map = members.into_map();
        map.append(&mut strangers);
        if whole {
            zero::fill(&mut map, ty, types);
        }
        Ok(Value::Object(map))
    }
}

impl<'de> Visitor<'de> for Seed<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&go_type(self.shape, self.walk.types))
    }

    fn visit_bool<E: de::Error>(self, given: bool) -> Result<Value, E> {
        match self.shape {
            Shape::Bool => Ok(Value::Bool(given)),
            Shape::Struct(id) if self.walk.types.get(*id).allows(SchemaOr::Bool) => Ok(Value::Bool(given)),
            _ => Err(self.wrong("bool")),
        }
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Value, E> {
        self.number(number.into())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Value, E> {
        self.number(number.into())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Value, E> {
        match Number::from_f64(number) {
            Some(number) => self.number(number),
            None => Err(self.wrong("number")),
        }
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Value, E> {
        self.text(Cow::Borrowed(text))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Value, E> {
        self.text(Cow::Owned(text))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        if !self.walk.path.is_empty() {
            return Ok(Value::Null);
        }
        // A whole document of null says nothing about the object, but is one.
        Ok(match self.walk.form {
            Form::Whole => zero::of_shape(self.shape, self.walk.types),
            Form::Applied => Value::Object(Map::new()),
        })
    }

    fn visit_none<E: de::Error>(self) -> Result<Value, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<Value, A::Error> {
        self.walk.enter()?;
        match self.shape {
            Shape::List(element) => self.list(element, access),
            Shape::ExtraValue => self.list(&Shape::String, access),
            Shape::Struct(id) => match self.walk.types.get(*id).either {
                Some(Either { schema, other: SchemaOr::List }) => self.list(&Shape::Struct(schema), access),
                Some(Either { other: SchemaOr::Strings, .. }) => self.list(&Shape::String, access),
                _ => Err(self.wrong("array")),
            },
            _ => Err(self.wrong("array")),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Value, A::Error> {
        self.walk.enter()?;
        match self.shape {
            Shape::Struct(id) => self.structure(*id, access),
            Shape::Map(value) => self.entries(value, access),
            _ => Err(self.wrong("object")),
        }
    }
}

/// Looks a key up among the fields without making a string of it.
struct Key<'a> {
    ty: &'a Type,
}

enum Named {
    Field(usize),
    Unknown(String),
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = Named;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Named, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = Named;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Named, E> {
        Ok(match self.ty.field_index(name) {
            Some(index) => Named::Field(index),
            None => Named::Unknown(name.to_string()),
        })
    }
}

/// Which fields of a struct were read already.
#[derive(Default)]
struct Seen {
    first: u128,
    rest: Vec<usize>,
}

impl Seen {
    /// Marks the field and says whether it was marked before.
    fn twice(&mut self, index: usize) -> bool {
        if index < 128 {
            let bit = 1 << index;
            let before = self.first & bit != 0;
            self.first |= bit;
            return before;
        }
        let before = self.rest.contains(&index);
        if !before {
            self.rest.push(index);
        }
        before
    }
}

/// Reads anything, noting duplicate keys.
struct Untyped<'w, 'a> {
    walk: &'w mut Walk<'a>,
    root: bool,
}

impl Untyped<'_, '_> {
    fn leaf<E: de::Error>(self, given: &str, value: Value) -> Result<Value, E> {
        if self.root {
            return Err(self.walk.mismatch(given, "map[string]interface {}", None));
        }
        Ok(value)
    }
}

impl<'de> DeserializeSeed<'de> for Untyped<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Untyped<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E: de::Error>(self, given: bool) -> Result<Value, E> {
        self.leaf("bool", Value::Bool(given))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Value, E> {
        self.leaf("number", number.into())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Value, E> {
        self.leaf("number", number.into())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Value, E> {
        self.leaf("number", number.into())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Value, E> {
        self.leaf("string", text.into())
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Value, E> {
        self.leaf("string", text.into())
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        self.leaf("null", Value::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Value, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        if self.root {
            return Err(self.walk.mismatch("array", "map[string]interface {}", None));
        }
        self.walk.enter()?;
        let mut items = Vec::new();
        loop {
            self.walk.path.push(Segment::Index(items.len()));
            let item = access.next_element_seed(Untyped { walk: self.walk, root: false })?;
            self.walk.path.pop();
            match item {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        self.walk.enter()?;
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if map.contains_key(&key) {
                self.walk.note("duplicate", &key);
            }
            self.walk.path.push(Segment::Key(key));
            let value = access.next_value_seed(Untyped { walk: self.walk, root: false })?;
            if let Some(Segment::Key(key)) = self.walk.path.pop() {
                map.insert(key, value);
            }
        }
        Ok(Value::Object(map))
    }
}

/// The type's name in the words of the errors that clients know.
fn go_type(shape: &Shape, types: &Types) -> String {
    match shape {
        Shape::String => "string".into(),
        Shape::Bytes => "[]uint8".into(),
        Shape::Bool => "bool".into(),
        Shape::Int32 | Shape::IntOrString => "int32".into(),
        Shape::Int64 => "int64".into(),
        Shape::Double => "float64".into(),
        Shape::Quantity => "resource.Quantity".into(),
        Shape::Time => "v1.Time".into(),
        Shape::MicroTime => "v1.MicroTime".into(),
        Shape::Duration => "v1.Duration".into(),
        Shape::Raw => "runtime.RawExtension".into(),
        Shape::Json => "v1.JSON".into(),
        Shape::FieldsV1 => "v1.FieldsV1".into(),
        Shape::ExtraValue => "v1.ExtraValue".into(),
        Shape::List(element) => format!("[]{}", go_type(element, types)),
        Shape::Map(value) => format!("map[string]{}", go_type(value, types)),
        Shape::Struct(id) => {
            let name = &types.get(*id).name;
            let mut words = name.rsplit('.');
            let (short, version) = (words.next().unwrap_or(name), words.next().unwrap_or("v1"));
            format!("{version}.{short}")
        }
    }
}
