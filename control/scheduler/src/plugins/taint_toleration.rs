//! TaintToleration: a tainted node takes only pods that tolerate it; of the others, those with
//! the fewest intolerable PreferNoSchedule taints are preferred.

use k8s_openapi::api::core::v1::{Taint, Toleration};

use super::{Cycle, MAX_SCORE, Refusal, Relevance, normalize};
use crate::snapshot::{NodeIndex, Snapshot};

/// Judges every set of taints once; nodes only look the answer up.
pub fn prepare(cycle: &mut Cycle, snapshot: &Snapshot) -> Result<Relevance, Refusal> {
    let tolerations = cycle.pod.tolerations();
    let tolerated = snapshot.taint_sets().iter().map(|taints| {
        let repelling = taints.iter().filter(|taint| matches!(&*taint.effect, "NoSchedule" | "NoExecute"));
        all_tolerated(tolerations, repelling)
    });
    cycle.state.tolerated = tolerated.collect();
    let all = cycle.state.tolerated.iter().all(|tolerated| *tolerated);
    Ok(if all { Relevance::Skips } else { Relevance::Judges })
}

pub fn filter(cycle: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> Result<(), Refusal> {
    let tolerated = cycle.state.tolerated.get(snapshot.taint_set(node).0 as usize);
    if tolerated.copied().unwrap_or(false) {
        return Ok(());
    }
    Err(Refusal::unresolvable("node(s) had untolerated taint(s)"))
}

pub fn score(cycle: &Cycle, snapshot: &Snapshot, nodes: &[NodeIndex], scores: &mut [i64]) -> Relevance {
    // tolerations for no effect in particular count here, too
    let tolerations = cycle.pod.tolerations().iter();
    let tolerations: Vec<&Toleration> = tolerations
        .filter(|t| matches!(t.effect.as_deref().unwrap_or(""), "" | "PreferNoSchedule"))
        .collect();
    let intolerable: Vec<i64> = snapshot
        .taint_sets()
        .iter()
        .map(|taints| {
            let taints = taints.iter().filter(|taint| taint.effect == "PreferNoSchedule");
            taints.filter(|taint| !tolerations.iter().any(|t| tolerates(t, taint))).count() as i64
        })
        .collect();
    if intolerable.iter().all(|count| *count == 0) {
        scores.fill(MAX_SCORE);
        return Relevance::Judges;
    }
    for (score, node) in scores.iter_mut().zip(nodes) {
        *score = intolerable.get(snapshot.taint_set(*node).0 as usize).copied().unwrap_or(0);
    }
    normalize(scores, true);
    Relevance::Judges
}

/// Whether a pod may stay on a node as far as `NoSchedule` and `NoExecute` taints go.
pub fn tolerates_node(tolerations: &[Toleration], taints: &[Taint]) -> bool {
    all_tolerated(tolerations, taints.iter().filter(|t| matches!(&*t.effect, "NoSchedule" | "NoExecute")))
}

fn all_tolerated<'t>(tolerations: &[Toleration], mut taints: impl Iterator<Item = &'t Taint>) -> bool {
    taints.all(|taint| tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or("");
    if !effect.is_empty() && effect != taint.effect {
        return false;
    }
    let key = toleration.key.as_deref().unwrap_or("");
    if !key.is_empty() && key != taint.key {
        return false;
    }
    let value = toleration.value.as_deref().unwrap_or("");
    let taint_value = taint.value.as_deref().unwrap_or("");
    let numbers = || Some((taint_value.parse::<i64>().ok()?, value.parse::<i64>().ok()?));
    match toleration.operator.as_deref().unwrap_or("") {
        "" | "Equal" => value == taint_value,
        "Exists" => true,
        // KEP-5471: a taint's number against the toleration's
        "Lt" => numbers().is_some_and(|(taint, bound)| taint < bound),
        "Gt" => numbers().is_some_and(|(taint, bound)| taint > bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations_match_by_effect_key_and_value() {
        let check = |toleration: serde_json::Value, expected: bool| {
            let taint: Taint =
                serde_json::from_value(serde_json::json!({"key": "k", "value": "5", "effect": "NoSchedule"}))
                    .unwrap();
            let parsed: Toleration = serde_json::from_value(toleration.clone()).unwrap();
            assert_eq!(tolerates(&parsed, &taint), expected, "{toleration}");
        };
        check(serde_json::json!({"operator": "Exists"}), true);
        check(serde_json::json!({"key": "k", "operator": "Exists"}), true);
        check(serde_json::json!({"key": "k", "value": "5"}), true);
        check(serde_json::json!({"key": "k", "value": "6"}), false);
        check(
            serde_json::json!({"key": "k", "operator": "Equal", "value": "5", "effect": "NoExecute"}),
            false,
        );
        check(serde_json::json!({"key": "other", "operator": "Exists"}), false);
        check(serde_json::json!({"key": "k", "operator": "Lt", "value": "6"}), true);
        check(serde_json::json!({"key": "k", "operator": "Gt", "value": "6"}), false);
    }
}
