//! VolumeRestrictions: disks that only one pod of a node, or one pod at all, can use.

use k8s_openapi::api::core::v1::Volume;

use super::volume_binding::{claims, uses};
use super::{Change, Cycle, Refusal, Relevance};
use crate::pod_info::is_disk;
use crate::snapshot::{NodeIndex, Snapshot};

pub fn prepare(cycle: &mut Cycle, _: &Snapshot) -> Result<Relevance, Refusal> {
    let disks = cycle.pod.spec().volumes.iter().flatten().any(is_disk);
    let exclusive = !exclusive_claims(cycle)?.is_empty();
    Ok(if disks || exclusive { Relevance::Judges } else { Relevance::Skips })
}

pub fn filter(cycle: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> Result<(), Refusal> {
    let own = || cycle.pod.spec().volumes.iter().flatten();
    let taken = snapshot.pods(node).iter().flat_map(|pod| pod.spec().volumes.iter().flatten());
    if taken.into_iter().any(|taken| own().any(|volume| conflicts(volume, taken))) {
        return Err(Refusal::resolvable("node(s) had no available disk"));
    }
    let exclusive = exclusive_claims(cycle)?;
    let in_use = |name: &String| {
        let nodes = snapshot.order().iter();
        nodes.flat_map(|node| snapshot.pods(*node)).any(|pod| uses(pod, &cycle.pod.key.namespace, name))
    };
    if exclusive.iter().any(in_use) {
        return Err(Refusal::resolvable(
            "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod",
        ));
    }
    Ok(())
}

/// Claims that only a single pod may use at a time.
fn exclusive_claims(cycle: &Cycle) -> Result<Vec<String>, Refusal> {
    let claims = claims(cycle.pod, cycle.cluster)?.into_iter().filter(|claim| {
        let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_ref());
        modes.is_some_and(|modes| modes.iter().any(|mode| mode == "ReadWriteOncePod"))
    });
    Ok(claims.filter_map(|claim| claim.metadata.name.clone()).collect())
}

fn conflicts(a: &Volume, b: &Volume) -> bool {
    let both_read = |a: Option<bool>, b: Option<bool>| a == Some(true) && b == Some(true);
    if let (Some(a), Some(b)) = (&a.gce_persistent_disk, &b.gce_persistent_disk) {
        return a.pd_name == b.pd_name && !both_read(a.read_only, b.read_only);
    }
    if let (Some(a), Some(b)) = (&a.aws_elastic_block_store, &b.aws_elastic_block_store) {
        return a.volume_id == b.volume_id;
    }
    if let (Some(a), Some(b)) = (&a.iscsi, &b.iscsi) {
        return a.iqn == b.iqn && !both_read(a.read_only, b.read_only);
    }
    if let (Some(a), Some(b)) = (&a.rbd, &b.rbd) {
        let monitors = a.monitors.iter().any(|monitor| b.monitors.contains(monitor));
        return monitors && a.pool == b.pool && a.image == b.image && !both_read(a.read_only, b.read_only);
    }
    false
}

pub fn hint(cycle: &Cycle, change: &Change) -> bool {
    match change {
        Change::Claim(namespace, name) => uses(cycle.pod, namespace, name),
        Change::PodLeft { pod, .. } => {
            pod.key.namespace == cycle.pod.key.namespace
                && pod.claims.iter().any(|claim| cycle.pod.claims.contains(claim))
        }
        _ => false,
    }
}
