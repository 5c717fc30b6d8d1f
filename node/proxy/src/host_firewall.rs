//! A firewall of the host that drops what is forwarded takes pods off the network. It is not ours to
//! change; it is ours to see and to say. Three makers of rules are looked at: nftables, iptables on nftables, and the
//! kernel's older tables (`iptables-legacy`).

use ferry_linux::net::{
    ToolError,
    iptables::{self, Family},
    names, nftables,
};
use ipnet::IpNet;

/// What is to be forwarded, as a rule that lets it pass may name it.
pub struct Pods {
    cidrs: Vec<IpNet>,
    interfaces: [String; 2],
}

impl Pods {
    pub fn of(cluster: &str, cidrs: &[IpNet]) -> Self {
        let interfaces = ["br0", "vx0"].map(|suffix| names::interface(cluster, suffix));
        Self { cidrs: cidrs.to_vec(), interfaces }
    }

    /// Whether a rule accepts something that is the pods': a word of it is their interface, or a network they are in.
    fn pass_by(&self, rule: &str) -> bool {
        let words =
            || rule.split(|c: char| c.is_whitespace() || "{},\"".contains(c)).filter(|word| !word.is_empty());
        let is_theirs = |word: &str| {
            let net = word.parse::<IpNet>();
            self.interfaces.iter().any(|own| own == word)
                || net.is_ok_and(|net| self.cidrs.iter().any(|own| net.contains(own)))
        };
        words().any(|word| word.eq_ignore_ascii_case("accept")) && words().any(is_theirs)
    }
}

/// The chains that drop what is forwarded, and have no rule that lets the pods pass. Blocks.
pub fn look(pods: &Pods) -> Vec<String> {
    let mut dropping = Vec::new();
    for looked in [look_at_nftables(pods), look_at_legacy(pods)] {
        match looked {
            Ok(chains) => dropping.extend(chains),
            Err(error) => tracing::debug!(%error, "the host's firewall cannot be looked at"),
        }
    }
    dropping
}

fn look_at_nftables(pods: &Pods) -> Result<Vec<String>, ToolError> {
    let mut dropping = Vec::new();
    for Forwarding { family, table, chain, policy_drops } in forwarding_chains(&nftables::list_chains()?) {
        let place = format!("{family} {table} {chain}");
        if !policy_drops && !ends_in_drop(&nftables::list_chain(&place)?) {
            continue;
        }
        // Who lets pods pass may do so in a chain that this one leads to.
        let rules = nftables::list_table(family, table)?;
        if !rules.iter().flat_map(|text| text.lines()).any(|rule| pods.pass_by(rule)) {
            dropping.push(place);
        }
    }
    Ok(dropping)
}

fn look_at_legacy(pods: &Pods) -> Result<Vec<String>, ToolError> {
    let mut dropping = Vec::new();
    for (family, name) in [(Family::V4, "iptables-legacy"), (Family::V6, "ip6tables-legacy")] {
        let saved = iptables::save_legacy_filter(family)?;
        if saved.is_some_and(|saved| saved_drops(&saved) && !saved.lines().any(|rule| pods.pass_by(rule))) {
            dropping.push(format!("{name} filter FORWARD"));
        }
    }
    Ok(dropping)
}

/// A chain that all forwarded packets pass.
#[derive(Debug, PartialEq, Eq)]
struct Forwarding<'a> {
    family: &'a str,
    table: &'a str,
    chain: &'a str,
    policy_drops: bool,
}

/// Those of others, out of `nft list chains`.
fn forwarding_chains(listing: &str) -> Vec<Forwarding<'_>> {
    let mut found = Vec::new();
    let ((mut family, mut table), mut chain) = (("", ""), "");
    for line in listing.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("table ") {
            (family, table) = rest.trim_end_matches(" {").split_once(' ').unwrap_or(("", ""));
        } else if let Some(rest) = line.strip_prefix("chain ") {
            chain = rest.trim_end_matches(" {");
        } else if line.contains("hook forward") && !table.starts_with("ferry-") {
            let policy_drops = line.contains("policy drop");
            found.push(Forwarding { family, table, chain, policy_drops });
        }
    }
    found
}

/// Whether the last rule of `nft list chain` drops or rejects whatever comes to it.
fn ends_in_drop(listing: &str) -> bool {
    let is_rule = |line: &&str| !line.is_empty() && !line.ends_with(['{', '}', ';']);
    let Some(last) = listing.lines().map(str::trim).rfind(is_rule) else { return false };
    let mut words = last.split_whitespace().peekable();
    if words.next_if_eq(&"counter").is_some() {
        // `packets 0 bytes 0`
        words.by_ref().take(4).for_each(drop);
    }
    matches!(words.next(), Some("drop" | "reject"))
}

/// The same of `iptables-save -t filter`, with the policy.
fn saved_drops(saved: &str) -> bool {
    let last = saved.lines().rfind(|line| line.starts_with("-A FORWARD "));
    let ends =
        |rule: &str| ["-A FORWARD -j DROP", "-A FORWARD -j REJECT"].iter().any(|all| rule.starts_with(all));
    saved.lines().any(|line| line.starts_with(":FORWARD DROP")) || last.is_some_and(ends)
}

/// For people.
pub fn explain(chains: &[String]) -> String {
    format!(
        "the host's firewall drops what is forwarded ({}): pods may not reach each other, services or \
         the outside; let it accept what comes from and goes to the pods' addresses",
        chains.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_that_all_forwarded_packets_pass_are_found() {
        let listing = "table ip filter {\n\tchain INPUT {\n\t\ttype filter hook input priority filter; policy drop;\n\t}\n\
                       \tchain FORWARD {\n\t\ttype filter hook forward priority filter; policy drop;\n\t}\n}\n\
                       table inet fw {\n\tchain fwd {\n\t\ttype filter hook forward priority filter; policy accept;\n\t}\n}\n\
                       table ip ferry-x-services {\n\tchain filter-forward {\n\t\ttype filter hook forward priority filter; policy accept;\n\t}\n}\n";
        let found = forwarding_chains(listing);
        let of = |family, table, chain, policy_drops| Forwarding { family, table, chain, policy_drops };
        assert_eq!(found, [of("ip", "filter", "FORWARD", true), of("inet", "fw", "fwd", false)]);
        assert!(forwarding_chains("").is_empty());
    }

    #[test]
    fn a_last_rule_that_takes_all_is_seen() {
        let chain = |rules: &str| {
            format!(
                "table inet fw {{\n\tchain fwd {{\n\t\ttype filter hook forward priority 0; policy accept;\n{rules}\t}}\n}}\n"
            )
        };
        for (rules, expected) in [
            ("", false),
            ("\t\tip saddr 192.0.2.0/24 drop\n", false),
            ("\t\tdrop\n\t\taccept\n", false),
            ("\t\tct state established accept\n\t\treject with icmpx admin-prohibited\n", true),
            ("\t\tcounter packets 7 bytes 420 drop\n", true),
        ] {
            assert_eq!(ends_in_drop(&chain(rules)), expected, "{rules}");
        }
        for (saved, expected) in [
            (":FORWARD DROP [0:0]\n", true),
            (":FORWARD ACCEPT [0:0]\n-A FORWARD -i eth0 -j DROP\n", false),
            (":FORWARD ACCEPT [0:0]\n-A FORWARD -j REJECT --reject-with icmp-port-unreachable\n", true),
            (":INPUT DROP [0:0]\n:FORWARD ACCEPT [0:0]\n", false),
        ] {
            assert_eq!(saved_drops(saved), expected, "{saved}");
        }
    }

    #[test]
    fn a_rule_that_lets_pods_pass_is_known_by_their_network_or_interface() {
        let pods = Pods::of("ferry", &["10.244.0.0/16".parse().unwrap()]);
        for (rule, expected) in [
            ("ip saddr 10.244.0.0/16 counter packets 0 bytes 0 accept", true),
            ("ip saddr { 10.0.0.0/8, 192.0.2.0/24 } accept", true),
            ("iifname \"ferry-br0\" accept", true),
            ("-A DOCKER-USER -s 10.244.0.0/16 -j ACCEPT", true),
            ("-A FORWARD -i ferry-br0 -j ACCEPT", true),
            ("ip saddr 10.244.0.0/16 drop", false),
            ("ip saddr 10.244.7.0/24 accept", false),
            ("iifname \"docker0\" accept", false),
        ] {
            assert_eq!(pods.pass_by(rule), expected, "{rule}");
        }
    }
}
