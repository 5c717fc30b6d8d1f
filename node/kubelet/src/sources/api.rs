//! Pods that the API server has bound to this node, and the node itself as it has it.

use std::sync::Arc;

use ferry_client::{Event, Informer, Informers, Selection};
use k8s_openapi::api::core::v1::{Node, Pod};

use crate::node::status::NodeStatusSource;
use crate::pod;
use crate::pods::Pods;

/// Follows the node: a pod may be here because of a label that was set a moment ago.
pub fn follow_node(informers: &Informers, node: Arc<NodeStatusSource>) {
    let fields = Some(format!("metadata.name={}", node.config.node_name));
    informers.selected::<Node>(Selection { fields, labels: None }).handle(move |event| {
        if !event.is_deleted() {
            node.follow(event.object().clone());
        }
    });
}

/// Follows the node's pods. The informer is synced when all are known.
pub fn follow(informers: &Informers, node_name: &str, pods: &Pods) -> Informer<Pod> {
    let fields = Some(format!("spec.nodeName={node_name}"));
    let informer = informers.selected::<Pod>(Selection { fields, labels: None });
    let pods = pods.clone();
    informer.handle(move |event| {
        let pod = event.object();
        if pod::is_mirror(pod) {
            // never run: it only shows a static pod
            let mirror = (!event.is_deleted()).then(|| pod.clone());
            pods.set_mirror(&pod::key(pod), mirror);
            return;
        }
        match event {
            Event::Added(pod) => pods.apply(pod.clone()),
            Event::Modified { old, new } => {
                // deleted and made again between two looks
                if pod::uid(old) != pod::uid(new) {
                    pods.remove(pod::uid(old));
                }
                pods.apply(new.clone());
            }
            Event::Deleted { last, .. } => pods.remove(pod::uid(last)),
        }
    });
    informer
}
