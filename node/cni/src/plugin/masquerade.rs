//! `ipMasq`: what leaves the network's subnets for elsewhere takes the host's address.
//!
//! One table per network and one rule per family, whatever the number of pods: a packet's cost stays
//! the same, and an ADD changes nothing once the rules are there.

use ferry_linux::net::{names, nftables};
use ipnet::IpNet;

use super::{CniResult, Result, config::Network};

/// Makes the rules hold for the addresses of this result.
pub(super) fn ensure(network: &Network, result: &CniResult) -> Result<()> {
    let subnets: Vec<IpNet> = result.ips.iter().map(|ip| ip.address.trunc()).collect();
    Ok(nftables::apply(&script(&table(network), &subnets))?)
}

pub(super) fn remove(network: &Network) -> Result<()> {
    Ok(nftables::delete_table("inet", &table(network))?)
}

fn table(network: &Network) -> String {
    names::table(&network.name, "masquerade")
}

/// Every line may be applied again and again: what is there stays, the chain is written anew.
fn script(table: &str, subnets: &[IpNet]) -> String {
    let mut script = format!(
        "add table inet {table}\n\
         add set inet {table} subnets {{ type ipv4_addr; flags interval; auto-merge; }}\n\
         add set inet {table} subnets6 {{ type ipv6_addr; flags interval; auto-merge; }}\n\
         add chain inet {table} postrouting {{ type nat hook postrouting priority srcnat; }}\n\
         flush chain inet {table} postrouting\n\
         add rule inet {table} postrouting ip saddr @subnets ip daddr != @subnets ip daddr != 224.0.0.0/4 masquerade\n\
         add rule inet {table} postrouting ip6 saddr @subnets6 ip6 daddr != @subnets6 ip6 daddr != ff00::/8 masquerade\n"
    );
    for subnet in subnets {
        let set = if subnet.addr().is_ipv4() { "subnets" } else { "subnets6" };
        script.push_str(&format!("add element inet {table} {set} {{ {subnet} }}\n"));
    }
    script
}
