//! Pods and the namespaces they run in.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Namespace, Pod, PodSpec};

use super::{ENFORCE, Item, SYSTEM_NAMESPACES};
use crate::cluster::security::Finding;
use crate::cluster::security::facts::Facts;

pub(super) fn workloads(facts: &Facts) -> Vec<Finding> {
    let enforce = "kubectl label namespace NAME pod-security.kubernetes.io/enforce=baseline";
    let pods = |offends: fn(&PodSpec) -> bool| pods(&facts.pods, offends);
    let in_default = facts.pods.iter().filter(|pod| pod.metadata.namespace.as_deref() == Some("default"));
    vec![
        Item("5.2.2", "no privileged containers", enforce).should_find_none(pods(is_privileged), "none"),
        Item("5.2.3", "no pods in the host's process namespace", enforce)
            .should_find_none(pods(|spec| spec.host_pid == Some(true)), "none"),
        Item("5.2.4", "no pods in the host's IPC namespace", enforce)
            .should_find_none(pods(|spec| spec.host_ipc == Some(true)), "none"),
        Item("5.2.5", "no pods in the host's network namespace", enforce)
            .should_find_none(pods(|spec| spec.host_network == Some(true)), "none"),
        Item("F.3", "namespaces enforce a pod security standard", enforce)
            .should_find_none(unenforced_namespaces(facts), "all but the system's"),
        Item(
            "5.3.2",
            "namespaces with pods have network policies",
            "apply a NetworkPolicy that denies by default, and one for what is needed",
        )
        .should_find_none(namespaces_without_policy(facts), "all of them"),
        Item("5.6.4", "the default namespace is not used", "give each application a namespace of its own")
            .should_find_none(
                in_default.filter_map(|pod| pod.metadata.name.clone()).collect(),
                "no pods in it",
            ),
    ]
}

/// The users' pods of which the spec offends, as `NAMESPACE/NAME`.
fn pods(pods: &[Pod], offends: fn(&PodSpec) -> bool) -> Vec<String> {
    let namespace = |pod: &Pod| pod.metadata.namespace.clone().unwrap_or_default();
    pods.iter()
        .filter(|pod| !SYSTEM_NAMESPACES.contains(&namespace(pod).as_str()))
        .filter(|pod| pod.spec.as_ref().is_some_and(offends))
        .map(|pod| format!("{}/{}", namespace(pod), pod.metadata.name.as_deref().unwrap_or_default()))
        .collect()
}

fn is_privileged(spec: &PodSpec) -> bool {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    containers
        .filter_map(|container| container.security_context.as_ref())
        .any(|context| context.privileged == Some(true))
}

fn name(namespace: &Namespace) -> &str {
    namespace.metadata.name.as_deref().unwrap_or_default()
}

fn user_namespaces(facts: &Facts) -> impl Iterator<Item = &Namespace> {
    facts.namespaces.iter().filter(|namespace| !SYSTEM_NAMESPACES.contains(&name(namespace)))
}

fn unenforced_namespaces(facts: &Facts) -> Vec<String> {
    let is_unenforced = |namespace: &&Namespace| {
        let level = namespace.metadata.labels.iter().flatten().find(|(label, _)| *label == ENFORCE);
        level.is_none_or(|(_, level)| level == "privileged")
    };
    user_namespaces(facts).filter(is_unenforced).map(|namespace| name(namespace).to_owned()).collect()
}

fn namespaces_without_policy(facts: &Facts) -> Vec<String> {
    let policies = facts.network_policies.iter();
    let isolated: BTreeSet<&str> =
        policies.filter_map(|policy| policy.metadata.namespace.as_deref()).collect();
    let used: BTreeSet<&str> =
        facts.pods.iter().filter_map(|pod| pod.metadata.namespace.as_deref()).collect();
    let names = user_namespaces(facts).map(name);
    names.filter(|name| used.contains(name) && !isolated.contains(name)).map(str::to_owned).collect()
}
