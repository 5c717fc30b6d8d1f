//! `ferry bench controllers`: an API server and a controller manager, each in a process of its own, and a Deployment whose
//! pods nobody runs. What the manager used while they came, and while they were collected again.

use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::part::{Part, Server};
use super::requests::{Seen, delete, post};
use super::{Output, report};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const PODS: &str = "/api/v1/namespaces/default/pods";
const NAME: &str = "bench";

#[derive(Args)]
pub struct Flags {
    /// Number of pods of the Deployment
    #[arg(long, default_value_t = 1_000)]
    replicas: usize,
    /// Output format
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    phase: &'static str,
    seconds: f64,
    cpu_seconds: f64,
    /// When the last event had come.
    memory_bytes: u64,
}

pub fn run(flags: &Flags) -> anyhow::Result<()> {
    report(flags.output, measure(flags.replicas), |all| {
        println!("{:<8} {:>8} {:>8} {:>6}", "PHASE", "SECONDS", "CPU S", "MIB");
        for Measured { phase, seconds, cpu_seconds, memory_bytes } in all {
            println!("{phase:<8} {seconds:>8.2} {cpu_seconds:>8.2} {:>6}", memory_bytes >> 20);
        }
    })
}

async fn measure(replicas: usize) -> anyhow::Result<Vec<Measured>> {
    let directory = tempfile::tempdir().context("make a temporary directory")?;
    let server = Server::start(directory.path()).await?;
    let client = server.client().await?;
    let manager = Part::of(&server, "controller-manager", &[])?;
    let mut made = Seen::watch(&client, PODS, "", "ADDED").await?;
    let mut gone = Seen::watch(&client, PODS, "", "DELETED").await?;
    let make = async {
        post(&client, DEPLOYMENTS, deployment(replicas)).await?;
        made.wait_for(replicas).await
    };
    let collect = async {
        delete(&client, &format!("{DEPLOYMENTS}/{NAME}")).await?;
        gone.wait_for(replicas).await
    };
    let measured = vec![
        phase("start", &manager, async { Ok(0) }).await?,
        phase("make", &manager, make).await?,
        phase("collect", &manager, collect).await?,
    ];
    manager.stop()?;
    server.part.stop()?;
    Ok(measured)
}

async fn phase(
    phase: &'static str,
    manager: &Part,
    work: impl Future<Output = anyhow::Result<usize>>,
) -> anyhow::Result<Measured> {
    /// Until all that follows from the last event is done, too; its CPU belongs to the phase.
    const SETTLED: Duration = Duration::from_secs(5);
    let (before, begin) = (manager.usage()?, Instant::now());
    work.await.context(phase)?;
    let (seconds, memory_bytes) = (begin.elapsed().as_secs_f64(), manager.usage()?.resident_bytes);
    tokio::time::sleep(SETTLED).await;
    let cpu_seconds = manager.usage()?.cpu_seconds - before.cpu_seconds;
    Ok(Measured { phase, seconds, cpu_seconds, memory_bytes })
}

fn deployment(replicas: usize) -> serde_json::Value {
    let labels = json!({"app": NAME});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": NAME},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "c", "image": "registry.example/app:1.2.3"}]},
            },
        },
    })
}
