//! Decides for each event whether it is written, counted, combined with others, or dropped. No I/O.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use jiff::Timestamp;

use super::PendingEvent;

/// What to do about an entry.
#[derive(Debug, PartialEq)]
pub(super) enum Decision {
    /// The note may have become another.
    Create { namespace: String, name: String, note: String },
    /// Said before: only its count and time change.
    Count { namespace: String, name: String, count: i32, at: Timestamp },
    /// This object has said enough.
    Drop,
}

impl Decision {
    pub fn create(entry: &PendingEvent) -> Self {
        Decision::Create { namespace: entry.namespace(), name: entry.event_name(), note: entry.note.clone() }
    }
}

/// Remembers what was said of late, of at most some thousand objects.
#[derive(Default)]
pub(super) struct Correlator {
    told: Recent<RecordedEvent>,
    /// Different notes of otherwise equal events, and since when they are counted.
    similar: Recent<(u32, Timestamp)>,
    allowances: Recent<Allowance>,
    hasher: RandomState,
}

struct RecordedEvent {
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

    pub fn decide(&mut self, entry: &PendingEvent) -> Decision {
        let kind = self.digest(entry, "");
        let mut identity = self.digest(entry, &entry.note);
        let mut prefix = "";
        if self.series(identity, entry.at).is_none() {
            let (count, since) = self.similar.or_insert(kind, (0, entry.at));
            if age(*since, entry.at) > Self::SIMILAR_WINDOW {
                (*count, *since) = (0, entry.at);
            }
            *count += 1;
            if *count > Self::SIMILAR {
                identity = kind;
                prefix = "(combined from similar events): ";
            }
        }
        if !self.allow(entry) {
            return Decision::Drop;
        }
        if let Some(told) = self.series(identity, entry.at) {
            told.count = told.count.saturating_add(1);
            told.last = entry.at;
            let (namespace, name) = (told.namespace.clone(), told.name.clone());
            return Decision::Count { namespace, name, count: told.count, at: entry.at };
        }
        let (namespace, name) = (entry.namespace(), entry.event_name());
        let told =
            RecordedEvent { namespace: namespace.clone(), name: name.clone(), count: 1, last: entry.at };
        self.told.insert(identity, told);
        Decision::Create { namespace, name, note: format!("{prefix}{}", entry.note) }
    }

    /// The series that an entry of now would go on with.
    fn series(&mut self, identity: u64, now: Timestamp) -> Option<&mut RecordedEvent> {
        self.told.get_mut(identity).filter(|told| age(told.last, now) <= Self::SERIES_ENDS)
    }

    fn allow(&mut self, entry: &PendingEvent) -> bool {
        let key = self.hasher.hash_one((&entry.regarding.uid, entry.controller));
        let allowance = self.allowances.or_insert(key, Allowance { tokens: Self::BURST, at: entry.at });
        let refilled = age(allowance.at, entry.at).as_secs_f64() / Self::REFILL.as_secs_f64();
        allowance.tokens = (allowance.tokens + refilled).min(Self::BURST);
        allowance.at = entry.at;
        if allowance.tokens < 1.0 {
            return false;
        }
        allowance.tokens -= 1.0;
        true
    }

    /// What makes two entries the same. A digest keeps a cluster's worth of names out of memory;
    /// were two ever equal by chance, one event would be counted with another.
    fn digest(&self, entry: &PendingEvent, note: &str) -> u64 {
        let PendingEvent { regarding, related, kind, reason, action, controller, .. } = entry;
        let related = related.as_ref().map(|related| &related.uid);
        let about = (&regarding.uid, &regarding.field_path, &regarding.name, related);
        self.hasher.hash_one((about, kind, reason, action, controller, note))
    }
}

/// The entries used last: at least so many as fit into one generation, at most twice as many.
struct Recent<V> {
    young: HashMap<u64, V>,
    old: HashMap<u64, V>,
}

impl<V> Default for Recent<V> {
    fn default() -> Self {
        Recent { young: HashMap::new(), old: HashMap::new() }
    }
}

impl<V> Recent<V> {
    const GENERATION: usize = 4096;

    fn get_mut(&mut self, key: u64) -> Option<&mut V> {
        if let Some(value) = self.old.remove(&key) {
            self.insert(key, value);
        }
        self.young.get_mut(&key)
    }

    fn or_insert(&mut self, key: u64, value: V) -> &mut V {
        if self.get_mut(key).is_none() {
            self.insert(key, value);
        }
        self.young.get_mut(&key).expect("was found or inserted just now")
    }

    fn insert(&mut self, key: u64, value: V) {
        if self.young.len() >= Self::GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }
}

/// Time that has passed; none if the clock went back.
fn age(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
pub(super) mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::*;
    use crate::EventType;
    use crate::events::form::Form;

    pub(in super::super) fn entry(object: &str, note: &str, seconds: i64) -> PendingEvent {
        PendingEvent {
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
            form: Form::Component,
            at: Timestamp::from_second(1_000_000 + seconds).unwrap(),
        }
    }

    #[test]
    fn the_same_words_are_counted_and_a_silence_ends_the_series() {
        let mut correlator = Correlator::default();
        let Decision::Create { name: first, .. } = correlator.decide(&entry("a", "hello", 0)) else {
            panic!("first is created")
        };
        for (count, seconds) in [(2, 1), (3, 100)] {
            match correlator.decide(&entry("a", "hello", seconds)) {
                Decision::Count { name, count: told, .. } => assert_eq!((name, told), (first.clone(), count)),
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(correlator.decide(&entry("a", "hello", 1000)), Decision::Create { .. }));
        assert!(matches!(correlator.decide(&entry("b", "hello", 1001)), Decision::Create { .. }));
    }

    #[test]
    fn ever_other_words_are_combined() {
        let mut correlator = Correlator::default();
        let mut notes = Vec::new();
        for number in 0..15 {
            let decision = correlator.decide(&entry("a", &format!("pod {number}"), number));
            if let Decision::Create { note, .. } = decision {
                notes.push(note);
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
            (0..100).filter(|_| correlator.decide(&entry("a", "again", 0)) != Decision::Drop).count();
        assert_eq!(written, 25);
        assert_ne!(correlator.decide(&entry("b", "again", 0)), Decision::Drop);
        assert_ne!(correlator.decide(&entry("a", "again", 301)), Decision::Drop);
        assert_eq!(correlator.decide(&entry("a", "again", 302)), Decision::Drop);
    }

    #[test]
    fn memory_is_bounded_however_many_objects_speak() {
        let mut correlator = Correlator::default();
        for number in 0..20_000 {
            correlator.decide(&entry(&format!("object-{number}"), "hello", 0));
        }
        let bound = 2 * Recent::<RecordedEvent>::GENERATION;
        let held = |young: usize, old: usize| assert!(young + old <= bound, "{young} + {old}");
        held(correlator.told.young.len(), correlator.told.old.len());
        held(correlator.similar.young.len(), correlator.similar.old.len());
        held(correlator.allowances.young.len(), correlator.allowances.old.len());
        let again = correlator.decide(&entry("object-19000", "hello", 1));
        assert!(matches!(again, Decision::Count { .. }), "the last thousands are remembered");
    }
}
