//! Deletes the objects of a deleted definition, waits for those with finalizers, and then removes the definition's
//! finalizer.

use std::sync::Arc;
use std::time::Duration;

use ferry_api::{Object, Status, User};
use ferry_registry::cache::{Cache, Filter};
use ferry_registry::custom_resources::definition::outline;
use ferry_registry::custom_resources::{Definition, conditions};
use ferry_registry::verbs::Call;
use ferry_registry::verbs::delete::DeleteOptions;
use ferry_registry::{Registry, Resource};
use jiff::Timestamp;
use kube::Client;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{definitions, now, write_status};
use crate::admission::NoAdmission;

pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Between two looks at what is left, as long as something is; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

pub struct Cleanup {
    pub registry: Arc<Registry>,
    pub client: Client,
    /// Where the definition itself is read.
    pub definitions: Arc<Cache>,
    pub definition: Definition,
    pub instances: Instances,
}

/// The objects of a definition.
pub enum Instances {
    Stored(Arc<Resource>),
    /// They lie where a built-in resource is, and are none of the definition's.
    Builtin,
    /// It was never established.
    None,
}

impl Cleanup {
    /// Empties the definition, however often it takes.
    pub async fn run(self, stop: CancellationToken) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.step().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(definition = %self.definition.name, %error, "cannot delete the objects of a definition, trying again");
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
    async fn step(&self) -> Result<bool, Status> {
        let _span = ferry_trace::span("definition.cleanup");
        let Some(object) = self.current()? else { return Ok(true) };
        let (reason, message) = match &self.instances {
            Instances::Stored(resource) => match self.delete_all(resource).await? {
                0 => ("InstanceDeletionCompleted", "removed all instances"),
                _ => {
                    let message = "CustomResource deletion is in progress";
                    self.tell(object, true, "InstanceDeletionInProgress", message).await?;
                    return Ok(false);
                }
            },
            Instances::Builtin => {
                ("OverlappingBuiltInResource", "instances overlap with built-in resources in storage")
            }
            Instances::None => ("NeverEstablished", "resource was never established"),
        };
        self.tell(object, false, reason, message).await?;
        self.remove_finalizer().await?;
        Ok(true)
    }

    /// The definition, as long as it waits for this.
    fn current(&self) -> Result<Option<Object>, Status> {
        let Some(entry) = self.definitions.get(&self.definition.name) else { return Ok(None) };
        let object = outline(&entry.json)?;
        let waits = object.uid() == self.definition.uid && object.finalizers().any(|name| name == FINALIZER);
        Ok(waits.then_some(object))
    }

    /// Asks for the deletion of every object, in every namespace, and says how many are left. The registry is asked,
    /// not the API: no version may be served, and who deletes the definition has been asked already.
    async fn delete_all(&self, resource: &Resource) -> Result<usize, Status> {
        let mut everything = Filter::default();
        everything.include_uninitialized = true;
        let (user, warnings, annotations) = (User::default(), Mutex::default(), Mutex::default());
        let call = Call {
            resource,
            kind: &resource.stored,
            namespace: "",
            name: "",
            subresource: "",
            object_kind: None,
            user: &user,
            manager: "",
            dry_run: false,
            options: &Value::Null,
            include_uninitialized: true,
            patience: Duration::ZERO,
            now: Timestamp::now(),
            admission: &NoAdmission,
            warnings: &warnings,
            annotations: &annotations,
        };
        self.registry.delete_collection(&call, &everything, &DeleteOptions::default()).await?;
        Ok(self.registry.select(resource, &everything).await?.len())
    }

    async fn tell(
        &self,
        object: Object,
        is_terminating: bool,
        reason: &str,
        message: &str,
    ) -> Result<(), Status> {
        let mut status = object.0.get("status").cloned().unwrap_or_else(|| json!({}));
        let before = status.clone();
        conditions::set(&mut status, "Terminating", is_terminating, reason, message, &now());
        if status == before {
            return Ok(());
        }
        write_status(&self.client, &object, &status).await
    }

    async fn remove_finalizer(&self) -> Result<(), Status> {
        let Some(object) = self.current()? else { return Ok(()) };
        let rest: Vec<&str> = object.finalizers().filter(|name| *name != FINALIZER).collect();
        let patch = json!({"metadata": {
            "uid": self.definition.uid, "resourceVersion": object.resource_version(), "finalizers": rest,
        }});
        let name = &self.definition.name;
        let patched =
            definitions(&self.client).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        match patched {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            // A conflict makes the next step look again.
            Err(error) => Err(Status::internal(error.to_string())),
        }
    }
}
