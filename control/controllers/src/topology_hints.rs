//! Hints of Services with the annotation `service.kubernetes.io/topology-mode: Auto`: traffic stays in its zone where every zone
//! can have endpoints by its share of the cluster's CPU.
//!
//! A zone is due `endpoints × its CPU / all CPU`, and may lack a sixth of that (an endpoint then takes 20% more than its share). Hints
//! that fit stay as they are, since each change rewrites slices for every node; otherwise all are assigned anew.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use ferry_api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointHints, ForZone};
use kube::ResourceExt;

use crate::node_lifecycle::ready_status;
use crate::slices::identity;

pub const ZONE: &str = "topology.kubernetes.io/zone";
const MODE: &str = "service.kubernetes.io/topology-mode";
/// The annotation's former name, which wins.
const FORMER_MODE: &str = "service.kubernetes.io/topology-aware-hints";
/// Nodes with one of these take no part in the traffic.
const EXCLUDED: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
/// By how much more than its share an endpoint may be loaded.
const OVERLOAD: f64 = 0.2;

pub fn is_auto(service: &Service) -> bool {
    let annotations = service.annotations();
    let mode = annotations.get(FORMER_MODE).or_else(|| annotations.get(MODE));
    mode.is_some_and(|mode| mode == "Auto" || mode == "auto")
}

/// What of a node decides about the shares of zones.
#[derive(Debug, PartialEq)]
pub struct Capacity<'a> {
    zone: Option<&'a str>,
    milli_cpu: i64,
}

/// None for a node that counts in no zone.
pub fn capacity(node: &Node) -> Option<Capacity<'_>> {
    let excluded = EXCLUDED.iter().any(|label| node.labels().contains_key(*label));
    if excluded || ready_status(node) != "True" {
        return None;
    }
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let cpu = allocatable.and_then(|allocatable| Quantity::parse(&allocatable.get("cpu")?.0).ok());
    let zone = node.labels().get(ZONE).map(String::as_str).filter(|zone| !zone.is_empty());
    Some(Capacity { zone, milli_cpu: cpu.map_or(0, |cpu| cpu.milli()) })
}

/// The part of the cluster's CPU that each zone has; two zones at least.
pub struct Shares(BTreeMap<String, f64>);

impl Shares {
    /// None where there are fewer than two zones, or a node does not say its zone or CPU.
    pub fn of(nodes: &[Arc<Node>]) -> Option<Shares> {
        let mut by_zone: BTreeMap<String, f64> = BTreeMap::new();
        for node in nodes.iter().filter_map(|node| capacity(node)) {
            let zone = node.zone.filter(|_| node.milli_cpu > 0)?;
            *by_zone.entry(zone.to_owned()).or_default() += node.milli_cpu as f64;
        }
        let all: f64 = by_zone.values().sum();
        by_zone.values_mut().for_each(|cpu| *cpu /= all);
        (by_zone.len() >= 2).then_some(Shares(by_zone))
    }
}

/// Why endpoints have no hints. The words are upstream's.
#[derive(Debug, PartialEq)]
pub enum Refusal {
    InsufficientNodes,
    InsufficientEndpoints { endpoints: usize, zones: usize },
    Overloaded { endpoints: usize, zones: usize },
    NoZone,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::InsufficientNodes => f.write_str(
                "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes",
            ),
            Refusal::InsufficientEndpoints { endpoints, zones } => {
                write!(f, "Insufficient number of endpoints ({endpoints} endpoints, {zones} zones)")
            }
            Refusal::Overloaded { endpoints, zones } => write!(
                f,
                "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold \
                 ({endpoints} endpoints, {zones} zones)"
            ),
            Refusal::NoZone => f.write_str("One or more endpoints do not have a zone specified"),
        }
    }
}

/// Assigns the endpoints of one family to zones. `current` is which zone each has now, by identity. On refusal none has a hint.
pub fn assign(
    endpoints: &mut [&mut Endpoint],
    shares: Option<&Shares>,
    current: &HashMap<String, String>,
) -> Result<(), Refusal> {
    endpoints.iter_mut().for_each(|endpoint| endpoint.hints = None);
    let mut ready: Vec<&mut Endpoint> =
        endpoints.iter_mut().map(|endpoint| &mut **endpoint).filter(|endpoint| is_ready(endpoint)).collect();
    let shares = shares.ok_or(Refusal::InsufficientNodes)?;
    let allotments = allotments(shares, ready.len())?;
    let zone = |endpoint: &Endpoint| endpoint.zone.clone().filter(|zone| !zone.is_empty());
    let own: Vec<String> =
        ready.iter().map(|endpoint| zone(endpoint)).collect::<Option<_>>().ok_or(Refusal::NoZone)?;
    let kept =
        |endpoint: &Endpoint| current.get(&identity(endpoint)).filter(|zone| allotments.contains_key(*zone));
    let mut zones: Vec<String> =
        ready.iter().zip(&own).map(|(endpoint, own)| kept(endpoint).unwrap_or(own).clone()).collect();
    if !fits(&zones, &allotments) {
        zones = own;
        redistribute(&mut zones, &allotments);
    }
    for (endpoint, name) in ready.iter_mut().zip(zones) {
        endpoint.hints = Some(EndpointHints { for_zones: Some(vec![ForZone { name }]), for_nodes: None });
    }
    Ok(())
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(true)
}

/// How many endpoints a zone is due.
#[derive(Debug)]
struct Allotment {
    minimum: usize,
    maximum: usize,
    desired: f64,
}

type Allotments = BTreeMap<String, Allotment>;

fn allotments(shares: &Shares, endpoints: usize) -> Result<Allotments, Refusal> {
    let zones = shares.0.len();
    if zones > endpoints {
        return Err(Refusal::InsufficientEndpoints { endpoints, zones });
    }
    let allotment = |share: f64| {
        let desired = share * endpoints as f64;
        let minimum = (desired / (1.0 + OVERLOAD)).ceil();
        Allotment { minimum: minimum as usize, maximum: 0, desired: desired.max(minimum) }
    };
    let mut allotments: Allotments =
        shares.0.iter().map(|(zone, share)| (zone.clone(), allotment(*share))).collect();
    let least: usize = allotments.values().map(|allotment| allotment.minimum).sum();
    let spare = endpoints.checked_sub(least).ok_or(Refusal::Overloaded { endpoints, zones })?;
    allotments.values_mut().for_each(|allotment| allotment.maximum = allotment.minimum + spare);
    Ok(allotments)
}

fn counts(zones: &[String]) -> HashMap<&str, usize> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    zones.iter().for_each(|zone| *counts.entry(zone).or_default() += 1);
    counts
}

fn fits(zones: &[String], allotments: &Allotments) -> bool {
    let counts = counts(zones);
    allotments.iter().all(|(zone, due)| {
        let has = counts.get(zone.as_str()).copied().unwrap_or(0);
        (due.minimum..=due.maximum).contains(&has)
    })
}

/// Moves endpoints from zones that have more than they are due to those that have less, one at a time, the largest difference
/// first.
fn redistribute(zones: &mut [String], allotments: &Allotments) {
    let counts = counts(zones);
    let surplus =
        |zone: &String, due: &Allotment| counts.get(zone.as_str()).copied().unwrap_or(0) as f64 - due.desired;
    let mut surpluses: BTreeMap<String, f64> =
        allotments.iter().map(|(zone, due)| (zone.clone(), surplus(zone, due))).collect();
    let mut moves: BTreeMap<String, Vec<String>> = BTreeMap::new();
    loop {
        let by_surplus = |a: &(&String, &f64), b: &(&String, &f64)| a.1.total_cmp(b.1);
        let most = surpluses.iter().max_by(by_surplus).map(|(zone, surplus)| (zone.clone(), *surplus));
        let least = surpluses.iter().min_by(by_surplus).map(|(zone, surplus)| (zone.clone(), -surplus));
        let (Some((from, give)), Some((to, take))) = (most, least) else { break };
        if give.min(take) < 0.5 || give.max(take) < 1.0 {
            break;
        }
        surpluses.entry(from.clone()).and_modify(|surplus| *surplus -= 1.0);
        surpluses.entry(to.clone()).and_modify(|surplus| *surplus += 1.0);
        moves.entry(from).or_default().push(to);
    }
    for zone in zones {
        if let Some(to) = moves.get_mut(zone).and_then(Vec::pop) {
            *zone = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{labels, named};
    use k8s_openapi::api::core::v1::{NodeCondition, NodeStatus};
    use k8s_openapi::api::discovery::v1::EndpointConditions;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;

    /// `a:4` is a node with four CPUs in zone a; `a:4:role` one with such a label too.
    fn node(text: &str) -> Arc<Node> {
        let words: Vec<&str> = text.split(':').collect();
        let mut node: Node = named(text);
        let mut own = labels(&[(ZONE, words[0])]);
        own.extend(words.get(2).map(|role| (format!("node-role.kubernetes.io/{role}"), String::new())));
        node.metadata.labels = Some(own);
        node.status = Some(NodeStatus {
            allocatable: Some([("cpu".to_owned(), Written(words[1].into()))].into()),
            conditions: Some(vec![NodeCondition {
                type_: "Ready".into(),
                status: if words.get(2) == Some(&"down") { "Unknown" } else { "True" }.into(),
                ..Default::default()
            }]),
            ..Default::default()
        });
        Arc::new(node)
    }

    fn nodes(text: &str) -> Vec<Arc<Node>> {
        text.split_whitespace().map(node).collect()
    }

    fn endpoint(index: usize, zone: char, ready: bool) -> Endpoint {
        Endpoint {
            addresses: vec![format!("10.0.0.{index}")],
            conditions: Some(EndpointConditions { ready: Some(ready), ..Default::default() }),
            zone: Some(zone.to_string()).filter(|zone| zone != "-"),
            ..Default::default()
        }
    }

    /// The zones of the hints of ready endpoints in the zones of `at`, a letter each.
    fn hints(nodes: &str, at: &str, current: &str) -> Result<String, Refusal> {
        let mut endpoints: Vec<Endpoint> =
            at.chars().enumerate().map(|(index, zone)| endpoint(index, zone, true)).collect();
        endpoints.push(endpoint(200, 'a', false));
        let current = endpoints
            .iter()
            .zip(current.chars())
            .map(|(endpoint, zone)| (identity(endpoint), zone.to_string()))
            .collect();
        let shares = Shares::of(&self::nodes(nodes));
        assign(&mut endpoints.iter_mut().collect::<Vec<_>>(), shares.as_ref(), &current)?;
        let unready = endpoints.pop().expect("is the last");
        assert_eq!(unready.hints, None);
        let zone = |endpoint: &Endpoint| endpoint.hints.clone()?.for_zones?.pop().map(|zone| zone.name);
        Ok(endpoints.iter().map(|endpoint| zone(endpoint).expect("a hint")).collect())
    }

    #[test]
    fn endpoints_are_assigned_by_the_cpu_of_their_zones() {
        let check = |nodes: &str, at: &str, current: &str, expected: &str| {
            assert_eq!(hints(nodes, at, current).as_deref(), Ok(expected), "{nodes}, {at}, {current}");
        };
        check("a:4 b:4", "aabb", "", "aabb");
        check("a:4 b:4", "aaaabb", "", "baaabb");
        check("a:2 a:2 b:4 c:4", "aaabbc", "", "caabbc");
        check("a:1500m b:500m", "aabb", "", "aaab");
        check("a:4 b:4", "aaaaabb", "", "baaaabb");
        // Zone z has no nodes: nobody can be given its endpoints, and they serve it still.
        check("a:4 b:4", "aaabbbzz", "", "aaabbbzz");
    }

    #[test]
    fn hints_that_fit_stay() {
        let check = |at: &str, current: &str, expected: &str| {
            assert_eq!(hints("a:4 b:4", at, current).as_deref(), Ok(expected), "{at}, {current}");
        };
        check("aaaabb", "aaabbb", "aaabbb");
        check("aabb", "bbaa", "bbaa");
        check("aaaaabb", "aaabbbb", "aaabbbb");
        // Too many in one zone, and a zone that has no nodes any more.
        check("aabb", "aaab", "aabb");
        check("aabb", "aabz", "aabb");
    }

    #[test]
    fn no_hints_where_a_zone_would_be_overloaded_or_is_not_known() {
        let check = |nodes: &str, at: &str, expected: &str| {
            let refusal = hints(nodes, at, "").expect_err(nodes);
            assert_eq!(refusal.to_string(), expected, "{nodes}, {at}");
        };
        let nodes =
            "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes";
        check("", "aabb", nodes);
        check("a:4 a:4", "aabb", nodes);
        check("a:4 b:0", "aabb", nodes);
        check("a:4 :4", "aabb", nodes);
        check("a:4 b:4:control-plane", "aabb", nodes);
        check("a:4 b:4:down", "aabb", nodes);
        check("a:4 b:4", "a", "Insufficient number of endpoints (1 endpoints, 2 zones)");
        check(
            "a:20 b:1 c:1 d:1",
            "abcd",
            "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold \
             (4 endpoints, 4 zones)",
        );
        check("a:4 b:4", "aab-", "One or more endpoints do not have a zone specified");
    }

    #[test]
    fn the_former_annotation_wins() {
        let check = |annotations: &[(&str, &str)], expected| {
            let mut service: Service = named("web");
            service.metadata.annotations = Some(labels(annotations));
            assert_eq!(is_auto(&service), expected, "{annotations:?}");
        };
        check(&[], false);
        check(&[(MODE, "Auto")], true);
        check(&[(MODE, "auto")], true);
        check(&[(MODE, "AUTO")], false);
        check(&[(MODE, "Auto"), (FORMER_MODE, "Disabled")], false);
        check(&[(FORMER_MODE, "auto")], true);
    }
}
