//! A host that reaches nothing but itself.

use std::process::Command;

use crate::cluster::Cluster;
use crate::host::{ferry, run};
use crate::images;

/// A network namespace with a loopback and nothing else.
pub struct Island(String);

impl Island {
    pub fn new(name: &str) -> Island {
        let island = Island(format!("ferry-test-{}-{name}", std::process::id()));
        run(Command::new("ip").args(["netns", "add", &island.0]));
        run(Command::new("ip").args(["-n", &island.0, "link", "set", "lo", "up"]));
        island
    }

    /// Words before a command.
    pub fn enter(&self) -> Vec<String> {
        vec!["nsenter".into(), format!("--net=/run/netns/{}", self.0)]
    }
}

impl Drop for Island {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

/// The line as it was always written, after `ferry image load` and without any registry. Before that the pod says what
/// is missing.
#[test]
fn a_loaded_image_is_as_good_as_one_in_a_registry() {
    let Some(binary) = ferry() else { return };
    let island = Island::new("loaded");
    let mut cluster = Cluster::new(binary, &[]);
    // The registry that stands for docker.io elsewhere is not there either.
    std::fs::remove_dir_all(cluster.registry.config_dir.join("docker.io")).unwrap();
    cluster.enter = island.enter();
    cluster.up();
    cluster.kubectl(&["run", "early", "--image=nginx"]);
    let message = cluster.until("the pod says why it does not run", || {
        let message = cluster.field("early", ".status.containerStatuses[0].state.waiting.message");
        (!message.is_empty()).then_some(message)
    });
    assert!(message.contains("no network: docker.io cannot be reached"), "{message}");
    assert!(message.contains("ferry image load"), "{message}");
    cluster.kubectl(&["delete", "pod", "early", "--grace-period=1"]);

    let archive = images::archive(cluster.directory.path(), &cluster.root);
    let load = ["image", "load", archive.to_str().unwrap(), "--data-dir"];
    run(cluster.ferry().args(load).arg(cluster.data_dir()));
    cluster.kubectl(&["run", "--image=nginx", "--replicas=3", "--port=80", "--expose"]);
    cluster.ready_pods("nginx", 3);
    let policy = "jsonpath={.items[*].spec.containers[0].imagePullPolicy}";
    assert_eq!(cluster.kubectl(&["get", "pods", "-l", "run=nginx", "-o", policy]), "Always Always Always");
    let pods = cluster.kubectl(&["get", "pods", "-l", "run=nginx", "-o", "name"]);
    let pod = pods.lines().next().unwrap().trim_start_matches("pod/");
    let name = "nginx.default.svc.cluster.local";
    cluster.until("a pod reaches the service by its name", || cluster.pod_reaches(pod, name));

    // Other nodes have the image from here; nobody else does.
    let path = "/ferry/v1/images/v2/library/nginx/manifests/latest?ns=docker.io";
    assert!(cluster.kubectl(&["get", "--raw", path]).contains("layers"));
    let refused = cluster.try_kubectl(&["get", "--raw", path, "--as=somebody"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("Forbidden"), "{said}");
}

/// `ferry demo`, twice, with nothing but the program.
#[test]
fn the_demo_needs_no_network() {
    let Some(binary) = ferry() else { return };
    let island = Island::new("demo");
    let mut cluster = Cluster::new(binary, &[]);
    std::fs::remove_dir_all(cluster.registry.config_dir.join("docker.io")).unwrap();
    cluster.enter = island.enter();
    let demo = |more: &[&str]| {
        let mut command = cluster.ferry();
        command.args(["demo", "--data-dir"]).arg(cluster.data_dir()).args(more);
        command.args(["--", "--port", &cluster.port().to_string(), "--registry-config-dir"]);
        String::from_utf8(run(command.arg(&cluster.registry.config_dir))).unwrap()
    };
    let shown = demo(&[]);
    for words in [
        "✓ apiserver",
        "localhost/ferry/web, which Ferry carries",
        "deployment.apps/web created",
        // its life, as the trace has it
        "Scheduling",
        "Sandbox and network",
        "200 OK (ferry-web): hello from web-",
        "http://web.ferry-demo.svc.cluster.local/   (10.",
        "serves in its place",
        "the demo's objects are removed",
        "ferry",
    ] {
        assert!(shown.contains(words), "{words:?}: {shown}");
    }
    let namespaces = cluster.kubectl(&["get", "namespaces", "-o", "name"]);
    assert!(!namespaces.contains("ferry-demo"), "{namespaces}");

    // On a cluster that runs, and with what an earlier one left.
    assert!(demo(&["--keep"]).contains("one runs already"));
    let left = cluster.kubectl(&["get", "pods", "-n", "ferry-demo", "-o", "name"]);
    assert_eq!(left.lines().count(), 3, "{left}");
    let before = cluster.kubectl(&["get", "namespace", "ferry-demo", "-o", "jsonpath={.metadata.uid}"]);
    demo(&["--keep"]);
    let after = cluster.kubectl(&["get", "namespace", "ferry-demo", "-o", "jsonpath={.metadata.uid}"]);
    assert_ne!(before, after);
}
