//! Rules on the real kernel, in both modes: real connections between namespaces that stand for pods,
//! the node and the world outside. Needs root, nft, iptables and conntrack.

use std::{
    collections::BTreeSet,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use ferry_cni::plugin::{self, Plugin};
use ferry_linux::net::{Namespace, Netlink, Route, Veth, conntrack, nftables};
use ferry_proxy::{
    Config, Family, HostPorts, Mode, Node, NodePortAddresses,
    backend::{Backend, Changed},
    ledger::Rank,
    service,
    stale_flows::stale_flows,
};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use serde_json::{Value, json};

const NODE: &str = "192.0.2.1";
const PATIENCE: Duration = Duration::from_secs(5);
/// How long silence must last to count as a dropped packet.
const SILENCE: Duration = Duration::from_millis(400);

/// A node with pods behind a bridge, and a machine outside on the node's wire.
struct World {
    node: Namespace,
    outside: Namespace,
    pods: Vec<Pod>,
    _leases: tempfile::TempDir,
    config: Config,
    backend: Backend,
    known: Vec<service::ServicePort>,
}

struct Pod {
    namespace: Namespace,
    ip: IpAddr,
}

impl World {
    fn new(mode: Mode) -> Self {
        let node = Namespace::create().unwrap();
        let outside = Namespace::create().unwrap();
        let mut netlink = Netlink::open_in(&node).unwrap();
        let veth =
            Veth { name: "wire", peer_name: "wire", peer_namespace: &outside, peer_mac: None, mtu: None };
        netlink.add_veth(&veth).unwrap();
        for (namespace, net) in [(&node, "192.0.2.1/24"), (&outside, "192.0.2.2/24")] {
            let mut netlink = Netlink::open_in(namespace).unwrap();
            let lo = netlink.link_index("lo").unwrap();
            netlink.set_up(lo).unwrap();
            let wire = netlink.link_index("wire").unwrap();
            netlink.set_up(wire).unwrap();
            netlink.add_address(wire, net.parse().unwrap()).unwrap();
        }
        // The node needs a way to service addresses before rules can act on what is sent there.
        let wire = netlink.link_index("wire").unwrap();
        netlink
            .replace_route(&Route::new(
                "0.0.0.0/0".parse().unwrap(),
                Some("192.0.2.2".parse().unwrap()),
                wire,
            ))
            .unwrap();
        let mut outside_netlink = Netlink::open_in(&outside).unwrap();
        let wire = outside_netlink.link_index("wire").unwrap();
        for net in ["203.0.113.0/24", "10.96.0.0/16", "10.200.0.0/16"] {
            let by_node = Route::new(net.parse().unwrap(), Some("192.0.2.1".parse().unwrap()), wire);
            outside_netlink.replace_route(&by_node).unwrap();
        }

        let leases = tempfile::tempdir().unwrap();
        let pods = (0..3).map(|n| pod(&node, leases.path(), n)).collect();
        let config = Config {
            cluster: "test".into(),
            node_name: "n1".into(),
            pod_cidrs: vec!["10.200.0.0/16".parse().unwrap()],
            mode,
            masquerade_mark: 0x4000,
            node_port_addresses: NodePortAddresses::default_of(mode),
            localhost_node_ports: true,
            health_address: None,
        };
        // Rules of others, which must survive everything.
        node.run(|| nftables::apply("table inet theirs {\n chain forward { type filter hook forward priority 5; counter accept; }\n}\n").unwrap()).unwrap();
        let backend = node
            .run(|| {
                let mut backend = Backend::new(&config, &api_node(&config));
                backend.apply(&[], true).unwrap();
                backend
            })
            .unwrap();
        World { node, outside, pods, _leases: leases, config, backend, known: vec![] }
    }

    /// Applies one service, as the proxy's loop does: rules first, then stale flows.
    fn apply(&mut self, service: &Service, endpoints: &[Value]) {
        let slice: EndpointSlice = serde_json::from_value(json!({
            "metadata": { "name": "s-1" },
            "addressType": "IPv4",
            "ports": [{ "name": "tcp", "port": 8080 }, { "name": "udp", "port": 8080, "protocol": "UDP" }],
            "endpoints": endpoints,
        }))
        .unwrap();
        let node = self.node.run(|| api_node(&self.config)).unwrap();
        let ports = service::ports(service, &[Arc::new(slice)], &node, Family::V4);
        let owner = Arc::new(Rank { created: String::new(), name: "ns/s".into() });
        let stale = stale_flows(&self.known, &ports, Family::V4);
        self.known = ports.clone();
        let backend = &mut self.backend;
        self.node
            .run(|| {
                backend.apply(&[Changed { owner, ipv4: ports, ipv6: vec![] }], false).unwrap();
                conntrack::forget_all(&stale).unwrap();
            })
            .unwrap();
    }

    fn endpoint(&self, pod: usize) -> Value {
        json!({ "addresses": [self.pods[pod].ip.to_string()], "nodeName": "n1" })
    }

    fn rules(&self) -> String {
        self.node.run(|| nftables::list_ruleset().unwrap()).unwrap()
    }
}

fn api_node(config: &Config) -> Node {
    Node {
        name: config.node_name.clone(),
        zone: None,
        addresses: vec![NODE.parse().unwrap()],
        all_addresses: vec![NODE.parse().unwrap()],
        host_ports: HostPorts::read().unwrap(),
        pod_cidrs: config.pod_cidrs.clone(),
    }
}

fn pod(node: &Namespace, leases: &std::path::Path, n: usize) -> Pod {
    let namespace = Namespace::create().unwrap();
    let mut netlink = Netlink::open_in(&namespace).unwrap();
    let lo = netlink.link_index("lo").unwrap();
    netlink.set_up(lo).unwrap();
    let config = json!({
        "cniVersion": "1.0.0", "name": "pods", "type": "bridge", "bridge": "br0", "isGateway": true, "hairpinMode": true,
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.200.1.0/24" }]], "routes": [{ "dst": "0.0.0.0/0" }], "dataDir": leases },
    });
    let environment = |name: &str| match name {
        "CNI_COMMAND" => Some("ADD".to_string()),
        "CNI_CONTAINERID" => Some(format!("p{n}")),
        "CNI_IFNAME" => Some("eth0".to_string()),
        "CNI_NETNS" => Some(namespace.path()),
        _ => None,
    };
    let mut output = Vec::new();
    let code = node
        .run(|| plugin::run(Plugin::Bridge, &environment, config.to_string().as_bytes(), &mut output))
        .unwrap();
    assert_eq!(code, 0, "{}", String::from_utf8_lossy(&output));
    let result: Value = serde_json::from_slice(&output).unwrap();
    let ip = result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap();
    Pod { namespace, ip }
}

/// A server in a pod that answers each connection with its own name and the client's address.
struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(pod: &Pod) -> Self {
        let address = SocketAddr::new(pod.ip, 8080);
        let listener = pod.namespace.run(|| TcpListener::bind(address).unwrap()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let mut stream = stream.unwrap();
                let peer = stream.peer_addr().unwrap().ip();
                stream.write_all(format!("{} {peer}", address.ip()).as_bytes()).unwrap();
            }
        });
        Server { address, stop, thread: Some(thread) }
    }

    fn stop(mut self, pod: &Pod) {
        self.stop.store(true, Ordering::Relaxed);
        let address = self.address;
        pod.namespace.run(|| drop(TcpStream::connect(address))).unwrap();
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Connects and returns which server answered, and as whom it saw the client.
fn ask(from: &Namespace, to: &str, patience: Duration) -> std::io::Result<(IpAddr, IpAddr)> {
    let to: SocketAddr = to.parse().unwrap();
    from.run(|| {
        let mut stream = TcpStream::connect_timeout(&to, patience)?;
        stream.set_read_timeout(Some(patience))?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (server, client) = text.split_once(' ').unwrap();
        Ok((server.parse().unwrap(), client.parse().unwrap()))
    })
    .unwrap()
}

fn servers(from: &Namespace, to: &str, times: usize) -> BTreeSet<IpAddr> {
    (0..times).map(|_| ask(from, to, PATIENCE).unwrap().0).collect()
}

fn service(spec: Value) -> Service {
    let mut spec = spec;
    spec["clusterIP"] = "10.96.0.1".into();
    spec["ports"] = json!([
        { "name": "tcp", "port": 80, "nodePort": 30080 },
        { "name": "udp", "port": 80, "nodePort": 30080, "protocol": "UDP" },
    ]);
    serde_json::from_value(json!({ "metadata": { "namespace": "ns", "name": "s" }, "spec": spec })).unwrap()
}

/// One contract for every mode.
fn services_work(mode: Mode) {
    let mut world = World::new(mode);
    let before = world.rules();
    let running: Vec<Server> = world.pods[1..].iter().map(Server::start).collect();
    let (first, second) = (world.pods[1].ip, world.pods[2].ip);
    let both = [world.endpoint(1), world.endpoint(2)];

    cluster_ip(&mut world, &both, first, second);
    from_outside(&mut world, &both, first);
    sources(&mut world, &both);
    the_hosts_own_ports(&mut world, &both);
    session_affinity(&mut world, &both);
    affinity_ends(&mut world, &both);
    those_that_end_serve_last(&mut world, &both);
    nobody_serves(&mut world);

    // Gone, and everything is as before.
    let owner = Arc::new(Rank { created: String::new(), name: "ns/s".into() });
    let backend = &mut world.backend;
    world
        .node
        .run(|| backend.apply(&[Changed { owner, ipv4: vec![], ipv6: vec![] }], false).unwrap())
        .unwrap();
    let strip = |rules: String| -> Vec<String> {
        // Counters of iptables' own rules go on counting.
        rules.lines().map(|l| l.split("counter").next().unwrap().trim().to_string()).collect()
    };
    assert_eq!(strip(world.rules()), strip(before));
    let config = world.config.clone();
    world.node.run(|| ferry_proxy::remove(&config).unwrap()).unwrap();
    let left = world.rules();
    assert!(left.contains("theirs") && !left.to_lowercase().contains("ferry"), "{left}");
    for (server, pod) in running.into_iter().zip(&world.pods[1..]) {
        server.stop(pod);
    }
}

fn cluster_ip(world: &mut World, both: &[Value], first: IpAddr, second: IpAddr) {
    world.apply(&service(json!({})), both);
    let client = &world.pods[0];
    assert_eq!(servers(&client.namespace, "10.96.0.1:80", 40), BTreeSet::from([first, second]));
    let (_, seen) = ask(&client.namespace, "10.96.0.1:80", PATIENCE).unwrap();
    assert_eq!(seen, client.ip, "a pod's address stays");
    ask(&world.node, "10.96.0.1:80", PATIENCE).expect("the node reaches the service");
    let (_, seen) = ask(&world.outside, "10.96.0.1:80", PATIENCE).expect("so does the outside, by the node");
    assert_eq!(seen.to_string(), "10.200.1.1", "with the node's address");
    let refused = ask(&client.namespace, "10.96.0.1:81", PATIENCE).unwrap_err();
    if world.config.mode == Mode::Nftables {
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "a port the service does not have");
    }
    world.apply(&service(json!({})), &both[..1]);
    let (server, _) = ask(&world.pods[1].namespace, "10.96.0.1:80", PATIENCE).expect("hairpin");
    assert_eq!(server, first);
}

fn from_outside(world: &mut World, both: &[Value], first: IpAddr) {
    let node_port = json!({ "type": "NodePort", "externalIPs": ["203.0.113.9"] });
    world.apply(&service(node_port), both);
    for to in ["192.0.2.1:30080", "203.0.113.9:80"] {
        let (_, seen) = ask(&world.outside, to, PATIENCE).unwrap();
        assert_eq!(seen.to_string(), "10.200.1.1", "{to}: the answer must come back this way");
    }
    ask(&world.pods[0].namespace, "192.0.2.1:30080", PATIENCE).expect("a pod by the node port");
    ask(&world.node, "192.0.2.1:30080", PATIENCE).expect("the node by its own node port");
    // As upstream has it: on loopback with iptables only; elsewhere than at the node's own address likewise.
    let is_iptables = world.config.mode == Mode::Iptables;
    for other in ["127.0.0.1:30080", "10.200.1.1:30080"] {
        let answer = ask(&world.node, other, SILENCE);
        assert_eq!(answer.is_ok(), is_iptables, "{other}: {answer:?}");
    }

    let mut remote = both[1].clone();
    remote["nodeName"] = "n2".into();
    let local = json!({ "type": "NodePort", "externalTrafficPolicy": "Local" });
    world.apply(&service(local.clone()), &[both[0].clone(), remote.clone()]);
    let answers: BTreeSet<(IpAddr, IpAddr)> =
        (0..12).map(|_| ask(&world.outside, "192.0.2.1:30080", PATIENCE).unwrap()).collect();
    assert_eq!(
        answers,
        BTreeSet::from([(first, "192.0.2.2".parse().unwrap())]),
        "local endpoints, address kept"
    );
    let inside = servers(&world.pods[0].namespace, "192.0.2.1:30080", 40);
    assert_eq!(inside.len(), 2, "from inside every endpoint serves");

    world.apply(&service(local), &[remote]);
    let error = ask(&world.outside, "192.0.2.1:30080", SILENCE).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock),
        "dropped, not refused: {error}"
    );
}

fn sources(world: &mut World, both: &[Value]) {
    let mut balanced =
        service(json!({ "type": "LoadBalancer", "loadBalancerSourceRanges": ["192.0.2.0/30"] }));
    let status = json!({ "loadBalancer": { "ingress": [{ "ip": "203.0.113.4" }] } });
    balanced.status = Some(serde_json::from_value(status).unwrap());
    world.apply(&balanced, both);
    ask(&world.outside, "203.0.113.4:80", PATIENCE).expect("an allowed source");
    balanced.spec.as_mut().unwrap().load_balancer_source_ranges = Some(vec!["198.51.100.0/24".into()]);
    world.apply(&balanced, both);
    ask(&world.outside, "203.0.113.4:80", SILENCE).expect_err("another source");
}

/// The built-in load balancer's address is the node's own: what the host listens on stays the host's.
fn the_hosts_own_ports(world: &mut World, both: &[Value]) {
    let mut balanced = service(json!({ "type": "LoadBalancer" }));
    let status = |ports: Value| {
        let ingress = json!([{ "ip": NODE, "ports": ports }]);
        Some(serde_json::from_value(json!({ "loadBalancer": { "ingress": ingress } })).unwrap())
    };
    balanced.status = status(Value::Null);
    let at = SocketAddr::new(NODE.parse().unwrap(), 80);
    world.apply(&balanced, both);
    ask(&world.outside, &at.to_string(), PATIENCE).expect("a port that nobody has is the service's");

    let listener = world.node.run(|| TcpListener::bind(at).unwrap()).unwrap();
    world.apply(&balanced, both);
    let connected = world.outside.run(|| TcpStream::connect_timeout(&at, PATIENCE)).unwrap().unwrap();
    let (_, peer) = listener.accept().expect("the host answers");
    assert_eq!(peer, connected.local_addr().unwrap());
    drop((listener, connected));

    // Another node keeps it: so its status says.
    balanced.status = status(json!([{ "port": 80, "protocol": "TCP", "error": "ferry.dev/HostPortInUse" }]));
    world.apply(&balanced, both);
    let error = ask(&world.outside, &at.to_string(), PATIENCE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "nobody listens there now");
}

fn session_affinity(world: &mut World, both: &[Value]) {
    let sticky = service(json!({
        "sessionAffinity": "ClientIP", "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 60 } },
    }));
    world.apply(&sticky, both);
    let client = &world.pods[0].namespace;
    let chosen = servers(client, "10.96.0.1:80", 20);
    assert_eq!(chosen.len(), 1, "a client stays with its server");
    let other =
        both.iter().find(|e| e["addresses"][0] != chosen.first().unwrap().to_string()).unwrap().clone();
    world.apply(&sticky, std::slice::from_ref(&other));
    let now = servers(&world.pods[0].namespace, "10.96.0.1:80", 10);
    assert_eq!(now.first().unwrap().to_string(), other["addresses"][0].as_str().unwrap());
}

/// Who has not come for as long as the timeout is anybody's again.
fn affinity_ends(world: &mut World, both: &[Value]) {
    let sticky = service(json!({
        "sessionAffinity": "ClientIP", "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 1 } },
    }));
    world.apply(&sticky, both);
    let client = &world.pods[0].namespace;
    let first = servers(client, "10.96.0.1:80", 5);
    assert_eq!(first.len(), 1, "within the timeout a client stays");
    // Each question begins the time anew, so it must pass between two; the other is as likely as the same.
    let another = (0..16).any(|_| {
        std::thread::sleep(Duration::from_millis(1300));
        servers(client, "10.96.0.1:80", 1) != first
    });
    assert!(another, "after the timeout any server may be chosen");
}

fn those_that_end_serve_last(world: &mut World, both: &[Value]) {
    let ending = |endpoint: &Value| {
        let mut endpoint = endpoint.clone();
        endpoint["conditions"] = json!({ "ready": false, "serving": true, "terminating": true });
        endpoint
    };
    let address =
        |endpoint: &Value| -> IpAddr { endpoint["addresses"][0].as_str().unwrap().parse().unwrap() };
    world.apply(&service(json!({})), &[both[0].clone(), ending(&both[1])]);
    let client = &world.pods[0].namespace;
    assert_eq!(servers(client, "10.96.0.1:80", 20), BTreeSet::from([address(&both[0])]), "who stays serves");
    world.apply(&service(json!({})), &[ending(&both[1])]);
    let client = &world.pods[0].namespace;
    assert_eq!(
        servers(client, "10.96.0.1:80", 5),
        BTreeSet::from([address(&both[1])]),
        "until nobody else does"
    );
}

fn nobody_serves(world: &mut World) {
    world.apply(&service(json!({})), &[]);
    for from in [&world.pods[0].namespace, &world.node] {
        let error = ask(from, "10.96.0.1:80", PATIENCE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "refused at once");
    }
    let mut remote = world.endpoint(1);
    remote["nodeName"] = "n2".into();
    world.apply(&service(json!({ "internalTrafficPolicy": "Local" })), &[remote]);
    let error = ask(&world.pods[0].namespace, "10.96.0.1:80", SILENCE).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock), "{error}");
}

fn udp_follows_its_endpoints(mode: Mode) {
    let mut world = World::new(mode);
    let sockets: Vec<UdpSocket> = world.pods[1..]
        .iter()
        .map(|pod| {
            let socket =
                pod.namespace.run(|| UdpSocket::bind(SocketAddr::new(pod.ip, 8080)).unwrap()).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        })
        .collect();
    let client = world.pods[0].namespace.run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let talk = |client: &UdpSocket, server: &UdpSocket| {
        let mut buffer = [0; 16];
        client.send_to(b"ping", "10.96.0.1:80").unwrap();
        let (_, peer) = server.recv_from(&mut buffer).unwrap();
        server.send_to(b"pong", peer).unwrap();
        let (_, from) = client.recv_from(&mut buffer).unwrap();
        assert_eq!(from.to_string(), "10.96.0.1:80", "the answer comes from the service's address");
    };
    let plain = service(json!({}));
    let (first, second) = (world.endpoint(1), world.endpoint(2));
    world.apply(&plain, &[first]);
    talk(&client, &sockets[0]);
    // The same socket, so the same flow: without forgetting it would go to the first for ever.
    world.apply(&plain, std::slice::from_ref(&second));
    talk(&client, &sockets[1]);

    // Many at once are found by listing.
    let first = world.endpoint(1);
    let absent = |n| json!({ "addresses": [format!("10.200.9.{n}")], "conditions": { "ready": true } });
    let mut many: Vec<Value> = (1..30).map(absent).collect();
    world.apply(&plain, &[second, first.clone()]);
    many.push(first.clone());
    world.apply(&plain, std::slice::from_ref(&first));
    talk(&client, &sockets[0]);
    world.apply(&plain, &many);
    world.apply(&plain, &[world.endpoint(2)]);
    talk(&client, &sockets[1]);
}

#[test]
fn services_work_with_nftables() {
    services_work(Mode::Nftables);
}

#[test]
fn services_work_with_iptables() {
    services_work(Mode::Iptables);
}

#[test]
fn udp_follows_its_endpoints_with_nftables() {
    udp_follows_its_endpoints(Mode::Nftables);
}

#[test]
fn udp_follows_its_endpoints_with_iptables() {
    udp_follows_its_endpoints(Mode::Iptables);
}
