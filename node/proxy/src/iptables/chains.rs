//! The rules of each chain.

use std::net::SocketAddr;

use ferry_linux::net::names;

use super::{Chains, Kind, Settings};
use crate::{
    Family,
    service::{At, Frontend, ServicePort, Verdict},
};

/// The chains as they grow, service by service.
pub struct Rules<'a> {
    settings: &'a Settings,
    chains: Chains,
    services: Vec<String>,
    node_ports: Vec<String>,
    unserved: Vec<String>,
    firewall: Vec<String>,
    /// Frontends seen: of two services that ask for the same, the first has it.
    taken: std::collections::HashSet<String>,
}

impl<'a> Rules<'a> {
    pub fn new(settings: &'a Settings) -> Self {
        Self {
            settings,
            chains: Chains::new(),
            services: Vec::new(),
            node_ports: Vec::new(),
            unserved: Vec::new(),
            firewall: Vec::new(),
            taken: std::collections::HashSet::new(),
        }
    }

    pub fn add(&mut self, port: &ServicePort) {
        let digest = names::hex(&format!("{} {}", port.name, port.protocol));
        for frontend in &port.frontends {
            let matched = matched(port, frontend);
            if !self.taken.insert(matched.clone()) {
                continue;
            }
            let comment = format!("-m comment --comment \"{}\"", port.name);
            let chain = match port.verdict(frontend) {
                Verdict::Reject => {
                    self.unserved.push(format!("{}{matched} {comment} -j REJECT", self.local(frontend)));
                    continue;
                }
                Verdict::Drop => {
                    self.unserved.push(format!("{}{matched} {comment} -j DROP", self.local(frontend)));
                    continue;
                }
                Verdict::To(endpoints) => self.pick(port, &digest, endpoints),
                Verdict::Masqueraded(endpoints) => {
                    let then = self.pick(port, &digest, endpoints);
                    let rules = vec![format!("-j {}", self.name("MARK")), format!("-j {then}")];
                    self.put(&format!("M-{digest}"), rules)
                }
                Verdict::Split { inside, outside } => self.split(port, &digest, inside, outside),
            };
            match frontend.at {
                At::ClusterIp(_) => {
                    if !self.pod_cidrs().is_empty() {
                        self.services.push(format!("{matched} {comment} -j {}", self.name("OUTSIDE")));
                    }
                    self.services.push(format!("{matched} {comment} -j {chain}"));
                }
                At::ExternalIp(_) => self.services.push(format!("{matched} {comment} -j {chain}")),
                At::NodePort => self.node_ports.push(format!("{matched} {comment} -j {chain}")),
            }
            self.add_firewall(port, frontend, &digest);
        }
    }

    pub fn finish(mut self) -> Chains {
        let mark = format!("{:#x}", self.settings.masquerade_mark);
        let loopback = if self.settings.family == Family::V4 { "127.0.0.0/8" } else { "::1/128" };
        let node_ports = self.name("NODEPORTS");
        self.services.push(format!("! -d {loopback} -m addrtype --dst-type LOCAL -j {node_ports}"));
        let mut outside: Vec<String> =
            self.pod_cidrs().iter().map(|cidr| format!("-s {cidr} -j RETURN")).collect();
        outside.push(format!("-j {}", self.name("MARK")));
        let postrouting = vec![
            format!("-m mark ! --mark {mark}/{mark} -j RETURN"),
            format!("-j MARK --xor-mark {mark}"),
            "-j MASQUERADE --random-fully".into(),
        ];
        let (services, node_ports) =
            (std::mem::take(&mut self.services), std::mem::take(&mut self.node_ports));
        let (unserved, firewall) = (std::mem::take(&mut self.unserved), std::mem::take(&mut self.firewall));
        self.put("OUTSIDE", outside);
        self.put("MARK", vec![format!("-j MARK --or-mark {mark}")]);
        self.put("SERVICES", services);
        self.put("NODEPORTS", node_ports);
        self.put("POSTROUTING", postrouting);
        self.put_filter("UNSERVED", unserved);
        self.put_filter("FIREWALL", firewall);
        self.chains
    }

    /// One of these endpoints: the one the client has, or any.
    fn pick(&mut self, port: &ServicePort, digest: &str, endpoints: &[SocketAddr]) -> String {
        let is_cluster = endpoints == port.endpoints.cluster;
        let mut stay = Vec::new();
        let mut choose = Vec::new();
        for (index, endpoint) in endpoints.iter().enumerate() {
            let chain = self.endpoint(port, digest, endpoint);
            if let Some(seconds) = port.affinity {
                stay.push(format!(
                    "-m recent --name {chain} --rcheck --seconds {seconds} --reap --rsource -j {chain}"
                ));
            }
            let left = endpoints.len() - index;
            choose.push(if left == 1 {
                format!("-j {chain}")
            } else {
                let probability = 1.0 / left as f64;
                format!("-m statistic --mode random --probability {probability:.10} -j {chain}")
            });
        }
        stay.extend(choose);
        self.put(&format!("{}-{digest}", if is_cluster { "S" } else { "L" }), stay)
    }

    fn endpoint(&mut self, port: &ServicePort, digest: &str, endpoint: &SocketAddr) -> String {
        let name = format!("E-{}", names::hex(&format!("{digest} {endpoint}")));
        let full = self.name(&name);
        let remember = port.affinity.map(|_| format!("-m recent --name {full} --set --rsource "));
        let rules = vec![
            // To itself: the answer must come back through the node.
            format!("-s {} -j {}", endpoint.ip(), self.name("MARK")),
            format!(
                "{}-p {} -j DNAT --to-destination {endpoint}",
                remember.unwrap_or_default(),
                port.protocol
            ),
        ];
        self.put(&name, rules)
    }

    fn split(
        &mut self,
        port: &ServicePort,
        digest: &str,
        inside: &[SocketAddr],
        outside: &[SocketAddr],
    ) -> String {
        let mut rules = Vec::new();
        if !inside.is_empty() {
            let inside = self.pick(port, digest, inside);
            for cidr in self.pod_cidrs() {
                rules.push(format!("-s {cidr} -j {inside}"));
            }
            rules.push(format!("-m addrtype --src-type LOCAL -j {}", self.name("MARK")));
            rules.push(format!("-m addrtype --src-type LOCAL -j {inside}"));
        }
        if outside.is_empty() {
            // Dropping is not for the nat table: the mark of this is that nothing rewrites the packet.
            let frontends: Vec<Frontend> = port.frontends.clone();
            for frontend in frontends.iter().filter(|f| matches!(port.verdict(f), Verdict::Split { .. })) {
                let rule = format!("{}{} -j DROP", self.local(frontend), matched(port, frontend));
                if !self.unserved.contains(&rule) {
                    self.unserved.push(rule);
                }
            }
        } else {
            let outside = self.pick(port, digest, outside);
            rules.push(format!("-j {outside}"));
        }
        self.put(&format!("X-{digest}"), rules)
    }

    /// Sources are checked after the rewriting, by where the packet was first sent.
    fn add_firewall(&mut self, port: &ServicePort, frontend: &Frontend, digest: &str) {
        let At::ExternalIp(ip) = frontend.at else { return };
        if frontend.sources.is_empty() {
            return;
        }
        let mut rules: Vec<String> =
            frontend.sources.iter().map(|range| format!("-s {range} -j RETURN")).collect();
        rules.push("-j DROP".into());
        let chain = self.put_filter(&format!("F-{digest}"), rules);
        self.firewall.push(format!(
            "-p {} -m conntrack --ctorigdst {ip} --ctorigdstport {} -j {chain}",
            port.protocol, frontend.port
        ));
    }

    fn local(&self, frontend: &Frontend) -> &'static str {
        if frontend.at == At::NodePort { "-m addrtype --dst-type LOCAL " } else { "" }
    }

    fn pod_cidrs(&self) -> Vec<ipnet::IpNet> {
        let cidrs = self.settings.node.pod_cidrs.iter();
        cidrs.copied().filter(|cidr| Family::of(cidr.addr()) == self.settings.family).collect()
    }

    /// A chain's name fits the kernel's 28 bytes: the prefix has 12, a digest 16 less what is cut.
    fn name(&self, name: &str) -> String {
        let mut full = format!("{}-{name}", self.settings.prefix);
        full.truncate(28);
        full
    }

    fn put(&mut self, name: &str, rules: Vec<String>) -> String {
        let full = self.name(name);
        self.chains.insert((Kind::Nat, full.clone()), rules);
        full
    }

    fn put_filter(&mut self, name: &str, rules: Vec<String>) -> String {
        let full = self.name(name);
        self.chains.insert((Kind::Filter, full.clone()), rules);
        full
    }
}

fn matched(port: &ServicePort, frontend: &Frontend) -> String {
    let to = match frontend.at {
        At::ClusterIp(ip) | At::ExternalIp(ip) => format!("-d {ip} "),
        At::NodePort => String::new(),
    };
    format!("{to}-p {} --dport {}", port.protocol, frontend.port)
}
