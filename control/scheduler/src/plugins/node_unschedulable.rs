//! NodeUnschedulable: a cordoned node accepts only pods that tolerate it.

use k8s_openapi::api::core::v1::Taint;

use super::taint_toleration::tolerates;
use super::{Cycle, Refusal, Relevance};
use crate::snapshot::{NodeIndex, Snapshot};

pub fn prepare(cycle: &mut Cycle, snapshot: &Snapshot) -> Result<Relevance, Refusal> {
    let judges = snapshot.has_unschedulable() && !tolerates_cordon(cycle);
    Ok(if judges { Relevance::Judges } else { Relevance::Skips })
}

pub fn filter(_: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> Result<(), Refusal> {
    if snapshot.is_unschedulable(node) {
        return Err(Refusal::unresolvable("node(s) were unschedulable"));
    }
    Ok(())
}

fn tolerates_cordon(cycle: &Cycle) -> bool {
    let cordon = Taint {
        key: "node.kubernetes.io/unschedulable".into(),
        effect: "NoSchedule".into(),
        ..Taint::default()
    };
    cycle.pod.tolerations().iter().any(|toleration| tolerates(toleration, &cordon))
}
