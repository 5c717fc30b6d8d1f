//! Probes: one task per probe of each running container. They write verdicts;
//! the pod's worker reads them and acts.

pub mod check;
pub mod threshold;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::{EventType, Recorder};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Probe};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::cri;
use crate::events;
use crate::metrics;
use crate::plan::{Probed, Verdict};
use crate::pod::{self, ContainerKind, ContainerOf};
use crate::runtime::view::{Container, PodRuntime};
use crate::status::containers::Readiness;
use check::{Outcome, Target};
use threshold::Threshold;

const DEFAULT_PERIOD: i32 = 10;
const DEFAULT_TIMEOUT: i32 = 1;
/// Trying again at once is for probes that could not be made at all.
const AGENT: &str = "kube-probe/1.36";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Startup,
    Readiness,
    Liveness,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
        }
    }

    /// A container is alive until shown dead, and unready until shown ready.
    fn initial(self) -> Verdict {
        match self {
            Self::Startup => Verdict::Unknown,
            Self::Readiness => Verdict::Failure,
            Self::Liveness => Verdict::Success,
        }
    }

    /// Where a probe goes on with a container that the API shows already: a kubelet that was started again does not make a
    /// ready container unready until it has asked.
    fn before(self, pod: &Pod, container_id: &str) -> Verdict {
        let status = pod::status(pod);
        let mut all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
        let shown = all.find(|status| {
            let id = status.container_id.as_deref().and_then(|id| id.split_once("://"));
            id.is_some_and(|(_, id)| id == container_id)
        });
        let holds = shown.is_some_and(|status| match self {
            Self::Startup => status.started == Some(true),
            Self::Readiness => status.ready,
            Self::Liveness => false,
        });
        if holds { Verdict::Success } else { self.initial() }
    }

    fn of<'a>(self, each: &'a ContainerOf<'_>) -> Option<&'a Probe> {
        match self {
            Self::Startup => each.container.startup_probe.as_ref(),
            Self::Readiness => each.container.readiness_probe.as_ref(),
            Self::Liveness => each.container.liveness_probe.as_ref(),
        }
    }
}

type Key = (String, Kind);

/// The probes of one pod. Dropping it ends them.
pub struct Probes {
    verdicts: Arc<Mutex<HashMap<Key, Verdict>>>,
    /// Says that a container has started, to the probes that waited for it.
    started: watch::Sender<()>,
    tasks: HashMap<Key, tokio_util::task::AbortOnDropHandle<()>>,
    runtime: cri::Client,
    events: Recorder,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl Probes {
    pub fn new(runtime: cri::Client, events: Recorder, wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        let started = watch::Sender::new(());
        Self { verdicts: Arc::default(), started, tasks: HashMap::new(), runtime, events, wake }
    }

    /// Starts the probes of containers that run, ends those of others. While a
    /// pod is being stopped only readiness goes on; that a container had started holds.
    pub fn follow(&mut self, pod: &Arc<Pod>, runtime: &PodRuntime, pod_ip: Option<IpAddr>, stopping: bool) {
        let mut wanted = Vec::new();
        let mut running = Vec::new();
        for each in pod::containers(pod) {
            if matches!(each.kind, ContainerKind::Init | ContainerKind::Ephemeral) {
                continue;
            }
            let Some(record) = runtime.running().find(|record| record.name == each.container.name) else {
                continue;
            };
            running.push(record.id.clone());
            for kind in [Kind::Startup, Kind::Readiness, Kind::Liveness] {
                if stopping && kind != Kind::Readiness {
                    continue;
                }
                if let Some(probe) = kind.of(&each) {
                    wanted.push(((record.id.clone(), kind), probe.clone(), each.clone(), record.clone()));
                }
            }
        }
        let keep = |key: &Key| wanted.iter().any(|(wanted, ..)| wanted == key);
        self.tasks.retain(|key, _| keep(key));
        let has_started = |(id, kind): &Key| *kind == Kind::Startup && running.contains(id);
        self.verdicts.lock().retain(|key, _| keep(key) || has_started(key));
        for (key, probe, each, record) in wanted {
            if !self.tasks.contains_key(&key) {
                self.verdicts.lock().insert(key.clone(), key.1.before(pod, &key.0));
                let task = self.start(pod.clone(), key.clone(), probe, &each, &record, pod_ip);
                self.tasks.insert(key, task);
            }
        }
    }

    fn start(
        &self,
        pod: Arc<Pod>,
        key: Key,
        probe: Probe,
        each: &ContainerOf<'_>,
        record: &Container,
        pod_ip: Option<IpAddr>,
    ) -> tokio_util::task::AbortOnDropHandle<()> {
        let target = Target {
            runtime: self.runtime.clone(),
            container_id: record.id.clone(),
            container: each.container.clone().into_owned(),
            pod_ip,
        };
        let gate = (key.1 != Kind::Startup && each.container.startup_probe.is_some())
            .then(|| (record.id.clone(), Kind::Startup));
        let task = ProbeTask {
            pod,
            key,
            probe,
            target,
            gate,
            started_at: record.started_at,
            verdicts: self.verdicts.clone(),
            started: self.started.clone(),
            events: self.events.clone(),
            wake: self.wake.clone(),
        };
        tokio_util::task::AbortOnDropHandle::new(tokio::spawn(task.run()))
    }

    /// What a running container's status says.
    pub fn readiness(&self, each: &ContainerOf<'_>, container_id: &str) -> Readiness {
        let verdicts = self.verdicts.lock();
        let verdict = |kind: Kind| verdicts.get(&(container_id.to_string(), kind)).copied();
        let started =
            each.container.startup_probe.is_none() || verdict(Kind::Startup) == Some(Verdict::Success);
        let ready =
            each.container.readiness_probe.is_none() || verdict(Kind::Readiness) == Some(Verdict::Success);
        Readiness { started, ready: started && ready }
    }
}

impl Probed for Probes {
    fn liveness(&self, container_id: &str) -> Option<Verdict> {
        self.verdicts.lock().get(&(container_id.to_string(), Kind::Liveness)).copied()
    }

    fn startup(&self, container_id: &str) -> Option<Verdict> {
        self.verdicts.lock().get(&(container_id.to_string(), Kind::Startup)).copied()
    }
}

struct ProbeTask {
    pod: Arc<Pod>,
    key: Key,
    probe: Probe,
    target: Target,
    /// The startup probe that must succeed first.
    gate: Option<Key>,
    started_at: Option<Timestamp>,
    verdicts: Arc<Mutex<HashMap<Key, Verdict>>>,
    started: watch::Sender<()>,
    events: Recorder,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl ProbeTask {
    async fn run(self) {
        let kind = self.key.1;
        let period = seconds(self.probe.period_seconds, DEFAULT_PERIOD);
        let before = kind.before(&self.pod, &self.key.0);
        if kind == Kind::Startup && before == Verdict::Success {
            return std::future::pending().await;
        }
        let mut threshold =
            Threshold::new(before, self.probe.success_threshold, self.probe.failure_threshold);
        tokio::time::sleep(self.initial_delay()).await;
        self.wait_for_start().await;
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let mut span = ferry_trace::Span::root("kubelet.probe", None);
            let began = std::time::Instant::now();
            let outcome = self.ask().await;
            let container = &self.target.container.name;
            metrics::probed(&self.pod, container, kind.name(), outcome.succeeded, began.elapsed());
            if !outcome.succeeded {
                let note = format!("{} probe failed: {}", kind.name(), outcome.output);
                let regarding = events::container_reference(&self.pod, &self.target.container.name);
                self.events.event_on(regarding, None, EventType::Warning, "Unhealthy", "Probing", note);
            } else if outcome.is_warning {
                let note = format!("{} probe warning: {}", kind.name(), outcome.output);
                let regarding = events::container_reference(&self.pod, &self.target.container.name);
                self.events.event_on(regarding, None, EventType::Warning, "ProbeWarning", "Probing", note);
            }
            let verdict = threshold.take(outcome.succeeded);
            let before = self.verdicts.lock().insert(self.key.clone(), verdict);
            if kind == Kind::Startup && verdict == Verdict::Success {
                self.started.send_replace(());
            }
            if before != Some(verdict) {
                span.object("pods", pod::namespace(&self.pod), pod::name(&self.pod));
                span.set("probe", kind.name()).set("container", self.target.container.name.as_str());
                span.set("verdict", format!("{verdict:?}"));
                if let Some(revision) = ferry_client::name::revision(&*self.pod) {
                    span.caused_by(revision);
                }
                (self.wake)();
            } else {
                span.discard();
            }
            match (kind, verdict) {
                // a start succeeds once; after a failure the container is replaced
                (Kind::Startup, Verdict::Success | Verdict::Failure) | (Kind::Liveness, Verdict::Failure) => {
                    return std::future::pending().await;
                }
                _ => {}
            }
        }
    }

    /// Waits for the startup probe, if there is one. What follows is asked at once when it has succeeded.
    async fn wait_for_start(&self) {
        let Some(gate) = &self.gate else { return };
        let mut started = self.started.subscribe();
        while self.verdicts.lock().get(gate) != Some(&Verdict::Success) {
            // the sender is held here too
            let _ = started.changed().await;
        }
    }

    /// Counted from the container's start, so that a restarted kubelet does
    /// not wait again.
    fn initial_delay(&self) -> Duration {
        let delay = seconds(self.probe.initial_delay_seconds, 0);
        let running = self.started_at.map(|at| Timestamp::now().duration_since(at));
        let running = running.and_then(|running| Duration::try_from(running).ok()).unwrap_or_default();
        delay.saturating_sub(running)
    }

    async fn ask(&self) -> Outcome {
        let timeout = seconds(self.probe.timeout_seconds, DEFAULT_TIMEOUT);
        if let Some(action) = &self.probe.exec {
            check::exec(&self.target, action, timeout).await
        } else if let Some(action) = &self.probe.http_get {
            check::http_get(&self.target, action, timeout, AGENT).await
        } else if let Some(action) = &self.probe.tcp_socket {
            check::tcp(&self.target, action, timeout).await
        } else if let Some(action) = &self.probe.grpc {
            check::grpc(&self.target, action, timeout).await
        } else {
            Outcome::failure("missing probe handler")
        }
    }
}

fn seconds(value: Option<i32>, default: i32) -> Duration {
    let value = value.filter(|value| *value > 0).unwrap_or(default);
    Duration::from_secs(u64::try_from(value).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{Container as ApiContainer, TCPSocketAction};
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

    /// Readiness of a container with a startup probe; the task asks a port, and tells when it has.
    fn task(
        started: &watch::Sender<()>,
        verdicts: &Arc<Mutex<HashMap<Key, Verdict>>>,
        port: u16,
    ) -> ProbeTask {
        let probe = Probe {
            period_seconds: Some(3600),
            tcp_socket: Some(TCPSocketAction { host: None, port: IntOrString::Int(i32::from(port)) }),
            ..Default::default()
        };
        let runtime = cri::Client::new("unix:///nowhere").expect("a client");
        ProbeTask {
            pod: Arc::default(),
            key: ("id".into(), Kind::Readiness),
            probe,
            target: Target {
                runtime,
                container_id: "id".into(),
                container: ApiContainer::default(),
                pod_ip: Some(IpAddr::from([127, 0, 0, 1])),
            },
            gate: Some(("id".into(), Kind::Startup)),
            started_at: None,
            verdicts: verdicts.clone(),
            started: started.clone(),
            events: Recorder::silent(),
            wake: Arc::new(|| {}),
        }
    }

    /// A pod with every probe, none of which is made soon, and with this status of its container.
    fn probed(status: &serde_json::Value) -> Arc<Pod> {
        let probe =
            serde_json::json!({"tcpSocket": {"port": 1}, "periodSeconds": 3600, "initialDelaySeconds": 3600});
        let pod = serde_json::json!({
            "spec": {"containers":
                [{"name": "c", "startupProbe": probe, "readinessProbe": probe, "livenessProbe": probe}]},
            "status": {"containerStatuses": status},
        });
        serde_json::from_value(pod).map(Arc::new).expect("a pod")
    }

    fn running() -> PodRuntime {
        let record = Container {
            id: "id".into(),
            name: "c".into(),
            sandbox: String::new(),
            restart_count: 0,
            hash: String::new(),
            state: crate::runtime::view::State::Running,
            created_at: Timestamp::UNIX_EPOCH,
            started_at: Some(Timestamp::now()),
            finished_at: None,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image: String::new(),
            image_id: String::new(),
            log_path: Default::default(),
            termination_message_file: None,
            termination_message_policy: String::new(),
        };
        PodRuntime { sandboxes: vec![], containers: vec![record] }
    }

    #[tokio::test]
    async fn a_container_that_was_ready_stays_so_when_the_kubelet_is_started_again() {
        let check = |id: &str, started: bool, ready: bool, expected: (bool, bool)| {
            let pod = probed(&serde_json::json!([{
                "name": "c", "image": "", "imageID": "", "restartCount": 0, "containerID": id,
                "started": started, "ready": ready,
            }]));
            let client = cri::Client::new("unix:///nowhere").expect("a client");
            let mut probes = Probes::new(client, Recorder::silent(), Arc::new(|| {}));
            probes.follow(&pod, &running(), None, false);
            let containers = pod::containers(&pod);
            let readiness = probes.readiness(&containers[0], "id");
            assert_eq!((readiness.started, readiness.ready), expected, "{id} {started} {ready}");
        };
        check("containerd://id", true, true, (true, true));
        check("containerd://id", true, false, (true, false));
        check("containerd://id", false, false, (false, false));
        // It is about an earlier container.
        check("containerd://other", true, true, (false, false));
    }

    #[tokio::test]
    async fn a_container_that_had_started_stays_so_while_its_pod_ends() {
        let (pod, runtime) = (probed(&serde_json::json!([])), running());
        let client = cri::Client::new("unix:///nowhere").expect("a client");
        let mut probes = Probes::new(client, Recorder::silent(), Arc::new(|| {}));
        probes.follow(&pod, &runtime, None, false);
        for kind in [Kind::Startup, Kind::Readiness] {
            probes.verdicts.lock().insert(("id".into(), kind), Verdict::Success);
        }
        probes.follow(&pod, &runtime, None, true);
        let containers = pod::containers(&pod);
        let readiness = probes.readiness(&containers[0], "id");
        assert!(readiness.started && readiness.ready);
        let kinds: Vec<Kind> = probes.tasks.keys().map(|(_, kind)| *kind).collect();
        assert_eq!(kinds, [Kind::Readiness], "only readiness is asked for");
        // the container is gone
        probes.follow(&pod, &PodRuntime::default(), None, true);
        assert!(probes.verdicts.lock().is_empty() && probes.tasks.is_empty());
    }

    #[tokio::test]
    async fn readiness_is_asked_for_at_once_when_a_container_has_started() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let (started, verdicts) = (watch::Sender::new(()), Arc::<Mutex<HashMap<Key, Verdict>>>::default());
        let asking = tokio::spawn(task(&started, &verdicts, port).run());
        tokio::task::yield_now().await;
        assert!(verdicts.lock().is_empty(), "nothing is asked before the start");
        verdicts.lock().insert(("id".into(), Kind::Startup), Verdict::Success);
        started.send_replace(());
        // its period is an hour
        listener.accept().await.expect("the port is asked");
        asking.abort();
    }
}
