//! NodeUnschedulable: a cordoned node takes no new pods, but for those that tolerate it.

use k8s_openapi::api::core::v1::Taint;

use super::taint_toleration::tolerates;
use super::{Cycle, Refusal};
use crate::snapshot::{NodeIndex, Snapshot};

pub fn filter(cycle: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> Result<(), Refusal> {
    if !snapshot.is_unschedulable(node) {
        return Ok(());
    }
    let cordon = Taint {
        key: "node.kubernetes.io/unschedulable".into(),
        effect: "NoSchedule".into(),
        ..Taint::default()
    };
    if cycle.pod.tolerations().iter().any(|toleration| tolerates(toleration, &cordon)) {
        return Ok(());
    }
    Err(Refusal::unresolvable("node(s) were unschedulable"))
}
