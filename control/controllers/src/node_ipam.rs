//! Gives every node its pod subnets.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ferry_client::{Attempt, Client, Error, EventType, Informer, NamespacedName, Outcome, Recorder, error};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;

use crate::cidr::Cidr;
use crate::config::{Config, ConfigError};
use crate::context::{Context, Running};

const CONTROLLER: &str = "node-ipam-controller";

/// The ranges to cut from, and what is taken.
struct Allocator {
    ranges: Vec<(Cidr, u8)>,
    reserved: Vec<Cidr>,
    /// Node → what it has or was just given.
    taken: HashMap<String, Vec<Cidr>>,
    /// Where to look first, so that a subnet just freed rests a while.
    next: u128,
}

impl Allocator {
    fn new(config: &Config) -> Result<Self, ConfigError> {
        let parse = |text: &String| text.parse::<Cidr>().map_err(|_| ConfigError::InvalidCidr(text.clone()));
        let ranges = config.cluster_cidrs.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        let mask =
            |range: Cidr| if range.is_v6() { config.node_cidr_mask_v6 } else { config.node_cidr_mask_v4 };
        Ok(Allocator {
            ranges: ranges.into_iter().map(|range| (range, mask(range))).collect(),
            reserved: config.service_cidrs.iter().map(parse).collect::<Result<Vec<_>, _>>()?,
            taken: HashMap::new(),
            next: 0,
        })
    }

    /// Notes what a node says it has.
    fn note(&mut self, node: &str, cidrs: &[String]) {
        let cidrs: Vec<Cidr> = cidrs.iter().filter_map(|text| text.parse().ok()).collect();
        if !cidrs.is_empty() {
            self.taken.insert(node.into(), cidrs);
        }
    }

    fn free(&mut self, node: &str) {
        self.taken.remove(node);
    }

    /// One subnet of each range; None when one of them is used up. Asking twice for the same
    /// node gives the same.
    fn allocate(&mut self, node: &str) -> Option<Vec<Cidr>> {
        if let Some(known) = self.taken.get(node) {
            return Some(known.clone());
        }
        let used: HashSet<Cidr> = self.taken.values().flatten().copied().collect();
        let mut given = Vec::with_capacity(self.ranges.len());
        for (range, prefix) in &self.ranges {
            let parts = range.parts(*prefix);
            let candidates = (0..parts).map(|offset| range.part(*prefix, (self.next + offset) % parts));
            let mut free = candidates
                .filter(|part| !used.contains(part) && !self.reserved.iter().any(|r| r.overlaps(part)));
            given.push(free.next()?);
        }
        self.next += 1;
        self.taken.insert(node.into(), given.clone());
        Some(given)
    }
}

fn pod_cidrs(node: &Node) -> Vec<String> {
    let spec = node.spec.clone().unwrap_or_default();
    spec.pod_cidrs
        .filter(|cidrs| !cidrs.is_empty())
        .or(spec.pod_cidr.map(|cidr| vec![cidr]))
        .unwrap_or_default()
}

pub fn start(context: &Context) -> Running {
    if !context.config.allocate_node_cidrs {
        return Box::pin(std::future::ready(()));
    }
    let allocator = match Allocator::new(&context.config) {
        Ok(allocator) => Mutex::new(allocator),
        Err(error) => {
            tracing::error!(%error, "nodes get no pod CIDRs");
            return Box::pin(std::future::ready(()));
        }
    };
    let builder = context.controller(CONTROLLER);
    let nodes = builder.informer::<Node>();
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        nodes: nodes.clone(),
        allocator,
        recorder: context.recorder("cidrAllocator"),
    });
    let known = controller.clone();
    // Before the first subnet is given, all that are taken must be known.
    let note_taken = async move {
        for node in known.nodes.list() {
            known.allocator.lock().note(&node.name_any(), &pod_cidrs(&node));
        }
    };
    builder.of(&nodes, controller).after(note_taken).run(Controller::reconcile)
}

struct Controller {
    client: Client,
    nodes: Informer<Node>,
    allocator: Mutex<Allocator>,
    recorder: Recorder,
}

impl Controller {
    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(node) = self.nodes.get(&key) else {
            self.allocator.lock().free(&key.name);
            return Ok(Outcome::Done);
        };
        let has = pod_cidrs(&node);
        if !has.is_empty() {
            self.allocator.lock().note(&key.name, &has);
            return Ok(Outcome::Done);
        }
        let allocated = self.allocator.lock().allocate(&key.name);
        let Some(cidrs) = allocated else {
            let note = format!("Node {} status is now: CIDRNotAvailable", key.name);
            self.recorder.event(&*node, EventType::Normal, "CIDRNotAvailable", "Allocate", note);
            return Ok(Outcome::After(std::time::Duration::from_secs(60)));
        };
        let cidrs: Vec<String> = cidrs.iter().map(ToString::to_string).collect();
        let patch = json!({"spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs}});
        let api: Api<Node> = Api::all(self.client.clone());
        let patched = api.patch(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await;
        error::ignore_not_found(patched).attempting("give pod subnets")?;
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocator(cluster: &[&str], service: &[&str], mask: u8) -> Allocator {
        let text = |list: &[&str]| list.iter().map(ToString::to_string).collect();
        let config = Config {
            cluster_cidrs: text(cluster),
            service_cidrs: text(service),
            node_cidr_mask_v4: mask,
            node_cidr_mask_v6: 64,
            ..Default::default()
        };
        Allocator::new(&config).unwrap()
    }

    fn given(allocator: &mut Allocator, node: &str) -> Option<String> {
        allocator
            .allocate(node)
            .map(|cidrs| cidrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
    }

    #[test]
    fn every_node_gets_its_own_and_keeps_it() {
        let mut all = allocator(&["10.244.0.0/22"], &[], 24);
        all.note("known", &["10.244.1.0/24".into()]);
        assert_eq!(given(&mut all, "a").as_deref(), Some("10.244.0.0/24"));
        assert_eq!(given(&mut all, "a").as_deref(), Some("10.244.0.0/24"));
        assert_eq!(given(&mut all, "b").as_deref(), Some("10.244.2.0/24"));
        assert_eq!(given(&mut all, "c").as_deref(), Some("10.244.3.0/24"));
        assert_eq!(given(&mut all, "d"), None);
        all.free("known");
        assert_eq!(given(&mut all, "d").as_deref(), Some("10.244.1.0/24"));
    }

    #[test]
    fn services_and_both_families_are_respected() {
        let mut all = allocator(&["10.0.0.0/22", "fd00::/56"], &["10.0.0.0/23"], 24);
        assert_eq!(given(&mut all, "a").as_deref(), Some("10.0.2.0/24,fd00::/64"));
        let mut tight = allocator(&["10.0.0.0/24"], &["10.0.0.0/24"], 24);
        assert_eq!(given(&mut tight, "a"), None);
    }

    #[test]
    fn a_malformed_range_is_an_error() {
        let config = Config { cluster_cidrs: vec!["10.0.0/8".into()], ..Default::default() };
        assert!(Allocator::new(&config).is_err());
    }
}
