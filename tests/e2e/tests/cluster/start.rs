//! Starts that are not smooth: ports that somebody else has, a part that cannot start.

use std::net::TcpListener;
use std::process::Command;

use crate::cluster::Cluster;
use crate::host::{ferry, free_port, run};

/// Where kubelets listen by custom.
const KUBELET_PORT: u16 = 10250;

fn kubelet_port(cluster: &Cluster) -> u16 {
    let path = "jsonpath={.items[0].status.daemonEndpoints.kubeletEndpoint.Port}";
    cluster.kubectl(&["get", "nodes", "-o", path]).parse().unwrap()
}

/// The kernel may give these to any program that connects somewhere.
fn is_for_outgoing_connections(port: u16) -> bool {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let range: Vec<u16> = range.split_whitespace().map(|text| text.parse().unwrap()).collect();
    (range[0]..=range[1]).contains(&port)
}

fn stops(cluster: &Cluster) {
    let pid = cluster.status()["pid"].to_string();
    run(Command::new("kill").args(["-TERM", &pid]));
    cluster.until("the server has ended", || {
        std::fs::read(format!("/proc/{pid}/cmdline")).map_or(true, |text| text.is_empty()).then_some(())
    });
}

#[test]
fn a_port_in_use_is_replaced() {
    let Some(binary) = ferry() else { return };
    let cluster = Cluster::new(binary, &[]);
    // Where another kubelet runs it is taken already.
    let taken = TcpListener::bind(("127.0.0.1", KUBELET_PORT));
    cluster.up();
    let first = kubelet_port(&cluster);
    assert!(first != KUBELET_PORT && !is_for_outgoing_connections(first), "{first}");
    stops(&cluster);
    let also_taken = TcpListener::bind(("127.0.0.1", first)).unwrap();
    cluster.up();
    let second = kubelet_port(&cluster);
    assert!(![KUBELET_PORT, first].contains(&second) && !is_for_outgoing_connections(second), "{second}");
    stops(&cluster);
    drop(also_taken);
    if taken.is_ok() {
        drop(taken);
        cluster.up();
        assert_eq!(kubelet_port(&cluster), KUBELET_PORT, "by custom, also in a data directory of one's own");
    }
}

/// `ferry up` ends with what is wrong and what to do. The cluster goes on, and is whole when the cause is gone.
#[test]
fn a_part_that_cannot_start_is_reported_and_the_others_continue() {
    let Some(binary) = ferry() else { return };
    let mut cluster = Cluster::new(binary, &["--timeout", "10"]);
    let port = free_port();
    let taken = TcpListener::bind(("0.0.0.0", port)).unwrap();
    let file = cluster.directory.path().join("kubelet.yaml");
    let settings =
        format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nport: {port}\n");
    std::fs::write(&file, settings).unwrap();
    cluster.add_flags(&["--kubelet-config", file.to_str().unwrap()]);
    let output = cluster.up_command().output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    for words in [
        &format!("kubelet: listening on 0.0.0.0:{port}"),
        "another program listens there",
        "ferry status",
        "ferry down",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert_eq!(cluster.kubectl(&["get", "--raw", "/readyz"]), "ok");
    assert_eq!(cluster.status()["ready"], false);

    drop(taken);
    cluster.until("the kubelet runs, and with it the cluster is whole", || {
        (cluster.status()["ready"] == true).then_some(())
    });
    assert_eq!(kubelet_port(&cluster), port, "the user's own choice");
}
