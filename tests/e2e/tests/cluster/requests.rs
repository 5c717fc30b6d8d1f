//! Requests that are estimated: from what real containers of the image were seen to use on a real node.

use ferry_api::quantity::Quantity;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::host::ferry;

const PLUGIN: &str = "InitialResources";

#[test]
fn a_pod_gets_the_requests_that_others_of_its_image_used() {
    let Some(binary) = ferry() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("admission.yaml");
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration",
        "plugins": [{"name": PLUGIN, "configuration": {"samplesThreshold": 3, "sampleSeconds": 1}}],
    });
    std::fs::write(&file, configuration.to_string()).unwrap();
    let flags = [
        format!("--enable-admission-plugins={PLUGIN}"),
        format!("--admission-control-config-file={}", file.display()),
    ];
    let cluster = Cluster::new(binary, &[&flags[0], &flags[1]]);
    cluster.up();
    let pod = |name: &str, requests: Value| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"containers": [{"name": "c", "image": "nginx", "resources": {"requests": requests}}]},
        })
    };
    let create = |pod: &Value| -> Value {
        let file = directory.path().join("pod.json");
        std::fs::write(&file, pod.to_string()).unwrap();
        let words = ["create", "-o", "json", "-f", file.to_str().unwrap()];
        serde_json::from_str(&cluster.kubectl(&words)).unwrap()
    };
    let requests = |pod: &Value| pod["spec"]["containers"][0]["resources"]["requests"].clone();

    // Nothing is known of the image, so nothing is guessed.
    let first = create(&pod("first", json!({})));
    assert_eq!(requests(&first), Value::Null);
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/first", "--timeout=60s"]);

    // It runs and is seen to; the next one is given what it used.
    let mut number = 0;
    let estimated = cluster.until("an estimate", || {
        number += 1;
        let made = create(&pod(&format!("next-{number}"), json!({})));
        cluster.kubectl(&["delete", "pod", &format!("next-{number}"), "--wait=false"]);
        (!requests(&made).is_null()).then_some(made)
    });
    let note = &estimated["metadata"]["annotations"]["kubernetes.io/initial-resources"];
    assert_eq!(note, "Initial Resources plugin set: cpu, memory request for container c");
    let memory = Quantity::parse(requests(&estimated)["memory"].as_str().unwrap()).unwrap().value();
    // nginx with its workers, and no more.
    assert!((100 << 10..200 << 20).contains(&memory), "{memory} bytes");
    let cpu = requests(&estimated)["cpu"].as_str().unwrap().to_owned();
    assert!(cpu == "0" || cpu.ends_with('m') || cpu.len() == 1, "{cpu}");

    // Who says what it needs gets that, and only the rest is estimated.
    let told = requests(&create(&pod("told", json!({"cpu": "70m"}))));
    assert_eq!(told["cpu"], "70m");
    assert!(told["memory"].is_string(), "{told}");
}
