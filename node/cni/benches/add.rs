//! What one pod's network costs: ADD and DEL of the configuration a node writes, and of the classic one.
//! `cargo bench -p ferry-cni`. Needs root and nft. CPU time is ours and that of tools we start.

use std::time::Instant;

use ferry_cni::{
    install::{NodeNetwork, configuration},
    plugin::{Plugin, run},
};
use ferry_linux::net::Namespace;
use serde_json::{Value, json};

const PODS: usize = 100;

fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    let list = configuration(&NodeNetwork {
        cluster: "bench".into(),
        pod_cidrs: vec!["10.244.0.0/24".parse().expect("a network")],
        mtu: Some(1450),
        lease_dir: folder.path().into(),
    });
    let mut own = list["plugins"][0].clone();
    own["cniVersion"] = list["cniVersion"].clone();
    own["name"] = list["name"].clone();
    let classic = json!({
        "cniVersion": "0.3.1", "name": "bridge", "type": "bridge", "bridge": "cnio0", "isGateway": true, "ipMasq": true,
        "ipam": {
            "type": "host-local", "ranges": [[{ "subnet": "10.245.0.0/24" }]], "routes": [{ "dst": "0.0.0.0/0" }],
            "dataDir": folder.path().join("classic"),
        },
    });
    for (name, config) in [("a node's own", own), ("the classic", classic)] {
        let host = Namespace::create().expect("root is needed");
        let pods: Vec<Namespace> = (0..PODS).map(|_| Namespace::create().expect("a namespace")).collect();
        host.run(|| {
            for command in ["ADD", "DEL"] {
                let (wall, cpu) = (Instant::now(), cpu_seconds());
                for (n, pod) in pods.iter().enumerate() {
                    call(command, n, pod, &config);
                }
                let each = |seconds: f64| seconds * 1000.0 / PODS as f64;
                let (wall, cpu) = (each(wall.elapsed().as_secs_f64()), each(cpu_seconds() - cpu));
                println!("{name} configuration, {command}: {cpu:.2} ms CPU, {wall:.2} ms wall");
            }
        })
        .expect("the namespace was made just now");
    }
}

fn call(command: &str, n: usize, pod: &Namespace, config: &Value) {
    let environment = |name: &str| match name {
        "CNI_COMMAND" => Some(command.to_string()),
        "CNI_CONTAINERID" => Some(format!("c{n}")),
        "CNI_IFNAME" => Some("eth0".to_string()),
        "CNI_NETNS" => Some(pod.path()),
        _ => None,
    };
    let mut output = Vec::new();
    let code = run(Plugin::Bridge, &environment, config.to_string().as_bytes(), &mut output);
    assert_eq!(code, 0, "{}", String::from_utf8_lossy(&output));
}

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("procfs");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().expect("a number");
    (11..=14).map(ticks).sum::<f64>() / 100.0
}
