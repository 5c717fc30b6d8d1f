//! The services of a network as chains with as few rules as can be.
//!
//! ```text
//! SERVICES ─► N-0a600100 ─► P-0a600140 ─► P-0a600140-5 ─┬► P-0a600140-50   each service's first of five
//!             10.96.1.0/24  10.96.1.64/26 who has five  ├► P-0a600140-51   each service's second
//!                                         (one is drawn) └► …
//! ```
//!
//! Whatever rule is added, the kernel walks all rules of the table again, once for each hook that leads to them, and
//! most of that is waiting for memory. So services that have equally many endpoints draw together: chance is a few
//! rules for all of them, and each has one rule an endpoint, which is as few as there can be. And chains are named so
//! that their order is the order of the walk: what lies side by side is read side by side.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use ferry_linux::net::names;
use ipnet::IpNet;

use super::{Chains, Kind, Settings, Target};

/// What a network's services ask for: what a rule matches, and where it leads.
pub type Entries = BTreeMap<String, Target>;

/// The most endpoints that are drawn for in common: each number needs chains of its own, one for each endpoint.
pub const MOST_CHOICES: usize = 16;

/// How many rules a packet may have to pass in a network before it is cut into parts. Few: a change writes a chain of
/// so many rules. Many: services can draw together only within one part.
const MOST_ENTRIES: usize = 64;

/// The part of a network that an address is in: 64 addresses.
pub fn part_of(address: IpAddr) -> IpNet {
    let prefix = if address.is_ipv4() { 26 } else { 122 };
    IpNet::new(address, prefix).expect("both lengths fit their family").trunc()
}

/// The network of 256 addresses that a part is in.
pub fn network_of(part: IpNet) -> IpNet {
    let prefix = if part.addr().is_ipv4() { 24 } else { 120 };
    IpNet::new(part.addr(), prefix).expect("both lengths fit their family").trunc()
}

/// The chain that stands for a network.
pub fn chain_of(network: IpNet, settings: &Settings) -> String {
    settings.chain(&format!("N-{}", label(network)))
}

/// The chains of a network with these parts.
pub fn chains_of(
    kind: Kind,
    network: IpNet,
    parts: &[(IpNet, &Entries)],
    settings: &Settings,
    into: &mut Chains,
) {
    let chain = chain_of(network, settings);
    if parts.iter().map(|(_, entries)| entries.len()).sum::<usize>() <= MOST_ENTRIES {
        let entries = parts.iter().flat_map(|(_, entries)| entries.iter());
        return fill(kind, &chain, entries, settings, into);
    }
    let mut jumps = Vec::new();
    for (part, entries) in parts {
        let name = settings.chain(&format!("P-{}", label(*part)));
        jumps.push(format!("-d {part} -j {name}"));
        fill(kind, &name, entries.iter(), settings, into);
    }
    into.insert((kind, chain), jumps);
}

/// A chain with these entries, and those it needs to draw an endpoint.
pub fn fill<'a>(
    kind: Kind,
    chain: &str,
    entries: impl Iterator<Item = (&'a String, &'a Target)>,
    settings: &Settings,
    into: &mut Chains,
) {
    let mut rules = Vec::new();
    let mut by_choices: BTreeMap<usize, Vec<(&str, &[SocketAddr])>> = BTreeMap::new();
    for (matched, target) in entries {
        match target {
            Target::Rule(rest) => rules.push(format!("{matched} {rest}")),
            Target::Endpoints(endpoints) => {
                by_choices.entry(endpoints.len()).or_default().push((matched, endpoints));
            }
        }
    }
    if !by_choices.is_empty() {
        // Once for all of them, and taken back from what none of them is for.
        let mark = settings.mark_outside();
        let unmark =
            (!mark.is_empty()).then(|| format!("-j MARK --and-mark {:#x}", !settings.masquerade_mark));
        rules.extend(mark);
        for (choices, services) in by_choices {
            rules.extend(draw(kind, chain, choices, &services, into));
        }
        rules.extend(unmark);
    }
    into.insert((kind, chain.to_owned()), rules);
}

/// The rules that lead each of these services to one of its endpoints. All have so many.
fn draw(
    kind: Kind,
    chain: &str,
    choices: usize,
    services: &[(&str, &[SocketAddr])],
    into: &mut Chains,
) -> Vec<String> {
    let rewrite = |choice: usize| {
        let services = services.iter();
        services
            .map(|(matched, endpoints)| format!("{matched} -j DNAT --to-destination {}", endpoints[choice]))
            .collect::<Vec<String>>()
    };
    if choices == 1 {
        return rewrite(0);
    }
    let drawing = format!("{chain}-{}", digit(choices));
    let mut draws = Vec::new();
    for choice in 0..choices {
        let drawn = format!("{drawing}{}", digit(choice));
        // Not a jump: who is not among these services goes on after the drawing, it does not draw again.
        draws.push(format!("{}-g {drawn}", chance(choices - choice)));
        into.insert((kind, drawn), rewrite(choice));
    }
    into.insert((kind, drawing.clone()), draws);
    vec![format!("-j {drawing}")]
}

/// The match for one out of so many.
pub fn chance(left: usize) -> String {
    if left == 1 {
        return String::new();
    }
    format!("-m statistic --mode random --probability {:.10} ", 1.0 / left as f64)
}

/// Ten characters at most, so that a chain's name has room for two more. In the order of the addresses where they fit.
fn label(network: IpNet) -> String {
    match network.addr() {
        IpAddr::V4(address) => format!("{:08x}", u32::from(address)),
        IpAddr::V6(_) => names::hex(&network.to_string())[..10].to_owned(),
    }
}

fn digit(number: usize) -> char {
    u32::try_from(number)
        .ok()
        .and_then(|number| char::from_digit(number, 36))
        .expect("no more than MOST_CHOICES, which one digit of 36 can say")
}
