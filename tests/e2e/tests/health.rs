//! `/healthz`, `/livez` and `/readyz` tell the truth about the store.

use std::sync::atomic::Ordering;

use ferry_testkit::TestServer;
use serde_json::json;

/// Those that upstream's e2e suite asks for.
const CHECKS_OF_UPSTREAM: [&str; 20] = [
    "ping",
    "log",
    "etcd",
    "poststarthook/start-apiserver-admission-initializer",
    "poststarthook/generic-apiserver-start-informers",
    "poststarthook/start-apiextensions-informers",
    "poststarthook/start-apiextensions-controllers",
    "poststarthook/crd-informer-synced",
    "poststarthook/bootstrap-controller",
    "poststarthook/start-system-namespaces-controller",
    "poststarthook/start-service-ip-repair-controllers",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/start-cluster-authentication-info-controller",
    "poststarthook/start-kube-aggregator-informers",
    "poststarthook/apiservice-registration-controller",
    "poststarthook/apiservice-status-local-available-controller",
    "poststarthook/apiservice-status-remote-available-controller",
    "poststarthook/kube-apiserver-autoregistration",
    "autoregister-completion",
    "poststarthook/apiservice-openapi-controller",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_store_refuses_writes_is_unhealthy() {
    let server = TestServer::start().await;
    for path in ["/healthz", "/livez", "/readyz", "/readyz/etcd", "/livez/etcd", "/readyz/etcd-readiness"] {
        assert_eq!(server.get(path).await.code, 200, "{path}");
    }
    let verbose = server.get("/healthz?verbose").await;
    let verbose = String::from_utf8_lossy(&verbose.bytes).into_owned();
    for check in CHECKS_OF_UPSTREAM {
        assert!(verbose.contains(&format!("[+]{check} ok\n")), "{check}: {verbose}");
    }

    server.running().api.registry.store.close().await.unwrap();
    for path in ["/healthz", "/livez", "/readyz", "/readyz/etcd", "/livez/etcd", "/readyz/etcd-readiness"] {
        assert_eq!(server.get(path).await.code, 500, "{path}");
    }
    let failed = server.get("/livez").await;
    let failed = String::from_utf8_lossy(&failed.bytes).into_owned();
    assert!(failed.contains("[-]etcd failed: reason withheld\n"), "{failed}");
    for path in ["/livez/ping", "/livez?exclude=etcd", "/readyz?exclude=etcd&exclude=etcd-readiness"] {
        assert_eq!(server.get(path).await.code, 200, "{path}");
    }
}

/// Counters are of the whole process, so only their growth says something of this server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_slis_runs_the_health_checks() {
    let server = TestServer::start().await;
    let successes = async || {
        let page = server.get("/metrics/slis").await;
        let page = String::from_utf8_lossy(&page.bytes).into_owned();
        let series = r#"kubernetes_healthchecks_total{name="informer-sync",status="success",type="readyz"} "#;
        let count =
            page.lines().find_map(|line| line.strip_prefix(series)).and_then(|count| count.parse().ok());
        count.unwrap_or_else(|| panic!("{page}"))
    };
    let first: u64 = successes().await;
    assert!(successes().await > first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn component_statuses_tell_what_the_store_and_the_components_say() {
    let server = TestServer::start().await;
    let ports = &server.running().api.component_ports;
    // Bound and never listening: nobody answers, and nobody else takes the port.
    let silent = tokio::net::TcpSocket::new_v4().unwrap();
    silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let silent_port = silent.local_addr().unwrap().port();
    ports.scheduler.store(silent_port, Ordering::Relaxed);
    // The server has the page that a component has.
    ports.controller_manager.store(server.running().address.port(), Ordering::Relaxed);

    let found = server.get("/api/v1/componentstatuses").await.expect(200);
    let refused = format!(
        "Get \"https://127.0.0.1:{silent_port}/healthz\": dial tcp 127.0.0.1:{silent_port}: connect: connection refused"
    );
    assert_eq!(
        found,
        json!({
            "kind": "ComponentStatusList", "apiVersion": "v1", "metadata": {}, "items": [
                component("controller-manager", &json!({"type": "Healthy", "status": "True", "message": "ok"})),
                component("etcd-0", &json!({"type": "Healthy", "status": "True", "message": "ok"})),
                component("scheduler", &json!({"type": "Healthy", "status": "False", "message": refused})),
            ],
        })
    );
    let one = server.get("/api/v1/componentstatuses/etcd-0").await;
    assert_eq!(one.expect(200)["metadata"], json!({"name": "etcd-0"}));
    assert!(one.header("warning").contains("v1 ComponentStatus is deprecated in v1.19+"));
    let missing = server.get("/api/v1/componentstatuses/etcd-1").await.expect(404);
    assert_eq!(missing["message"], "componentstatus \"etcd-1\" not found");

    for (selector, names) in [
        ("fieldSelector=metadata.name%3Dscheduler", &["scheduler"][..]),
        ("fieldSelector=metadata.name!%3Dscheduler", &["controller-manager", "etcd-0"]),
        ("labelSelector=a%3Db", &[]),
        ("labelSelector=!a", &["controller-manager", "etcd-0", "scheduler"]),
    ] {
        let list = server.get(&format!("/api/v1/componentstatuses?{selector}")).await.expect(200);
        let found: Vec<&str> = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["metadata"]["name"].as_str().unwrap())
            .collect();
        assert_eq!(found, names, "{selector}");
    }
    server.get("/api/v1/componentstatuses?fieldSelector=spec%3Da").await.expect(400);
    server.get("/api/v1/componentstatuses?watch=true").await.expect(405);
    server.delete("/api/v1/componentstatuses/etcd-0").await.expect(405);

    server.running().api.registry.store.close().await.unwrap();
    let one = server.get("/api/v1/componentstatuses/etcd-0").await.expect(200);
    assert_eq!(one["conditions"][0]["status"], "False");
    assert_ne!(one["conditions"][0]["error"], json!(null));
}

fn component(name: &str, condition: &serde_json::Value) -> serde_json::Value {
    json!({"metadata": {"name": name}, "conditions": [condition]})
}
