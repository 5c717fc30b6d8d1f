//! Discovery documents, built from the kind rows that are served: the plain ones, one request a group
//! and version, and the aggregated ones, all in one. Versions that other API servers answer for stand among them.

mod groups;

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub use self::groups::{Aggregated, Groups};
use crate::kinds::{GroupVersionKind, Kind, Scope, Subresource, api_version};

/// A version of a group that another API server answers for.
#[derive(Debug, Clone, PartialEq)]
pub struct Remote {
    pub group: String,
    pub version: String,
    /// What its APIService says of its place.
    pub group_priority: u32,
    pub version_priority: u32,
    /// As the aggregated document lists them, and as they were when the server was last asked.
    pub resources: Vec<Value>,
    /// The server answered when it was last asked.
    pub is_current: bool,
}

/// `/api`: the versions of the core group.
pub fn api_versions(server_address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}],
    })
}

/// The list of a version's resources.
fn api_resources(kinds: &[Arc<Kind>], group: &str, version: &str) -> Value {
    let mut resources = Vec::new();
    for kind in kinds {
        resources.push(((&kind.plural, String::new()), api_resource(kind)));
        for (index, subresource) in kind.subresources.iter().enumerate() {
            let name = format!("{}/{}", kind.plural, subresource.name);
            let entry = api_subresource(kind, subresource, &name);
            // Those of custom resources have an order of their own: status, then scale.
            let place = if kind.generation.is_some() { index.to_string() } else { name };
            resources.push(((&kind.plural, place), entry));
        }
    }
    resources.sort_by(|(a, _), (b, _)| a.cmp(b));
    let resources: Vec<Value> = resources.into_iter().map(|(_, resource)| resource).collect();
    let mut list = json!({
        "kind": "APIResourceList", "groupVersion": api_version(group, version), "resources": resources,
    });
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    list
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

/// The resources of a plain list, as the aggregated document has them. Entries that cannot be read are left out.
pub fn aggregated_resources(list: &Value, group: &str, version: &str) -> Vec<Value> {
    let entries = list.get("resources").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let text =
        |entry: &Value, field: &str| entry.get(field).and_then(Value::as_str).unwrap_or("").to_string();
    let or = |given: String, otherwise: &str| if given.is_empty() { otherwise.to_string() } else { given };
    let kind = |entry: &Value| {
        let (of_group, of_version) = (or(text(entry, "group"), group), or(text(entry, "version"), version));
        json!({"group": of_group, "version": of_version, "kind": text(entry, "kind")})
    };
    let verbs =
        |entry: &Value| entry.get("verbs").filter(|verbs| verbs.is_array()).cloned().unwrap_or(json!([]));
    let scope = |entry: &Value| match entry.get("namespaced").and_then(Value::as_bool) {
        Some(true) => "Namespaced",
        _ => "Cluster",
    };
    let mut resources: BTreeMap<String, Value> = BTreeMap::new();
    let mut subresources = Vec::new();
    for entry in entries {
        let name = text(entry, "name");
        if name.is_empty() {
            continue;
        }
        if let Some((parent, subresource)) = name.split_once('/') {
            let sub = json!({"subresource": subresource, "responseKind": kind(entry), "verbs": verbs(entry)});
            subresources.push((parent.to_string(), scope(entry), sub));
            continue;
        }
        let mut resource = json!({
            "resource": name, "responseKind": kind(entry), "scope": scope(entry),
            "singularResource": text(entry, "singularName"), "verbs": verbs(entry),
        });
        for field in ["shortNames", "categories"] {
            if let Some(names) = entry.get(field).filter(|names| names.is_array()) {
                resource[field] = names.clone();
            }
        }
        resources.insert(name, resource);
    }
    for (parent, scope, subresource) in subresources {
        // A subresource may stand alone, as a review does below namespaces.
        let resource = resources
            .entry(parent.clone())
            .or_insert_with(|| json!({"resource": parent, "scope": scope, "verbs": []}));
        match resource.get_mut("subresources").and_then(Value::as_array_mut) {
            Some(list) => list.push(subresource),
            None => resource["subresources"] = json!([subresource]),
        }
    }
    resources.into_values().collect()
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
        if kind.generation.is_none() {
            subresources.sort_by(|a, b| a.name.cmp(&b.name));
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_other_servers_stand_where_their_priorities_put_them() {
        let remote = |group: &str, version: &str, group_priority, is_current| Remote {
            group: group.into(),
            version: version.into(),
            group_priority,
            version_priority: 100,
            resources: vec![json!({"resource": "flunders"})],
            is_current,
        };
        let remotes = [remote("wardle.example.com", "v1", 20_000, true), remote("apps", "v2", 1, false)];
        let groups = Groups::new(crate::kinds::builtin(), remotes.to_vec());
        let list = groups.list();
        let names: Vec<&str> = list["groups"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|group| group["name"].as_str())
            .collect();
        assert_eq!(names[..3], ["apiregistration.k8s.io", "wardle.example.com", "apps"]);
        let apps = groups.group("apps").expect("apps");
        assert_eq!(apps["preferredVersion"]["version"], "v2");
        let document: Value =
            serde_json::from_slice(&groups.aggregated(false, Aggregated::V2)).expect("JSON");
        let items = document["items"].clone();
        let apps = items.as_array().into_iter().flatten().find(|group| group["metadata"]["name"] == "apps");
        let versions = &apps.expect("apps")["versions"];
        assert_eq!(
            (&versions[0]["freshness"], &versions[1]["freshness"]),
            (&json!("Stale"), &json!("Current"))
        );
        assert_eq!(versions[0]["resources"], json!([{"resource": "flunders"}]));
    }

    #[test]
    fn plain_lists_become_aggregated_ones() {
        let list = json!({"resources": [
            {"name": "flunders/status", "namespaced": true, "kind": "Flunder", "verbs": ["get"]},
            {"name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder",
             "verbs": ["get", "list"], "shortNames": ["fl"]},
            {"name": "things/scale", "group": "autoscaling", "version": "v1", "kind": "Scale", "verbs": ["get"]},
            {"kind": "Nameless"},
        ]});
        let flunder = json!({"group": "w", "version": "v1", "kind": "Flunder"});
        let scale = json!({"group": "autoscaling", "version": "v1", "kind": "Scale"});
        let expected = json!([
            {"resource": "flunders", "responseKind": flunder, "scope": "Namespaced", "singularResource": "flunder",
             "verbs": ["get", "list"], "shortNames": ["fl"],
             "subresources": [{"subresource": "status", "responseKind": flunder, "verbs": ["get"]}]},
            {"resource": "things", "scope": "Cluster", "verbs": [],
             "subresources": [{"subresource": "scale", "responseKind": scale, "verbs": ["get"]}]},
        ]);
        assert_eq!(Value::from(aggregated_resources(&list, "w", "v1")), expected);
        assert!(aggregated_resources(&json!([1]), "w", "v1").is_empty());
    }
}
