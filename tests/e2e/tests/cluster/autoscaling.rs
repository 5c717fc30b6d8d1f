//! A HorizontalPodAutoscaler under real load: the kubelet measures what containers use, `metrics.k8s.io` serves it, and the
//! autoscaler acts on it.

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::host::ferry;

/// Uses CPU while the file exists.
const WORK: &str = "while true; do if [ -e /tmp/busy ]; then :; else sleep 1; fi; done";

#[test]
fn load_doubles_a_deployment_and_the_end_of_load_shrinks_it() {
    let Some(binary) = ferry() else { return };
    let cluster = Cluster::new(binary, &[]);
    cluster.up();
    let file = cluster.directory.path().join("worker.json");
    std::fs::write(&file, worker().to_string()).unwrap();
    cluster.kubectl(&["create", "-f", file.to_str().unwrap()]);
    cluster.ready_pods("worker", 1);
    cluster.until("the autoscaler has measured the idle pod", || {
        let path = "jsonpath={.status.currentMetrics[0].resource.current.averageUtilization}";
        let utilization = cluster.kubectl(&["get", "hpa", "worker", "-o", path]);
        utilization.parse::<u32>().is_ok_and(|percent| percent < 50).then_some(())
    });

    let pod = cluster.kubectl(&["get", "pods", "--selector=app=worker", "--output=name"]);
    let pod = pod.trim();
    cluster.kubectl(&["exec", pod, "--", "touch", "/tmp/busy"]);
    cluster.ready_pods("worker", 2);
    let events = ["events", "--for=hpa/worker", "--types=Normal"];
    cluster.until("an event tells why", || {
        let reason = "New size: 2; reason: cpu resource utilization (percentage of request) above target";
        cluster.kubectl(&events).contains(reason).then_some(())
    });

    cluster.kubectl(&["exec", pod, "--", "rm", "/tmp/busy"]);
    cluster.ready_pods("worker", 1);
}

/// A Deployment and its autoscaler, which shrinks it without the five minutes that it waits by default.
fn worker() -> Value {
    let labels = json!({"app": "worker"});
    let container = json!({
        "name": "c", "image": "nginx", "command": ["sh", "-c", WORK],
        "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m"}},
    });
    let template = json!({
        "metadata": {"labels": labels},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
    });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "worker"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    });
    let cpu = json!({"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}});
    let autoscaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "worker"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "worker"},
            "maxReplicas": 2, "metrics": [{"type": "Resource", "resource": cpu}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    });
    json!({"apiVersion": "v1", "kind": "List", "items": [deployment, autoscaler]})
}
