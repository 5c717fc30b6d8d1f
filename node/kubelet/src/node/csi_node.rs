//! The CSINode object: which volume drivers the node has. One is always there, the kubelet's own for its directories;
//! others are added as they register (`volumes::csi::registration`).

use std::sync::Arc;
use std::time::Duration;

use ferry_api::local_volume::DRIVER;
use ferry_client::controller::Builder;
use ferry_client::{Attempt, Client, Error, Informer, Informers, NamespacedName, Outcome, Selection};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, ObjectMeta, PostParams};
use parking_lot::Mutex;

use crate::volumes::csi::node_info;
use crate::volumes::csi::registration::NodeDrivers;

/// Before drivers are tried again that could not be shown.
const PAUSE: Duration = Duration::from_secs(5);
const HOSTNAME: &str = "kubernetes.io/hostname";

struct Published {
    client: Client,
    nodes: Informer<Node>,
    /// Those that have registered.
    drivers: Arc<NodeDrivers>,
    /// The node that it was written for. One that is made anew has lost it with the old one.
    uid: Mutex<Option<String>>,
}

/// Keeps the object for as long as the node is there.
pub fn follow(
    client: Client,
    node_name: &str,
    drivers: Arc<NodeDrivers>,
    informers: &Informers,
) -> BoxFuture<'static, ()> {
    let builder = Builder::new("csi-node", informers.clone(), 1);
    let fields = Some(format!("metadata.name={node_name}"));
    let nodes = builder.selected::<Node>(Selection { fields, labels: None });
    let state = Published { client, nodes: nodes.clone(), drivers, uid: Mutex::default() };
    builder.of(&nodes, Arc::new(state)).run(Published::reconcile)
}

impl Published {
    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(node) = self.nodes.get(&key) else { return Ok(Outcome::Done) };
        if *self.uid.lock() == node.metadata.uid {
            return Ok(Outcome::Done);
        }
        let api: Api<CSINode> = Api::all(self.client.clone());
        let found = api.get_opt(&key.name).await.attempting("read the CSINode")?;
        let next = with_own_driver(found.as_ref(), &node);
        match found {
            None => api.create(&PostParams::default(), &next).await.attempting("create the CSINode")?,
            Some(found) if found == next => found,
            Some(_) => api
                .replace(&key.name, &PostParams::default(), &next)
                .await
                .attempting("update the CSINode")?,
        };
        if let Err(problem) = self.drivers.write_all().await {
            tracing::warn!(node = key.name, problem, "cannot write the drivers of a new node to its CSINode");
            return Ok(Outcome::After(PAUSE));
        }
        self.uid.lock().clone_from(&node.metadata.uid);
        Ok(Outcome::Done)
    }
}

/// The object with our driver; those of others stay.
pub fn with_own_driver(found: Option<&CSINode>, node: &Node) -> CSINode {
    let name = node.metadata.name.clone().unwrap_or_default();
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: name.clone(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        ..Default::default()
    };
    let mut object = found.cloned().unwrap_or_else(|| CSINode {
        metadata: ObjectMeta { name: Some(name.clone()), ..Default::default() },
        ..Default::default()
    });
    object.metadata.owner_references = Some(vec![owner]);
    let own = CSINodeDriver {
        name: DRIVER.into(),
        node_id: name,
        topology_keys: Some(vec![HOSTNAME.into()]),
        allocatable: None,
    };
    node_info::with_driver(object, DRIVER, Some(own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_driver_is_added_once_and_others_stay() {
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "n1", "uid": "u"}})).expect("a node");
        let new = with_own_driver(None, &node);
        assert_eq!(new.spec.drivers.len(), 1);
        assert_eq!(new.metadata.owner_references.as_ref().map(|owners| owners[0].uid.as_str()), Some("u"));
        assert_eq!(with_own_driver(Some(&new), &node), new);
        let mut more = new.clone();
        more.spec.drivers.insert(0, CSINodeDriver { name: "disk.example".into(), ..Default::default() });
        assert_eq!(with_own_driver(Some(&more), &node), more);
    }
}
