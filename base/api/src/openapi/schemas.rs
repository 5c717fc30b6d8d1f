//! Definitions from field rows, and which of them a document needs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::codec::{Codec, CustomSchema};
use crate::kinds::Kind;
use crate::types::{Field, ListType, Shape, Type, Types};

use super::descriptions::Descriptions;
use super::operations::{META, Path, ResponseBody};

/// The two versions differ in where definitions stand and in what a property says of its default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V2,
    V3,
}

const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const RAW_EXTENSION: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";
const JSON: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON";

/// All definitions that the paths lead to. `kinds` are those among them that bring their own.
pub fn definitions(paths: &[Path], kinds: &[&Kind], version: Version) -> Map<String, Value> {
    let custom = custom_definitions(kinds);
    let descriptions = Descriptions::get();
    let mut wanted: BTreeSet<String> = BTreeSet::new();
    for operation in paths.iter().flat_map(|path| &path.operations) {
        wanted.extend(operation.body.iter().map(|body| body.schema.clone()));
        wanted.extend(operation.responses.iter().filter_map(|(_, answer)| match answer {
            ResponseBody::Definition(name) => Some(name.clone()),
            ResponseBody::Text => None,
        }));
    }
    let mut definitions = Map::new();
    while let Some(name) = wanted.pop_first() {
        if definitions.contains_key(&name) {
            continue;
        }
        let (definition, references) = definition(&name, &custom, version, &descriptions);
        wanted.extend(references);
        definitions.insert(name, definition);
    }
    definitions
}

pub fn reference(name: &str, version: Version) -> Value {
    match version {
        Version::V2 => json!({"$ref": format!("#/definitions/{name}")}),
        Version::V3 => json!({"$ref": format!("#/components/schemas/{name}")}),
    }
}

/// The definitions that custom resources bring: those of the kinds and of their lists, by name.
type CustomDefinitions<'k> = BTreeMap<String, (&'k dyn CustomSchema, bool)>;

fn custom_definitions<'k>(kinds: &[&'k Kind]) -> CustomDefinitions<'k> {
    let mut definitions = BTreeMap::new();
    for kind in kinds {
        if let Codec::Custom { schema, .. } = &kind.codec {
            definitions.insert(kind.definition_name().into_owned(), (schema.as_ref(), false));
            definitions.insert(kind.list_definition_name(), (schema.as_ref(), true));
        }
    }
    definitions
}

fn definition(
    name: &str,
    custom: &CustomDefinitions<'_>,
    version: Version,
    descriptions: &Descriptions,
) -> (Value, Vec<String>) {
    if let Some(mut scalar) = scalar_definition(name, version) {
        if let Some(text) = descriptions.of_type(name) {
            scalar["description"] = text.into();
        }
        return (scalar, Vec::new());
    }
    let types = Types::builtin();
    match (types.by_name(name), custom.get(name)) {
        (Some(id), _) => {
            let mut writer = Writer { types, version, descriptions, references: Vec::new() };
            let definition = writer.structure(types.get(id));
            (definition, writer.references)
        }
        (None, Some((schema, is_list))) => {
            let definition = if *is_list { schema.open_api_list(version) } else { schema.open_api(version) };
            let mut references = Vec::new();
            collect_references(&definition, &mut references);
            (definition, references)
        }
        (None, None) => (json!({"type": "object"}), Vec::new()),
    }
}

/// The names of the definitions that a definition refers to.
fn collect_references(definition: &Value, references: &mut Vec<String>) {
    match definition {
        Value::Object(map) => {
            if let Some(Value::String(reference)) = map.get("$ref") {
                references.extend(reference.rsplit('/').next().map(str::to_owned));
            }
            map.values().for_each(|value| collect_references(value, references));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_references(item, references)),
        _ => {}
    }
}

fn scalar_definition(name: &str, version: Version) -> Option<Value> {
    Some(match (name, version) {
        (QUANTITY, Version::V2) => json!({"type": "string"}),
        (QUANTITY, Version::V3) => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
        (INT_OR_STRING, Version::V2) => json!({"type": "string", "format": "int-or-string"}),
        (INT_OR_STRING, Version::V3) => {
            json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
        }
        (RAW_EXTENSION, _) => json!({"type": "object"}),
        (JSON, _) => json!({}),
        _ => match name.strip_prefix(META)? {
            ".Time" | ".MicroTime" => json!({"type": "string", "format": "date-time"}),
            ".FieldsV1" | ".Patch" => json!({"type": "object"}),
            _ => return None,
        },
    })
}

struct Writer<'t> {
    types: &'t Types,
    version: Version,
    descriptions: &'t Descriptions,
    references: Vec<String>,
}

impl Writer<'_> {
    fn structure(&mut self, ty: &Type) -> Value {
        if ty.either.is_some() {
            return json!({});
        }
        let mut out = Map::from_iter([("type".to_string(), json!("object"))]);
        if let Some(text) = self.descriptions.of_type(&ty.name) {
            out.insert("description".into(), text.into());
        }
        let published = ty.fields.iter().filter(|field| !field.unpublished);
        let properties: Map<String, Value> =
            published.map(|field| (field.name.to_string(), self.property(ty, field))).collect();
        if !properties.is_empty() {
            out.insert("properties".into(), Value::Object(properties));
        }
        let required: Vec<&str> = ty
            .declared
            .iter()
            .map(AsRef::as_ref)
            .filter(|name| ty.field(name).is_some_and(|field| field.required))
            .collect();
        if !required.is_empty() {
            out.insert("required".into(), json!(required));
        }
        if ty.atomic {
            out.insert("x-kubernetes-map-type".into(), "atomic".into());
        }
        if ty.preserve_unknown {
            out.insert("x-kubernetes-preserve-unknown-fields".into(), true.into());
        }
        if let Some(union) = &ty.union {
            let fields: BTreeMap<&str, &str> =
                union.fields.iter().map(|(field, name)| (field.as_ref(), name.as_ref())).collect();
            let mut entry = json!({"fields-to-discriminateBy": fields});
            if let Some(discriminator) = &union.discriminator {
                entry["discriminator"] = json!(discriminator);
            }
            out.insert("x-kubernetes-unions".into(), json!([entry]));
        }
        if !ty.kinds.is_empty() {
            let kinds: Vec<Value> = ty
                .kinds
                .iter()
                .map(|gvk| json!({"group": gvk.group, "version": gvk.version, "kind": gvk.kind}))
                .collect();
            out.insert("x-kubernetes-group-version-kind".into(), kinds.into());
        }
        Value::Object(out)
    }

    fn property(&mut self, ty: &Type, field: &Field) -> Value {
        let default = match &field.default {
            Some(default) => Some(default.clone()),
            None if field.pointer => None,
            None => self.implied_default(&field.shape, field.keep),
        };
        let mut out = self.shape(&field.shape, default);
        if let Some(text) = self.descriptions.of_field(ty, &field.name) {
            put(&mut out, "description", text);
        }
        if !field.values.is_empty() {
            let element = ["items", "additionalProperties"].into_iter().find(|name| out.contains_key(*name));
            match element.and_then(|name| out.get_mut(name)) {
                Some(element) => element["enum"] = json!(field.values),
                None => {
                    out.insert("enum".into(), json!(field.values));
                }
            }
        }
        match &field.list {
            ListType::Unset => {}
            ListType::Atomic => put(&mut out, "x-kubernetes-list-type", "atomic"),
            ListType::Set => put(&mut out, "x-kubernetes-list-type", "set"),
            ListType::Map(keys) => {
                put(&mut out, "x-kubernetes-list-type", "map");
                out.insert("x-kubernetes-list-map-keys".into(), json!(keys));
            }
        }
        if field.atomic {
            put(&mut out, "x-kubernetes-map-type", "atomic");
        }
        if field.granular {
            put(&mut out, "x-kubernetes-map-type", "granular");
        }
        let strategy = [
            ("merge", field.patch.merge),
            ("replace", field.patch.replace),
            ("retainKeys", field.patch.retain_keys),
        ];
        let strategy: Vec<&str> =
            strategy.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect();
        if !strategy.is_empty() {
            put(&mut out, "x-kubernetes-patch-strategy", &strategy.join(","));
        }
        if let Some(key) = &field.patch.merge_key {
            put(&mut out, "x-kubernetes-patch-merge-key", key);
        }
        self.wrap_reference(out)
    }

    /// The shape as a schema, with the default that its place gives it.
    fn shape(&mut self, shape: &Shape, default: Option<Value>) -> Map<String, Value> {
        let mut out = Map::new();
        match shape {
            Shape::String | Shape::Duration => put(&mut out, "type", "string"),
            Shape::Bytes => typed(&mut out, "string", "byte"),
            Shape::Bool => put(&mut out, "type", "boolean"),
            Shape::Int32 => typed(&mut out, "integer", "int32"),
            Shape::Int64 => typed(&mut out, "integer", "int64"),
            Shape::Double => typed(&mut out, "number", "double"),
            Shape::Quantity => self.refer(&mut out, QUANTITY),
            Shape::IntOrString => self.refer(&mut out, INT_OR_STRING),
            Shape::Time => self.refer(&mut out, &format!("{META}.Time")),
            Shape::MicroTime => self.refer(&mut out, &format!("{META}.MicroTime")),
            Shape::Raw => self.refer(&mut out, RAW_EXTENSION),
            Shape::Json => self.refer(&mut out, JSON),
            Shape::FieldsV1 => self.refer(&mut out, &format!("{META}.FieldsV1")),
            Shape::Struct(id) => self.refer(&mut out, &self.types.get(*id).name),
            Shape::ExtraValue => {
                put(&mut out, "type", "array");
                let item = self.element(&Shape::String);
                out.insert("items".into(), item);
            }
            Shape::List(element) => {
                put(&mut out, "type", "array");
                let item = self.element(element);
                out.insert("items".into(), item);
            }
            Shape::Map(element) => {
                put(&mut out, "type", "object");
                let value = self.element(element);
                out.insert("additionalProperties".into(), value);
            }
        }
        // only the third version says what a value is when it is not given
        if let Some(default) = default.filter(|_| self.version == Version::V3) {
            out.insert("default".into(), default);
        }
        out
    }

    /// What stands in lists and maps is always there, so it has a default.
    fn element(&mut self, shape: &Shape) -> Value {
        let default = self.implied_default(shape, true);
        let out = self.shape(shape, default);
        self.wrap_reference(out)
    }

    /// The value of a field that is never absent: structs always, scalars where they are `kept`.
    fn implied_default(&self, shape: &Shape, kept: bool) -> Option<Value> {
        match shape {
            Shape::Struct(id) if self.types.get(*id).either.is_none() => Some(json!({})),
            Shape::String if kept => Some(json!("")),
            Shape::Bool if kept => Some(json!(false)),
            Shape::Int32 | Shape::Int64 | Shape::Double if kept => Some(json!(0)),
            _ => None,
        }
    }

    fn refer(&mut self, out: &mut Map<String, Value>, name: &str) {
        self.references.push(name.to_string());
        if let Value::Object(reference) = reference(name, self.version) {
            out.extend(reference);
        }
    }

    /// Nothing may stand beside a reference, so in the third version it moves into an allOf.
    fn wrap_reference(&self, mut out: Map<String, Value>) -> Value {
        if self.version == Version::V3
            && out.len() > 1
            && let Some(reference) = out.remove("$ref")
        {
            out.insert("allOf".into(), json!([{"$ref": reference}]));
        }
        Value::Object(out)
    }
}

fn put(out: &mut Map<String, Value>, name: &str, value: &str) {
    out.insert(name.into(), value.into());
}

fn typed(out: &mut Map<String, Value>, kind: &str, format: &str) {
    put(out, "type", kind);
    put(out, "format", format);
}
