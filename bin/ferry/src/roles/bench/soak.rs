//! `ferry bench soak`: a control plane in processes of its own, simulated kubelets, and workloads, Services, ConfigMaps and
//! watches that come and go for as long as one likes, while parts are restarted. What is held must not grow: memory,
//! descriptors, threads and the store's directory are told for each tenth of the time.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use ferry_client::Client;
use futures::future::try_join_all;
use http::Method;
use serde::Serialize;
use serde_json::{Value, json};

use super::Output;
use super::cluster::kubelet::Kubelets;
use super::cluster::{come_to, deployment};
use super::part::{Part, Server};
use super::requests::{MERGE, Seen, delete, get, post, send};
use crate::cluster::ports::{self, Protocols};

const NAMESPACE: &str = "soak";
/// What is kept for a while by design is kept for less: an hour of Events would look like growth for an hour.
const SHORT_MEMORY: &[&str] = &["--event-ttl=2m", "--trace-retention=16MB"];

#[derive(Args)]
pub struct Flags {
    /// Duration in minutes
    #[arg(long, default_value_t = 120)]
    minutes: u64,
    /// Number of nodes, each with a simulated kubelet
    #[arg(long, default_value_t = 20)]
    nodes: usize,
    /// Number of pods that are created and deleted in each round
    #[arg(long, default_value_t = 100)]
    pods: usize,
    /// Minimum seconds between the starts of two rounds
    #[arg(long, default_value_t = 0)]
    every: u64,
    /// Output format
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// What a part holds at the end of a tenth of the time.
#[derive(Serialize, Clone)]
#[serde(rename_all = "camelCase")]
struct Sample {
    tenth: u32,
    rounds: usize,
    part: &'static str,
    memory_bytes: u64,
    descriptors: usize,
    threads: usize,
    disk_bytes: Option<u64>,
}

pub fn run(flags: &Flags) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("start the runtime")?;
    if flags.output == Output::Table {
        println!(
            "{:<6} {:>7}  {:<18} {:>7} {:>5} {:>8} {:>9}",
            "TENTH", "ROUNDS", "PART", "MIB", "FDS", "THREADS", "DISK MIB"
        );
    }
    let samples = runtime.block_on(soak(flags))?;
    if flags.output == Output::Json {
        println!("{}", json!(samples));
    }
    for part in ["apiserver", "controller-manager", "scheduler"] {
        let own: Vec<&Sample> = samples.iter().filter(|sample| sample.part == part).collect();
        if let Some(why) = growth(&own) {
            bail!("{part}: {why}");
        }
    }
    Ok(())
}

/// What must not grow by more than a tenth and some slack.
struct Judged {
    what: &'static str,
    of: fn(&Sample) -> u64,
    slack: u64,
}

/// Why the samples are not flat. The first tenths fill caches, and a part that was restarted fills them again: the last three
/// stand against the three before them.
fn growth(samples: &[&Sample]) -> Option<String> {
    let highest = |tenths: std::ops::RangeInclusive<u32>, of: fn(&Sample) -> u64| {
        samples.iter().filter(|sample| tenths.contains(&sample.tenth)).map(|sample| of(sample)).max()
    };
    let judged = [
        Judged { what: "bytes of memory", of: |sample| sample.memory_bytes, slack: 16 << 20 },
        Judged { what: "descriptors", of: |sample| sample.descriptors as u64, slack: 20 },
        Judged { what: "threads", of: |sample| sample.threads as u64, slack: 8 },
        Judged { what: "bytes on disk", of: |sample| sample.disk_bytes.unwrap_or(0), slack: 64 << 20 },
    ];
    judged.into_iter().find_map(|Judged { what, of, slack }| {
        let (before, after) = (highest(5..=7, of)?, highest(8..=10, of)?);
        (after > before + before / 10 + slack).then(|| format!("{before} {what} grew to {after}"))
    })
}

async fn soak(flags: &Flags) -> anyhow::Result<Vec<Sample>> {
    let directory = tempfile::tempdir().context("make a temporary directory")?;
    let mut plane = Plane::start(directory.path()).await?;
    let mut kubelets = Kubelets::start(&plane.server, flags.nodes, <_>::default()).await?;
    post(&plane.client, "/api/v1/namespaces", json!({"metadata": {"name": NAMESPACE}})).await?;
    let duration = Duration::from_secs(flags.minutes * 60);
    let mut pace = tokio::time::interval(Duration::from_secs(flags.every).max(Duration::from_nanos(1)));
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (begin, mut rounds, mut samples) = (Instant::now(), 0, Vec::new());
    for tenth in 1..=10 {
        let end = begin + duration * tenth / 10;
        loop {
            pace.tick().await;
            plane
                .round(rounds, flags.pods, &mut kubelets)
                .await
                .with_context(|| format!("round {rounds}"))?;
            rounds += 1;
            if Instant::now() >= end {
                break;
            }
        }
        // In the first half only, so that what follows can be compared.
        if tenth == 3 {
            plane.restart_server(directory.path()).await?;
        }
        let now = plane.samples(tenth, rounds, directory.path())?;
        if flags.output == Output::Table {
            now.iter().for_each(|sample| println!("{}", sample.row()));
        }
        samples.extend(now);
    }
    let left = plane.left().await?;
    ensure!(left.is_empty(), "left behind: {}", left.join(", "));
    Ok(samples)
}

impl Sample {
    fn row(&self) -> String {
        let Sample { tenth, rounds, part, memory_bytes, descriptors, threads, disk_bytes } = self;
        let disk = disk_bytes.map_or("-".to_owned(), |bytes| (bytes >> 20).to_string());
        format!(
            "{tenth:<6} {rounds:>7}  {part:<18} {:>7} {descriptors:>5} {threads:>8} {disk:>9}",
            memory_bytes >> 20
        )
    }
}

struct Plane {
    port: u16,
    server: Server,
    manager: Part,
    scheduler: Part,
    client: Client,
}

impl Plane {
    async fn start(directory: &Path) -> anyhow::Result<Plane> {
        let seed = directory.to_string_lossy();
        let port = ports::choose(IpAddr::V4(Ipv4Addr::LOCALHOST), 26_443, Protocols::Tcp, &seed)?;
        let server = Server::start_on(directory, port, SHORT_MEMORY).await?;
        let (manager, scheduler) = (part("controller-manager", &server)?, part("scheduler", &server)?);
        Ok(Plane { port, client: server.client().await?, server, manager, scheduler })
    }

    /// Everything comes, changes and goes.
    async fn round(&mut self, round: usize, pods: usize, kubelets: &mut Kubelets) -> anyhow::Result<()> {
        const MAPS: usize = 10;
        const RESTART_EVERY: usize = 10;
        let (name, client) = (format!("r{round}"), self.client.clone());
        let (deployments, services) = (namespaced("apps/v1", "deployments"), namespaced("v1", "services"));
        let maps = namespaced("v1", "configmaps");
        let watches = (0..8).map(|_| Seen::watch(&client, &maps, "", "ADDED"));
        let mut watches = try_join_all(watches).await?;
        let (running, removed) = (kubelets.running(), kubelets.removed());

        post(&client, &deployments, deployment(&name, pods)).await?;
        let service =
            json!({"metadata": {"name": name}, "spec": {"selector": {"app": name}, "ports": [{"port": 80}]}});
        post(&client, &services, service).await?;
        for number in 0..MAPS {
            let map =
                json!({"metadata": {"name": format!("{name}-{number}")}, "data": {"key": "x".repeat(2_000)}});
            post(&client, &maps, map).await?;
            let change = json!({"data": {"key": number.to_string()}});
            send(&client, Method::PATCH, &format!("{maps}/{name}-{number}"), MERGE, change).await?;
        }
        try_join_all(watches.iter_mut().map(|seen| seen.wait_for(MAPS))).await?;
        come_to(&kubelets.running, running + pods, &mut kubelets.failed, "run").await?;
        if round % RESTART_EVERY == RESTART_EVERY - 1 {
            self.restart_parts()?;
        }
        let half = json!({"spec": {"replicas": pods / 2}});
        send(&client, Method::PATCH, &format!("{deployments}/{name}"), MERGE, half).await?;
        come_to(&kubelets.removed, removed + pods - pods / 2, &mut kubelets.failed, "were removed").await?;
        for number in 0..MAPS {
            delete(&client, &format!("{maps}/{name}-{number}")).await?;
        }
        delete(&client, &format!("{services}/{name}")).await?;
        delete(&client, &format!("{deployments}/{name}")).await?;
        come_to(&kubelets.removed, removed + pods, &mut kubelets.failed, "were removed").await
    }

    fn restart_parts(&mut self) -> anyhow::Result<()> {
        self.manager.end()?;
        self.manager = part("controller-manager", &self.server)?;
        self.scheduler.end()?;
        self.scheduler = part("scheduler", &self.server)?;
        Ok(())
    }

    async fn restart_server(&mut self, directory: &Path) -> anyhow::Result<()> {
        self.server.part.end()?;
        self.server = Server::start_on(directory, self.port, SHORT_MEMORY).await?;
        self.client = self.server.client().await?;
        Ok(())
    }

    fn samples(&self, tenth: u32, rounds: usize, directory: &Path) -> anyhow::Result<Vec<Sample>> {
        let disk = bytes_below(directory)?;
        let parts = [
            ("apiserver", &self.server.part, Some(disk)),
            ("controller-manager", &self.manager, None),
            ("scheduler", &self.scheduler, None),
        ];
        let samples = parts.into_iter().map(|(part, process, disk_bytes)| {
            let (descriptors, threads) = process.held()?;
            let memory_bytes = process.usage()?.resident_bytes;
            Ok(Sample { tenth, rounds, part, memory_bytes, descriptors, threads, disk_bytes })
        });
        samples.collect()
    }

    /// What is still there of what came and went. Owned objects go a little after their owner.
    async fn left(&self) -> anyhow::Result<Vec<String>> {
        const PATIENCE: Duration = Duration::from_secs(60);
        let end = Instant::now() + PATIENCE;
        let kinds = [
            ("apps/v1", "deployments"),
            ("apps/v1", "replicasets"),
            ("v1", "pods"),
            ("v1", "services"),
            ("v1", "endpoints"),
            ("discovery.k8s.io/v1", "endpointslices"),
        ];
        loop {
            let mut left = Vec::new();
            for (version, resource) in kinds {
                let list: Value =
                    serde_json::from_slice(&get(&self.client, &namespaced(version, resource)).await?)?;
                let items = list["items"].as_array().context("a list has items")?;
                left.extend(items.iter().map(|item| format!("{resource}/{}", item["metadata"]["name"])));
            }
            if left.is_empty() || Instant::now() >= end {
                return Ok(left);
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
}

/// Without an election: nobody would start a part again that lost its Lease while the machine was busy with others.
fn part(role: &'static str, server: &Server) -> anyhow::Result<Part> {
    Part::of(server, role, &["--leader-elect=false"])
}

fn namespaced(version: &str, resource: &str) -> String {
    let root = if version == "v1" { "api" } else { "apis" };
    format!("/{root}/{version}/namespaces/{NAMESPACE}/{resource}")
}

/// Files may go while they are counted.
fn bytes_below(directory: &Path) -> anyhow::Result<u64> {
    let mut sum = 0;
    let entries = std::fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("read {}", directory.display()))?;
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => sum += bytes_below(&entry.path())?,
            Ok(metadata) => sum += metadata.len(),
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => {}
            Err(why) => return Err(why).with_context(|| format!("read {}", entry.path().display())),
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(tenth: u32, memory: u64, descriptors: usize) -> Sample {
        let (memory_bytes, disk_bytes) = (memory << 20, Some(0));
        Sample { tenth, rounds: 1, part: "apiserver", memory_bytes, descriptors, threads: 4, disk_bytes }
    }

    #[test]
    fn only_growth_in_the_last_tenths_counts() {
        let judge = |memory: fn(u32) -> u64, descriptors: fn(u32) -> usize| {
            let all: Vec<Sample> =
                (1..=10).map(|tenth| sample(tenth, memory(tenth), descriptors(tenth))).collect();
            growth(&all.iter().collect::<Vec<_>>())
        };
        assert_eq!(judge(|tenth| u64::from(tenth.min(5)) * 30, |_| 10), None);
        let grown = judge(|tenth| u64::from(tenth) * 20, |_| 10).expect("memory grew");
        assert!(grown.contains("memory"), "{grown}");
        let grown = judge(|_| 100, |tenth| tenth as usize * 20).expect("descriptors grew");
        assert!(grown.contains("descriptors"), "{grown}");
    }
}
