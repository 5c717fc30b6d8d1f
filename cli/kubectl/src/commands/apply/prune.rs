//! `--prune`: deletes what an earlier apply made and the files no longer have.

use std::rc::Rc;

use serde_json::json;

use crate::cli::Cli;
use crate::commands::delete::{Options, delete_all};
use crate::discovery::Resource;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::selection::{Info, items};
use crate::transport::{Query, Request};
use crate::write::{DryRun, LAST_APPLIED, Writer};

/// What is pruned unless the user lists kinds: those that hold an application, not a cluster.
const NAMESPACED: &[(&str, &str)] = &[
    ("", "configmaps"),
    ("", "endpoints"),
    ("", "persistentvolumeclaims"),
    ("", "pods"),
    ("", "replicationcontrollers"),
    ("", "secrets"),
    ("", "services"),
    ("batch", "jobs"),
    ("batch", "cronjobs"),
    ("networking.k8s.io", "ingresses"),
    ("apps", "daemonsets"),
    ("apps", "deployments"),
    ("apps", "replicasets"),
    ("apps", "statefulsets"),
];
const CLUSTER: &[(&str, &str)] = &[("", "namespaces"), ("", "persistentvolumes")];

pub async fn run(writer: &Writer<'_>, applied: &[Info]) -> Result<()> {
    let cli = writer.cli;
    let options = Options::for_pruning(&cli.args)?;
    let uids: Vec<&str> = applied.iter().map(|info| info.object.text("metadata.uid")).collect();
    for info in surplus(cli, applied, &uids).await? {
        if writer.dry_run != DryRun::Client {
            let mut errors = Vec::new();
            delete_all(cli, std::slice::from_ref(&info), &options, false, &mut errors).await?;
            Error::collect(errors).map_err(|error| pruning(&error, &info.resource))?;
        }
        writer.report(&info.object, "pruned")?;
    }
    Ok(())
}

/// What an earlier apply made in the namespaces of `files`, without the objects of these UIDs.
pub async fn surplus(cli: &Cli, files: &[Info], uids: &[&str]) -> Result<Vec<Info>> {
    let current = cli.namespace()?;
    let mut namespaces: Vec<&str> = files
        .iter()
        .map(|info| info.namespace.as_str())
        .chain(current.explicit.then_some(current.name.as_str()))
        .filter(|namespace| !namespace.is_empty())
        .collect();
    namespaces.sort_unstable();
    namespaces.dedup();
    let mut found = Vec::new();
    for (resource, namespaced) in kinds(cli).await? {
        let places = if namespaced { namespaces.clone() } else { vec![""] };
        for namespace in places {
            let query = Query::new().with("labelSelector", cli.args.text("selector"));
            let path = format!("{}{query}", resource.path(namespace));
            let list = cli.client()?.json(Request::get(&path)).await;
            let list = list.map_err(|error| pruning(&error, &resource))?;
            found.extend(items(list, &resource).into_iter().filter(|info| {
                let ours = info
                    .object
                    .map("metadata.annotations")
                    .is_some_and(|annotations| annotations.contains_key(LAST_APPLIED));
                ours && !uids.contains(&info.object.text("metadata.uid"))
            }));
        }
    }
    Ok(found)
}

fn pruning(error: &Error, resource: &Resource) -> Error {
    let Resource { group, version, kind, namespaced, .. } = resource;
    let scope = if *namespaced { "namespaced" } else { "nonNamespaced" };
    Error::message(format!("error pruning {scope} object {group}/{version}, Kind={kind}: {error}"))
}

/// Namespaced kinds first, as they are pruned.
async fn kinds(cli: &Cli) -> Result<Vec<(Rc<Resource>, bool)>> {
    let mut found = listed_kinds(cli).await?;
    if found.is_empty() {
        let discovery = cli.discovery().await?;
        for (group, name) in NAMESPACED.iter().chain(CLUSTER) {
            let served = discovery
                .resources
                .iter()
                .find(|resource| resource.group == *group && resource.name == *name);
            found.extend(served.map(|resource| Rc::new(resource.clone())));
        }
    }
    found.sort_by_key(|resource| !resource.namespaced);
    Ok(found.into_iter().map(|resource| (resource.clone(), resource.namespaced)).collect())
}

/// The kinds of `--prune-allowlist`.
pub async fn listed_kinds(cli: &Cli) -> Result<Vec<Rc<Resource>>> {
    let mut found = Vec::new();
    for entry in cli.args.list("prune-allowlist") {
        let parts: Vec<&str> = entry.split('/').collect();
        let [group, version, kind] = parts.as_slice() else {
            return Err(Error::message(format!(
                "invalid GroupVersionKind format: {entry}, please follow <group/version/kind>"
            )));
        };
        let group = if *group == "core" { "" } else { group };
        let api_version = if group.is_empty() { (*version).to_owned() } else { format!("{group}/{version}") };
        found.push(cli.resource_of(&json!({"apiVersion": api_version, "kind": kind})).await?);
    }
    Ok(found)
}
