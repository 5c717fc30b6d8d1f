//! ImageLocality: prefers nodes that already have the pod's larger images.

use super::{Cycle, MAX_SCORE, Relevance};
use crate::snapshot::{NodeIndex, Snapshot};

/// Smaller images are pulled quickly anyway; of larger ones the difference no longer matters.
const SMALL: i64 = 23 * 1024 * 1024;
const LARGE_PER_CONTAINER: i64 = 1000 * 1024 * 1024;

pub fn score(cycle: &Cycle, snapshot: &Snapshot, nodes: &[NodeIndex], scores: &mut [i64]) -> Relevance {
    let images: Vec<_> = cycle.pod.images.iter().map(|image| snapshot.symbols.find(image)).collect();
    if images.iter().all(Option::is_none) {
        return Relevance::Skips;
    }
    let large = LARGE_PER_CONTAINER * images.len() as i64;
    let all = snapshot.len() as f64;
    for (score, node) in scores.iter_mut().zip(nodes) {
        let found = images.iter().flatten().filter_map(|image| snapshot.image(*node, *image));
        // an image that few nodes have counts less, so that its pods do not heap up on them
        let sum: i64 = found.map(|(size, on)| (size as f64 * (f64::from(on) / all)) as i64).sum();
        *score = MAX_SCORE * (sum.clamp(SMALL, large) - SMALL) / (large - SMALL);
    }
    Relevance::Judges
}
