//! Services as iptables chains, for hosts without nftables. The same frontends lead to the same
//! endpoints; a packet's cost grows with the number of services, as iptables has it.
//!
//! ```text
//! PREROUTING, OUTPUT ─► SERVICES ─► S-… (pick) ─► E-… (rewrite)
//!                          └──────► NODEPORTS ─► M-… (masquerade), X-… (inside or outside)
//! POSTROUTING ─► POSTROUTING'       INPUT, FORWARD, OUTPUT ─► UNSERVED, FIREWALL
//! ```
//!
//! Only chains that differ are written; `iptables-restore --noflush` replaces each as a whole.

mod chains;

use std::collections::BTreeMap;

use ferry_linux::net::names;

use crate::{Family, Node, service::ServicePort};

pub use chains::Rules;

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
}

impl Settings {
    pub fn new(cluster: &str, family: Family, node: Node, masquerade_mark: u32) -> Self {
        Self { prefix: format!("FERRY-{}", &names::hex(cluster)[..6]), family, node, masquerade_mark }
    }
}

/// All chains for these services, whose order is that of precedence. Pure.
pub fn chains<'a>(services: impl Iterator<Item = &'a [ServicePort]>, settings: &Settings) -> Chains {
    let mut rules = Rules::new(settings);
    for port in services.flatten() {
        rules.add(port);
    }
    rules.finish()
}

/// The jumps from the built-in chains to ours.
pub fn hooks(settings: &Settings) -> Vec<(Kind, &'static str, String)> {
    let prefix = &settings.prefix;
    let to = |chain: &str| format!("-j {prefix}-{chain}");
    let new = |chain: &str| format!("-m conntrack --ctstate NEW -j {prefix}-{chain}");
    vec![
        (Kind::Nat, "PREROUTING", to("SERVICES")),
        (Kind::Nat, "OUTPUT", to("SERVICES")),
        (Kind::Nat, "POSTROUTING", to("POSTROUTING")),
        (Kind::Filter, "INPUT", new("UNSERVED")),
        (Kind::Filter, "FORWARD", new("UNSERVED")),
        (Kind::Filter, "OUTPUT", new("UNSERVED")),
        (Kind::Filter, "INPUT", new("FIREWALL")),
        (Kind::Filter, "FORWARD", new("FIREWALL")),
    ]
}

/// The input of `iptables-restore` from one state to another; empty if nothing differs.
pub fn difference(before: &Chains, after: &Chains) -> String {
    let mut script = String::new();
    for kind in Kind::ALL {
        let of_kind = |chains: &Chains| -> Vec<(String, Vec<String>)> {
            let own = chains.iter().filter(|((of, _), _)| *of == kind);
            own.map(|((_, name), rules)| (name.clone(), rules.clone())).collect()
        };
        let changed: Vec<(String, Vec<String>)> = of_kind(after)
            .into_iter()
            .filter(|(name, rules)| before.get(&(kind, name.clone())) != Some(rules))
            .collect();
        let gone: Vec<String> = of_kind(before)
            .into_iter()
            .map(|(name, _)| name)
            .filter(|name| !after.contains_key(&(kind, name.clone())))
            .collect();
        if changed.is_empty() && gone.is_empty() {
            continue;
        }
        script.push_str(&format!("*{}\n", kind.name()));
        // Declaring a chain makes it, or empties it.
        for name in changed.iter().map(|(name, _)| name).chain(&gone) {
            script.push_str(&format!(":{name} - [0:0]\n"));
        }
        for (name, rules) in &changed {
            for rule in rules {
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

/// The input that takes our hooks and all our chains out, from what `iptables-save` says of a table.
pub fn removal(settings: &Settings, kind: Kind, saved: &str) -> String {
    let own = format!("{}-", settings.prefix);
    let mut script = format!("*{}\n", kind.name());
    let chains: Vec<&str> = saved
        .lines()
        .filter_map(|line| line.strip_prefix(':')?.split_whitespace().next())
        .filter(|chain| chain.starts_with(&own))
        .collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_ours_is_removed() {
        let settings = Settings::new("test", Family::V4, Node::default(), 0x4000);
        let p = settings.prefix.clone();
        let saved = format!(
            "*nat\n:PREROUTING ACCEPT [0:0]\n:THEIRS - [0:0]\n:{p}-SERVICES - [0:0]\n-A PREROUTING -j THEIRS\n\
             -A PREROUTING -j {p}-SERVICES\n-A {p}-SERVICES -j {p}-NODEPORTS\nCOMMIT\n"
        );
        assert_eq!(
            removal(&settings, Kind::Nat, &saved),
            format!("*nat\n:{p}-SERVICES - [0:0]\n-D PREROUTING -j {p}-SERVICES\n-X {p}-SERVICES\nCOMMIT\n")
        );
        let missing = missing_hooks(&settings, Kind::Nat, &saved);
        assert!(!missing.contains("PREROUTING -j"), "{missing}");
        assert!(missing.contains(&format!("-I OUTPUT -j {p}-SERVICES\n")), "{missing}");
    }
}
