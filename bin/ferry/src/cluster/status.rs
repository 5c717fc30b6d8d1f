//! `ferry status`: what runs, what it uses, what is wrong and what to do.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use ferry_client::{Api, Client, Kubeconfig};
use ferry_cni::overlap;
use ferry_proxy::{host_firewall, load_balancer, report::Report};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use serde_json::{Value, json};

use super::layout::{DEFAULT_DATA_DIR, Layout};
use super::node::ready_condition;
use super::output::{self, Lines};
use super::own_metrics::Metrics;
use super::parts::{Snapshot, State};
use super::server;
use crate::usage::{self, Usage};

#[derive(Args)]
pub struct Flags {
    /// Data directory of the cluster
    #[arg(long, default_value = DEFAULT_DATA_DIR)]
    pub data_dir: PathBuf,
    /// Output format
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Json,
}

const PATIENCE: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(5);

pub fn run(flags: &Flags) -> anyhow::Result<()> {
    let layout = Layout::of(&flags.data_dir)?;
    let Some(snapshot) = running(&layout)? else {
        if flags.output == Some(Output::Json) {
            return output::print_json(&json!({"running": false, "dataDir": layout.data_dir}));
        }
        bail!("no cluster runs in {}; `ferry up` starts one", layout.data_dir.display());
    };
    let usage = usage::of(snapshot.pid)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let cluster = runtime.block_on(read_api(&layout));
    let report = report(&layout, &snapshot, &usage, cluster);
    match flags.output {
        Some(Output::Json) => output::print_json(&report),
        None => shown(&snapshot, &report).print(),
    }
}

/// The state file's content, whether its process lives or not.
pub fn snapshot(layout: &Layout) -> anyhow::Result<Option<Snapshot>> {
    let path = layout.state();
    match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .with_context(|| format!("{} is malformed", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
    }
}

/// The same, if its process lives: it holds the data directory's lock.
pub fn running(layout: &Layout) -> anyhow::Result<Option<Snapshot>> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        if !layout.data_dir.is_dir() || layout.lock().is_ok() {
            return Ok(None);
        }
        let found = snapshot(layout)?;
        // A killed process holds the lock until the kernel has reaped it.
        let is_dying = found.as_ref().is_some_and(|server| !is_running(server.pid));
        if !is_dying || Instant::now() > give_up {
            return Ok(found);
        }
        std::thread::sleep(STEP);
    }
}

fn is_running(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| !words.is_empty())
}

struct Cluster {
    /// The API server's own, where it may be read.
    metrics: Option<Metrics>,
    nodes: Vec<Node>,
    pods: Vec<Pod>,
    services: Vec<Service>,
}

async fn read_api(layout: &Layout) -> anyhow::Result<Cluster> {
    let kubeconfig = Kubeconfig { path: Some(layout.admin_kubeconfig()), ..Kubeconfig::default() };
    let client: Client = ferry_client::connect(&kubeconfig).await.context("reach the API server")?;
    let everything = kube::api::ListParams::default();
    let nodes = Api::<Node>::all(client.clone()).list(&everything).await.context("list the nodes")?;
    let pods = Api::<Pod>::all(client.clone()).list(&everything).await.context("list the pods")?;
    let services =
        Api::<Service>::all(client.clone()).list(&everything).await.context("list the services")?;
    let page = http::Request::get("/metrics").body(Vec::new()).context("ask for metrics")?;
    let metrics = client.request_text(page).await.ok().map(|text| Metrics::of(&text));
    Ok(Cluster { metrics, nodes: nodes.items, pods: pods.items, services: services.items })
}

fn report(layout: &Layout, snapshot: &Snapshot, usage: &Usage, cluster: anyhow::Result<Cluster>) -> Value {
    let failed = snapshot.parts.iter().filter(|part| part.state == State::Failed);
    let mut problems: Vec<String> = failed
        .map(|part| format!("{}: {}; see {}", part.name, part.detail, layout.log().display()))
        .collect();
    let contents = match cluster {
        Ok(cluster) => {
            problems.extend(cluster.problems());
            cluster.contents()
        }
        Err(error) => {
            problems.push(format!("the API server does not answer: {error:#}"));
            Contents::default()
        }
    };
    json!({
        "running": true,
        "ready": snapshot.ready,
        "cluster": layout.cluster,
        "version": snapshot.version,
        "dataDir": layout.data_dir,
        "url": snapshot.url,
        "pid": snapshot.pid,
        "containerdPid": layout.containerd().pid().map(nix::unistd::Pid::as_raw),
        "memoryBytes": usage.resident_bytes,
        "cpuSeconds": usage.cpu_seconds,
        "cpuPercent": 100.0 * usage.cpu_seconds / usage.up_seconds.max(0.01),
        "upSeconds": usage.up_seconds,
        "parts": snapshot.parts,
        "metrics": snapshot.metrics,
        "store": contents.store,
        "requests": contents.requests,
        "nodes": contents.nodes,
        "pods": contents.pods,
        "problems": problems,
    })
}

/// The members of the report that the API server's answers fill; null without them.
#[derive(Default)]
struct Contents {
    store: Value,
    requests: Value,
    nodes: Vec<Value>,
    pods: Value,
}

impl Cluster {
    fn contents(&self) -> Contents {
        let metrics = self.metrics.as_ref();
        let store = |it: &Metrics| json!({"bytes": it.store_bytes, "quotaBytes": it.store_quota});
        let requests = |it: &Metrics| json!({"total": it.requests, "errors": it.server_errors});
        let node = |node: &Node| json!({"name": node.metadata.name, "ready": is_ready(node)});
        Contents {
            store: metrics.map_or(Value::Null, store),
            requests: metrics.map_or(Value::Null, requests),
            nodes: self.nodes.iter().map(node).collect(),
            pods: json!({
                "total": self.pods.len(), "running": self.pods_in("Running"),
                "pending": self.pods_in("Pending"), "failed": self.pods_in("Failed"),
            }),
        }
    }

    fn pods_in(&self, phase: &str) -> usize {
        let phases = self.pods.iter().filter_map(|pod| pod.status.as_ref()?.phase.as_deref());
        phases.filter(|it| *it == phase).count()
    }

    fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = self.nodes.iter().flat_map(node_problems).collect();
        problems.extend(self.services.iter().flat_map(ports_kept_by_hosts));
        problems.extend(self.metrics.iter().flat_map(Metrics::problems));
        let pending = self.pods_in("Pending");
        if pending > 0 {
            problems.push(format!("{pending} pods are Pending; `ferry trace pod/NAME` tells why"));
        }
        problems
    }
}

fn is_ready(node: &Node) -> bool {
    ready_condition(node).is_some_and(|condition| condition.status == "True")
}

fn node_problems(node: &Node) -> Vec<String> {
    let mut problems = Vec::new();
    let name = node.metadata.name.as_deref().unwrap_or("?");
    if !is_ready(node) {
        let why = ready_condition(node).and_then(|condition| condition.message.as_deref());
        problems
            .push(format!("node {name} is not Ready: {}", why.unwrap_or("it has not reported its status")));
    }
    let dropping = Report::of(node).dropping_chains;
    if !dropping.is_empty() {
        problems.push(format!("node {name}: {}", host_firewall::explain(&dropping)));
    }
    if let Some(why) = overlap::told(node) {
        problems.push(format!("node {name}: {why}"));
    }
    problems
}

/// The load balancer's addresses are the nodes' own, where others may listen already.
fn ports_kept_by_hosts(service: &Service) -> Vec<String> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|status| status.ingress.as_deref()).unwrap_or(&[]);
    let name = |text: &Option<String>| text.clone().unwrap_or_default();
    let (namespace, service) = (name(&service.metadata.namespace), name(&service.metadata.name));
    let say = |(ip, port)| {
        format!("service {namespace}/{service} has no {port} at {ip}: the host listens there itself")
    };
    load_balancer::refused(ingress).into_iter().map(say).collect()
}

fn shown(snapshot: &Snapshot, report: &Value) -> Lines {
    let mut lines = Lines::default();
    lines.add(format!(
        "{} {} (pid {}), up {:.0} s, {:.1} MB, {:.2} s of CPU ({:.1}%)",
        report["cluster"].as_str().unwrap_or("ferry"),
        snapshot.url,
        snapshot.pid,
        report["upSeconds"].as_f64().unwrap_or(0.0),
        report["memoryBytes"].as_f64().unwrap_or(0.0) / 1e6,
        report["cpuSeconds"].as_f64().unwrap_or(0.0),
        report["cpuPercent"].as_f64().unwrap_or(0.0),
    ));
    for part in &snapshot.parts {
        lines.add(server::line(part));
    }
    if !snapshot.metrics.is_empty() {
        let pages: Vec<String> = snapshot.metrics.iter().map(|(part, url)| format!("{part} {url}")).collect();
        lines.add(format!("metrics: {}", pages.join(", ")));
    }
    if let (Some(bytes), Some(total)) =
        (report["store"]["bytes"].as_f64(), report["requests"]["total"].as_f64())
    {
        let errors = report["requests"]["errors"].as_f64().unwrap_or(0.0);
        lines.add(format!(
            "store: {:.1} MB; {total:.0} requests answered, {errors:.0} with a server error",
            bytes / 1e6
        ));
    }
    if let Some(pods) = report["pods"].as_object() {
        lines.add(format!(
            "pods: {} running, {} pending, {} failed, {} in all",
            pods["running"], pods["pending"], pods["failed"], pods["total"]
        ));
    }
    for problem in report["problems"].as_array().into_iter().flatten() {
        lines.add(format!("! {}", problem.as_str().unwrap_or("?")));
    }
    lines
}
