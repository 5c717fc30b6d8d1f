//! Hearing of containers that change by themselves.
//!
//! Three ways, the best the runtime has: CRI's own events; containerd's exit
//! events, where its CRI is too old for those; a list every second where
//! there is neither. With events a slow list remains, for what they missed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ferry_client::CancellationToken;
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior};

use super::labels;
use super::view::{self, PodRuntime, State};
use crate::cri;
use crate::images::containerd;
use crate::logs::rotate::Log;
use crate::metrics;

const RELIST_ALONE: Duration = Duration::from_secs(1);
const RELIST_WITH_EVENTS: Duration = Duration::from_secs(10);
const RECONNECT: Duration = Duration::from_secs(2);
/// CRI learns of an exit from the same event we do, a moment later or sooner.
const SETTLE: Duration = Duration::from_millis(5);
const SETTLE_TRIES: usize = 200;

/// Sandboxes and containers of one pod with their states; equal when nothing
/// happened.
type Summary = Vec<(String, State)>;

#[derive(Default)]
struct Known {
    summary: Summary,
    logs: Vec<Log>,
}

/// What each pod's worker knows of its sandboxes and containers: a list that
/// says the same is no news to it. Cloning shares.
#[derive(Clone, Default)]
pub struct Seen {
    pods: Arc<Mutex<HashMap<String, Known>>>,
    /// Whose sandboxes and containers the first list showed. Whatever came later a worker made.
    found: Arc<OnceLock<HashSet<String>>>,
    /// Whose workers are at work.
    busy: Arc<Mutex<HashSet<String>>>,
    /// When the last list began.
    round: Arc<Mutex<Option<std::time::Instant>>>,
}

/// Ends when dropped.
pub struct Busy {
    uid: String,
    busy: Arc<Mutex<HashSet<String>>>,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.busy.lock().remove(&self.uid);
    }
}

impl Seen {
    pub fn note(&self, uid: &str, runtime: &PodRuntime) {
        let sandboxes = runtime
            .sandboxes
            .iter()
            .map(|sandbox| (sandbox.id.clone(), if sandbox.ready { State::Running } else { State::Exited }));
        let containers = runtime.containers.iter().map(|each| (each.id.clone(), each.state));
        let mut summary: Summary = sandboxes.chain(containers).collect();
        summary.sort();
        let log = |each: &view::Container| Log { container: each.id.clone(), path: each.log_path.clone() };
        let logs = runtime.running().map(log).collect();
        self.pods.lock().insert(uid.into(), Known { summary, logs });
    }

    /// The worker of a pod is at work: what a list shows of it meanwhile is half of what it makes, and no news. What
    /// else happened the next list shows.
    pub fn work(&self, uid: &str) -> Busy {
        self.busy.lock().insert(uid.into());
        Busy { uid: uid.into(), busy: self.busy.clone() }
    }

    /// The logs of all containers that run.
    pub fn logs(&self) -> Vec<Log> {
        self.pods.lock().values().flat_map(|known| known.logs.iter().cloned()).collect()
    }

    pub fn forget(&self, uid: &str) {
        self.pods.lock().remove(uid);
    }

    /// Whether the runtime has nothing of a pod, for certain and without being asked: neither did it when this
    /// kubelet began, nor has a worker looked since, as each does before it makes anything.
    pub fn is_untouched(&self, uid: &str) -> bool {
        self.found.get().is_some_and(|found| !found.contains(uid)) && !self.pods.lock().contains_key(uid)
    }

    /// When the loop that lists last came round.
    pub fn last_round(&self) -> Option<std::time::Instant> {
        *self.round.lock()
    }

    /// Pods of whom the runtime has something else than their worker knows.
    fn outdated(&self, current: &HashMap<String, Summary>) -> Vec<String> {
        let pods = self.pods.lock();
        let none = Summary::new();
        let uids: BTreeSet<&String> = pods.keys().chain(current.keys()).collect();
        let differs = |uid: &&&String| {
            pods.get(**uid).map_or(&none, |known| &known.summary) != current.get(**uid).unwrap_or(&none)
        };
        let busy = self.busy.lock();
        uids.iter().filter(differs).filter(|uid| !busy.contains(**uid)).map(|uid| (*uid).clone()).collect()
    }
}

/// Calls `wake` with the uid of each pod whose containers changed, until
/// stopped. `healthy` hears whether the runtime answers.
pub async fn run(
    runtime: cri::Client,
    endpoint: String,
    seen: Seen,
    wake: impl Fn(&str) + Clone + Send + Sync + 'static,
    healthy: tokio::sync::watch::Sender<Result<(), String>>,
    stop: CancellationToken,
) {
    let (hints, mut hinted) = tokio::sync::mpsc::channel::<String>(1024);
    let (events_up, mut with_events) = tokio::sync::watch::channel(false);
    let listener = tokio::spawn(listen(runtime.clone(), endpoint, hints, events_up, stop.clone()));

    let mut last = None;
    let mut period = RELIST_ALONE;
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(uid) = hinted.recv() => {
                wake(&uid);
                continue;
            }
            Ok(()) = with_events.changed() => {
                let wanted = if *with_events.borrow() { RELIST_WITH_EVENTS } else { RELIST_ALONE };
                if wanted != period {
                    period = wanted;
                    ticks = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
                    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                }
                continue;
            }
            _ = ticks.tick() => {}
        }
        let began = Instant::now();
        *seen.round.lock() = Some(began.into_std());
        let listed = summaries(&runtime).await;
        metrics::relisted(began.elapsed(), last.replace(began).map(|last| began - last));
        match listed {
            Ok(current) => {
                healthy.send_if_modified(|state| std::mem::replace(state, Ok(())).is_err());
                seen.found.get_or_init(|| current.keys().cloned().collect());
                seen.outdated(&current).iter().for_each(|uid| wake(uid));
            }
            Err(error) => {
                let message = error.to_string();
                healthy.send_if_modified(|state| std::mem::replace(state, Err(message)).is_ok());
            }
        }
    }
    // the listener stops by the same token; an abort would be the same
    let _ = listener.await;
}

async fn summaries(runtime: &cri::Client) -> Result<HashMap<String, Summary>, cri::Error> {
    let (sandboxes, containers) =
        tokio::try_join!(runtime.list_pod_sandboxes(None), runtime.list_containers(None))?;
    let mut pods: HashMap<String, Summary> = HashMap::new();
    let sandboxes = sandboxes.into_iter().map(|each| {
        let is_ready = each.state == cri::PodSandboxState::SandboxReady as i32;
        (each.labels, each.id, if is_ready { State::Running } else { State::Exited })
    });
    let containers = containers.into_iter().map(|each| (each.labels, each.id, view::state(each.state)));
    for (labels, id, state) in sandboxes.chain(containers) {
        if let Some(uid) = labels.get(labels::POD_UID) {
            pods.entry(uid.clone()).or_default().push((id, state));
        }
    }
    pods.values_mut().for_each(|summary| summary.sort());
    Ok(pods)
}

async fn listen(
    runtime: cri::Client,
    endpoint: String,
    hints: tokio::sync::mpsc::Sender<String>,
    events_up: tokio::sync::watch::Sender<bool>,
    stop: CancellationToken,
) {
    let mut cri_has_events = true;
    loop {
        let listening = async {
            if cri_has_events {
                match listen_to_cri(&runtime, &hints, &events_up).await {
                    Err(error) if error.is_unimplemented() => cri_has_events = false,
                    Err(error) => tracing::debug!(%error, "runtime events ended"),
                    Ok(()) => {}
                }
            }
            if !cri_has_events
                && let Err(error) = listen_to_containerd(&runtime, &endpoint, &hints, &events_up).await
            {
                tracing::debug!(%error, "containerd events ended");
            }
            events_up.send_replace(false);
            tokio::time::sleep(RECONNECT).await;
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = listening => {}
        }
    }
}

async fn listen_to_cri(
    runtime: &cri::Client,
    hints: &tokio::sync::mpsc::Sender<String>,
    events_up: &tokio::sync::watch::Sender<bool>,
) -> Result<(), cri::Error> {
    let mut events = runtime.container_events().await?;
    loop {
        let message = events.message().await;
        match message
            .map_err(|status| cri::call_error("/runtime.v1.RuntimeService/GetContainerEvents", status))?
        {
            None => return Ok(()),
            Some(event) => {
                events_up.send_replace(true);
                let metadata = event.pod_sandbox_status.and_then(|sandbox| sandbox.metadata);
                if let Some(metadata) = metadata
                    && hints.send(metadata.uid).await.is_err()
                {
                    return Ok(());
                }
            }
        }
    }
}

async fn listen_to_containerd(
    runtime: &cri::Client,
    endpoint: &str,
    hints: &tokio::sync::mpsc::Sender<String>,
    events_up: &tokio::sync::watch::Sender<bool>,
) -> Result<(), containerd::Error> {
    let mut exits = containerd::Client::new(endpoint)?.exits().await?;
    events_up.send_replace(true);
    while let Some(id) = exits.next().await? {
        let (runtime, hints) = (runtime.clone(), hints.clone());
        tokio::spawn(async move {
            if let Some(uid) = wait_for_exit(&runtime, &id).await {
                // a full channel means the list will tell
                let _ = hints.try_send(uid);
            }
        });
    }
    Ok(())
}

/// The pod of a container, once CRI too says that the container has ended.
async fn wait_for_exit(runtime: &cri::Client, id: &str) -> Option<String> {
    for _ in 0..SETTLE_TRIES {
        match runtime.container_status(id).await {
            Ok(Some(status)) if status.state == cri::ContainerState::ContainerRunning as i32 => {}
            Ok(Some(status)) => return status.labels.get(labels::POD_UID).cloned(),
            _ => match runtime.pod_sandbox_status(id).await {
                Ok(answer) => {
                    let status = answer.status?;
                    if status.state != cri::PodSandboxState::SandboxReady as i32 {
                        return status.labels.get(labels::POD_UID).cloned();
                    }
                }
                Err(_) => return None,
            },
        }
        tokio::time::sleep(SETTLE).await;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::view::Sandbox;
    use futures::StreamExt;
    use jiff::Timestamp;

    #[test]
    fn only_what_a_worker_does_not_know_wakes_it() {
        let seen = Seen::default();
        let sandbox = Sandbox {
            id: "s".into(),
            attempt: 0,
            ready: true,
            host_network: true,
            created_at: Timestamp::UNIX_EPOCH,
            ips: vec![],
        };
        seen.note("known", &PodRuntime { sandboxes: vec![sandbox], containers: vec![] });
        seen.note("new", &PodRuntime::default());
        let list = |state: State| HashMap::from([("known".to_string(), vec![("s".to_string(), state)])]);
        assert!(seen.outdated(&list(State::Running)).is_empty());
        assert_eq!(seen.outdated(&list(State::Exited)), ["known"]);
        let at_work = seen.work("known");
        assert!(seen.outdated(&list(State::Exited)).is_empty());
        drop(at_work);
        assert_eq!(seen.outdated(&list(State::Exited)), ["known"], "it did not see to it");
        assert_eq!(seen.outdated(&HashMap::new()), ["known"]);
        seen.forget("known");
        assert_eq!(seen.outdated(&list(State::Running)), ["known"], "somebody may want to know of it");
    }

    #[test]
    fn a_pod_is_untouched_until_the_runtime_has_it_or_a_worker_looks() {
        let seen = Seen::default();
        assert!(!seen.is_untouched("new"), "nothing was listed yet");
        seen.found.get_or_init(|| HashSet::from(["of a former kubelet".to_string()]));
        assert!(seen.is_untouched("new"));
        assert!(!seen.is_untouched("of a former kubelet"));
        seen.note("new", &PodRuntime::default());
        assert!(!seen.is_untouched("new"));
    }

    type Body = http_body_util::combinators::UnsyncBoxBody<bytes::Bytes, std::convert::Infallible>;

    /// A message as gRPC frames it; `None` at the end, where the call's status is.
    fn frames(message: impl prost::Message, ends: bool) -> Body {
        let data = message.encode_to_vec();
        let mut framed = vec![0];
        framed.extend(u32::try_from(data.len()).expect("it is short").to_be_bytes());
        framed.extend(data);
        let status = http::HeaderMap::from_iter([(
            http::HeaderName::from_static("grpc-status"),
            http::HeaderValue::from_static("0"),
        )]);
        let first = futures::stream::iter([hyper::body::Frame::data(framed.into())]);
        let frames = if ends {
            first.chain(futures::stream::iter([hyper::body::Frame::trailers(status)])).boxed()
        } else {
            first.chain(futures::stream::pending()).boxed()
        };
        http_body_util::BodyExt::boxed_unsync(http_body_util::StreamBody::new(frames.map(Ok)))
    }

    /// A runtime that has nothing, and tells of one pod by CRI's own events, as CRI-O and newer containerds do.
    fn answer(path: &str) -> Body {
        match path.rsplit('/').next() {
            Some("ListPodSandbox") => frames(cri::ListPodSandboxResponse::default(), true),
            Some("ListContainers") => frames(cri::ListContainersResponse::default(), true),
            Some("GetContainerEvents") => {
                let metadata = cri::PodSandboxMetadata { uid: "told".into(), ..Default::default() };
                let status = cri::PodSandboxStatus { metadata: Some(metadata), ..Default::default() };
                let event =
                    cri::ContainerEventResponse { pod_sandbox_status: Some(status), ..Default::default() };
                frames(event, false)
            }
            other => panic!("nobody asks a runtime for {other:?} here"),
        }
    }

    #[tokio::test]
    async fn a_runtimes_own_events_wake_a_pod() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let socket = directory.path().join("cri.sock");
        let listener = tokio::net::UnixListener::bind(&socket).expect("a socket can be made");
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = hyper::service::service_fn(|request: http::Request<hyper::body::Incoming>| {
                    let mut response = http::Response::new(answer(request.uri().path()));
                    let kind = http::HeaderValue::from_static("application/grpc");
                    response.headers_mut().insert("content-type", kind);
                    std::future::ready(Ok::<_, std::convert::Infallible>(response))
                });
                let executor = hyper_util::rt::TokioExecutor::new();
                let stream = hyper_util::rt::TokioIo::new(stream);
                tokio::spawn(
                    hyper::server::conn::http2::Builder::new(executor).serve_connection(stream, service),
                );
            }
        });
        let endpoint = format!("unix://{}", socket.display());
        let runtime = cri::Client::new(&endpoint).expect("a path");
        let (woken, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let wake = move |uid: &str| woken.send(uid.to_string()).expect("somebody listens");
        let (health, healthy) = tokio::sync::watch::channel(Ok(()));
        let stop = CancellationToken::new();
        let watching = tokio::spawn(run(runtime, endpoint, Seen::default(), wake, health, stop.clone()));
        let uid =
            tokio::time::timeout(Duration::from_secs(10), heard.recv()).await.expect("it is told in time");
        assert_eq!(uid.as_deref(), Some("told"));
        assert_eq!(*healthy.borrow(), Ok(()));
        stop.cancel();
        watching.await.expect("it ends");
    }
}
