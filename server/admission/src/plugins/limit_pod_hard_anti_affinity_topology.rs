//! LimitPodHardAntiAffinityTopology: refuses required anti-affinity with a topology key other than the hostname.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{Object, Status};
use ferry_registry::verbs::Operation;
use serde_json::Value;

use super::Context;
use crate::chain::{Phase, Plugin, Request};

const HOSTNAME: &str = "kubernetes.io/hostname";

pub fn make(_: &Context) -> Arc<dyn Plugin> {
    Arc::new(LimitPodHardAntiAffinityTopology)
}

struct LimitPodHardAntiAffinityTopology;

#[async_trait]
impl Plugin for LimitPodHardAntiAffinityTopology {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Validate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        request.operation != Operation::Delete && request.is_for("", "pods")
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        pod: Option<&Object>,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        match pod.and_then(wide_topology) {
            Some(key) => Err(request.forbid(format!(
                "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey {key} but only key {HOSTNAME} is allowed"
            ))),
            None => Ok(()),
        }
    }
}

fn wide_topology(pod: &Object) -> Option<&str> {
    const TERMS: [&str; 4] =
        ["spec", "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
    let terms = pod.get(&TERMS).and_then(Value::as_array).into_iter().flatten();
    let mut keys = terms.map(|term| term.get("topologyKey").and_then(Value::as_str).unwrap_or(""));
    keys.find(|key| *key != HOSTNAME)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(spec: Value) -> Object {
        Object::from_value(json!({"spec": spec})).expect("an object")
    }

    #[test]
    fn only_hosts_are_kept_free_of_others() {
        let term = |key: &str| {
            pod(json!({"affinity": {"podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": key}],
            }}}))
        };
        assert_eq!(wide_topology(&term(HOSTNAME)), None);
        assert_eq!(wide_topology(&term("zone")), Some("zone"));
        assert_eq!(wide_topology(&pod(json!({}))), None);
    }
}
