//! OpenAPI v3: a document for each group and version, and for what stands beside them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::descriptions::Descriptions;
use super::operations::{self, Operation, Parameter, Path};
use super::schemas::{self, Version, reference};
use super::{base_path, capitalized, group_identifier, tag};
use crate::kinds::Kind;

/// What a document is about.
pub enum Subject {
    /// What stands beside groups.
    Server(&'static str),
    Group(String),
    /// A version of a group: its rows.
    Version(Vec<Arc<Kind>>),
}

const SERVER: [&str; 5] = [".well-known/openid-configuration", "api", "apis", "openid/v1/jwks", "version"];

impl Subject {
    /// Whether a document about one is the document about the other.
    pub fn is_same(&self, other: &Subject) -> bool {
        match (self, other) {
            (Subject::Server(a), Subject::Server(b)) => a == b,
            (Subject::Group(a), Subject::Group(b)) => a == b,
            (Subject::Version(a), Subject::Version(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
            }
            _ => false,
        }
    }
}

/// The documents there are, by their path below `/openapi/v3/`.
pub fn subjects(kinds: &[Arc<Kind>]) -> BTreeMap<String, Subject> {
    let mut subjects: BTreeMap<String, Subject> =
        SERVER.map(|name| (name.to_string(), Subject::Server(name))).into();
    for kind in kinds {
        if !kind.group.is_empty() {
            let group = || Subject::Group(kind.group.to_string());
            subjects.entry(format!("apis/{}", kind.group)).or_insert_with(group);
        }
        let path = base_path(&kind.group, &kind.version)[1..].to_string();
        match subjects.entry(path).or_insert_with(|| Subject::Version(Vec::new())) {
            Subject::Version(rows) => rows.push(kind.clone()),
            // A version has a path that no group has, and nothing of the server's.
            Subject::Server(_) | Subject::Group(_) => {}
        }
    }
    subjects
}

pub fn document(subject: &Subject) -> Value {
    let mut own: Vec<&Kind> = Vec::new();
    let mut served: Vec<Path> = Vec::new();
    let mut group_version = None;
    match subject {
        Subject::Server(name) => served.extend(of_server(name)),
        Subject::Group(group) => served.push(group_document(group)),
        Subject::Version(rows) => {
            if let Some(first) = rows.first() {
                served.push(version_document(&first.group, &first.version));
                group_version = Some((&*first.group, &*first.version));
            }
            served.extend(rows.iter().flat_map(|kind| operations::of_kind(kind)));
            own.extend(rows.iter().map(Arc::as_ref));
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
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": super::v2::API_VERSION},
        "paths": paths,
        "components": components,
    })
}

fn of_server(name: &str) -> Option<Path> {
    let [configuration, keys] = operations::issuer();
    match name {
        "version" => Some(operations::version()),
        "api" => Some(groups("/api/", "getCoreAPIVersions", "core", "APIVersions")),
        "apis" => Some(groups("/apis/", "getAPIVersions", "apis", "APIGroupList")),
        ".well-known/openid-configuration" => Some(configuration),
        "openid/v1/jwks" => Some(keys),
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
