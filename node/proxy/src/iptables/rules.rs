//! What one service adds: chains of its own, and rules in the chains that all services share.

use std::net::{IpAddr, SocketAddr};

use ferry_linux::net::names;
use ipnet::IpNet;

use super::{Chains, Kind, Settings};
use crate::{
    Family,
    service::{At, Frontend, ServicePort, Verdict},
};

/// A chain that services share: those of one network, or of one sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// Services whose address is in this network.
    Network(IpNet),
    NodePorts,
    /// This node's endpoints, to themselves: the answer must come back through the node.
    Hairpin,
    Firewall,
}

impl Group {
    /// The network of 256 addresses that an address is in.
    pub fn of(address: IpAddr) -> Self {
        let prefix = if address.is_ipv4() { 24 } else { 120 };
        Group::Network(IpNet::new(address, prefix).expect("both lengths fit their family").trunc())
    }

    pub fn chain(&self, kind: Kind, settings: &Settings) -> String {
        let name = match (self, kind) {
            (Group::Network(network), Kind::Nat) => format!("N-{}", names::hex(&network.to_string())),
            (Group::Network(network), Kind::Filter) => format!("U-{}", names::hex(&network.to_string())),
            (Group::NodePorts, Kind::Nat) => "NODEPORTS".into(),
            (Group::NodePorts, Kind::Filter) => "UNSERVEDPORTS".into(),
            (Group::Hairpin, _) => "HAIRPIN".into(),
            (Group::Firewall, _) => "FIREWALL".into(),
        };
        settings.chain(&name)
    }
}

/// A place in a shared chain, which one service at a time can have: what the rule matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    pub kind: Kind,
    pub group: Group,
    pub matched: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceRules {
    pub chains: Chains,
    /// Slots with the rest of their rule: where it leads.
    pub slots: Vec<(Slot, String)>,
}

/// The rules of a service, all its ports together.
pub fn rules_of(ports: &[ServicePort], settings: &Settings) -> ServiceRules {
    let mut rules = ServiceRules::default();
    for port in ports {
        let digest = names::hex(&format!("{} {}", port.name, port.protocol));
        Builder { port, digest, settings, rules: &mut rules }.add();
    }
    rules
}

struct Builder<'a> {
    port: &'a ServicePort,
    digest: String,
    settings: &'a Settings,
    rules: &'a mut ServiceRules,
}

impl Builder<'_> {
    fn add(&mut self) {
        for endpoint in &self.port.endpoints.local {
            let ip = endpoint.ip();
            self.slot(Kind::Nat, Group::Hairpin, format!("-s {ip} -d {ip}"), "-j MASQUERADE --random-fully");
        }
        for frontend in &self.port.frontends {
            let matched = matched(self.port, frontend);
            let group = match frontend.at {
                At::ClusterIp(ip) | At::ExternalIp(ip) => Group::of(ip),
                At::NodePort => Group::NodePorts,
            };
            let comment = format!("-m comment --comment \"{}\"", self.port.name);
            let unserved = |verdict: &str| {
                let slot = Slot { kind: Kind::Filter, group, matched: matched.clone() };
                (slot, format!("{comment} -j {verdict}"))
            };
            let port = self.port;
            let chain = match port.verdict(frontend) {
                Verdict::Reject => {
                    self.rules.slots.push(unserved("REJECT"));
                    continue;
                }
                Verdict::Drop => {
                    self.rules.slots.push(unserved("DROP"));
                    continue;
                }
                Verdict::To(endpoints) if endpoints == port.endpoints.cluster => self.cluster(endpoints),
                Verdict::To(endpoints) => {
                    let local = self.local(endpoints);
                    let rules = self.mark_outside().into_iter().chain([format!("-j {local}")]);
                    self.chain("I", rules.collect())
                }
                Verdict::Masqueraded(endpoints) => {
                    let then = self.cluster(endpoints);
                    let rules = vec![format!("-j {}", self.settings.chain("MARK")), format!("-j {then}")];
                    self.chain("M", rules)
                }
                Verdict::Split { inside, outside } => {
                    if outside.is_empty() {
                        // Dropping is not for the nat table: the mark of this is that nothing rewrites the
                        // packet.
                        self.rules.slots.push(unserved("DROP"));
                    }
                    self.split(inside, outside)
                }
            };
            self.slot(Kind::Nat, group, matched, format!("{comment} -j {chain}"));
            self.firewall(frontend);
        }
    }

    /// Any endpoint of the cluster. What comes from outside takes the node's address: its answer would not come
    /// back this way.
    fn cluster(&mut self, endpoints: &[SocketAddr]) -> String {
        let mut rules = self.mark_outside();
        rules.extend(self.pick(endpoints));
        self.chain("S", rules)
    }

    /// This node's endpoints; the client's address stays.
    fn local(&mut self, endpoints: &[SocketAddr]) -> String {
        let rules = self.pick(endpoints);
        self.chain("L", rules)
    }

    fn mark_outside(&self) -> Vec<String> {
        let mark = self.settings.chain("MARK");
        let cidrs: Vec<IpNet> = self.settings.pod_cidrs().collect();
        match &cidrs[..] {
            [] => vec![],
            [cidr] => vec![format!("! -s {cidr} -j {mark}")],
            _ => vec![format!("-j {}", self.settings.chain("OUTSIDE"))],
        }
    }

    /// One of these endpoints: the one the client has, or any.
    fn pick(&mut self, endpoints: &[SocketAddr]) -> Vec<String> {
        let protocol = self.port.protocol;
        let mut stay = Vec::new();
        let mut choose = Vec::new();
        for (index, endpoint) in endpoints.iter().enumerate() {
            let rewrite = match self.port.affinity {
                Some(seconds) => {
                    let chain = self.remembering(endpoint);
                    stay.push(format!(
                        "-m recent --name {chain} --rcheck --seconds {seconds} --reap --rsource -j {chain}"
                    ));
                    format!("-j {chain}")
                }
                None => format!("-p {protocol} -j DNAT --to-destination {endpoint}"),
            };
            let left = endpoints.len() - index;
            choose.push(if left == 1 {
                rewrite
            } else {
                let probability = 1.0 / left as f64;
                format!("-m statistic --mode random --probability {probability:.10} {rewrite}")
            });
        }
        stay.extend(choose);
        stay
    }

    /// To this endpoint, whose client is remembered.
    fn remembering(&mut self, endpoint: &SocketAddr) -> String {
        let name = format!("E-{}", names::hex(&format!("{} {endpoint}", self.digest)));
        let full = self.settings.chain(&name);
        let rule = format!(
            "-m recent --name {full} --set --rsource -p {} -j DNAT --to-destination {endpoint}",
            self.port.protocol
        );
        self.rules.chains.insert((Kind::Nat, full.clone()), vec![rule]);
        full
    }

    fn split(&mut self, inside: &[SocketAddr], outside: &[SocketAddr]) -> String {
        let mut rules = Vec::new();
        if !inside.is_empty() {
            let inside = self.cluster(inside);
            rules.extend(self.settings.pod_cidrs().map(|cidr| format!("-s {cidr} -j {inside}")));
            let mark = self.settings.chain("MARK");
            rules.push(format!("-m addrtype --src-type LOCAL -j {mark}"));
            rules.push(format!("-m addrtype --src-type LOCAL -j {inside}"));
        }
        if !outside.is_empty() {
            let outside = self.local(outside);
            rules.push(format!("-j {outside}"));
        }
        self.chain("X", rules)
    }

    /// Sources are checked after the rewriting, by where the packet was first sent.
    fn firewall(&mut self, frontend: &Frontend) {
        let At::ExternalIp(ip) = frontend.at else { return };
        if frontend.sources.is_empty() {
            return;
        }
        let mut rules: Vec<String> =
            frontend.sources.iter().map(|range| format!("-s {range} -j RETURN")).collect();
        rules.push("-j DROP".into());
        let chain = self.settings.chain(&format!("F-{}", self.digest));
        self.rules.chains.insert((Kind::Filter, chain.clone()), rules);
        let matched = format!(
            "-p {} -m conntrack --ctorigdst {ip} --ctorigdstport {}",
            self.port.protocol, frontend.port
        );
        self.slot(Kind::Filter, Group::Firewall, matched, format!("-j {chain}"));
    }

    fn chain(&mut self, letter: &str, rules: Vec<String>) -> String {
        let full = self.settings.chain(&format!("{letter}-{}", self.digest));
        self.rules.chains.insert((Kind::Nat, full.clone()), rules);
        full
    }

    fn slot(&mut self, kind: Kind, group: Group, matched: String, rest: impl Into<String>) {
        self.rules.slots.push((Slot { kind, group, matched }, rest.into()));
    }
}

fn matched(port: &ServicePort, frontend: &Frontend) -> String {
    let to = match frontend.at {
        At::ClusterIp(ip) | At::ExternalIp(ip) => format!("-d {ip} "),
        At::NodePort => String::new(),
    };
    format!("{to}-p {} --dport {}", port.protocol, frontend.port)
}

/// The chains that are there whatever the services.
pub(super) fn fixed(settings: &Settings) -> Chains {
    let mark = format!("{:#x}", settings.masquerade_mark);
    let mark_chain = settings.chain("MARK");
    let mut outside: Vec<String> = settings.pod_cidrs().map(|cidr| format!("-s {cidr} -j RETURN")).collect();
    outside.push(format!("-j {mark_chain}"));
    let postrouting = vec![
        format!("-m conntrack --ctstate DNAT -j {}", settings.chain("HAIRPIN")),
        format!("-m mark ! --mark {mark}/{mark} -j RETURN"),
        format!("-j MARK --xor-mark {mark}"),
        "-j MASQUERADE --random-fully".into(),
    ];
    let mut chains = Chains::from([
        ((Kind::Nat, mark_chain), vec![format!("-j MARK --or-mark {mark}")]),
        ((Kind::Nat, settings.chain("OUTSIDE")), outside),
        ((Kind::Nat, settings.chain("POSTROUTING")), postrouting),
    ]);
    if settings.node_ports.on_loopback(settings.family) {
        // What is sent to a loopback address from elsewhere is let in by `route_localnet`, and must not be
        // (CVE-2020-8558).
        let from_elsewhere =
            "-d 127.0.0.0/8 ! -s 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT";
        chains.insert((Kind::Filter, settings.chain("LOOPBACK")), vec![format!("{from_elsewhere} -j DROP")]);
    }
    chains
}

/// The first chain of each table: to the networks that have services, then to the node ports.
pub(super) fn entrance(
    kind: Kind,
    networks: impl Iterator<Item = IpNet>,
    settings: &Settings,
) -> ((Kind, String), Vec<String>) {
    let name = settings.chain(if kind == Kind::Nat { "SERVICES" } else { "UNSERVED" });
    let mut rules: Vec<String> = networks
        .map(|network| format!("-d {network} -j {}", Group::Network(network).chain(kind, settings)))
        .collect();
    let node_ports = Group::NodePorts.chain(kind, settings);
    let loopback = match settings.family {
        _ if settings.node_ports.on_loopback(settings.family) => "",
        Family::V4 => "! -d 127.0.0.0/8 ",
        Family::V6 => "! -d ::1/128 ",
    };
    match settings.node_ports.addresses(settings.family) {
        None => rules.push(format!("{loopback}-m addrtype --dst-type LOCAL -j {node_ports}")),
        Some(addresses) => rules.extend(
            addresses
                .into_iter()
                .map(|cidr| format!("-d {cidr} -m addrtype --dst-type LOCAL -j {node_ports}")),
        ),
    }
    ((kind, name), rules)
}
