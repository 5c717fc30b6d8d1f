//! Who listens on this host, as the kernel lists it.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A socket that takes what others send first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listening {
    pub transport: Transport,
    pub address: IpAddr,
    pub port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    Tcp,
    Udp,
}

/// All that listen in the calling thread's namespace.
pub fn listening() -> io::Result<Vec<Listening>> {
    let mut found = Vec::new();
    for (file, transport) in
        [("tcp", Transport::Tcp), ("tcp6", Transport::Tcp), ("udp", Transport::Udp), ("udp6", Transport::Udp)]
    {
        match fs::read_to_string(format!("/proc/thread-self/net/{file}")) {
            Ok(table) => found.extend(parse(&table, transport)),
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")?;
    let first = range.split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(u16::MAX);
    // A UDP socket does not say whether it asks or answers; those that ask have ports of this range.
    found.retain(|one| one.transport == Transport::Tcp || one.port < first);
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Lines like `0: 0100007F:0016 00000000:0000 0A …`: own address, the other side's, state.
fn parse(table: &str, transport: Transport) -> impl Iterator<Item = Listening> {
    let listens = match transport {
        Transport::Tcp => "0A",
        Transport::Udp => "07",
    };
    table.lines().filter_map(move |line| {
        let mut words = line.split_whitespace().skip(1);
        let (own, _, state) = (words.next()?, words.next()?, words.next()?);
        if state != listens {
            return None;
        }
        let (address, port) = own.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        Some(Listening { transport, address: parse_address(address)?, port })
    })
}

/// Words of four bytes, each in the machine's own order.
fn parse_address(text: &str) -> Option<IpAddr> {
    let mut bytes = Vec::with_capacity(16);
    for word in text.as_bytes().chunks(8) {
        let word = std::str::from_utf8(word).ok()?;
        bytes.extend(u32::from_str_radix(word, 16).ok()?.to_ne_bytes());
    }
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_of_this_host_is_found() {
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let other = std::net::TcpListener::bind("[::1]:0");
        let found = listening().unwrap();
        for listener in [Ok(tcp), other].into_iter().flatten() {
            let at = listener.local_addr().unwrap();
            let wanted = Listening { transport: Transport::Tcp, address: at.ip(), port: at.port() };
            assert!(found.contains(&wanted), "{at} is not among {found:?}");
        }
    }

    #[test]
    fn connections_do_not_listen() {
        let table = "  sl  local_address rem_address   st\n   0: 00000000:0016 00000000:0000 0A 0\n   \
                     1: 0100007F:1F90 0100007F:C000 01 0\n garbage\n   2: zz:0016 00000000:0000 0A 0\n";
        let found: Vec<Listening> = parse(table, Transport::Tcp).collect();
        let wildcard = IpAddr::from([0, 0, 0, 0]);
        assert_eq!(found, [Listening { transport: Transport::Tcp, address: wildcard, port: 22 }]);
    }
}
