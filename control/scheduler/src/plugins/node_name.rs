//! NodeName: a pod with spec.nodeName fits that node only.

use super::{Cycle, Refusal, Relevance};
use crate::pod_info::node_name;
use crate::snapshot::{NodeIndex, Snapshot};

pub fn prepare(cycle: &mut Cycle, _: &Snapshot) -> Result<Relevance, Refusal> {
    Ok(if node_name(&cycle.pod.pod).is_some() { Relevance::Judges } else { Relevance::Skips })
}

pub fn filter(cycle: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> Result<(), Refusal> {
    if node_name(&cycle.pod.pod).is_none_or(|name| name == &**snapshot.name(node)) {
        return Ok(());
    }
    Err(Refusal::unresolvable("node(s) didn't match the requested node name"))
}
