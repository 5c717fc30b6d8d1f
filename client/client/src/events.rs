//! Events: what users read in `kubectl describe`. Written by one task per process, never by
//! the loop that has something to say: a slow server must not slow a reconcile.
//!
//! What repeats is counted, not written again (a series); what repeats with ever other words
//! is combined; an object that never falls silent is cut off. `Correlator` decides, `Writer`
//! writes.

mod correlator;

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::Request;
use kube::{Client, Resource};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::{error, unread};
use correlator::{Correlator, Decision};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    Normal,
    Warning,
}

/// The process' events. Recorders are made from it.
pub struct Events {
    sender: mpsc::Sender<Entry>,
    instance: String,
    tasks: TaskTracker,
}

/// Says what one component has to say. Cloning shares.
#[derive(Clone, Debug)]
pub struct Recorder {
    sender: mpsc::Sender<Entry>,
    controller: &'static str,
    instance: String,
}

/// Something worth telling, before anything is decided about it.
#[derive(Clone, Debug)]
struct Entry {
    regarding: ObjectReference,
    related: Option<ObjectReference>,
    kind: EventType,
    reason: String,
    action: String,
    note: String,
    controller: &'static str,
    instance: String,
    at: Timestamp,
}

impl Events {
    /// How many events may wait for the server before further ones are dropped.
    const WAITING: usize = 16_384;

    /// `instance` tells processes apart: the host's name.
    pub fn start(client: Client, instance: impl Into<String>, shutdown: CancellationToken) -> Self {
        let (sender, receiver) = mpsc::channel(Self::WAITING);
        let tasks = TaskTracker::new();
        // Telling about work is not the work: its requests stay out of the trace.
        let span = ferry_trace::span("events").unsampled();
        let writer = Writer {
            client,
            correlator: Correlator::default(),
            under_way: HashMap::new(),
            writes: JoinSet::new(),
        };
        tasks.spawn(span.instrument(writer.run(receiver, shutdown)));
        tasks.close();
        Events { sender, instance: instance.into(), tasks }
    }

    /// A recorder for a component, by the name users see: `replicaset-controller`.
    pub fn recorder(&self, controller: &'static str) -> Recorder {
        Recorder { sender: self.sender.clone(), controller, instance: self.instance.clone() }
    }

    /// Waits until what was recorded before the shutdown is written, or a moment has passed.
    pub async fn stopped(&self) {
        self.tasks.wait().await;
    }
}

impl Recorder {
    /// Records an event about an object. `action` is what the component did or tried.
    pub fn event<K>(
        &self,
        regarding: &K,
        kind: EventType,
        reason: &str,
        action: &str,
        note: impl Into<String>,
    ) where
        K: Resource<DynamicType = ()>,
    {
        self.event_on(reference(regarding), None, kind, reason, action, note);
    }

    /// The same for a reference at hand, say to one container of a pod by its field path.
    pub fn event_on(
        &self,
        regarding: ObjectReference,
        related: Option<ObjectReference>,
        kind: EventType,
        reason: &str,
        action: &str,
        note: impl Into<String>,
    ) {
        let entry = Entry {
            regarding,
            related,
            kind,
            reason: reason.into(),
            action: action.into(),
            note: note.into(),
            controller: self.controller,
            instance: self.instance.clone(),
            at: Timestamp::now(),
        };
        if self.sender.try_send(entry).is_err() {
            tracing::debug!(
                controller = self.controller,
                reason,
                "event dropped: too many wait for the server"
            );
        }
    }

    /// A recorder that tells no one, for tests.
    pub fn silent() -> Self {
        Recorder { sender: mpsc::channel(1).0, controller: "silent", instance: String::new() }
    }
}

/// How events refer to an object.
pub fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    let meta = object.meta();
    ObjectReference {
        api_version: Some(K::api_version(&()).into()),
        kind: Some(K::kind(&()).into()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

impl Entry {
    /// The server refuses longer notes.
    const MAX_NOTE: usize = 1024;

    fn into_event(mut self) -> Event {
        self.note.truncate(self.note.floor_char_boundary(Self::MAX_NOTE));
        // Events about cluster-scoped objects live in the default namespace.
        let namespace = self.regarding.namespace.clone().filter(|namespace| !namespace.is_empty());
        let name =
            format!("{}.{:x}", self.regarding.name.as_deref().unwrap_or("unknown"), self.at.as_nanosecond());
        Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(namespace.unwrap_or_else(|| "default".into())),
                ..Default::default()
            },
            event_time: Some(MicroTime(self.at)),
            type_: Some(match self.kind {
                EventType::Normal => "Normal".into(),
                EventType::Warning => "Warning".into(),
            }),
            reason: Some(self.reason),
            action: Some(self.action),
            note: Some(self.note),
            regarding: Some(self.regarding),
            related: self.related,
            reporting_controller: Some(self.controller.into()),
            reporting_instance: Some(self.instance),
            ..Default::default()
        }
    }
}

/// An event to be written, or its count.
struct Write {
    decision: Decision,
    /// To be made anew, should the event to be counted have expired.
    entry: Entry,
}

/// Namespace and name of an event.
type Target = (String, String);

impl Write {
    fn target(&self) -> Option<Target> {
        match &self.decision {
            Decision::Drop => None,
            Decision::Count { namespace, name, .. } => Some((namespace.clone(), name.clone())),
            Decision::Create(event) => {
                let text = |field: &Option<String>| field.clone().unwrap_or_default();
                Some((text(&event.metadata.namespace), text(&event.metadata.name)))
            }
        }
    }
}

/// Writes many events at a time, but each one's count only after the event itself: what comes
/// for an event under way waits, and of several counts the last says all.
struct Writer {
    client: Client,
    correlator: Correlator,
    under_way: HashMap<Target, Option<Write>>,
    writes: JoinSet<Target>,
}

impl Writer {
    /// How many requests may be under way: enough for a scheduler that binds thousands a second.
    const AT_A_TIME: usize = 32;

    async fn run(mut self, mut receiver: mpsc::Receiver<Entry>, shutdown: CancellationToken) {
        let writing = async {
            let mut open = true;
            while open || !self.writes.is_empty() {
                let room = open && self.writes.len() < Self::AT_A_TIME;
                tokio::select! {
                    Some(done) = self.writes.join_next(), if !self.writes.is_empty() => self.finish(done),
                    entry = receiver.recv(), if room => match entry {
                        Some(entry) => self.take(entry),
                        None => open = false,
                    },
                }
            }
        };
        let last_moments = async {
            shutdown.cancelled().await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        tokio::select! {
            () = writing => {}
            () = last_moments => {}
        }
    }

    fn take(&mut self, entry: Entry) {
        let write = Write { decision: self.correlator.decide(entry.clone()), entry };
        let Some(target) = write.target() else { return };
        match self.under_way.get_mut(&target) {
            Some(next) => *next = Some(write),
            None => self.start(target, write),
        }
    }

    fn finish(&mut self, done: Result<Target, JoinError>) {
        match done {
            Ok(target) => {
                if let Some(Some(next)) = self.under_way.remove(&target) {
                    self.start(target, next);
                }
            }
            Err(error) => tracing::error!(%error, "writing an event failed"),
        }
    }

    fn start(&mut self, target: Target, write: Write) {
        self.under_way.insert(target.clone(), None);
        let client = self.client.clone();
        self.writes.spawn(ferry_trace::inherit(async move {
            send(&client, write).await;
            target
        }));
    }
}

fn events(namespace: &str) -> Request {
    Request::new(Event::url_path(&(), Some(namespace)))
}

/// Tries a few times while the server cannot be reached; what it refuses, it refuses.
async fn send(client: &Client, write: Write) {
    let Write { mut decision, entry } = write;
    for attempt in 0..4 {
        let result = match &decision {
            Decision::Drop => return,
            Decision::Create(event) => {
                let namespace = event.metadata.namespace.as_deref().unwrap_or("default");
                let body = serde_json::to_vec(event).expect("an event is JSON");
                unread::send(client, events(namespace).create(&PostParams::default(), body)).await
            }
            Decision::Count { namespace, name, series } => {
                let patch = Patch::Merge(json!({"series": series}));
                let request = events(namespace).patch(name, &PatchParams::default(), &patch);
                unread::send(client, request).await
            }
        };
        match result {
            Ok(()) => return,
            // The event has expired since it was last counted.
            Err(error) if error::is_not_found(&error) && matches!(decision, Decision::Count { .. }) => {
                decision = Decision::Create(Box::new(entry.clone().into_event()));
            }
            Err(kube::Error::Api(status)) => {
                tracing::debug!(reason = entry.reason, error = status.message, "event refused");
                return;
            }
            Err(error) => {
                tracing::debug!(
                    reason = entry.reason,
                    error = error::message(&error),
                    "event not written yet"
                );
                tokio::time::sleep(Duration::from_secs(1 << attempt)).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::correlator::tests::entry;
    use super::*;
    use crate::test_server::TestServer;

    #[test]
    fn a_long_note_is_cut_to_what_the_server_takes() {
        let event = entry("a", &"é".repeat(1000), 0).into_event();
        assert_eq!(event.note.map(|note| note.len()), Some(1024));
        assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_recorded_before_a_shutdown_is_written() {
        let server = TestServer::new();
        let shutdown = CancellationToken::new();
        let events = Events::start(server.client(), "host", shutdown.clone());
        let mut object = ConfigMap::default();
        (object.metadata.name, object.metadata.namespace) = (Some("settings".into()), Some("default".into()));
        let recorder = events.recorder("test-controller");
        recorder.event(&object, EventType::Warning, "FailedCreate", "Create", "quota exceeded");
        recorder.event(&object, EventType::Warning, "FailedCreate", "Create", "quota exceeded");
        shutdown.cancel();
        events.stopped().await;
        let written = server.objects("/apis/events.k8s.io/v1/namespaces/default/events/settings.");
        assert_eq!(written.len(), 1);
        assert_eq!(written[0]["note"], "quota exceeded");
        assert_eq!(written[0]["reportingController"], "test-controller");
        assert_eq!(written[0]["series"]["count"], 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_of_thousands_loses_none() {
        let server = TestServer::new();
        let shutdown = CancellationToken::new();
        let events = Events::start(server.client(), "host", shutdown.clone());
        let recorder = events.recorder("test-controller");
        for number in 0..10_000 {
            let mut object = ConfigMap::default();
            object.metadata.name = Some(format!("settings-{number}"));
            (object.metadata.namespace, object.metadata.uid) =
                (Some("default".into()), Some(number.to_string()));
            recorder.event(&object, EventType::Normal, "Scheduled", "Binding", "assigned");
        }
        drop((recorder, events.sender));
        events.tasks.wait().await;
        assert_eq!(server.objects("/apis/events.k8s.io/v1/namespaces/default/events/").len(), 10_000);
    }
}
