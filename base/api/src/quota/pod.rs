//! A pod against a quota.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodAffinityTerm, ResourceRequirements};

use super::{Amounts, Requirement, add, one, read, selects};
use crate::pod_resources::{self, Count};

const COUNT: &str = "count/pods";
const REQUESTS: &str = "requests.";
const HUGE_PAGES: &str = "hugepages-";
/// Before the name of a DeviceClass: the extended resource that it stands for without naming one.
pub const DEVICE_CLASS: &str = "deviceclass.resource.kubernetes.io/";
/// Names that a quota must not limit without every container asking for some.
const DEMANDED: [&str; 6] =
    ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

pub fn tracks(name: &str) -> bool {
    const NAMES: [&str; 11] = [
        COUNT,
        "pods",
        "cpu",
        "memory",
        "ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.ephemeral-storage",
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
    ];
    let requested = name.strip_prefix(REQUESTS);
    NAMES.contains(&name)
        || requested.unwrap_or(name).starts_with(HUGE_PAGES)
        || requested.is_some_and(is_extended)
}

/// A resource of somebody else's than Kubernetes, or of a device class.
pub fn is_extended(name: &str) -> bool {
    (name.contains('/') && !name.contains("kubernetes.io/")) || name.starts_with(DEVICE_CLASS)
}

/// The pod is charged for what it uses while it can use it; `count/pods` for as long as it is stored.
pub fn usage(pod: &Pod, now: Timestamp) -> Amounts {
    let mut usage = Amounts::from([(COUNT.to_string(), one())]);
    if counts(pod, now) {
        let requests = pod_resources::requests(pod, Count::Held);
        add(&mut usage, compute(&requests, &pod_resources::limits(pod, Count::Held)));
    }
    usage
}

/// Can the pod still use anything? One that should long be gone cannot: its node may be lost.
pub fn counts(pod: &Pod, now: Timestamp) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let deleted = pod.metadata.deletion_timestamp.as_ref();
    let overdue = deleted.zip(pod.metadata.deletion_grace_period_seconds).is_some_and(|(deleted, grace)| {
        let end = deleted.0.checked_add(jiff::SignedDuration::from_secs(grace));
        end.is_ok_and(|end| now > end)
    });
    !matches!(phase, Some("Succeeded" | "Failed")) && !overdue
}

/// The pod has a time after which it is ended.
pub fn is_terminating(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.active_deadline_seconds).is_some_and(|seconds| seconds >= 0)
}

fn compute(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut usage = Amounts::from([("pods".to_string(), one())]);
    for (name, amount) in requests {
        let native =
            matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.starts_with(HUGE_PAGES);
        if native {
            usage.insert(name.clone(), *amount);
        }
        if native || is_extended(name) {
            usage.insert(format!("{REQUESTS}{name}"), *amount);
        }
    }
    for name in ["cpu", "memory", "ephemeral-storage"] {
        if let Some(amount) = limits.get(name) {
            usage.insert(format!("limits.{name}"), *amount);
        }
    }
    usage
}

pub fn lacks<'n>(pod: &Pod, names: impl Iterator<Item = &'n str>) -> Option<String> {
    if pod_resources::has_own(pod) {
        return None;
    }
    let spec = pod.spec.as_ref()?;
    let containers = || spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for name in names.filter(|name| DEMANDED.contains(name)) {
        for container in containers().filter(|container| !says(container, name)) {
            missing.entry(name).or_default().insert(&container.name);
        }
    }
    let lines: Vec<String> = missing
        .into_iter()
        .map(|(name, containers)| {
            format!("{name} for: {}", containers.into_iter().collect::<Vec<_>>().join(","))
        })
        .collect();
    (!lines.is_empty()).then(|| format!("must specify {}", lines.join("; ")))
}

fn says(container: &Container, name: &str) -> bool {
    let resources = container.resources.as_ref();
    let requests = read(resources.and_then(|resources| resources.requests.as_ref()));
    let limits = read(resources.and_then(|resources| resources.limits.as_ref()));
    compute(&requests, &limits).contains_key(name)
}

pub fn has_scope(pod: &Pod, scope: &Requirement) -> bool {
    let spec = pod.spec.as_ref();
    match scope.scope_name.as_str() {
        "Terminating" => is_terminating(pod),
        "NotTerminating" => !is_terminating(pod),
        "BestEffort" => is_best_effort(pod),
        "NotBestEffort" => !is_best_effort(pod),
        "CrossNamespacePodAffinity" => crosses_namespaces(pod),
        "PriorityClass" => {
            let class = spec.and_then(|spec| spec.priority_class_name.as_deref());
            selects(scope, class.filter(|class| !class.is_empty()).as_slice())
        }
        _ => false,
    }
}

fn is_best_effort(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return true };
    let asks = |resources: &ResourceRequirements| {
        [resources.requests.as_ref(), resources.limits.as_ref()]
            .into_iter()
            .flat_map(read)
            .any(|(name, amount)| matches!(name.as_str(), "cpu" | "memory") && !amount.is_zero())
    };
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut all = containers.filter_map(|container| container.resources.as_ref()).chain(&spec.resources);
    !all.any(asks)
}

fn crosses_namespaces(pod: &Pod) -> bool {
    let Some(affinity) = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()) else { return false };
    let crosses = |term: &PodAffinityTerm| {
        term.namespaces.as_ref().is_some_and(|namespaces| !namespaces.is_empty())
            || term.namespace_selector.is_some()
    };
    let near = affinity.pod_affinity.iter().any(|near| {
        near.required_during_scheduling_ignored_during_execution.iter().flatten().any(crosses)
            || near
                .preferred_during_scheduling_ignored_during_execution
                .iter()
                .flatten()
                .any(|weighted| crosses(&weighted.pod_affinity_term))
    });
    let far = affinity.pod_anti_affinity.iter().any(|far| {
        far.required_during_scheduling_ignored_during_execution.iter().flatten().any(crosses)
            || far
                .preferred_during_scheduling_ignored_during_execution
                .iter()
                .flatten()
                .any(|weighted| crosses(&weighted.pod_affinity_term))
    });
    near || far
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(value: Value) -> Pod {
        serde_json::from_value(value).expect("a pod")
    }

    #[test]
    fn a_pod_is_charged_by_all_its_names() {
        let pod = pod(json!({"spec": {"containers": [{"name": "a", "resources": {
            "requests": {"cpu": "1", "hugepages-2Mi": "4Mi", "example.com/gpu": "2", "kubernetes.io/x": "1"},
            "limits": {"cpu": "2", "ephemeral-storage": "1Gi", "example.com/gpu": "2"},
        }}]}}));
        let usage = usage(&pod, Timestamp::UNIX_EPOCH);
        let shown: Vec<String> = usage.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
        assert_eq!(
            shown,
            [
                "count/pods=1",
                "cpu=1",
                "hugepages-2Mi=4Mi",
                "limits.cpu=2",
                "limits.ephemeral-storage=1Gi",
                "pods=1",
                "requests.cpu=1",
                "requests.example.com/gpu=2",
                "requests.hugepages-2Mi=4Mi"
            ]
        );
        assert!(usage.keys().all(|name| tracks(name)));
        for other in ["services", "requests.storage", "limits.example.com/gpu", "count/secrets"] {
            assert!(!tracks(other), "{other}");
        }
    }

    #[test]
    fn a_pod_that_ended_or_is_overdue_is_only_counted() {
        let check = |value: Value, expected: bool| {
            let pod = pod(value.clone());
            let now: Timestamp = "2026-01-01T00:01:00Z".parse().expect("a time");
            assert_eq!(usage(&pod, now).contains_key("pods"), expected, "{value}");
            assert!(usage(&pod, now).contains_key("count/pods"));
        };
        check(json!({"status": {"phase": "Running"}}), true);
        check(json!({"status": {"phase": "Failed"}}), false);
        let deleted = |grace: i64| json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": grace}});
        check(deleted(60), true);
        check(deleted(10), false);
    }

    #[test]
    fn a_quota_of_cpu_demands_that_containers_ask_for_some() {
        let pod = pod(json!({"spec": {"containers": [
            {"name": "b"}, {"name": "a"}, {"name": "c", "resources": {"requests": {"cpu": "1"}}},
        ]}}));
        let lacks = |names: &[&str]| lacks(&pod, names.iter().copied());
        assert_eq!(lacks(&["pods"]), None);
        assert_eq!(
            lacks(&["requests.cpu", "limits.memory"]).as_deref(),
            Some("must specify limits.memory for: a,b,c; requests.cpu for: a,b")
        );
    }

    #[test]
    fn scopes_limit_what_is_counted() {
        let target = pod(json!({"spec": {
            "containers": [{"name": "a"}], "priorityClassName": "high", "activeDeadlineSeconds": 3,
        }}));
        let check = |scope: &str, operator: &str, values: &[&str], expected: bool| {
            let scope = Requirement {
                scope_name: scope.into(),
                operator: operator.into(),
                values: Some(values.iter().map(ToString::to_string).collect()),
            };
            assert_eq!(has_scope(&target, &scope), expected, "{scope:?}");
        };
        check("BestEffort", "Exists", &[], true);
        check("NotBestEffort", "Exists", &[], false);
        check("NotTerminating", "Exists", &[], false);
        check("Terminating", "Exists", &[], true);
        check("PriorityClass", "In", &["high"], true);
        check("PriorityClass", "In", &["low"], false);
        check("PriorityClass", "NotIn", &["high"], false);
        check("PriorityClass", "NotIn", &["low"], true);
        check("PriorityClass", "Exists", &[], true);
        check("PriorityClass", "DoesNotExist", &[], false);
        check("CrossNamespacePodAffinity", "Exists", &[], false);
        check("VolumeAttributesClass", "Exists", &[], false);
    }
}
