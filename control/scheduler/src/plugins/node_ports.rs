//! NodePorts: refuses nodes on which a requested host port is taken.

use super::{Cycle, Refusal, Relevance};
use crate::snapshot::{NodeIndex, Snapshot};

pub fn prepare(cycle: &mut Cycle, _: &Snapshot) -> Result<Relevance, Refusal> {
    Ok(if cycle.pod.host_ports.is_empty() { Relevance::Skips } else { Relevance::Judges })
}

pub fn filter(cycle: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> Result<(), Refusal> {
    let taken = snapshot.ports(node);
    if cycle.pod.host_ports.iter().any(|wanted| taken.iter().any(|port| port.conflicts(wanted))) {
        return Err(Refusal::resolvable("node(s) didn't have free ports for the requested pod ports"));
    }
    Ok(())
}
