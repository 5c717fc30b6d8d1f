//! A host of its own, and what its network has to put up with: ports of the host that pods and services ask for,
//! ranges that overlap, a firewall that drops what is forwarded.

use std::process::Command;

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::host::{ferry, run};
use crate::images;
use crate::segment::{Segment, address, welcomes};

#[test]
fn a_host_and_its_cluster_share_one_network() {
    let Some(binary) = ferry() else { return };
    let segment = Segment::new();
    let mut cluster = Cluster::new(binary, &["--node-name", "one"]);
    cluster.enter = segment.on("one");
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
    policies_are_kept(&cluster);
    a_firewall_that_drops_forwards_is_named(&cluster, &segment);
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
    cluster.until("ferry status names the chain", || problem(cluster, "policy of inet theirs fw"));
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
