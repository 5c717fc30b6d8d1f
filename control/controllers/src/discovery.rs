//! Every resource the server has, custom ones too, for loops that work on all kinds.

use std::collections::HashSet;

use ferry_client::Client;
use kube::core::ApiResource;
use kube::core::discovery::v2::APIGroupDiscovery;
use kube::error::DiscoveryError;
use tokio::try_join;

/// A resource in the version its group prefers.
#[derive(Clone, Debug)]
pub struct Resource {
    pub api: ApiResource,
    pub namespaced: bool,
    pub verbs: Vec<String>,
}

impl Resource {
    pub fn can(&self, verb: &str) -> bool {
        self.verbs.iter().any(|known| known == verb)
    }

    /// `deployments.apps`, `pods`.
    pub fn group_resource(&self) -> String {
        match self.api.group.as_str() {
            "" => self.api.plural.clone(),
            group => format!("{}.{group}", self.api.plural),
        }
    }
}

/// What was found, and which group versions could not be asked: an aggregated server may be
/// away, which must not hide everything else.
#[derive(Debug, Default)]
pub struct Discovered {
    pub resources: Vec<Resource>,
    pub failures: Vec<String>,
}

/// Asks the server anew, in two requests: what it knows of servers behind it, it knows already, so that one that hangs
/// keeps nobody here. Only being unable to read the documents is an error.
pub async fn discover(client: &Client) -> Result<Discovered, kube::Error> {
    let (core, others) =
        try_join!(client.list_core_api_versions_aggregated(), client.list_api_groups_aggregated())?;
    for (path, list) in [("/api", &core), ("/apis", &others)] {
        // An older server answers with another document, which must not be read as an empty one.
        if list.items.is_empty() {
            return Err(kube::Error::Discovery(DiscoveryError::EmptyApiGroup(path.into())));
        }
    }
    Ok(read(core.items.into_iter().chain(others.items)))
}

/// Of each group the preferred version comes first: it decides where several have a resource.
fn read(groups: impl IntoIterator<Item = APIGroupDiscovery>) -> Discovered {
    let mut found = Discovered::default();
    let mut known = HashSet::new();
    for group in groups {
        let name = group.metadata.and_then(|metadata| metadata.name).unwrap_or_default();
        for version in group.versions {
            let number = version.version.unwrap_or_default();
            let api_version = if name.is_empty() { number.clone() } else { format!("{name}/{number}") };
            if version.freshness.as_deref() == Some("Stale") {
                found.failures.push(format!("{api_version}: stale GroupVersion discovery: {api_version}"));
                continue;
            }
            let resources = version.resources.into_iter().filter_map(|resource| {
                let api = ApiResource {
                    group: name.clone(),
                    version: number.clone(),
                    api_version: api_version.clone(),
                    kind: resource.response_kind.and_then(|kind| kind.kind)?,
                    plural: resource.resource?,
                };
                let namespaced = resource.scope.as_deref() == Some("Namespaced");
                Some(Resource { api, namespaced, verbs: resource.verbs })
            });
            found.resources.extend(resources.filter(|resource| known.insert(resource.group_resource())));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_preferred_version_decides_and_a_server_that_is_away_is_told() {
        let resource = |name: &str, kind: &str| {
            json!({"resource": name, "responseKind": {"group": "", "version": "", "kind": kind},
                "scope": "Namespaced", "verbs": ["get", "list"]})
        };
        let groups = json!([
            {"metadata": {}, "versions": [{"version": "v1", "freshness": "Current", "resources": [resource("pods", "Pod")]}]},
            {"metadata": {"name": "apps"}, "versions": [
                {"version": "v2", "freshness": "Current", "resources": [resource("deployments", "Deployment")]},
                {"version": "v1", "freshness": "Current", "resources": [resource("deployments", "Deployment"), resource("replicasets", "ReplicaSet")]},
            ]},
            {"metadata": {"name": "wardle.example.com"}, "versions": [
                {"version": "v1", "freshness": "Stale", "resources": [resource("flunders", "Flunder")]},
            ]},
        ]);
        let groups: Vec<APIGroupDiscovery> = serde_json::from_value(groups).expect("groups");
        let found = read(groups);
        let names: Vec<String> = found
            .resources
            .iter()
            .map(|resource| format!("{} {}", resource.api.api_version, resource.group_resource()))
            .collect();
        assert_eq!(names, ["v1 pods", "apps/v2 deployments.apps", "apps/v1 replicasets.apps"]);
        assert!(found.resources.iter().all(|resource| resource.namespaced && resource.can("list")));
        let stale = "wardle.example.com/v1: stale GroupVersion discovery: wardle.example.com/v1";
        assert_eq!(found.failures, [stale]);
    }
}
