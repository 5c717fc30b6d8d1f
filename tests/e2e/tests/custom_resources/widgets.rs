//! The definition that most tests use, and its objects.

use serde_json::{Value, json};

pub const NAME: &str = "widgets.example.com";
pub const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

pub fn definition() -> Value {
    definition_of("widgets", "Widget", json!([version("v1", true)]))
}

pub fn definition_of(plural: &str, kind: &str, versions: Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.example.com")},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind, "shortNames": [format!("{}g", &plural[..1])], "categories": ["all"]},
            "versions": versions,
        },
    })
}

pub fn version(name: &str, storage: bool) -> Value {
    json!({
        "name": name, "served": true, "storage": storage,
        "schema": {"openAPIV3Schema": schema()},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": "Color", "type": "string", "jsonPath": ".spec.color"},
            {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "priority": 1},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
        "selectableFields": [{"jsonPath": ".spec.color"}],
    })
}

pub fn schema() -> Value {
    json!({"type": "object", "description": "A thing with a color.", "properties": {
        "spec": {"type": "object", "required": ["color"], "properties": {
            "color": {"type": "string", "enum": ["red", "green", "blue"], "description": "Its color."},
            "size": {"type": "integer", "minimum": 1, "default": 3},
            "replicas": {"type": "integer"},
            "parts": {
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"], "properties": {
                    "name": {"type": "string"}, "count": {"type": "integer"},
                }},
            },
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }},
        "status": {"type": "object", "properties": {
            "replicas": {"type": "integer"}, "selector": {"type": "string"}, "phase": {"type": "string"},
        }},
    }})
}

pub fn widget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

pub fn red(name: &str) -> Value {
    widget(name, json!({"color": "red"}))
}
