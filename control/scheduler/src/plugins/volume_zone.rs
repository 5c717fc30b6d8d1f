//! VolumeZone: a volume with zone labels can only be used in that zone.

use super::volume_binding::{claims, uses};
use super::{Change, Cycle, Refusal, Relevance};
use crate::snapshot::{NodeIndex, REGION, Snapshot, ZONE};

/// Keys and the values a node's label may have.
pub type Wanted = Vec<(String, Vec<String>)>;

const KEYS: [&str; 4] =
    [ZONE, REGION, "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"];

pub fn prepare(cycle: &mut Cycle, _: &Snapshot) -> Result<Relevance, Refusal> {
    let mut wanted = Wanted::new();
    for claim in claims(cycle.pod, cycle.cluster)? {
        let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or("");
        let Some(volume) = cycle.cluster.volume(name) else { continue };
        let labels = volume.metadata.labels.iter().flatten();
        for (key, value) in labels.filter(|(key, _)| KEYS.contains(&key.as_str())) {
            wanted.push((key.clone(), value.split("__").map(Into::into).collect()));
        }
    }
    let relevance = if wanted.is_empty() { Relevance::Skips } else { Relevance::Judges };
    cycle.state.zones = wanted;
    Ok(relevance)
}

pub fn filter(cycle: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> Result<(), Refusal> {
    // a node that says nothing of where it is can be anywhere
    if !KEYS.iter().any(|key| snapshot.label_text(node, key).is_some()) {
        return Ok(());
    }
    let here = |key: &str, values: &[String]| {
        let value = snapshot.label_text(node, key).or_else(|| snapshot.label_text(node, today(key)));
        value.is_some_and(|value| values.iter().any(|wanted| wanted == value))
    };
    if cycle.state.zones.iter().all(|(key, values)| here(key, values)) {
        return Ok(());
    }
    Err(Refusal::unresolvable("node(s) had no available volume zone"))
}

/// The present name of a label that old volumes still carry.
fn today(key: &str) -> &str {
    match key {
        "failure-domain.beta.kubernetes.io/zone" => ZONE,
        "failure-domain.beta.kubernetes.io/region" => REGION,
        key => key,
    }
}

pub fn hint(cycle: &Cycle, change: &Change) -> bool {
    match change {
        Change::Claim(namespace, name) => uses(cycle.pod, namespace, name),
        Change::Storage => true,
        _ => false,
    }
}
