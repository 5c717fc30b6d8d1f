//! What one service adds: chains of its own, and rules in the chains that all services share.

use std::net::SocketAddr;

use ferry_linux::net::names;
use ipnet::IpNet;

use super::{Chains, Kind, Settings, networks};
use crate::{
    Family,
    service::{At, Frontend, Policy, ServicePort, Verdict},
};

/// Services that share chains: those of one network, or of one sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// Services whose address is in this part of a network.
    Part(IpNet),
    NodePorts,
    /// This node's endpoints, to themselves: the answer must come back through the node.
    Hairpin,
    Firewall,
}

/// A place among those that share a chain, which one service at a time can have: what the rule matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    pub kind: Kind,
    pub group: Group,
    pub matched: String,
}

/// Where a slot leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The rest of the rule.
    Rule(String),
    /// To any of these, with nothing else to it: no affinity, no policy.
    Endpoints(Vec<SocketAddr>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceRules {
    pub chains: Chains,
    pub slots: Vec<(Slot, Target)>,
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
            let masquerade = "-j MASQUERADE --random-fully".to_owned();
            self.slot(Kind::Nat, Group::Hairpin, format!("-s {ip} -d {ip}"), Target::Rule(masquerade));
        }
        for frontend in &self.port.frontends {
            let matched = matched(self.port, frontend);
            let group = match frontend.at {
                At::ClusterIp(ip) | At::ExternalIp(ip) => Group::Part(networks::part_of(ip)),
                At::NodePort => Group::NodePorts,
            };
            let comment = format!("-m comment --comment \"{}\"", self.port.name);
            let unserved = |verdict: &str| {
                let slot = Slot { kind: Kind::Filter, group, matched: matched.clone() };
                (slot, Target::Rule(format!("{comment} -j {verdict}")))
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
                Verdict::To(endpoints) if self.is_plain() => {
                    self.slot(Kind::Nat, group, matched, Target::Endpoints(endpoints.to_vec()));
                    continue;
                }
                Verdict::To(endpoints) if endpoints == port.endpoints.cluster => self.cluster(endpoints),
                Verdict::To(endpoints) => {
                    let local = self.local(endpoints);
                    let rules = self.settings.mark_outside().into_iter().chain([format!("-j {local}")]);
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
            self.slot(Kind::Nat, group, matched, Target::Rule(format!("{comment} -j {chain}")));
            self.firewall(frontend);
        }
    }

    /// Whether it can share its chance with others. If it has more than its own address, a chain of its own is less:
    /// all lead there.
    fn is_plain(&self) -> bool {
        let ServicePort { endpoints, affinity, frontends, .. } = self.port;
        let at_own_address = |frontend: &Frontend| {
            matches!(frontend.at, At::ClusterIp(_)) && frontend.policy == Policy::InternalCluster
        };
        affinity.is_none()
            && endpoints.cluster.len() <= networks::MOST_CHOICES
            && frontends.iter().all(at_own_address)
    }

    /// Any endpoint of the cluster. What comes from outside takes the node's address: its answer would not come
    /// back this way.
    fn cluster(&mut self, endpoints: &[SocketAddr]) -> String {
        let mut rules = self.settings.mark_outside();
        rules.extend(self.pick(endpoints));
        self.chain("S", rules)
    }

    /// This node's endpoints; the client's address stays.
    fn local(&mut self, endpoints: &[SocketAddr]) -> String {
        let rules = self.pick(endpoints);
        self.chain("L", rules)
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
            choose.push(format!("{}{rewrite}", networks::chance(endpoints.len() - index)));
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
        self.slot(Kind::Filter, Group::Firewall, matched, Target::Rule(format!("-j {chain}")));
    }

    fn chain(&mut self, letter: &str, rules: Vec<String>) -> String {
        let full = self.settings.chain(&format!("{letter}-{}", self.digest));
        self.rules.chains.insert((Kind::Nat, full.clone()), rules);
        full
    }

    fn slot(&mut self, kind: Kind, group: Group, matched: String, target: Target) {
        self.rules.slots.push((Slot { kind, group, matched }, target));
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
    networks: impl IntoIterator<Item = IpNet>,
    settings: &Settings,
) -> ((Kind, String), Vec<String>) {
    let name = settings.chain(if kind == Kind::Nat { "SERVICES" } else { "UNSERVED" });
    let mut rules: Vec<String> = networks
        .into_iter()
        .map(|network| format!("-d {network} -j {}", networks::chain_of(network, settings)))
        .collect();
    let node_ports = settings.chain(node_ports_chain(kind));
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

pub(super) fn node_ports_chain(kind: Kind) -> &'static str {
    match kind {
        Kind::Nat => "NODEPORTS",
        Kind::Filter => "UNSERVEDPORTS",
    }
}
