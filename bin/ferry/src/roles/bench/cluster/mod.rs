//! `ferry bench cluster`: an API server, a controller manager and a scheduler, each in a process of its own, and thousands of
//! nodes whose kubelets are simulated ([`kubelet`]): each has a watch of its own pods, renews its Lease, says that its pods
//! run, and removes those that are deleted.
//!
//! Deployments come, stay for a while and go. For each phase: what each part used, and how long a kubelet waited for the
//! renewal of its Lease, which is what decides whether a node counts as lost.

pub mod kubelet;
mod latencies;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use ferry_client::Client;
use serde::Serialize;
use serde_json::{Value, json};

use self::kubelet::Kubelets;
use self::latencies::{Latencies, Percentiles};
use super::part::{Part, Server};
use super::requests::{delete, get, many, post};
use super::{Output, report};

const NAMESPACE: &str = "bench";

#[derive(Args)]
pub struct Flags {
    /// Number of nodes, each with a simulated kubelet
    #[arg(long, default_value_t = 5_000)]
    nodes: usize,
    /// Number of pods, in Deployments of at most 1,000
    #[arg(long, default_value_t = 100_000)]
    pods: usize,
    /// Idle time between the start of the last pod and the deletion of the first
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Output format
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    phase: &'static str,
    seconds: f64,
    parts: Vec<PartUsage>,
    /// What kubelets waited for the renewal of a Lease.
    leases: Percentiles,
    /// How often a kubelet's watch fell behind what the server remembers, until now.
    relists: usize,
    /// What another client waited meanwhile.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    requests: Vec<Request>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PartUsage {
    part: &'static str,
    cpu_seconds: f64,
    memory_bytes: u64,
}

#[derive(Serialize)]
struct Request {
    request: &'static str,
    #[serde(flatten)]
    latency: Percentiles,
}

pub fn run(flags: &Flags) -> anyhow::Result<()> {
    report(flags.output, measure(flags), |all| {
        println!("{:<8} {:>8}  {:<18} {:>8} {:>7}", "PHASE", "SECONDS", "PART", "CPU S", "MIB");
        for Measured { phase, seconds, parts, leases, relists, requests } in all {
            for PartUsage { part, cpu_seconds, memory_bytes } in parts {
                println!(
                    "{phase:<8} {seconds:>8.1}  {part:<18} {cpu_seconds:>8.1} {:>7}",
                    memory_bytes >> 20
                );
            }
            println!(
                "{phase:<8} {seconds:>8.1}  Lease renewed: {leases}; {relists} watches fell behind until now"
            );
            for Request { request, latency } in requests {
                println!("{phase:<8} {seconds:>8.1}  {request}: {latency}");
            }
        }
    })
}

async fn measure(flags: &Flags) -> anyhow::Result<Vec<Measured>> {
    let directory = tempfile::tempdir().context("make a temporary directory")?;
    let server = Server::start(directory.path()).await?;
    let cluster = Cluster {
        client: server.client().await?,
        manager: Part::of(&server, "controller-manager", &[])?,
        scheduler: Part::of(&server, "scheduler", &[])?,
        server,
        leases: Arc::default(),
    };
    let measured = cluster.phases(flags).await?;
    let Cluster { server, manager, scheduler, .. } = cluster;
    scheduler.stop()?;
    manager.stop()?;
    server.part.stop()?;
    Ok(measured)
}

struct Cluster {
    server: Server,
    manager: Part,
    scheduler: Part,
    client: Client,
    leases: Arc<Latencies>,
}

impl Cluster {
    async fn phases(&self, flags: &Flags) -> anyhow::Result<Vec<Measured>> {
        let mut measured = Vec::new();
        let begun = self.begin()?;
        let mut kubelets = Kubelets::start(&self.server, flags.nodes, self.leases.clone()).await?;
        measured.push(self.end("nodes", begun, &kubelets, Vec::new())?);

        let begun = self.begin()?;
        let deployments = deployments(flags.pods);
        post(&self.client, "/api/v1/namespaces", json!({"metadata": {"name": NAMESPACE}})).await?;
        many(deployments.len(), |number| post(&self.client, DEPLOYMENTS, deployments[number].clone()))
            .await?;
        come_to(&kubelets.running, flags.pods, &mut kubelets.failed, "run").await?;
        measured.push(self.end("start", begun, &kubelets, Vec::new())?);

        let begun = self.begin()?;
        let requests = tokio::select! {
            requests = self.probe(Duration::from_secs(flags.seconds)) => requests?,
            failed = &mut kubelets.failed => bail!(told(failed)),
        };
        measured.push(self.end("steady", begun, &kubelets, requests)?);

        let begun = self.begin()?;
        many(deployments.len(), async |number| {
            delete(&self.client, &format!("{DEPLOYMENTS}/{}", name(number))).await.map(drop)
        })
        .await?;
        come_to(&kubelets.removed, flags.pods, &mut kubelets.failed, "were removed").await?;
        measured.push(self.end("end", begun, &kubelets, Vec::new())?);
        Ok(measured)
    }

    fn parts(&self) -> [(&'static str, &Part); 3] {
        [
            ("apiserver", &self.server.part),
            ("controller-manager", &self.manager),
            ("scheduler", &self.scheduler),
        ]
    }

    /// The time, and the CPU of each part until now.
    fn begin(&self) -> anyhow::Result<(Instant, Vec<f64>)> {
        self.leases.take();
        let used = self.parts().into_iter().map(|(_, part)| Ok(part.usage()?.cpu_seconds));
        Ok((Instant::now(), used.collect::<anyhow::Result<_>>()?))
    }

    fn end(
        &self,
        phase: &'static str,
        (begin, before): (Instant, Vec<f64>),
        kubelets: &Kubelets,
        requests: Vec<Request>,
    ) -> anyhow::Result<Measured> {
        let relists = kubelets.relists.load(Ordering::Relaxed);
        let parts = self.parts().into_iter().zip(before).map(|((part, process), before)| {
            let usage = process.usage().with_context(|| format!("{part} in phase {phase}"))?;
            let cpu_seconds = usage.cpu_seconds - before;
            Ok(PartUsage { part, cpu_seconds, memory_bytes: usage.resident_bytes })
        });
        let parts = parts.collect::<anyhow::Result<_>>()?;
        let leases = Percentiles::of(self.leases.take());
        Ok(Measured { phase, seconds: begin.elapsed().as_secs_f64(), parts, leases, relists, requests })
    }

    /// Asks as a person would, one request after the other, ten rounds a second.
    async fn probe(&self, duration: Duration) -> anyhow::Result<Vec<Request>> {
        const ROUND: Duration = Duration::from_millis(100);
        let (creates, gets, lists) = (Latencies::default(), Latencies::default(), Latencies::default());
        let maps = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
        let end = Instant::now() + duration;
        let mut round = tokio::time::interval(ROUND);
        let mut number = 0;
        while Instant::now() < end {
            round.tick().await;
            let map = json!({"metadata": {"name": format!("m{number}")}, "data": {"key": "value"}});
            creates.measure(post(&self.client, &maps, map)).await?;
            gets.measure(get(&self.client, &format!("{maps}/m{number}"))).await?;
            let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods?limit=500");
            lists.measure(get(&self.client, &pods)).await?;
            number += 1;
        }
        let all = [("create", creates), ("get", gets), ("list of 500 pods", lists)];
        let told = all.map(|(request, all)| Request { request, latency: Percentiles::of(all.take()) });
        Ok(told.into())
    }
}

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/bench/deployments";

fn name(number: usize) -> String {
    format!("d{number}")
}

fn deployments(pods: usize) -> Vec<Value> {
    const LARGEST: usize = 1_000;
    let sizes = (0..pods).step_by(LARGEST).map(|before| LARGEST.min(pods - before));
    sizes.enumerate().map(|(number, replicas)| deployment(&name(number), replicas)).collect()
}

pub fn deployment(name: &str, replicas: usize) -> Value {
    let labels = json!({"app": name});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{
                    "name": "c", "image": "registry.example/app:1.2.3",
                    "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
                }]},
            },
        },
    })
}

/// Waits until a counter is there. A cluster in which it stands still for so long is stuck.
pub async fn come_to(
    counter: &AtomicUsize,
    count: usize,
    failed: &mut kubelet::Failed,
    what: &str,
) -> anyhow::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(120);
    const STEP: Duration = Duration::from_millis(50);
    let mut last = (counter.load(Ordering::Relaxed), Instant::now());
    while last.0 < count {
        tokio::select! {
            () = tokio::time::sleep(STEP) => {}
            failed = &mut *failed => bail!(told(failed)),
        }
        let now = counter.load(Ordering::Relaxed);
        if now != last.0 {
            last = (now, Instant::now());
        }
        if last.1.elapsed() > PATIENCE {
            bail!("{now} of {count} pods {what}, and no other did for {PATIENCE:?}");
        }
    }
    Ok(())
}

fn told(failed: Result<anyhow::Error, tokio::sync::oneshot::error::RecvError>) -> anyhow::Error {
    failed.unwrap_or_else(|_| anyhow::anyhow!("the kubelets ended"))
}
