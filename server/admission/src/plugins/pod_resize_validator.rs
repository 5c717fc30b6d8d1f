//! PodResizeValidator: refuses a resize beyond the allocatable resources of the pod's node.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::pod_resources::{self, Amounts, Count};
use ferry_api::status::Cause;
use ferry_api::{Object, Quantity, Status};
use ferry_registry::Registry;
use ferry_registry::verbs::Operation;
use k8s_openapi::api::core::v1::{Node, Pod};

use super::Context;
use crate::chain::{Phase, Plugin, Request};
use crate::lookup::lookup;

pub fn make(context: &Context) -> Arc<dyn Plugin> {
    Arc::new(PodResizeValidator { registry: context.registry.clone() })
}

struct PodResizeValidator {
    registry: Arc<Registry>,
}

#[async_trait]
impl Plugin for PodResizeValidator {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Validate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        request.operation == Operation::Update && request.is_sub("", "pods", "resize")
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let (Some(pod), Some(old)) = (object, old) else { return Ok(()) };
        let name = pod.text_at(&["spec", "nodeName"]);
        if name.is_empty() || pod.generation() == old.generation() {
            return Ok(());
        }
        let Some(node) = lookup(&self.registry, "", "nodes", "", name)? else {
            return Err(request.forbid(format!("node {name:?} not found")));
        };
        let refuse = |why: String, reason: &str| {
            let mut status = request.forbid(why);
            if let Some(details) = &mut status.details {
                details.causes.push(Cause { reason: reason.into(), ..Cause::default() });
            }
            Err(status)
        };
        if let Some(os) = node.label("kubernetes.io/os").filter(|os| *os != "linux") {
            let why = format!("pod resize is only supported on linux nodes, node {name:?} is {os:?}");
            return refuse(why, "UnsupportedPlatform");
        }
        let (pod, node): (Pod, Node) =
            (pod.view().map_err(Status::internal)?, node.view().map_err(Status::internal)?);
        let allocatable = pod_resources::read(node.status.and_then(|status| status.allocatable).as_ref());
        match too_much(&pod_resources::requests(&pod, Count::Asked), &allocatable) {
            Some(what) => {
                refuse(format!("node didn't have enough allocatable resources: {what}"), "NodeCapacity")
            }
            None => Ok(()),
        }
    }
}

fn too_much(requests: &Amounts, allocatable: &Amounts) -> Option<String> {
    let of = |amounts: &Amounts, name: &str| amounts.get(name).copied().unwrap_or(Quantity::ZERO);
    let line = |name: &str, number: fn(&Quantity) -> i64| {
        let (asked, there) = (of(requests, name), of(allocatable, name));
        let (asked_number, there_number) = (number(&asked), number(&there));
        (asked > there).then(|| format!("{name}, requested: {asked_number}, allocatable: {there_number}"))
    };
    let lines: Vec<String> =
        [line("cpu", Quantity::milli), line("memory", Quantity::value)].into_iter().flatten().collect();
    (!lines.is_empty()).then(|| lines.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resizes_beyond_the_node_are_refused() {
        let amounts = |cpu: &str, memory: &str| -> Amounts {
            let parse = |text: &str| Quantity::parse(text).expect("a quantity");
            Amounts::from([("cpu".into(), parse(cpu)), ("memory".into(), parse(memory))])
        };
        assert_eq!(too_much(&amounts("1", "1Gi"), &amounts("1", "1Gi")), None);
        assert_eq!(
            too_much(&amounts("2", "2Ki"), &amounts("1500m", "1Ki")).as_deref(),
            Some("cpu, requested: 2000, allocatable: 1500; memory, requested: 2048, allocatable: 1024")
        );
    }
}
