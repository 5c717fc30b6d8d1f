//! A scheduler of your own: pods that say `schedulerName: emptiest` go to the node with the fewest pods.
//!
//!     cargo run -p custom-scheduler -- KUBECONFIG
//!
//! It runs beside the default scheduler, which leaves pods of another name alone. All the rest is what any
//! control loop on `ferry-client` is made of: informers that know the cluster, a queue of keys, a function
//! from a key to a write. A failed write backs off and is tried again; a missed event costs nothing.

use std::sync::Arc;
use std::time::Duration;

use ferry_client::controller::Builder;
use ferry_client::{Attempt, CancellationToken, Client, Error, Index, Informer, Informers, Kubeconfig};
use ferry_client::{NamespacedName, Outcome, Selection};
use k8s_openapi::api::core::v1::{Binding, Node, Pod};
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

const NAME: &str = "emptiest";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let kubeconfig = Kubeconfig { path: std::env::args().nth(1).map(Into::into), ..Kubeconfig::default() };
    let client = ferry_client::connect(&kubeconfig).await?;
    let shutdown = CancellationToken::new();
    let informers = Informers::new(client.clone(), shutdown.clone());

    let builder = Builder::new(NAME, informers.clone(), 1);
    let fields = format!("spec.schedulerName={NAME},spec.nodeName=");
    let waiting: Informer<Pod> = builder.selected(Selection { fields: Some(fields), labels: None });
    let scheduler = Arc::new(Scheduler {
        client,
        nodes: builder.informer(),
        placed: builder.informer().index("node", |pod| node_name(pod).into_iter().collect()),
        waiting: waiting.clone(),
    });

    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            shutdown.cancel();
        }
    });
    builder.of(&waiting, scheduler).run(Scheduler::reconcile).await;
    informers.stopped().await;
    Ok(())
}

struct Scheduler {
    client: Client,
    nodes: Informer<Node>,
    placed: Index<Pod>,
    waiting: Informer<Pod>,
}

impl Scheduler {
    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(pod) = self.waiting.get(&key) else { return Ok(Outcome::Done) };
        let Some(node) = emptiest(&self.nodes.list(), &self.placed) else {
            return Ok(Outcome::After(Duration::from_secs(1)));
        };
        bind(&self.client, &pod, &node).await?;
        Ok(Outcome::Done)
    }
}

/// The whole policy: of the nodes that take pods, the one that has the fewest.
fn emptiest(nodes: &[Arc<Node>], placed: &Index<Pod>) -> Option<String> {
    let open = nodes.iter().filter(|node| {
        node.spec.as_ref().is_none_or(|spec| spec.unschedulable != Some(true) && spec.taints.is_none())
    });
    let names = open.filter_map(|node| node.metadata.name.clone());
    names.min_by_key(|name| placed.count(name))
}

async fn bind(client: &Client, pod: &Pod, node: &str) -> Result<(), Error> {
    let key = NamespacedName::of(pod);
    let binding: Binding = serde_json::from_value(json!({
        "metadata": {"name": key.name, "namespace": key.namespace, "uid": pod.metadata.uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }))
    .expect("is a Binding");
    let pods: Api<Pod> = Api::namespaced(client.clone(), &key.namespace);
    let bound: Result<serde_json::Value, _> =
        pods.create_subresource("binding", &key.name, &PostParams::default(), &binding).await;
    bound.attempting(format!("bind {key} to {node}"))?;
    Ok(())
}

fn node_name(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.node_name.clone()
}
