//! DefaultTolerationSeconds: by default a pod tolerates an unreachable or not ready node for five minutes.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{Object, Status};
use ferry_registry::verbs::Operation;
use serde_json::{Value, json};

use super::Context;
use crate::chain::{Phase, Plugin, Request};

const SECONDS: i64 = 300;
const TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

pub fn make(_: &Context) -> Arc<dyn Plugin> {
    Arc::new(DefaultTolerationSeconds)
}

struct DefaultTolerationSeconds;

#[async_trait]
impl Plugin for DefaultTolerationSeconds {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Mutate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        request.is_for("", "pods") && request.operation != Operation::Delete
    }

    async fn mutate(
        &self,
        _request: &Request<'_>,
        pod: &mut Object,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        complete(pod);
        Ok(())
    }
}

fn complete(pod: &mut Object) {
    let tolerations = pod.section_mut("spec").entry("tolerations").or_insert_with(|| json!([]));
    // A defaulted field may be there as null.
    if tolerations.is_null() {
        *tolerations = json!([]);
    }
    let Some(tolerations) = tolerations.as_array_mut() else { return };
    for taint in TAINTS {
        if !tolerations.iter().any(|toleration| tolerates(toleration, taint)) {
            tolerations.push(json!({
                "key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": SECONDS,
            }));
        }
    }
}

fn tolerates(toleration: &Value, taint: &str) -> bool {
    let text = |field: &str| toleration.get(field).and_then(Value::as_str).unwrap_or("");
    [taint, ""].contains(&text("key")) && ["NoExecute", ""].contains(&text("effect"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations_of_the_pod_are_kept() {
        let check = |tolerations: Value, added: usize| {
            let before = tolerations.as_array().map_or(0, Vec::len);
            let mut pod =
                Object::from_value(json!({"spec": {"tolerations": tolerations}})).expect("an object");
            complete(&mut pod);
            let after = pod.get(&["spec", "tolerations"]).and_then(Value::as_array).expect("a list").len();
            assert_eq!(after - before, added, "{tolerations}");
        };
        check(Value::Null, 2);
        check(json!([]), 2);
        check(json!([{"key": TAINTS[0], "effect": "NoExecute"}]), 1);
        check(json!([{"key": TAINTS[0], "effect": "NoSchedule"}]), 2);
        check(json!([{"operator": "Exists"}]), 0);
    }
}
