//! The host's address, which can change while the node runs: a new DHCP lease, another network.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::Context;
use ferry_client::{CancellationToken, Informers};
use ferry_kubelet::node::machine;
use ferry_linux::net::{Bridge, Changes, Netlink, Route, names};
use ipnet::IpNet;
use k8s_openapi::api::networking::v1::ServiceCIDR;

use super::layout::Layout;

/// While an interface is set up, addresses come and go.
const SETTLED: Duration = Duration::from_secs(1);

/// Why a node's parts came to their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Somebody wants it.
    Asked,
    /// They are to start again, with the address or the certificates the host has now. Containers go on.
    Outdated,
}

/// The node's address on a host that reaches no other. Pods cannot talk to a loopback's; this one is of the range for
/// benchmarks (RFC 2544), which nobody routes.
const ALONE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);

/// The address of the default route. A host that has none gets an address of its own, on an interface of the cluster's,
/// until it has one.
pub fn of_host(layout: &Layout) -> anyhow::Result<IpAddr> {
    match machine::default_address() {
        Some(address) => {
            forget_alone(layout)?;
            Ok(address)
        }
        None => {
            let link = service_bridge(layout)?;
            let net = IpNet::new(ALONE.into(), 32).context("one address")?;
            Netlink::open()?.add_address(link, net).context("give the host an address")?;
            Ok(ALONE.into())
        }
    }
}

/// The address, where it is that of a host without a network: nobody else finds it out.
pub fn alone(address: IpAddr) -> Option<IpAddr> {
    Some(address).filter(|address| *address == ALONE)
}

/// On a host without a default route the kernel refuses what is for a Service before its rules see it.
pub fn lead_to_services(layout: &Layout, services: IpNet) -> anyhow::Result<()> {
    if machine::default_address().is_some() {
        return Ok(());
    }
    let route = Route::new(services, None, service_bridge(layout)?);
    Netlink::open()?.replace_route(&route).context("lead the host's packets to the Services")
}

/// The same for the ranges of ServiceCIDRs that come later, for as long as the informers live. They need no going: the
/// interface of a host without a network goes with them.
pub fn lead_to_further_services(layout: &Layout, informers: &Informers) {
    if machine::default_address().is_some() {
        return;
    }
    let layout = layout.clone();
    informers.of::<ServiceCIDR>().handle(move |event| {
        let ranges = event.object().spec.as_ref().and_then(|spec| spec.cidrs.as_ref());
        for range in ranges.into_iter().flatten().filter_map(|text| text.parse().ok()) {
            if let Err(error) = lead_to_services(&layout, range) {
                tracing::warn!(%range, error = format!("{error:#}"), "cannot add a route to the Services");
            }
        }
    });
}

/// Takes the interface of a host without a network away, with its address and route.
pub fn forget_alone(layout: &Layout) -> anyhow::Result<()> {
    let name = interface_alone(layout);
    Netlink::open()?.delete_link(&name).with_context(|| format!("remove {name}")).map(drop)
}

fn interface_alone(layout: &Layout) -> String {
    names::interface(&layout.cluster, "ip0")
}

/// The link of the route to Services: a bridge without ports, which needs no kernel module beyond those for pods.
fn service_bridge(layout: &Layout) -> anyhow::Result<u32> {
    let name = interface_alone(layout);
    let mut netlink = Netlink::open()?;
    if netlink.link(&name)?.is_none() {
        let bridge = Bridge { name: &name, mac: None, mtu: None };
        netlink.add_bridge(&bridge).with_context(|| format!("make {name}"))?;
    }
    Ok(netlink.link_index(&name)?)
}

/// Ends `life` when the host has lost the address its node is known by and has another one. An address the
/// user has chosen is theirs to change.
pub async fn watch(node: IpAddr, is_chosen: bool, life: CancellationToken) -> End {
    let moved = async {
        if is_chosen {
            return std::future::pending().await;
        }
        match moved(node).await {
            Ok(now) => tracing::info!(before = %node, %now, "the host's address has changed"),
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "cannot watch the host's addresses");
                std::future::pending().await
            }
        }
    };
    tokio::select! {
        () = moved => {
            life.cancel();
            End::Outdated
        }
        () = life.cancelled() => End::Asked,
    }
}

async fn moved(node: IpAddr) -> anyhow::Result<IpAddr> {
    let mut changes = Changes::open()?;
    loop {
        // Looked at before the first change too: it may have happened before we listened.
        if let Some(next) = next_address(node, &held()?, machine::default_address()) {
            tokio::time::sleep(SETTLED).await;
            if next_address(node, &held()?, machine::default_address()) == Some(next) {
                return Ok(next);
            }
            continue;
        }
        changes.next().await?;
    }
}

/// The address a node should move to, if it should. One that the host still has is kept, whatever leads to
/// the outside now: a tunnel that was switched on is no other host.
fn next_address(node: IpAddr, held: &[IpAddr], of_route: Option<IpAddr>) -> Option<IpAddr> {
    let is_kept = !node.is_loopback() && node != ALONE && held.contains(&node);
    of_route.filter(|next| !is_kept && *next != node && !next.is_loopback())
}

fn held() -> anyhow::Result<Vec<IpAddr>> {
    let addresses = Netlink::open()?.addresses()?;
    Ok(addresses.into_iter().map(|address| address.net.addr()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(node: &str, held: &[&str], of_route: Option<&str>, expected: Option<&str>) {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let held: Vec<IpAddr> = held.iter().map(|text| ip(text)).collect();
        assert_eq!(next_address(ip(node), &held, of_route.map(ip)), expected.map(ip), "{node} {held:?}");
    }

    #[test]
    fn a_node_moves_only_when_its_address_is_gone() {
        let (lo, old, new) = ("127.0.0.1", "192.0.2.1", "192.0.2.9");
        check(old, &[lo, old], Some(old), None);
        check(old, &[lo, new], Some(new), Some(new));
        // A second address, or another default route, is no reason.
        check(old, &[lo, old, new], Some(new), None);
        // Cut off: where to is not known yet.
        check(old, &[lo], None, None);
        check(old, &[lo], Some(lo), None);
        // Started before there was a network.
        check(lo, &[lo, new], Some(new), Some(new));
        let alone = ALONE.to_string();
        check(&alone, &[lo, &alone, new], Some(new), Some(new));
        check(&alone, &[lo, &alone], None, None);
    }
}
