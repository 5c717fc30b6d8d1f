//! What a pod needs of its node's kubelet beyond what every kubelet of a supported version has (KEP-5328): the node
//! declares it in `status.declaredFeatures`. Upstream's registry of such features, as of v1.36.

use k8s_openapi::api::core::v1::{Container, PodSpec};

pub const EXTEND_WEBSOCKETS_TO_KUBELET: &str = "ExtendWebSocketsToKubelet";
pub const POD_LEVEL_RESIZE: &str = "InPlacePodLevelResourcesVerticalScaling";
pub const INIT_CONTAINER_RESIZE: &str = "InPlacePodVerticalScalingInitContainers";
pub const RESTART_ALL_CONTAINERS: &str = "RestartAllContainersOnContainerExits";
pub const USER_NAMESPACES_HOST_NETWORK: &str = "UserNamespacesHostNetworkSupport";

/// What the pod needs wherever it runs, sorted.
pub fn for_scheduling(spec: &PodSpec) -> Vec<&'static str> {
    let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let restarts_all = all.any(|container| {
        container.restart_policy_rules.iter().flatten().any(|rule| rule.action == "RestartAllContainers")
    });
    let own_users_on_host_network = spec.host_network == Some(true) && spec.host_users == Some(false);
    [(restarts_all, RESTART_ALL_CONTAINERS), (own_users_on_host_network, USER_NAMESPACES_HOST_NETWORK)]
        .into_iter()
        .filter_map(|(is_needed, feature)| is_needed.then_some(feature))
        .collect()
}

/// What a change of a pod needs of the node that it runs on, sorted.
pub fn for_update(old: &PodSpec, new: &PodSpec) -> Vec<&'static str> {
    let is_sidecar = |container: &Container| container.restart_policy.as_deref() == Some("Always");
    let (before, after) = (old.init_containers.iter().flatten(), new.init_containers.iter().flatten());
    let init_containers =
        before.zip(after).any(|(old, new)| !is_sidecar(old) && old.resources != new.resources);
    [(old.resources != new.resources, POD_LEVEL_RESIZE), (init_containers, INIT_CONTAINER_RESIZE)]
        .into_iter()
        .filter_map(|(is_needed, feature)| is_needed.then_some(feature))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(value: Value) -> PodSpec {
        let mut spec = json!({"containers": []});
        for (key, value) in value.as_object().expect("a map") {
            spec[key] = value.clone();
        }
        serde_json::from_value(spec).expect("a spec")
    }

    #[test]
    fn node_features_that_a_new_pod_needs() {
        let check = |value: Value, expected: &[&str]| {
            assert_eq!(for_scheduling(&spec(value.clone())), expected, "{value}");
        };
        let with = |action: &str| {
            let exit_codes = json!({"operator": "In", "values": [1]});
            json!([{"name": "c", "restartPolicyRules": [{"action": action, "exitCodes": exit_codes}]}])
        };
        check(json!({}), &[]);
        check(json!({"containers": with("Restart")}), &[]);
        check(json!({"containers": with("RestartAllContainers")}), &[RESTART_ALL_CONTAINERS]);
        check(json!({"initContainers": with("RestartAllContainers")}), &[RESTART_ALL_CONTAINERS]);
        check(json!({"hostNetwork": true}), &[]);
        check(json!({"hostNetwork": true, "hostUsers": false}), &[USER_NAMESPACES_HOST_NETWORK]);
    }

    #[test]
    fn node_features_that_a_resize_needs() {
        let check = |old: Value, new: Value, expected: &[&str]| {
            assert_eq!(for_update(&spec(old.clone()), &spec(new.clone())), expected, "{old} {new}");
        };
        let whole = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
        check(whole("1"), whole("1"), &[]);
        check(whole("1"), whole("2"), &[POD_LEVEL_RESIZE]);
        check(json!({}), whole("2"), &[POD_LEVEL_RESIZE]);
        let init = |cpu: &str, policy: Value| json!({"initContainers": [{"name": "i", "restartPolicy": policy, "resources": {"requests": {"cpu": cpu}}}]});
        check(init("1", json!(null)), init("2", json!(null)), &[INIT_CONTAINER_RESIZE]);
        check(init("1", json!("Always")), init("2", json!("Always")), &[]);
    }
}
