//! What a node's proxy has to say about its host, told as annotations of the Node: so the load balancer, other
//! nodes and `ferry status` learn it wherever they are.

use std::collections::{BTreeMap, BTreeSet};

use ferry_client::{Api, Client};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::{Protocol, host_ports};

/// Ports that balanced services ask for, as far as this host has been looked at for them: `22/TCP,80/TCP`. It is
/// there, if empty, from the proxy's start on: a node without it has somebody else's proxy.
pub const BALANCED_PORTS: &str = "ferry.dev/balanced-ports";
/// Those of them that the host has for itself: `22/TCP`.
pub const HOST_PORTS: &str = "ferry.dev/host-ports";
/// Chains of the host's firewall that drop what is forwarded.
pub const HOST_FIREWALL: &str = "ferry.dev/host-firewall";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// `None`: nobody looks there.
    pub balanced_ports: Option<BTreeSet<(u16, Protocol)>>,
    pub host_ports: BTreeSet<(u16, Protocol)>,
    pub dropping_chains: Vec<String>,
}

impl Report {
    pub fn of(node: &Node) -> Self {
        let annotation =
            |name: &str| node.metadata.annotations.as_ref().and_then(|all| all.get(name)).map(String::as_str);
        Self {
            balanced_ports: annotation(BALANCED_PORTS).map(host_ports::from_text),
            host_ports: annotation(HOST_PORTS).map(host_ports::from_text).into_iter().flatten().collect(),
            dropping_chains: annotation(HOST_FIREWALL)
                .into_iter()
                .flat_map(|text| text.split(", "))
                .map(String::from)
                .collect(),
        }
    }

    /// What to tell, `None` for what there is nothing to tell of.
    fn annotations(&self) -> BTreeMap<&'static str, Option<String>> {
        let told = |text: String| Some(text).filter(|text| !text.is_empty());
        BTreeMap::from([
            (BALANCED_PORTS, self.balanced_ports.as_ref().map(host_ports::to_text)),
            (HOST_PORTS, told(host_ports::to_text(&self.host_ports))),
            (HOST_FIREWALL, told(self.dropping_chains.join(", "))),
        ])
    }

    pub async fn publish(&self, client: &Client, node: &str) -> kube::Result<()> {
        let mut span = ferry_trace::span("proxy.report");
        span.object("nodes", "", node);
        let patch = json!({ "metadata": { "annotations": self.annotations() } });
        let nodes: Api<Node> = Api::all(client.clone());
        span.in_scope(nodes.patch(node, &PatchParams::default(), &Patch::Merge(patch))).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_reports_round_trip_through_annotations() {
        let full = Report {
            balanced_ports: Some(BTreeSet::from([(22, Protocol::Tcp), (53, Protocol::Udp)])),
            host_ports: BTreeSet::from([(22, Protocol::Tcp)]),
            dropping_chains: vec!["ip filter FORWARD".into(), "inet fw forward".into()],
        };
        let empty = Report { balanced_ports: Some(BTreeSet::new()), ..Report::default() };
        for report in [full, empty, Report::default()] {
            let node = json!({ "metadata": { "annotations": report.annotations() } });
            let mut node = node;
            // As a merge patch has it: null is nothing.
            if let Some(all) = node["metadata"]["annotations"].as_object_mut() {
                all.retain(|_, value| !value.is_null());
            }
            assert_eq!(Report::of(&serde_json::from_value(node).unwrap()), report);
        }
    }
}
