//! Discovery documents, built from the kind rows that are served: the plain ones, one request a group
//! and version, and the aggregated ones, all in one.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::kinds::{GroupVersionKind, Kind, Scope, Subresource, api_version, priorities};

type Kinds<'k> = &'k [Arc<Kind>];

/// `/api`: the versions of the core group.
pub fn api_versions(server_address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}],
    })
}

/// `/apis`: all groups but the core one.
pub fn api_group_list(kinds: Kinds) -> Value {
    let groups = priorities::groups(kinds.iter().map(Arc::as_ref));
    let groups: Vec<Value> = groups
        .into_iter()
        .filter(|group| !group.is_empty())
        .filter_map(|group| {
            let mut group = api_group(kinds, group)?;
            let entries = group.as_object_mut()?;
            entries.remove("kind");
            entries.remove("apiVersion");
            Some(group)
        })
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`
pub fn api_group(kinds: Kinds, group: &str) -> Option<Value> {
    let versions: Vec<Value> = priorities::versions(kinds.iter().map(Arc::as_ref), group)
        .into_iter()
        .map(|version| json!({"groupVersion": api_version(group, version), "version": version}))
        .collect();
    let preferred = versions.first()?.clone();
    Some(json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": group, "versions": versions, "preferredVersion": preferred,
    }))
}

/// `/api/v1` and `/apis/GROUP/VERSION`
pub fn api_resource_list(kinds: Kinds, group: &str, version: &str) -> Option<Value> {
    let mut resources = Vec::new();
    for kind in of_version(kinds, group, version) {
        resources.push((kind.plural.to_string(), api_resource(kind)));
        for subresource in &kind.subresources {
            let name = format!("{}/{}", kind.plural, subresource.name);
            let entry = api_subresource(kind, subresource, &name);
            resources.push((name, entry));
        }
    }
    if resources.is_empty() {
        return None;
    }
    resources.sort_by(|(a, _), (b, _)| a.cmp(b));
    let resources: Vec<Value> = resources.into_iter().map(|(_, resource)| resource).collect();
    let mut list = json!({
        "kind": "APIResourceList", "groupVersion": api_version(group, version), "resources": resources,
    });
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    Some(list)
}

fn api_resource(kind: &Kind) -> Value {
    let mut resource = json!({
        "name": kind.plural, "singularName": kind.singular, "namespaced": kind.is_namespaced(),
        "kind": kind.kind, "verbs": kind.discovered_verbs().collect::<Vec<_>>(),
    });
    if !kind.short_names.is_empty() {
        resource["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        resource["categories"] = json!(kind.categories);
    }
    if kind.has_verb("watch") {
        resource["storageVersionHash"] = storage_version_hash(kind).into();
    }
    resource
}

fn api_subresource(kind: &Kind, subresource: &Subresource, name: &str) -> Value {
    let mut resource = json!({
        "name": name, "singularName": "", "namespaced": kind.is_namespaced(), "kind": subresource.kind.kind,
        "verbs": subresource.verbs,
    });
    if !same_version(kind, &subresource.kind) {
        resource["group"] = json!(subresource.kind.group);
        resource["version"] = json!(subresource.kind.version);
    }
    resource
}

/// Changes when objects are stored in another version, so that a migrator can tell.
pub fn storage_version_hash(kind: &Kind) -> String {
    let stored = &kind.storage_version;
    let version = kind.hash_version.as_ref().unwrap_or(&stored.version);
    let hash = Sha256::digest(format!("{}/{version}/{}", stored.group, stored.kind));
    STANDARD.encode(&hash[..8])
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregated {
    V2,
    V2Beta1,
}

/// The aggregated document of `/api` (the core group) or `/apis` (all others). `others` are groups
/// that further API servers answered for, put in by the caller.
pub fn aggregated(kinds: Kinds, core: bool, form: Aggregated, others: Vec<Value>) -> Value {
    let groups = priorities::groups(kinds.iter().map(Arc::as_ref));
    let mut items: Vec<Value> = groups
        .into_iter()
        .filter(|group| group.is_empty() == core)
        .map(|group| aggregated_group(kinds, group))
        .collect();
    items.extend(others);
    let api_version = match form {
        Aggregated::V2 => "apidiscovery.k8s.io/v2",
        Aggregated::V2Beta1 => "apidiscovery.k8s.io/v2beta1",
    };
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": api_version, "metadata": {}, "items": items})
}

pub fn aggregated_group(kinds: Kinds, group: &str) -> Value {
    let versions: Vec<Value> = priorities::versions(kinds.iter().map(Arc::as_ref), group)
        .into_iter()
        .map(|version| {
            let mut kinds: Vec<&Kind> = of_version(kinds, group, version).collect();
            kinds.sort_by(|a, b| a.plural.cmp(&b.plural));
            let resources: Vec<Value> = kinds.into_iter().map(aggregated_resource).collect();
            json!({"version": version, "resources": resources, "freshness": "Current"})
        })
        .collect();
    let mut metadata = Map::new();
    if !group.is_empty() {
        metadata.insert("name".into(), group.into());
    }
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_resource(kind: &Kind) -> Value {
    let scope = match kind.scope {
        Scope::Cluster => "Cluster",
        Scope::Namespaced => "Namespaced",
    };
    let mut resource = json!({
        "resource": kind.plural, "responseKind": response_kind(kind, &kind.gvk()), "scope": scope,
        "singularResource": kind.singular, "verbs": kind.discovered_verbs().collect::<Vec<_>>(),
    });
    if !kind.short_names.is_empty() {
        resource["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        resource["categories"] = json!(kind.categories);
    }
    if !kind.subresources.is_empty() {
        let mut subresources: Vec<&Subresource> = kind.subresources.iter().collect();
        subresources.sort_by(|a, b| a.name.cmp(&b.name));
        resource["subresources"] = subresources
            .into_iter()
            .map(|sub| {
                json!({"subresource": sub.name, "responseKind": response_kind(kind, &sub.kind), "verbs": sub.verbs})
            })
            .collect();
    }
    resource
}

/// Group and version are left empty where they are those of the list.
fn response_kind(kind: &Kind, response: &GroupVersionKind) -> Value {
    if same_version(kind, response) {
        return json!({"group": "", "version": "", "kind": response.kind});
    }
    json!({"group": response.group, "version": response.version, "kind": response.kind})
}

fn same_version(kind: &Kind, other: &GroupVersionKind) -> bool {
    kind.group == other.group && kind.version == other.version
}

fn of_version<'k>(kinds: Kinds<'k>, group: &str, version: &str) -> impl Iterator<Item = &'k Kind> {
    kinds.iter().map(Arc::as_ref).filter(move |kind| kind.group == group && kind.version == version)
}
