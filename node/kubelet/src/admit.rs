//! Whether this node can run a pod that was bound to it. The scheduler knew
//! an older node, or was not asked at all.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint, Toleration};

use crate::node::capacity::Capacity;
use crate::node::status::Pressure;
use crate::pod;
use crate::resources::{Asks, QosClass};
use crate::status::Ending;

const NODE_AFFINITY: &str = "NodeAffinity";
const NO_GROUP_POLICY: &str = "SupplementalGroupsPolicyNotSupported";
const TAINTS: &str = "TaintToleration";
const OS_LABEL: &str = "kubernetes.io/os";
const REJECTED: &str = "Pod was rejected: ";

/// An admitted pod with the resources that it was granted.
#[derive(Clone)]
pub struct GrantedPod {
    pub pod: Arc<Pod>,
    pub asks: Arc<Asks>,
}

pub struct NodeFacts<'a> {
    pub allocatable: Capacity,
    pub node: Option<&'a Node>,
    pub pressure: Pressure,
    pub allowed_unsafe_sysctls: &'a [String],
    pub has_apparmor: bool,
    /// Whether a resource is a device plugin's, which is given out in another way.
    pub is_of_plugin: &'a dyn Fn(&str) -> bool,
}

/// `Ok`, or why the pod fails here. `others` are the pods that run already.
pub fn admit(pod: &Pod, asks: &Asks, others: &[GrantedPod], facts: &NodeFacts<'_>) -> Result<(), Ending> {
    pressure(pod, asks, facts)?;
    operating_system(pod)?;
    supplemental_groups(pod, facts)?;
    sysctls(pod, facts)?;
    apparmor(pod, facts)?;
    resources(asks, others, facts)?;
    advertised(pod, asks, others, facts)?;
    affinity(pod, facts)?;
    host_ports(pod, others)?;
    taints(pod, facts)
}

/// Whether a pod was rejected for the node's labels, taints or features. They may have changed a moment ago, so whoever rejects for
/// them first reads the node anew.
pub fn is_doubtful(ending: &Ending) -> bool {
    [NODE_AFFINITY, TAINTS, NO_GROUP_POLICY].contains(&ending.reason.as_str())
}

fn rejected(reason: &str, message: String) -> Ending {
    Ending { reason: reason.into(), message: format!("{REJECTED}{message}"), disruption: None, failed: true }
}

/// The pod was not given its devices.
pub fn unexpected(problem: &impl std::fmt::Display) -> Ending {
    rejected("UnexpectedAdmissionError", format!("Allocate failed due to {problem}, which is unexpected"))
}

/// Why a pod was rejected, as its event says it: the status alone says that it was.
pub fn why(ending: &Ending) -> &str {
    ending.message.strip_prefix(REJECTED).unwrap_or(&ending.message)
}

fn operating_system(pod: &Pod) -> Result<(), Ending> {
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(OS_LABEL));
    if label.is_some_and(|os| os != "linux") {
        return Err(rejected(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label".into(),
        ));
    }
    match &pod::spec(pod).os {
        Some(os) if os.name != "linux" => Err(rejected(
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS".into(),
        )),
        _ => Ok(()),
    }
}

/// A runtime that does not know the policy would merge the groups of the image.
fn supplemental_groups(pod: &Pod, facts: &NodeFacts<'_>) -> Result<(), Ending> {
    let policy = pod::spec(pod).security_context.as_ref();
    let policy = policy.and_then(|context| context.supplemental_groups_policy.as_deref());
    let status = facts.node.and_then(|node| node.status.as_ref());
    let features = status.and_then(|status| status.features.as_ref());
    let is_known = features.and_then(|features| features.supplemental_groups_policy) == Some(true);
    // A kubelet without an API server does not know its node.
    if policy == Some("Strict") && facts.node.is_some() && !is_known {
        return Err(rejected(
            NO_GROUP_POLICY,
            "SupplementalGroupsPolicy=Strict is not supported in this node".into(),
        ));
    }
    Ok(())
}

/// Under pressure a node takes on no more of what it would evict first.
fn pressure(pod: &Pod, asks: &Asks, facts: &NodeFacts<'_>) -> Result<(), Ending> {
    if pod::is_critical(pod) {
        return Ok(());
    }
    let why = match (facts.pressure, asks.class) {
        (Pressure { disk: true, .. }, _) => "DiskPressure",
        (Pressure { pids: true, .. }, _) => "PIDPressure",
        (Pressure { memory: true, .. }, QosClass::BestEffort) if !tolerates_memory_pressure(pod) => {
            "MemoryPressure"
        }
        _ => return Ok(()),
    };
    Err(rejected("Evicted", format!("The node had condition: [{why}]. ")))
}

fn tolerates_memory_pressure(pod: &Pod) -> bool {
    pod::spec(pod).tolerations.iter().flatten().any(|toleration| {
        let of_taint = match toleration.key.as_deref() {
            None | Some("") => toleration.operator.as_deref() == Some("Exists"),
            Some(key) => key == "node.kubernetes.io/memory-pressure",
        };
        of_taint && toleration.effect.as_deref().is_none_or(|effect| effect == "NoSchedule")
    })
}

/// Kernel settings that are each pod's own.
const SAFE_SYSCTLS: [&str; 8] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
];
const MORE_SAFE_SYSCTLS: [&str; 4] = [
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

fn sysctls(pod: &Pod, facts: &NodeFacts<'_>) -> Result<(), Ending> {
    let context = pod::spec(pod).security_context.as_ref();
    for sysctl in context.and_then(|context| context.sysctls.as_ref()).into_iter().flatten() {
        let name = sysctl.name.replace('/', ".");
        let is_safe = SAFE_SYSCTLS.contains(&name.as_str()) || MORE_SAFE_SYSCTLS.contains(&name.as_str());
        let is_allowed = facts.allowed_unsafe_sysctls.iter().any(|allowed| match allowed.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => *allowed == name,
        });
        let host_network = pod::uses_host_network(pod) && name.starts_with("net.");
        if host_network || !(is_safe || is_allowed) {
            return Err(rejected("SysctlForbidden", format!("forbidden sysctl: \"{name}\" not allowlisted")));
        }
    }
    Ok(())
}

fn apparmor(pod: &Pod, facts: &NodeFacts<'_>) -> Result<(), Ending> {
    let of_pod =
        pod::spec(pod).security_context.as_ref().and_then(|context| context.app_armor_profile.as_ref());
    let confined = |profile: &k8s_openapi::api::core::v1::AppArmorProfile| profile.type_ != "Unconfined";
    let asks = of_pod.is_some_and(confined)
        || pod::containers(pod).iter().any(|each| {
            let own = each
                .container
                .security_context
                .as_ref()
                .and_then(|context| context.app_armor_profile.as_ref());
            own.is_some_and(confined)
        });
    if asks && !facts.has_apparmor {
        return Err(rejected(
            "AppArmor",
            "Cannot enforce AppArmor: AppArmor is not enabled on the host".into(),
        ));
    }
    Ok(())
}

fn affinity(pod: &Pod, facts: &NodeFacts<'_>) -> Result<(), Ending> {
    let Some(node) = facts.node else { return Ok(()) };
    let spec = pod::spec(pod);
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let selected = spec.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    let matched =
        required.is_none_or(|selector| selector.node_selector_terms.iter().any(|term| matches(term, node)));
    if selected && matched {
        Ok(())
    } else {
        Err(rejected(
            NODE_AFFINITY,
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector".into(),
        ))
    }
}

fn matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let has_terms = term.match_expressions.as_ref().is_some_and(|all| !all.is_empty())
        || term.match_fields.as_ref().is_some_and(|all| !all.is_empty());
    let labels = node.metadata.labels.as_ref();
    let label = |key: &str| labels.and_then(|labels| labels.get(key)).map(String::as_str);
    let field = |key: &str| (key == "metadata.name").then_some(node.metadata.name.as_deref()).flatten();
    has_terms
        && term
            .match_expressions
            .iter()
            .flatten()
            .all(|requirement| holds(requirement, label(&requirement.key)))
        && term.match_fields.iter().flatten().all(|requirement| holds(requirement, field(&requirement.key)))
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values: Vec<&str> = requirement.values.iter().flatten().map(String::as_str).collect();
    let compare = |greater: bool| {
        let (Some(value), Some(bound)) = (
            value.and_then(|value| value.parse::<i64>().ok()),
            values.first().and_then(|bound| bound.parse::<i64>().ok()),
        ) else {
            return false;
        };
        if greater { value > bound } else { value < bound }
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(|value| values.contains(&value)),
        "NotIn" => value.is_none_or(|value| !values.contains(&value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(true),
        "Lt" => compare(false),
        _ => false,
    }
}

fn host_ports(pod: &Pod, others: &[GrantedPod]) -> Result<(), Ending> {
    let ports = |pod: &Pod| -> BTreeSet<(String, i32, String)> {
        let containers = pod::containers(pod);
        let ports = containers.iter().flat_map(|each| each.container.ports.iter().flatten());
        ports
            .filter_map(|port| {
                let host_port = port.host_port.filter(|port| *port > 0)?;
                let ip = port.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| "0.0.0.0".into());
                Some((port.protocol.clone().unwrap_or_else(|| "TCP".into()), host_port, ip))
            })
            .collect()
    };
    let wanted = ports(pod);
    if wanted.is_empty() {
        return Ok(());
    }
    let any = |ip: &str| ip == "0.0.0.0" || ip == "::";
    for taken in others.iter().flat_map(|other| ports(&other.pod)) {
        let clash = wanted.iter().any(|(protocol, port, ip)| {
            *protocol == taken.0 && *port == taken.1 && (*ip == taken.2 || any(ip) || any(&taken.2))
        });
        if clash {
            return Err(rejected(
                "NodePorts",
                "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
                    .into(),
            ));
        }
    }
    Ok(())
}

fn resources(asks: &Asks, others: &[GrantedPod], facts: &NodeFacts<'_>) -> Result<(), Ending> {
    let count = others.len() as i64;
    if count + 1 > facts.allocatable.pods {
        let message = format!(
            "Node didn't have enough resource: pods, requested: 1, used: {count}, capacity: {}",
            facts.allocatable.pods
        );
        return Err(rejected("OutOfpods", message));
    }
    for (resource, capacity) in [
        ("cpu", facts.allocatable.milli_cpu),
        ("memory", facts.allocatable.memory),
        ("ephemeral-storage", facts.allocatable.ephemeral_storage),
    ] {
        let requested = asks.request(resource);
        if requested == 0 {
            continue;
        }
        let used: i64 = others.iter().map(|other| other.asks.request(resource)).sum();
        if used + requested > capacity {
            let message = format!(
                "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
            );
            return Err(rejected(&format!("OutOf{resource}"), message));
        }
    }
    Ok(())
}

/// Extended resources and huge pages that somebody else advertises in the node's status. What the node does not know of is
/// the cluster's, or comes from claims.
fn advertised(pod: &Pod, asks: &Asks, others: &[GrantedPod], facts: &NodeFacts<'_>) -> Result<(), Ending> {
    let status = facts.node.and_then(|node| node.status.as_ref());
    let Some(allocatable) = status.and_then(|status| status.allocatable.as_ref()) else { return Ok(()) };
    let claimed = pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
    let is_claimed = |resource: &str| {
        claimed.is_some_and(|claimed| {
            claimed.request_mappings.iter().any(|mapping| mapping.resource_name == resource)
        })
    };
    for (resource, &requested) in asks.requests.iter().filter(|(_, requested)| **requested != 0) {
        let is_scalar = resource.contains('/') || resource.starts_with("hugepages-");
        if !is_scalar || is_claimed(resource) || (facts.is_of_plugin)(resource) {
            continue;
        }
        let Some(capacity) = allocatable.get(resource) else { continue };
        let capacity = crate::resources::amount(resource, capacity);
        let used: i64 = others.iter().map(|other| other.asks.request(resource)).sum();
        if used.saturating_add(requested) > capacity {
            let message = format!(
                "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
            );
            return Err(rejected(&format!("OutOf{resource}"), message));
        }
    }
    Ok(())
}

/// Pods that the node would evict at once. Static pods have nobody who would put them elsewhere.
fn taints(pod: &Pod, facts: &NodeFacts<'_>) -> Result<(), Ending> {
    let spec = facts.node.and_then(|node| node.spec.as_ref());
    let taints = spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
    let mut evicting = taints.filter(|taint| taint.effect == "NoExecute");
    let tolerated = |taint: &Taint| {
        let mut tolerations = pod::spec(pod).tolerations.iter().flatten();
        tolerations.any(|toleration| tolerates(toleration, taint))
    };
    if pod::is_static(pod) || evicting.all(tolerated) {
        return Ok(());
    }
    Err(rejected(
        TAINTS,
        "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate".into(),
    ))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let is_free = |text: &Option<String>| text.as_deref().is_none_or(str::is_empty);
    let effect = is_free(&toleration.effect) || toleration.effect.as_ref() == Some(&taint.effect);
    let key = is_free(&toleration.key) || toleration.key.as_ref() == Some(&taint.key);
    let value = match toleration.operator.as_deref() {
        Some("Exists") => true,
        None | Some("" | "Equal") => {
            toleration.value.as_deref().unwrap_or("") == taint.value.as_deref().unwrap_or("")
        }
        // Lt and Gt are behind a gate that is closed
        Some(_) => false,
    };
    effect && key && value
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        let mut spec = spec;
        if spec["containers"].is_null() {
            spec["containers"] = json!([{"name": "c"}]);
        }
        serde_json::from_value(json!({"spec": spec})).expect("the pod is well formed")
    }

    #[track_caller]
    fn check(wanted: &Pod, others: &[Pod], pressure: Pressure, expected: Option<&str>) {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": {"zone": "a", "size": "5"}},
            "status": {"allocatable": {"example.com/dongle": "2", "example.com/plugin": "0", "hugepages-2Mi": "4Mi"}},
        }))
        .expect("the node is well formed");
        check_on(node, wanted, others, pressure, expected);
    }

    #[track_caller]
    fn check_on(node: Node, wanted: &Pod, others: &[Pod], pressure: Pressure, expected: Option<&str>) {
        let facts = NodeFacts {
            allocatable: Capacity { milli_cpu: 2000, memory: 1 << 30, ephemeral_storage: 1 << 30, pods: 2 },
            node: Some(&node),
            pressure,
            allowed_unsafe_sysctls: &["kernel.msg*".to_string()],
            has_apparmor: false,
            is_of_plugin: &|resource| resource == "example.com/plugin",
        };
        let placed = |pod: &Pod| GrantedPod { pod: Arc::new(pod.clone()), asks: Arc::new(Asks::of(pod)) };
        let others: Vec<GrantedPod> = others.iter().map(placed).collect();
        let reason = admit(wanted, &Asks::of(wanted), &others, &facts).err().map(|ending| ending.reason);
        assert_eq!(reason.as_deref(), expected);
    }

    #[test]
    fn a_pod_must_fit_what_is_left() {
        let quiet = Pressure::default();
        let cpu = |amount: &str| {
            pod(json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": amount}}}]}))
        };
        check(&cpu("2"), &[], quiet, None);
        check(&cpu("2001m"), &[], quiet, Some("OutOfcpu"));
        check(&cpu("1"), &[cpu("1500m")], quiet, Some("OutOfcpu"));
        check(&pod(json!({})), &[pod(json!({})), pod(json!({}))], quiet, Some("OutOfpods"));
    }

    #[test]
    fn what_others_advertise_is_given_out_once() {
        let quiet = Pressure::default();
        let ask = |resource: &str, amount: &str| {
            pod(json!({"containers": [{"name": "c", "resources": {"requests": {resource: amount}}}]}))
        };
        let dongles = |amount: &str| ask("example.com/dongle", amount);
        check(&dongles("2"), &[], quiet, None);
        check(&dongles("3"), &[], quiet, Some("OutOfexample.com/dongle"));
        check(&dongles("1"), &[dongles("2")], quiet, Some("OutOfexample.com/dongle"));
        check(&ask("example.com/unknown", "9"), &[], quiet, None);
        check(&ask("example.com/plugin", "9"), &[], quiet, None);
        check(&ask("hugepages-2Mi", "4Mi"), &[], quiet, None);
        check(&ask("hugepages-2Mi", "6Mi"), &[], quiet, Some("OutOfhugepages-2Mi"));
        let mut claimed = dongles("3");
        let mappings =
            json!([{"containerName": "c", "resourceName": "example.com/dongle", "requestName": "r"}]);
        claimed.status = serde_json::from_value(
            json!({"extendedResourceClaimStatus": {"resourceClaimName": "r", "requestMappings": mappings}}),
        )
        .expect("the status is well formed");
        check(&claimed, &[], quiet, None);
    }

    #[test]
    fn pods_that_the_node_would_evict_are_not_begun() {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"taints": [
            {"key": "k", "value": "v", "effect": "NoExecute"}, {"key": "other", "effect": "NoSchedule"},
        ]}}))
        .expect("the node is well formed");
        let check = |tolerations: serde_json::Value, expected: Option<&str>| {
            let pod = pod(json!({"tolerations": tolerations}));
            check_on(node.clone(), &pod, &[], Pressure::default(), expected);
        };
        check(json!([]), Some("TaintToleration"));
        check(json!([{"operator": "Exists"}]), None);
        check(json!([{"key": "k", "operator": "Exists", "effect": "NoExecute"}]), None);
        check(json!([{"key": "k", "operator": "Exists", "effect": "NoSchedule"}]), Some("TaintToleration"));
        check(json!([{"key": "k", "operator": "Equal", "value": "v"}]), None);
        check(json!([{"key": "k", "value": "w"}]), Some("TaintToleration"));
        let mut fixed = pod(json!({}));
        fixed.metadata.annotations = Some([("kubernetes.io/config.source".into(), "file".into())].into());
        check_on(node.clone(), &fixed, &[], Pressure::default(), None);
    }

    #[test]
    fn ports_selectors_and_sysctls_are_checked() {
        let quiet = Pressure::default();
        let port = |ip: &str| {
            pod(
                json!({"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80, "hostIP": ip}]}]}),
            )
        };
        check(&port(""), &[port("127.0.0.1")], quiet, Some("NodePorts"));
        check(&port("127.0.0.2"), &[port("127.0.0.1")], quiet, None);
        check(&pod(json!({"nodeSelector": {"zone": "a"}})), &[], quiet, None);
        check(&pod(json!({"nodeSelector": {"zone": "b"}})), &[], quiet, Some("NodeAffinity"));
        let affinity = |operator: &str, values: serde_json::Value| {
            let terms =
                json!([{"matchExpressions": [{"key": "size", "operator": operator, "values": values}]}]);
            pod(
                json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}),
            )
        };
        check(&affinity("Gt", json!(["4"])), &[], quiet, None);
        check(&affinity("Lt", json!(["4"])), &[], quiet, Some("NodeAffinity"));
        check(&affinity("DoesNotExist", json!([])), &[], quiet, Some("NodeAffinity"));
        check(&pod(json!({"os": {"name": "windows"}})), &[], quiet, Some("PodOSNotSupported"));
        check(&pod(json!({"os": {"name": "linux"}})), &[], quiet, None);
        let groups = pod(json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}}));
        check(&groups, &[], quiet, Some("SupplementalGroupsPolicyNotSupported"));
        let node: Node = serde_json::from_value(
            json!({"metadata": {"name": "n"}, "status": {"features": {"supplementalGroupsPolicy": true}}}),
        )
        .expect("the node is well formed");
        check_on(node, &groups, &[], quiet, None);
        let mut labelled = pod(json!({}));
        labelled.metadata.labels = Some([(OS_LABEL.into(), "windows".into())].into());
        check(&labelled, &[], quiet, Some("PodOSSelectorNodeLabelDoesNotMatch"));
        let sysctl =
            |name: &str| pod(json!({"securityContext": {"sysctls": [{"name": name, "value": "1"}]}}));
        check(&sysctl("kernel.shm_rmid_forced"), &[], quiet, None);
        check(&sysctl("kernel.msgmax"), &[], quiet, None);
        check(&sysctl("vm.swappiness"), &[], quiet, Some("SysctlForbidden"));
    }

    #[test]
    fn pressure_keeps_evictable_pods_out() {
        let memory = Pressure { memory: true, ..Pressure::default() };
        let disk = Pressure { disk: true, ..Pressure::default() };
        let burstable = pod(json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "1m"}}}]}));
        check(&pod(json!({})), &[], memory, Some("Evicted"));
        check(&burstable, &[], memory, None);
        let bears_it = json!([{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists"}]);
        check(&pod(json!({"tolerations": bears_it})), &[], memory, None);
        check(&burstable, &[], disk, Some("Evicted"));
        check(&pod(json!({"priority": 2_000_001_000})), &[], disk, None);
        let confined = pod(json!({"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}));
        check(&confined, &[], Pressure::default(), Some("AppArmor"));
    }
}
