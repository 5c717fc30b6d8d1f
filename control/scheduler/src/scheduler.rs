//! The loop: what changed → snapshot and queue → one pod's search → a task that writes.
//!
//! One task owns the snapshot, the queue and the promises. Between two searches it takes in
//! everything that has changed, so no search works on a cluster that moves under it and no
//! event is missed in between. Only requests run beside it.

mod finished;

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::events::Events;
use ferry_client::{CancellationToken, Client, EventType, Informers, NamespacedName, Recorder};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::finished::{Finished, Step};
use crate::config::Config;
use crate::consult;
use crate::cycle::{Filters, FitError, Found, Search};
use crate::devices::binding::{self, Readiness};
use crate::extender::{EXTENDER, Extender};
use crate::metrics;
use crate::nominated::Nominated;
use crate::plugins::dynamic_resources::{self, Reservations};
use crate::plugins::{
    self, Change, Choices, Cycle, State, changed_facts, default_preemption, fact, may_help,
};
use crate::pod_info::{self, PodInfo, is_finished, node_name};
use crate::profile::Profile;
use crate::queue::Queue;
use crate::snapshot::{NodeIndex, Snapshot};
use crate::watched::{self, Changed, Inbox, Watched};
use crate::write::{self, WriteError};

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
    let (sender, finished) = mpsc::channel(config.parallelism);
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
    scheduler.run(&inbox, finished, &shutdown).await;
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
    sender: mpsc::Sender<Finished>,
    writes: JoinSet<()>,
    parallelism: usize,
    extenders: Vec<Arc<Extender>>,
    /// Pods that have a node and wait for volumes there.
    awaiting_volumes: HashMap<NamespacedName, AwaitingVolumes>,
    /// Pods that have a node and wait for their claims to be theirs, and ready.
    awaiting_devices: HashMap<NamespacedName, AwaitingDevices>,
}

/// A pod whose volumes are being bound or made. Its node is booked meanwhile: the volumes are made for it alone.
struct AwaitingVolumes {
    pod: Arc<PodInfo>,
    node: String,
    choices: Choices,
    /// Whether what was chosen is written.
    written: bool,
    until: Instant,
    /// When the attempt began that chose the node.
    began: Instant,
}

/// A pod whose claims are being reserved, or whose devices are being attached to its node.
struct AwaitingDevices {
    pod: Arc<PodInfo>,
    node: String,
    /// What comes after that.
    choices: Choices,
    reservations: Reservations,
    written: bool,
    until: Instant,
    began: Instant,
}

/// Upstream's `bindTimeoutSeconds`.
const VOLUMES_WITHIN: Duration = Duration::from_secs(600);

impl Scheduler {
    /// How many searches before the requests they caused get their turn.
    const TURN: usize = 16;

    async fn run(mut self, inbox: &Inbox, mut finished: mpsc::Receiver<Finished>, stop: &CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => return,
            () = self.watched.synced() => {}
        }
        let mut searches = 0;
        while !stop.is_cancelled() {
            for changed in inbox.take() {
                self.take_in(changed);
            }
            while let Ok(done) = finished.try_recv() {
                self.finish(done);
            }
            while self.writes.try_join_next().is_some() {}
            let now = Instant::now();
            if self.awaiting_volumes.values().any(|awaiting| awaiting.until <= now) {
                self.look_at_volumes();
            }
            if self.awaiting_devices.values().any(|awaiting| awaiting.until <= now) {
                self.look_at_devices();
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
            // a full set of writes has to end first, whatever is due
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
                Some(done) = finished.recv() => self.finish(done),
                Some(_) = self.writes.join_next(), if full => {}
            }
        }
        // bindings under way are let finish: the next leader must not find half of them
        drop(finished);
        while self.writes.join_next().await.is_some() {}
    }

    fn take_in(&mut self, changed: Changed) {
        match changed {
            Changed::Pod(key) => self.take_in_pod(&key),
            Changed::Node(name) => self.take_in_node(&name),
            Changed::Claim(key) => {
                self.wake(&Change::Claim(&key.namespace, &key.name));
                self.look_at_volumes();
            }
            Changed::Storage => {
                self.wake(&Change::Storage);
                self.look_at_volumes();
            }
            Changed::Namespace => self.wake(&Change::Namespace),
            Changed::Devices => self.wake(&Change::Devices),
            Changed::ResourceClaim(key) => self.take_in_resource_claim(&key),
        }
    }

    fn take_in_resource_claim(&mut self, key: &NamespacedName) {
        let claim = self.watched.resource_claims.get(key);
        let revision = claim.as_ref().and_then(|claim| ferry_client::name::revision(&**claim));
        self.watched.assumed.observe((&key.namespace, &key.name), claim.as_deref(), revision);
        let frees = claim.is_none_or(|claim| binding::allocation(&claim).is_none());
        self.wake(&Change::ResourceClaim { namespace: &key.namespace, name: &key.name, frees });
        self.look_at_devices();
    }

    fn take_in_pod(&mut self, key: &NamespacedName) {
        let pod = self.watched.pods.get(key).filter(|info| !is_finished(&info.pod));
        let Some(info) = pod else {
            self.stop_awaiting(key);
            self.queue.remove(key);
            self.break_promise(key, None);
            self.leave(key);
            return;
        };
        if let Some(node) = node_name(&info.pod) {
            self.stop_awaiting(key);
            self.queue.remove(key);
            self.break_promise(key, Some(node));
            let before = self.snapshot.placed(key).map(|(before, _)| before.clone());
            self.snapshot.put_pod(info.clone(), node);
            match before {
                // a smaller request, or an end that is coming, leaves room as a departure does
                Some(before)
                    if before.requests != info.requests
                        || before.is_terminating() != info.is_terminating() =>
                {
                    let index = self.snapshot.find(node);
                    self.wake(&Change::PodLeft { pod: &before, index });
                }
                Some(before) if before.labels() == info.labels() && node_name(&before.pod).is_some() => {}
                _ => self.wake(&Change::PodPlaced(&info)),
            }
            return;
        }
        let ours = self.profiles.iter().any(|(_, profile)| profile.name == info.scheduler_name());
        if !ours || info.is_terminating() {
            self.stop_awaiting(key);
            self.queue.remove(key);
            self.break_promise(key, None);
            self.leave(key);
            return;
        }
        if let Some((before, _)) = self.snapshot.placed(key) {
            if before.uid == info.uid {
                // booked: this is an echo from before its binding, or the binding is under way
                if self.queue.place(key).is_some() {
                    self.queue.put(info, Instant::now());
                }
                return;
            }
            self.leave(key);
            if self.stop_awaiting(key) {
                self.queue.remove(key);
            }
        }
        if let Some(node) = info.nominated_node() {
            self.nominated.put(info.clone(), node);
        }
        self.queue.put(info, Instant::now());
    }

    /// Whether the pod had a node and waited for something there. Its claims are given back by their own controller.
    fn stop_awaiting(&mut self, key: &NamespacedName) -> bool {
        let volumes = self.awaiting_volumes.remove(key).is_some();
        let devices = self.awaiting_devices.remove(key).is_some();
        volumes || devices
    }

    fn leave(&mut self, key: &NamespacedName) {
        if let Some((pod, index)) = self.snapshot.remove_pod(key) {
            self.wake(&Change::PodLeft { pod: &pod, index: Some(index) });
        }
    }

    /// The pod goes elsewhere or nowhere: what was promised to it is there for others.
    fn break_promise(&mut self, key: &NamespacedName, goes_to: Option<&str>) {
        let Some((pod, node)) = self.nominated.remove(key) else { return };
        if goes_to != Some(&node) {
            let index = self.snapshot.find(&node);
            self.wake(&Change::PodLeft { pod: &pod, index });
        }
    }

    fn take_in_node(&mut self, name: &str) {
        let Some(node) = self.watched.nodes.get(&NamespacedName::cluster(name)) else {
            self.snapshot.remove_node(name);
            return;
        };
        let known = self.snapshot.find(name).and_then(|index| self.snapshot.node(index));
        let what = known.map_or(fact::ADDED, |known| changed_facts(known, &node));
        let index = self.snapshot.put_node(&node);
        if what != 0 {
            self.wake(&Change::Node { index, what });
        }
    }

    /// Calls the pods that a change may help: those one of whose refusing plugins says so, beside all
    /// to whom the changed node was promised. Otherwise everyone would rush to the room that was made
    /// for one.
    fn wake(&mut self, change: &Change) {
        if !self.queue.has_unschedulable() {
            return;
        }
        self.snapshot.refresh_node_order();
        let changed = match change {
            Change::Node { index, .. } | Change::PodLeft { index: Some(index), .. } => Some(*index),
            _ => None,
        };
        let changed = changed.filter(|node| self.nominated.any_on(&self.snapshot, *node));
        let (profiles, nominated, watched) = (&self.profiles, &self.nominated, &self.watched);
        let snapshot = &mut self.snapshot;
        let woken = self.queue.wake(Instant::now(), change.event(), |pod, refused_by| {
            let Some((_, profile)) = profiles.iter().find(|(_, p)| p.name == pod.scheduler_name()) else {
                return false;
            };
            // no one knows what an extender waits for
            if refused_by.contains(&EXTENDER) {
                return true;
            }
            // there was no node that a plugin could have refused
            if refused_by.is_empty() {
                return matches!(change, Change::Node { .. });
            }
            let promised = changed.map(|node| (node, nominated.before(pod, snapshot, node)));
            let promised = || promised.iter().flat_map(|(node, pods)| pods.iter().map(|pod| (*node, pod)));
            promised().for_each(|(node, other)| snapshot.occupy(other, node));
            let helped = refused_by.iter().filter_map(|name| plugins::find(name)).any(|plugin| {
                let mut cycle = Cycle { pod, profile, cluster: watched, state: State::default() };
                may_help(plugin, &mut cycle, snapshot, change)
            });
            promised().for_each(|(node, other)| snapshot.vacate(other, node));
            helped
        });
        if woken > 0 {
            tracing::debug!(woken, "pods to be tried again");
        }
    }

    async fn schedule(&mut self, pod: Arc<PodInfo>) {
        let began = Instant::now();
        let mut span = ferry_trace::span("scheduler.schedule");
        span.object("pods", &pod.key.namespace, &pod.key.name);
        if let Some(revision) = ferry_client::name::revision(&pod.pod) {
            span.caused_by(revision);
        }
        let profile = self.profiles.iter().position(|(_, profile)| profile.name == pod.scheduler_name());
        let Some(at) = profile else {
            self.queue.remove(&pod.key);
            return;
        };
        let profile = self.profiles[at].1.clone();
        let watched = self.watched.clone();
        let mut cycle = Cycle { pod: &pod, profile: &profile, cluster: &watched, state: State::default() };
        let Found { nodes, filters, mut refused } =
            self.search.feasible(&mut cycle, &mut self.snapshot, &self.nominated);
        let consulted = consult::filter(&self.extenders, &pod, &self.snapshot, nodes, &mut refused);
        let nodes = match span.in_scope(consulted).await {
            Ok(nodes) => nodes,
            Err(error) => {
                metrics::attempted(profile.name, "error", began.elapsed());
                return span.enter(|| self.give_up(at, &pod, &error.to_string()));
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
            return span.enter(|| self.place(&pod, node, choices, reservations, began));
        }
        metrics::searched(began.elapsed());
        let nominated = span.in_scope(self.make_room(&mut cycle, &filters, &mut refused)).await;
        let summary = refused.summary();
        span.set("refused", summary.clone());
        span.set("refused_nodes", self.refusals(&refused));
        self.queue.refused(&pod.key, refused.plugins(), Instant::now());
        metrics::attempted(profile.name, "unschedulable", began.elapsed());
        span.enter(|| self.tell_refused(at, &pod, &summary, nominated));
    }

    /// An extender that is needed did not answer: nothing is known of the pod, so it is tried again.
    fn give_up(&mut self, at: usize, pod: &Arc<PodInfo>, message: &str) {
        self.queue.failed(&pod.key, Instant::now());
        self.tell(at, pod, "SchedulerError", message, None);
    }

    /// How many nodes' reasons and scores a trace keeps.
    const TRACED_NODES: usize = 8;

    /// Which plugin refused which node, and why.
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

    /// Books the node at once, and binds beside the next searches.
    fn place(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        choices: Choices,
        reservations: Reservations,
        began: Instant,
    ) {
        let name = self.snapshot.name(node).to_string();
        self.snapshot.place(pod.clone(), node);
        self.break_promise(&pod.key, Some(&name));
        if reservations.0.is_empty() {
            return self.bind_volumes(pod, name, choices, began);
        }
        for (claim, allocation) in &reservations.0 {
            if let Some(allocation) = allocation {
                self.watched.assumed.put(claim, allocation);
            }
        }
        let awaiting = AwaitingDevices {
            pod: pod.clone(),
            node: name.clone(),
            choices,
            reservations: reservations.clone(),
            written: false,
            until: Instant::now() + binding::WITHIN,
            began,
        };
        self.awaiting_devices.insert(pod.key.clone(), awaiting);
        let (client, user) = (self.client.clone(), pod.clone());
        self.write(pod.clone(), name, Step::ReserveClaims, began, async move {
            let mut allocated = Vec::new();
            for (claim, allocation) in &reservations.0 {
                match write::reserve_claim(&client, claim, allocation.as_ref(), &user).await {
                    Ok(revision) if allocation.is_some() => {
                        allocated.push((claim.metadata.uid.clone().unwrap_or_default(), revision));
                    }
                    Ok(_) => {}
                    Err(error) => return (allocated, Err(error)),
                }
            }
            (allocated, Ok(()))
        });
    }

    /// Has volumes bound for the node first, if some have to be.
    fn bind_volumes(&mut self, pod: &Arc<PodInfo>, name: String, choices: Choices, began: Instant) {
        if choices.is_empty() {
            return self.bind(pod.clone(), name, began);
        }
        let awaiting = AwaitingVolumes {
            pod: pod.clone(),
            node: name.clone(),
            choices: choices.clone(),
            written: false,
            until: Instant::now() + VOLUMES_WITHIN,
            began,
        };
        self.awaiting_volumes.insert(pod.key.clone(), awaiting);
        let (client, node) = (self.client.clone(), name.clone());
        self.write(pod.clone(), name, Step::BindVolumes, began, async move {
            let written = write::bind_volumes(&client, &choices, &node).await;
            (Vec::new(), written.map_err(WriteError::from))
        });
    }

    fn bind(&mut self, pod: Arc<PodInfo>, name: String, began: Instant) {
        let binder = self.extenders.iter().find(|own| own.binds() && own.is_interested(&pod)).cloned();
        let (client, bound, node) = (self.client.clone(), pod.clone(), name.clone());
        self.write(pod, name, Step::Bind, began, async move {
            let written = match binder {
                Some(binder) => binder.bind(&bound, &node).await.map_err(WriteError::from),
                None => write::bind(&client, &bound, &node).await.map_err(WriteError::from),
            };
            (Vec::new(), written)
        });
    }

    fn write(
        &mut self,
        pod: Arc<PodInfo>,
        node: String,
        step: Step,
        began: Instant,
        act: impl Future<Output = (Vec<(String, i64)>, Result<(), WriteError>)> + Send + 'static,
    ) {
        let sender = self.sender.clone();
        let write = async move {
            let mut span = ferry_trace::span("scheduler.bind");
            span.object("pods", &pod.key.namespace, &pod.key.name).set("node", node.as_str());
            let binding = Instant::now();
            let (allocated, result) = span.in_scope(act).await;
            if step == Step::Bind {
                let status = if result.is_ok() { "Success" } else { "Error" };
                metrics::ran("Bind", pod.scheduler_name(), status, binding.elapsed());
            }
            // fails only when the scheduler has ended
            let _ = sender.send(Finished { pod, node, step, allocated, result, began }).await;
        };
        self.writes.spawn(ferry_trace::inherit(write));
    }

    /// Binds the pods whose volumes are there by now; those whose volumes do not come look for a node again.
    fn look_at_volumes(&mut self) {
        let now = Instant::now();
        let mut settled = Vec::new();
        for (key, awaiting) in &self.awaiting_volumes {
            let bound = match self.snapshot.find(&awaiting.node) {
                _ if !awaiting.written => Ok(false),
                Some(index) => plugins::bound(&awaiting.choices, &self.snapshot, index, &self.watched),
                None => Err(format!("node \"{}\" not found", awaiting.node)),
            };
            match bound {
                Ok(false) if awaiting.until > now => {}
                Ok(false) => settled.push((key.clone(), Err("timed out waiting for the condition".into()))),
                Ok(true) => settled.push((key.clone(), Ok(()))),
                Err(why) => settled.push((key.clone(), Err(why))),
            }
        }
        for (key, outcome) in settled {
            let Some(AwaitingVolumes { pod, node, began, .. }) = self.awaiting_volumes.remove(&key) else {
                continue;
            };
            match outcome {
                Ok(()) => self.bind(pod, node, began),
                Err(why) => self.volumes_failed(&pod, &node, &why),
            }
        }
    }

    /// Goes on with the pods whose devices are ready; those whose devices fail look for a node again.
    fn look_at_devices(&mut self) {
        let now = Instant::now();
        let wall = Timestamp::now();
        let mut settled = Vec::new();
        for (key, awaiting) in self.awaiting_devices.iter().filter(|(_, awaiting)| awaiting.written) {
            let readiness = awaiting.readiness(&self.watched, wall);
            match readiness {
                Readiness::Waits if awaiting.until > now => {}
                Readiness::Waits => {
                    settled.push((key.clone(), Err("device binding timeout".to_owned())));
                }
                Readiness::Ready => settled.push((key.clone(), Ok(()))),
                Readiness::Failed(why) => settled.push((key.clone(), Err(why))),
            }
        }
        for (key, outcome) in settled {
            let Some(AwaitingDevices { pod, node, choices, began, .. }) = self.awaiting_devices.remove(&key)
            else {
                continue;
            };
            match outcome {
                Ok(()) => self.bind_volumes(&pod, node, choices, began),
                Err(why) => self.devices_failed(&pod, &node, &why),
            }
        }
    }

    fn devices_failed(&mut self, pod: &Arc<PodInfo>, node: &str, why: &str) {
        tracing::warn!(pod = %pod.key, node, why, "claims not reserved");
        self.leave(&pod.key);
        self.unreserve(pod);
        self.queue.failed(&pod.key, Instant::now());
        let at = self.profiles.iter().position(|(_, profile)| profile.name == pod.scheduler_name());
        if let Some(at) = at {
            let message = format!("running PreBind plugin \"DynamicResources\": {why}");
            self.tell(at, pod, "SchedulerError", &message, None);
        }
    }

    /// The pod does not go to its node after all: its claims are there for others.
    fn unreserve(&mut self, pod: &Arc<PodInfo>) {
        for name in dynamic_resources::names_of(pod) {
            let key = NamespacedName::new(&pod.key.namespace, name);
            let Some(claim) = self.watched.resource_claims.get(&key) else { continue };
            let (client, pod) = (self.client.clone(), pod.clone());
            self.writes.spawn(ferry_trace::inherit(async move {
                if let Err(error) = write::unreserve_claim(&client, &claim, &pod).await {
                    tracing::warn!(%error, "claim not unreserved");
                }
            }));
        }
    }

    /// Notes which of a pod's allocations are written; the others are not going to be.
    fn settle_allocations(
        &mut self,
        pod: &Arc<PodInfo>,
        reservations: &Reservations,
        allocated: &[(String, i64)],
    ) {
        for (claim, _) in reservations.0.iter().filter(|(_, allocation)| allocation.is_some()) {
            let uid = claim.metadata.uid.as_deref().unwrap_or("");
            match allocated.iter().find(|(own, _)| own == uid) {
                Some((_, revision)) => self.watched.assumed.written(uid, *revision),
                None if self.watched.assumed.remove(uid) => {
                    let name = claim.metadata.name.as_deref().unwrap_or("");
                    let namespace = pod.key.namespace.as_str();
                    self.wake(&Change::ResourceClaim { namespace, name, frees: true });
                }
                None => {}
            }
            // it may have been heard of before this
            let key = NamespacedName::new(&pod.key.namespace, claim.metadata.name.as_deref().unwrap_or(""));
            let seen = self.watched.resource_claims.get(&key);
            let revision = seen.as_ref().and_then(|claim| ferry_client::name::revision(&**claim));
            self.watched.assumed.observe((&key.namespace, &key.name), seen.as_deref(), revision);
        }
    }

    /// The pod went while its claims were written: what was written is seen in time.
    fn forget_allocations(&mut self, pod: &Arc<PodInfo>, allocated: &[(String, i64)]) {
        for (uid, revision) in allocated {
            self.watched.assumed.written(uid, *revision);
        }
        for name in dynamic_resources::names_of(pod) {
            let key = NamespacedName::new(&pod.key.namespace, name);
            let seen = self.watched.resource_claims.get(&key);
            let uid = seen.as_ref().and_then(|claim| claim.metadata.uid.clone()).unwrap_or_default();
            if !allocated.iter().any(|(own, _)| *own == uid) {
                self.watched.assumed.remove(&uid);
            }
            let revision = seen.as_ref().and_then(|claim| ferry_client::name::revision(&**claim));
            self.watched.assumed.observe((&key.namespace, &key.name), seen.as_deref(), revision);
        }
    }

    fn volumes_failed(&mut self, pod: &Arc<PodInfo>, node: &str, why: &str) {
        tracing::warn!(pod = %pod.key, node, why, "volumes not bound");
        self.leave(&pod.key);
        self.unreserve(pod);
        self.queue.failed(&pod.key, Instant::now());
        if let Some(at) = self.profile_of(pod) {
            let message = format!("running PreBind plugin \"VolumeBinding\": binding volumes: {why}");
            self.tell(at, pod, "SchedulerError", &message, None);
        }
    }

    /// The profile that a pod asks for.
    fn profile_of(&self, pod: &PodInfo) -> Option<usize> {
        self.profiles.iter().position(|(_, profile)| profile.name == pod.scheduler_name())
    }

    /// Looks for pods that could go; returns the node that is then promised.
    async fn make_room(
        &mut self,
        cycle: &mut Cycle<'_>,
        filters: &Filters,
        error: &mut FitError,
    ) -> Option<String> {
        if !cycle.profile.preempts || error.refused_at_once.is_some() || error.nodes == 0 {
            return None;
        }
        let claims = self.deallocate(cycle, error);
        let from = self.search.random() as usize;
        let mut span = ferry_trace::span("scheduler.preempt");
        metrics::preemption_attempted();
        let began = Instant::now();
        let found =
            default_preemption::find(cycle, &mut self.snapshot, filters, &self.nominated, error, from);
        let status = if found.is_ok() { "Success" } else { "Unschedulable" };
        metrics::ran("PostFilter", cycle.profile.name, status, began.elapsed());
        let candidates = match found {
            Ok(candidates) => candidates,
            Err(message) => {
                error.preemption = format!("{claims}, {message}");
                return None;
            }
        };
        let agreed = consult::preempt(&self.extenders, cycle.pod, &self.snapshot, candidates);
        let candidate = match span.in_scope(agreed).await {
            Ok(candidates) => default_preemption::best(candidates)?,
            Err(failed) => {
                error.preemption = format!("{claims}, preemption: {failed}");
                return None;
            }
        };
        let node = self.snapshot.name(candidate.node).to_string();
        span.set("node", node.clone());
        span.set("victims", candidate.victims.len() as i64);
        metrics::preempted(candidate.victims.len());
        self.preempt(candidate.victims, cycle, &node);
        self.withdraw_nominations(cycle.pod, &node);
        Some(node)
    }

    fn preempt(&mut self, victims: Vec<Arc<PodInfo>>, cycle: &Cycle<'_>, node: &str) {
        let recorder = self.profiles.iter().find(|(_, profile)| profile.name == cycle.profile.name);
        // one that is already on its way out needs no second push
        for victim in victims.into_iter().filter(|victim| !victim.is_terminating()) {
            let note = format!("Preempted by pod {} on node {node}", cycle.pod.uid);
            if let Some((recorder, _)) = recorder {
                recorder.event(&victim.pod, EventType::Normal, "Preempted", "Preempting", note);
            }
            let (client, scheduler) = (self.client.clone(), cycle.profile.name);
            self.writes.spawn(ferry_trace::inherit(async move {
                if let Err(error) = write::preempt(&client, &victim, scheduler).await {
                    tracing::warn!(%error, "preemption failed");
                }
            }));
        }
    }

    /// Those who were promised the same node before, and are less important, look again.
    fn withdraw_nominations(&mut self, pod: &PodInfo, node: &str) {
        for key in self.nominated.after(pod, node) {
            self.nominated.remove(&key);
            if let Some(pod) = self.queue.pod(&key).cloned() {
                let client = self.client.clone();
                self.writes.spawn(ferry_trace::inherit(async move {
                    if let Err(error) = write::status(&client, &pod, None, Some("")).await {
                        tracing::warn!(%error, "nomination not cleared");
                    }
                }));
            }
        }
    }

    /// Has a claim give its devices back that keep the pod from every node; says what came of that.
    fn deallocate(&mut self, cycle: &Cycle<'_>, error: &FitError) -> &'static str {
        if !dynamic_resources::has_claims(cycle) {
            return "no new claims to deallocate";
        }
        let Some(claim) = dynamic_resources::to_deallocate(cycle, &self.snapshot, error) else {
            return "still not schedulable";
        };
        let client = self.client.clone();
        self.writes.spawn(ferry_trace::inherit(async move {
            if let Err(error) = write::deallocate_claim(&client, &claim).await {
                tracing::warn!(%error, "claim not deallocated");
            }
        }));
        "deallocation of ResourceClaim completed"
    }

    fn tell_refused(&mut self, at: usize, pod: &Arc<PodInfo>, summary: &str, nominated: Option<String>) {
        if let Some(node) = &nominated {
            self.nominated.put(pod.clone(), node);
        }
        self.tell(at, pod, "Unschedulable", summary, nominated);
    }

    fn tell(
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

impl AwaitingDevices {
    /// Of all claims that were reserved; one that is not seen with its devices yet is waited for.
    fn readiness(&self, watched: &Watched, now: Timestamp) -> Readiness {
        let mut all = Readiness::Ready;
        if !has_conditions(&self.reservations) {
            return all;
        }
        for (claim, _) in &self.reservations.0 {
            let name = claim.metadata.name.as_deref().unwrap_or("");
            let key = NamespacedName::new(&self.pod.key.namespace, name);
            let seen =
                watched.resource_claims.get(&key).filter(|seen| seen.metadata.uid == claim.metadata.uid);
            let Some(seen) = seen else {
                return Readiness::Failed(format!("resourceclaim.resource.k8s.io \"{name}\" not found"));
            };
            match binding::readiness(&seen, now) {
                Readiness::Ready => {}
                Readiness::Waits => all = Readiness::Waits,
                failed => return failed,
            }
        }
        all
    }
}

/// Whether somebody has to make devices ready before the pod may be bound.
fn has_conditions(reservations: &Reservations) -> bool {
    reservations.0.iter().any(|(claim, allocation)| {
        allocation.as_ref().or(binding::allocation(claim)).is_some_and(binding::has_conditions)
    })
}
