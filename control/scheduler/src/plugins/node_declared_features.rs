//! NodeDeclaredFeatures: a pod that needs a feature of the kubelet fits only nodes that declare it.

use super::{Cycle, Refusal, Relevance};
use crate::snapshot::{NodeIndex, Snapshot};

pub fn prepare(cycle: &mut Cycle, _: &Snapshot) -> Result<Relevance, Refusal> {
    Ok(if cycle.pod.required_features.is_empty() { Relevance::Skips } else { Relevance::Judges })
}

pub fn filter(cycle: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> Result<(), Refusal> {
    let status = snapshot.node(node).and_then(|node| node.status.as_ref());
    let declared = status.and_then(|status| status.declared_features.as_deref()).unwrap_or(&[]);
    let declares = |feature: &&str| declared.iter().any(|given| given == *feature);
    match cycle.pod.required_features.iter().all(declares) {
        true => Ok(()),
        false => Err(Refusal::unresolvable("node(s) didn't match Pod's required features")),
    }
}
