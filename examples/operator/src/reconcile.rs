//! From a site to a ConfigMap with its page and a Deployment that serves it, both owned by the site. The ledger in the
//! operator's own namespace lists every site: no owner reference leads there, so a finalizer takes the entry out.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::finalizer::{self, Event, finalizer};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use serde_json::json;

use crate::install::{LEDGER, MANAGER, labels};
use crate::site::Site;

const FINALIZER: &str = "example.dev/ledger";

pub struct Context {
    pub client: Client,
    /// The operator's own namespace and pod.
    pub namespace: String,
    pub pod: String,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("a site without {0}")]
    Incomplete(&'static str),
    #[error("cannot {attempt}: {source}")]
    Request { attempt: &'static str, source: Box<kube::Error> },
    #[error(transparent)]
    Finalizer(#[from] Box<finalizer::Error<Error>>),
}

fn cannot(attempt: &'static str) -> impl FnOnce(kube::Error) -> Error {
    move |source| Error::Request { attempt, source: Box::new(source) }
}

/// Follows sites and what they own; ends with the process, or when it is dropped.
pub async fn run(context: Arc<Context>) {
    let client = &context.client;
    let everything = watcher::Config::default;
    Controller::new(Api::<Site>::all(client.clone()), everything())
        .owns(Api::<Deployment>::all(client.clone()), everything())
        .owns(Api::<ConfigMap>::all(client.clone()), everything())
        .trigger_backoff(EverySecond)
        .run(reconcile, |_, _, _| Action::requeue(Duration::from_secs(1)), context.clone())
        .for_each(|done| async move {
            match done {
                Ok((site, _)) => tracing::info!(%site, "reconciled"),
                Err(error) => tracing::warn!(%error, "cannot reconcile"),
            }
        })
        .await;
}

/// How soon a watch is begun again. kube-rs' own pause doubles with each of the three watches that a server's end breaks
/// off, up to half a minute.
struct EverySecond;

impl Iterator for EverySecond {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(Duration::from_secs(1))
    }
}

impl Backoff for EverySecond {
    fn reset(&mut self) {}
}

async fn reconcile(site: Arc<Site>, context: Arc<Context>) -> Result<Action, Error> {
    let namespace = site.namespace().ok_or(Error::Incomplete("a namespace"))?;
    let sites: Api<Site> = Api::namespaced(context.client.clone(), &namespace);
    let done = finalizer(&sites, FINALIZER, site, |event| async {
        match event {
            Event::Apply(site) => apply(&sites, &namespace, &site, &context).await,
            Event::Cleanup(site) => {
                let entry = json!({"data": {entry(&namespace, &site): null}});
                write_ledger(&context, &entry).await?;
                Ok(Action::await_change())
            }
        }
    });
    done.await.map_err(|error| Box::new(error).into())
}

fn entry(namespace: &str, site: &Site) -> String {
    format!("{namespace}.{}", site.name_any())
}

async fn write_ledger(context: &Context, entry: &serde_json::Value) -> Result<(), Error> {
    let ledgers: Api<ConfigMap> = Api::namespaced(context.client.clone(), &context.namespace);
    let written = ledgers.patch(LEDGER, &PatchParams::default(), &Patch::Merge(entry)).await;
    written.map(drop).map_err(cannot("write the ledger"))
}

async fn apply(sites: &Api<Site>, namespace: &str, site: &Site, context: &Context) -> Result<Action, Error> {
    write_ledger(context, &json!({"data": {entry(namespace, site): &site.spec.message}})).await?;
    let (name, client) = (site.name_any(), &context.client);
    let owner = site.controller_owner_ref(&()).ok_or(Error::Incomplete("a uid"))?;
    let metadata = json!({"name": name, "labels": labels(), "ownerReferences": [owner]});
    let parameters = PatchParams::apply(MANAGER).force();

    let pages: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let page = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
        "data": {"index.html": site.spec.message},
    });
    pages.patch(&name, &parameters, &Patch::Apply(page)).await.map_err(cannot("apply the page"))?;

    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let selector = json!({"example.dev/site": name});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {
            "replicas": site.spec.replicas,
            "selector": {"matchLabels": selector},
            "template": {
                // Another page is another template, so that pods show it.
                "metadata": {"labels": selector, "annotations": {"example.dev/message": site.spec.message}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "web", "image": "nginx", "imagePullPolicy": "IfNotPresent",
                        "volumeMounts": [{"name": "page", "mountPath": "/var/www/html"}],
                    }],
                    "volumes": [{"name": "page", "configMap": {"name": name}}],
                },
            },
        },
    });
    let deployment = deployments
        .patch(&name, &parameters, &Patch::Apply(deployment))
        .await
        .map_err(cannot("apply the deployment"))?;

    let status = deployment.status.unwrap_or_default();
    let is_current = status.observed_generation == deployment.metadata.generation
        && status.updated_replicas.unwrap_or(0) == status.replicas.unwrap_or(0);
    let ready = if is_current { status.ready_replicas.unwrap_or(0) } else { 0 };
    let status = json!({
        "apiVersion": Site::api_version(&()), "kind": Site::kind(&()),
        "status": {
            "observedGeneration": site.metadata.generation.ok_or(Error::Incomplete("a generation"))?,
            "readyReplicas": ready,
            "reconciledBy": context.pod,
        },
    });
    sites
        .patch_status(&name, &parameters, &Patch::Apply(status))
        .await
        .map_err(cannot("apply the status"))?;
    Ok(Action::await_change())
}
