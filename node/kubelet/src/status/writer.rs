//! Writes statuses to the API: the latest of each pod, one write at a time
//! per pod, repeated until it is in. What came in between is never written.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::unread;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::Resource;
use kube::api::{Patch, PatchParams};
use kube::core::Request;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore, watch};

use crate::pod;

/// Writes in flight at once: a full node's worth of changes should not take
/// a full node's worth of connections.
const PARALLEL: usize = 16;
const RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub struct Writer {
    shared: Arc<Shared>,
}

struct Shared {
    client: Option<kube::Client>,
    /// What the kubelet itself answers when asked, written or not.
    latest: Mutex<HashMap<String, PodStatus>>,
    pods: Mutex<HashMap<String, Entry>>,
    permits: Semaphore,
    changed: Notify,
}

struct Entry {
    namespace: String,
    name: String,
    /// The API's uid, which a mirror pod does not share with its manifest.
    api_uid: String,
    wanted: Arc<Value>,
    version: u64,
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
        let wanted = Arc::new(patch(status));
        let mut pods = self.shared.pods.lock();
        if let Some(entry) = pods.get_mut(uid)
            && entry.api_uid == pod::uid(api)
        {
            if entry.wanted == wanted {
                return false;
            }
            entry.wanted = wanted;
            entry.version += 1;
            (entry.origin, entry.cause) = (origin, cause);
        } else {
            // after a restart the API may show all this already
            let shown = api.status.as_ref().is_some_and(|shown| patch(shown) == *wanted);
            let entry = Entry {
                namespace: pod::namespace(api).into(),
                name: pod::name(api).into(),
                api_uid: pod::uid(api).into(),
                wanted,
                version: 1,
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

    /// Waits until the latest status of a pod is in the API.
    pub async fn written(&self, uid: &str) {
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
            for uid in self.claim() {
                let (shared, client) = (self.shared.clone(), client.clone());
                writes.spawn(async move { shared.write(&client, &uid).await });
            }
            tokio::select! {
                () = self.shared.changed.notified() => {}
                Some(_) = writes.join_next() => {}
            }
        }
    }

    /// Pods whose latest status nobody writes yet.
    fn claim(&self) -> Vec<String> {
        let mut pods = self.shared.pods.lock();
        let due = pods.iter_mut().filter(|(_, entry)| !entry.busy && *entry.written.borrow() < entry.version);
        due.map(|(uid, entry)| {
            entry.busy = true;
            uid.clone()
        })
        .collect()
    }
}

impl Shared {
    async fn write(&self, client: &kube::Client, uid: &str) {
        let Ok(_permit) = self.permits.acquire().await else { return };
        let mut delay = RETRY;
        loop {
            // read at the last moment: what changed while waiting goes along
            let Some((namespace, name, api_uid, wanted, version)) = self.latest(uid) else { return };
            let requests = Request::new(Pod::url_path(&(), Some(&namespace)));
            let body = json!({"metadata": {"uid": api_uid}, "status": &*wanted});
            let (origin, cause) = self.origin(uid);
            let mut span = ferry_trace::Span::root("kubelet.status", origin);
            span.object("pods", &namespace, &name);
            if let Some(revision) = cause {
                span.caused_by(revision);
            }
            let patch = Patch::Strategic(&body);
            let request = requests.patch_subresource("status", &name, &PatchParams::default(), &patch);
            let result = span.in_scope(unread::send(client, request)).await;
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
                    tracing::warn!(pod = %format!("{namespace}/{name}"), %error, "status not written, will try again");
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

    fn latest(&self, uid: &str) -> Option<(String, String, String, Arc<Value>, u64)> {
        let pods = self.pods.lock();
        let entry = pods.get(uid)?;
        Some((
            entry.namespace.clone(),
            entry.name.clone(),
            entry.api_uid.clone(),
            entry.wanted.clone(),
            entry.version,
        ))
    }

    fn done(&self, uid: &str, version: u64) {
        if let Some(entry) = self.pods.lock().get_mut(uid) {
            entry.busy = false;
            entry.written.send_replace(version);
        }
    }
}

/// Conditions the kubelet answers for; only these are sent.
pub const OWN_CONDITIONS: [&str; 8] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    "DisruptionTarget",
    PENDING,
    IN_PROGRESS,
];
/// Those that go away when what they tell of is over.
const PENDING: &str = "PodResizePending";
const IN_PROGRESS: &str = "PodResizeInProgress";

/// A strategic merge patch: what the kubelet owns, absent fields removed,
/// conditions of others untouched because the list merges by type.
fn patch(status: &PodStatus) -> Value {
    let mut conditions: Vec<Value> = status
        .conditions
        .iter()
        .flatten()
        .filter(|condition| OWN_CONDITIONS.contains(&condition.type_.as_str()))
        .map(|condition| {
            json!({
                "type": condition.type_,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message,
                "lastTransitionTime": condition.last_transition_time,
                "observedGeneration": condition.observed_generation,
            })
        })
        .collect();
    for passing in [PENDING, IN_PROGRESS] {
        if !status.conditions.iter().flatten().any(|condition| condition.type_ == passing) {
            conditions.push(json!({"$patch": "delete", "type": passing}));
        }
    }
    let replaced = |ips: Vec<Value>| {
        // these lists merge by address; a pod that moved must lose the old one
        let mut list = vec![json!({"$patch": "replace"})];
        list.extend(ips);
        list
    };
    json!({
        "phase": status.phase,
        "reason": status.reason,
        "message": status.message,
        "conditions": conditions,
        "hostIP": status.host_ip,
        "hostIPs": replaced(status.host_ips.iter().flatten().map(|each| json!({"ip": each.ip})).collect()),
        "podIP": status.pod_ip,
        "podIPs": replaced(status.pod_ips.iter().flatten().map(|each| json!({"ip": each.ip})).collect()),
        "startTime": status.start_time,
        "qosClass": status.qos_class,
        "observedGeneration": status.observed_generation,
        "containerStatuses": status.container_statuses,
        "initContainerStatuses": status.init_container_statuses,
        "ephemeralContainerStatuses": status.ephemeral_container_statuses,
        "resources": status.resources,
        "allocatedResources": status.allocated_resources,
    })
}
