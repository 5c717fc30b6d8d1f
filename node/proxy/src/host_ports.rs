//! Ports that a host needs for itself. The built-in load balancer's addresses are the nodes' own, so a service
//! that asks for port 22 or the API server's would cut the host off from its administrator. Whoever listens on
//! the host already has the port; the service has it on the other nodes. Pure, but for [`HostPorts::read`].

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use ferry_linux::net::sockets::{self, Listening, Transport};
use k8s_openapi::api::core::v1::{Service, ServicePort};

use crate::Protocol;

/// Who listens on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPorts(Vec<Listening>);

impl HostPorts {
    /// Blocks, for less than a millisecond.
    pub fn read() -> io::Result<Self> {
        sockets::listening().map(Self)
    }

    /// Whether the host has something of its own at this address and port.
    pub fn has(&self, protocol: Protocol, address: IpAddr, port: u16) -> bool {
        let transport = match protocol {
            Protocol::Tcp => Transport::Tcp,
            Protocol::Udp => Transport::Udp,
            Protocol::Sctp => return false,
        };
        let hears = |at: IpAddr| match at {
            // The unspecified IPv6 address hears IPv4 too.
            IpAddr::V6(at) if at.is_unspecified() => true,
            at => at == address || at.is_unspecified() && at.is_ipv4() == address.is_ipv4(),
        };
        self.0.iter().any(|one| one.transport == transport && one.port == port && hears(one.address))
    }
}

/// The ports a balanced service asks for; none where it is not balanced.
pub fn balanced_ports(service: &Service) -> BTreeSet<(u16, Protocol)> {
    let spec = service.spec.as_ref().filter(|spec| spec.type_.as_deref() == Some("LoadBalancer"));
    let ports = spec.and_then(|spec| spec.ports.as_ref()).into_iter().flatten();
    ports.filter_map(of_port).collect()
}

pub fn of_port(port: &ServicePort) -> Option<(u16, Protocol)> {
    Some((u16::try_from(port.port).ok()?, Protocol::of(port.protocol.as_deref())?))
}

/// Those of these ports that the host has for itself at one of these addresses, its own.
pub fn conflicts(
    ports: &BTreeSet<(u16, Protocol)>,
    host: &HostPorts,
    addresses: &[IpAddr],
) -> BTreeSet<(u16, Protocol)> {
    let is_hosts = |(port, protocol): &&(u16, Protocol)| {
        addresses.iter().any(|address| host.has(*protocol, *address, *port))
    };
    ports.iter().filter(is_hosts).copied().collect()
}

/// As a node tells others: `22/TCP,6443/TCP`.
pub fn to_text(ports: &BTreeSet<(u16, Protocol)>) -> String {
    let words: Vec<String> =
        ports.iter().map(|(port, protocol)| format!("{port}/{}", protocol.name())).collect();
    words.join(",")
}

/// What is no such text tells nothing.
pub fn from_text(text: &str) -> BTreeSet<(u16, Protocol)> {
    let one = |word: &str| {
        let (port, protocol) = word.split_once('/')?;
        Some((port.parse().ok()?, Protocol::of(Some(protocol))?))
    };
    text.split(',').filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn host(listening: &[(&str, u16, Transport)]) -> HostPorts {
        let one = |(address, port, transport): &(&str, u16, Transport)| Listening {
            transport: *transport,
            address: address.parse().unwrap(),
            port: *port,
        };
        HostPorts(listening.iter().map(one).collect())
    }

    #[test]
    fn the_host_keeps_what_it_listens_on() {
        let host = host(&[
            ("0.0.0.0", 22, Transport::Tcp),
            ("::", 6443, Transport::Tcp),
            ("127.0.0.1", 80, Transport::Tcp),
            ("192.0.2.1", 53, Transport::Udp),
        ]);
        let has = |protocol, address: &str, port| host.has(protocol, address.parse().unwrap(), port);
        assert!(has(Protocol::Tcp, "192.0.2.1", 22) && !has(Protocol::Tcp, "fd00::1", 22));
        assert!(has(Protocol::Tcp, "192.0.2.1", 6443) && has(Protocol::Tcp, "fd00::1", 6443));
        assert!(!has(Protocol::Tcp, "192.0.2.1", 80), "loopback alone is nobody's business");
        assert!(has(Protocol::Udp, "192.0.2.1", 53) && !has(Protocol::Tcp, "192.0.2.1", 53));
        assert!(!has(Protocol::Sctp, "192.0.2.1", 22));

        let service = |type_: &str| -> Service {
            let ports = json!([{ "port": 22 }, { "port": 80 }, { "port": 53, "protocol": "UDP" }]);
            serde_json::from_value(json!({ "spec": { "type": type_, "ports": ports } })).unwrap()
        };
        let own = ["192.0.2.1".parse().unwrap()];
        let found = conflicts(&balanced_ports(&service("LoadBalancer")), &host, &own);
        assert_eq!(to_text(&found), "22/TCP,53/UDP");
        assert_eq!(from_text(&to_text(&found)), found);
        assert!(balanced_ports(&service("NodePort")).is_empty());
        assert!(from_text("").is_empty() && from_text("x/TCP,22,23/XYZ").is_empty());
    }
}
