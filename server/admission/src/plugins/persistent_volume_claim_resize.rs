//! PersistentVolumeClaimResize: a claim grows only once it is bound, and where its class can grow volumes.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{Object, Quantity, Status};
use ferry_registry::Registry;
use ferry_registry::verbs::Operation;
use serde_json::Value;

use super::Context;
use crate::chain::{Phase, Plugin, Request};
use crate::lookup::lookup;

const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

pub fn make(context: &Context) -> Arc<dyn Plugin> {
    Arc::new(PersistentVolumeClaimResize { registry: context.registry.clone() })
}

struct PersistentVolumeClaimResize {
    registry: Arc<Registry>,
}

#[async_trait]
impl Plugin for PersistentVolumeClaimResize {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Validate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        request.operation == Operation::Update && request.is_for("", "persistentvolumeclaims")
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let (Some(new), Some(old)) = (object, old) else { return Ok(()) };
        if size(new) <= size(old) {
            return Ok(());
        }
        if old.text_at(&["status", "phase"]) != "Bound" {
            return Err(request.forbid("Only bound persistent volume claims can be expanded"));
        }
        let name = class(new);
        let class = match name.is_empty() || name != class(old) {
            true => None,
            false => lookup(&self.registry, "storage.k8s.io", "storageclasses", "", name)?,
        };
        match class.is_some_and(|class| class.0.get("allowVolumeExpansion") == Some(&Value::Bool(true))) {
            true => Ok(()),
            false => Err(request.forbid(
                "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
            )),
        }
    }
}

fn size(claim: &Object) -> Option<Quantity> {
    Quantity::parse(claim.text_at(&["spec", "resources", "requests", "storage"])).ok()
}

fn class(claim: &Object) -> &str {
    claim.annotation(OLD_CLASS).unwrap_or_else(|| claim.text_at(&["spec", "storageClassName"]))
}
