//! `ferry bench scheduler`: a server with its store in a temporary directory, N nodes, pods that wait, and
//! then the scheduler. All in one process, over the in-process client, as `ferry server` runs them.
//!
//! The clock runs from the first binding to the last, so neither the creation of nodes and pods nor the
//! scheduler's first lists are in the figure. Each case has a process of its own: memory that one has used
//! is not counted for the next.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use ferry_apiserver::run::{Config, Running, start};
use ferry_auth::User;
use ferry_auth::user::MASTERS;
use ferry_client::{CancellationToken, Client};
use ferry_store::Embedded;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Output;
use super::requests::{Seen, many, post};
use super::workloads::{self, MEASURED, NAMESPACE, Workload};
use crate::roles::apiserver::embedded_store;
use crate::usage;

#[derive(Args)]
pub struct Flags {
    /// Number of nodes; several values give a row each
    #[arg(long, value_delimiter = ',', default_value = "1000,5000,15000")]
    nodes: Vec<usize>,
    /// Maximum number of pods; the nodes of a workload may have capacity for fewer
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// Workloads to measure, separated by commas
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Workload::value_variants().to_vec())]
    workload: Vec<Workload>,
    /// Output format
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    workload: String,
    nodes: usize,
    /// Pods that were on the nodes before.
    placed: usize,
    pods: usize,
    seconds: f64,
    pods_per_second: f64,
    cpu_micros_per_pod: f64,
    memory_bytes: u64,
    /// The least that upstream's own benchmark accepts at 5,000 nodes, in pods per second.
    upstream_floor: Option<u32>,
}

pub fn run(flags: &Flags) -> anyhow::Result<()> {
    let cases: Vec<(usize, Workload)> =
        flags.nodes.iter().flat_map(|nodes| flags.workload.iter().map(|own| (*nodes, *own))).collect();
    if flags.output == Output::Table {
        println!(
            "{:<16} {:>7} {:>7} {:>8} {:>11} {:>8} {:>8}",
            "WORKLOAD", "NODES", "PODS", "PODS/S", "CPU US/POD", "MIB", "FLOOR"
        );
    }
    let mut all = Vec::new();
    for (nodes, workload) in &cases {
        let measured = match cases.len() {
            1 => {
                let runtime = tokio::runtime::Runtime::new().context("start the runtime")?;
                runtime.block_on(measure(*nodes, *workload, flags.pods))?
            }
            _ => in_own_process(*nodes, *workload, flags.pods)?,
        };
        if flags.output == Output::Table {
            println!("{}", measured.row());
        }
        all.push(measured);
    }
    if flags.output == Output::Json {
        let value = if let [only] = all.as_slice() { json!(only) } else { json!(all) };
        println!("{value}");
    }
    Ok(())
}

impl Measured {
    fn row(&self) -> String {
        format!(
            "{:<16} {:>7} {:>7} {:>8.0} {:>11.0} {:>8} {:>8}",
            self.workload,
            self.nodes,
            self.pods,
            self.pods_per_second,
            self.cpu_micros_per_pod,
            self.memory_bytes >> 20,
            self.upstream_floor.map_or("-".into(), |floor| floor.to_string())
        )
    }
}

fn in_own_process(nodes: usize, workload: Workload, pods: usize) -> anyhow::Result<Measured> {
    let name = workload.to_possible_value().context("every workload has a name")?;
    let output = std::process::Command::new(std::env::current_exe().context("find this program")?)
        .args(["bench", "scheduler", "--output", "json", "--workload", name.get_name()])
        .args(["--nodes", &nodes.to_string(), "--pods", &pods.to_string()])
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("start this program again")?;
    ensure!(output.status.success(), "{} with {nodes} nodes: {}", name.get_name(), output.status);
    serde_json::from_slice(&output.stdout).context("read what was measured")
}

async fn measure(nodes: usize, workload: Workload, pods: usize) -> anyhow::Result<Measured> {
    let directory = tempfile::tempdir().context("make a temporary directory")?;
    let store = Embedded::open(embedded_store(&directory.path().join("store")))?;
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let config = Config { bind: loopback, advertise: Some(loopback.ip()), ..Config::new(directory.path()) };
    let server = start(config, Arc::new(store)).await.context("start the server")?;
    let measured = measure_on(&server, nodes, workload, pods).await;
    server.stop().await;
    measured
}

async fn measure_on(
    server: &Running,
    nodes: usize,
    workload: Workload,
    pods: usize,
) -> anyhow::Result<Measured> {
    let admin = server.client(User::new("admin").with_groups([MASTERS]));
    let pods = pods.min(workload.room(nodes));
    let placed = workload.placed(nodes);
    workloads::prepare(&admin).await?;
    many(nodes, |number| workloads::create_node(&admin, number)).await.context("create nodes")?;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    many(placed, |number| post(&admin, &path, workload.placed_pod(number, number % nodes)))
        .await
        .context("create pods that are placed")?;
    many(pods, |number| post(&admin, &path, workload.pod(number))).await.context("create pods that wait")?;

    // `spec.nodeName!=`: a pod that gets a node is new to this watch
    let query = format!("&fieldSelector=spec.nodeName%21%3D&labelSelector=app%3D{MEASURED}");
    let mut bindings = Seen::watch(&admin, &path, &query, "ADDED").await?;
    let stop = CancellationToken::new();
    let identity = User::new("system:kube-scheduler").with_groups(["system:authenticated"]);
    let scheduler = tokio::spawn(ferry_scheduler::run(
        server.client(identity),
        ferry_scheduler::Config::default(),
        stop.clone(),
    ));
    let measuring = async {
        let first = bindings.wait_for(1).await?;
        let (begin, before) = (Instant::now(), usage::of(std::process::id())?);
        let last = bindings.wait_for(pods).await?;
        let (seconds, after) = (begin.elapsed().as_secs_f64(), usage::of(std::process::id())?);
        anyhow::Ok((first, last, seconds, after.cpu_seconds - before.cpu_seconds))
    };
    let churning = churn(&admin, &path, workload.churns());
    let (first, last, seconds, cpu) = tokio::select! {
        measured = measuring => measured?,
        failed = churning => match failed.context("create pods that preempt")? {},
    };
    let memory_bytes = usage::of(std::process::id())?.resident_bytes;
    stop.cancel();
    scheduler.await.context("the scheduler ends")?.context("run the scheduler")?;
    let bound = (last - first).max(1) as f64;
    Ok(Measured {
        workload: workload.to_possible_value().map(|own| own.get_name().to_owned()).unwrap_or_default(),
        nodes,
        placed,
        pods,
        seconds,
        pods_per_second: bound / seconds,
        cpu_micros_per_pod: cpu * 1e6 / bound,
        memory_bytes,
        upstream_floor: workload.upstream_floor(),
    })
}

/// Creates pods that preempt, five a second as upstream does, or none; ends only with an error.
async fn churn(client: &Client, path: &str, churns: bool) -> anyhow::Result<Infallible> {
    if !churns {
        std::future::pending::<()>().await;
    }
    let mut turn = tokio::time::interval(Duration::from_millis(200));
    let mut number = 0;
    loop {
        turn.tick().await;
        post(client, path, workloads::churning_pod(number)).await?;
        number += 1;
    }
}
