//! Whether a driver has room for a volume that is still to be made, as its CSIStorageCapacity objects say.

use std::collections::BTreeMap;

use ferry_api::quantity::Quantity;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt};

use super::Cluster;
use crate::snapshot::{NodeIndex, Snapshot};

/// Always, where the driver does not say what room it has.
pub fn has_room(
    cluster: &dyn Cluster,
    class: &StorageClass,
    claim: &PersistentVolumeClaim,
    snapshot: &Snapshot,
    node: NodeIndex,
) -> bool {
    let driver = cluster.csi_driver(&class.provisioner);
    if driver.is_none_or(|driver| driver.spec.storage_capacity != Some(true)) {
        return true;
    }
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let asked = resources.and_then(|resources| resources.requests.as_ref()?.get("storage"));
    let Some(asked) = asked.and_then(parse) else { return true };
    let name = class.metadata.name.as_deref().unwrap_or_default();
    cluster.storage_capacities().iter().any(|capacity| {
        capacity.storage_class_name == name
            && holds(capacity).is_some_and(|holds| holds >= asked)
            && capacity.node_topology.as_ref().is_some_and(|topology| reaches(topology, snapshot, node))
    })
}

/// How large a volume can be. Of two figures the one for a single volume counts.
fn holds(capacity: &CSIStorageCapacity) -> Option<Quantity> {
    capacity.maximum_volume_size.as_ref().or(capacity.capacity.as_ref()).and_then(parse)
}

fn parse(quantity: &ApiQuantity) -> Option<Quantity> {
    Quantity::parse(&quantity.0).ok()
}

fn reaches(topology: &LabelSelector, snapshot: &Snapshot, node: NodeIndex) -> bool {
    let named = topology.match_labels.iter().flatten().map(|(key, _)| key);
    let expressed = topology.match_expressions.iter().flatten().map(|requirement| &requirement.key);
    let labels: BTreeMap<String, String> = named
        .chain(expressed)
        .filter_map(|key| Some((key.clone(), snapshot.label_text(node, key)?.to_owned())))
        .collect();
    Selector::try_from(topology.clone()).is_ok_and(|selector| selector.matches(&labels))
}
