//! Services as an nftables table per family, where a packet's cost does not grow with the services.
//!
//! A packet is looked up once by address, protocol and port; the verdict says how many endpoints there
//! are, a random number below that count picks one, and one more lookup rewrites the packet:
//!
//! ```text
//! service-ips   10.96.0.10 . udp . 53 : goto pick-2
//! pick-2        numgen random mod 2 vmap { 0 : goto endpoint-0, 1 : goto endpoint-1 }
//! endpoint-1    dnat to ip daddr . meta l4proto . th dport map @endpoints-1
//! endpoints-1   10.96.0.10 . udp . 53 : 10.244.0.7 . 53
//! ```
//!
//! So services are elements of maps, not chains: ten thousand of them share a few dozen chains, and a
//! change of one is a change of a few elements. Only services with session affinity have chains and sets
//! of their own, since an endpoint must be found by the client.

mod script;
mod structure;
mod table;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ferry_linux::net::names;
use ipnet::IpNet;

use crate::{
    Family, Protocol,
    service::{At, ServicePort, Verdict},
};

pub use structure::Settings;
pub use table::Table;

/// What a packet is matched by: address and port, or the port on any address of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MatchBy {
    Address,
    NodePort,
}

/// Whose endpoints: the cluster's, or this node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reach {
    Cluster,
    Local,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Map {
    ServiceIps,
    ServiceNodePorts,
    /// Frontends without endpoints: refused or dropped.
    UnservedIps,
    UnservedNodePorts,
    ClusterIps,
    /// This node's endpoints, to themselves: the answer must come back through the node.
    Hairpin,
    /// Frontends that only some sources may reach, and those sources.
    Firewalled,
    AllowedSources,
    Endpoints(MatchBy, Reach, u16),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    Ip(IpAddr),
    Pair(IpAddr),
    Address(IpAddr, Protocol, u16),
    Port(Protocol, u16),
    Source(IpAddr, Protocol, u16, IpNet),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// An element of a set.
    Present,
    Goto(Chain),
    Drop,
    Target(SocketAddr),
}

/// A chain a verdict leads to. All but `Private` are shared, and exist while something leads there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Chain {
    Refuse,
    Pick(MatchBy, Reach, u16),
    Masquerade(MatchBy, u16),
    /// The counts of the cluster's and of this node's endpoints.
    Split(MatchBy, u16, u16),
    Private(Arc<str>),
}

pub type Element = ((Map, Key), Value);

/// What one service adds to the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceRules {
    pub elements: Vec<Element>,
    /// Of services with session affinity: sets by name, with their declaration, and chains with rules.
    pub sets: BTreeMap<String, String>,
    pub chains: BTreeMap<String, Vec<String>>,
}

/// The rules of a service, all its ports together.
pub fn rules_of(ports: &[ServicePort], settings: &Settings) -> ServiceRules {
    let mut rules = ServiceRules::default();
    for port in ports {
        for ip in &port.endpoints.local {
            rules.elements.push(((Map::Hairpin, Key::Pair(ip.ip())), Value::Present));
        }
        let affinity = port.affinity.map(|seconds| Affinity::of(port, seconds, settings));
        for frontend in &port.frontends {
            let (door, key) = match frontend.at {
                At::ClusterIp(ip) | At::ExternalIp(ip) => {
                    (MatchBy::Address, Key::Address(ip, port.protocol, frontend.port))
                }
                At::NodePort => (MatchBy::NodePort, Key::Port(port.protocol, frontend.port)),
            };
            if let At::ClusterIp(ip) = frontend.at {
                rules.elements.push(((Map::ClusterIps, Key::Ip(ip)), Value::Present));
            }
            if let (At::ExternalIp(ip), false) = (frontend.at, frontend.sources.is_empty()) {
                rules.elements.push(((Map::Firewalled, key.clone()), Value::Present));
                for source in &frontend.sources {
                    let key = Key::Source(ip, port.protocol, frontend.port, *source);
                    rules.elements.push(((Map::AllowedSources, key), Value::Present));
                }
            }
            rules.add_verdict(door, key, &port.verdict(frontend), affinity.as_ref());
        }
        if let Some(affinity) = affinity {
            affinity.add_to(&mut rules);
        }
    }
    rules
}

impl ServiceRules {
    fn add_verdict(&mut self, door: MatchBy, key: Key, verdict: &Verdict, affinity: Option<&Affinity>) {
        let (served, unserved) = match door {
            MatchBy::Address => (Map::ServiceIps, Map::UnservedIps),
            MatchBy::NodePort => (Map::ServiceNodePorts, Map::UnservedNodePorts),
        };
        let chain = match (verdict, affinity) {
            (Verdict::Reject, _) => {
                self.elements.push(((unserved, key), Value::Goto(Chain::Refuse)));
                return;
            }
            (Verdict::Drop, _) => {
                self.elements.push(((unserved, key), Value::Drop));
                return;
            }
            (verdict, Some(affinity)) => Chain::Private(affinity.chain(verdict).into()),
            (Verdict::To(endpoints), None) => {
                self.add_endpoints(door, Reach::Cluster, &key, endpoints);
                Chain::Pick(door, Reach::Cluster, count(endpoints))
            }
            (Verdict::Masqueraded(endpoints), None) => {
                self.add_endpoints(door, Reach::Cluster, &key, endpoints);
                Chain::Masquerade(door, count(endpoints))
            }
            (Verdict::Split { inside, outside }, None) => {
                self.add_endpoints(door, Reach::Cluster, &key, inside);
                self.add_endpoints(door, Reach::Local, &key, outside);
                Chain::Split(door, count(inside), count(outside))
            }
        };
        self.elements.push(((served, key), Value::Goto(chain)));
    }

    fn add_endpoints(&mut self, door: MatchBy, reach: Reach, key: &Key, endpoints: &[SocketAddr]) {
        for (index, endpoint) in (0..u16::MAX).zip(endpoints) {
            self.elements.push(((Map::Endpoints(door, reach, index), key.clone()), Value::Target(*endpoint)));
        }
    }
}

/// Endpoints beyond what fits the number are never picked; no service comes near it.
fn count(endpoints: &[SocketAddr]) -> u16 {
    u16::try_from(endpoints.len()).unwrap_or(u16::MAX)
}

/// The private chains and sets of a service port whose clients stay with their endpoint.
struct Affinity<'a> {
    port: &'a ServicePort,
    base: String,
    seconds: u32,
    settings: &'a Settings,
    family: Family,
}

impl<'a> Affinity<'a> {
    fn of(port: &'a ServicePort, seconds: u32, settings: &'a Settings) -> Self {
        let readable: String =
            port.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let digest = names::hex(&format!("{} {}", port.name, port.protocol));
        let base = format!("affinity-{readable}-{}", &digest[..8]);
        Self { port, base, seconds, settings, family: settings.family }
    }

    fn chain(&self, verdict: &Verdict) -> String {
        let Self { base, .. } = self;
        match verdict {
            Verdict::To(endpoints) if **endpoints == self.port.endpoints.cluster => format!("{base}-cluster"),
            Verdict::To(_) => format!("{base}-local"),
            Verdict::Masqueraded(_) => format!("{base}-masquerade"),
            Verdict::Split { .. } => format!("{base}-split"),
            Verdict::Reject | Verdict::Drop => Chain::Refuse.to_string(),
        }
    }

    fn endpoint(&self, endpoint: &SocketAddr) -> String {
        format!("{}-{}", self.base, &names::hex(&endpoint.to_string())[..8])
    }

    /// The set of an endpoint's clients. Another timeout is another set.
    fn clients(&self, endpoint: &SocketAddr) -> String {
        format!("{}-{}s", self.endpoint(endpoint), self.seconds)
    }

    fn add_to(&self, rules: &mut ServiceRules) {
        let endpoints = &self.port.endpoints;
        let ip = structure::ip(self.family);
        for endpoint in endpoints.cluster.iter().chain(&endpoints.local) {
            let (name, clients) = (self.endpoint(endpoint), self.clients(endpoint));
            let address = structure::address_type(self.family);
            let declaration = format!("type {address}; flags dynamic,timeout; timeout {}s;", self.seconds);
            let rewrite = format!("meta l4proto {} dnat to {endpoint}", self.port.protocol);
            rules.chains.insert(name, vec![format!("update @{clients} {{ {ip} saddr }}"), rewrite]);
            rules.sets.insert(clients, declaration);
        }
        let verdicts: Vec<Verdict> = self.port.frontends.iter().map(|f| self.port.verdict(f)).collect();
        let mut add = |name: String, body: Vec<String>| drop(rules.chains.insert(name, body));
        let (cluster, local) = (format!("{}-cluster", self.base), format!("{}-local", self.base));
        for verdict in &verdicts {
            match verdict {
                Verdict::To(endpoints) => add(self.chain(verdict), self.pick(endpoints)),
                Verdict::Masqueraded(endpoints) => {
                    add(cluster.clone(), self.pick(endpoints));
                    add(self.chain(verdict), structure::masquerade(&cluster));
                }
                Verdict::Split { inside, outside } => {
                    let inside_chain = (!inside.is_empty()).then_some(cluster.as_str());
                    let outside_chain = (!outside.is_empty()).then_some(local.as_str());
                    add(self.chain(verdict), structure::split(self.settings, inside_chain, outside_chain));
                    if !inside.is_empty() {
                        add(cluster.clone(), self.pick(inside));
                    }
                    if !outside.is_empty() {
                        add(local.clone(), self.pick(outside));
                    }
                }
                Verdict::Reject | Verdict::Drop => {}
            }
        }
        // An endpoint no frontend leads to would be a chain without a caller.
        let used: Vec<String> = rules.chains.values().flatten().cloned().collect();
        for endpoint in endpoints.cluster.iter().chain(&endpoints.local) {
            let name = self.endpoint(endpoint);
            if !used.iter().any(|rule| rule.contains(&format!("goto {name}"))) {
                rules.chains.remove(&name);
                rules.sets.remove(&self.clients(endpoint));
            }
        }
    }

    /// A known client to its endpoint, a new one to a random endpoint.
    fn pick(&self, endpoints: &[SocketAddr]) -> Vec<String> {
        let ip = structure::ip(self.family);
        let names: Vec<String> = endpoints.iter().map(|endpoint| self.endpoint(endpoint)).collect();
        let stay =
            |endpoint| format!("{ip} saddr @{} goto {}", self.clients(endpoint), self.endpoint(endpoint));
        let mut body: Vec<String> = endpoints.iter().map(stay).collect();
        body.push(structure::pick(&names));
        body
    }
}

impl fmt::Display for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Map::ServiceIps => f.write_str("service-ips"),
            Map::ServiceNodePorts => f.write_str("service-nodeports"),
            Map::UnservedIps => f.write_str("unserved-ips"),
            Map::UnservedNodePorts => f.write_str("unserved-nodeports"),
            Map::ClusterIps => f.write_str("cluster-ips"),
            Map::Hairpin => f.write_str("hairpin"),
            Map::Firewalled => f.write_str("firewalled"),
            Map::AllowedSources => f.write_str("allowed-sources"),
            Map::Endpoints(door, reach, index) => write!(f, "{}endpoints-{index}", prefix(*door, *reach)),
        }
    }
}

fn prefix(door: MatchBy, reach: Reach) -> &'static str {
    match (door, reach) {
        (MatchBy::Address, Reach::Cluster) => "",
        (MatchBy::Address, Reach::Local) => "local-",
        (MatchBy::NodePort, Reach::Cluster) => "nodeport-",
        (MatchBy::NodePort, Reach::Local) => "nodeport-local-",
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Ip(ip) => write!(f, "{ip}"),
            Key::Pair(ip) => write!(f, "{ip} . {ip}"),
            Key::Address(ip, protocol, port) => write!(f, "{ip} . {protocol} . {port}"),
            Key::Port(protocol, port) => write!(f, "{protocol} . {port}"),
            Key::Source(ip, protocol, port, source) => write!(f, "{ip} . {protocol} . {port} . {source}"),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Present => Ok(()),
            Value::Goto(chain) => write!(f, " : goto {chain}"),
            Value::Drop => f.write_str(" : drop"),
            Value::Target(endpoint) => write!(f, " : {} . {}", endpoint.ip(), endpoint.port()),
        }
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Chain::Refuse => f.write_str("refuse"),
            Chain::Pick(door, reach, count) => write!(f, "{}pick-{count}", prefix(*door, *reach)),
            Chain::Masquerade(door, count) => {
                write!(f, "{}masquerade-{count}", prefix(*door, Reach::Cluster))
            }
            Chain::Split(door, inside, outside) => {
                write!(f, "{}split-{inside}-{outside}", prefix(*door, Reach::Cluster))
            }
            Chain::Private(name) => f.write_str(name),
        }
    }
}
