//! Where in the types a patch is, and what the row of a field says about merging it.

use ferry_api::types::PatchStrategy;
use ferry_api::{Shape, Type, Types};

use crate::error::PatchError;

/// What an object in the patch stands for.
#[derive(Clone, Copy)]
pub enum Level<'s> {
    Struct(&'s Type),
    /// A map, whose keys are no fields.
    Map,
    /// A value with a life of its own, such as a RawExtension; upstream names it so.
    Opaque(&'static str),
    Scalar,
}

pub struct FieldRow<'s> {
    pub strategy: &'s PatchStrategy,
    /// What the field holds; for a list, what its elements are.
    pub level: Level<'s>,
}

impl FieldRow<'_> {
    pub fn merge_key(&self) -> Option<&str> {
        self.strategy.merge_key.as_deref()
    }
}

impl<'s> Level<'s> {
    /// The row of a field whose value is an object.
    pub fn map_field(self, types: &'s Types, name: &str) -> Result<FieldRow<'s>, PatchError> {
        let (shape, strategy) = self.row(name)?;
        Ok(FieldRow { strategy, level: Level::of(types, shape) })
    }

    /// The row of a field whose value is a list.
    pub fn list_field(self, types: &'s Types, name: &str) -> Result<FieldRow<'s>, PatchError> {
        let (shape, strategy) = self.row(name)?;
        let level = match shape {
            Shape::List(element) if matches!(**element, Shape::List(_)) => {
                return Err(PatchError::contradicts("unexpected slice of slice"));
            }
            Shape::List(element) => Level::of(types, element),
            Shape::ExtraValue => Level::Scalar,
            _ => {
                return Err(PatchError::contradicts(format!(
                    "expected slice or array type, but got: {}",
                    self.go_kind()
                )));
            }
        };
        Ok(FieldRow { strategy, level })
    }

    fn row(self, name: &str) -> Result<(&'s Shape, &'s PatchStrategy), PatchError> {
        let unknown = |type_name: &str| {
            PatchError::contradicts(format!(
                "unable to find api field in struct {type_name} for the json field {name:?}"
            ))
        };
        match self {
            Level::Struct(ty) => {
                let field = ty.field(name).ok_or_else(|| unknown(ty.short_name()))?;
                Ok((&field.shape, &field.patch))
            }
            Level::Opaque(type_name) => Err(unknown(type_name)),
            Level::Map | Level::Scalar => Err(PatchError::contradicts(format!(
                "merging an object in json but data type is not struct, instead is: {}",
                self.go_kind()
            ))),
        }
    }

    fn of(types: &'s Types, shape: &Shape) -> Level<'s> {
        match shape {
            Shape::Struct(id) => Level::Struct(types.get(*id)),
            Shape::Map(_) => Level::Map,
            Shape::Raw => Level::Opaque("RawExtension"),
            Shape::Json => Level::Opaque("JSON"),
            Shape::FieldsV1 => Level::Opaque("FieldsV1"),
            _ => Level::Scalar,
        }
    }

    pub fn go_kind(self) -> &'static str {
        match self {
            Level::Struct(_) | Level::Opaque(_) => "struct",
            Level::Map => "map",
            Level::Scalar => "string",
        }
    }
}
