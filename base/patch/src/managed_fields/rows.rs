//! What the field rows say about owning a value: in one piece, field by field, or element by element.

use ferry_api::types::{Field, ListType};
use ferry_api::{Schema, Shape, Type, Types};
use serde_json::{Map, Value};

use super::element;

/// How a value is owned.
#[derive(Clone, Copy)]
pub enum Owned<'s> {
    Scalar(&'s Shape),
    /// A list, map or struct that is owned in one piece.
    Whole(&'s Shape),
    Struct(&'s Type),
    /// Each key is owned on its own.
    Map(&'s Shape),
    /// Elements are told apart by these fields.
    List {
        element: &'s Shape,
        keys: &'s [Box<str>],
    },
    /// Elements are told apart by what they are.
    Set(&'s Shape),
    /// A value no row describes: objects are owned field by field, lists in one piece.
    Free,
}

/// The rows of one schema, as the walks need them.
#[derive(Clone, Copy)]
pub struct Rows<'s> {
    pub types: &'s Types,
}

impl<'s> Rows<'s> {
    pub fn of(schema: &'s Schema) -> (Rows<'s>, Owned<'s>) {
        (Rows { types: &schema.types }, Owned::Struct(schema.root()))
    }

    /// The value of a field of a struct. None where the struct has no such field.
    pub fn field(self, ty: &'s Type, name: &str) -> Option<Owned<'s>> {
        match ty.field(name) {
            // The field's own word counts more than its type's.
            Some(Field { shape: Shape::Struct(id), granular: true, .. }) => {
                Some(Owned::Struct(self.types.get(*id)))
            }
            Some(field) => Some(self.owned(&field.shape, &field.list, field.atomic)),
            None if ty.preserve_unknown => Some(Owned::Free),
            None => None,
        }
    }

    /// An element of a list, or a value of a map.
    pub fn inner(self, shape: &'s Shape) -> Owned<'s> {
        self.owned(shape, &ListType::Unset, false)
    }

    fn owned(self, shape: &'s Shape, list: &'s ListType, atomic: bool) -> Owned<'s> {
        match (shape, list) {
            (Shape::Struct(id), _) => {
                let ty = self.types.get(*id);
                if let Some(field) = &ty.stands_for {
                    return self.owned(&field.shape, &field.list, field.atomic);
                }
                match () {
                    // OpenAPI has no type for what may be a schema or something else.
                    () if ty.either.is_some() => Owned::Free,
                    () if ty.atomic || atomic => Owned::Whole(shape),
                    () => Owned::Struct(ty),
                }
            }
            (Shape::Map(_), _) if atomic => Owned::Whole(shape),
            (Shape::Map(value), _) => Owned::Map(value),
            (Shape::List(element), ListType::Map(keys)) => Owned::List { element, keys },
            (Shape::List(element), ListType::Set) => Owned::Set(element),
            (Shape::List(_) | Shape::ExtraValue, _) => Owned::Whole(shape),
            (Shape::Raw | Shape::Json | Shape::FieldsV1, _) => Owned::Free,
            (scalar, _) => Owned::Scalar(scalar),
        }
    }

    /// The path element of an item, where the list tells its elements apart.
    pub fn element(self, list: Owned<'s>, item: &Value) -> Option<String> {
        match list {
            Owned::List { element, keys } => element::keyed(item, keys, element, self.types),
            Owned::Set(_) => element::member(item),
            _ => None,
        }
    }

    /// What the items of a list are.
    pub fn items(self, list: Owned<'s>) -> Owned<'s> {
        match list {
            Owned::List { element, .. } | Owned::Set(element) => self.inner(element),
            _ => Owned::Free,
        }
    }

    /// What lies at `name` in a struct or map. A field without a row is owned like free JSON.
    pub fn at(self, map: Owned<'s>, name: &str) -> Owned<'s> {
        match map {
            Owned::Struct(ty) => self.field(ty, name).unwrap_or(Owned::Free),
            Owned::Map(value) => self.inner(value),
            _ => Owned::Free,
        }
    }
}

/// Whether values are the same to their owners: 1 and 1.0 are.
pub fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => {
            a == b || ((x.is_f64() || y.is_f64()) && x.as_f64() == y.as_f64())
        }
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| same(x, y)),
        (Value::Object(x), Value::Object(y)) => same_fields(x, y),
        _ => a == b,
    }
}

pub fn same_fields(a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|((key_a, a), (key_b, b))| key_a == key_b && same(a, b))
}
