//! The fixed part of the table, and the shared chains that verdicts lead to.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::{Chain, Map, MatchBy, Reach, prefix};
use crate::{Family, NodePorts};

/// What the table's rules depend on beside services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub table: String,
    pub family: Family,
    /// The cluster's pod addresses of this family.
    pub pod_cidrs: Vec<IpNet>,
    /// The packet mark that asks for masquerading; one bit, the one other proxies use.
    pub masquerade_mark: u32,
    pub node_ports: NodePorts,
}

/// Sets and maps by name with their declaration; chains by name with their rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Objects {
    pub sets: BTreeMap<String, Declaration>,
    pub chains: BTreeMap<String, Body>,
}

/// `set` or `map`, and what is between the braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Declaration {
    pub kind: &'static str,
    pub text: String,
}

/// The hook of a base chain, and the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Body {
    pub hook: Option<String>,
    pub rules: Vec<String>,
}

pub(super) fn ip(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

pub(super) fn address_type(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4_addr",
        Family::V6 => "ipv6_addr",
    }
}

/// The expression a frontend is looked up by.
fn lookup(family: Family, door: MatchBy) -> String {
    match door {
        MatchBy::Address => format!("{} daddr . meta l4proto . th dport", ip(family)),
        MatchBy::NodePort => "meta l4proto . th dport".into(),
    }
}

/// To one of these chains, each as likely as the others.
pub(super) fn pick(chains: &[String]) -> String {
    if let [only] = chains {
        return format!("goto {only}");
    }
    let verdicts: Vec<String> =
        chains.iter().enumerate().map(|(index, chain)| format!("{index} : goto {chain}")).collect();
    format!("numgen random mod {} vmap {{ {} }}", chains.len(), verdicts.join(", "))
}

pub(super) fn masquerade(then: &str) -> Vec<String> {
    vec!["jump mark-masquerade".into(), format!("goto {then}")]
}

/// Pods and the node itself are inside: any endpoint serves them. Everything else is outside.
pub(super) fn split(settings: &Settings, inside: Option<&str>, outside: Option<&str>) -> Vec<String> {
    let mut rules = Vec::new();
    if let Some(inside) = inside {
        if let Some(cidrs) = cidrs(&settings.pod_cidrs) {
            rules.push(format!("{} saddr {cidrs} goto {inside}", ip(settings.family)));
        }
        rules.push("fib saddr type local jump mark-masquerade".into());
        rules.push(format!("fib saddr type local goto {inside}"));
    }
    rules.push(outside.map_or("drop".into(), |outside| format!("goto {outside}")));
    rules
}

fn cidrs(all: &[IpNet]) -> Option<String> {
    let all: Vec<String> = all.iter().map(IpNet::to_string).collect();
    (!all.is_empty()).then(|| format!("{{ {} }}", all.join(", ")))
}

/// Everything that is in the table whatever the services.
pub(super) fn fixed(settings: &Settings) -> Objects {
    let mut objects = Objects::default();
    fixed_sets(settings, &mut objects);
    fixed_chains(settings, &mut objects);
    objects
}

fn fixed_sets(settings: &Settings, objects: &mut Objects) {
    let address = address_type(settings.family);
    let frontend = format!("{address} . inet_proto . inet_service");
    let mut set =
        |map: Map, kind, text: String| drop(objects.sets.insert(map.to_string(), Declaration { kind, text }));
    set(Map::ServiceIps, "map", format!("type {frontend} : verdict;"));
    set(Map::ServiceNodePorts, "map", "type inet_proto . inet_service : verdict;".into());
    set(Map::UnservedIps, "map", format!("type {frontend} : verdict;"));
    set(Map::UnservedNodePorts, "map", "type inet_proto . inet_service : verdict;".into());
    set(Map::ClusterIps, "set", format!("type {address};"));
    set(Map::Hairpin, "set", format!("type {address} . {address};"));
    set(Map::Firewalled, "set", format!("type {frontend};"));
    set(Map::AllowedSources, "set", format!("type {frontend} . {address}; flags interval;"));
}

/// Packets to the node's own addresses that node ports are served at; `None` where they are at none.
fn local_destination(settings: &Settings) -> Option<String> {
    let ip = ip(settings.family);
    let loopback = match settings.family {
        Family::V4 => "127.0.0.0/8",
        Family::V6 => "::1",
    };
    let local = format!("fib daddr type local {ip} daddr != {loopback}");
    match settings.node_ports.addresses(settings.family) {
        None => Some(local),
        Some(at) => cidrs(&at).map(|at| format!("{local} {ip} daddr {at}")),
    }
}

fn fixed_chains(settings: &Settings, objects: &mut Objects) {
    let ip = ip(settings.family);
    let by_address = lookup(settings.family, MatchBy::Address);
    let by_port = lookup(settings.family, MatchBy::NodePort);
    let local = local_destination(settings);
    let mark = format!("{:#x}", settings.masquerade_mark);

    let mut services = Vec::new();
    if let Some(cidrs) = cidrs(&settings.pod_cidrs) {
        // From elsewhere a pod's answer would not come back through this node.
        services.push(format!("{ip} daddr @cluster-ips {ip} saddr != {cidrs} jump mark-masquerade"));
    }
    services.push(format!("{by_address} vmap @service-ips"));
    services.extend(local.iter().map(|local| format!("{local} {by_port} vmap @service-nodeports")));

    let mut unserved = vec![format!("{by_address} vmap @unserved-ips")];
    unserved.extend(local.iter().map(|local| format!("{local} {by_port} vmap @unserved-nodeports")));
    // A port that the service does not have.
    unserved.push(format!("{ip} daddr @cluster-ips goto refuse"));

    let mut chain = |name: &str, hook: Option<&str>, rules: Vec<String>| {
        objects.chains.insert(name.into(), Body { hook: hook.map(String::from), rules });
    };
    chain("services", None, services);
    chain("mark-masquerade", None, vec![format!("meta mark set meta mark or {mark}")]);
    chain("refuse", None, vec!["reject".into()]);
    chain("unserved", None, unserved);
    let to_services = || vec!["jump services".to_string()];
    chain("nat-prerouting", Some("type nat hook prerouting priority -100;"), to_services());
    chain("nat-output", Some("type nat hook output priority -100;"), to_services());
    chain(
        "nat-postrouting",
        Some("type nat hook postrouting priority 100;"),
        vec![
            format!("ct status dnat {ip} saddr . {ip} daddr @hairpin masquerade fully-random"),
            format!("meta mark and {mark} != 0 meta mark set meta mark xor {mark} masquerade fully-random"),
        ],
    );
    // Before the rewriting, while the packet still shows where it was sent.
    chain(
        "firewall",
        Some("type filter hook prerouting priority -110;"),
        vec![format!(
            "ct state new {by_address} @firewalled {by_address} . {ip} saddr != @allowed-sources drop"
        )],
    );
    for hook in ["input", "forward", "output"] {
        let hooked = format!("type filter hook {hook} priority 0;");
        chain(&format!("filter-{hook}"), Some(&hooked), vec!["ct state new jump unserved".into()]);
    }
}

/// The shared chains that the used ones need, themselves included, with the maps they look into.
pub(super) fn shared<'a>(settings: &Settings, used: impl Iterator<Item = &'a Chain>) -> Objects {
    let mut objects = Objects::default();
    // How many endpoints a chain of each sort can have to pick from.
    let mut picks: BTreeSet<(MatchBy, Reach, u16)> = BTreeSet::new();
    let mut add = |chain: &Chain, rules: Vec<String>| {
        objects.chains.insert(chain.to_string(), Body { hook: None, rules });
    };
    for chain in used {
        match *chain {
            Chain::Pick(door, reach, count) => drop(picks.insert((door, reach, count))),
            Chain::Masquerade(door, count) => {
                picks.insert((door, Reach::Cluster, count));
                add(chain, masquerade(&Chain::Pick(door, Reach::Cluster, count).to_string()));
            }
            Chain::Split(door, inside, outside) => {
                let mut chain_of = |reach, count: u16| {
                    (count > 0).then(|| {
                        picks.insert((door, reach, count));
                        Chain::Pick(door, reach, count).to_string()
                    })
                };
                let (inside, outside) = (chain_of(Reach::Cluster, inside), chain_of(Reach::Local, outside));
                add(chain, split(settings, inside.as_deref(), outside.as_deref()));
            }
            Chain::Refuse | Chain::Private(_) => {}
        }
    }
    let mut depths: BTreeMap<(MatchBy, Reach), u16> = BTreeMap::new();
    for (door, reach, count) in picks {
        let names: Vec<String> = (0..count).map(|index| endpoint_chain(door, reach, index)).collect();
        objects.chains.insert(
            Chain::Pick(door, reach, count).to_string(),
            Body { hook: None, rules: vec![pick(&names)] },
        );
        let depth = depths.entry((door, reach)).or_default();
        *depth = count.max(*depth);
    }
    let (ip, address) = (ip(settings.family), address_type(settings.family));
    for ((door, reach), depth) in depths {
        let key = match door {
            MatchBy::Address => format!("{address} . inet_proto . inet_service"),
            MatchBy::NodePort => "inet_proto . inet_service".into(),
        };
        for index in 0..depth {
            let map = Map::Endpoints(door, reach, index).to_string();
            let rewrite = format!("dnat {ip} to {} map @{map}", lookup(settings.family, door));
            let text = format!("type {key} : {address} . inet_service;");
            objects.sets.insert(map, Declaration { kind: "map", text });
            objects
                .chains
                .insert(endpoint_chain(door, reach, index), Body { hook: None, rules: vec![rewrite] });
        }
    }
    objects
}

fn endpoint_chain(door: MatchBy, reach: Reach, index: u16) -> String {
    format!("{}endpoint-{index}", prefix(door, reach))
}
