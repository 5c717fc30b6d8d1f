//! The type of an object whose fields are known, for checks that know what an expression will be about.

use ferry_api::types::Shape;
use ferry_api::{Schema, Types};

use crate::types::Type;

/// Deeper than any object has fields: only types that hold themselves get here, and below this they are anything.
const DEEPEST: usize = 16;

pub fn type_of(schema: &Schema) -> Type {
    object(&schema.types, schema.root(), DEEPEST)
}

fn object(types: &Types, row: &ferry_api::Type, depth: usize) -> Type {
    // What keeps fields that no row names may be asked for any.
    if depth == 0 || row.preserve_unknown || row.either.is_some() {
        return Type::Dyn;
    }
    let mut fields: Vec<(&str, Type)> =
        row.fields.iter().map(|field| (&*field.name, value(types, &field.shape, depth - 1))).collect();
    if row.has_type_meta {
        for name in ["apiVersion", "kind"] {
            if !fields.iter().any(|(known, _)| *known == name) {
                fields.push((name, Type::String));
            }
        }
    }
    Type::object(&row.name, fields)
}

fn value(types: &Types, shape: &Shape, depth: usize) -> Type {
    match shape {
        Shape::String => Type::String,
        Shape::Bytes => Type::Bytes,
        Shape::Bool => Type::Bool,
        Shape::Int32 | Shape::Int64 => Type::Int,
        Shape::Double => Type::Double,
        Shape::ExtraValue => Type::list(Type::String),
        Shape::Struct(id) => match &types.get(*id).stands_for {
            Some(field) => value(types, &field.shape, depth),
            None => object(types, types.get(*id), depth),
        },
        Shape::List(element) => Type::list(value(types, element, depth)),
        Shape::Map(element) => Type::map(value(types, element, depth)),
        // Written in more than one way, or by whoever made the kind.
        Shape::Quantity
        | Shape::IntOrString
        | Shape::Time
        | Shape::MicroTime
        | Shape::Duration
        | Shape::Raw
        | Shape::Json
        | Shape::FieldsV1 => Type::Dyn,
    }
}
