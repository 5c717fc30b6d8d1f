//! What the policies allow each pod of a node. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::{IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::{Selector, SelectorExt};

/// The rules of one pod of this node. `None` for a direction that no policy isolates the pod in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRules {
    /// `namespace/name`.
    pub name: String,
    pub addresses: Vec<IpAddr>,
    pub ingress: Option<BTreeSet<Allowed>>,
    pub egress: Option<BTreeSet<Allowed>>,
}

/// Traffic with these peers, on these ports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Allowed {
    pub peers: Peers,
    pub ports: Ports,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peers {
    Anybody,
    Pods(BTreeSet<IpAddr>),
    Block { cidr: IpNet, except: Vec<IpNet> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ports {
    All,
    /// Of a protocol, as nft calls it; from a port to another, or all.
    Of {
        protocol: &'static str,
        range: Option<(u16, u16)>,
    },
}

/// What this node has to see to: its pods that a policy selects.
pub fn decide<P: AsRef<Pod>>(
    policies: &[impl AsRef<NetworkPolicy>],
    pods: &[P],
    namespaces: &[impl AsRef<Namespace>],
    node: &str,
) -> Vec<PodRules> {
    let labels = namespaces.iter().map(AsRef::as_ref).map(|namespace| {
        let name = namespace.metadata.name.clone().unwrap_or_default();
        (name, namespace.metadata.labels.clone().unwrap_or_default())
    });
    let labels: BTreeMap<String, Labels> = labels.collect();
    let pods: Vec<Target> = pods.iter().filter_map(|pod| Target::of(pod.as_ref())).collect();
    let cluster = Cluster { pods: &pods, namespaces: &labels };
    let mut found = Vec::new();
    for pod in pods.iter().filter(|pod| pod.node == Some(node)) {
        let mut rules =
            PodRules { name: pod.name(), addresses: pod.addresses.clone(), ingress: None, egress: None };
        let own = policies.iter().map(AsRef::as_ref).filter(|policy| selects(policy, pod));
        for spec in own.filter_map(|policy| policy.spec.as_ref()) {
            let types = spec.policy_types.as_deref().unwrap_or(&[]);
            let is = |wanted: &str| types.iter().any(|one| one == wanted);
            let rest = (pod, &cluster);
            if types.is_empty() || is("Ingress") {
                let allowed = rules.ingress.get_or_insert_default();
                for rule in spec.ingress.iter().flatten() {
                    allowed.extend(rest.ingress(rule.from.as_deref(), rule.ports.as_deref()));
                }
            }
            if is("Egress") || (types.is_empty() && spec.egress.is_some()) {
                let allowed = rules.egress.get_or_insert_default();
                for rule in spec.egress.iter().flatten() {
                    allowed.extend(rest.egress(rule.to.as_deref(), rule.ports.as_deref()));
                }
            }
        }
        if rules.ingress.is_some() || rules.egress.is_some() {
            found.push(rules);
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

type Labels = BTreeMap<String, String>;

/// What policies see of a pod: one that has addresses of its own, and runs.
struct Target<'a> {
    pod: &'a Pod,
    namespace: &'a str,
    node: Option<&'a str>,
    addresses: Vec<IpAddr>,
}

struct Cluster<'a> {
    pods: &'a [Target<'a>],
    namespaces: &'a BTreeMap<String, Labels>,
}

impl<'a> Target<'a> {
    fn of(pod: &'a Pod) -> Option<Self> {
        let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
        let is_over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        // A pod on the host's network is the host.
        if is_over || spec.host_network == Some(true) {
            return None;
        }
        let addresses = status.pod_ips.iter().flatten().filter_map(|ip| ip.ip.parse().ok());
        let addresses: Vec<IpAddr> = addresses.collect();
        let namespace = pod.metadata.namespace.as_deref()?;
        (!addresses.is_empty()).then_some(Self { pod, namespace, node: spec.node_name.as_deref(), addresses })
    }

    fn name(&self) -> String {
        format!("{}/{}", self.namespace, self.pod.metadata.name.as_deref().unwrap_or(""))
    }

    fn port_named(&self, name: &str, protocol: &str) -> Option<u16> {
        let containers = self.pod.spec.iter().flat_map(|spec| &spec.containers);
        let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
        let found = ports.find(|port| {
            port.name.as_deref() == Some(name) && port.protocol.as_deref().unwrap_or("TCP") == protocol
        })?;
        u16::try_from(found.container_port).ok()
    }
}

fn selects(policy: &NetworkPolicy, pod: &Target) -> bool {
    let selector = policy.spec.as_ref().map(|spec| spec.pod_selector.clone().unwrap_or_default());
    policy.metadata.namespace.as_deref() == Some(pod.namespace)
        && selector.is_some_and(|selector| matches(&selector, pod.pod.metadata.labels.as_ref()))
}

/// A selector that cannot be understood selects nothing.
fn matches(selector: &LabelSelector, labels: Option<&Labels>) -> bool {
    let none = Labels::new();
    Selector::try_from(selector.clone()).is_ok_and(|selector| selector.matches(labels.unwrap_or(&none)))
}

/// A pod with the cluster around it.
trait Rules {
    fn ingress(
        &self,
        from: Option<&[NetworkPolicyPeer]>,
        ports: Option<&[NetworkPolicyPort]>,
    ) -> Vec<Allowed>;
    fn egress(&self, to: Option<&[NetworkPolicyPeer]>, ports: Option<&[NetworkPolicyPort]>) -> Vec<Allowed>;
}

impl Rules for (&Target<'_>, &Cluster<'_>) {
    /// A named port is the pod's own.
    fn ingress(
        &self,
        from: Option<&[NetworkPolicyPeer]>,
        ports: Option<&[NetworkPolicyPort]>,
    ) -> Vec<Allowed> {
        let (pod, cluster) = self;
        let ports = ports_of(ports, |name, protocol| pod.port_named(name, protocol));
        let peers = peers_of(from, pod.namespace, cluster).into_iter().map(|peers| match peers {
            Found::Pods(pods) => Peers::Pods(addresses(&pods)),
            Found::Others(peers) => peers,
        });
        peers
            .flat_map(|peers| ports.iter().map(move |ports| Allowed { peers: peers.clone(), ports: *ports }))
            .collect()
    }

    /// A named port is the other pod's, and each may have another number for it.
    fn egress(&self, to: Option<&[NetworkPolicyPeer]>, ports: Option<&[NetworkPolicyPort]>) -> Vec<Allowed> {
        let (pod, cluster) = self;
        let mut allowed = Vec::new();
        for peers in peers_of(to, pod.namespace, cluster) {
            match peers {
                Found::Others(peers) => {
                    let ports = ports_of(ports, |_, _| None);
                    allowed.extend(ports.into_iter().map(|ports| Allowed { peers: peers.clone(), ports }));
                }
                Found::Pods(pods) => {
                    let mut by_ports: BTreeMap<Ports, BTreeSet<IpAddr>> = BTreeMap::new();
                    for pod in pods {
                        for ports in ports_of(ports, |name, protocol| pod.port_named(name, protocol)) {
                            by_ports.entry(ports).or_default().extend(&pod.addresses);
                        }
                    }
                    let each = by_ports.into_iter();
                    allowed.extend(each.map(|(ports, pods)| Allowed { peers: Peers::Pods(pods), ports }));
                }
            }
        }
        allowed
    }
}

enum Found<'a> {
    Pods(Vec<&'a Target<'a>>),
    Others(Peers),
}

/// No list, and an empty one, are everybody.
fn peers_of<'a>(peers: Option<&[NetworkPolicyPeer]>, own: &str, cluster: &Cluster<'a>) -> Vec<Found<'a>> {
    let peers = peers.unwrap_or(&[]);
    if peers.is_empty() {
        return vec![Found::Others(Peers::Anybody)];
    }
    let one = |peer: &NetworkPolicyPeer| match &peer.ip_block {
        Some(block) => block_of(block).map(Found::Others),
        None => {
            let fits = |pod: &&Target| {
                let in_namespace = match &peer.namespace_selector {
                    None => pod.namespace == own,
                    Some(selector) => cluster
                        .namespaces
                        .get(pod.namespace)
                        .is_some_and(|labels| matches(selector, Some(labels))),
                };
                let labels = pod.pod.metadata.labels.as_ref();
                in_namespace && peer.pod_selector.as_ref().is_none_or(|selector| matches(selector, labels))
            };
            let pods: Vec<&Target> = cluster.pods.iter().filter(fits).collect();
            (!pods.is_empty()).then_some(Found::Pods(pods))
        }
    };
    peers.iter().filter_map(one).collect()
}

fn block_of(block: &IPBlock) -> Option<Peers> {
    let parse = |text: &String| text.parse::<IpNet>().ok().map(|net| net.trunc());
    let except = block.except.iter().flatten().filter_map(parse).collect::<Vec<_>>();
    Some(Peers::Block { cidr: parse(&block.cidr)?, except: IpNet::aggregate(&except) })
}

fn addresses(pods: &[&Target]) -> BTreeSet<IpAddr> {
    pods.iter().flat_map(|pod| pod.addresses.iter().copied()).collect()
}

/// No list, and an empty one, are all ports. A name that nobody has is no port.
fn ports_of(ports: Option<&[NetworkPolicyPort]>, named: impl Fn(&str, &str) -> Option<u16>) -> Vec<Ports> {
    let ports = ports.unwrap_or(&[]);
    if ports.is_empty() {
        return vec![Ports::All];
    }
    let one = |port: &NetworkPolicyPort| {
        let api_name = port.protocol.as_deref().unwrap_or("TCP");
        let protocol = match api_name {
            "TCP" => "tcp",
            "UDP" => "udp",
            "SCTP" => "sctp",
            _ => return None,
        };
        let range = match &port.port {
            None => None,
            Some(IntOrString::Int(first)) => {
                let first = u16::try_from(*first).ok()?;
                let last = port.end_port.map_or(Some(first), |last| u16::try_from(last).ok())?;
                Some((first, last.max(first)))
            }
            Some(IntOrString::String(name)) => named(name, api_name).map(|port| Some((port, port)))?,
        };
        Some(Ports::Of { protocol, range })
    };
    ports.iter().filter_map(one).collect()
}
