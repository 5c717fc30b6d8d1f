//! NodeVolumeLimits: a CSI driver can attach only so many volumes to a node.

use std::collections::BTreeSet;

use super::volume_binding::{class_name, uses};
use super::{Change, Cluster, Cycle, Refusal, Relevance};
use crate::pod_info::PodInfo;
use crate::snapshot::{NodeIndex, Snapshot};

/// A driver and its name for one volume.
type Attached = (String, String);

pub fn prepare(cycle: &mut Cycle, _: &Snapshot) -> Result<Relevance, Refusal> {
    let any = !attached(cycle.pod, cycle.cluster).is_empty();
    Ok(if any { Relevance::Judges } else { Relevance::Skips })
}

pub fn filter(cycle: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> Result<(), Refusal> {
    let Some(csi_node) = cycle.cluster.csi_node(snapshot.name(node)) else { return Ok(()) };
    let wanted = attached(cycle.pod, cycle.cluster);
    let here: BTreeSet<Attached> =
        snapshot.pods(node).iter().flat_map(|pod| attached(pod, cycle.cluster)).collect();
    for driver in &csi_node.spec.drivers {
        let Some(limit) = driver.allocatable.as_ref().and_then(|allocatable| allocatable.count) else {
            continue;
        };
        let of_driver = |volumes: &BTreeSet<Attached>| volumes.iter().filter(|v| v.0 == driver.name).count();
        let new: BTreeSet<Attached> = wanted.difference(&here).cloned().collect();
        let new = of_driver(&new);
        if new > 0 && (of_driver(&here) + new) as i64 > i64::from(limit) {
            return Err(Refusal::resolvable("node(s) exceed max volume count"));
        }
    }
    Ok(())
}

/// The CSI volumes of a pod; one that is still to be made is named after its claim.
fn attached(pod: &PodInfo, cluster: &dyn Cluster) -> BTreeSet<Attached> {
    let claims = pod.claims.iter().filter_map(|claim| cluster.claim(&pod.key.namespace, &claim.name));
    claims
        .filter_map(|claim| {
            let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or("");
            if let Some(volume) = cluster.volume(name) {
                let csi = volume.spec.as_ref()?.csi.as_ref()?;
                return Some((csi.driver.clone(), csi.volume_handle.clone()));
            }
            let class = cluster.storage_class(class_name(&claim)?)?;
            Some((
                class.provisioner.clone(),
                format!("{}/{}", pod.key.namespace, claim.metadata.name.as_ref()?),
            ))
        })
        .collect()
}

pub fn hint(cycle: &Cycle, change: &Change) -> bool {
    match change {
        Change::Claim(namespace, name) => uses(cycle.pod, namespace, name),
        Change::Storage => true,
        _ => false,
    }
}
