//! `ferry bench api`: an API server in a process of its own, clients that each have a connection, and what the server's
//! CPU was for each of their requests.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use ferry_client::Client;
use futures::future::try_join_all;
use http::Method;
use serde::Serialize;
use serde_json::{Value, json};

use super::Output;
use super::part::Server;
use super::requests::{JSON, STRATEGIC, Seen, delete, get, post, send};

const NAMESPACE: &str = "bench";
const PODS: &str = "/api/v1/namespaces/bench/pods";
const CONFIG_MAPS: &str = "/api/v1/namespaces/bench/configmaps";
/// Each pod is in one of so many, by a label.
const SHARDS: usize = 10;

#[derive(Args)]
pub struct Flags {
    /// How many pods are created, read, changed, listed and deleted
    #[arg(long, default_value_t = 5_000)]
    pods: usize,
    /// How many clients at a time
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// How many watches follow the events
    #[arg(long, default_value_t = 200)]
    watches: usize,
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    operation: &'static str,
    count: usize,
    per_second: f64,
    cpu_micros: f64,
    memory_bytes: u64,
}

pub fn run(flags: &Flags) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("start the runtime")?;
    let all = runtime.block_on(measure(flags))?;
    if flags.output == Output::Json {
        println!("{}", json!(all));
        return Ok(());
    }
    println!("{:<18} {:>7} {:>9} {:>11} {:>6}", "OPERATION", "COUNT", "PER SEC", "CPU US EACH", "MIB");
    for Measured { operation, count, per_second, cpu_micros, memory_bytes } in all {
        println!("{operation:<18} {count:>7} {per_second:>9.0} {cpu_micros:>11.0} {:>6}", memory_bytes >> 20);
    }
    Ok(())
}

async fn measure(flags: &Flags) -> anyhow::Result<Vec<Measured>> {
    let directory = tempfile::tempdir().context("make a temporary directory")?;
    let server = Server::start(directory.path()).await?;
    let load = Load { clients: server.clients(flags.clients.max(1)).await?, server };
    let measured = load.all(flags.pods.max(1), flags.watches).await?;
    load.server.part.stop()?;
    Ok(measured)
}

struct Load {
    server: Server,
    clients: Vec<Client>,
}

impl Load {
    async fn all(&self, pods: usize, watches: usize) -> anyhow::Result<Vec<Measured>> {
        let first = &self.clients[0];
        post(first, "/api/v1/namespaces", json!({"metadata": {"name": NAMESPACE}})).await?;
        let account = json!({"metadata": {"name": "default"}});
        post(first, &format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts"), account).await?;
        // Few of what is long, since one of them is as much work as thousands of the others.
        let (some, lists) = (pods.min(2_000), 40);
        let mut all = vec![
            self.phase("create", pods, async |client, number| post(client, PODS, pod(number)).await).await?,
            self.phase("get", 2 * pods, async |client, number| {
                // in an order that is not the one they were written in
                get(client, &format!("{PODS}/p{}", number * 7919 % pods)).await.map(drop)
            })
            .await?,
            self.phase("get + update", some, async |client, number| touch(client, number).await).await?,
            self.phase("patch status", some, async |client, number| run_pod(client, number).await).await?,
            self.phase("list", lists, async |client, _| {
                get(client, &format!("{PODS}?resourceVersion=0")).await.map(drop)
            })
            .await?,
            self.phase("list, consistent", lists, async |client, _| get(client, PODS).await.map(drop))
                .await?,
            self.phase("list by label", 2 * lists, async |client, number| {
                get(client, &format!("{PODS}?labelSelector=shard%3D{}", number % SHARDS)).await.map(drop)
            })
            .await?,
        ];
        all.push(self.events(watches.max(1)).await?);
        let deleted = async |client: &Client, number| {
            delete(client, &format!("{PODS}/p{number}?gracePeriodSeconds=0")).await.map(drop)
        };
        all.push(self.phase("delete", pods, deleted).await?);
        Ok(all)
    }

    /// Each client takes the next number until there are no more.
    async fn phase(
        &self,
        operation: &'static str,
        count: usize,
        each: impl AsyncFn(&Client, usize) -> anyhow::Result<()>,
    ) -> anyhow::Result<Measured> {
        let next = AtomicUsize::new(0);
        let work = async |client: &Client| -> anyhow::Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok(());
                }
                each(client, number).await.with_context(|| operation)?;
            }
        };
        self.measured(operation, count, try_join_all(self.clients.iter().map(work))).await
    }

    /// One event to one watch; the writes that make them are counted with them.
    async fn events(&self, watches: usize) -> anyhow::Result<Measured> {
        const EVENTS: usize = 200;
        const PAUSE: Duration = Duration::from_millis(5);
        const CONNECTIONS: usize = 8;
        let clients = self.server.clients(CONNECTIONS).await?;
        let begun =
            (0..watches).map(|number| Seen::watch(&clients[number % CONNECTIONS], CONFIG_MAPS, "", "ADDED"));
        let mut begun = try_join_all(begun).await?;
        let writing = async {
            for number in 0..EVENTS {
                let map =
                    json!({"metadata": {"name": format!("m{number}")}, "data": {"pad": "x".repeat(800)}});
                post(&self.clients[0], CONFIG_MAPS, map).await?;
                tokio::time::sleep(PAUSE).await;
            }
            Ok(())
        };
        let reading = try_join_all(begun.iter_mut().map(|seen| seen.wait_for(EVENTS)));
        let both = async { tokio::try_join!(writing, reading) };
        self.measured("event to a watch", EVENTS * watches, both).await
    }

    async fn measured<T>(
        &self,
        operation: &'static str,
        count: usize,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<Measured> {
        let (before, begin) = (self.server.part.usage()?, Instant::now());
        work.await?;
        let (after, seconds) = (self.server.part.usage()?, begin.elapsed().as_secs_f64());
        Ok(Measured {
            operation,
            count,
            per_second: count as f64 / seconds,
            cpu_micros: (after.cpu_seconds - before.cpu_seconds) * 1e6 / count as f64,
            memory_bytes: after.resident_bytes,
        })
    }
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
