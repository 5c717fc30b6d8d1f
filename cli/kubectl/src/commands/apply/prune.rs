//! `--prune`: deletes what an earlier apply made and the files no longer have.

use std::rc::Rc;

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
    let mut options = Options::from_args(&cli.args)?;
    options.quiet = true;
    let uids: Vec<&str> = applied.iter().map(|info| info.object.text("metadata.uid")).collect();
    for info in surplus(cli, applied, &uids).await? {
        if writer.dry_run != DryRun::Client {
            let mut errors = Vec::new();
            delete_all(cli, std::slice::from_ref(&info), &options, true, &mut errors).await?;
            Error::collect(errors)?;
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
            let list =
                match cli.client()?.json(Request::get(&format!("{}{query}", resource.path(namespace)))).await
                {
                    Ok(list) => list,
                    Err(error) if matches!(error.status_code(), Some(404 | 405)) => continue,
                    Err(error) => return Err(error),
                };
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

async fn kinds(cli: &Cli) -> Result<Vec<(Rc<Resource>, bool)>> {
    let discovery = cli.discovery().await?;
    let listed = cli.args.list("prune-allowlist");
    let mut found = Vec::new();
    if listed.is_empty() {
        let wanted = NAMESPACED.iter().chain(CLUSTER);
        for (group, name) in wanted {
            if let Some(resource) =
                discovery.resources.iter().find(|resource| resource.group == *group && resource.name == *name)
            {
                found.push((Rc::new(resource.clone()), resource.namespaced));
            }
        }
        return Ok(found);
    }
    for entry in listed {
        let parts: Vec<&str> = entry.split('/').collect();
        let [group, version, kind] = parts.as_slice() else {
            return Err(Error::message(format!(
                "invalid GroupVersionKind format: {entry}, please follow <group/version/kind>"
            )));
        };
        let group = if *group == "core" { "" } else { group };
        let resource = discovery
            .resources
            .iter()
            .find(|resource| {
                resource.group == group && resource.version == *version && resource.kind == *kind
            })
            .ok_or_else(|| Error::message(format!("no matches for kind {kind:?} in version {version:?}")))?;
        found.push((Rc::new(resource.clone()), resource.namespaced));
    }
    Ok(found)
}
