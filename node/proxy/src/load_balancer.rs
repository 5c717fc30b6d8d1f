//! A load balancer for clusters that have no cloud: the nodes' own addresses, which every proxy takes
//! traffic on. One instance per cluster writes them into the status of `LoadBalancer` services.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ferry_client::events::{EventType, Events, Recorder};
use ferry_client::{Api, CancellationToken, Informers, NamespacedName};
use k8s_openapi::api::core::v1::{
    LoadBalancerIngress, LoadBalancerStatus, Node, PortStatus, Service, ServicePort,
};
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;

use crate::{host_ports::of_port, report::Report};

/// In a port's status: a host listens on it itself and keeps it.
pub const PORT_IN_USE: &str = "ferry.dev/HostPortInUse";
/// In a port's status: the node has not yet said whether its host has the port.
const PORT_NOT_OPEN_YET: &str = "ferry.dev/NotOpenYet";

/// What a service's ingress should be. `None`: another balancer's, or no balanced service; leave it.
///
/// A node's address is given out for the ports that the node has looked at its host for. Else other nodes would, for
/// a moment, lead what is meant for that host's own port 22 to the service's pods.
pub fn ingress(service: &Service, nodes: &[Arc<Node>]) -> Option<Vec<LoadBalancerIngress>> {
    let spec = service.spec.as_ref()?;
    if spec.type_.as_deref() != Some("LoadBalancer") {
        // It was balanced once, by us: whoever balances it again begins from nothing.
        return is_ours(held(service), nodes).then(Vec::new);
    }
    if spec.load_balancer_class.is_some() {
        return None;
    }
    let ports: Vec<&ServicePort> = spec.ports.iter().flatten().collect();
    let families = spec.ip_families.iter().flatten().map(String::as_str).collect::<Vec<_>>();
    let wanted =
        |ip: &IpAddr| families.is_empty() || families.contains(&if ip.is_ipv4() { "IPv4" } else { "IPv6" });
    let mut found: BTreeMap<IpAddr, LoadBalancerIngress> = BTreeMap::new();
    for node in nodes.iter().filter(|node| takes_traffic(node)) {
        let Some(ports) = port_statuses(&ports, &Report::of(node)) else { continue };
        for address in addresses(node).into_iter().filter(wanted) {
            found.entry(address).or_insert_with(|| LoadBalancerIngress {
                ip: Some(address.to_string()),
                ip_mode: Some("VIP".into()),
                // All of them, where one is not open; nothing, where all is well.
                ports: Some(ports.clone()).filter(|all| all.iter().any(|port| port.error.is_some())),
                ..LoadBalancerIngress::default()
            });
        }
    }
    Some(found.into_values().collect())
}

/// How a node has each of the ports; `None` while it has looked for none of them.
fn port_statuses(ports: &[&ServicePort], report: &Report) -> Option<Vec<PortStatus>> {
    let error = |port: &ServicePort| {
        let port = of_port(port)?;
        let is_known = report.balanced_ports.as_ref().is_none_or(|seen| seen.contains(&port));
        if report.host_ports.contains(&port) {
            Some(PORT_IN_USE)
        } else {
            (!is_known).then_some(PORT_NOT_OPEN_YET)
        }
    };
    let status = |port: &&ServicePort| PortStatus {
        port: port.port,
        protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()),
        error: error(port).map(String::from),
    };
    let waits = !ports.is_empty() && ports.iter().all(|port| error(port) == Some(PORT_NOT_OPEN_YET));
    (!waits).then(|| ports.iter().map(status).collect())
}

fn held(service: &Service) -> &[LoadBalancerIngress] {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    status.and_then(|status| status.ingress.as_deref()).unwrap_or(&[])
}

/// Whether there is something, and all of it nodes' addresses.
fn is_ours(held: &[LoadBalancerIngress], nodes: &[Arc<Node>]) -> bool {
    let own: BTreeSet<String> = nodes.iter().flat_map(|n| addresses(n)).map(|ip| ip.to_string()).collect();
    !held.is_empty() && held.iter().all(|one| one.ip.as_ref().is_some_and(|ip| own.contains(ip)))
}

/// Keeps every balanced service's status right until told to stop.
pub async fn run(informers: Informers, instance: String, shutdown: CancellationToken) {
    let events = Events::start(informers.client().clone(), instance, shutdown.clone());
    let recorder = events.recorder("service-controller");
    let services = informers.of::<Service>();
    let nodes = informers.of::<Node>();
    let changed = Arc::new(Notify::new());
    let dirty = Arc::new(Mutex::new(BTreeSet::<NamespacedName>::new()));
    {
        let (changed, dirty) = (changed.clone(), dirty.clone());
        services.handle(move |event| {
            dirty.lock().insert(event.key());
            changed.notify_one();
        });
    }
    {
        let (changed, dirty, services) = (changed.clone(), dirty.clone(), services.clone());
        nodes.handle(move |event| {
            // A heartbeat changes neither addresses nor readiness.
            let seen = |node: &Node| {
                let Report { balanced_ports, host_ports, .. } = Report::of(node);
                (takes_traffic(node), addresses(node), balanced_ports, host_ports)
            };
            if event.old().is_none_or(|old| seen(old) != seen(event.object())) || event.is_deleted() {
                dirty.lock().extend(services.list().iter().map(|service| NamespacedName::of(&**service)));
                changed.notify_one();
            }
        });
    }
    tokio::select! {
        () = async { services.synced().await; nodes.synced().await } => {}
        () = shutdown.cancelled() => return,
    }
    loop {
        let keys = std::mem::take(&mut *dirty.lock());
        let all = nodes.list();
        for key in keys {
            let Some(service) = services.get(&key) else { continue };
            if let Some(wanted) = ingress(&service, &all)
                && let Err(error) = write(&informers, &recorder, &key, &service, wanted).await
            {
                tracing::warn!(service = %key, %error, "the load balancer's status cannot be written");
                dirty.lock().insert(key);
            }
        }
        // What could not be written is tried again with the next change, or after a while.
        let retry = async {
            if dirty.lock().is_empty() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        };
        tokio::select! {
            () = changed.notified() => {}
            () = retry => {}
            () = shutdown.cancelled() => return,
        }
    }
}

async fn write(
    informers: &Informers,
    recorder: &Recorder,
    key: &NamespacedName,
    service: &Service,
    wanted: Vec<LoadBalancerIngress>,
) -> kube::Result<()> {
    let held = held(service);
    if held == wanted {
        return Ok(());
    }
    for refused in refused(&wanted).difference(&refused(held)) {
        let (ip, port) = refused;
        let note =
            format!("the host {ip} listens on {port} itself and keeps it; other ports are served there");
        recorder.event(service, EventType::Warning, "HostPortInUse", "LoadBalance", note);
    }
    let mut span = ferry_trace::span("proxy.load_balancer");
    span.object("services", &key.namespace, &key.name);
    let balancer = LoadBalancerStatus { ingress: Some(wanted) };
    let patch = json!({ "status": { "loadBalancer": balancer } });
    let api: Api<Service> = Api::namespaced(informers.client().clone(), &key.namespace);
    span.in_scope(api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch))).await.map(drop)
}

/// Addresses and ports that cannot be had: `(192.0.2.1, 22/TCP)`.
pub fn refused(ingress: &[LoadBalancerIngress]) -> BTreeSet<(String, String)> {
    let of = |one: &LoadBalancerIngress| {
        let ports = one.ports.iter().flatten().filter(|port| port.error.as_deref() == Some(PORT_IN_USE));
        let ip = one.ip.clone().unwrap_or_default();
        ports.map(move |port| (ip.clone(), format!("{}/{}", port.port, port.protocol))).collect::<Vec<_>>()
    };
    ingress.iter().flat_map(of).collect()
}

fn takes_traffic(node: &Node) -> bool {
    let excluded = "node.kubernetes.io/exclude-from-external-load-balancers";
    let labels = node.metadata.labels.as_ref();
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    ready
        && node.metadata.deletion_timestamp.is_none()
        && !labels.is_some_and(|labels| labels.contains_key(excluded))
}

/// External addresses, or internal ones where there is no other.
fn addresses(node: &Node) -> Vec<IpAddr> {
    let all = node.status.as_ref().and_then(|status| status.addresses.as_ref());
    let of = |kind: &str| -> Vec<IpAddr> {
        let matching = all.into_iter().flatten().filter(|address| address.type_ == kind);
        matching.filter_map(|address| address.address.parse().ok()).collect()
    };
    let external = of("ExternalIP");
    if external.is_empty() { of("InternalIP") } else { external }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{BALANCED_PORTS, HOST_PORTS};

    fn node(ready: &str, addresses: &[(&str, &str)]) -> Arc<Node> {
        let addresses: Vec<_> =
            addresses.iter().map(|(kind, ip)| json!({ "type": kind, "address": ip })).collect();
        let status = json!({ "addresses": addresses, "conditions": [{ "type": "Ready", "status": ready }] });
        Arc::new(serde_json::from_value(json!({ "metadata": { "name": "n" }, "status": status })).unwrap())
    }

    fn check(spec: serde_json::Value, nodes: &[Arc<Node>], expected: Option<&[&str]>) {
        let service: Service = serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap();
        let found = ingress(&service, nodes);
        let found: Option<Vec<String>> = found.map(|all| all.into_iter().filter_map(|i| i.ip).collect());
        assert_eq!(found, expected.map(|ips| ips.iter().map(|ip| ip.to_string()).collect()), "{spec}");
    }

    #[test]
    fn ready_nodes_give_their_addresses() {
        let nodes = [
            node("True", &[("InternalIP", "10.0.0.1"), ("InternalIP", "fd00::1"), ("Hostname", "n1")]),
            node("True", &[("InternalIP", "10.0.0.2"), ("ExternalIP", "203.0.113.2")]),
            node("False", &[("InternalIP", "10.0.0.3")]),
        ];
        let both = ["10.0.0.1", "203.0.113.2", "fd00::1"];
        check(json!({ "type": "LoadBalancer" }), &nodes, Some(&both));
        check(json!({ "type": "LoadBalancer", "ipFamilies": ["IPv4"] }), &nodes, Some(&both[..2]));
        check(json!({ "type": "LoadBalancer", "loadBalancerClass": "x" }), &nodes, None);
        check(json!({ "type": "NodePort" }), &nodes, None);
    }

    #[test]
    fn a_port_the_host_keeps_is_said_to_be_kept() {
        let mut own = (*node("True", &[("InternalIP", "10.0.0.1")])).clone();
        own.metadata.annotations = Some([(HOST_PORTS.to_owned(), "22/TCP".to_owned())].into());
        let nodes = [Arc::new(own), node("True", &[("InternalIP", "10.0.0.2")])];
        let service = |ports: serde_json::Value| -> Service {
            let spec = json!({ "type": "LoadBalancer", "ports": ports });
            serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap()
        };
        let ssh =
            ingress(&service(json!([{ "port": 22 }, { "port": 22, "protocol": "UDP" }])), &nodes).unwrap();
        assert_eq!(refused(&ssh), BTreeSet::from([("10.0.0.1".into(), "22/TCP".into())]));
        assert_eq!(ssh[0].ports.as_ref().map(Vec::len), Some(2), "every port has its status, or none has");
        assert_eq!(ssh[1].ports, None);
        let web = ingress(&service(json!([{ "port": 80 }])), &nodes).unwrap();
        assert!(web.iter().all(|ingress| ingress.ports.is_none()));
    }

    #[test]
    fn a_node_is_named_for_the_ports_it_has_looked_at() {
        let node = |seen: Option<&str>| {
            let mut node = (*node("True", &[("InternalIP", "10.0.0.1")])).clone();
            let seen = seen.map(|seen| (BALANCED_PORTS.to_owned(), seen.to_owned()));
            node.metadata.annotations = Some(seen.into_iter().collect());
            [Arc::new(node)]
        };
        let spec = json!({ "type": "LoadBalancer", "ports": [{ "port": 80 }, { "port": 443 }] });
        let service: Service = serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap();
        let errors = |seen: Option<&str>| -> Vec<Vec<Option<String>>> {
            let found = ingress(&service, &node(seen)).unwrap();
            found
                .iter()
                .map(|one| one.ports.iter().flatten().map(|port| port.error.clone()).collect())
                .collect()
        };
        assert!(errors(Some("")).is_empty(), "the node has not looked");
        let not_yet = || Some(PORT_NOT_OPEN_YET.to_owned());
        assert_eq!(
            errors(Some("80/TCP")),
            [[None, not_yet()]],
            "a port that was added waits, the other goes on"
        );
        assert_eq!(errors(Some("80/TCP,443/TCP")), [[]], "all is open");
        assert_eq!(errors(None), [[]], "another's proxy does not look");
        let early = ingress(&service, &node(Some("80/TCP"))).unwrap();
        assert!(refused(&early).is_empty(), "nobody is told of what comes in a moment");
    }

    #[test]
    fn a_service_that_is_balanced_no_longer_gives_its_addresses_back() {
        let nodes = [node("False", &[("InternalIP", "10.0.0.1")])];
        let service = |ip: &str| -> Service {
            let status = json!({ "loadBalancer": { "ingress": [{ "ip": ip }] } });
            serde_json::from_value(
                json!({ "metadata": {}, "spec": { "type": "ClusterIP" }, "status": status }),
            )
            .unwrap()
        };
        assert_eq!(ingress(&service("10.0.0.1"), &nodes), Some(vec![]));
        assert_eq!(ingress(&service("203.0.113.7"), &nodes), None, "another balancer's");
    }
}
