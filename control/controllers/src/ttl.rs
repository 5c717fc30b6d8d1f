//! Tells kubelets how long they may keep Secrets and ConfigMaps before asking again: longer in
//! larger clusters.

use ferry_client::{Attempt, Event, NamespacedName, Outcome, Queue, error};
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

pub fn start(context: &Context) -> Running {
    let queue: Queue<NamespacedName> = Queue::default();
    let nodes = context.informers.of::<Node>();
    let (all, wakes) = (nodes.clone(), queue.clone());
    nodes.handle(move |event: &Event<Node>| {
        if event.old().is_none() {
            wakes.add_caused(event.key(), event.revision());
            // The one that crosses a bound changes it for all.
            if ttl(all.len()) != ttl(all.len().saturating_sub(1)) {
                all.list()
                    .iter()
                    .for_each(|node| wakes.add_caused(NamespacedName::of(&**node), event.revision()));
            }
        }
    });
    let (ready, client) = (nodes.clone(), context.client.clone());
    context.reconcile(CONTROLLER, "nodes", queue, async move { ready.synced().await }, move |key| {
        let (nodes, client) = (nodes.clone(), client.clone());
        async move {
            let wanted = ttl(nodes.len()).to_string();
            let Some(node) = nodes.get(&key) else { return Ok(Outcome::Done) };
            if node.annotations().get(ANNOTATION) != Some(&wanted) {
                let patch = json!({"metadata": {"annotations": {ANNOTATION: wanted}}});
                let api: Api<Node> = Api::all(client);
                let patched = api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
                error::ignore_not_found(patched).attempting("set time to live")?;
            }
            Ok(Outcome::Done)
        }
    })
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
