//! The scheduling loop. One task owns the snapshot, the queue and the nominated pods; requests to the API server run in
//! tasks of their own.
//!
//! - [`event_handlers`]: between two pods the loop handles all changes of watched objects, so that the snapshot is
//!   constant while a pod is scheduled.
//! - `schedule` (here): the scheduling cycle of one pod: filter, score, pick a node.
//! - [`preemption`]: what happens when no node fits.
//! - [`binding_cycle`]: reserve resource claims, bind volumes, bind the pod; [`pre_bind`] waits for the first two.

mod binding_cycle;
mod event_handlers;
mod pre_bind;
mod preemption;

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use ferry_client::events::Events;
use ferry_client::{CancellationToken, Client, EventType, Informers, NamespacedName, Recorder};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::binding_cycle::StepResult;
use self::pre_bind::{AwaitingDevices, AwaitingVolumes};
use crate::config::Config;
use crate::consult;
use crate::cycle::{FeasibleNodes, FitError, Search};
use crate::extender::Extender;
use crate::metrics;
use crate::nominated::Nominated;
use crate::plugins::{Cycle, State, dynamic_resources};
use crate::pod_info::{self, PodInfo};
use crate::profile::Profile;
use crate::queue::Queue;
use crate::snapshot::{NodeIndex, Snapshot};
use crate::watched::{self, Inbox, Watched};
use crate::write;

/// Runs until `shutdown`, and waits for all it has started.
pub async fn run(client: Client, config: Config, extenders: Vec<Arc<Extender>>, shutdown: CancellationToken) {
    let informers = Informers::new(client.clone(), shutdown.clone());
    let events = Events::start(client.clone(), config.instance.clone(), shutdown.clone());
    if extenders.is_empty() {
        informers.project::<PodInfo>(&pod_info::KEPT);
        informers.project::<Node>(&watched::NODE);
        informers.transform(PodInfo::trim);
        informers.transform(watched::trim_node);
    }
    let inbox = Arc::new(Inbox::default());
    let watched = Watched::start(&informers, &inbox);
    let (sender, results) = mpsc::channel(config.parallelism);
    let profiles = config.profiles.iter().cloned().map(|mut profile| {
        profile.percentage_of_nodes_to_score =
            profile.percentage_of_nodes_to_score.or(config.percentage_of_nodes_to_score);
        (events.reporting_recorder(profile.name), Arc::new(profile))
    });
    let scheduler = Scheduler {
        client,
        profiles: profiles.collect(),
        snapshot: Snapshot::default(),
        queue: Queue::new(config.backoff),
        nominated: Nominated::default(),
        search: Search::new(config.seed),
        watched,
        sender,
        writes: JoinSet::new(),
        parallelism: config.parallelism,
        extenders,
        awaiting_volumes: HashMap::new(),
        awaiting_devices: HashMap::new(),
    };
    scheduler.run(&inbox, results, &shutdown).await;
    informers.stopped().await;
    events.stopped().await;
}

struct Scheduler {
    client: Client,
    profiles: Vec<(Recorder, Arc<Profile>)>,
    snapshot: Snapshot,
    queue: Queue,
    nominated: Nominated,
    search: Search,
    watched: Watched,
    sender: mpsc::Sender<StepResult>,
    writes: JoinSet<()>,
    parallelism: usize,
    extenders: Vec<Arc<Extender>>,
    /// Pods that have a node and wait for their volumes to be bound.
    awaiting_volumes: HashMap<NamespacedName, AwaitingVolumes>,
    /// Pods that have a node and wait for their resource claims to be reserved and their devices to be ready.
    awaiting_devices: HashMap<NamespacedName, AwaitingDevices>,
}

impl Scheduler {
    /// The loop yields to the tasks that write after so many pods.
    const TURN: usize = 16;

    async fn run(mut self, inbox: &Inbox, mut results: mpsc::Receiver<StepResult>, stop: &CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => return,
            () = self.watched.synced() => {}
        }
        let mut searches = 0;
        while !stop.is_cancelled() {
            for changed in inbox.take() {
                self.handle(changed);
            }
            while let Ok(result) = results.try_recv() {
                self.step_ended(result);
            }
            while self.writes.try_join_next().is_some() {}
            let now = Instant::now();
            if self.awaiting_volumes.values().any(|awaiting| awaiting.until <= now) {
                self.check_volume_bindings();
            }
            if self.awaiting_devices.values().any(|awaiting| awaiting.until <= now) {
                self.check_device_bindings();
            }
            if self.writes.len() < self.parallelism
                && let Some(pod) = self.queue.pop(Instant::now())
            {
                self.schedule(pod).await;
                searches += 1;
                if searches % Self::TURN == 0 {
                    tokio::task::yield_now().await;
                }
                continue;
            }
            // With all write slots taken no pod can be scheduled, even if its backoff ends.
            let full = self.writes.len() >= self.parallelism;
            let deadline = self.queue.next_deadline().filter(|_| !full);
            let volumes = self.awaiting_volumes.values().map(|awaiting| awaiting.until).min();
            let devices = self.awaiting_devices.values().map(|awaiting| awaiting.until).min();
            let deadline = deadline.into_iter().chain(volumes).chain(devices).min();
            let due = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = inbox.arrived() => {}
                () = due => {}
                Some(result) = results.recv() => self.step_ended(result),
                Some(_) = self.writes.join_next(), if full => {}
            }
        }
        // Wait for the bindings that have begun: the next leader must not find half of them.
        drop(results);
        while self.writes.join_next().await.is_some() {}
    }

    async fn schedule(&mut self, pod: Arc<PodInfo>) {
        let began = Instant::now();
        let mut span = ferry_trace::span("scheduler.schedule");
        span.object("pods", &pod.key.namespace, &pod.key.name);
        if let Some(revision) = ferry_client::name::revision(&pod.pod) {
            span.caused_by(revision);
        }
        let Some(at) = self.profile_of(&pod) else {
            self.queue.remove(&pod.key);
            return;
        };
        let profile = self.profiles[at].1.clone();
        let watched = self.watched.clone();
        let mut cycle = Cycle { pod: &pod, profile: &profile, cluster: &watched, state: State::default() };
        let FeasibleNodes { nodes, filters, mut refused } =
            self.search.feasible(&mut cycle, &mut self.snapshot, &self.nominated);
        let consulted = consult::filter(&self.extenders, &pod, &self.snapshot, nodes, &mut refused);
        let nodes = match span.in_scope(consulted).await {
            Ok(nodes) => nodes,
            Err(error) => {
                metrics::attempted(profile.name, "error", began.elapsed());
                return span.enter(|| self.scheduling_error(at, &pod, &error.to_string()));
            }
        };
        if !nodes.is_empty() {
            let extra = consult::scores(&self.extenders, &pod, &self.snapshot, &nodes);
            let extra = span.in_scope(extra).await;
            let node = self.search.pick(&cycle, &self.snapshot, &nodes, extra.as_deref());
            let choices = cycle.state.volume_choices(&cycle, &self.snapshot, node);
            let reservations = dynamic_resources::choose(&cycle, &self.snapshot, node);
            span.set("node", self.snapshot.name(node).to_string());
            span.set("feasible", nodes.len() as i64);
            if nodes.len() > 1 {
                span.set("scores", self.best_scores(&nodes));
            }
            if !refused.refused.is_empty() {
                span.set("refused_nodes", self.refusals(&refused));
            }
            metrics::searched(began.elapsed());
            return span.enter(|| self.assume(&pod, node, choices, reservations, began));
        }
        metrics::searched(began.elapsed());
        let nominated = span.in_scope(self.post_filter(&mut cycle, &filters, &mut refused)).await;
        let summary = refused.summary();
        span.set("refused", summary.clone());
        span.set("refused_nodes", self.refusals(&refused));
        self.queue.refused(&pod.key, refused.plugins(), Instant::now());
        metrics::attempted(profile.name, "unschedulable", began.elapsed());
        span.enter(|| self.unschedulable(at, &pod, &summary, nominated));
    }

    /// An extender that is not ignorable failed: the pod is retried after its backoff.
    fn scheduling_error(&mut self, at: usize, pod: &Arc<PodInfo>, message: &str) {
        self.queue.failed(&pod.key, Instant::now());
        self.handle_scheduling_failure(at, pod, "SchedulerError", message, None);
    }

    /// A span records the refusals and scores of so many nodes at most.
    const TRACED_NODES: usize = 8;

    /// The plugin and the reasons that refused each node, for the span.
    fn refusals(&self, refused: &FitError) -> String {
        let traced = refused.refused.iter().take(Self::TRACED_NODES).map(|(node, plugin, refusal)| {
            format!("{} {plugin}: {}", self.snapshot.name(*node), refusal.reasons.join(", "))
        });
        traced.collect::<Vec<_>>().join("; ")
    }

    /// The scores of the last pick, the best first.
    fn best_scores(&self, nodes: &[NodeIndex]) -> String {
        let mut text = String::new();
        for (score, node) in self.search.best(nodes, Self::TRACED_NODES) {
            let separator = if text.is_empty() { "" } else { " " };
            write!(text, "{separator}{}={score}", self.snapshot.name(node)).expect("a String takes all");
        }
        text
    }

    /// The profile that a pod asks for.
    fn profile_of(&self, pod: &PodInfo) -> Option<usize> {
        self.profiles.iter().position(|(_, profile)| profile.name == pod.scheduler_name())
    }

    /// No node fits: nominates the node that preemption made room on, if any, and reports.
    fn unschedulable(&mut self, at: usize, pod: &Arc<PodInfo>, summary: &str, nominated: Option<String>) {
        if let Some(node) = &nominated {
            self.nominated.put(pod.clone(), node);
        }
        self.handle_scheduling_failure(at, pod, "Unschedulable", summary, nominated);
    }

    /// Records the event `FailedScheduling` and writes the condition `PodScheduled` and the nominated node.
    fn handle_scheduling_failure(
        &mut self,
        at: usize,
        pod: &Arc<PodInfo>,
        reason: &str,
        message: &str,
        nominated: Option<String>,
    ) {
        let recorder = &self.profiles[at].0;
        recorder.event(&pod.pod, EventType::Warning, "FailedScheduling", "Scheduling", message);
        let condition = write::condition(&pod.pod, reason, message, Timestamp::now());
        let nominated = nominated.filter(|node| pod.nominated_node() != Some(node));
        if condition.is_none() && nominated.is_none() {
            return;
        }
        let (client, pod) = (self.client.clone(), pod.clone());
        self.writes.spawn(ferry_trace::inherit(async move {
            let written = write::status(&client, &pod, condition.as_ref(), nominated.as_deref()).await;
            if let Err(error) = written {
                tracing::warn!(%error, "condition not written");
            }
        }));
    }
}
