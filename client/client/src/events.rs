//! Events: what users read in `kubectl describe`. Written by one task per process, never by
//! the loop that has something to say: a slow server must not slow a reconcile.
//!
//! What repeats is counted, not written again (a series); what repeats with ever other words
//! is combined; an object that never falls silent is cut off. `Correlator` decides, `Writer`
//! writes.

mod correlator;
mod form;

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::{error, undecoded};
use correlator::{Correlator, Decision};
use form::Form;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    Normal,
    Warning,
}

/// The process' events. Recorders are made from it.
pub struct Events {
    sender: mpsc::Sender<PendingEvent>,
    instance: String,
    tasks: TaskTracker,
}

/// Records the events of one component. Clones share it.
#[derive(Clone, Debug)]
pub struct Recorder {
    sender: mpsc::Sender<PendingEvent>,
    controller: &'static str,
    instance: String,
    form: Form,
}

/// An event before correlation.
#[derive(Clone, Debug)]
struct PendingEvent {
    regarding: ObjectReference,
    related: Option<ObjectReference>,
    kind: EventType,
    reason: String,
    action: String,
    note: String,
    controller: &'static str,
    instance: String,
    form: Form,
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
    pub fn recorder(&self, component: &'static str) -> Recorder {
        self.recorder_of(component, Form::Component)
    }

    /// For a component of one host, whose events name the host too: `kubelet, node-1`.
    pub fn host_recorder(&self, component: &'static str) -> Recorder {
        self.recorder_of(component, Form::ComponentOnHost)
    }

    /// For those whose events readers expect in the form of `events.k8s.io`: scheduler and proxy.
    pub fn reporting_recorder(&self, controller: &'static str) -> Recorder {
        self.recorder_of(controller, Form::Reported)
    }

    fn recorder_of(&self, controller: &'static str, form: Form) -> Recorder {
        Recorder { sender: self.sender.clone(), controller, instance: self.instance.clone(), form }
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
        let entry = PendingEvent {
            regarding,
            related,
            kind,
            reason: reason.into(),
            action: action.into(),
            note: note.into(),
            controller: self.controller,
            instance: self.instance.clone(),
            form: self.form,
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
        Recorder {
            sender: mpsc::channel(1).0,
            controller: "silent",
            instance: String::new(),
            form: Form::Component,
        }
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

/// An event to be written, or its count.
struct Write {
    decision: Decision,
    /// The event, to create it again if the one to be counted has expired.
    entry: PendingEvent,
}

/// Namespace and name of an event.
type Target = (String, String);

impl Write {
    fn target(&self) -> Option<Target> {
        match &self.decision {
            Decision::Drop => None,
            Decision::Create { namespace, name, .. } | Decision::Count { namespace, name, .. } => {
                Some((namespace.clone(), name.clone()))
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

    async fn run(mut self, mut receiver: mpsc::Receiver<PendingEvent>, shutdown: CancellationToken) {
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

    fn take(&mut self, entry: PendingEvent) {
        let write = Write { decision: self.correlator.decide(&entry), entry };
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

/// Tries a few times while the server cannot be reached; what it refuses, it refuses.
async fn send(client: &Client, write: Write) {
    let Write { mut decision, entry } = write;
    for attempt in 0..4 {
        let form = entry.form;
        let result = match &decision {
            Decision::Drop => return,
            Decision::Create { namespace, name, note } => {
                let body = entry.body(namespace, name, note);
                undecoded::send(client, form::requests(namespace).create(&PostParams::default(), body)).await
            }
            Decision::Count { namespace, name, count, at } => {
                let patch = Patch::Merge(form.count(*count, *at));
                let request = form::requests(namespace).patch(name, &PatchParams::default(), &patch);
                undecoded::send(client, request).await
            }
        };
        match result {
            Ok(()) => return,
            // The event has expired since it was last counted.
            Err(error) if error::is_not_found(&error) && matches!(decision, Decision::Count { .. }) => {
                decision = Decision::create(&entry);
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

    use super::*;
    use crate::test_server::TestServer;

    #[tokio::test(start_paused = true)]
    async fn events_recorded_before_a_shutdown_are_written() {
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
        let written = server.objects("/api/v1/namespaces/default/events/settings.");
        assert_eq!(written.len(), 1);
        assert_eq!(written[0]["message"], "quota exceeded");
        assert_eq!(written[0]["source"]["component"], "test-controller");
        assert_eq!(written[0]["count"], 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_of_thousands_loses_none() {
        let server = TestServer::new();
        let shutdown = CancellationToken::new();
        let events = Events::start(server.client(), "host", shutdown.clone());
        let recorder = events.reporting_recorder("test-controller");
        for number in 0..10_000 {
            let mut object = ConfigMap::default();
            object.metadata.name = Some(format!("settings-{number}"));
            (object.metadata.namespace, object.metadata.uid) =
                (Some("default".into()), Some(number.to_string()));
            recorder.event(&object, EventType::Normal, "Scheduled", "Binding", "assigned");
        }
        drop((recorder, events.sender));
        events.tasks.wait().await;
        assert_eq!(server.objects("/api/v1/namespaces/default/events/").len(), 10_000);
    }
}
