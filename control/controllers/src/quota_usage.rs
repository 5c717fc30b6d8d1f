//! What objects cost against a ResourceQuota.

use std::collections::BTreeMap;

use ferry_api::quantity::{Format, Quantity};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, PersistentVolumeClaim, Pod, PodSpec, ResourceQuotaSpec, ScopedResourceSelectorRequirement,
    Service,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::pods::is_finished;

/// Amounts by resource name.
pub type Usage = BTreeMap<String, Quantity>;

pub fn one() -> Quantity {
    Quantity::from_value(1, Format::DecimalSi)
}

pub fn add(total: &mut Usage, more: Usage) {
    for (name, amount) in more {
        let sum = total.entry(name).or_insert(Quantity::ZERO);
        *sum += amount;
    }
}

type Amounts = BTreeMap<String, ApiQuantity>;

/// A quantity the server has let through; what it should not have counts as nothing.
fn read(amounts: Option<&Amounts>) -> Usage {
    let all = amounts.into_iter().flatten();
    all.filter_map(|(name, amount)| Some((name.clone(), Quantity::parse(&amount.0).ok()?))).collect()
}

fn larger(total: &mut Usage, other: Usage) {
    for (name, amount) in other {
        let known = total.entry(name).or_insert(amount);
        *known = (*known).max(amount);
    }
}

/// What a pod asks for in all: containers and sidecars together, but at least what the hungriest
/// moment of its start needs; its own request where it makes one; its overhead.
fn pod_amounts(spec: &PodSpec, of: fn(&Container) -> Option<&Amounts>, own: Option<&Amounts>) -> Usage {
    let mut total = Usage::new();
    for container in &spec.containers {
        add(&mut total, read(of(container)));
    }
    let mut sidecars = Usage::new();
    let mut starting = Usage::new();
    for container in spec.init_containers.iter().flatten() {
        let mut moment = read(of(container));
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut total, moment.clone());
            add(&mut sidecars, moment);
            larger(&mut starting, sidecars.clone());
        } else {
            add(&mut moment, sidecars.clone());
            larger(&mut starting, moment);
        }
    }
    larger(&mut total, starting);
    for (name, amount) in read(own) {
        total.insert(name, amount);
    }
    add(&mut total, read(spec.overhead.as_ref()));
    total
}

/// Does the pod still use anything? One that should long be gone does not: its node may be.
pub fn counts(pod: &Pod, now: Timestamp) -> bool {
    let overdue = pod.metadata.deletion_timestamp.as_ref().is_some_and(|deleted| now > deleted.0);
    !is_finished(pod) && !overdue
}

pub fn of_pod(pod: &Pod) -> Usage {
    let spec = pod.spec.clone().unwrap_or_default();
    let own = spec.resources.as_ref();
    let requests = pod_amounts(
        &spec,
        |c| c.resources.as_ref()?.requests.as_ref(),
        own.and_then(|own| own.requests.as_ref()),
    );
    let limits = pod_amounts(
        &spec,
        |c| c.resources.as_ref()?.limits.as_ref(),
        own.and_then(|own| own.limits.as_ref()),
    );
    let mut usage = Usage::from([("pods".to_string(), one()), ("count/pods".to_string(), one())]);
    for (name, amount) in requests {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-") {
            usage.insert(name.clone(), amount);
        }
        usage.insert(format!("requests.{name}"), amount);
    }
    for (name, amount) in limits {
        usage.insert(format!("limits.{name}"), amount);
    }
    usage
}

pub fn of_service(service: &Service) -> Usage {
    let spec = service.spec.clone().unwrap_or_default();
    let ports = spec.ports.unwrap_or_default();
    let many = |count: usize| Quantity::from_value(count as i64, Format::DecimalSi);
    let mut usage = Usage::from([("services".to_string(), one()), ("count/services".to_string(), one())]);
    match spec.type_.as_deref() {
        Some("NodePort") => {
            usage.insert("services.nodeports".into(), many(ports.len()));
        }
        Some("LoadBalancer") => {
            let allocated =
                ports.iter().filter(|port| port.node_port.is_some_and(|number| number != 0)).count();
            let node_ports =
                if spec.allocate_load_balancer_node_ports == Some(false) { allocated } else { ports.len() };
            usage.insert("services.nodeports".into(), many(node_ports));
            usage.insert("services.loadbalancers".into(), one());
        }
        _ => {}
    }
    usage
}

pub fn of_claim(claim: &PersistentVolumeClaim) -> Usage {
    let spec = claim.spec.clone().unwrap_or_default();
    let requests = spec.resources.and_then(|resources| resources.requests);
    let mut usage = Usage::from([
        ("persistentvolumeclaims".to_string(), one()),
        ("count/persistentvolumeclaims".to_string(), one()),
    ]);
    let storage = read(requests.as_ref()).remove("storage");
    let class = spec.storage_class_name.filter(|class| !class.is_empty());
    if let Some(storage) = storage {
        usage.insert("requests.storage".into(), storage);
    }
    if let Some(class) = class {
        usage.insert(format!("{class}.storageclass.storage.k8s.io/persistentvolumeclaims"), one());
        if let Some(storage) = storage {
            usage.insert(format!("{class}.storageclass.storage.k8s.io/requests.storage"), storage);
        }
    }
    usage
}

/// Is the pod within the scopes a quota is limited to?
pub fn in_scope(quota: &ResourceQuotaSpec, pod: &Pod) -> bool {
    let plain = quota.scopes.iter().flatten().all(|scope| has_scope(pod, scope, None));
    let selected =
        quota.scope_selector.iter().filter_map(|selector| selector.match_expressions.as_ref()).flatten();
    plain
        && selected.into_iter().all(|requirement| has_scope(pod, &requirement.scope_name, Some(requirement)))
}

pub fn has_scopes(quota: &ResourceQuotaSpec) -> bool {
    quota.scopes.as_ref().is_some_and(|scopes| !scopes.is_empty())
        || quota
            .scope_selector
            .as_ref()
            .and_then(|selector| selector.match_expressions.as_ref())
            .is_some_and(|e| !e.is_empty())
}

fn has_scope(pod: &Pod, scope: &str, requirement: Option<&ScopedResourceSelectorRequirement>) -> bool {
    let spec = pod.spec.clone().unwrap_or_default();
    match scope {
        "Terminating" => spec.active_deadline_seconds.is_some_and(|seconds| seconds >= 0),
        "NotTerminating" => spec.active_deadline_seconds.is_none(),
        "BestEffort" => is_best_effort(&spec),
        "NotBestEffort" => !is_best_effort(&spec),
        "CrossNamespacePodAffinity" => crosses_namespaces(&spec),
        "PriorityClass" => {
            let class = spec.priority_class_name.as_deref().unwrap_or("");
            let listed = || {
                requirement
                    .and_then(|wanted| wanted.values.as_ref())
                    .is_some_and(|values| values.iter().any(|v| v == class))
            };
            match requirement.map(|wanted| wanted.operator.as_str()) {
                Some("In") => listed(),
                Some("NotIn") => !listed(),
                Some("DoesNotExist") => class.is_empty(),
                _ => !class.is_empty(),
            }
        }
        _ => false,
    }
}

fn is_best_effort(spec: &PodSpec) -> bool {
    let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
    let empty = |amounts: Option<&Amounts>| {
        read(amounts)
            .iter()
            .all(|(name, amount)| !matches!(name.as_str(), "cpu" | "memory") || amount.is_zero())
    };
    all.all(|container| {
        let resources = container.resources.as_ref();
        empty(resources.and_then(|resources| resources.requests.as_ref()))
            && empty(resources.and_then(|resources| resources.limits.as_ref()))
    })
}

fn crosses_namespaces(spec: &PodSpec) -> bool {
    let Some(affinity) = &spec.affinity else { return false };
    let near = affinity.pod_affinity.clone().unwrap_or_default();
    let far = affinity.pod_anti_affinity.clone().unwrap_or_default();
    let required = near.required_during_scheduling_ignored_during_execution.into_iter().flatten();
    let required =
        required.chain(far.required_during_scheduling_ignored_during_execution.into_iter().flatten());
    let preferred = near.preferred_during_scheduling_ignored_during_execution.into_iter().flatten();
    let preferred =
        preferred.chain(far.preferred_during_scheduling_ignored_during_execution.into_iter().flatten());
    required.chain(preferred.map(|weighted| weighted.pod_affinity_term)).any(|term| {
        term.namespaces.is_some_and(|namespaces| !namespaces.is_empty()) || term.namespace_selector.is_some()
    })
}

/// Names without a namespace object of their own that a quota may count: `configmaps` for
/// `count/configmaps`, and so on.
pub fn counted_resource(name: &str) -> Option<&str> {
    match name {
        "configmaps" | "secrets" | "replicationcontrollers" | "resourcequotas" => Some(name),
        _ => name.strip_prefix("count/"),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ResourceRequirements, ServicePort};

    use super::*;
    use crate::testing::{labels, named, pod};

    fn container(cpu: &str, limit: &str, restart: Option<&str>) -> Container {
        let amounts = |cpu: &str| {
            Some(
                labels(&[("cpu", cpu)]).into_iter().map(|(name, value)| (name, ApiQuantity(value))).collect(),
            )
        };
        Container {
            resources: Some(ResourceRequirements {
                requests: amounts(cpu),
                limits: amounts(limit),
                ..Default::default()
            }),
            restart_policy: restart.map(Into::into),
            ..Default::default()
        }
    }

    fn amount(usage: &Usage, name: &str) -> String {
        usage.get(name).map_or("none".into(), ToString::to_string)
    }

    #[test]
    fn a_pod_costs_its_containers_or_the_hungriest_moment_of_its_start() {
        let mut target = pod("a", "n", "Running", None);
        let spec = target.spec.as_mut().unwrap();
        spec.containers = vec![container("100m", "1", None), container("200m", "1", None)];
        assert_eq!(amount(&of_pod(&target), "requests.cpu"), "300m");
        assert_eq!(amount(&of_pod(&target), "limits.cpu"), "2");
        let spec = target.spec.as_mut().unwrap();
        spec.init_containers =
            Some(vec![container("50m", "50m", Some("Always")), container("900m", "1", None)]);
        assert_eq!(amount(&of_pod(&target), "cpu"), "950m");
        assert_eq!(amount(&of_pod(&target), "limits.cpu"), "2050m");
        assert_eq!(amount(&of_pod(&target), "pods"), "1");
    }

    #[test]
    fn services_count_their_node_ports_and_balancers() {
        let check = |kind: &str, ports: usize, expected: (&str, &str)| {
            let mut service: Service = named("s");
            let spec = service.spec.get_or_insert_default();
            spec.type_ = Some(kind.into());
            spec.ports = Some(vec![ServicePort::default(); ports]);
            let usage = of_service(&service);
            assert_eq!(
                (
                    amount(&usage, "services.nodeports").as_str(),
                    amount(&usage, "services.loadbalancers").as_str()
                ),
                expected
            );
        };
        check("ClusterIP", 2, ("none", "none"));
        check("NodePort", 2, ("2", "none"));
        check("LoadBalancer", 3, ("3", "1"));
    }

    #[test]
    fn scopes_limit_what_is_counted() {
        let mut target = pod("a", "n", "Running", None);
        target.spec.as_mut().unwrap().priority_class_name = Some("high".into());
        let check = |scope: &str, operator: Option<&str>, values: &[&str], expected: bool| {
            let requirement = operator.map(|operator| ScopedResourceSelectorRequirement {
                scope_name: scope.into(),
                operator: operator.into(),
                values: Some(values.iter().map(ToString::to_string).collect()),
            });
            assert_eq!(
                has_scope(&target, scope, requirement.as_ref()),
                expected,
                "{scope} {operator:?} {values:?}"
            );
        };
        check("BestEffort", None, &[], true);
        check("NotBestEffort", None, &[], false);
        check("NotTerminating", None, &[], true);
        check("Terminating", None, &[], false);
        check("PriorityClass", Some("In"), &["high"], true);
        check("PriorityClass", Some("NotIn"), &["high"], false);
        check("PriorityClass", Some("Exists"), &[], true);
        check("CrossNamespacePodAffinity", None, &[], false);
    }

    #[test]
    fn names_say_what_is_counted() {
        assert_eq!(counted_resource("configmaps"), Some("configmaps"));
        assert_eq!(counted_resource("count/deployments.apps"), Some("deployments.apps"));
        assert_eq!(counted_resource("requests.cpu"), None);
    }
}
