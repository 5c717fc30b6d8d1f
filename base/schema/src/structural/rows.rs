//! The schema as field rows: what server-side apply and the codecs read of it.
//!
//! A node that stands in several places is one type. Object metadata is the built-in type, copied into the
//! arena with those it holds.

use std::collections::HashMap;
use std::sync::Arc;

use ferry_api::types::{Field, ListType};
use ferry_api::{GroupVersionKind, Schema, Shape, Type, TypeId, Types};

use super::{ATOMIC_MAP, Additional, EMBEDDED, INT_OR_STRING, Kind, List, Node, PRESERVE_UNKNOWN, Ref};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

pub fn rows(root: &Ref, gvk: &GroupVersionKind) -> Schema {
    let mut arena = Arena::default();
    let fields = arena.fields(root, true);
    let mut group: Vec<&str> = gvk.group.split('.').collect();
    group.reverse();
    let id = arena.types.add(Type {
        name: format!("{}.{}.{}", group.join("."), gvk.version, gvk.kind).into(),
        fields,
        has_type_meta: true,
        preserve_unknown: root.is(PRESERVE_UNKNOWN),
        kinds: vec![gvk.clone()],
        ..Type::default()
    });
    Schema { types: Arc::new(arena.types), root: id }
}

#[derive(Default)]
struct Arena {
    types: Types,
    made: HashMap<usize, TypeId>,
    object_meta: Option<TypeId>,
}

impl Arena {
    fn fields(&mut self, node: &Node, resource: bool) -> Vec<Field> {
        let mut fields = Vec::with_capacity(node.properties.len() + if resource { 3 } else { 0 });
        if resource {
            fields.push(Field::new("apiVersion", Shape::String));
            fields.push(Field::new("kind", Shape::String));
            fields.push(Field::new("metadata", Shape::Struct(self.object_meta())));
        }
        for (name, property) in &node.properties {
            if resource && ["apiVersion", "kind", "metadata"].contains(&&**name) {
                continue;
            }
            let mut field = self.field(name, property);
            field.required = node.more().required.contains(name);
            fields.push(field);
        }
        fields
    }

    fn field(&mut self, name: &str, node: &Ref) -> Field {
        let mut field = Field::new(name, self.shape(node));
        field.pointer = true;
        field.atomic = node.is(ATOMIC_MAP);
        field.default = node.default().cloned();
        field.list = match node.list {
            List::Unset => ListType::Unset,
            List::Atomic => ListType::Atomic,
            List::Set => ListType::Set,
            List::Map => ListType::Map(node.more().list_keys.iter().map(|key| (**key).into()).collect()),
        };
        field
    }

    /// The shape of elements and of a map's values. A list or map among them that is merged in its own way is a
    /// type that stands for it: only fields say how they are merged.
    fn inner(&mut self, node: &Ref) -> Shape {
        let is_merged = match node.kind {
            Kind::Array => matches!(node.list, List::Set | List::Map),
            _ => node.is(ATOMIC_MAP) && node.properties.is_empty() && node.additional == Additional::Schema,
        };
        if !is_merged {
            return self.shape(node);
        }
        if let Some(made) = self.made.get(&node.address()) {
            return Shape::Struct(*made);
        }
        let field = self.field("", node);
        let id = self.types.add(Type { stands_for: Some(Box::new(field)), ..Type::default() });
        self.made.insert(node.address(), id);
        Shape::Struct(id)
    }

    fn shape(&mut self, node: &Ref) -> Shape {
        if node.is(INT_OR_STRING) {
            return Shape::IntOrString;
        }
        match node.kind {
            Kind::String => Shape::String,
            Kind::Integer => Shape::Int64,
            Kind::Number => Shape::Double,
            Kind::Boolean => Shape::Bool,
            Kind::Array => Shape::List(Box::new(match node.items() {
                Some(items) => self.inner(items),
                None => Shape::Json,
            })),
            Kind::Any | Kind::Object => self.object(node),
        }
    }

    fn object(&mut self, node: &Ref) -> Shape {
        let resource = node.is(EMBEDDED);
        if node.properties.is_empty() && !resource {
            match node.additional {
                Additional::Schema => {
                    if let Some(values) = node.values() {
                        return Shape::Map(Box::new(self.inner(values)));
                    }
                }
                Additional::Yes => return Shape::Map(Box::new(Shape::Json)),
                Additional::Unset | Additional::No => {}
            }
            if node.is(PRESERVE_UNKNOWN) {
                return Shape::Json;
            }
        }
        if let Some(made) = self.made.get(&node.address()) {
            return Shape::Struct(*made);
        }
        let fields = self.fields(node, resource);
        let id = self.types.add(Type {
            fields,
            has_type_meta: resource,
            atomic: node.is(ATOMIC_MAP),
            preserve_unknown: node.is(PRESERVE_UNKNOWN) || node.additional == Additional::Yes,
            ..Type::default()
        });
        self.made.insert(node.address(), id);
        Shape::Struct(id)
    }

    fn object_meta(&mut self) -> TypeId {
        if let Some(id) = self.object_meta {
            return id;
        }
        let builtin = Types::builtin();
        let id = match builtin.by_name(OBJECT_META) {
            Some(id) => self.copied(builtin, id),
            None => self.types.add(Type { preserve_unknown: true, ..Type::default() }),
        };
        self.object_meta = Some(id);
        id
    }

    /// A built-in type with those it holds; metadata does not hold itself.
    fn copied(&mut self, from: &Types, id: TypeId) -> TypeId {
        let ty = from.get(id);
        let fields = ty.fields.iter().map(|field| {
            let shape = self.copied_shape(from, &field.shape);
            Field { shape, ..field.clone() }
        });
        let fields = fields.collect();
        self.types.add(Type { name: ty.name.clone(), fields, atomic: ty.atomic, ..Type::default() })
    }

    fn copied_shape(&mut self, from: &Types, shape: &Shape) -> Shape {
        match shape {
            Shape::Struct(id) => Shape::Struct(self.copied(from, *id)),
            Shape::List(element) => Shape::List(Box::new(self.copied_shape(from, element))),
            Shape::Map(value) => Shape::Map(Box::new(self.copied_shape(from, value))),
            scalar => scalar.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Structural;

    #[test]
    fn rows_say_how_values_are_merged() {
        let item = json!({"type": "object", "required": ["name"], "properties": {
            "name": {"type": "string"}, "port": {"type": "integer", "default": 80}}});
        let schema = json!({"type": "object", "properties": {
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}}},
            "spec": {"type": "object", "properties": {
                "plain": {"type": "array", "items": item},
                "keyed": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "port"], "items": item},
                "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "atomic": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": {"type": "string"}}},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "sets": {"type": "object", "additionalProperties": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "either": {"x-kubernetes-int-or-string": true},
                "template": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
            }},
        }});
        let gvk = GroupVersionKind::new("example.com", "v1", "Widget");
        let rows = Structural::parse(&schema).expect("a schema").rows(&gvk);
        assert_eq!(&*rows.root().name, "com.example.v1.Widget");
        assert_eq!(rows.types.by_kind(&gvk), Some(rows.root));
        let below = |ty: &Type, name: &str| match ty.field(name).map(|field| field.shape.clone()) {
            Some(Shape::Struct(id)) => id,
            other => panic!("{name} is {other:?}"),
        };
        let metadata = rows.types.get(below(rows.root(), "metadata"));
        assert!(metadata.field("ownerReferences").is_some(), "metadata is the built-in type");
        let spec = rows.types.get(below(rows.root(), "spec"));
        let field = |name: &str| spec.field(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(field("plain").list, ListType::Unset);
        assert_eq!(field("keyed").list, ListType::Map(vec!["name".into(), "port".into()]));
        assert_eq!(field("keyed").shape, field("plain").shape, "equal schemas are one type");
        assert_eq!(field("set").list, ListType::Set);
        assert!(field("atomic").atomic);
        assert_eq!(field("labels").shape, Shape::Map(Box::new(Shape::String)));
        let Shape::Map(values) = &field("sets").shape else { panic!("a map") };
        let Shape::Struct(id) = **values else { panic!("of lists that are merged") };
        let list = rows.types.get(id).stands_for.as_ref().expect("a list");
        assert_eq!((&list.list, &list.shape), (&ListType::Set, &Shape::List(Box::new(Shape::String))));
        assert_eq!(field("free").shape, Shape::Json);
        assert_eq!(field("either").shape, Shape::IntOrString);
        let template = rows.types.get(below(spec, "template"));
        assert!(template.preserve_unknown && template.has_type_meta);
        assert_eq!(below(template, "metadata"), below(rows.root(), "metadata"));
        let Shape::List(element) = &field("keyed").shape else { panic!("a list") };
        let Shape::Struct(id) = **element else { panic!("of objects") };
        assert_eq!(rows.types.get(id).field("port").and_then(|field| field.default.clone()), Some(json!(80)));
    }
}
