//! The field rows: every type of the API with its fields, read from `table/types.txt`.
//!
//! Types live in an arena and refer to each other by [`TypeId`], so recursive types need no special
//! case and a custom resource brings an arena of its own. Everything that has to know about fields
//! (codecs, strict decoding, pruning, defaulting, merge patches, server-side apply, OpenAPI) asks here.

mod table;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use serde_json::Value;

use crate::kinds::GroupVersionKind;

/// An arena of types.
#[derive(Debug, Default)]
pub struct Types {
    types: Vec<Type>,
    by_name: HashMap<Box<str>, TypeId>,
    by_kind: HashMap<GroupVersionKind, TypeId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TypeId(u32);

/// A type together with the arena that its fields point into.
#[derive(Debug, Clone)]
pub struct Schema {
    pub types: Arc<Types>,
    pub root: TypeId,
}

#[derive(Debug, Default)]
pub struct Type {
    /// As OpenAPI names it: `io.k8s.api.core.v1.Pod`.
    pub name: Box<str>,
    /// What the JSON object may hold, fields of inlined types included; ordered by name.
    pub fields: Vec<Field>,
    /// How the names of `fields` begin, so that one is found without a look at the others; [`Types::add`] sets it.
    pub beginnings: Vec<u64>,
    /// What the protobuf message holds, ordered by tag.
    pub wire: Vec<Wire>,
    /// Fields in the order they are declared, for printers.
    pub declared: Vec<Box<str>>,
    /// apiVersion and kind belong to the object.
    pub has_type_meta: bool,
    /// Server-side apply owns it as a whole.
    pub atomic: bool,
    /// It is a definition of the OpenAPI documents.
    pub published: bool,
    /// Fields without a row are kept (custom resources).
    pub preserve_unknown: bool,
    pub kinds: Vec<GroupVersionKind>,
    /// It stands for a list or map inside another one, which is merged as this field says (custom resources).
    pub stands_for: Option<Box<Field>>,
    /// In JSON it is either a schema or something else; the wire message has a field for each.
    pub either: Option<Either>,
    /// One of the fields is set, and the discriminator says which; OpenAPI publishes it.
    pub union: Option<Union>,
    /// Defaults that hold only where the object itself is of this type, by the path of the field.
    pub assumptions: Vec<(Vec<Box<str>>, Value)>,
    /// The fields that are written even when empty, as indexes into `fields`; [`Types::add`] sets it.
    pub kept: Vec<u32>,
    /// The fields that have a default, or below which there may be one, in their order; [`Types::add`] sets it.
    pub defaulted: Vec<Defaulted>,
}

/// A field that defaulting looks at.
#[derive(Debug, Clone, Copy)]
pub struct Defaulted {
    /// Into the type's `fields`.
    pub index: u32,
    /// Whether the field itself has a default.
    pub itself: bool,
    /// Whether something below it may have one.
    pub below: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Union {
    pub discriminator: Option<Box<str>>,
    /// Each field with the name that the discriminator has for it.
    pub fields: Vec<(Box<str>, Box<str>)>,
}

/// A JSON schema or something simpler in its place (apiextensions' `JSONSchemaPropsOr…`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Either {
    pub schema: TypeId,
    pub other: SchemaOr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaOr {
    Bool,
    List,
    Strings,
}

#[derive(Debug, Clone)]
pub struct Field {
    pub name: Box<str>,
    pub shape: Shape,
    /// Absent differs from the zero value.
    pub pointer: bool,
    /// Written even when empty.
    pub keep: bool,
    pub required: bool,
    pub list: ListType,
    /// A map or struct that server-side apply owns as a whole.
    pub atomic: bool,
    /// A map that server-side apply owns by its entries, and says so; without a word it does as well.
    pub granular: bool,
    pub patch: PatchStrategy,
    pub values: Vec<Box<str>>,
    /// A default that OpenAPI publishes.
    pub default: Option<Value>,
    /// A default that is set but not published.
    pub assume: Option<Value>,
    /// Quantities that are rounded up to thousandths.
    pub milli: bool,
    /// Left out of the OpenAPI documents: a field that clients of today's API need not know.
    pub unpublished: bool,
}

/// One entry of a protobuf message.
#[derive(Debug, Clone)]
pub enum Wire {
    Field {
        tag: u32,
        index: usize,
    },
    /// A nested message whose fields stand in the same JSON object.
    Inline {
        tag: u32,
        name: Box<str>,
        message: TypeId,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    String,
    /// base64 in JSON.
    Bytes,
    Bool,
    Int32,
    Int64,
    Double,
    Quantity,
    IntOrString,
    Time,
    MicroTime,
    Duration,
    /// Any JSON object; JSON bytes inside a message on the wire (RawExtension).
    Raw,
    /// Any JSON value; JSON bytes inside a message on the wire (apiextensions JSON).
    Json,
    /// A field set; JSON bytes inside a message on the wire.
    FieldsV1,
    /// A list of strings in JSON; a message of its own on the wire.
    ExtraValue,
    Struct(TypeId),
    List(Box<Shape>),
    Map(Box<Shape>),
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ListType {
    #[default]
    Unset,
    Atomic,
    Set,
    /// Elements are identified by these fields.
    Map(Vec<Box<str>>),
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PatchStrategy {
    pub merge: bool,
    pub retain_keys: bool,
    /// A struct that a strategic merge patch replaces as a whole.
    pub replace: bool,
    pub merge_key: Option<Box<str>>,
}

impl Types {
    /// The built-in types of Kubernetes v1.36.
    pub fn builtin() -> &'static Arc<Types> {
        static BUILTIN: LazyLock<Arc<Types>> = LazyLock::new(|| {
            let mut types = table::parse(include_str!("../table/types.txt"))
                .expect("the table is part of the program and a test reads it");
            types.add_custom_object();
            Arc::new(types)
        });
        &BUILTIN
    }

    pub fn get(&self, id: TypeId) -> &Type {
        &self.types[id.0 as usize]
    }

    pub fn by_name(&self, name: &str) -> Option<TypeId> {
        self.by_name.get(name).copied()
    }

    pub fn by_kind(&self, kind: &GroupVersionKind) -> Option<TypeId> {
        self.by_kind.get(kind).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Type> {
        self.types.iter()
    }

    /// What every custom object has, whatever its schema: typed metadata among fields of any kind.
    fn add_custom_object(&mut self) {
        let metadata = self.by_name("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
        let mut metadata =
            Field::new("metadata", Shape::Struct(metadata.expect("ObjectMeta is in the table")));
        metadata.keep = true;
        self.add(Type {
            name: CUSTOM_OBJECT.into(),
            fields: vec![
                Field::new("apiVersion", Shape::String),
                Field::new("kind", Shape::String),
                metadata,
            ],
            has_type_meta: true,
            preserve_unknown: true,
            ..Type::default()
        });
    }

    /// Adds a type that is complete; custom resources build their arenas with it.
    pub fn add(&mut self, mut ty: Type) -> TypeId {
        let id = TypeId(self.types.len() as u32);
        ty.fields.sort_by(|a, b| a.name.cmp(&b.name));
        ty.beginnings = ty.fields.iter().map(|field| beginning(&field.name)).collect();
        ty.kept = indexes(&ty.fields, |field| field.keep);
        let defaulted = (0u32..).zip(&ty.fields).map(|(index, field)| Defaulted {
            index,
            itself: field.default.is_some() || field.assume.is_some() || field.milli,
            below: field.shape.element_struct().is_some(),
        });
        ty.defaulted = defaulted.filter(|field| field.itself || field.below).collect();
        self.by_name.insert(ty.name.clone(), id);
        for kind in &ty.kinds {
            self.by_kind.insert(kind.clone(), id);
        }
        self.types.push(ty);
        id
    }
}

/// The first eight bytes, as a number that is ordered as names are.
fn beginning(name: &str) -> u64 {
    let bytes = name.as_bytes();
    match bytes.first_chunk() {
        Some(first) => u64::from_be_bytes(*first),
        None => (0..8).fold(0, |number, at| number << 8 | u64::from(bytes.get(at).copied().unwrap_or(0))),
    }
}

fn indexes(fields: &[Field], wanted: impl Fn(&Field) -> bool) -> Vec<u32> {
    (0u32..).zip(fields).filter(|(_, field)| wanted(field)).map(|(index, _)| index).collect()
}

impl Shape {
    /// The struct at the bottom of lists and maps of structs.
    pub fn element_struct(&self) -> Option<TypeId> {
        match self {
            Shape::Struct(id) => Some(*id),
            Shape::List(element) | Shape::Map(element) => element.element_struct(),
            _ => None,
        }
    }
}

impl Types {
    /// Takes the fields out of `defaulted` that lead to no default, so that defaulting does not go there.
    fn prune_defaulted(&mut self) {
        let own = |ty: &Type| !ty.assumptions.is_empty() || ty.defaulted.iter().any(|field| field.itself);
        let mut reached: Vec<bool> = self.types.iter().map(own).collect();
        let leads = |ty: &Type, field: &Defaulted, reached: &[bool]| {
            let below = ty.fields[field.index as usize].shape.element_struct();
            below.is_some_and(|id| reached[id.0 as usize])
        };
        loop {
            let more: Vec<usize> = (0..self.types.len())
                .filter(|at| !reached[*at])
                .filter(|at| {
                    let ty = &self.types[*at];
                    ty.defaulted.iter().any(|field| leads(ty, field, &reached))
                })
                .collect();
            if more.is_empty() {
                break;
            }
            more.into_iter().for_each(|at| reached[at] = true);
        }
        for at in 0..self.types.len() {
            let ty = &self.types[at];
            let pruned =
                ty.defaulted.iter().map(|field| Defaulted { below: leads(ty, field, &reached), ..*field });
            self.types[at].defaulted = pruned.filter(|field| field.itself || field.below).collect();
        }
    }
}

/// The type whose rows every custom object is read with.
const CUSTOM_OBJECT: &str = "CustomObject";

impl Schema {
    /// The rows that custom objects of every kind share: those of their metadata.
    pub fn custom_object() -> Schema {
        let types = Types::builtin();
        let root = types.by_name(CUSTOM_OBJECT).expect("added with the table");
        Schema { root, types: types.clone() }
    }

    /// Whether these are rows of the program's own table, which never change.
    pub fn is_builtin(&self) -> bool {
        Arc::ptr_eq(&self.types, Types::builtin())
    }

    pub fn builtin(kind: &GroupVersionKind) -> Option<Schema> {
        let types = Types::builtin();
        Some(Schema { root: types.by_kind(kind)?, types: types.clone() })
    }

    /// The rows by which an object goes over the wire: besides kinds, what metadata alone is sent as. That is no kind of
    /// OpenAPI's.
    pub fn on_the_wire(kind: &GroupVersionKind) -> Option<Schema> {
        let is_partial = (&*kind.group, &*kind.version) == ("meta.k8s.io", "v1")
            && ["PartialObjectMetadata", "PartialObjectMetadataList"].contains(&&*kind.kind);
        if !is_partial {
            return Schema::builtin(kind);
        }
        let types = Types::builtin();
        let root = types.by_name(&format!("io.k8s.apimachinery.pkg.apis.meta.v1.{}", kind.kind))?;
        Some(Schema { root, types: types.clone() })
    }

    pub fn root(&self) -> &Type {
        self.types.get(self.root)
    }
}

impl Type {
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.field_index(name).map(|index| &self.fields[index])
    }

    pub fn field_index(&self, name: &str) -> Option<usize> {
        let wanted = beginning(name);
        let first = self.beginnings.partition_point(|beginning| *beginning < wanted);
        let alike = self.beginnings[first..].iter().take_while(|beginning| **beginning == wanted).count();
        (first..first + alike).find(|index| *self.fields[*index].name == *name)
    }

    pub(crate) fn allows(&self, other: SchemaOr) -> bool {
        self.either.is_some_and(|either| either.other == other)
    }

    /// `Pod` of `io.k8s.api.core.v1.Pod`.
    pub fn short_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }
}

impl Field {
    pub fn new(name: &str, shape: Shape) -> Field {
        Field {
            name: name.into(),
            shape,
            pointer: false,
            keep: false,
            required: false,
            list: ListType::Unset,
            atomic: false,
            granular: false,
            patch: PatchStrategy::default(),
            values: Vec::new(),
            default: None,
            assume: None,
            milli: false,
            unpublished: false,
        }
    }
}

impl Wire {
    pub fn tag(&self) -> u32 {
        match self {
            Wire::Field { tag, .. } | Wire::Inline { tag, .. } => *tag,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_reads_and_knows_every_published_type() {
        let types = Types::builtin();
        // OpenAPI has 771 definitions. Eight of them are scalars, which are shapes here (Quantity, Time,
        // MicroTime, IntOrString, RawExtension, JSON, FieldsV1, Patch).
        // Beside them stand the five of the metrics API, which upstream leaves to another server.
        assert_eq!(types.iter().filter(|ty| ty.published).count(), 771 - 8 + 5);
        let pod = types.by_name("io.k8s.api.core.v1.PodSpec").expect("PodSpec");
        let containers = types.get(pod).field("containers").expect("containers");
        assert_eq!(containers.list, ListType::Map(vec!["name".into()]));
        assert_eq!(containers.patch.merge_key.as_deref(), Some("name"));
        assert!(containers.required);
    }

    #[test]
    fn inlined_fields_stand_in_the_json_object_but_nest_on_the_wire() {
        let types = Types::builtin();
        let volume = types.get(types.by_name("io.k8s.api.core.v1.Volume").expect("Volume"));
        assert!(volume.field("emptyDir").is_some());
        assert!(matches!(volume.wire[1], Wire::Inline { tag: 2, .. }));
    }
}
