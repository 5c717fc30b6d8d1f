//! The host's address, which may change under a running node: another lease, another network.

use std::net::IpAddr;
use std::time::Duration;

use ferry_client::CancellationToken;
use ferry_kubelet::node::machine;
use ferry_linux::net::{Changes, Netlink};

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

/// The address of the default route; the loopback's on a host that has no network.
pub fn of_host() -> IpAddr {
    machine::default_address().unwrap_or(IpAddr::from([127, 0, 0, 1]))
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
                tracing::warn!(error = format!("{error:#}"), "changes of the host's address go unnoticed");
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
    let is_kept = !node.is_loopback() && held.contains(&node);
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
    }
}
