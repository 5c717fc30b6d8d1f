//! The types that expressions are checked against before they ever run. `Dyn` is a value that could be
//! anything; it agrees with every type.

use std::fmt;
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    Dyn,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Null,
    List(Arc<Type>),
    Map(Arc<Type>),
    Timestamp,
    Duration,
    Optional(Arc<Type>),
    /// The type of types: `type(x)`.
    Type,
    /// A value of one of the libraries, known by its name.
    Opaque(&'static str),
    Struct(Arc<Struct>),
    /// An object that the expression writes out, by the name it gives it.
    Literal(Arc<str>),
}

/// An object whose fields are known.
#[derive(Debug, PartialEq, Eq)]
pub struct Struct {
    pub name: String,
    pub fields: Vec<(String, Type)>,
}

impl Type {
    pub fn list(element: Type) -> Type {
        Type::List(Arc::new(element))
    }

    pub fn map(value: Type) -> Type {
        Type::Map(Arc::new(value))
    }

    pub fn optional(value: Type) -> Type {
        Type::Optional(Arc::new(value))
    }

    pub fn object<'f>(name: &str, fields: impl IntoIterator<Item = (&'f str, Type)>) -> Type {
        let fields = fields.into_iter().map(|(field, kind)| (field.to_string(), kind)).collect();
        Type::Struct(Arc::new(Struct { name: name.to_string(), fields }))
    }

    pub fn literal(name: &str) -> Type {
        Type::Literal(name.into())
    }

    /// A value of the one could be a value of the other.
    pub fn agrees_with(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::Dyn, _) | (_, Type::Dyn) => true,
            (Type::List(a), Type::List(b))
            | (Type::Map(a), Type::Map(b))
            | (Type::Optional(a), Type::Optional(b)) => a.agrees_with(b),
            // An object can be compared with a map literal, and anything with null.
            (Type::Struct(_), Type::Map(_)) | (Type::Map(_), Type::Struct(_)) => true,
            (a, b) => a == b,
        }
    }

    /// Whether a value of the type can be compared with null: objects and what stands for messages.
    pub fn may_be_null(&self) -> bool {
        !matches!(
            self,
            Type::Bool
                | Type::Int
                | Type::Uint
                | Type::Double
                | Type::String
                | Type::Bytes
                | Type::List(_)
                | Type::Map(_)
                | Type::Type
        )
    }

    /// Whether null can stand for a value of the type: those of the libraries and of the well-known messages.
    pub fn is_nullable(&self) -> bool {
        matches!(self, Type::Opaque(_) | Type::Timestamp | Type::Duration | Type::Optional(_))
    }

    /// Whether one value of the type is less than another.
    pub fn is_ordered(&self) -> bool {
        let others = [Type::Bool, Type::String, Type::Bytes, Type::Duration, Type::Timestamp];
        self.is_number() || others.contains(self)
    }

    pub fn is_number(&self) -> bool {
        matches!(self, Type::Int | Type::Uint | Type::Double)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Dyn => f.write_str("dyn"),
            Type::Bool => f.write_str("bool"),
            Type::Int => f.write_str("int"),
            Type::Uint => f.write_str("uint"),
            Type::Double => f.write_str("double"),
            Type::String => f.write_str("string"),
            Type::Bytes => f.write_str("bytes"),
            Type::Null => f.write_str("null"),
            Type::List(element) => write!(f, "list({element})"),
            Type::Map(value) => write!(f, "map(string, {value})"),
            Type::Timestamp => f.write_str("timestamp"),
            Type::Duration => f.write_str("duration"),
            Type::Optional(value) => write!(f, "optional_type({value})"),
            Type::Type => f.write_str("type"),
            Type::Opaque(name) => f.write_str(name),
            Type::Struct(object) => f.write_str(&object.name),
            Type::Literal(name) => f.write_str(name),
        }
    }
}
