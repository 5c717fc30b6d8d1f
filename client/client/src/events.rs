//! Events: what users read in `kubectl describe`. Written by one task per process, never by
//! the loop that has something to say: a slow server must not slow a reconcile.
//!
//! What repeats is counted, not written again (a series); what repeats with ever other words
//! is combined; an object that never falls silent is cut off. `Correlator` decides, a task
//! writes.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error;

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
    const WAITING: usize = 1000;

    /// `instance` tells processes apart: the host's name.
    pub fn start(client: Client, instance: impl Into<String>, shutdown: CancellationToken) -> Self {
        let (sender, receiver) = mpsc::channel(Self::WAITING);
        let tasks = TaskTracker::new();
        // Telling about work is not the work: its requests stay out of the trace.
        let span = ferry_trace::span("events").unsampled();
        tasks.spawn(span.instrument(write_all(client, receiver, shutdown)));
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

/// What to do about an entry.
#[derive(Debug, PartialEq)]
enum Decision {
    Create(Box<Event>),
    /// Said before: only its count and time change.
    Count {
        namespace: String,
        name: String,
        series: EventSeries,
    },
    /// This object has said enough.
    Drop,
}

/// Remembers what was said of late.
#[derive(Default)]
struct Correlator {
    told: HashMap<Identity, Told>,
    /// Different notes of otherwise equal events.
    similar: HashMap<Identity, (u32, Timestamp)>,
    allowances: HashMap<(String, &'static str), Allowance>,
    swept: Option<Timestamp>,
}

/// What makes two entries the same; `note` is empty where only the rest counts.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Identity {
    uid: String,
    field_path: String,
    name: String,
    related: String,
    kind: EventType,
    reason: String,
    action: String,
    controller: &'static str,
    note: String,
}

struct Told {
    namespace: String,
    name: String,
    count: i32,
    last: Timestamp,
}

/// A token bucket per object and component: a burst, then one every few minutes.
struct Allowance {
    tokens: f64,
    at: Timestamp,
}

impl Correlator {
    /// A series that has been silent this long is over; the next is a new event.
    const SERIES_ENDS: Duration = Duration::from_secs(6 * 60);
    /// More different notes than this within the window are combined.
    const SIMILAR: u32 = 10;
    const SIMILAR_WINDOW: Duration = Duration::from_secs(10 * 60);
    const BURST: f64 = 25.0;
    const REFILL: Duration = Duration::from_secs(5 * 60);
    /// The server refuses longer notes.
    const MAX_NOTE: usize = 1024;

    fn decide(&mut self, mut entry: Entry) -> Decision {
        self.sweep(entry.at);
        let mut identity = Identity::of(&entry);
        let same = identity.clone();
        identity.note.clear();
        if !self.told.contains_key(&same) {
            let (count, since) = self.similar.entry(identity.clone()).or_insert((0, entry.at));
            if age(*since, entry.at) > Self::SIMILAR_WINDOW {
                (*count, *since) = (0, entry.at);
            }
            *count += 1;
            if *count <= Self::SIMILAR {
                identity = same;
            } else {
                entry.note.insert_str(0, "(combined from similar events): ");
            }
        } else {
            identity = same;
        }
        if !self.allow(&entry) {
            return Decision::Drop;
        }
        if let Some(told) = self.told.get_mut(&identity) {
            told.count = told.count.saturating_add(1);
            told.last = entry.at;
            let series = EventSeries { count: told.count, last_observed_time: MicroTime(entry.at) };
            return Decision::Count { namespace: told.namespace.clone(), name: told.name.clone(), series };
        }
        let event = entry.into_event();
        let told = Told {
            namespace: event.metadata.namespace.clone().unwrap_or_default(),
            name: event.metadata.name.clone().unwrap_or_default(),
            count: 1,
            last: event.event_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        };
        self.told.insert(identity, told);
        Decision::Create(Box::new(event))
    }

    fn allow(&mut self, entry: &Entry) -> bool {
        let key = (entry.regarding.uid.clone().unwrap_or_default(), entry.controller);
        let allowance = self.allowances.entry(key).or_insert(Allowance { tokens: Self::BURST, at: entry.at });
        let refilled = age(allowance.at, entry.at).as_secs_f64() / Self::REFILL.as_secs_f64();
        allowance.tokens = (allowance.tokens + refilled).min(Self::BURST);
        allowance.at = entry.at;
        if allowance.tokens < 1.0 {
            return false;
        }
        allowance.tokens -= 1.0;
        true
    }

    /// Forgets what is too old to matter, so memory follows what happens and not how long.
    fn sweep(&mut self, now: Timestamp) {
        let due = self.swept.is_none_or(|swept| age(swept, now) > Duration::from_secs(60));
        if due {
            self.swept = Some(now);
            self.told.retain(|_, told| age(told.last, now) <= Self::SERIES_ENDS);
            self.similar.retain(|_, (_, since)| age(*since, now) <= Self::SIMILAR_WINDOW);
            let full = Self::REFILL.mul_f64(Self::BURST);
            self.allowances.retain(|_, allowance| age(allowance.at, now) <= full);
        }
    }
}

impl Identity {
    fn of(entry: &Entry) -> Self {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        Identity {
            uid: text(&entry.regarding.uid),
            field_path: text(&entry.regarding.field_path),
            name: text(&entry.regarding.name),
            related: entry.related.as_ref().map_or(String::new(), |related| text(&related.uid)),
            kind: entry.kind,
            reason: entry.reason.clone(),
            action: entry.action.clone(),
            controller: entry.controller,
            note: entry.note.clone(),
        }
    }
}

impl Entry {
    fn into_event(mut self) -> Event {
        self.note.truncate(self.note.floor_char_boundary(Correlator::MAX_NOTE));
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

/// Time that has passed; none if the clock went back.
fn age(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO)
}

async fn write_all(client: Client, mut receiver: mpsc::Receiver<Entry>, shutdown: CancellationToken) {
    let mut correlator = Correlator::default();
    let writing = async {
        while let Some(entry) = receiver.recv().await {
            write(&client, &mut correlator, entry).await;
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

/// Tries a few times while the server cannot be reached; what it refuses, it refuses.
async fn write(client: &Client, correlator: &mut Correlator, entry: Entry) {
    let again = entry.clone();
    let mut decision = correlator.decide(entry);
    for attempt in 0..4 {
        let result = match &decision {
            Decision::Drop => return,
            Decision::Create(event) => {
                let namespace = event.metadata.namespace.as_deref().unwrap_or("default");
                let events: Api<Event> = Api::namespaced(client.clone(), namespace);
                events.create(&PostParams::default(), event).await
            }
            Decision::Count { namespace, name, series } => {
                let events: Api<Event> = Api::namespaced(client.clone(), namespace);
                events.patch(name, &PatchParams::default(), &Patch::Merge(json!({"series": series}))).await
            }
        };
        match result {
            Ok(_) => return,
            // The event has expired since it was last counted.
            Err(error) if error::is_not_found(&error) && matches!(decision, Decision::Count { .. }) => {
                decision = Decision::Create(Box::new(again.clone().into_event()));
            }
            Err(kube::Error::Api(status)) => {
                tracing::debug!(reason = again.reason, error = status.message, "event refused");
                return;
            }
            Err(error) => {
                tracing::debug!(
                    reason = again.reason,
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

    fn entry(object: &str, note: &str, seconds: i64) -> Entry {
        Entry {
            regarding: ObjectReference {
                name: Some(object.into()),
                uid: Some(object.into()),
                ..Default::default()
            },
            related: None,
            kind: EventType::Normal,
            reason: "SuccessfulCreate".into(),
            action: "Create".into(),
            note: note.into(),
            controller: "test",
            instance: "host".into(),
            at: Timestamp::from_second(1_000_000 + seconds).unwrap(),
        }
    }

    #[test]
    fn the_same_words_are_counted_and_a_silence_ends_the_series() {
        let mut correlator = Correlator::default();
        let Decision::Create(first) = correlator.decide(entry("a", "hello", 0)) else {
            panic!("first is created")
        };
        for (count, seconds) in [(2, 1), (3, 100)] {
            match correlator.decide(entry("a", "hello", seconds)) {
                Decision::Count { name, series, .. } => {
                    assert_eq!((Some(name), series.count), (first.metadata.name.clone(), count));
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(correlator.decide(entry("a", "hello", 1000)), Decision::Create(_)));
        assert!(matches!(correlator.decide(entry("b", "hello", 1001)), Decision::Create(_)));
    }

    #[test]
    fn ever_other_words_are_combined() {
        let mut correlator = Correlator::default();
        let mut notes = Vec::new();
        for number in 0..15 {
            if let Decision::Create(event) = correlator.decide(entry("a", &format!("pod {number}"), number)) {
                notes.push(event.note.unwrap());
            }
        }
        assert_eq!(notes.len(), 11);
        assert_eq!(notes[9], "pod 9");
        assert_eq!(notes[10], "(combined from similar events): pod 10");
    }

    #[test]
    fn an_object_that_never_falls_silent_is_cut_off_and_others_are_not() {
        let mut correlator = Correlator::default();
        let written =
            (0..100).filter(|_| correlator.decide(entry("a", "again", 0)) != Decision::Drop).count();
        assert_eq!(written, 25);
        assert_ne!(correlator.decide(entry("b", "again", 0)), Decision::Drop);
        assert_ne!(correlator.decide(entry("a", "again", 301)), Decision::Drop);
        assert_eq!(correlator.decide(entry("a", "again", 302)), Decision::Drop);
    }

    #[test]
    fn memory_follows_what_happens_and_not_how_long() {
        let mut correlator = Correlator::default();
        for number in 0..1000 {
            correlator.decide(entry(&format!("object-{number}"), "hello", number * 100));
        }
        assert!(
            correlator.told.len() < 10 && correlator.similar.len() < 10 && correlator.allowances.len() < 100
        );
    }

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
}
