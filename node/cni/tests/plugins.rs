//! The plugins on the real kernel: a namespace stands for the host, others for pods.
//! Needs root, and nft for masquerading and host ports.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    time::Duration,
};

use ferry_cni::plugin::{Plugin, run};
use ferry_linux::net::{Namespace, Netlink, nftables};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(5);

struct Host {
    namespace: Namespace,
    folder: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        let host = Self { namespace: Namespace::create().unwrap(), folder: tempfile::tempdir().unwrap() };
        host.up("lo");
        host
    }

    fn up(&self, link: &str) {
        let mut netlink = Netlink::open_in(&self.namespace).unwrap();
        let index = netlink.link_index(link).unwrap();
        netlink.set_up(index).unwrap();
    }

    fn classic(&self) -> Value {
        json!({
            "cniVersion": "0.3.1",
            "name": "bridge",
            "type": "bridge",
            "bridge": "cnio0",
            "isGateway": true,
            "ipMasq": true,
            "ipam": {
                "type": "host-local",
                "ranges": [[{ "subnet": "10.200.7.0/24" }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
                "dataDir": self.folder.path(),
            },
        })
    }

    fn call(
        &self,
        plugin: Plugin,
        command: &str,
        id: &str,
        pod: Option<&str>,
        config: &Value,
    ) -> Result<Value, Value> {
        self.call_bytes(plugin, command, id, pod, config.to_string().as_bytes())
    }

    fn call_bytes(
        &self,
        plugin: Plugin,
        command: &str,
        id: &str,
        pod: Option<&str>,
        input: &[u8],
    ) -> Result<Value, Value> {
        let environment = |name: &str| match name {
            "CNI_COMMAND" => Some(command.to_string()),
            "CNI_CONTAINERID" => Some(id.to_string()),
            "CNI_IFNAME" => Some("eth0".to_string()),
            "CNI_NETNS" => pod.map(String::from),
            "CNI_PATH" => Some("/nowhere".to_string()),
            _ => None,
        };
        let mut output = Vec::new();
        let code = self.namespace.run(|| run(plugin, &environment, input, &mut output)).unwrap();
        let answer = if output.is_empty() { Value::Null } else { serde_json::from_slice(&output).unwrap() };
        if code == 0 { Ok(answer) } else { Err(answer) }
    }

    fn bridge(&self, command: &str, id: &str, pod: &Namespace, config: &Value) -> Result<Value, Value> {
        self.call(Plugin::Bridge, command, id, Some(&pod.path()), config)
    }

    fn links(&self) -> BTreeSet<String> {
        Netlink::open_in(&self.namespace)
            .unwrap()
            .links()
            .unwrap()
            .into_iter()
            .map(|link| link.name)
            .collect()
    }

    fn rules(&self) -> String {
        self.namespace.run(|| nftables::list_ruleset().unwrap()).unwrap()
    }
}

fn address(result: &Value) -> IpAddr {
    result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap()
}

fn code(outcome: Result<Value, Value>) -> u64 {
    outcome.unwrap_err()["code"].as_u64().unwrap()
}

/// A TCP connection from one namespace to a listener in another that says who called.
fn connect(from: &Namespace, to: SocketAddr, listener: &TcpListener) -> std::io::Result<SocketAddr> {
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            let (mut stream, peer) = listener.accept().unwrap();
            stream.write_all(peer.to_string().as_bytes()).unwrap();
        });
        let outcome = from
            .run(|| {
                let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                let mut text = String::new();
                stream.read_to_string(&mut text)?;
                Ok(text.parse().unwrap())
            })
            .unwrap();
        assert!(outcome.is_ok() || !server.is_finished(), "{outcome:?}");
        outcome
    })
}

/// Once for each address: a program that another test is just starting may hold a listener open that was dropped.
fn listen(namespace: &Namespace, address: SocketAddr) -> TcpListener {
    namespace.run(|| TcpListener::bind(address).unwrap()).unwrap()
}

#[test]
fn the_classic_configuration_works_as_it_stands() {
    let host = Host::new();
    let config = host.classic();
    let (first, second) = (Namespace::create().unwrap(), Namespace::create().unwrap());

    let a = host.bridge("ADD", "a", &first, &config).unwrap();
    let b = host.bridge("ADD", "b", &second, &config).unwrap();
    assert_eq!(a["cniVersion"], "0.3.1");
    assert_eq!(a["ips"][0]["address"], "10.200.7.2/24");
    assert_eq!(a["ips"][0]["version"], "4");
    assert_eq!(a["ips"][0]["gateway"], "10.200.7.1");
    assert_eq!(a["ips"][0]["interface"], 2);
    assert_eq!(a["interfaces"][0]["name"], "cnio0");
    assert_eq!(a["interfaces"][2]["name"], "eth0");
    assert_eq!(a["interfaces"][2]["sandbox"], first.path());
    assert_eq!(a["routes"], json!([{ "dst": "0.0.0.0/0" }]));
    assert_ne!(address(&a), address(&b));

    // pod to pod
    let server = SocketAddr::new(address(&b), 80);
    let listener = listen(&second, server);
    let peer = connect(&first, server, &listener).unwrap();
    assert_eq!(peer.ip(), address(&a), "between pods the source stays");
    // host to pod
    assert_eq!(connect(&host.namespace, server, &listener).unwrap().ip().to_string(), "10.200.7.1");
    // pod to the host's gateway address
    let gateway: SocketAddr = "10.200.7.1:9000".parse().unwrap();
    assert_eq!(connect(&first, gateway, &listen(&host.namespace, gateway)).unwrap().ip(), address(&a));

    // CHECK came with 0.4.0
    assert_eq!(code(host.bridge("CHECK", "a", &first, &config)), 1);
    let mut checked = config.clone();
    checked["cniVersion"] = "0.4.0".into();
    checked["prevResult"] = a.clone();
    host.bridge("CHECK", "a", &first, &checked).unwrap();
    {
        let mut pod = Netlink::open_in(&first).unwrap();
        let eth0 = pod.link_index("eth0").unwrap();
        pod.delete_address(eth0, "10.200.7.2/24".parse().unwrap()).unwrap();
    }
    assert_eq!(code(host.bridge("CHECK", "a", &first, &checked)), 103);

    for _ in 0..2 {
        host.bridge("DEL", "a", &first, &config).unwrap();
        host.bridge("DEL", "b", &second, &config).unwrap();
    }
    assert_eq!(host.links(), BTreeSet::from(["lo".into(), "cnio0".into()]));
    assert_eq!(host.rules(), "", "the last pod took the rules along");
    assert!(!host.folder.path().join("bridge/10.200.7.2").exists());
}

#[test]
fn packets_that_leave_the_network_are_masqueraded() {
    let host = Host::new();
    let outside = Namespace::create().unwrap();
    // A wire between the host and the outside, which knows no way back to the pods.
    let mut netlink = Netlink::open_in(&host.namespace).unwrap();
    netlink
        .add_veth(&ferry_linux::net::Veth {
            name: "wire",
            peer_name: "wire",
            peer_namespace: &outside,
            peer_mac: None,
            mtu: None,
        })
        .unwrap();
    for (namespace, net) in [(&host.namespace, "192.0.2.1/24"), (&outside, "192.0.2.2/24")] {
        let mut netlink = Netlink::open_in(namespace).unwrap();
        let wire = netlink.link_index("wire").unwrap();
        netlink.set_up(wire).unwrap();
        netlink.add_address(wire, net.parse().unwrap()).unwrap();
    }
    let pod = Namespace::create().unwrap();
    let config = host.classic();
    host.bridge("ADD", "a", &pod, &config).unwrap();
    let server: SocketAddr = "192.0.2.2:80".parse().unwrap();
    assert_eq!(connect(&pod, server, &listen(&outside, server)).unwrap().ip().to_string(), "192.0.2.1");
    host.bridge("DEL", "a", &pod, &config).unwrap();
}

#[test]
fn host_ports_lead_to_the_pod() {
    let host = Host::new();
    let (server, client) = (Namespace::create().unwrap(), Namespace::create().unwrap());
    let mut config = host.classic();
    config["cniVersion"] = "1.1.0".into();
    config["hairpinMode"] = true.into();
    let plain = config.clone();
    config["capabilities"] = json!({ "portMappings": true });
    config["portMapDir"] = host.folder.path().join("portmap").to_str().into();
    config["runtimeConfig"] = json!({ "portMappings": [
        { "hostPort": 8080, "containerPort": 80, "protocol": "tcp" },
        { "hostPort": 5353, "containerPort": 53, "protocol": "udp" },
    ]});
    let result = host.bridge("ADD", "server", &server, &config).unwrap();
    host.bridge("ADD", "client", &client, &plain).unwrap();
    let bind = SocketAddr::new(address(&result), 80);

    let by_gateway: SocketAddr = "10.200.7.1:8080".parse().unwrap();
    let listener = listen(&server, bind);
    connect(&client, by_gateway, &listener).unwrap();
    connect(&server, by_gateway, &listener).expect("a pod reaches itself by its host port");
    connect(&host.namespace, "127.0.0.1:8080".parse().unwrap(), &listener).unwrap();

    let datagrams = server.run(|| UdpSocket::bind(SocketAddr::new(address(&result), 53)).unwrap()).unwrap();
    datagrams.set_read_timeout(Some(PATIENCE)).unwrap();
    client
        .run(|| UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"ping", "10.200.7.1:5353").unwrap())
        .unwrap();
    let mut buffer = [0; 16];
    assert_eq!(datagrams.recv_from(&mut buffer).unwrap().0, 4);

    // the same host port again
    let other = Namespace::create().unwrap();
    assert_eq!(code(host.bridge("ADD", "other", &other, &config)), 102);
    assert!(Netlink::open_in(&other).unwrap().link("eth0").unwrap().is_none(), "a failed ADD leaves nothing");

    let mut checked = config.clone();
    checked["prevResult"] = result;
    host.bridge("CHECK", "server", &server, &checked).unwrap();
    for id in ["server", "client", "other"] {
        host.bridge("DEL", id, &server, &config).unwrap();
    }
    assert_eq!(host.rules(), "");
}

#[test]
fn concurrent_calls_lease_each_address_once() {
    let host = Host::new();
    let mut config = host.classic();
    config["ipMasq"] = false.into();
    config["ipam"]["ranges"] = json!([[{ "subnet": "10.200.8.0/27" }]]);
    let addresses: Vec<Result<Value, Value>> = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..40)
            .map(|n| {
                let (host, config) = (&host, &config);
                scope.spawn(move || {
                    host.call(Plugin::HostLocal, "ADD", &format!("c{n}"), Some("/proc/self/ns/net"), config)
                })
            })
            .collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    let leased: Vec<IpAddr> = addresses.iter().filter_map(|r| r.as_ref().ok()).map(address).collect();
    let unique: BTreeSet<&IpAddr> = leased.iter().collect();
    // 30 addresses, one of them the gateway's
    assert_eq!((leased.len(), unique.len()), (29, 29));
    assert!(addresses.into_iter().filter(Result::is_err).all(|refused| code(refused) == 101));

    config["cniVersion"] = "1.1.0".into();
    assert_eq!(code(host.call(Plugin::HostLocal, "STATUS", "", None, &config)), 50);
    // GC keeps what the runtime still knows
    config["cni.dev/valid-attachments"] = json!([{ "containerID": "c3", "ifname": "eth0" }]);
    host.call(Plugin::HostLocal, "GC", "", None, &config).unwrap();
    host.call(Plugin::HostLocal, "STATUS", "", None, &config).unwrap();
    let left = std::fs::read_dir(host.folder.path().join("bridge")).unwrap();
    let left =
        left.filter(|e| e.as_ref().unwrap().file_name().to_str().unwrap().parse::<IpAddr>().is_ok()).count();
    assert!(left <= 1);
}

#[test]
fn concurrent_pods_share_one_bridge() {
    let host = Host::new();
    let config = host.classic();
    let pods: Vec<Namespace> = (0..8).map(|_| Namespace::create().unwrap()).collect();
    std::thread::scope(|scope| {
        for (n, pod) in pods.iter().enumerate() {
            let (host, config) = (&host, &config);
            scope.spawn(move || host.bridge("ADD", &format!("p{n}"), pod, config).unwrap());
        }
    });
    assert_eq!(host.links().len(), 2 + pods.len());
    for (n, pod) in pods.iter().enumerate() {
        host.bridge("DEL", &format!("p{n}"), pod, &config).unwrap();
    }
    assert_eq!(host.links().len(), 2);
    assert_eq!(host.rules(), "");
}

/// Pods whose DEL was lost: the runtime names those it still knows, and the others' addresses and ports are free.
#[test]
fn garbage_is_what_the_runtime_does_not_know() {
    let host = Host::new();
    let mut config = host.classic();
    config["cniVersion"] = "1.1.0".into();
    config["ipMasq"] = false.into();
    config["ipam"]["ranges"] = json!([[{ "subnet": "10.200.9.0/29" }]]);
    config["capabilities"] = json!({ "portMappings": true });
    config["portMapDir"] = host.folder.path().join("portmap").to_str().into();
    let with_port = |port: u16| {
        let mut config = config.clone();
        config["runtimeConfig"] = json!({ "portMappings": [
            { "hostPort": port, "containerPort": 80, "protocol": "tcp" },
        ]});
        config
    };
    let pods: Vec<Namespace> = (0..5).map(|_| Namespace::create().unwrap()).collect();
    for (n, pod) in pods.iter().enumerate() {
        host.bridge("ADD", &format!("p{n}"), pod, &with_port(8000 + n as u16)).unwrap();
    }
    // Of eight addresses two have a meaning and one is the gateway's.
    let late = Namespace::create().unwrap();
    assert_eq!(code(host.bridge("ADD", "late", &late, &config)), 101);
    assert_eq!(code(host.call(Plugin::Bridge, "STATUS", "", None, &config)), 50, "no address is left");

    let mut known = config.clone();
    known["cni.dev/valid-attachments"] =
        json!([{ "containerID": "p1", "ifname": "eth0" }, { "containerID": "p3", "ifname": "eth0" }]);
    host.call(Plugin::Bridge, "GC", "", None, &known).unwrap();
    host.call(Plugin::Bridge, "STATUS", "", None, &config).unwrap();
    let rules = host.rules();
    let mapped: Vec<u16> = (8000..8005).filter(|port| rules.contains(&port.to_string())).collect();
    assert_eq!(mapped, [8001, 8003], "{rules}");
    host.bridge("ADD", "late", &late, &with_port(8000)).expect("an address and a port are free again");
    host.call(Plugin::Bridge, "GC", "", None, &known).unwrap();
    host.call(Plugin::Bridge, "GC", "", None, &config).expect("none is known");
    assert_eq!(host.rules(), "");

    // Before 1.1.0 there was neither command.
    config["cniVersion"] = "1.0.0".into();
    for command in ["GC", "STATUS"] {
        assert_eq!(code(host.call(Plugin::Bridge, command, "", None, &config)), 1, "{command}");
    }
}

#[test]
fn both_families_work_side_by_side() {
    let host = Host::new();
    let mut config = host.classic();
    config["cniVersion"] = "1.0.0".into();
    config["ipam"]["ranges"] = json!([[{ "subnet": "10.200.7.0/24" }], [{ "subnet": "fd00:7::/64" }]]);
    config["ipam"]["routes"] = json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]);
    let (first, second) = (Namespace::create().unwrap(), Namespace::create().unwrap());
    host.bridge("ADD", "a", &first, &config).unwrap();
    let b = host.bridge("ADD", "b", &second, &config).unwrap();
    assert_eq!(b["ips"][1]["address"], "fd00:7::3/64");
    assert!(b["ips"][1].get("version").is_none());
    let server: SocketAddr = "[fd00:7::3]:80".parse().unwrap();
    assert_eq!(connect(&first, server, &listen(&second, server)).unwrap().ip().to_string(), "fd00:7::2");
    host.bridge("DEL", "a", &first, &config).unwrap();
    host.bridge("DEL", "b", &second, &config).unwrap();
    assert_eq!(host.rules(), "");
}

#[test]
fn loopback_sets_lo_up() {
    let host = Host::new();
    let pod = Namespace::create().unwrap();
    let config = json!({ "cniVersion": "1.0.0", "name": "cni-loopback", "type": "loopback" });
    let result = host.call(Plugin::Loopback, "ADD", "a", Some(&pod.path()), &config).unwrap();
    assert_eq!(result["interfaces"][0]["name"], "lo");
    let server: SocketAddr = "127.0.0.1:80".parse().unwrap();
    connect(&pod, server, &listen(&pod, server)).unwrap();
    host.call(Plugin::Loopback, "CHECK", "a", Some(&pod.path()), &config).unwrap();
    host.call(Plugin::Loopback, "DEL", "a", Some(&pod.path()), &config).unwrap();
}

#[test]
fn bad_input_is_refused_with_its_code() {
    let host = Host::new();
    let pod = Namespace::create().unwrap();
    let check = |change: &dyn Fn(&mut Value), expected: u64| {
        let mut config = host.classic();
        change(&mut config);
        assert_eq!(code(host.bridge("ADD", "a", &pod, &config)), expected, "{config}");
    };
    check(&|c| c["cniVersion"] = "9.9.9".into(), 1);
    check(&|c| drop(c.as_object_mut().unwrap().remove("cniVersion")), 1);
    check(&|c| c["vlan"] = 7.into(), 2);
    check(&|c| c["name"] = "../etc".into(), 7);
    check(&|c| c["ipam"]["ranges"] = json!([[{ "subnet": "10.200.7.0/31" }]]), 7);
    check(&|c| c["ipam"]["ranges"] = json!([[{ "subnet": "10.0.0.0/8" }], [{ "subnet": "10.1.0.0/16" }]]), 7);
    check(&|c| c["ipam"]["type"] = "elsewhere".into(), 7);
    check(&|c| c["bridge"] = "lo".into(), 7);
    check(&|c| c["isGateway"] = "yes".into(), 7);
    check(&|c| c["prevResult"] = json!({ "ips": 7 }), 6);

    assert_eq!(code(host.call_bytes(Plugin::Bridge, "ADD", "a", Some(&pod.path()), b"{ not json")), 6);
    assert_eq!(code(host.call_bytes(Plugin::Bridge, "ADD", "a", Some(&pod.path()), &[0xff, 0xfe])), 6);
    assert_eq!(code(host.call(Plugin::Bridge, "ADD", "a", None, &host.classic())), 4);
    assert_eq!(code(host.call(Plugin::Bridge, "ADD", "a", Some("/run/netns/vanished"), &host.classic())), 3);
    assert_eq!(code(host.call(Plugin::Bridge, "JUMP", "a", None, &host.classic())), 4);
    assert_eq!(code(host.call(Plugin::PortMap, "ADD", "a", Some(&pod.path()), &host.classic())), 7);

    // a namespace that is gone is no reason for DEL to fail
    host.call(Plugin::Bridge, "DEL", "a", Some("/run/netns/vanished"), &host.classic()).unwrap();
    host.call(Plugin::Bridge, "DEL", "never-added", None, &host.classic()).unwrap();
    let version = host.call_bytes(Plugin::Bridge, "VERSION", "", None, br#"{"cniVersion":"0.2.0"}"#).unwrap();
    assert_eq!(version["cniVersion"], "0.2.0");
    assert_eq!(version["supportedVersions"][4], "1.1.0");
    assert!(Netlink::open_in(&pod).unwrap().link("eth0").unwrap().is_none());
    assert!(!Path::new("/etc/10.200.7.2").exists());
}

#[test]
fn an_add_killed_half_way_is_repeated() {
    let host = Host::new();
    let pod = Namespace::create().unwrap();
    let config = host.classic();
    host.bridge("ADD", "a", &pod, &config).unwrap();
    // The lease is gone, the link is still there: as if DEL had been killed.
    std::fs::remove_file(host.folder.path().join("bridge/10.200.7.2")).unwrap();
    let again = host.bridge("ADD", "a", &pod, &config).unwrap();
    assert_eq!(again["ips"][0]["address"], "10.200.7.3/24");
    assert_eq!(code(host.bridge("ADD", "a", &pod, &config)), 102, "ADD twice is the runtime's mistake");
    host.bridge("DEL", "a", &pod, &config).unwrap();
    assert_eq!(host.links().len(), 2);
}
