//! Writes statuses to the API: the latest of each pod, one write at a time per pod, retried until it succeeds. Intermediate
//! statuses are never written.
//!
//! The first status of a starting pod is delayed for a moment: most pods run before it is over, and then one write is
//! enough.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ferry_client::undecoded;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::Resource;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;

use super::patch::{self, begins};
use crate::pod;

/// Writes in flight at once: a full node's worth of changes should not take
/// a full node's worth of connections.
const PARALLEL: usize = 16;
const RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(30);
/// How long it may stay untold that a pod begins, and, once that is told, that it has its address: a start waits for
/// others there, where many begin at once.
const BEGINNING: Duration = Duration::from_millis(500);
const BEGUN: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub struct Writer {
    shared: Arc<Shared>,
}

struct Shared {
    client: Option<kube::Client>,
    /// What the kubelet itself answers when asked, written or not.
    latest: Mutex<HashMap<String, PodStatus>>,
    pods: Mutex<HashMap<String, PendingStatus>>,
    permits: Semaphore,
    changed: Notify,
}

struct PendingStatus {
    namespace: String,
    name: String,
    /// The API's uid, which a mirror pod does not share with its manifest.
    api_uid: String,
    /// The patch that shows it.
    wanted: Bytes,
    version: u64,
    /// Not to be written before.
    due: Instant,
    written: watch::Sender<u64>,
    busy: bool,
    /// The step that computed what is wanted, and the revision that caused it: the write is part of its story.
    origin: Option<ferry_trace::Context>,
    cause: Option<i64>,
}

impl Writer {
    pub fn new(client: Option<kube::Client>) -> Self {
        let shared = Shared {
            latest: Mutex::default(),
            client,
            pods: Mutex::default(),
            permits: Semaphore::new(PARALLEL),
            changed: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Makes `status` what is shown. `api` is the pod as the API has it, if it
    /// does: the pod itself, or the mirror of a static one. Tells whether that is news.
    pub fn set(&self, uid: &str, api: Option<&Pod>, status: &PodStatus) -> bool {
        self.shared.latest.lock().insert(uid.into(), status.clone());
        let Some(api) = api else { return false };
        let (origin, cause) = (ferry_trace::current(), ferry_trace::current_cause());
        let wanted = match patch::body(pod::uid(api), status) {
            Ok(body) => Bytes::from(body),
            Err(error) => {
                tracing::error!(pod = %pod::key(api), %error, "a status cannot be encoded");
                return false;
            }
        };
        let (now, begins) = (Instant::now(), begins(status));
        let mut pods = self.shared.pods.lock();
        if let Some(entry) = pods.get_mut(uid)
            && entry.api_uid == pod::uid(api)
        {
            if entry.wanted == wanted {
                return false;
            }
            let is_told = *entry.written.borrow() == entry.version;
            entry.due = match (begins, is_told) {
                (false, _) => now,
                (true, true) => now + BEGUN,
                (true, false) => entry.due,
            };
            entry.wanted = wanted;
            entry.version += 1;
            (entry.origin, entry.cause) = (origin, cause);
        } else {
            // after a restart the API may show all this already
            let shown = api.status.as_ref().filter(|shown| shown.start_time.is_some());
            let shown = shown.and_then(|shown| patch::body(pod::uid(api), shown).ok());
            let shown = shown.is_some_and(|shown| shown == wanted);
            let entry = PendingStatus {
                namespace: pod::namespace(api).into(),
                name: pod::name(api).into(),
                api_uid: pod::uid(api).into(),
                wanted,
                version: 1,
                due: if begins { now + BEGINNING } else { now },
                written: watch::Sender::new(u64::from(shown)),
                busy: false,
                origin,
                cause,
            };
            pods.insert(uid.into(), entry);
        }
        self.shared.changed.notify_one();
        true
    }

    /// What follows may take long: what is known is told now.
    pub fn hurry(&self, uid: &str) {
        if let Some(entry) = self.shared.pods.lock().get_mut(uid) {
            entry.due = Instant::now();
            self.shared.changed.notify_one();
        }
    }

    /// Waits until the latest status of a pod is in the API.
    pub async fn written(&self, uid: &str) {
        self.hurry(uid);
        let waiting = {
            let pods = self.shared.pods.lock();
            pods.get(uid).map(|entry| (entry.version, entry.written.subscribe()))
        };
        if let Some((version, mut written)) = waiting {
            // an error means the entry was forgotten: nothing to wait for
            let _ = written.wait_for(|written| *written >= version).await;
        }
    }

    /// The latest status of a pod, as computed here.
    pub fn latest(&self, uid: &str) -> Option<PodStatus> {
        self.shared.latest.lock().get(uid).cloned()
    }

    pub fn forget(&self, uid: &str) {
        self.shared.latest.lock().remove(uid);
        self.shared.pods.lock().remove(uid);
    }

    /// Writes until cancelled.
    pub async fn run(&self) {
        let Some(client) = self.shared.client.clone() else { return std::future::pending().await };
        let mut writes = tokio::task::JoinSet::new();
        loop {
            let (due, next) = self.claim(Instant::now());
            for uid in due {
                let (shared, client) = (self.shared.clone(), client.clone());
                writes.spawn(async move { shared.write(&client, &uid).await });
            }
            let later = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.shared.changed.notified() => {}
                () = later => {}
                Some(_) = writes.join_next() => {}
            }
        }
    }

    /// Pods whose latest status nobody writes yet, and when the next of those that may wait is due.
    fn claim(&self, now: Instant) -> (Vec<String>, Option<Instant>) {
        let mut pods = self.shared.pods.lock();
        let (mut due, mut next) = (Vec::new(), None::<Instant>);
        for (uid, entry) in pods.iter_mut() {
            if entry.busy || *entry.written.borrow() >= entry.version {
                continue;
            }
            if entry.due <= now {
                entry.busy = true;
                due.push(uid.clone());
            } else {
                next = Some(next.map_or(entry.due, |next| next.min(entry.due)));
            }
        }
        (due, next)
    }
}

impl Shared {
    async fn write(&self, client: &kube::Client, uid: &str) {
        let Ok(_permit) = self.permits.acquire().await else { return };
        let mut delay = RETRY;
        loop {
            // read at the last moment: what changed while waiting goes along
            let Some((namespace, name, wanted, version)) = self.latest(uid) else { return };
            let (origin, cause) = self.origin(uid);
            let mut span = ferry_trace::Span::root("kubelet.status", origin);
            span.object("pods", &namespace, &name);
            if let Some(revision) = cause {
                span.caused_by(revision);
            }
            let path = format!("{}/{name}/status", Pod::url_path(&(), Some(&namespace)));
            let request = http::Request::patch(path)
                .header(http::header::ACCEPT, "application/json")
                .header(http::header::CONTENT_TYPE, "application/strategic-merge-patch+json")
                .body(wanted.into())
                .map_err(kube::core::request::Error::BuildRequest);
            let result = span.in_scope(undecoded::send(client, request)).await;
            match result {
                Ok(()) => {
                    self.done(uid, version);
                    return;
                }
                // gone, or another pod of that name: nobody reads this status
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                    self.done(uid, version);
                    return;
                }
                Err(error) => {
                    span.fail(&error);
                    tracing::warn!(pod = %format!("{namespace}/{name}"), %error, "cannot write the status; will retry");
                }
            }
            drop(span);
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(MAX_RETRY);
        }
    }

    fn origin(&self, uid: &str) -> (Option<ferry_trace::Context>, Option<i64>) {
        self.pods.lock().get(uid).map_or((None, None), |entry| (entry.origin, entry.cause))
    }

    fn latest(&self, uid: &str) -> Option<(String, String, Bytes, u64)> {
        let pods = self.pods.lock();
        let entry = pods.get(uid)?;
        Some((entry.namespace.clone(), entry.name.clone(), entry.wanted.clone(), entry.version))
    }

    fn done(&self, uid: &str, version: u64) {
        if let Some(entry) = self.pods.lock().get_mut(uid) {
            entry.busy = false;
            entry.written.send_replace(version);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use serde_json::{Value, json};
    use tokio::sync::mpsc;

    fn pod() -> Pod {
        serde_json::from_value(json!({"metadata": {"namespace": "ns", "name": "p", "uid": "u"}}))
            .expect("the pod is well formed")
    }

    fn status(phase: &str, state: Value) -> PodStatus {
        let containers = json!([{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state}]);
        serde_json::from_value(json!({"phase": phase, "containerStatuses": containers}))
            .expect("the status is well formed")
    }

    /// A writer at work, and the phases that it writes.
    fn writing() -> (Writer, mpsc::UnboundedReceiver<String>) {
        let (told, written) = mpsc::unbounded_channel();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let told = told.clone();
            async move {
                assert_eq!(request.uri().path(), "/api/v1/namespaces/ns/pods/p/status");
                let body = request.into_body().collect().await.expect("it has a body").to_bytes();
                let patch: Value = serde_json::from_slice(&body).expect("it is JSON");
                assert_eq!(patch["metadata"]["uid"], "u");
                told.send(patch["status"]["phase"].as_str().expect("a phase").to_string()).expect("heard");
                let answer = kube::client::Body::from(b"{}".to_vec());
                Ok::<_, std::convert::Infallible>(http::Response::new(answer))
            }
        });
        let writer = Writer::new(Some(kube::Client::new(service, "default")));
        let running = writer.clone();
        tokio::spawn(async move { running.run().await });
        (writer, written)
    }

    #[tokio::test(start_paused = true)]
    async fn a_beginning_is_told_with_what_follows_or_after_a_moment() {
        let (writer, mut written) = writing();
        let beginning = status("Pending", json!({"waiting": {"reason": "ContainerCreating"}}));
        assert!(writer.set("u", Some(&pod()), &beginning));
        assert!(!writer.set("u", Some(&pod()), &beginning), "that is no news");
        let before = Instant::now();
        writer.set("u", Some(&pod()), &status("Running", json!({"running": {}})));
        assert_eq!(written.recv().await.as_deref(), Some("Running"));
        assert_eq!(before.elapsed(), Duration::ZERO);
        writer.written("u").await;
        assert!(written.is_empty(), "one write says all");

        writer.forget("u");
        writer.set("u", Some(&pod()), &beginning);
        assert_eq!(written.recv().await.as_deref(), Some("Pending"));
        assert_eq!(before.elapsed(), BEGINNING);
        writer.written("u").await;
        let has_address = PodStatus { pod_ip: Some("10.0.0.1".into()), ..beginning };
        writer.set("u", Some(&pod()), &has_address);
        assert_eq!(written.recv().await.as_deref(), Some("Pending"));
        assert_eq!(before.elapsed(), BEGINNING + BEGUN);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_a_status_ends_with_its_write() {
        let (writer, mut written) = writing();
        writer.set(
            "u",
            Some(&pod()),
            &status("Pending", json!({"waiting": {"reason": "ContainerCreating"}})),
        );
        let before = Instant::now();
        writer.written("u").await;
        assert_eq!(before.elapsed(), Duration::ZERO);
        assert_eq!(written.recv().await.as_deref(), Some("Pending"));
    }
}
