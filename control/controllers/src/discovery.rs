//! Every resource the server has, custom ones too, for loops that work on all kinds.

use std::collections::HashSet;

use ferry_client::{Client, error};
use futures::future::join_all;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResource;
use kube::core::ApiResource;

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

/// Asks the server anew. Only being unable to list the groups is an error.
pub async fn discover(client: &Client) -> Result<Discovered, kube::Error> {
    let groups = client.list_api_groups().await?;
    // Of each group the preferred version first: it decides where several have a resource.
    let mut versions = vec![String::from("v1")];
    for group in groups.groups {
        let preferred = group.preferred_version.map(|version| version.group_version);
        let others = group.versions.into_iter().map(|version| version.group_version);
        let others: Vec<String> = others.filter(|version| Some(version) != preferred.as_ref()).collect();
        versions.extend(preferred.into_iter().chain(others));
    }
    let lists = join_all(versions.iter().map(|version| async move {
        match version.as_str() {
            "v1" => client.list_core_api_resources("v1").await,
            version => client.list_api_group_resources(version).await,
        }
    }));
    let mut found = Discovered::default();
    let mut known = HashSet::new();
    for (version, list) in versions.iter().zip(lists.await) {
        match list {
            Ok(list) => {
                let own = list.resources.into_iter().filter(|resource| !resource.name.contains('/'));
                let resources = own.map(|resource| describe(version, resource));
                found.resources.extend(resources.filter(|resource| known.insert(resource.group_resource())));
            }
            Err(failed) => found.failures.push(format!("{version}: {}", error::message(&failed))),
        }
    }
    Ok(found)
}

fn describe(group_version: &str, resource: APIResource) -> Resource {
    let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
    // A list may hold resources of another group or version and then says so.
    let group = resource.group.filter(|group| !group.is_empty()).unwrap_or_else(|| group.into());
    let version = resource.version.filter(|version| !version.is_empty()).unwrap_or_else(|| version.into());
    let api_version = if group.is_empty() { version.clone() } else { format!("{group}/{version}") };
    Resource {
        api: ApiResource { group, version, api_version, kind: resource.kind, plural: resource.name },
        namespaced: resource.namespaced,
        verbs: resource.verbs,
    }
}
