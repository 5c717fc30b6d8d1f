//! Ports of this host that a node's parts listen on.
//!
//! One is wanted by custom. Where another program has it, the next is taken from where the kernel takes none for
//! outgoing connections: a port out of that range is free today and somebody's when the part starts again.

use std::net::{IpAddr, TcpListener, UdpSocket};
use std::ops::RangeInclusive;

use anyhow::Context;

/// Where ports by custom are replaced from: below those of node ports.
const OTHERS: RangeInclusive<u16> = 11_000..=29_999;
const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocols {
    Tcp,
    /// The same number for both.
    TcpAndUdp,
}

/// `wanted`, or one that nobody has. `seed` says where to look first, so that clusters that start together do not
/// find the same, and one that starts again finds what it had.
pub fn choose(address: IpAddr, wanted: u16, protocols: Protocols, seed: &str) -> anyhow::Result<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .context("read the range of ports for outgoing connections")?;
    let outgoing = range(&text).with_context(|| format!("understand the range of ports {text:?}"))?;
    let free = candidates(wanted, &outgoing, seed).find(|port| is_free(address, *port, protocols));
    free.with_context(|| {
        format!("no port is free at {address} outside of {}-{}", outgoing.start(), outgoing.end())
    })
}

pub fn is_free(address: IpAddr, port: u16, protocols: Protocols) -> bool {
    TcpListener::bind((address, port)).is_ok()
        && (protocols == Protocols::Tcp || UdpSocket::bind((address, port)).is_ok())
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.trim().split_once(char::is_whitespace)?;
    Some(first.parse().ok()?..=last.trim().parse().ok()?)
}

fn candidates<'a>(
    wanted: u16,
    outgoing: &'a RangeInclusive<u16>,
    seed: &str,
) -> impl Iterator<Item = u16> + use<'a> {
    let number = seed.bytes().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let others = OTHERS.cycle_from(number);
    // a host may take almost all ports for outgoing connections
    let last = (1024..=u16::MAX).filter(|port| !NODE_PORTS.contains(port));
    let replaced = others.chain(last).filter(|port| !outgoing.contains(port));
    std::iter::once(wanted).chain(replaced)
}

trait CycleFrom {
    /// All of them once, beginning somewhere.
    fn cycle_from(self, number: usize) -> impl Iterator<Item = u16>;
}

impl CycleFrom for RangeInclusive<u16> {
    fn cycle_from(self, number: usize) -> impl Iterator<Item = u16> {
        let count = self.len();
        self.clone().cycle().skip(number % count).take(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_by_custom_comes_first_and_none_of_outgoing_connections_after_it() {
        let outgoing = range("32768\t60999\n").unwrap();
        assert_eq!(outgoing, 32_768..=60_999);
        let ports: Vec<u16> = candidates(10250, &outgoing, "a").collect();
        assert_eq!(ports[0], 10250);
        assert!(ports.iter().all(|port| !outgoing.contains(port) && !NODE_PORTS.contains(port)));
        assert!(ports.len() > 20_000);
        assert_eq!(candidates(10250, &outgoing, "a").nth(1), Some(ports[1]), "the same again");
        assert_ne!(candidates(10250, &outgoing, "b").nth(1), Some(ports[1]));
        // almost all of them
        let most: Vec<u16> = candidates(10250, &(1024..=65_000), "a").collect();
        assert!(most.len() > 500 && most[1..].iter().all(|port| *port > 65_000));
        assert_eq!(range("nonsense"), None);
    }

    #[test]
    fn a_port_that_is_taken_is_replaced() {
        let address = IpAddr::from([127, 0, 0, 1]);
        let taken = TcpListener::bind((address, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        assert!(!is_free(address, port, Protocols::Tcp));
        // listening on all addresses takes it too
        assert!(!is_free(IpAddr::from([0, 0, 0, 0]), port, Protocols::Tcp));
        let other = choose(address, port, Protocols::TcpAndUdp, "a").unwrap();
        assert_ne!(other, port);
        assert!(OTHERS.contains(&other), "{other}");
    }
}
