//! DenyServiceExternalIPs: refuses new external IPs of Services, since they can intercept other traffic. Existing ones
//! stay.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{Object, Status};
use ferry_registry::verbs::Operation;
use serde_json::Value;

use super::Context;
use crate::chain::{Phase, Plugin, Request};

pub fn make(_: &Context) -> Arc<dyn Plugin> {
    Arc::new(DenyServiceExternalIps)
}

struct DenyServiceExternalIps;

#[async_trait]
impl Plugin for DenyServiceExternalIps {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Validate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        request.operation != Operation::Delete && request.is_for("", "services")
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        service: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let addresses = |service: Option<&Object>| -> BTreeSet<String> {
            let list = service.and_then(|service| service.get(&["spec", "externalIPs"])?.as_array());
            list.into_iter().flatten().filter_map(Value::as_str).map(str::to_string).collect()
        };
        match addresses(service).is_subset(&addresses(old)) {
            true => Ok(()),
            false => Err(request.forbid("Use of external IPs is denied by admission control")),
        }
    }
}
