//! Which pod goes first when the node runs short.

use std::cmp::Reverse;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::pod;
use crate::resources::{Side, pod_amounts};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starved {
    Memory,
    Disk,
    Pids,
}

/// A pod and what it uses of what is short.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub pod: Arc<Pod>,
    pub usage: i64,
}

/// The order of eviction: pods that use more than they asked for, then by
/// priority, then by how much more. Critical pods are never in it.
pub fn rank(candidates: Vec<Candidate>, starved: Starved) -> Vec<Candidate> {
    let mut ranked: Vec<Candidate> =
        candidates.into_iter().filter(|each| !pod::is_critical(&each.pod)).collect();
    let request = |candidate: &Candidate| match starved {
        Starved::Memory => pod_amounts(&candidate.pod, Side::Requests).get("memory").copied().unwrap_or(0),
        Starved::Disk => {
            pod_amounts(&candidate.pod, Side::Requests).get("ephemeral-storage").copied().unwrap_or(0)
        }
        // nobody asks for processes
        Starved::Pids => 0,
    };
    ranked.sort_by_key(|candidate| {
        let over = candidate.usage - request(candidate);
        let within = starved != Starved::Pids && over <= 0;
        (within, pod::spec(&candidate.pod).priority.unwrap_or(0), Reverse(over))
    });
    ranked
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn candidate(name: &str, priority: i32, request: &str, usage: i64) -> Candidate {
        let resources = json!({"requests": {"memory": request}});
        let pod = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"priority": priority, "containers": [{"name": "c", "resources": resources}]},
        }));
        Candidate { pod: Arc::new(pod.expect("the pod is well formed")), usage }
    }

    fn order(candidates: Vec<Candidate>, starved: Starved) -> Vec<String> {
        rank(candidates, starved).iter().map(|each| pod::name(&each.pod).to_string()).collect()
    }

    #[test]
    fn eviction_ranks_by_exceeding_requests_then_priority_then_excess() {
        let pods = vec![
            candidate("within", 0, "100", 50),
            candidate("over-much", 0, "100", 500),
            candidate("over-little", 0, "100", 101),
            candidate("over-important", 10, "0", 9000),
            candidate("within-important", 10, "100", 100),
            candidate("critical", 2_000_000_000, "0", 10_000),
        ];
        let expected = ["over-much", "over-little", "over-important", "within", "within-important"];
        assert_eq!(order(pods, Starved::Memory), expected);
    }

    #[test]
    fn processes_are_ranked_by_priority_and_count() {
        let pods =
            vec![candidate("few", 0, "1", 2), candidate("many", 0, "1", 200), candidate("kept", 5, "1", 999)];
        assert_eq!(order(pods, Starved::Pids), ["many", "few", "kept"]);
    }
}
