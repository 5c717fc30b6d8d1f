//! What CEL knows of the values of a schema: their types, and how large they can be at most. Costs of rules
//! are estimated from it before any object is there.

use std::collections::HashMap;
use std::sync::Arc;

use ferry_cel::Type;

use crate::structural::{Additional, EMBEDDED, INT_OR_STRING, Kind, Node, Ref};

/// The largest request that upstream takes; no value is larger.
pub const MAX_REQUEST_SIZE: i64 = 3 << 20;

#[derive(Debug)]
pub struct Decl {
    pub kind: DeclKind,
    /// Characters, elements or entries at most.
    pub max_elements: i64,
    /// Bytes of JSON at least.
    pub min_size: i64,
    /// The type that expressions are checked against.
    pub ty: Type,
}

#[derive(Debug)]
pub enum DeclKind {
    Scalar,
    /// The elements.
    List(Arc<Decl>),
    /// The values; keys are strings.
    Map(Arc<Decl>),
    /// By the names that expressions have for the fields.
    Object(HashMap<String, Arc<Decl>>),
}

/// Makes declarations of nodes, of each once.
#[derive(Default)]
pub struct Decls {
    made: HashMap<(usize, bool), Option<Arc<Decl>>>,
}

impl Decls {
    /// None where expressions cannot name such a value. `resource`: type and metadata belong to it.
    pub fn of(&mut self, node: &Ref, resource: bool) -> Option<Arc<Decl>> {
        let key = (node.address(), resource);
        if let Some(made) = self.made.get(&key) {
            return made.clone();
        }
        let made = self.make(node, resource).map(Arc::new);
        self.made.insert(key, made.clone());
        made
    }

    fn make(&mut self, node: &Ref, resource: bool) -> Option<Decl> {
        if node.is(INT_OR_STRING) {
            return Some(Decl::scalar(Type::Dyn, 1, text_length(node)));
        }
        match node.kind {
            Kind::Any => None,
            Kind::Boolean => Some(Decl::scalar(Type::Bool, 4, 0)),
            Kind::Integer => Some(Decl::scalar(Type::Int, 1, 0)),
            Kind::Number => Some(Decl::scalar(Type::Double, 1, 0)),
            Kind::String => Some(match node.format() {
                Some("byte") => {
                    let most = node.sizes().max_length.map_or(MAX_REQUEST_SIZE - 2, |most| most.max(0));
                    Decl::scalar(Type::Bytes, 2, most)
                }
                Some("duration") => Decl::scalar(Type::Duration, 3, 32),
                Some("date") => Decl::scalar(Type::Timestamp, 12, 12),
                Some("date-time") => Decl::scalar(Type::Timestamp, 21, 32),
                _ => Decl::scalar(Type::String, 2, text_length(node)),
            }),
            Kind::Array => {
                let items = node.items()?;
                let items = self.of(items, items.is(EMBEDDED))?;
                let fit = (MAX_REQUEST_SIZE - 2) / (items.min_size + 1);
                let max_elements = node.sizes().max_items.map_or(fit, |most| most.max(0));
                let ty = Type::list(items.ty.clone());
                Some(Decl { kind: DeclKind::List(items), max_elements, min_size: 2, ty })
            }
            Kind::Object => match node.values() {
                Some(values) => {
                    let values = self.of(values, values.is(EMBEDDED))?;
                    let fit = (MAX_REQUEST_SIZE - 2) / (values.min_size + 6);
                    let max_elements = node.sizes().max_properties.map_or(fit, |most| most.max(0));
                    let ty = Type::map(values.ty.clone());
                    Some(Decl { kind: DeclKind::Map(values), max_elements, min_size: 2, ty })
                }
                None => Some(self.object(node, resource)),
            },
        }
    }

    fn object(&mut self, node: &Node, resource: bool) -> Decl {
        let resource = resource && !declares_metadata(node);
        let mut fields = HashMap::with_capacity(node.properties.len());
        let mut types = Vec::with_capacity(node.properties.len());
        let mut min_size = 2;
        let mut add = |name: &str, decl: Arc<Decl>, required: bool| {
            if required {
                min_size += name.len() as i64 + decl.min_size + 4;
            }
            for name in names(name) {
                types.push((name.clone(), decl.ty.clone()));
                fields.insert(name, decl.clone());
            }
        };
        for (name, property) in &node.properties {
            if resource && crate::prune::META_FIELDS.contains(&&**name) {
                continue;
            }
            let Some(decl) = self.of(property, property.is(EMBEDDED)) else { continue };
            add(name, decl, property.default().is_none() && node.more().required.contains(name));
        }
        if resource {
            let text = || Arc::new(Decl::scalar(Type::String, 2, MAX_REQUEST_SIZE - 2));
            let names = ["name", "generateName"];
            let metadata = Decl {
                ty: Type::object("object", names.map(|name| (name, Type::String))),
                kind: DeclKind::Object(names.map(|name| (name.to_string(), text())).into()),
                max_elements: 0,
                min_size: 2,
            };
            add("apiVersion", text(), false);
            add("kind", text(), false);
            add("metadata", Arc::new(metadata), false);
        }
        let ty = Type::object("object", types.iter().map(|(name, ty)| (name.as_str(), ty.clone())));
        Decl { kind: DeclKind::Object(fields), max_elements: 0, min_size, ty }
    }
}

impl Decl {
    fn scalar(ty: Type, min_size: i64, max_elements: i64) -> Decl {
        Decl { kind: DeclKind::Scalar, max_elements, min_size, ty }
    }
}

fn text_length(node: &Node) -> i64 {
    match node.sizes().max_length {
        // Characters have up to four bytes.
        Some(most) => most.max(0).saturating_mul(4),
        None if !node.is(INT_OR_STRING) && !node.more().values.is_empty() => {
            let texts = node.more().values.iter().filter_map(|value| value.as_str());
            texts.map(|text| text.len() as i64).max().unwrap_or(0)
        }
        None => MAX_REQUEST_SIZE - 2,
    }
}

const RESERVED: &[&str] = &[
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// The name that expressions have for a field; None where they can have none.
pub fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(char) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("__") {
            out.push_str("__underscores__");
            rest = after;
            continue;
        }
        match char {
            '.' => out.push_str("__dot__"),
            '-' => out.push_str("__dash__"),
            '/' => out.push_str("__slash__"),
            '_' => out.push('_'),
            char if char.is_ascii_alphanumeric() => out.push(char),
            _ => return None,
        }
        rest = &rest[char.len_utf8()..];
    }
    Some(out)
}

/// All names that expressions have for a field: a word of the language is one after a dot, too.
pub fn names(name: &str) -> impl Iterator<Item = String> {
    let plain = RESERVED.contains(&name).then(|| name.to_string());
    escape(name).into_iter().chain(plain)
}

/// Whether a resource's schema says all of its type and metadata itself; else they have the fields that all have.
pub fn declares_metadata(node: &Node) -> bool {
    let is =
        |node: &Node, name: &str, kind: Kind| node.property(name).is_some_and(|field| field.kind == kind);
    is(node, "kind", Kind::String)
        && is(node, "apiVersion", Kind::String)
        && is(node, "metadata", Kind::Object)
        && node.property("metadata").is_some_and(|metadata| {
            is(metadata, "name", Kind::String) && is(metadata, "generateName", Kind::String)
        })
}

/// Whether a map's values are no objects of their own: an expression sees them by their keys.
pub fn is_map(node: &Node) -> bool {
    node.additional == Additional::Schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_as_expressions_write_them() {
        let cases = [
            ("foo", Some("foo")),
            ("namespace", Some("__namespace__")),
            ("foo-bar.baz/x", Some("foo__dash__bar__dot__baz__slash__x")),
            ("a__b", Some("a__underscores__b")),
            ("1a", None),
            ("é", None),
            ("a b", None),
        ];
        cases.iter().for_each(|(name, escaped)| assert_eq!(escape(name).as_deref(), *escaped, "{name}"));
    }
}
