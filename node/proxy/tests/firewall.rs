//! Firewalls that drop what is forwarded, made with the tools of their makers, each in a network namespace of its own.
//! Needs root, nft, iptables and its legacy variant.

use std::process::Command;

use ferry_linux::net::Namespace;
use ferry_proxy::host_firewall::{Pods, look};

struct Host(Namespace);

impl Host {
    fn new() -> Self {
        Self(Namespace::create().unwrap())
    }

    fn runs(&self, words: &str) -> bool {
        let (program, words) = words.split_once(' ').unwrap();
        let output = self.0.run(|| Command::new(program).args(words.split(' ')).output().unwrap()).unwrap();
        output.status.success()
    }

    fn sees(&self) -> Vec<String> {
        let pods = Pods::of("ferry", &["10.244.0.0/16".parse().unwrap()]);
        self.0.run(|| look(&pods)).unwrap()
    }
}

#[test]
fn a_chain_of_nftables_is_seen_and_one_that_lets_pods_pass_is_not() {
    let host = Host::new();
    assert!(host.sees().is_empty());
    assert!(host.runs("nft add table inet guard"));
    assert!(
        host.runs("nft add chain inet guard passage { type filter hook forward priority 0; policy drop; }")
    );
    assert_eq!(host.sees(), ["inet guard passage"]);
    assert!(host.runs("nft add rule inet guard passage ip saddr 10.244.0.0/16 accept"));
    assert!(host.sees().is_empty());
    assert!(host.runs("nft flush chain inet guard passage"));
    assert!(host.runs("nft chain inet guard passage { policy accept; }"));
    assert!(host.sees().is_empty());
    assert!(host.runs("nft add rule inet guard passage counter reject with icmpx type admin-prohibited"));
    assert_eq!(host.sees(), ["inet guard passage"]);
}

#[test]
fn iptables_of_either_sort_is_seen() {
    let host = Host::new();
    assert!(host.runs("iptables -P FORWARD DROP"));
    assert_eq!(host.sees(), ["ip filter FORWARD"]);

    let host = Host::new();
    if !host.runs("iptables-legacy -P FORWARD DROP") {
        ferry_skip::unchecked("iptables-legacy, which the kernel does not have");
        return;
    }
    assert_eq!(host.sees(), ["iptables-legacy filter FORWARD"]);
    assert!(host.runs("iptables-legacy -A FORWARD -i ferry-br0 -j ACCEPT"));
    assert!(host.sees().is_empty());
    assert!(host.runs("iptables-legacy -F FORWARD"));
    assert!(host.runs("iptables-legacy -P FORWARD ACCEPT"));
    assert!(host.sees().is_empty());
    if host.runs("ip6tables-legacy -A FORWARD -j DROP") {
        assert_eq!(host.sees(), ["ip6tables-legacy filter FORWARD"]);
    }
}

#[test]
fn looking_makes_no_tables() {
    let host = Host::new();
    host.sees();
    let names = host.0.run(|| std::fs::read_to_string("/proc/thread-self/net/ip_tables_names")).unwrap();
    assert!(
        names.is_ok_and(|names| names.is_empty())
            || !std::path::Path::new("/proc/net/ip_tables_names").exists()
    );
}
