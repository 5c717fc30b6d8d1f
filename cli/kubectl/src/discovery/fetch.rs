//! Asking the server: aggregated discovery in two requests, or group by group where the server is
//! older than that.

use serde_json::Value;

use super::{Discovery, Group, Resource};
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::transport::{Client, DISCOVERY_TIMEOUT, Request};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";

pub async fn fetch(client: &Client) -> Result<Discovery> {
    let span = ferry_trace::span("kubectl.discovery");
    let both = span.in_scope(async {
        let core = client.json(Request::get("/api").accept(AGGREGATED)).await?;
        let groups = client.json(Request::get("/apis").accept(AGGREGATED)).await?;
        Ok::<_, Error>((core, groups))
    });
    let (core, groups) = tokio::time::timeout(DISCOVERY_TIMEOUT, both).await.map_err(|_| {
        Error::plain(format!(
            "Unable to connect to the server: net/http: request canceled while waiting for {}/api",
            client.server()
        ))
    })??;
    let mut discovery = Discovery::default();
    for list in [&core, &groups] {
        if list.kind() == "APIGroupDiscoveryList" {
            aggregated(list, &mut discovery);
        } else {
            legacy(client, list, &mut discovery).await?;
        }
    }
    Ok(discovery)
}

fn aggregated(list: &Value, discovery: &mut Discovery) {
    for group in list.list("items") {
        let name = group.name();
        let mut versions = Vec::new();
        for version in group.list("versions") {
            let version_name = version.text("version");
            versions.push(version_name.to_owned());
            for resource in version.list("resources") {
                if let Some(resource) = aggregated_resource(name, version_name, resource) {
                    discovery.resources.push(resource);
                }
            }
        }
        discovery.groups.push(Group { name: name.to_owned(), versions });
    }
}

fn aggregated_resource(group: &str, version: &str, resource: &Value) -> Option<Resource> {
    let kind = resource.text("responseKind.kind");
    if kind.is_empty() {
        return None;
    }
    let own = |path: &str, fallback: &str| {
        let text = resource.text(path);
        if text.is_empty() { fallback.to_owned() } else { text.to_owned() }
    };
    Some(Resource {
        group: group.to_owned(),
        version: version.to_owned(),
        name: resource.text("resource").to_owned(),
        singular: own("singularResource", &kind.to_lowercase()),
        kind: kind.to_owned(),
        namespaced: resource.text("scope") == "Namespaced",
        verbs: strings(resource.list("verbs")),
        short_names: strings(resource.list("shortNames")),
        categories: strings(resource.list("categories")),
        subresources: resource
            .list("subresources")
            .iter()
            .map(|sub| sub.text("subresource").to_owned())
            .collect(),
    })
}

async fn legacy(client: &Client, list: &Value, discovery: &mut Discovery) -> Result<()> {
    if list.kind() == "APIVersions" {
        let versions = strings(list.list("versions"));
        for version in &versions {
            legacy_version(client, "", version, &format!("/api/{version}"), discovery).await?;
        }
        discovery.groups.push(Group { name: String::new(), versions });
        return Ok(());
    }
    for group in list.list("groups") {
        let name = group.text("name");
        let preferred = group.text("preferredVersion.version");
        let mut versions: Vec<String> =
            group.list("versions").iter().map(|entry| entry.text("version").to_owned()).collect();
        versions.sort_by_key(|version| version != preferred);
        for version in &versions {
            // one broken aggregated API must not hide all others
            if let Err(error) =
                legacy_version(client, name, version, &format!("/apis/{name}/{version}"), discovery).await
                && error.status_code().is_none()
            {
                return Err(error);
            }
        }
        discovery.groups.push(Group { name: name.to_owned(), versions });
    }
    Ok(())
}

async fn legacy_version(
    client: &Client,
    group: &str,
    version: &str,
    path: &str,
    discovery: &mut Discovery,
) -> Result<()> {
    let list = client.get_json(path).await?;
    let mut resources: Vec<Resource> = Vec::new();
    for entry in list.list("resources") {
        let name = entry.text("name");
        if let Some((parent, subresource)) = name.split_once('/') {
            if let Some(parent) = resources.iter_mut().find(|resource| resource.name == parent) {
                parent.subresources.push(subresource.to_owned());
            }
            continue;
        }
        let kind = entry.text("kind");
        let singular = entry.text("singularName");
        resources.push(Resource {
            group: group.to_owned(),
            version: version.to_owned(),
            name: name.to_owned(),
            singular: if singular.is_empty() { kind.to_lowercase() } else { singular.to_owned() },
            kind: kind.to_owned(),
            namespaced: entry.flag("namespaced"),
            verbs: strings(entry.list("verbs")),
            short_names: strings(entry.list("shortNames")),
            categories: strings(entry.list("categories")),
            subresources: Vec::new(),
        });
    }
    discovery.resources.extend(resources);
    Ok(())
}

fn strings(values: &[Value]) -> Vec<String> {
    values.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn aggregated_discovery_becomes_resources() {
        let list = json!({"kind": "APIGroupDiscoveryList", "items": [{"metadata": {"name": "apps"}, "versions": [
            {"version": "v1", "resources": [{"resource": "deployments", "responseKind": {"kind": "Deployment"}, "scope": "Namespaced",
              "singularResource": "deployment", "verbs": ["get"], "shortNames": ["deploy"], "categories": ["all"],
              "subresources": [{"subresource": "scale"}]}]}]}]});
        let mut discovery = Discovery::default();
        aggregated(&list, &mut discovery);
        let resource = &discovery.resources[0];
        assert_eq!(
            (resource.qualified().as_str(), resource.kind.as_str()),
            ("deployments.apps", "Deployment")
        );
        assert_eq!(resource.subresources, ["scale"]);
        assert_eq!(discovery.groups[0].versions, ["v1"]);
    }
}
