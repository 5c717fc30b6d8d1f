//! What was chosen, as it is written into a claim's status.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceAllocationConfiguration, DeviceAllocationResult, DeviceRequestAllocationResult,
    OpaqueDeviceConfiguration,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::Node;
use super::demand::{Demand, Request};
use super::search::Choice;

/// `share_id` makes a name for each share of a device, unlike any other.
pub fn result(
    demand: &Demand,
    choices: &[Choice],
    node: &Node<'_>,
    mut share_id: impl FnMut() -> String,
) -> AllocationResult {
    let results = choices.iter().map(|choice| {
        let request = request_of(demand, choice);
        let spec = choice.slice.spec();
        let device = choice.slice.device(&choice.slice.devices[choice.device]);
        let consumed = choice.share.as_ref().filter(|amounts| !amounts.is_empty());
        DeviceRequestAllocationResult {
            request: request.name.clone(),
            driver: spec.driver.clone(),
            pool: spec.pool.name.clone(),
            device: device.name.clone(),
            admin_access: request.is_administration.then_some(true),
            tolerations: Some(request.tolerations.clone()).filter(|list| !list.is_empty()),
            share_id: choice.share.is_some().then(&mut share_id),
            consumed_capacity: consumed.map(|amounts| {
                amounts.iter().map(|(name, amount)| (name.clone(), Quantity(amount.to_string()))).collect()
            }),
            binding_conditions: device.binding_conditions.clone(),
            binding_failure_conditions: device.binding_failure_conditions.clone(),
        }
    });
    let results: Vec<_> = results.collect();
    let config = configuration(demand, choices);
    AllocationResult {
        allocation_timestamp: None,
        devices: Some(DeviceAllocationResult {
            results: Some(results).filter(|results| !results.is_empty()),
            config: Some(config).filter(|config| !config.is_empty()),
        }),
        node_selector: node_selector(choices, node),
    }
}

fn request_of<'d>(demand: &'d Demand, choice: &Choice) -> &'d Request {
    &demand.requests[choice.request].alternatives[choice.alternative]
}

/// The classes' configuration, each class once, then the claim's own.
fn configuration(demand: &Demand, choices: &[Choice]) -> Vec<DeviceAllocationConfiguration> {
    let mut all: Vec<DeviceAllocationConfiguration> = Vec::new();
    let mut classes: BTreeMap<&str, std::ops::Range<usize>> = BTreeMap::new();
    // the alternative that was chosen; the first where a request got no device at all
    let chosen: Vec<&Request> = demand
        .requests
        .iter()
        .enumerate()
        .map(|(number, wanted)| {
            let choice = choices.iter().find(|choice| choice.request == number);
            &wanted.alternatives[choice.map_or(0, |choice| choice.alternative)]
        })
        .collect();
    for request in &chosen {
        let class = request.class.metadata.name.as_deref().unwrap_or("");
        if let Some(range) = classes.get(class) {
            for config in &mut all[range.clone()] {
                config.requests.get_or_insert_default().push(request.name.clone());
            }
            continue;
        }
        let start = all.len();
        for config in request.class.spec.config.iter().flatten() {
            all.push(entry("FromClass", vec![request.name.clone()], config.opaque.clone()));
        }
        classes.insert(class, start..all.len());
    }
    let own = demand.claim.spec.devices.iter().flat_map(|devices| devices.config.iter().flatten());
    for config in own {
        let requests = config.requests.clone().unwrap_or_default();
        let names = |name: &str| requests.iter().any(|own| own == name);
        if requests.is_empty() {
            all.push(entry("FromClaim", requests, config.opaque.clone()));
            continue;
        }
        let concerned = chosen.iter().filter(|request| names(request.base()) || names(&request.name)).count();
        for _ in 0..concerned {
            all.push(entry("FromClaim", requests.clone(), config.opaque.clone()));
        }
    }
    all
}

fn entry(
    source: &str,
    requests: Vec<String>,
    opaque: Option<OpaqueDeviceConfiguration>,
) -> DeviceAllocationConfiguration {
    let requests = Some(requests).filter(|requests| !requests.is_empty());
    DeviceAllocationConfiguration { source: source.into(), requests, opaque }
}

/// Where the devices can be used: on one node if one of them is there alone, else where all their selectors agree.
fn node_selector(choices: &[Choice], node: &Node<'_>) -> Option<NodeSelector> {
    let mut term = NodeSelectorTerm::default();
    for choice in choices {
        let spec = choice.slice.spec();
        let device = choice.slice.device(&choice.slice.devices[choice.device]);
        let (name, selector) = match spec.per_device_node_selection {
            Some(true) => (&device.node_name, &device.node_selector),
            _ => (&spec.node_name, &spec.node_selector),
        };
        if name.is_some() || device.binds_to_node == Some(true) {
            let here = NodeSelectorRequirement {
                key: "metadata.name".into(),
                operator: "In".into(),
                values: Some(vec![node.name.to_owned()]),
            };
            let term = NodeSelectorTerm { match_fields: Some(vec![here]), match_expressions: None };
            return Some(NodeSelector { node_selector_terms: vec![term] });
        }
        if let Some(other) = selector.as_ref().and_then(|selector| selector.node_selector_terms.first()) {
            add(&mut term.match_fields, &other.match_fields);
            add(&mut term.match_expressions, &other.match_expressions);
        }
    }
    let says = term.match_fields.is_some() || term.match_expressions.is_some();
    says.then(|| NodeSelector { node_selector_terms: vec![term] })
}

fn add(to: &mut Option<Vec<NodeSelectorRequirement>>, from: &Option<Vec<NodeSelectorRequirement>>) {
    for requirement in from.iter().flatten() {
        let own = to.get_or_insert_default();
        if !own.contains(requirement) {
            own.push(requirement.clone());
        }
    }
}
