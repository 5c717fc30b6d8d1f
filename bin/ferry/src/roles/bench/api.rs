//! `ferry bench api`: an API server in a process of its own, clients that each have a connection, and what the server's
//! CPU was for each of their requests.

use anyhow::Context;
use clap::Args;
use ferry_client::Client;
use http::Method;
use serde_json::{Value, json};

use super::load::{Load, Measured};
use super::requests::{JSON, STRATEGIC, delete, get, post, send};
use super::{Output, report};

const NAMESPACE: &str = "bench";
const PODS: &str = "/api/v1/namespaces/bench/pods";
const CONFIG_MAPS: &str = "/api/v1/namespaces/bench/configmaps";
/// Each pod is in one of so many, by a label.
const SHARDS: usize = 10;

#[derive(Args)]
pub struct Flags {
    /// Number of pods that are created, read, changed, listed and deleted
    #[arg(long, default_value_t = 5_000)]
    pods: usize,
    /// Number of concurrent clients
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// Number of watches
    #[arg(long, default_value_t = 200)]
    watches: usize,
    /// Output format
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

pub fn run(flags: &Flags) -> anyhow::Result<()> {
    report(flags.output, measure(flags), |all| {
        println!("{:<18} {:>7} {:>9} {:>11} {:>6}", "OPERATION", "COUNT", "PER SEC", "CPU US EACH", "MIB");
        for Measured { operation, count, per_second, cpu_micros, memory_bytes } in all {
            println!(
                "{operation:<18} {count:>7} {per_second:>9.0} {cpu_micros:>11.0} {:>6}",
                memory_bytes >> 20
            );
        }
    })
}

async fn measure(flags: &Flags) -> anyhow::Result<Vec<Measured>> {
    let directory = tempfile::tempdir().context("make a temporary directory")?;
    let load = Load::start(directory.path(), flags.clients).await?;
    let measured = all(&load, flags.pods.max(1), flags.watches).await?;
    load.server.part.stop()?;
    Ok(measured)
}

async fn all(load: &Load, pods: usize, watches: usize) -> anyhow::Result<Vec<Measured>> {
    let first = &load.clients[0];
    post(first, "/api/v1/namespaces", json!({"metadata": {"name": NAMESPACE}})).await?;
    let account = json!({"metadata": {"name": "default"}});
    post(first, &format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts"), account).await?;
    // Few of what is long, since one of them is as much work as thousands of the others.
    let (some, lists) = (pods.min(2_000), 40);
    let mut all = vec![
        load.phase("create", pods, async |client, number| post(client, PODS, pod(number)).await).await?,
        load.phase("get", 2 * pods, async |client, number| {
            // in an order that is not the one they were written in
            get(client, &format!("{PODS}/p{}", number * 7919 % pods)).await.map(drop)
        })
        .await?,
        load.phase("get + update", some, async |client, number| touch(client, number).await).await?,
        load.phase("patch status", some, async |client, number| run_pod(client, number).await).await?,
        load.phase("list", lists, async |client, _| {
            get(client, &format!("{PODS}?resourceVersion=0")).await.map(drop)
        })
        .await?,
        load.phase("list, consistent", lists, async |client, _| get(client, PODS).await.map(drop)).await?,
        load.phase("list by label", 2 * lists, async |client, number| {
            get(client, &format!("{PODS}?labelSelector=shard%3D{}", number % SHARDS)).await.map(drop)
        })
        .await?,
    ];
    let map =
        |number: usize| json!({"metadata": {"name": format!("m{number}")}, "data": {"pad": "x".repeat(800)}});
    all.push(load.events(CONFIG_MAPS, watches.max(1), map).await?);
    let deleted = async |client: &Client, number| {
        delete(client, &format!("{PODS}/p{number}?gracePeriodSeconds=0")).await.map(drop)
    };
    all.push(load.phase("delete", pods, deleted).await?);
    Ok(all)
}

/// Reads, changes and writes, as a controller does.
async fn touch(client: &Client, number: usize) -> anyhow::Result<()> {
    let path = format!("{PODS}/p{number}");
    let mut pod: Value = serde_json::from_slice(&get(client, &path).await?)?;
    pod["metadata"]["annotations"]["touched"] = json!(number.to_string());
    send(client, Method::PUT, &path, JSON, pod).await
}

/// Says of a pod what a kubelet says.
async fn run_pod(client: &Client, number: usize) -> anyhow::Result<()> {
    let status = json!({"status": {
        "phase": "Running", "podIP": format!("10.1.{}.{}", number / 250, number % 250),
        "conditions": [{"type": "Ready", "status": "True"}],
    }});
    send(client, Method::PATCH, &format!("{PODS}/p{number}/status"), STRATEGIC, status).await
}

/// With about as much in it as pods have; no scheduler looks at it.
fn pod(number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("p{number}"),
            "labels": {"app": NAMESPACE, "shard": (number % SHARDS).to_string()},
        },
        "spec": {
            "schedulerName": "none",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "c", "image": "registry.example/app:1.2.3", "command": ["/app", "--serve"],
                "ports": [{"containerPort": 8080}],
                "env": [
                    {"name": "LEVEL", "value": "info"},
                    {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                ],
                "resources": {
                    "requests": {"cpu": "100m", "memory": "64Mi"},
                    "limits": {"cpu": "1", "memory": "128Mi"},
                },
                "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080}},
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
            }],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    })
}
