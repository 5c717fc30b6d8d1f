//! NamespaceExists: refuses writes in namespaces that do not exist. NamespaceLifecycle includes this check.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{GroupResource, Object, Status};
use ferry_registry::Registry;

use super::Context;
use crate::chain::{Phase, Plugin, Request};
use crate::lookup::lookup;

pub fn make(context: &Context) -> Arc<dyn Plugin> {
    Arc::new(NamespaceExists { registry: context.registry.clone() })
}

struct NamespaceExists {
    registry: Arc<Registry>,
}

#[async_trait]
impl Plugin for NamespaceExists {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Validate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        !request.call.namespace.is_empty() && request.call.kind.is_namespaced()
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        _object: Option<&Object>,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        match lookup(&self.registry, "", "namespaces", "", request.call.namespace)? {
            Some(_) => Ok(()),
            None => Err(Status::not_found(&GroupResource::new("", "namespaces"), request.call.namespace)),
        }
    }
}
