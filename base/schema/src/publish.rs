//! The schema as OpenAPI publishes it: clients find every field that an object may have, type and metadata
//! included. OpenAPI v2 cannot say all of it; what it cannot say is left out.

use ferry_api::GroupVersionKind;
use serde_json::{Map, Value, json};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
const V2: &str = "#/definitions/";
const V3: &str = "#/components/schemas/";

const CONVENTIONS: &str =
    "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";

/// The definition for OpenAPI v3; without a schema any object.
pub fn v3(open_api_v3_schema: Option<&Value>, gvk: &GroupVersionKind, _namespaced: bool) -> Value {
    definition(open_api_v3_schema.and_then(Value::as_object), gvk, Version::V3)
}

/// The definition for OpenAPI v2: only what v2 can say. A definition with `spec.preserveUnknownFields` has no
/// schema here.
pub fn v2(open_api_v3_schema: Option<&Value>, gvk: &GroupVersionKind, _namespaced: bool) -> Value {
    let schema = open_api_v3_schema.and_then(Value::as_object);
    definition(
        schema.filter(|schema| !is_true(schema, "x-kubernetes-preserve-unknown-fields")),
        gvk,
        Version::V2,
    )
}

/// The list kind's definition. `refers` is where definitions stand: `#/components/schemas/` in v3,
/// `#/definitions/` in v2.
pub fn list(gvk: &GroupVersionKind, list_kind: &str, plural: &str, refers: &str) -> Value {
    let version = if refers == V2 { Version::V2 } else { Version::V3 };
    let item = format!("{refers}{}", name(gvk));
    let items = format!("List of {plural}. More info: {CONVENTIONS}");
    let metadata = format!("Standard list metadata. More info: {CONVENTIONS}#types-kinds");
    let mut out = json!({
        "description": format!("{list_kind} is a list of {}", gvk.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "items": {"description": items, "type": "array", "items": {"$ref": item}},
            "metadata": version.reference(LIST_META, &metadata),
        },
        "x-kubernetes-group-version-kind": [kind(gvk, list_kind)],
    });
    type_meta(&mut out["properties"]);
    out
}

/// `com.example.v1.Widget`: the name of a kind's definition.
pub fn name(gvk: &GroupVersionKind) -> String {
    let mut group: Vec<&str> = gvk.group.split('.').collect();
    group.reverse();
    format!("{}.{}.{}", group.join("."), gvk.version, gvk.kind)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    V2,
    V3,
}

impl Version {
    /// A reference has no siblings in v3, so a description stands around it.
    fn reference(self, name: &str, description: &str) -> Value {
        match self {
            Version::V2 => json!({"description": description, "$ref": format!("{V2}{name}")}),
            Version::V3 => {
                json!({"description": description, "allOf": [{"$ref": format!("{V3}{name}")}]})
            }
        }
    }

    fn object_meta(self) -> Value {
        self.reference(OBJECT_META, &format!("Standard object's metadata. More info: {CONVENTIONS}#metadata"))
    }
}

fn definition(schema: Option<&Map<String, Value>>, gvk: &GroupVersionKind, version: Version) -> Value {
    let mut out = match schema {
        None => json!({"type": "object"}),
        Some(schema) => {
            let mut out = Value::Object(published(schema, version, false));
            if !out["properties"].is_object() {
                out["properties"] = json!({});
            }
            out["properties"]["metadata"] = version.object_meta();
            type_meta(&mut out["properties"]);
            out
        }
    };
    out["x-kubernetes-group-version-kind"] = json!([kind(gvk, &gvk.kind)]);
    out
}

fn kind(gvk: &GroupVersionKind, kind: &str) -> Value {
    json!({"group": gvk.group, "version": gvk.version, "kind": kind})
}

fn type_meta(properties: &mut Value) {
    properties["apiVersion"] = json!({"type": "string", "description": format!(
        "APIVersion defines the versioned schema of this representation of an object. Servers should convert \
         recognized schemas to the latest internal value, and may reject unrecognized values. More info: \
         {CONVENTIONS}#resources"
    )});
    properties["kind"] = json!({"type": "string", "description": format!(
        "Kind is a string value representing the REST resource this object represents. Servers may infer this \
         from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: \
         {CONVENTIONS}#types-kinds"
    )});
}

/// The words of a schema that are published as they are, where they say anything.
const WORDS: &[&str] = &[
    "description",
    "type",
    "title",
    "default",
    "externalDocs",
    "example",
    "format",
    "maximum",
    "minimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "multipleOf",
    "enum",
    "maxProperties",
    "minProperties",
    "required",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-validations",
];
/// Those that are published when they are true.
const SWITCHES: &[&str] = &[
    "nullable",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "uniqueItems",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
];
const COMBINATIONS: &[&str] = &["allOf", "anyOf", "oneOf"];

fn is_true(schema: &Map<String, Value>, name: &str) -> bool {
    schema.get(name) == Some(&Value::Bool(true))
}

/// `nested`: below `allOf` and its like.
fn published(schema: &Map<String, Value>, version: Version, nested: bool) -> Map<String, Value> {
    let mut out = Map::new();
    for word in WORDS {
        match schema.get(*word) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) if text.is_empty() => {}
            Some(Value::Array(items)) if items.is_empty() => {}
            Some(value) => {
                out.insert((*word).to_string(), value.clone());
            }
        }
    }
    for switch in SWITCHES {
        if is_true(schema, switch) {
            out.insert((*switch).to_string(), true.into());
        }
    }
    let deeper = |value: &Value, nested: bool| match value {
        Value::Object(schema) => Value::Object(published(schema, version, nested)),
        other => other.clone(),
    };
    if let Some(Value::Object(properties)) = schema.get("properties").filter(|value| *value != &json!({})) {
        let properties = properties.iter().map(|(name, schema)| (name.clone(), deeper(schema, nested)));
        out.insert("properties".into(), Value::Object(properties.collect()));
    }
    if let Some(items) = schema.get("items").filter(|items| items.is_object()) {
        out.insert("items".into(), deeper(items, nested));
    }
    if let Some(values) = schema.get("additionalProperties").filter(|_| !nested) {
        out.insert("additionalProperties".into(), deeper(values, nested));
    }
    if version == Version::V3 {
        for word in COMBINATIONS {
            if let Some(Value::Array(schemas)) = schema.get(*word).filter(|value| *value != &json!([])) {
                out.insert((*word).to_string(), schemas.iter().map(|schema| deeper(schema, true)).collect());
            }
        }
        if let Some(not) = schema.get("not") {
            out.insert("not".into(), deeper(not, true));
        }
        unfold_int_or_string(&mut out, nested);
    } else {
        narrow(&mut out, schema);
    }
    embed(&mut out, version);
    out
}

/// `x-kubernetes-int-or-string` in words that other tools know.
fn unfold_int_or_string(out: &mut Map<String, Value>, nested: bool) {
    if nested || !is_true(out, "x-kubernetes-int-or-string") {
        return;
    }
    let either = json!([{"type": "integer"}, {"type": "string"}]);
    let first = out.get("allOf").and_then(|all| all.get(0)?.get("anyOf"));
    if out.get("anyOf") == Some(&either) || first == Some(&either) {
        return;
    }
    if !out.contains_key("anyOf") {
        out.insert("anyOf".into(), either);
        return;
    }
    let mut all = vec![json!({"anyOf": either})];
    if let Some(Value::Array(rest)) = out.remove("allOf") {
        all.extend(rest);
    }
    out.insert("allOf".into(), all.into());
}

/// Takes out what OpenAPI v2, or clients that read it, would get wrong: kubectl refuses nulls and unknown
/// fields where v2 names a type.
fn narrow(out: &mut Map<String, Value>, schema: &Map<String, Value>) {
    if out.remove("nullable").is_some() {
        for word in ["type", "items", "properties"] {
            out.remove(word);
        }
    }
    if is_true(out, "x-kubernetes-preserve-unknown-fields") {
        out.remove("items");
        out.remove("properties");
        if out.get("type") == Some(&"object".into()) {
            out.remove("type");
        }
    }
    if !out.contains_key("items") && out.get("type") == Some(&"array".into()) {
        out.remove("type");
    }
    let nullable =
        |schema: Option<&Value>| schema.and_then(|schema| schema.get("nullable")) == Some(&true.into());
    if nullable(schema.get("additionalProperties")) {
        out.remove("required");
    }
    if out.contains_key("properties")
        && let Some(Value::Array(required)) = out.get_mut("required")
    {
        let property = |name: &str| schema.get("properties").and_then(|properties| properties.get(name));
        required.retain(|name| !nullable(name.as_str().and_then(property)));
        if required.is_empty() {
            out.remove("required");
        }
    }
}

/// Type and metadata of an embedded resource.
fn embed(out: &mut Map<String, Value>, version: Version) {
    let preserves = version == Version::V2 && is_true(out, "x-kubernetes-preserve-unknown-fields");
    if preserves || !is_true(out, "x-kubernetes-embedded-resource") {
        return;
    }
    let properties = out.entry("properties").or_insert_with(|| json!({}));
    properties["apiVersion"] = json!({"type": "string", "description": format!(
        "apiVersion defines the versioned schema of this representation of an object. More info: \
         {CONVENTIONS}#resources"
    )});
    properties["kind"] = json!({"type": "string", "description": format!(
        "kind is a string value representing the type of this object. In CamelCase. More info: \
         {CONVENTIONS}#types-kinds"
    )});
    properties["metadata"] = version.object_meta();
    if let Value::Array(required) = out.entry("required").or_insert_with(|| json!([])) {
        for name in ["kind", "apiVersion"] {
            if !required.contains(&name.into()) {
                required.push(name.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gvk() -> GroupVersionKind {
        GroupVersionKind::new("example.com", "v1", "Widget")
    }

    /// The published form of a property `x`.
    fn check(schema: Value, expected_v3: Value, expected_v2: Value) {
        let schema = json!({"type": "object", "properties": {"x": schema}});
        assert_eq!(v3(Some(&schema), &gvk(), true)["properties"]["x"], expected_v3);
        assert_eq!(v2(Some(&schema), &gvk(), true)["properties"]["x"], expected_v2);
    }

    #[test]
    fn a_definition_has_type_metadata_and_kind() {
        let out = v3(
            Some(
                &json!({"type": "object", "description": "d", "properties": {"metadata": {"type": "object"}}}),
            ),
            &gvk(),
            true,
        );
        assert_eq!(out["description"], "d");
        assert_eq!(
            out["properties"]["metadata"]["allOf"][0]["$ref"],
            "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        );
        assert_eq!(out["properties"]["kind"]["type"], "string");
        assert_eq!(
            out["x-kubernetes-group-version-kind"],
            json!([{"group": "example.com", "version": "v1", "kind": "Widget"}])
        );
        let out =
            v2(Some(&json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})), &gvk(), true);
        assert_eq!(
            out,
            json!({"type": "object", "x-kubernetes-group-version-kind": [{"group": "example.com", "version": "v1", "kind": "Widget"}]})
        );
        assert_eq!(v3(None, &gvk(), true)["type"], "object");
        let out = list(&gvk(), "WidgetList", "widgets", V2);
        assert_eq!(out["properties"]["items"]["items"]["$ref"], "#/definitions/com.example.v1.Widget");
        assert_eq!(out["x-kubernetes-group-version-kind"][0]["kind"], "WidgetList");
    }

    #[test]
    fn v2_leaves_out_what_it_cannot_say() {
        let combined =
            json!({"type": "string", "oneOf": [{"pattern": "a"}], "not": {"pattern": "b"}, "maxLength": 3});
        check(combined.clone(), combined, json!({"type": "string", "maxLength": 3}));
        check(
            json!({"type": "object", "nullable": true, "properties": {"a": {"type": "string"}}}),
            json!({"type": "object", "nullable": true, "properties": {"a": {"type": "string"}}}),
            json!({}),
        );
        check(
            json!({"type": "object", "required": ["a", "b"], "properties": {"a": {"type": "string", "nullable": true}, "b": {"type": "string"}}}),
            json!({"type": "object", "required": ["a", "b"], "properties": {"a": {"type": "string", "nullable": true}, "b": {"type": "string"}}}),
            json!({"type": "object", "required": ["b"], "properties": {"a": {}, "b": {"type": "string"}}}),
        );
        check(
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "string"}}}),
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "string"}}}),
            json!({"x-kubernetes-preserve-unknown-fields": true}),
        );
    }

    #[test]
    fn int_or_string_is_told_in_v3() {
        let either = json!([{"type": "integer"}, {"type": "string"}]);
        check(
            json!({"x-kubernetes-int-or-string": true}),
            json!({"x-kubernetes-int-or-string": true, "anyOf": either}),
            json!({"x-kubernetes-int-or-string": true}),
        );
        check(
            json!({"x-kubernetes-int-or-string": true, "anyOf": [{"pattern": "a"}]}),
            json!({"x-kubernetes-int-or-string": true, "anyOf": [{"pattern": "a"}], "allOf": [{"anyOf": either}]}),
            json!({"x-kubernetes-int-or-string": true}),
        );
    }

    #[test]
    fn embedded_resources_have_type_and_metadata() {
        let schema = json!({"type": "object", "properties": {"x": {"type": "object", "x-kubernetes-embedded-resource": true,
            "properties": {"spec": {"type": "object"}}}}});
        let out = v3(Some(&schema), &gvk(), true);
        assert_eq!(out["properties"]["x"]["required"], json!(["kind", "apiVersion"]));
        assert!(out["properties"]["x"]["properties"]["metadata"].is_object());
    }
}
