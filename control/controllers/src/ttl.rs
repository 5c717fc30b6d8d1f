//! Tells kubelets how long they may keep Secrets and ConfigMaps before asking again: longer in
//! larger clusters.

use std::sync::Arc;

use ferry_client::{Attempt, Client, Error, Event, Informer, NamespacedName, Outcome, error};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::context::{Context, Running};

const CONTROLLER: &str = "ttl-controller";
const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";

/// Seconds for a cluster of so many nodes.
fn ttl(nodes: usize) -> u32 {
    match nodes {
        0..=100 => 0,
        101..=500 => 15,
        501..=1000 => 30,
        1001..=2000 => 60,
        _ => 300,
    }
}

struct Controller {
    client: Client,
    nodes: Informer<Node>,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let nodes = builder.informer::<Node>();
    let controller = Controller { client: context.client.clone(), nodes: nodes.clone() };
    let controller = builder.keys_of::<Node, _>(Arc::new(controller));
    controller.watches(&nodes, Controller::node_changed).run(Controller::reconcile)
}

impl Controller {
    fn node_changed(&self, event: &Event<Node>) -> Vec<NamespacedName> {
        let count = self.nodes.len();
        if event.old().is_some() {
            Vec::new()
        } else if ttl(count) == ttl(count.saturating_sub(1)) {
            vec![event.key()]
        } else {
            // The one that crosses a bound changes it for all.
            self.nodes.list().iter().map(|node| NamespacedName::of(&**node)).collect()
        }
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let wanted = ttl(self.nodes.len()).to_string();
        let Some(node) = self.nodes.get(&key) else { return Ok(Outcome::Done) };
        if node.annotations().get(ANNOTATION) != Some(&wanted) {
            let patch = json!({"metadata": {"annotations": {ANNOTATION: wanted}}});
            let api: Api<Node> = Api::all(self.client.clone());
            let patched = api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
            error::ignore_not_found(patched).attempting("set time to live")?;
        }
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_clusters_ask_less_often() {
        let times: Vec<u32> = [1, 100, 101, 500, 1000, 2000, 5000].into_iter().map(ttl).collect();
        assert_eq!(times, [0, 0, 15, 15, 30, 60, 300]);
    }
}
