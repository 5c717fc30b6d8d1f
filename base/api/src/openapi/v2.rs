//! OpenAPI v2: everything in one document.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::descriptions::Descriptions;
use super::operations::{self, META, Operation, Parameter, Path};
use super::schemas::{self, Version, reference};
use super::{group_versions, v3};
use crate::kinds::Kind;
use crate::types::Types;

/// The version of the API that the documents describe.
pub const API_VERSION: &str = "1.36";

/// All but paths, definitions and parameters.
pub fn frame() -> Value {
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": API_VERSION},
        "securityDefinitions": {"BearerToken": {"type": "apiKey", "name": "authorization", "in": "header"}},
        "security": [{"BearerToken": []}],
    })
}

/// Paths, definitions and parameters of kinds, and of what stands beside all kinds.
pub fn document(kinds: &[Arc<Kind>]) -> Value {
    let mut served = vec![
        operations::version(),
        v3::groups("/api/", "getCoreAPIVersions", "core", "APIVersions"),
        v3::groups("/apis/", "getAPIVersions", "apis", "APIGroupList"),
    ];
    served.extend(operations::issuer());
    sections(served, kinds)
}

/// The same of kinds alone, with all definitions that they refer to.
pub fn part(kinds: &[Arc<Kind>]) -> Value {
    sections(Vec::new(), kinds)
}

fn sections(mut served: Vec<Path>, kinds: &[Arc<Kind>]) -> Value {
    // The table of descriptions is unpacked and read once for all that follows, not once for each parameter.
    let _descriptions = Descriptions::get();
    for (group, versions) in group_versions(kinds) {
        if !group.is_empty() {
            served.push(v3::group_document(group));
        }
        served.extend(versions.iter().map(|version| v3::version_document(group, version)));
    }
    served.extend(kinds.iter().flat_map(|kind| operations::of_kind(kind)));
    let kinds: Vec<&Kind> = kinds.iter().map(Arc::as_ref).collect();
    let mut definitions = schemas::definitions(&served, &kinds, Version::V2);
    add_registered_kinds(&mut definitions);

    let mut shared = BTreeMap::new();
    let paths: Map<String, Value> =
        served.iter().map(|path| (path.path.clone(), path_item(path, &mut shared))).collect();
    json!({"paths": paths, "definitions": definitions, "parameters": shared})
}

pub(super) fn response_description(code: u16) -> &'static str {
    match code {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        _ => "Unauthorized",
    }
}

/// Options and events of a watch exist in every group and version that clients may know, served or not.
fn add_registered_kinds(definitions: &mut Map<String, Value>) {
    // Versions without types of their own any more.
    let retired = [
        ("apiextensions.k8s.io", "v1beta1"),
        ("apiregistration.k8s.io", "v1beta1"),
        ("authentication.k8s.io", "v1alpha1"),
    ];
    let known = Types::builtin().iter().flat_map(|ty| &ty.kinds);
    let mut versions: Vec<(&str, &str)> =
        known.map(|gvk| (gvk.group.as_ref(), gvk.version.as_ref())).chain(retired).collect();
    // Documents, and measurements: neither is deleted or watched.
    versions.retain(|(group, _)| !["apidiscovery.k8s.io", "metrics.k8s.io"].contains(group));
    versions.sort_unstable();
    versions.dedup();
    for kind in ["DeleteOptions", "WatchEvent"] {
        let kinds: Vec<Value> = versions
            .iter()
            .map(|(group, version)| json!({"group": group, "version": version, "kind": kind}))
            .collect();
        if let Some(definition) = definitions.get_mut(&format!("{META}.{kind}")) {
            definition["x-kubernetes-group-version-kind"] = kinds.into();
        }
    }
}

type Shared = BTreeMap<String, Value>;

fn path_item(path: &Path, shared: &mut Shared) -> Value {
    let (common, own) = operations::split_parameters(path);
    let mut item = Map::new();
    if !common.is_empty() {
        item.insert("parameters".into(), common.iter().map(|p| parameter(p, shared)).collect());
    }
    for (operation, parameters) in path.operations.iter().zip(own) {
        item.insert(operation.method.into(), operation_object(operation, &parameters, shared));
    }
    Value::Object(item)
}

fn operation_object(operation: &Operation, parameters: &[Parameter], shared: &mut Shared) -> Value {
    let mut out = json!({
        "operationId": operation.id, "tags": [operation.tag], "schemes": ["https"],
        "produces": operation.produces, "responses": responses(operation),
    });
    if !operation.consumes.is_empty() {
        out["consumes"] = json!(operation.consumes);
    }
    let body = operation.body.as_ref().map(|body| {
        let mut parameter =
            json!({"name": "body", "in": "body", "schema": reference(&body.schema, Version::V2)});
        if body.required {
            parameter["required"] = true.into();
        }
        parameter
    });
    let parameters: Vec<Value> =
        body.into_iter().chain(parameters.iter().map(|p| parameter(p, shared))).collect();
    if !parameters.is_empty() {
        out["parameters"] = parameters.into();
    }
    operation.extend(&mut out);
    out
}

fn responses(operation: &Operation) -> Value {
    let mut out = Map::new();
    for (code, answer) in &operation.responses {
        let schema = answer.schema(Version::V2);
        out.insert(code.to_string(), json!({"description": response_description(*code), "schema": schema}));
    }
    out.insert("401".into(), json!({"description": response_description(401)}));
    Value::Object(out)
}

/// Parameters are defined once and referred to: nearly every operation has the same few.
fn parameter(parameter: &Parameter, shared: &mut Shared) -> Value {
    let key = format!("{}-{}", parameter.name, parameter.place);
    shared.entry(key.clone()).or_insert_with(|| {
        let mut out = json!({
            "name": parameter.name, "in": parameter.place, "type": parameter.kind, "uniqueItems": true,
        });
        if let Some(text) = Descriptions::get().of_parameter(&parameter.name) {
            out["description"] = text.into();
        }
        if parameter.place == "path" {
            out["required"] = true.into();
        }
        out
    });
    json!({"$ref": format!("#/parameters/{key}")})
}
