//! Prometheus (Debian's) scrapes every part of a cluster, and the queries of the usual dashboards find their series.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::host::{ferry, free_port, in_path};

/// As kubernetes-mixin's dashboards and alerts ask, with a window that fits a test.
const QUERIES: &[&str] = &[
    r#"sum by (verb) (rate(apiserver_request_total{job="apiserver",code=~"2.."}[20s]))"#,
    r#"histogram_quantile(0.99, sum by (le) (rate(apiserver_request_duration_seconds_bucket{job="apiserver"}[20s]))) >= 0"#,
    r#"sum(apiserver_current_inflight_requests) by (request_kind)"#,
    r#"apiserver_longrunning_requests{verb="WATCH",resource="pods"} > 0"#,
    r#"apiserver_storage_objects{resource="pods"} > 0"#,
    r#"apiserver_storage_size_bytes > 0"#,
    r#"sum(rate(workqueue_adds_total{job="controllers"}[20s])) by (name)"#,
    r#"workqueue_depth{job="controllers",name="replicaset-controller"} or workqueue_depth{job="controllers"}"#,
    r#"histogram_quantile(0.99, sum by (le) (workqueue_queue_duration_seconds_bucket{job="controllers"})) >= 0"#,
    r#"running_managed_controllers{name="job-controller"} == 1"#,
    r#"node_collector_zone_size > 0"#,
    r#"scheduler_schedule_attempts_total{result="scheduled"} > 0"#,
    r#"histogram_quantile(0.99, sum by (le) (scheduler_scheduling_attempt_duration_seconds_bucket)) >= 0"#,
    r#"scheduler_pending_pods{queue="active"}"#,
    r#"kube_pod_resource_request{pod="web",resource="cpu"} == 0.05"#,
    r#"sum(kubelet_running_pods{job="kubelet"}) > 0"#,
    r#"kubelet_running_containers{container_state="running"} > 0"#,
    r#"sum(kubelet_runtime_operations_total{operation_type="run_podsandbox"}) > 0"#,
    r#"kubelet_pod_start_duration_seconds_count > 0"#,
    r#"kubelet_node_name"#,
    r#"prober_probe_total{probe_type="Readiness",pod="web",result="successful"} > 0"#,
    r#"sum by (pod) (rate(container_cpu_usage_seconds_total{job="cadvisor",container="c",pod="web",image!=""}[20s]))"#,
    r#"container_memory_working_set_bytes{job="cadvisor",container="c",pod="web",image!=""} > 0"#,
    r#"container_network_receive_bytes_total{pod="web",interface="eth0"} > 0"#,
    r#"machine_memory_bytes > 0"#,
    r#"pod_memory_working_set_bytes{job="resource",pod="web"} > 0"#,
    r#"resource_scrape_error == 0"#,
    r#"kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"} > 0"#,
    r#"kubeproxy_sync_proxy_rules_last_timestamp_seconds > 0"#,
    r#"sum(coredns_dns_requests_total) by (type)"#,
    r#"coredns_dns_responses_total{rcode="NOERROR"} > 0"#,
    r#"kubernetes_healthcheck{job="slis",name="ping",type="readyz"} == 1"#,
    r#"process_resident_memory_bytes{job="apiserver"} > 1e6"#,
    r#"kubernetes_build_info{job="scheduler",major="1"}"#,
];

#[test]
fn prometheus_scrapes_every_part() {
    let Some(binary) = ferry() else { return };
    if !in_path("prometheus") {
        return ferry_skip::missing("prometheus");
    }
    let cluster = Cluster::new(binary, &[]);
    cluster.up();
    let probe = r#""readinessProbe":{"tcpSocket":{"port":80},"periodSeconds":1},"resources":{"requests":{"cpu":"50m"}}"#;
    cluster.create_pod("web", probe, "");
    cluster.ready_pod("web");
    cluster.kubectl(&["get", "--raw", "/readyz"]);
    let pages = cluster.status()["metrics"].clone();
    let tokens = accounts(&cluster);
    let prometheus = Prometheus::start(&cluster, &pages, tokens);
    cluster.until("every part is scraped", || {
        let down = prometheus.query(r#"up{job!~"stranger.*"} == 0"#)?;
        let up = prometheus.query(r#"up{job!~"stranger.*"} == 1"#)?;
        (down.is_empty() && up.len() == JOBS.len()).then_some(())
    });
    for query in QUERIES {
        cluster.until(query, || prometheus.query(query).filter(|series| !series.is_empty()).map(drop));
    }
    // who may not read is told so, at each port that asks
    for job in ["stranger-apiserver", "stranger-controllers", "stranger-kubelet", "stranger-scheduler"] {
        cluster.until(&format!("{job} is refused"), || {
            prometheus.error(job).filter(|error| error.contains("403")).map(drop)
        });
    }
    let status = cluster.status();
    assert!(status["store"]["bytes"].as_f64().is_some_and(|bytes| bytes > 0.0), "{status}");
    assert!(status["requests"]["total"].as_f64().is_some_and(|total| total > 0.0), "{status}");
}

/// Jobs by name: whose port, and which page of it.
const JOBS: &[(&str, &str, &str)] = &[
    ("apiserver", "apiserver", "/metrics"),
    ("slis", "apiserver", "/metrics/slis"),
    ("controllers", "controllers", "/metrics"),
    ("scheduler", "scheduler", "/metrics"),
    ("scheduler-resources", "scheduler", "/metrics/resources"),
    ("kubelet", "kubelet", "/metrics"),
    ("cadvisor", "kubelet", "/metrics/cadvisor"),
    ("resource", "kubelet", "/metrics/resource"),
    ("probes", "kubelet", "/metrics/probes"),
    ("proxy", "proxy", "/metrics"),
    ("dns", "dns", "/metrics"),
];

/// Tokens of an account that may read metrics and of one that may not.
fn accounts(cluster: &Cluster) -> [String; 2] {
    let rules = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "scraper"},
        "rules": [
            {"nonResourceURLs": ["/metrics", "/metrics/*"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
        ],
    });
    let file = cluster.directory.path().join("scraper.json");
    std::fs::write(&file, rules.to_string()).unwrap();
    cluster.kubectl(&["create", "-f", file.to_str().unwrap()]);
    let account = "--serviceaccount=default:scraper";
    cluster.kubectl(&["create", "clusterrolebinding", "scraper", "--clusterrole=scraper", account]);
    ["scraper", "stranger"].map(|name| {
        cluster.kubectl(&["create", "serviceaccount", name]);
        cluster.kubectl(&["create", "token", name]).trim().to_owned()
    })
}

struct Prometheus {
    child: Child,
    port: u16,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    fn start(cluster: &Cluster, pages: &Value, [scraper, stranger]: [String; 2]) -> Prometheus {
        let directory = cluster.directory.path();
        let config = directory.join("prometheus.yml");
        let mut jobs: Vec<Value> =
            JOBS.iter().map(|(job, part, path)| scrape(pages, job, part, path, &scraper)).collect();
        for part in ["apiserver", "controllers", "kubelet", "scheduler"] {
            jobs.push(scrape(pages, &format!("stranger-{part}"), part, "/metrics", &stranger));
        }
        let settings = json!({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs});
        std::fs::write(&config, settings.to_string()).unwrap();
        let port = free_port();
        let log = std::fs::File::create(directory.join("prometheus.log")).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", directory.join("prometheus").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Prometheus { child, port }
    }

    /// The series that a query finds; `None` while there is no answer.
    fn query(&self, query: &str) -> Option<Vec<Value>> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = self.get(&format!("/api/v1/query?query={encoded}"))?;
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].as_array().cloned()
    }

    /// Why the last scrape of a job failed.
    fn error(&self, job: &str) -> Option<String> {
        let targets = self.get("/api/v1/targets?state=active")?;
        let active = targets["data"]["activeTargets"].as_array()?.clone();
        let target = active.into_iter().find(|target| target["labels"]["job"] == job)?;
        target["lastError"].as_str().map(str::to_owned)
    }

    fn get(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }
}

/// One job of Prometheus' configuration, in JSON, which YAML contains.
fn scrape(pages: &Value, job: &str, part: &str, path: &str, token: &str) -> Value {
    let url = pages[part].as_str().unwrap_or_else(|| panic!("no page of {part}: {pages}"));
    let (scheme, rest) = url.split_once("://").unwrap();
    let target = Path::new(rest).components().next().unwrap().as_os_str().to_str().unwrap();
    json!({
        "job_name": job, "scheme": scheme, "metrics_path": path,
        "authorization": {"credentials": token},
        "tls_config": {"insecure_skip_verify": true},
        "static_configs": [{"targets": [target]}],
    })
}
