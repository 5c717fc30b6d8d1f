//! OpenAPI v3: a document for each group and version, and for what stands beside them.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::descriptions::Descriptions;
use super::operations::{self, Operation, Parameter, Path};
use super::schemas::{self, Version, reference};
use super::{base_path, capitalized, group_identifier, group_versions, tag};
use crate::kinds::Kind;

/// The documents there are, by their path below `/openapi/v3/`.
pub fn paths(kinds: &[Arc<Kind>]) -> Vec<String> {
    let mut paths: Vec<String> =
        [".well-known/openid-configuration", "api", "apis", "openid/v1/jwks", "version"]
            .map(Into::into)
            .to_vec();
    for (group, versions) in group_versions(kinds) {
        if !group.is_empty() {
            paths.push(format!("apis/{group}"));
        }
        paths.extend(versions.iter().map(|version| base_path(group, version)[1..].to_string()));
    }
    paths
}

/// One document; None where no such path is served.
pub fn document(kinds: &[Arc<Kind>], path: &str) -> Option<Value> {
    let mut own: Vec<&Kind> = Vec::new();
    let mut served: Vec<Path> = Vec::new();
    let mut group_version = None;
    match path {
        "version" => served.push(operations::version()),
        "api" => served.push(groups("/api/", "getCoreAPIVersions", "core", "APIVersions")),
        "apis" => served.push(groups("/apis/", "getAPIVersions", "apis", "APIGroupList")),
        ".well-known/openid-configuration" => {
            let [configuration, _] = operations::issuer();
            served.push(configuration);
        }
        "openid/v1/jwks" => {
            let [_, keys] = operations::issuer();
            served.push(keys);
        }
        path => {
            let (group, version) = parse(path)?;
            let known = |kind: &&Arc<Kind>| kind.group == group && version.is_none_or(|v| kind.version == v);
            kinds.iter().find(known)?;
            match version {
                None => served.push(group_document(group)),
                Some(version) => {
                    served.push(version_document(group, version));
                    for kind in kinds.iter().filter(known) {
                        served.extend(operations::of_kind(kind));
                        own.push(kind);
                    }
                    group_version = Some((group, version));
                }
            }
        }
    }
    let mut definitions = schemas::definitions(&served, &own, Version::V3);
    if let Some((group, version)) = group_version {
        add_own_kinds(&mut definitions, group, version);
    }
    let mut components = json!({"securitySchemes": {
        "BearerToken": {"type": "apiKey", "name": "authorization", "in": "header"}}});
    if !definitions.is_empty() {
        components["schemas"] = Value::Object(definitions);
    }
    let descriptions = Descriptions::get();
    let item = |path: &Path| (path.path.clone(), path_item(path, &descriptions));
    let paths: Map<String, Value> = served.iter().map(item).collect();
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": super::v2::API_VERSION},
        "paths": paths,
        "components": components,
    }))
}

/// `api/v1`, `apis/apps` or `apis/apps/v1`.
fn parse(path: &str) -> Option<(&str, Option<&str>)> {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        ["api", version] => Some(("", Some(version))),
        ["apis", group] => Some((group, None)),
        ["apis", group, version] => Some((group, Some(version))),
        _ => None,
    }
}

pub(super) fn groups(path: &str, id: &str, tag: &str, answer: &str) -> Path {
    operations::discovery(path.into(), id.into(), tag.into(), answer)
}

pub(super) fn group_document(group: &str) -> Path {
    let id = format!("get{}APIGroup", group_identifier(group));
    operations::discovery(format!("/apis/{group}/"), id, tag(group, None), "APIGroup")
}

pub(super) fn version_document(group: &str, version: &str) -> Path {
    let id = format!("get{}{}APIResources", group_identifier(group), capitalized(version));
    let path = format!("{}/", base_path(group, version));
    operations::discovery(path, id, tag(group, Some(version)), "APIResourceList")
}

/// Options and events of a watch exist in every group; a document names its own beside the core one.
fn add_own_kinds(definitions: &mut Map<String, Value>, group: &str, version: &str) {
    if group.is_empty() {
        return;
    }
    for kind in ["DeleteOptions", "WatchEvent"] {
        let name = format!("{}.{kind}", operations::META);
        let kinds = definitions.get_mut(&name).and_then(|d| d.get_mut("x-kubernetes-group-version-kind"));
        if let Some(Value::Array(kinds)) = kinds {
            kinds.push(json!({"group": group, "version": version, "kind": kind}));
        }
    }
}

fn path_item(path: &Path, descriptions: &Descriptions) -> Value {
    let parameter = |one: &Parameter| parameter(one, descriptions);
    let (shared, own) = operations::split_parameters(path);
    let mut item = Map::new();
    if !shared.is_empty() {
        item.insert("parameters".into(), shared.iter().map(parameter).collect());
    }
    for (operation, parameters) in path.operations.iter().zip(own) {
        item.insert(
            operation.method.into(),
            operation_object(operation, parameters.iter().map(parameter).collect()),
        );
    }
    Value::Object(item)
}

fn operation_object(operation: &Operation, parameters: Vec<Value>) -> Value {
    let mut out =
        json!({"operationId": operation.id, "tags": [operation.tag], "responses": responses(operation)});
    if !parameters.is_empty() {
        out["parameters"] = parameters.into();
    }
    if let Some(body) = &operation.body {
        let schema = json!({"schema": reference(&body.schema, Version::V3)});
        let content: Map<String, Value> =
            operation.consumes.iter().map(|format| (format.to_string(), schema.clone())).collect();
        out["requestBody"] = json!({"content": content});
        if body.required {
            out["requestBody"]["required"] = true.into();
        }
    }
    operation.extend(&mut out);
    out
}

fn responses(operation: &Operation) -> Value {
    let mut out = Map::new();
    for (code, answer) in &operation.responses {
        let schema = answer.schema(Version::V3);
        let content: Map<String, Value> =
            operation.produces.iter().map(|format| (format.to_string(), json!({"schema": schema}))).collect();
        let description = super::v2::response_description(*code);
        out.insert(code.to_string(), json!({"description": description, "content": content}));
    }
    out.insert("401".into(), json!({"description": super::v2::response_description(401)}));
    Value::Object(out)
}

fn parameter(parameter: &Parameter, descriptions: &Descriptions) -> Value {
    let mut out = json!({
        "name": parameter.name, "in": parameter.place, "schema": {"type": parameter.kind, "uniqueItems": true},
    });
    if let Some(text) = descriptions.of_parameter(&parameter.name) {
        out["description"] = text.into();
    }
    if parameter.place == "path" {
        out["required"] = true.into();
    }
    out
}
