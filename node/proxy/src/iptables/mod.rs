//! Services as iptables chains, for hosts without nftables. The same frontends lead to the same endpoints.
//!
//! ```text
//! PREROUTING, OUTPUT ─► SERVICES ─► N-…, P-… (a network's services: pick and rewrite)
//!                          │          └─► S-… (what a service of its own needs: affinity, policies)
//!                          └──────► NODEPORTS ─► M-… (masquerade), X-… (inside or outside)
//! POSTROUTING ─► POSTROUTING' ─► HAIRPIN
//! INPUT, FORWARD, OUTPUT ─► UNSERVED ─► N-…, FIREWALL
//! ```
//!
//! iptables has no maps: a packet is compared with one rule after the other. So services are gathered by the
//! network their address is in (256 addresses, or 64 where there are many), and a packet passes one rule for each
//! network and one for each service in its own: with ten thousand services about 80 instead of ten thousand. How they
//! share rules there is told in [`networks`].
//!
//! Only chains that differ are written; `iptables-restore --noflush` replaces each as a whole, and all of a table in
//! one transaction of the kernel.

mod networks;
mod rules;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use ferry_linux::net::names;

use crate::{Family, Node, NodePorts};

pub use rules::{Group, ServiceRules, Slot, Target, rules_of};
pub use table::Table;

/// The kernel's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Filter,
    Nat,
}

impl Kind {
    pub const ALL: [Kind; 2] = [Kind::Filter, Kind::Nat];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Filter => "filter",
            Kind::Nat => "nat",
        }
    }
}

/// Chains by table and name, each with its rules.
pub type Chains = BTreeMap<(Kind, String), Vec<String>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The beginning of all our chains' names, derived from the cluster's: `FERRY-1a2b3c`.
    pub prefix: String,
    pub family: Family,
    pub node: Node,
    pub masquerade_mark: u32,
    pub node_ports: NodePorts,
}

impl Settings {
    pub fn new(
        cluster: &str,
        family: Family,
        node: Node,
        masquerade_mark: u32,
        node_ports: NodePorts,
    ) -> Self {
        let prefix = format!("FERRY-{}", &names::hex(cluster)[..6]);
        Self { prefix, family, node, masquerade_mark, node_ports }
    }

    /// A chain's name fits the kernel's 28 bytes: the prefix has 12, a digest 16 less what is cut.
    fn chain(&self, name: &str) -> String {
        let mut full = format!("{}-{name}", self.prefix);
        full.truncate(28);
        full
    }

    fn pod_cidrs(&self) -> impl Iterator<Item = ipnet::IpNet> {
        let cidrs = self.node.pod_cidrs.iter();
        cidrs.copied().filter(|cidr| Family::of(cidr.addr()) == self.family)
    }

    /// Marks what does not come from a pod.
    fn mark_outside(&self) -> Vec<String> {
        let mark = self.chain("MARK");
        let cidrs: Vec<ipnet::IpNet> = self.pod_cidrs().collect();
        match &cidrs[..] {
            [] => vec![],
            [cidr] => vec![format!("! -s {cidr} -j {mark}")],
            _ => vec![format!("-j {}", self.chain("OUTSIDE"))],
        }
    }
}

/// The jumps from the built-in chains to ours.
pub fn hooks(settings: &Settings) -> Vec<(Kind, &'static str, String)> {
    let prefix = &settings.prefix;
    let to = |chain: &str| format!("-j {prefix}-{chain}");
    let new = |chain: &str| format!("-m conntrack --ctstate NEW -j {prefix}-{chain}");
    let mut hooks = vec![
        (Kind::Nat, "PREROUTING", to("SERVICES")),
        (Kind::Nat, "OUTPUT", to("SERVICES")),
        (Kind::Nat, "POSTROUTING", to("POSTROUTING")),
        (Kind::Filter, "INPUT", new("UNSERVED")),
        (Kind::Filter, "FORWARD", new("UNSERVED")),
        (Kind::Filter, "OUTPUT", new("UNSERVED")),
        (Kind::Filter, "INPUT", new("FIREWALL")),
        (Kind::Filter, "FORWARD", new("FIREWALL")),
    ];
    if settings.node_ports.on_loopback(settings.family) {
        hooks.push((Kind::Filter, "INPUT", to("LOOPBACK")));
    }
    hooks
}

/// The input of `iptables-restore` from one state to another; empty if nothing differs.
pub fn difference(before: &Chains, after: &Chains) -> String {
    let mut script = String::new();
    for kind in Kind::ALL {
        let changed: Vec<(&String, &Vec<String>)> = after
            .iter()
            .filter(|(key, rules)| key.0 == kind && before.get(*key) != Some(*rules))
            .map(|((_, name), rules)| (name, rules))
            .collect();
        let gone: Vec<&String> = before
            .keys()
            .filter(|key| key.0 == kind && !after.contains_key(*key))
            .map(|(_, name)| name)
            .collect();
        if changed.is_empty() && gone.is_empty() {
            continue;
        }
        script.push_str(&format!("*{}\n", kind.name()));
        // Declaring a chain makes it, or empties it.
        for name in changed.iter().map(|(name, _)| *name).chain(gone.iter().copied()) {
            script.push_str(&format!(":{name} - [0:0]\n"));
        }
        for (name, rules) in &changed {
            for rule in *rules {
                script.push_str(&format!("-A {name} {rule}\n"));
            }
        }
        for name in &gone {
            script.push_str(&format!("-X {name}\n"));
        }
        script.push_str("COMMIT\n");
    }
    script
}

/// Our chains in what `iptables-save` says of a table.
pub fn saved_chains<'a>(settings: &Settings, saved: &'a str) -> Vec<&'a str> {
    let own = format!("{}-", settings.prefix);
    let names = saved.lines().filter_map(|line| line.strip_prefix(':')?.split_whitespace().next());
    names.filter(|chain| chain.starts_with(&own)).collect()
}

/// Whether our rules keep other hosts from the loopback addresses, which somebody opened for node ports.
pub fn guards_loopback(settings: &Settings, saved: &str) -> bool {
    saved_chains(settings, saved).contains(&settings.chain("LOOPBACK").as_str())
}

/// The input that takes our hooks and all our chains out, from what `iptables-save` says of a table.
pub fn removal(settings: &Settings, kind: Kind, saved: &str) -> String {
    let own = format!("{}-", settings.prefix);
    let mut script = format!("*{}\n", kind.name());
    let chains = saved_chains(settings, saved);
    for chain in &chains {
        script.push_str(&format!(":{chain} - [0:0]\n"));
    }
    for line in saved.lines() {
        let Some(rule) = line.strip_prefix("-A ") else { continue };
        let from_ours = rule.starts_with(&own);
        if !from_ours && rule.split_whitespace().any(|word| word.starts_with(&own)) {
            script.push_str(&format!("-D {rule}\n"));
        }
    }
    for chain in &chains {
        script.push_str(&format!("-X {chain}\n"));
    }
    script + "COMMIT\n"
}

/// The hooks that `iptables-save`'s output lacks, as input for `iptables-restore`. They go first: what
/// comes before could accept a packet that is meant for a service.
pub fn missing_hooks(settings: &Settings, kind: Kind, saved: &str) -> String {
    let mut lines = String::new();
    for (of, chain, rule) in hooks(settings) {
        if of == kind && !saved.lines().any(|line| line == format!("-A {chain} {rule}")) {
            lines.push_str(&format!("-I {chain} {rule}\n"));
        }
    }
    if lines.is_empty() { lines } else { format!("*{}\n{lines}COMMIT\n", kind.name()) }
}
