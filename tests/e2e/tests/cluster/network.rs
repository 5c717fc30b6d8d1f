//! A host of its own, and what its network has to put up with: ports of the host that pods and services ask for,
//! ranges that overlap, a firewall that drops what is forwarded.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::host::{ferry, run};
use crate::images;
use crate::segment::{Segment, address, get, welcomes};

#[test]
fn a_host_and_its_cluster_share_one_network() {
    let Some(binary) = ferry() else { return };
    let segment = Segment::new();
    let mut cluster = Cluster::new(binary, &["--node-name", "one"]);
    cluster.enter = segment.on("one");
    ranges_that_overlap_are_refused(&cluster);
    cluster.up();
    let archive = images::archive(cluster.directory.path(), &cluster.root);
    run(cluster.ferry().args(["image", "load"]).arg(&archive).arg("--data-dir").arg(cluster.data_dir()));
    for (pod, more) in [("web", json!([{ "containerPort": 80, "hostPort": 8080 }])), ("client", json!([]))] {
        apply(&cluster, &pod_with_ports(pod, &more));
    }
    for pod in ["pod/web", "pod/client"] {
        cluster.kubectl(&["wait", "--for=condition=Ready", pod, "--timeout=120s"]);
    }

    a_host_port_leads_to_its_pod(&cluster, &segment);
    the_host_keeps_what_it_listens_on(&cluster, &segment);
    node_ports_do_not_collide(&cluster);
    a_balancer_is_told_whether_the_host_has_endpoints(&cluster, &segment);
    policies_are_kept(&cluster);
    a_firewall_that_drops_forwards_is_named(&cluster, &segment);
    nodes_that_overlap_are_named(&cluster);
}

/// At the start, in words that say which flag and what is in the way.
fn ranges_that_overlap_are_refused(cluster: &Cluster) {
    let check = |ranges: &[&str], expected: &str| {
        let data_dir = cluster.directory.path().join("overlapping");
        let mut command = cluster.ferry();
        command
            .args(["server", "--port", &cluster.port().to_string(), "--data-dir"])
            .arg(&data_dir)
            .args(ranges);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(expected), "{ranges:?}: {said}");
        run(cluster.ferry().args(["down", "--purge", "--data-dir"]).arg(&data_dir));
    };
    check(
        &["--cluster-cidr", "10.96.128.0/20", "--service-cluster-ip-range", "10.96.0.0/16"],
        "--cluster-cidr 10.96.128.0/20 and --service-cluster-ip-range 10.96.0.0/16 overlap",
    );
    let host = "overlap with this host's address 198.51.100.1 (eth0)";
    check(&["--cluster-cidr", "198.51.0.0/16"], &format!("pods (--cluster-cidr), 198.51.0.0/16, {host}"));
    check(
        &["--service-cluster-ip-range", "198.51.100.0/24"],
        &format!("services (--service-cluster-ip-range), 198.51.100.0/24, {host}"),
    );
}

/// Somebody makes a Node by hand whose pods have this node's addresses.
fn nodes_that_overlap_are_named(cluster: &Cluster) {
    let cidr = cluster.kubectl(&["get", "node", "one", "-o", "jsonpath={.spec.podCIDR}"]);
    let address = json!([{ "type": "InternalIP", "address": address(1) }]);
    apply(
        cluster,
        &json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": "intruder" },
            "spec": { "podCIDR": cidr, "podCIDRs": [cidr] },
        }),
    );
    let patch = json!({ "status": { "addresses": address } }).to_string();
    cluster.kubectl(&["patch", "node", "intruder", "--subresource=status", "--type=merge", "-p", &patch]);
    let said = format!("node one: the pod CIDR {cidr} overlaps with {cidr} of node intruder");
    cluster.until("ferry status names both", || problem(cluster, &said));
    cluster.until("an event of the node says so", || {
        let fields = "--field-selector=reason=OverlappingCIDR,involvedObject.name=one";
        (!cluster.kubectl(&["get", "events", fields, "-o", "name"]).is_empty()).then_some(())
    });
    let pod = cluster.kubectl(&["get", "pod", "web", "-o", "jsonpath={.status.podIP}"]);
    cluster.until("pods of the older node go on", || cluster.pod_reaches("client", &pod));
    cluster.kubectl(&["delete", "node", "intruder"]);
    cluster.until("what is mended is no longer said", || no_problems(cluster));
}

/// A network of the user's own: a configuration as it has been written for years, which finds its plugins in Ferry.
/// And services as iptables has them.
#[test]
fn a_users_own_network_is_left_alone() {
    let Some(binary) = ferry() else { return };
    let segment = Segment::new();
    let mut cluster =
        Cluster::new(binary, &["--node-name", "one", "--network", "none", "--proxy-mode", "iptables"]);
    cluster.enter = segment.on("one");
    let name = format!("classic-{}", std::process::id());
    let leases = Leases(PathBuf::from("/var/lib/cni/networks").join(&name));
    let configuration = json!({
        "cniVersion": "0.3.1", "name": name, "type": "bridge", "bridge": "cnio0",
        "isGateway": true, "ipMasq": true,
        "ipam": {
            "type": "host-local",
            "ranges": [[{ "subnet": "10.200.0.0/24" }]],
            "routes": [{ "dst": "0.0.0.0/0" }],
        },
    });
    let directory = cluster.data_dir().join("containerd/cni/conf");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("10-bridge.conf"), configuration.to_string()).unwrap();
    cluster.up();
    let archive = images::archive(cluster.directory.path(), &cluster.root);
    run(cluster.ferry().args(["image", "load"]).arg(&archive).arg("--data-dir").arg(cluster.data_dir()));
    for pod in ["web", "client"] {
        apply(&cluster, &pod_with_ports(pod, &json!([])));
        cluster.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{pod}"), "--timeout=120s"]);
    }
    let address = cluster.kubectl(&["get", "pod", "web", "-o", "jsonpath={.status.podIP}"]);
    assert!(address.starts_with("10.200.0."), "{address}");
    assert!(leases.0.join(&address).exists(), "leased where it always was");
    cluster.kubectl(&["expose", "pod", "web", "--port=80"]);
    cluster.until("pod to pod", || cluster.pod_reaches("client", &address));
    cluster
        .until("pod to service, by name", || cluster.pod_reaches("client", "web.default.svc.cluster.local"));
    let enter = segment.on("one");
    let links = run(Command::new(&enter[0]).args(&enter[1..]).args(["ip", "-o", "link"]));
    let links = String::from_utf8(links).unwrap();
    assert!(links.contains("cnio0") && !links.contains("-br0") && !links.contains("-vx0"), "{links}");
    let rules = || run(Command::new(&enter[0]).args(&enter[1..]).arg("iptables-save"));
    let has_ours = |rules: Vec<u8>| String::from_utf8(rules).unwrap().contains("FERRY-");
    assert!(has_ours(rules()), "services are chains of iptables");
    cluster.down();
    assert!(!has_ours(rules()), "and go with the cluster");
    assert!(!leases.0.join(&address).exists(), "given back");
    assert!(directory.join("10-bridge.conf").exists(), "the user's own file");
}

/// The classic place of leases, which the test must not leave behind.
struct Leases(PathBuf);

impl Drop for Leases {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn a_host_port_leads_to_its_pod(cluster: &Cluster, segment: &Segment) {
    let host = address(0);
    cluster.until("the host port from outside", || welcomes(&segment.outside(), &host, "8080"));
    cluster.until("the host port from the host itself", || welcomes(&segment.on("one"), &host, "8080"));
    cluster.until("the host port from another pod", || cluster.pod_reaches_port("client", &host, "8080"));
}

/// The load balancer's address is the host's own. A service that asks for the API server's port does not get it, and
/// is told so; its other port it gets.
fn the_host_keeps_what_it_listens_on(cluster: &Cluster, segment: &Segment) {
    let (host, api) = (address(0), cluster.port());
    let ports = json!([
        { "name": "greedy", "port": api, "targetPort": 80 },
        { "name": "modest", "port": 8081, "targetPort": 80 },
    ]);
    let spec = json!({ "type": "LoadBalancer", "selector": { "app": "web" }, "ports": ports });
    let service =
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "greedy" }, "spec": spec });
    apply(cluster, &service);
    cluster.until("the modest port", || welcomes(&segment.outside(), &host, "8081"));
    cluster.until("the service's status says what it cannot have", || {
        let path = "jsonpath={.status.loadBalancer.ingress[0].ports[?(@.error)].port}";
        (cluster.kubectl(&["get", "service", "greedy", "-o", path]) == api.to_string()).then_some(())
    });
    cluster.until("an event says so too", || {
        let fields = "--field-selector=reason=HostPortInUse,involvedObject.name=greedy";
        (!cluster.kubectl(&["get", "events", fields, "-o", "name"]).is_empty()).then_some(())
    });
    cluster.until("ferry status says so", || problem(cluster, "the host listens there itself"));
    // Whoever comes from outside still finds the API server there.
    let server = format!("https://{host}:{api}");
    let outside = segment.outside();
    let mut ask = Command::new(&outside[0]);
    ask.args(&outside[1..]).arg(&cluster.binary).args(["kubectl", "get", "--raw", "/readyz", "--server"]);
    ask.arg(&server).env("KUBECONFIG", cluster.directory.path().join("kubeconfig"));
    ask.env("HOME", cluster.directory.path());
    assert_eq!(run(&mut ask), b"ok");
    cluster.kubectl(&["delete", "service", "greedy"]);
    cluster.until("nothing is left to say", || no_problems(cluster));
}

fn node_ports_do_not_collide(cluster: &Cluster) {
    let door = |name: &str| {
        cluster.try_kubectl(&["create", "service", "nodeport", name, "--tcp=80", "--node-port=30123"])
    };
    assert!(door("first").status.success());
    let second = door("second");
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && said.contains("provided port is already allocated"), "{said}");
}

/// A balancer outside asks each host's health check port before it sends anything there.
fn a_balancer_is_told_whether_the_host_has_endpoints(cluster: &Cluster, segment: &Segment) {
    let spec = json!({
        "type": "LoadBalancer", "externalTrafficPolicy": "Local", "selector": { "app": "web" },
        "ports": [{ "port": 8082, "targetPort": 80 }],
    });
    let service =
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "local" }, "spec": spec });
    apply(cluster, &service);
    let port = cluster.kubectl(&["get", "service", "local", "-o", "jsonpath={.spec.healthCheckNodePort}"]);
    let said = |status: &str, body: &str| {
        let answer = get(&segment.outside(), &address(0), &port, "/healthz");
        (answer.split(' ').nth(1) == Some(status) && answer.contains(body)).then_some(())
    };
    cluster.until("the host has one", || said("200", r#""localEndpoints":1"#));
    let nobody = r#"{"spec":{"selector":{"app":"nobody"}}}"#;
    cluster.kubectl(&["patch", "service", "local", "-p", nobody]);
    cluster.until("the host has none", || said("503", r#""localEndpoints":0"#));
    cluster.kubectl(&["delete", "service", "local"]);
    cluster.until("nobody listens there any more", || {
        get(&segment.outside(), &address(0), &port, "/healthz").is_empty().then_some(())
    });
}

/// Closed to all, opened to one, and open again; and a pod that may not speak.
fn policies_are_kept(cluster: &Cluster) {
    let address = cluster.kubectl(&["get", "pod", "web", "-o", "jsonpath={.status.podIP}"]);
    let reaches = || cluster.pod_reaches("client", &address);
    let refused = || cluster.pod_reaches("client", &address).is_none().then_some(());
    let policy = |pod: &str, rest: Value| {
        let mut spec = json!({ "podSelector": { "matchLabels": { "app": pod } } });
        spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        apply(
            cluster,
            &json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": { "name": "p" }, "spec": spec,
            }),
        );
    };
    cluster.until("without a policy all is open", reaches);
    policy("web", json!({ "policyTypes": ["Ingress"] }));
    cluster.until("the pod is closed", refused);
    let from = |app: &str| json!([{ "podSelector": { "matchLabels": { "app": app } } }]);
    policy("web", json!({ "ingress": [{ "from": from("client"), "ports": [{ "port": 80 }] }] }));
    cluster.until("it is open to its client", reaches);
    policy("web", json!({ "ingress": [{ "from": from("somebody"), "ports": [{ "port": 80 }] }] }));
    cluster.until("it is open to somebody else", refused);
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/web", "--timeout=30s"]);
    policy("client", json!({ "policyTypes": ["Egress"], "egress": [{ "to": from("somebody") }] }));
    cluster.until("the client may not speak to it", refused);
    cluster.kubectl(&["delete", "networkpolicy", "p"]);
    cluster.until("without a policy all is open again", reaches);
}

fn a_firewall_that_drops_forwards_is_named(cluster: &Cluster, segment: &Segment) {
    let enter = segment.on("one");
    let nft = |words: &[&str]| run(Command::new(&enter[0]).args(&enter[1..]).arg("nft").args(words));
    nft(&["add", "table", "inet", "theirs"]);
    nft(&["add", "chain", "inet", "theirs", "fw", "{ type filter hook forward priority 0; policy drop; }"]);
    cluster.until("ferry status names the chain", || {
        problem(cluster, "drops what is forwarded (inet theirs fw)")
    });
    cluster.until("an event of the node says so", || {
        let fields = "--field-selector=reason=HostFirewallDropsForwards";
        (!cluster.kubectl(&["get", "events", fields, "-o", "name"]).is_empty()).then_some(())
    });
    nft(&["delete", "table", "inet", "theirs"]);
    cluster.until("what is mended is no longer said", || no_problems(cluster));
}

fn pod_with_ports(name: &str, ports: &Value) -> Value {
    let container =
        json!({ "name": "c", "image": "nginx", "imagePullPolicy": "IfNotPresent", "ports": ports });
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": name } },
        "spec": { "containers": [container] },
    })
}

fn apply(cluster: &Cluster, object: &Value) {
    let file = cluster.directory.path().join("object.json");
    std::fs::write(&file, object.to_string()).unwrap();
    cluster.kubectl(&["apply", "-f", file.to_str().unwrap()]);
}

fn problem(cluster: &Cluster, about: &str) -> Option<()> {
    let status = cluster.status();
    let problems = status["problems"].as_array().unwrap();
    problems.iter().any(|one| one.as_str().is_some_and(|one| one.contains(about))).then_some(())
}

fn no_problems(cluster: &Cluster) -> Option<()> {
    (cluster.status()["problems"] == json!([])).then_some(())
}
