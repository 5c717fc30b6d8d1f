//! One worker per pod: a task that alone changes anything about the pod.
//!
//! ```text
//!              pod changed, container ended, probe, timer
//!                 ┌─────┐
//!                 ▼     │
//!   start ──▶  Syncing ─┘
//!                 │ deleted, evicted, rejected, past its deadline,
//!                 │ or all containers have finished
//!                 ▼
//!            Terminating    containers and sandbox stop within their grace period
//!                 │
//!                 ▼
//!            Terminated     volumes and cgroups are removed, the status is final
//!                 │ deleted from its source
//!                 ▼
//!              removed      containers, logs and the API object are removed
//! ```
//!
//! A worker keeps no state that the runtime or the API does not also have, so a restarted kubelet continues where the
//! previous one stopped.

mod block_devices;
mod clash;
mod devices;
mod image_volumes;
mod resize;
mod start;
mod stop;
mod sync;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::{CancellationToken, EventType};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::backoff::CrashBackoff;
use crate::context::Context;
use crate::cri;
use crate::logs;
use crate::metrics;
use crate::pod;
use crate::probes::Probes;
use crate::resize::{Pending, is_same};
use crate::resources::Asks;
use crate::runtime;
use crate::runtime::view::{PodRuntime, State};
use crate::status::containers::{Readiness, StartFailure};
use crate::status::{self, Ending};

/// The desired state of a worker's pod. The worker always acts on the latest.
#[derive(Clone)]
pub struct Orders {
    /// With the resources granted to it.
    pub pod: Arc<Pod>,
    /// What that asks of the node.
    pub asks: Arc<Asks>,
    /// The API's copy of a static pod.
    pub mirror: Option<Arc<Pod>>,
    /// The pod is no longer in its source.
    pub gone: bool,
    pub ending: Option<Ending>,
    /// Less time than the pod's own grace period.
    pub grace: Option<Duration>,
    /// A resize that the pod requests and that is not granted.
    pub pending_resize: Option<Pending>,
    /// The pod as it asks to be, while that is not granted.
    pub wanted: Option<Arc<Pod>>,
    /// Something outside changed; counts so that waiting sees it.
    pub wakes: u64,
}

impl Orders {
    pub fn new(pod: Arc<Pod>) -> Self {
        Self {
            asks: Arc::new(Asks::of(&pod)),
            pod,
            mirror: None,
            gone: false,
            ending: None,
            grace: None,
            pending_resize: None,
            wanted: None,
            wakes: 0,
        }
    }

    /// The pod is granted what it has in this version of it.
    pub fn grant(&mut self, pod: Arc<Pod>) {
        if !is_same(&pod, &self.pod) {
            self.asks = Arc::new(Asks::of(&pod));
        }
        self.pod = pod;
    }

    fn is_deleted(&self) -> bool {
        self.gone || self.pod.metadata.deletion_timestamp.is_some()
    }

    fn must_end(&self) -> bool {
        self.is_deleted() || self.ending.is_some()
    }

    fn grace(&self) -> Duration {
        let own = pod::grace_period(&self.pod);
        self.grace.map_or(own, |grace| grace.min(own))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Syncing,
    Terminating,
    Terminated,
}

/// When a worker acts next, if its orders do not change.
enum Next {
    Now,
    After(Duration),
    /// The pod is gone.
    Never,
}

/// Errors are tried again after this, doubling.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(10);

pub struct Worker {
    context: Arc<Context>,
    uid: String,
    /// What was begun for the pod at the runtime and on disk. It goes on when a sync is broken off, and whoever takes
    /// the pod down waits for it first: until then the runtime may not show what it is making.
    work: TaskTracker,
    runtime: cri::Client,
    orders: watch::Receiver<Orders>,
    stage: Stage,
    probes: Probes,
    /// Reasons why containers do not start, by name.
    failures: HashMap<String, StartFailure>,
    restarts: CrashBackoff,
    /// Termination messages of containers, by ID.
    messages: HashMap<String, String>,
    /// The runtime's records when last asked.
    seen: PodRuntime,
    /// The status as last computed; transition times depend on it.
    status: PodStatus,
    /// A failure that this worker detected itself, such as an exceeded deadline.
    ending: Option<Ending>,
    /// What running containers have, by id.
    given: HashMap<String, resize::AppliedResources>,
    /// Containers lack what was granted, or the pod's group is still wider than it has to be.
    resizing: bool,
    /// Why containers did not get what was granted.
    resize_problem: Option<String>,
    /// Containers whose preStop hook has run.
    pre_stopped: HashSet<String>,
    retry: Duration,
    /// Whether the pass under way has changed anything; one that only looked is not worth a place in the trace.
    acted: bool,
    /// Set when everything of the pod is off the node.
    done: CancellationToken,
    /// When the pod was first seen.
    began: Instant,
}

impl Worker {
    pub fn new(context: Arc<Context>, orders: watch::Sender<Orders>, done: CancellationToken) -> Self {
        let receiver = orders.subscribe();
        let pod = receiver.borrow().pod.clone();
        let wake = Arc::new(move || orders.send_modify(|orders| orders.wakes += 1));
        let work = TaskTracker::new();
        // waiting waits for what is there
        work.close();
        Self {
            probes: Probes::new(context.runtime.clone(), context.events.clone(), wake),
            restarts: CrashBackoff::new(context.config.max_container_restart_period),
            uid: pod::uid(&pod).into(),
            runtime: context.runtime.tracked(&work),
            work,
            status: pod.status.clone().unwrap_or_default(),
            context,
            orders: receiver,
            stage: Stage::Syncing,
            failures: HashMap::new(),
            seen: PodRuntime::default(),
            messages: HashMap::new(),
            ending: None,
            given: HashMap::new(),
            resizing: false,
            resize_problem: None,
            pre_stopped: HashSet::new(),
            retry: FIRST_RETRY,
            acted: false,
            done,
            began: Instant::now(),
        }
    }

    /// What goes on when the worker is dropped.
    pub fn work(&self) -> TaskTracker {
        self.work.clone()
    }

    /// Works until the pod is gone from the node. Being dropped changes
    /// nothing about the pod: another worker can take over.
    pub async fn run(mut self) {
        // whatever keeps the next pod of this name waiting ends with this one
        let _done = self.done.clone().drop_guard();
        metrics::worker_started(&self.orders.borrow().pod.clone(), self.began.elapsed());
        loop {
            let orders = self.orders.borrow_and_update().clone();
            let next = match self.stage {
                Stage::Syncing => self.syncing(&orders).await,
                Stage::Terminating => self.terminating(&orders).await,
                Stage::Terminated => self.terminated(&orders).await,
            };
            let pause = match next {
                Next::Now => continue,
                Next::After(pause) => pause,
                Next::Never => return,
            };
            tokio::select! {
                changed = self.orders.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn syncing(&mut self, orders: &Orders) -> Next {
        if self.must_end(orders) {
            self.enter(Stage::Terminating);
            return Next::Now;
        }
        let mut ends = self.orders.clone();
        let operation = if self.seen.sandbox().is_none() { "create" } else { "update" };
        let synced = tokio::select! {
            biased;
            _ = ends.wait_for(Orders::must_end) => return Next::Now,
            synced = timed(operation, self.sync(orders)) => synced,
        };
        match synced {
            Ok(sync::Synced::Finished) => {
                self.enter(Stage::Terminating);
                Next::Now
            }
            Ok(sync::Synced::Until(pause)) => {
                self.retry = FIRST_RETRY;
                Next::After(pause)
            }
            Err(error) => Next::After(self.failed(&orders.pod, &error)),
        }
    }

    async fn terminating(&mut self, orders: &Orders) -> Next {
        match timed("terminate", self.terminate()).await {
            Ok(()) => {
                self.enter(Stage::Terminated);
                self.retry = FIRST_RETRY;
                Next::Now
            }
            Err(error) => Next::After(self.failed(&orders.pod, &error)),
        }
    }

    async fn terminated(&mut self, orders: &Orders) -> Next {
        let seen = self.seen.clone();
        self.show(orders, &seen);
        if !orders.is_deleted() {
            return Next::After(Duration::MAX);
        }
        match self.remove(orders).await {
            Ok(()) => {
                metrics::forget_probes(&orders.pod);
                self.context.seen.forget(&self.uid);
                Next::Never
            }
            Err(error) => Next::After(self.failed(&orders.pod, &error)),
        }
    }

    fn must_end(&self, orders: &Orders) -> bool {
        orders.must_end() || self.ending.is_some()
    }

    fn enter(&mut self, stage: Stage) {
        tracing::debug!(uid = self.uid, from = ?self.stage, to = ?stage, "pod stage");
        self.stage = stage;
    }

    /// Tells of an error and says how long to wait.
    fn failed(&mut self, pod: &Pod, error: &sync::Error) -> Duration {
        tracing::warn!(pod = %pod::key(pod), %error, stage = ?self.stage, "cannot sync the pod; will retry");
        self.context.writer.hurry(&self.uid);
        self.context.events.event(pod, EventType::Warning, error.reason(), "Syncing", error.to_string());
        let pause = self.retry;
        self.retry = (self.retry * 2).min(MAX_RETRY);
        pause
    }

    /// Computes the status and hands it to the writer.
    fn show(&mut self, orders: &Orders, runtime: &PodRuntime) -> PodStatus {
        self.read_messages(runtime);
        let pod = &orders.pod;
        let containers = pod::containers(pod);
        let readiness = |id: &str| {
            let record = runtime.containers.iter().find(|record| record.id == id);
            let each =
                record.and_then(|record| containers.iter().find(|each| each.container.name == record.name));
            each.map_or(Readiness { started: true, ready: true }, |each| self.probes.readiness(each, id))
        };
        let host_ips = self.context.host_ips();
        let facts = status::Facts {
            pod,
            runtime,
            runtime_name: &self.context.runtime_version.runtime_name,
            host_ips: &host_ips,
            failures: &self.failures,
            messages: &self.messages,
            readiness: &readiness,
            resources: &|id| self.given.get(id).and_then(|given| given.resources.clone()),
            resize: status::Resize {
                pending: orders.pending_resize.as_ref(),
                in_progress: self.as_given(pod, runtime).is_some(),
                problem: self.resize_problem.as_deref(),
            },
            ending: orders.ending.as_ref().or(self.ending.as_ref()),
            terminating: self.stage != Stage::Syncing,
            now: Timestamp::now(),
        };
        let mut status = status::status(&facts, &self.status);
        self.context.devices.show(pod, &mut status);
        self.context.device_plugins.show(pod, &mut status);
        metrics::containers_ended(&self.status, &status);
        if is_first_run(&self.status, &status) {
            let created = pod.metadata.creation_timestamp.as_ref();
            let age = created.map(|created| Timestamp::now().duration_since(created.0));
            metrics::pod_started(self.began.elapsed(), age.and_then(|age| Duration::try_from(age).ok()));
        }
        self.status = status.clone();
        let api = if pod::is_static(pod) { orders.mirror.as_ref() } else { Some(pod) };
        let api = api.filter(|_| !orders.gone).map(AsRef::as_ref);
        let has_devices =
            self.context.devices.are_held(&self.uid) || self.context.device_plugins.is_held_by(&self.uid);
        let told = if has_devices { not_ended(pod, &status) } else { None };
        self.acted |= self.context.writer.set(&self.uid, api, told.as_ref().unwrap_or(&status));
        status
    }

    /// Reads the last words of containers that ended, once each.
    fn read_messages(&mut self, runtime: &PodRuntime) {
        for record in &runtime.containers {
            if record.state == State::Exited && !self.messages.contains_key(&record.id) {
                self.messages.insert(record.id.clone(), logs::termination_message(record));
            }
        }
        if !runtime.containers.is_empty() {
            self.messages.retain(|id, _| runtime.containers.iter().any(|record| &record.id == id));
        }
    }

    /// Everything the runtime has of the pod.
    async fn look(&mut self) -> Result<PodRuntime, sync::Error> {
        // a static pod that comes back has the uid it had
        if self.context.seen.is_untouched(&self.uid) && !pod::is_static(&self.orders.borrow().pod) {
            return Ok(self.see(PodRuntime::default()));
        }
        let runtime = runtime::pod(&self.runtime, &self.uid).await?;
        Ok(self.see(runtime))
    }

    /// Takes note of what the runtime has. Who watches the runtime wakes this
    /// worker only for what differs from it.
    fn see(&mut self, runtime: PodRuntime) -> PodRuntime {
        self.context.seen.note(&self.uid, &runtime);
        self.seen = runtime.clone();
        runtime
    }

    /// Where probes and hooks reach the pod.
    fn pod_ip(&self, pod: &Pod, runtime: &PodRuntime) -> Option<IpAddr> {
        if pod::uses_host_network(pod) {
            return self.context.host_ips().first().copied();
        }
        runtime.sandbox()?.ips.first()?.parse().ok()
    }
}

/// The status of a pod that has ended, without saying so yet: whoever sees the end of a pod gives its devices to
/// others, and they are not taken back yet. `None` where there is nothing to hide.
fn not_ended(pod: &Pod, status: &PodStatus) -> Option<PodStatus> {
    if !pod::is_terminal(status.phase.as_deref()) {
        return None;
    }
    let shown = pod::status(pod);
    let phase = shown.phase.clone().or_else(|| Some("Pending".into()));
    Some(PodStatus { phase, reason: shown.reason.clone(), message: shown.message.clone(), ..status.clone() })
}

fn is_first_run(before: &PodStatus, after: &PodStatus) -> bool {
    let is = |status: &PodStatus, phase: &str| status.phase.as_deref() == Some(phase);
    is(after, "Running") && (before.phase.is_none() || is(before, "Pending"))
}

/// A pass, and how long it took.
async fn timed<T>(operation: &'static str, pass: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let done = pass.await;
    metrics::pod_worked(operation, began.elapsed());
    done
}
