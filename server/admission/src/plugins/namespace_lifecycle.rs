//! NamespaceLifecycle: refuses new objects in namespaces that do not exist or are terminating, and the deletion of the
//! system namespaces.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::status::{Cause, Details};
use ferry_api::{GroupResource, Object, Status};
use ferry_registry::verbs::Operation;
use ferry_registry::{Registry, Resource};

use super::Context;
use crate::chain::{Phase, Plugin, Request};

const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

pub fn make(context: &Context) -> Arc<dyn Plugin> {
    Arc::new(NamespaceLifecycle { registry: context.registry.clone() })
}

struct NamespaceLifecycle {
    registry: Arc<Registry>,
}

impl NamespaceLifecycle {
    fn namespaces(&self) -> Result<Arc<Resource>, Status> {
        self.registry
            .resource(&GroupResource::new("", "namespaces"))
            .ok_or_else(|| Status::internal("namespaces are not served"))
    }
}

#[async_trait]
impl Plugin for NamespaceLifecycle {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Validate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        match request.operation {
            Operation::Delete => request.is_for("", "namespaces"),
            Operation::Create => request.call.kind.is_namespaced() && !is_review(request),
            Operation::Update | Operation::Connect => false,
        }
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        _object: Option<&Object>,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        if request.operation == Operation::Delete {
            return match IMMORTAL.contains(&request.name) {
                true => Err(request.forbid("this namespace may not be deleted")),
                false => Ok(()),
            };
        }
        let namespaces = self.namespaces()?;
        let Some(entry) = namespaces.cache.get(request.call.namespace) else {
            return Err(Status::not_found(&GroupResource::new("", "namespaces"), request.call.namespace));
        };
        if &*entry.fields[0] != "Terminating" {
            return Ok(());
        }
        let why = format!(
            "unable to create new content in namespace {} because it is being terminated",
            request.call.namespace
        );
        let mut status = request.forbid(why);
        if let Some(Details { causes, .. }) = &mut status.details {
            causes.push(Cause {
                reason: "NamespaceTerminating".into(),
                message: format!("namespace {} is being terminated", request.call.namespace),
                field: "metadata.namespace".into(),
            });
        }
        Err(status)
    }
}

/// A question about access is answered in any namespace.
fn is_review(request: &Request<'_>) -> bool {
    request.call.kind.plural == "localsubjectaccessreviews"
}
