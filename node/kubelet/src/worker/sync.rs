//! Bringing a pod in step with its spec, step by step.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::EventType;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::{Orders, Worker};
use crate::blocking::blocking;
use crate::context::Context;
use crate::cri;
use crate::devices;
use crate::metrics;
use crate::plan::{self, Plan};
use crate::pod;
use crate::runtime;
use crate::runtime::container_config::log_directory;
use crate::runtime::dns;
use crate::runtime::sandbox_config::{self, sandbox_config};
use crate::runtime::view::PodRuntime;
use crate::status::Ending;
use crate::volumes;

/// How far a plan was executed.
enum PlanOutcome {
    /// There may be more to do. What the runtime has by now, if that is known
    /// without asking for all of it.
    On(Option<PodRuntime>),
    /// Containers were held back; after this they may be tried again.
    Held(Duration),
}

pub(super) enum Synced {
    /// In step; look again after this at the latest.
    Until(Duration),
    /// All containers have finished for good.
    Finished,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Runtime(#[from] cri::Error),
    #[error("network is not ready: {0}")]
    Network(String),
    #[error(transparent)]
    Cgroup(#[from] ferry_linux::cgroup::Error),
    #[error("{action}: {source}")]
    Io { action: &'static str, source: io::Error },
    #[error(transparent)]
    Volume(#[from] volumes::Error),
    #[error(transparent)]
    TearDown(#[from] volumes::TearDownError),
    #[error("Failed to prepare dynamic resources: prepare dynamic resources: {0}")]
    Prepare(#[source] devices::Error),
    #[error("unprepare dynamic resources: {0}")]
    Unprepare(#[source] devices::Error),
    #[error("Failed to create pod sandbox: {0}")]
    Sandbox(#[source] cri::Error),
    #[error("error killing pod: {0}")]
    Kill(#[source] cri::Error),
    #[error("runtime class {name}: {problem}")]
    RuntimeClass { name: String, problem: String },
    #[error("deleting the pod from the API: {0}")]
    Delete(#[source] kube::Error),
}

impl Error {
    /// The event's reason.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Network(_) => "NetworkNotReady",
            Self::Cgroup(_) => "FailedCreatePodContainer",
            Self::Volume(error) => error.reason(),
            Self::Prepare(_) => "FailedPrepareDynamicResources",
            Self::Sandbox(_) | Self::RuntimeClass { .. } => "FailedCreatePodSandBox",
            Self::Kill(_) => "FailedKillPod",
            Self::TearDown(_) | Self::Runtime(_) | Self::Io { .. } | Self::Delete(_) | Self::Unprepare(_) => {
                "FailedSync"
            }
        }
    }
}

/// A resize that the runtime refused is tried again after this.
const RESIZE_RETRY: Duration = Duration::from_secs(5);

pub(super) fn io_error(action: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { action, source }
}

impl Worker {
    /// One pass: status, directories, volumes, then whatever the plan says,
    /// until the plan is empty.
    pub(super) async fn sync(&mut self, orders: &Orders) -> Result<Synced, Error> {
        let mut span = ferry_trace::span("kubelet.sync");
        span.object("pods", pod::namespace(&orders.pod), pod::name(&orders.pod));
        if let Some(revision) = ferry_client::name::revision(&*orders.pod) {
            span.caused_by(revision);
        }
        self.acted = false;
        let _at_work = self.context.seen.work(&self.uid);
        let result = span.in_scope(self.sync_steps(orders)).await;
        match &result {
            Err(error) => {
                span.fail_unquoted(error);
            }
            Ok(_) if !self.acted => span.discard(),
            Ok(_) => {}
        }
        result
    }

    async fn sync_steps(&mut self, orders: &Orders) -> Result<Synced, Error> {
        let pod = &orders.pod;
        let mut prepared = None;
        let mut looked = None;
        loop {
            let runtime = match looked.take() {
                Some(runtime) => self.see(runtime),
                None => self.look().await?,
            };
            let pod_ip = self.pod_ip(pod, &runtime);
            self.probes.follow(pod, &runtime, pod_ip, false);
            self.note_given(pod, &runtime);
            if self.has_ended(orders, &runtime) {
                return Ok(Synced::Finished);
            }
            let deadline = self.deadline();
            self.check_network(pod)?;
            if prepared.is_none() {
                match self.prepare(pod, &runtime).await {
                    Err(error) if self.rejects(pod, &error) => return Ok(Synced::Finished),
                    volumes => prepared = Some(volumes?),
                }
            }
            let Some(volumes) = &prepared else { continue };

            if self.give(pod, &runtime).await? {
                continue;
            }
            let restarts = self.restarts_for_resize(pod, &runtime);
            let plan = plan::plan(pod, &runtime, &self.probes, &restarts);
            if plan == Plan::default() {
                self.failures.clear();
                let next = self.next(deadline);
                return Ok(Synced::Until(if self.resizing { next.min(RESIZE_RETRY) } else { next }));
            }
            if plan.kill_pod && plan.sandbox.is_none() {
                self.stop_everything(orders, &runtime).await?;
                let runtime = self.look().await?;
                self.show(orders, &runtime);
                return Ok(Synced::Finished);
            }
            self.acted = true;
            match self.carry_out(orders, runtime, &plan, volumes).await? {
                PlanOutcome::On(runtime) => looked = runtime,
                PlanOutcome::Held(wait) => {
                    // some containers wait; show why, and look again when they may
                    let runtime = self.look().await?;
                    self.show(orders, &runtime);
                    return Ok(Synced::Until(self.next(deadline).min(wait)));
                }
            }
        }
    }

    /// Shows the pod's status, and says whether that or the deadline is its end.
    fn has_ended(&mut self, orders: &Orders, runtime: &PodRuntime) -> bool {
        let status = self.show(orders, runtime);
        if pod::is_terminal(status.phase.as_deref()) {
            return true;
        }
        let is_late = self.deadline().is_some_and(|left| left.is_zero());
        if is_late {
            self.ending = Some(past_deadline());
        }
        is_late
    }

    /// Whether the node's network is up, for a pod that needs it.
    fn check_network(&self, pod: &Pod) -> Result<(), Error> {
        match self.context.network_problem.read().clone() {
            Some(problem) if !pod::uses_host_network(pod) => Err(Error::Network(problem)),
            _ => Ok(()),
        }
    }

    /// Whether the node cannot take the pod after all, which ends it.
    fn rejects(&mut self, pod: &Pod, error: &Error) -> bool {
        let Error::Volume(volumes::Error::Csi(failed)) = error else { return false };
        if !failed.exceeds_attach_limit() {
            return false;
        }
        let ending = attach_limit_exceeded(failed);
        let note = ending.message.trim_start_matches("Pod was rejected: ").to_owned();
        self.context.events.event(pod, EventType::Warning, &ending.reason, "Syncing", note);
        self.ending = Some(ending);
        true
    }

    /// Cgroup, directories and volumes: what must be there before a container. Done in every pass, told in the
    /// first.
    async fn prepare(
        &mut self,
        pod: &Arc<Pod>,
        runtime: &PodRuntime,
    ) -> Result<volumes::MountedVolumes, Error> {
        let is_first = runtime.sandbox().is_none();
        let step = |name| {
            let span = ferry_trace::span(name);
            if is_first { span } else { span.unsampled() }
        };
        let as_it_runs = self.as_given(pod, runtime);
        step("kubelet.cgroup").instrument(self.ensure_cgroup(pod, as_it_runs)).await?;
        step("kubelet.directories").instrument(self.make_directories(pod)).await?;
        self.context.objects.register(pod);
        let mut span = step("kubelet.volumes");
        span.set("volumes", pod::spec(pod).volumes.as_ref().map_or(0, Vec::len));
        let mounted =
            span.in_scope(self.context.volumes.set_up(pod, &self.context.allocatable, &self.work)).await;
        Ok(mounted.inspect_err(|error| {
            span.fail(error);
        })?)
    }

    /// Acts on files, mounts or cgroups of the node, which may block.
    pub(super) async fn on_node<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Context, &str) -> T + Send + 'static,
    ) -> T {
        let (context, uid) = (self.context.clone(), self.uid.clone());
        blocking(&self.work, move || act(&context, &uid)).await
    }

    pub(super) async fn ensure_cgroup(&self, pod: &Arc<Pod>, as_it_runs: Option<Pod>) -> Result<(), Error> {
        let pod = pod.clone();
        Ok(self.on_node(move |context, _| context.cgroups.ensure(&pod, as_it_runs.as_ref())).await?)
    }

    async fn make_directories(&self, pod: &Pod) -> Result<(), Error> {
        let directory = self.context.pod_dir(&self.uid);
        for name in ["volumes", "plugins", "containers"] {
            tokio::fs::create_dir_all(directory.join(name))
                .await
                .map_err(io_error("making the pod's directories"))?;
        }
        let logs = log_directory(&self.context.config.pod_logs_dir, pod);
        tokio::fs::create_dir_all(logs).await.map_err(io_error("making the pod's log directory"))
    }

    /// Acts on a plan.
    async fn carry_out(
        &mut self,
        orders: &Orders,
        mut runtime: PodRuntime,
        plan: &Plan,
        volumes: &volumes::MountedVolumes,
    ) -> Result<PlanOutcome, Error> {
        let pod = &orders.pod;
        for kill in &plan.kill {
            let Some(record) = runtime.containers.iter().find(|record| record.id == kill.id) else {
                continue;
            };
            let grace = self.probe_grace(pod, kill).unwrap_or_else(|| pod::grace_period(pod));
            self.stop_container(pod, record, self.pod_ip(pod, &runtime), grace, &kill.message)
                .await
                .map_err(Error::Kill)?;
        }
        // one that was killed for its probe has crashed like any other, and may have to wait
        if !plan.kill.is_empty() {
            runtime = self.look().await?;
        }
        if self.lacks_devices(pod, plan) {
            self.prepare_devices(pod).await?;
        }
        let attempt = plan.sandbox.or_else(|| runtime.sandbox().map(|sandbox| sandbox.attempt)).unwrap_or(0);
        let sandbox_config = self.sandbox_config(pod, attempt).await;
        if plan.sandbox.is_some() {
            if plan.kill_pod {
                self.stop_everything(orders, &runtime).await?;
            }
            let sandbox = self.start_sandbox(pod, &sandbox_config).await?;
            runtime = if plan.kill_pod {
                self.look().await?
            } else {
                let made = runtime::sandbox(&self.runtime, &sandbox).await?;
                runtime.sandboxes.splice(0..0, made);
                self.see(runtime)
            };
            self.show(orders, &runtime);
        }
        let (started, held) = self.start_containers(orders, plan, &runtime, &sandbox_config, volumes).await;
        match held {
            Some(wait) => Ok(PlanOutcome::Held(wait)),
            None if started.is_empty() => Ok(PlanOutcome::Held(Duration::ZERO)),
            // of those that ran before, some may have been collected
            None if plan.start.iter().any(|name| runtime.container(name).is_some()) => {
                Ok(PlanOutcome::On(None))
            }
            None => Ok(PlanOutcome::On(Some(self.with_started(runtime, &started).await?))),
        }
    }

    /// Starts a sandbox and gives its id.
    async fn start_sandbox(&mut self, pod: &Pod, config: &cri::PodSandboxConfig) -> Result<String, Error> {
        let handler = self.runtime_handler(pod).await?;
        let mut span = ferry_trace::span("kubelet.sandbox");
        span.object("pods", pod::namespace(pod), pod::name(pod));
        let made = span.in_scope(self.run_sandbox(pod, config, &handler)).await;
        metrics::sandbox_started(made.is_ok());
        let sandbox = made.inspect_err(|error| {
            span.fail_unquoted(error);
        });
        let sandbox = sandbox.map_err(Error::Sandbox)?;
        if let Some(directory) = &self.context.config.cni_trace_dir {
            use ferry_trace::handoff::{PLUGIN, collect};
            collect(directory, &sandbox, span.context(), PLUGIN);
        }
        Ok(sandbox)
    }

    /// Starts what the plan wants started: the ids of those that did start, and when the first of the others may be
    /// tried again.
    async fn start_containers(
        &mut self,
        orders: &Orders,
        plan: &Plan,
        runtime: &PodRuntime,
        sandbox_config: &cri::PodSandboxConfig,
        volumes: &volumes::MountedVolumes,
    ) -> (Vec<String>, Option<Duration>) {
        let mut held: Option<Duration> = None;
        let mut started = Vec::new();
        for name in &plan.start {
            let Some(each) = pod::find_container(&orders.pod, name) else { continue };
            let start = self.start_container(orders, &each, runtime, sandbox_config, volumes).await;
            metrics::container_started(
                each.kind.label(),
                start.as_ref().err().map(|(failure, _)| failure.reason.as_str()),
            );
            match start {
                Ok(id) => {
                    started.push(id);
                    self.failures.remove(name);
                }
                Err((failure, wait)) => {
                    self.failures.insert(name.clone(), failure);
                    held = Some(held.map_or(wait, |held| held.min(wait)));
                }
            }
        }
        (started, held)
    }

    /// What the runtime has after containers were started in the sandbox.
    async fn with_started(&self, mut runtime: PodRuntime, started: &[String]) -> Result<PodRuntime, Error> {
        let sandbox = runtime.sandbox().map(|sandbox| sandbox.id.clone()).unwrap_or_default();
        for id in started {
            let container = runtime::container(&self.runtime, id, &sandbox).await?;
            runtime.containers.splice(0..0, container);
        }
        Ok(runtime)
    }

    pub(super) async fn sandbox_config(&self, pod: &Pod, attempt: u32) -> cri::PodSandboxConfig {
        let config = &self.context.config;
        let (host_name, domain) = dns::host_name(pod, &config.cluster_domain, &self.context.host_name);
        sandbox_config(sandbox_config::Facts {
            pod,
            attempt,
            cgroup_parent: &self.context.cgroups.parent_for_runtime(pod),
            log_directory: &log_directory(&config.pod_logs_dir, pod),
            root_dir: &config.root_dir,
            dns: dns::dns_config(
                pod,
                &config.cluster_dns,
                &config.cluster_domain,
                &self.context.host_resolver().await,
            ),
            host_name,
            domain,
            seccomp_default: config.seccomp_default,
        })
    }

    /// Which of the runtime's ways to run pods a RuntimeClass names.
    async fn runtime_handler(&self, pod: &Pod) -> Result<String, Error> {
        let Some(name) = pod::spec(pod).runtime_class_name.as_deref().filter(|name| !name.is_empty()) else {
            return Ok(String::new());
        };
        let problem = |problem: String| Error::RuntimeClass { name: name.into(), problem };
        let client = self.context.client.clone().ok_or_else(|| problem("no API server".into()))?;
        let classes: kube::Api<k8s_openapi::api::node::v1::RuntimeClass> = kube::Api::all(client);
        let class = classes.get(name).await.map_err(|error| problem(error.to_string()))?;
        Ok(class.handler)
    }

    /// What is left of `activeDeadlineSeconds`.
    fn deadline(&self) -> Option<Duration> {
        let pod = self.orders.borrow().pod.clone();
        let seconds = pod::spec(&pod).active_deadline_seconds?;
        let start = self.status.start_time.as_ref()?.0;
        let spent = Duration::try_from(Timestamp::now().duration_since(start)).unwrap_or_default();
        Some(Duration::from_secs(seconds.max(0) as u64).saturating_sub(spent))
    }

    /// When to look again though nothing happens, spread so that the pods of
    /// a node do not look all at once.
    fn next(&self, deadline: Option<Duration>) -> Duration {
        let period = self.context.config.sync_frequency;
        let spread = period.mul_f64(rand::random_range(0.75..1.25));
        deadline.map_or(spread, |deadline| deadline.min(spread))
    }

    fn probe_grace(&self, pod: &Pod, kill: &plan::Kill) -> Option<Duration> {
        let each = pod::find_container(pod, &kill.name)?;
        let probe = match kill.because {
            plan::KillReason::LivenessProbe => each.container.liveness_probe.as_ref(),
            plan::KillReason::StartupProbe => each.container.startup_probe.as_ref(),
            plan::KillReason::SpecChanged | plan::KillReason::Resize | plan::KillReason::Unknown => None,
        };
        let seconds = probe?.termination_grace_period_seconds?;
        Some(Duration::from_secs(seconds.max(0) as u64))
    }

    pub(super) fn event(&self, pod: &Pod, container: &str, kind: EventType, reason: &str, note: String) {
        let regarding = crate::events::container_reference(pod, container);
        self.context.events.event_on(regarding, None, kind, reason, "Syncing", note);
    }
}

/// The pod goes elsewhere: the scheduler knows the limit by now.
fn attach_limit_exceeded(failed: &volumes::csi::Failed) -> Ending {
    let message = format!(
        "Pod was rejected: Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[{0}], \
         unattached volumes=[{0}], failed to process volumes=[]: {failed}",
        failed.volume()
    );
    Ending { reason: "VolumeAttachmentLimitExceeded".into(), message, disruption: None, failed: true }
}

fn past_deadline() -> Ending {
    Ending {
        reason: "DeadlineExceeded".into(),
        message: "Pod was active on the node longer than the specified deadline".into(),
        disruption: None,
        failed: true,
    }
}
