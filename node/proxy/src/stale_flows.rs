//! Which tracked UDP flows a change leaves wrong. Pure.
//!
//! A connection ends by itself; a UDP flow lives as long as packets come, and goes on being sent to an
//! endpoint that is gone, or nowhere, if it began before there was one.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use ferry_linux::net::conntrack::Flows;

use crate::{
    Family, Protocol,
    service::{At, Frontend, ServicePort},
};

/// What to forget after a service's ports of one family changed from `old` to `new`.
pub fn stale_flows(old: &[ServicePort], new: &[ServicePort], family: Family) -> BTreeSet<Flows> {
    let mut stale = BTreeSet::new();
    let find = |ports: &[ServicePort], wanted: &ServicePort| {
        ports.iter().find(|port| port.name == wanted.name && port.protocol == Protocol::Udp).cloned()
    };
    for port in old.iter().filter(|port| port.protocol == Protocol::Udp) {
        let now = find(new, port);
        // an endpoint whose port has changed is another one
        let kept = now.as_ref().map(endpoints).unwrap_or_default();
        let gone: BTreeSet<IpAddr> = endpoints(port).difference(&kept).map(SocketAddr::ip).collect();
        for endpoint in &gone {
            for frontend in &port.frontends {
                stale.insert(match place(frontend) {
                    Some(original) => Flows::Rewritten { original, port: frontend.port, endpoint: *endpoint },
                    None => Flows::RewrittenPort { port: frontend.port, endpoint: *endpoint },
                });
            }
        }
    }
    for port in new.iter().filter(|port| port.protocol == Protocol::Udp && !endpoints(port).is_empty()) {
        let before = find(old, port);
        for frontend in &port.frontends {
            let was_served = before.as_ref().is_some_and(|before| {
                !endpoints(before).is_empty()
                    && before.frontends.iter().any(|f| f.at == frontend.at && f.port == frontend.port)
            });
            if !was_served {
                stale.insert(match place(frontend) {
                    Some(original) => Flows::To { original, port: frontend.port },
                    None => Flows::ToPort { port: frontend.port, ipv6: family == Family::V6 },
                });
            }
        }
    }
    stale
}

fn endpoints(port: &ServicePort) -> BTreeSet<SocketAddr> {
    port.endpoints.cluster.iter().chain(&port.endpoints.local).copied().collect()
}

fn place(frontend: &Frontend) -> Option<IpAddr> {
    match frontend.at {
        At::ClusterIp(ip) | At::ExternalIp(ip) => Some(ip),
        At::NodePort => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{endpoints::Usable, service::Policy};

    fn port(protocol: Protocol, endpoints: &[&str]) -> Vec<ServicePort> {
        let frontend = |at, port| Frontend { at, port, policy: Policy::InternalCluster, sources: vec![] };
        vec![ServicePort {
            name: "ns/dns".into(),
            protocol,
            endpoints: Usable {
                cluster: endpoints.iter().map(|e| format!("{e}:53").parse().unwrap()).collect(),
                local: vec![],
                local_ready: false,
                anywhere: !endpoints.is_empty(),
            },
            affinity: None,
            frontends: vec![
                frontend(At::ClusterIp("10.96.0.10".parse().unwrap()), 53),
                frontend(At::NodePort, 30053),
            ],
        }]
    }

    #[test]
    fn flows_to_a_gone_endpoint_and_flows_to_nowhere_are_forgotten() {
        let original: IpAddr = "10.96.0.10".parse().unwrap();
        let endpoint: IpAddr = "10.244.0.1".parse().unwrap();
        let check = |old: &[ServicePort], new: &[ServicePort], expected: &[Flows]| {
            let found: Vec<Flows> = stale_flows(old, new, Family::V4).into_iter().collect();
            assert_eq!(found, expected);
        };
        let gone = [
            Flows::Rewritten { original, port: 53, endpoint },
            Flows::RewrittenPort { port: 30053, endpoint },
        ];
        let born = [Flows::To { original, port: 53 }, Flows::ToPort { port: 30053, ipv6: false }];
        let udp = |endpoints: &[&str]| port(Protocol::Udp, endpoints);
        check(&udp(&["10.244.0.1", "10.244.0.2"]), &udp(&["10.244.0.2"]), &gone);
        check(&udp(&["10.244.0.1"]), &[], &gone);
        check(&udp(&[]), &udp(&["10.244.0.1"]), &born);
        check(&[], &udp(&["10.244.0.1"]), &born);
        check(&udp(&["10.244.0.1"]), &udp(&["10.244.0.1", "10.244.0.2"]), &[]);
        check(&port(Protocol::Tcp, &["10.244.0.1"]), &[], &[]);
        let mut moved = udp(&["10.244.0.1"]);
        moved[0].endpoints.cluster[0].set_port(54);
        check(&udp(&["10.244.0.1"]), &moved, &gone);
    }
}
