//! A definition that is deleted takes its objects with it: they are deleted first, and the finalizer is removed when
//! none is left. Objects that others hold by finalizers are waited for.

use std::sync::Arc;
use std::time::Duration;

use ferry_api::{Object, Status};
use ferry_registry::cache::Cache;
use ferry_registry::custom_resources::Definition;
use jiff::Timestamp;
use kube::Client;
use kube::api::{Api as ClientApi, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::names::set_condition;
use super::{definitions, write_status};

pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Between two looks at what is left, as long as something is; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Empties the definition, however often it takes.
pub async fn run(client: Client, cache: Arc<Cache>, definition: Definition, stop: CancellationToken) {
    let mut pause = FIRST_PAUSE;
    loop {
        match step(&client, &cache, &definition).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(definition = %definition.name, %error, "a definition cannot be emptied, trying again");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => return,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Deletes what there is. Says whether the definition is done with.
async fn step(client: &Client, cache: &Cache, definition: &Definition) -> Result<bool, Status> {
    let _span = ferry_trace::span("definition.cleanup");
    let Some(entry) = cache.get(&definition.name) else { return Ok(true) };
    let object = entry.read_object()?;
    if object.uid() != definition.uid || !object.finalizers().any(|name| name == FINALIZER) {
        return Ok(true);
    }
    let left = delete_all(client, definition).await.map_err(|error| Status::internal(error.to_string()))?;
    match left {
        0 => {
            let message = "removed all instances";
            tell(client, object, false, "InstanceDeletionCompleted", message).await?;
            remove_finalizer(client, cache, definition).await?;
            Ok(true)
        }
        _ => {
            let message = "CustomResource deletion is in progress";
            tell(client, object, true, "InstanceDeletionInProgress", message).await?;
            Ok(false)
        }
    }
}

/// Asks for the deletion of every object, in every namespace, and says how many are left.
async fn delete_all(client: &Client, definition: &Definition) -> Result<usize, kube::Error> {
    // One that was never established has no objects.
    let Some(version) = definition.versions.iter().find(|version| version.served) else { return Ok(0) };
    if !definition.established {
        return Ok(0);
    }
    let names = &definition.accepted;
    let gvk = GroupVersionKind::gvk(&definition.group, &version.name, &names.kind);
    let resource = ApiResource::from_gvk_with_plural(&gvk, &names.plural);
    let all: ClientApi<DynamicObject> = ClientApi::all_with(client.clone(), &resource);
    let items = all.list_metadata(&ListParams::default()).await?.items;
    let mut namespaces: Vec<Option<String>> = items
        .iter()
        .filter(|item| item.metadata.deletion_timestamp.is_none())
        .map(|item| item.metadata.namespace.clone())
        .collect();
    namespaces.sort();
    namespaces.dedup();
    for namespace in namespaces {
        let api: ClientApi<DynamicObject> = match namespace {
            Some(namespace) => ClientApi::namespaced_with(client.clone(), &namespace, &resource),
            None => all.clone(),
        };
        api.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    }
    Ok(all.list_metadata(&ListParams::default()).await?.items.len())
}

async fn tell(
    client: &Client,
    mut object: Object,
    is_terminating: bool,
    reason: &str,
    message: &str,
) -> Result<(), Status> {
    let mut status = object.0.get("status").cloned().unwrap_or_else(|| json!({}));
    let before = status.clone();
    set_condition(&mut status, "Terminating", is_terminating, reason, message, Timestamp::now());
    if status == before {
        return Ok(());
    }
    object.0.insert("status".into(), status);
    write_status(client, object).await
}

async fn remove_finalizer(client: &Client, cache: &Cache, definition: &Definition) -> Result<(), Status> {
    let Some(entry) = cache.get(&definition.name) else { return Ok(()) };
    let object = entry.read_object()?;
    let rest: Vec<&str> = object.finalizers().filter(|name| *name != FINALIZER).collect();
    let patch = json!({"metadata": {
        "uid": definition.uid, "resourceVersion": object.resource_version(), "finalizers": rest,
    }});
    let patched =
        definitions(client).patch(&definition.name, &PatchParams::default(), &Patch::Merge(patch)).await;
    match patched {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        // A conflict makes the next step look again.
        Err(error) => Err(Status::internal(error.to_string())),
    }
}
