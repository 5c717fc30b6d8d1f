//! Discovery documents, built from the kind rows that are served: the plain ones, one request a group
//! and version, and the aggregated ones, all in one. Versions that other API servers answer for stand among them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::kinds::{GroupVersionKind, Kind, Scope, Subresource, api_version, priorities};

type Kinds<'k> = &'k [Arc<Kind>];

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

/// The groups with their versions, all in the order that clients prefer them in.
fn groups<'a>(kinds: Kinds<'a>, remotes: &'a [Remote]) -> Vec<(&'a str, Vec<&'a str>)> {
    let own = kinds.iter().map(|kind| {
        let (group, version) = (&*kind.group, &*kind.version);
        (group, version, priorities::group_priority(group), priorities::version_priority(group, version))
    });
    let others = remotes
        .iter()
        .map(|remote| (&*remote.group, &*remote.version, remote.group_priority, remote.version_priority));
    let mut groups: BTreeMap<&str, (u32, BTreeMap<&str, u32>)> = BTreeMap::new();
    for (group, version, group_priority, version_priority) in own.chain(others) {
        let (highest, versions) = groups.entry(group).or_default();
        *highest = group_priority.max(*highest);
        versions.insert(version, version_priority);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(group, (priority, _))| (Reverse(*priority), *group));
    let ordered = groups.into_iter().map(|(group, (_, versions))| {
        let mut versions: Vec<(&str, u32)> = versions.into_iter().collect();
        versions.sort_by(|(a, first), (b, second)| {
            second.cmp(first).then_with(|| priorities::compare_versions(b, a))
        });
        (group, versions.into_iter().map(|(version, _)| version).collect())
    });
    ordered.collect()
}

/// `/api`: the versions of the core group.
pub fn api_versions(server_address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}],
    })
}

/// `/apis`: all groups but the core one.
pub fn api_group_list(kinds: Kinds, remotes: &[Remote]) -> Value {
    let groups = groups(kinds, remotes);
    let groups = groups.iter().filter(|(group, _)| !group.is_empty());
    let groups: Vec<Value> = groups.map(|(group, versions)| group_entry(group, versions).into()).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`
pub fn api_group(kinds: Kinds, remotes: &[Remote], group: &str) -> Option<Value> {
    let groups = groups(kinds, remotes);
    let (_, versions) = groups.iter().find(|(name, _)| *name == group)?;
    let mut document = Map::new();
    document.insert("kind".into(), "APIGroup".into());
    document.insert("apiVersion".into(), "v1".into());
    document.extend(group_entry(group, versions));
    Some(document.into())
}

fn group_entry(group: &str, versions: &[&str]) -> Map<String, Value> {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| json!({"groupVersion": api_version(group, version), "version": version}))
        .collect();
    let mut entry = Map::new();
    entry.insert("name".into(), group.into());
    entry.insert("preferredVersion".into(), versions.first().cloned().into());
    entry.insert("versions".into(), versions.into());
    entry
}

/// `/api/v1` and `/apis/GROUP/VERSION`
pub fn api_resource_list(kinds: Kinds, group: &str, version: &str) -> Option<Value> {
    let mut resources = Vec::new();
    for kind in of_version(kinds, group, version) {
        resources.push(((&kind.plural, String::new()), api_resource(kind)));
        for (index, subresource) in kind.subresources.iter().enumerate() {
            let name = format!("{}/{}", kind.plural, subresource.name);
            let entry = api_subresource(kind, subresource, &name);
            // Those of custom resources have an order of their own: status, then scale.
            let place = if kind.generation.is_some() { index.to_string() } else { name };
            resources.push(((&kind.plural, place), entry));
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

/// The aggregated document of `/api` (the core group) or `/apis` (all others).
pub fn aggregated(kinds: Kinds, remotes: &[Remote], core: bool, form: Aggregated) -> Value {
    let groups = groups(kinds, remotes);
    let groups = groups.iter().filter(|(group, _)| group.is_empty() == core);
    let kinds = by_version(kinds);
    let items: Vec<Value> =
        groups.map(|(group, versions)| aggregated_group(&kinds, remotes, group, versions)).collect();
    let api_version = match form {
        Aggregated::V2 => "apidiscovery.k8s.io/v2",
        Aggregated::V2Beta1 => "apidiscovery.k8s.io/v2beta1",
    };
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": api_version, "metadata": {}, "items": items})
}

type ByVersion<'k> = HashMap<(&'k str, &'k str), Vec<&'k Kind>>;

/// By group and version, so that a thousand groups are not looked for among the kinds of all.
fn by_version(kinds: Kinds<'_>) -> ByVersion<'_> {
    let mut by_version: ByVersion = HashMap::new();
    for kind in kinds {
        by_version.entry((&kind.group, &kind.version)).or_default().push(kind);
    }
    by_version
}

fn aggregated_group(kinds: &ByVersion, remotes: &[Remote], group: &str, versions: &[&str]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| {
            if let Some(remote) = remotes.iter().find(|one| one.group == group && one.version == *version) {
                let freshness = if remote.is_current { "Current" } else { "Stale" };
                return json!({"version": version, "resources": remote.resources, "freshness": freshness});
            }
            let mut kinds = kinds.get(&(group, *version)).cloned().unwrap_or_default();
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

fn of_version<'k>(kinds: Kinds<'k>, group: &str, version: &str) -> impl Iterator<Item = &'k Kind> {
    kinds.iter().map(Arc::as_ref).filter(move |kind| kind.group == group && kind.version == version)
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
        let kinds = crate::kinds::builtin();
        let list = api_group_list(kinds, &remotes);
        let names: Vec<&str> = list["groups"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|group| group["name"].as_str())
            .collect();
        assert_eq!(names[..3], ["apiregistration.k8s.io", "wardle.example.com", "apps"]);
        let apps = api_group(kinds, &remotes, "apps").expect("apps");
        assert_eq!(apps["preferredVersion"]["version"], "v2");
        let items = aggregated(kinds, &remotes, false, Aggregated::V2)["items"].clone();
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
