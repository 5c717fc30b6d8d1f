//! Ferry's plugins beside those of the CNI project (Debian's containernetworking-plugins): the same
//! results, and either takes over from the other. Needs root and that package.

use std::{
    io::Write,
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use ferry_cni::plugin::{Plugin, run};
use ferry_linux::net::{Namespace, Netlink};
use serde_json::{Value, json};

const THEIRS: &str = "/usr/lib/cni";
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Whose {
    Ours,
    Theirs,
}

struct Host {
    namespace: Namespace,
    leases: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        assert!(Path::new(THEIRS).join("bridge").exists(), "containernetworking-plugins is needed");
        Host { namespace: Namespace::create().unwrap(), leases: tempfile::tempdir().unwrap() }
    }

    fn up(&self, link: &str) {
        let mut netlink = Netlink::open_in(&self.namespace).unwrap();
        let index = netlink.link_index(link).unwrap();
        netlink.set_up(index).unwrap();
    }

    fn config(&self) -> Value {
        json!({
            "cniVersion": "1.0.0",
            "name": "swapped",
            "type": "bridge",
            "bridge": "cnio0",
            "isDefaultGateway": true,
            "hairpinMode": true,
            "mtu": 1400,
            "dns": { "nameservers": ["10.96.0.10"], "search": ["cluster.local"] },
            "ipam": {
                "type": "host-local",
                "ranges": [[{ "subnet": "10.201.0.0/24", "rangeStart": "10.201.0.10" }], [{ "subnet": "fd01::/64" }]],
                "routes": [{ "dst": "10.0.0.0/8" }, { "dst": "192.168.0.0/16", "gw": "10.201.0.77" }],
                "dataDir": self.leases.path(),
            },
        })
    }

    fn call(&self, whose: Whose, command: &str, id: &str, pod: &Namespace, config: &Value) -> Value {
        self.call_plugin(whose, "bridge", command, id, pod, config)
    }

    fn call_plugin(
        &self,
        whose: Whose,
        plugin: &str,
        command: &str,
        id: &str,
        pod: &Namespace,
        config: &Value,
    ) -> Value {
        let variables = [
            ("CNI_COMMAND", command.to_string()),
            ("CNI_CONTAINERID", id.to_string()),
            ("CNI_IFNAME", "eth0".to_string()),
            ("CNI_NETNS", pod.path()),
            ("CNI_PATH", THEIRS.to_string()),
        ];
        let input = config.to_string();
        let (success, output) = self
            .namespace
            .run(|| match whose {
                Whose::Ours => {
                    let environment = |name: &str| {
                        variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone())
                    };
                    let mut output = Vec::new();
                    let ours = Plugin::named(plugin).unwrap();
                    (run(ours, &environment, input.as_bytes(), &mut output) == 0, output)
                }
                Whose::Theirs => {
                    let mut child = Command::new(Path::new(THEIRS).join(plugin))
                        .envs(variables.iter().cloned())
                        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
                        .stdin(Stdio::piped())
                        .stdout(Stdio::piped())
                        .spawn()
                        .unwrap();
                    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
                    let output = child.wait_with_output().unwrap();
                    (output.status.success(), output.stdout)
                }
            })
            .unwrap();
        assert!(success, "{whose:?} {command}: {}", String::from_utf8_lossy(&output));
        if output.is_empty() { Value::Null } else { serde_json::from_slice(&output).unwrap() }
    }

    fn ports(&self) -> usize {
        let links = Netlink::open_in(&self.namespace).unwrap().links().unwrap();
        links.iter().filter(|link| link.kind.as_deref() == Some("veth")).count()
    }

    fn leased(&self) -> usize {
        let files = std::fs::read_dir(self.leases.path().join("swapped")).unwrap();
        files
            .filter(|file| {
                file.as_ref().unwrap().file_name().to_str().unwrap().parse::<std::net::IpAddr>().is_ok()
            })
            .count()
    }
}

/// What may differ: names and hardware addresses that each makes as it likes, and the order of routes.
fn comparable(mut result: Value, pod: &Namespace) -> Value {
    for interface in result["interfaces"].as_array_mut().unwrap() {
        let interface = interface.as_object_mut().unwrap();
        assert!(interface.remove("mac").is_some());
        if interface["name"].as_str().unwrap().starts_with("veth") {
            interface["name"] = "veth".into();
        }
        if interface.get("sandbox").is_some_and(|sandbox| *sandbox == pod.path()) {
            interface["sandbox"] = "pod".into();
        }
    }
    result["routes"].as_array_mut().unwrap().sort_by_key(Value::to_string);
    result
}

/// What is in the pod: link, addresses, routes.
fn inside(pod: &Namespace) -> (u32, Vec<String>, Vec<String>) {
    let mut netlink = Netlink::open_in(pod).unwrap();
    let link = netlink.link("eth0").unwrap().unwrap();
    assert!(link.up);
    let mut addresses: Vec<String> = netlink.addresses().unwrap().iter().map(|a| a.net.to_string()).collect();
    addresses.sort();
    let routes = netlink.routes().unwrap().into_iter().filter(|route| route.gateway.is_some());
    let mut routes: Vec<String> = routes.map(|r| format!("{} {:?}", r.destination, r.gateway)).collect();
    routes.sort();
    (link.mtu, addresses, routes)
}

#[test]
fn a_pod_gets_the_same_link_addresses_and_routes_from_either_plugin() {
    let outcome = |whose| {
        let host = Host::new();
        let pod = Namespace::create().unwrap();
        let config = host.config();
        let result = comparable(host.call(whose, "ADD", "a", &pod, &config), &pod);
        let inside = inside(&pod);
        host.call(whose, "DEL", "a", &pod, &config);
        (result, inside, host.ports(), host.leased())
    };
    assert_eq!(outcome(Whose::Ours), outcome(Whose::Theirs));
}

#[test]
fn either_takes_over_from_the_other() {
    for (first, second) in [(Whose::Ours, Whose::Theirs), (Whose::Theirs, Whose::Ours)] {
        let host = Host::new();
        let mut config = host.config();
        // Their CHECK finds no route whose gateway is left to the plugin, not even its own.
        config["ipam"]["routes"] = json!([{ "dst": "192.168.0.0/16", "gw": "10.201.0.77" }]);
        let (a, b) = (Namespace::create().unwrap(), Namespace::create().unwrap());
        let one = host.call(first, "ADD", "a", &a, &config);
        let two = host.call(second, "ADD", "b", &b, &config);
        assert_eq!(one["ips"][0]["address"], "10.201.0.10/24");
        assert_eq!(two["ips"][0]["address"], "10.201.0.11/24", "the other's leases count");
        let mut checked = config.clone();
        checked["prevResult"] = one;
        host.call(second, "CHECK", "a", &a, &checked);
        host.call(second, "DEL", "a", &a, &config);
        host.call(first, "DEL", "b", &b, &config);
        assert_eq!((host.ports(), host.leased()), (0, 0), "{first:?} then {second:?}");
    }
}

/// In a chain of plugins either can stand for the other.
#[test]
fn host_ports_and_loopback_are_the_same() {
    let outcome = |bridge, whose| {
        let host = Host::new();
        host.up("lo");
        let pod = Namespace::create().unwrap();
        let mut config = host.config();
        config["ipam"]["ranges"] = json!([[{ "subnet": "10.201.0.0/24" }]]);
        let before = host.call(bridge, "ADD", "a", &pod, &config);
        let loopback = json!({ "cniVersion": "1.0.0", "name": "lo", "type": "loopback" });
        host.call_plugin(whose, "loopback", "ADD", "a", &pod, &loopback);
        let lo_is_up = Netlink::open_in(&pod).unwrap().link("lo").unwrap().unwrap().up;

        let mapping = json!({
            "cniVersion": "1.0.0", "name": "swapped", "type": "portmap", "prevResult": before,
            "capabilities": { "portMappings": true }, "portMapDir": host.leases.path().join("portmap"),
            "runtimeConfig": { "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }] },
        });
        let result = host.call_plugin(whose, "portmap", "ADD", "a", &pod, &mapping);
        assert_eq!(result, before, "{whose:?}: a chained plugin hands on what it was given");
        // Their CHECK looks for rules of IPv6 even where the pod has no such address.
        if whose == Whose::Ours {
            host.call_plugin(whose, "portmap", "CHECK", "a", &pod, &mapping);
        }
        let listener = pod.run(|| TcpListener::bind("10.201.0.2:80").unwrap()).unwrap();
        let answers = |at: &str| {
            host.namespace.run(|| TcpStream::connect_timeout(&at.parse().unwrap(), PATIENCE)).unwrap()
        };
        let met: Vec<bool> =
            ["10.201.0.1:8080", "127.0.0.1:8080", "10.201.0.1:8081"].map(|at| answers(at).is_ok()).into();
        drop(listener);
        host.call_plugin(whose, "portmap", "DEL", "a", &pod, &mapping);
        let after = answers("10.201.0.1:8080").is_ok();
        host.call(bridge, "DEL", "a", &pod, &config);
        (lo_is_up, met, after)
    };
    for bridge in [Whose::Ours, Whose::Theirs] {
        let ours = outcome(bridge, Whose::Ours);
        assert_eq!(ours, (true, vec![true, true, false], false), "behind {bridge:?} bridge");
        assert_eq!(outcome(bridge, Whose::Theirs), ours, "behind {bridge:?} bridge");
    }
}
