//! The table that enforces what was decided, as one script: one transaction of the kernel.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::IpAddr;

use ferry_linux::net::names;
use ipnet::IpNet;

use super::decide::{Allowed, Peers, PodRules, Ports};

#[derive(Clone, Copy)]
enum Direction {
    Ingress,
    Egress,
}

pub fn table(cluster: &str) -> String {
    names::table(cluster, "policies")
}

/// Replaces the table; without rules it is gone.
pub fn script(cluster: &str, rules: &[PodRules]) -> String {
    let table = table(cluster);
    let mut script = format!("add table inet {table}\ndelete table inet {table}\n");
    if rules.is_empty() {
        return script;
    }
    let mut line = |text: std::fmt::Arguments| {
        script.write_fmt(text).expect("writing to a string does not fail");
        script.push('\n');
    };
    line(format_args!("add table inet {table}"));
    line(format_args!(
        "add chain inet {table} forward {{ type filter hook forward priority 0; policy accept; }}"
    ));
    line(format_args!("add rule inet {table} forward ct state established,related accept"));
    // Who sends is asked first, then who receives.
    for (direction, side) in [(Direction::Egress, "saddr"), (Direction::Ingress, "daddr")] {
        for (ip, kind) in [("ip", "ipv4_addr"), ("ip6", "ipv6_addr")] {
            let map = map(direction, ip);
            line(format_args!("add map inet {table} {map} {{ type {kind} : verdict; }}"));
            line(format_args!("add rule inet {table} forward {ip} {side} vmap @{map}"));
        }
    }
    for pod in rules {
        for (direction, allowed) in [(Direction::Ingress, &pod.ingress), (Direction::Egress, &pod.egress)] {
            let Some(allowed) = allowed else { continue };
            let chain = chain(direction, &pod.name);
            line(format_args!("add chain inet {table} {chain} {{ comment \"{}\"; }}", pod.name));
            let (other, _) = sides(direction);
            for address in &pod.addresses {
                // Nobody is kept from themselves, by whatever way they come back.
                line(format_args!("add rule inet {table} {chain} {} {other} {address} return", ip(*address)));
            }
            for rule in allowed.iter().flat_map(|allowed| matches(direction, allowed)) {
                line(format_args!("add rule inet {table} {chain} {rule}return"));
            }
            line(format_args!("add rule inet {table} {chain} drop"));
            for address in &pod.addresses {
                let map = map(direction, ip(*address));
                line(format_args!("add element inet {table} {map} {{ {address} : jump {chain} }}"));
            }
        }
    }
    script
}

/// One match for each family the peers are of; each ends with a space.
fn matches(direction: Direction, allowed: &Allowed) -> Vec<String> {
    let (other, _) = sides(direction);
    let ports = match allowed.ports {
        Ports::All => String::new(),
        Ports::Of { protocol, range: None } => format!("meta l4proto {protocol} "),
        Ports::Of { protocol, range: Some((first, last)) } if first == last => {
            format!("{protocol} dport {first} ")
        }
        Ports::Of { protocol, range: Some((first, last)) } => format!("{protocol} dport {first}-{last} "),
    };
    match &allowed.peers {
        Peers::Anybody => vec![ports],
        Peers::Pods(pods) => ["ip", "ip6"]
            .into_iter()
            .filter_map(|family| {
                let own: BTreeSet<&IpAddr> = pods.iter().filter(|address| ip(**address) == family).collect();
                let list = own.iter().map(|address| address.to_string()).collect::<Vec<_>>().join(", ");
                (!own.is_empty()).then(|| format!("{family} {other} {{ {list} }} {ports}"))
            })
            .collect(),
        Peers::Block { cidr, except } => {
            let family = ip(cidr.addr());
            let except: Vec<String> =
                except.iter().filter(|net| ip(net.addr()) == family).map(IpNet::to_string).collect();
            let but = if except.is_empty() {
                String::new()
            } else {
                format!("{family} {other} != {{ {} }} ", except.join(", "))
            };
            vec![format!("{family} {other} {cidr} {but}{ports}")]
        }
    }
}

/// Where the peer's address is, and where the pod's own.
fn sides(direction: Direction) -> (&'static str, &'static str) {
    match direction {
        Direction::Ingress => ("saddr", "daddr"),
        Direction::Egress => ("daddr", "saddr"),
    }
}

fn map(direction: Direction, ip: &str) -> String {
    let direction = match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    };
    format!("{direction}-{}", if ip == "ip" { 4 } else { 6 })
}

fn chain(direction: Direction, pod: &str) -> String {
    let direction = match direction {
        Direction::Ingress => "in",
        Direction::Egress => "out",
    };
    format!("{direction}-{}", names::hex(pod))
}

fn ip(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "ip" } else { "ip6" }
}
