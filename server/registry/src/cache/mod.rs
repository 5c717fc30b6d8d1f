//! The watch cache of one resource: an ordered map of current objects and a ring of the latest events. Readers see both as
//! immutable.
//!
//! Writers never wait for readers. A list works on a snapshot; a watcher holds a position in the ring and is woken by new
//! events. A watcher whose events left the ring before it read them gets 410 Gone.

pub mod derived;
pub mod entry;
pub mod filter;
pub mod follow;
pub mod log;
pub mod peek;
pub mod pending_writes;
pub mod recent;
pub mod watcher;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use ferry_store::Revision;
use imbl::OrdMap;
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

pub use derived::Derived;
pub use entry::{Encoding, Entry, Form};
pub use filter::Filter;
pub use follow::{Delta, follow, until};
use watcher::Waiting;
pub use watcher::{Delivered, Watcher};

pub type Snapshot = OrdMap<Arc<str>, Arc<Entry>>;

/// The ring keeps this many events, or fewer when they are large; a reconnecting client within this
/// window resumes, a later one lists again.
const RING_EVENTS: usize = 4096;
const RING_BYTES: usize = 8 << 20;
const RING_EVENTS_AT_LEAST: usize = 128;

/// Unfinished lists whose pages come from memory; older ones come from the store's history.
const REMEMBERED: usize = 16;

pub struct Cache {
    state: RwLock<State>,
    /// The position of the next event, for the many who only ask whether there is one: a lock, even to read, is a write
    /// that the processors pass between them.
    published: AtomicU64,
    /// The resource is gone.
    closed: AtomicBool,
    /// Who waits for events of which scope.
    /// Taken after `state` where both are needed.
    scopes: Mutex<HashMap<WakeScope, Vec<Arc<Waiting>>>>,
    /// Snapshots that pages of unfinished lists come from, newest last.
    remembered: Mutex<VecDeque<(Revision, Snapshot)>>,
    paths: peek::Paths,
    /// The selectable field whose equality watchers are grouped by (a pod's node).
    grouped_by: Option<usize>,
}

struct State {
    snapshot: Snapshot,
    ring: VecDeque<Arc<Event>>,
    ring_bytes: usize,
    /// Of all objects, as they are served.
    bytes: usize,
    /// The position of the next event.
    next: u64,
    /// The newest revision that touched this resource.
    revision: Revision,
    /// Events up to here are not in the ring any more.
    forgotten: Revision,
    /// The revision at which everything was last read from the store.
    loaded: Revision,
    /// Keys whose stored value is no object of the kind. They are not served, but whoever decides by what there is must
    /// know that something is missing.
    unreadable: BTreeSet<Arc<str>>,
}

/// A change of one object.
pub struct Event {
    pub revision: Revision,
    /// The object after the change; as it was, when it is deleted.
    pub entry: Arc<Entry>,
    pub previous: Option<Arc<Entry>>,
    pub deleted: bool,
    departed: OnceLock<Arc<Entry>>,
    frames: OnceLock<Box<Frame>>,
}

/// An event as written for one sort of watcher; once, for all of them. They are few sorts, and hundreds of watchers read
/// them at a time: a chain that only grows needs no lock.
struct Frame {
    change: Change,
    form: Form,
    bytes: Bytes,
    next: OnceLock<Box<Frame>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Added,
    Modified,
    Deleted,
}

/// Whom an event wakes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum WakeScope {
    All,
    Namespace(Box<str>),
    Object(Arc<str>),
    Group(Box<str>),
}

impl Cache {
    pub fn new(paths: peek::Paths, grouped_by: Option<usize>) -> Cache {
        Cache {
            state: RwLock::new(State {
                snapshot: Snapshot::new(),
                ring: VecDeque::new(),
                ring_bytes: 0,
                bytes: 0,
                next: 0,
                revision: Revision(0),
                forgotten: Revision(0),
                loaded: Revision(0),
                unreadable: BTreeSet::new(),
            }),
            published: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            scopes: Mutex::default(),
            remembered: Mutex::default(),
            paths,
            grouped_by,
        }
    }

    pub fn snapshot(&self) -> (Snapshot, Revision) {
        let state = self.state.read();
        (state.snapshot.clone(), state.revision)
    }

    /// The newest revision that touched this resource.
    pub fn revision(&self) -> Revision {
        self.state.read().revision
    }

    pub fn loaded(&self) -> Revision {
        self.state.read().loaded
    }

    pub fn get(&self, key: &str) -> Option<Arc<Entry>> {
        self.state.read().snapshot.get(key).cloned()
    }

    /// The size of all objects, as they are served.
    pub fn bytes(&self) -> usize {
        self.state.read().bytes
    }

    pub fn len(&self) -> usize {
        self.state.read().snapshot.len()
    }

    /// The key of an object that is stored and cannot be read.
    pub fn unreadable(&self) -> Option<Arc<str>> {
        self.state.read().unreadable.first().cloned()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keeps a snapshot for the next page of its list. Snapshots share what did not change.
    pub fn remember(&self, revision: Revision, snapshot: &Snapshot) {
        let mut remembered = self.remembered.lock();
        if remembered.iter().any(|(have, _)| *have == revision) {
            return;
        }
        if remembered.len() == REMEMBERED {
            remembered.pop_front();
        }
        remembered.push_back((revision, snapshot.clone()));
    }

    /// The objects at `revision`, when that is now or a list of then is unfinished. `applied` is how far
    /// the log has come.
    pub fn recall(&self, revision: Revision, applied: Revision) -> Option<Snapshot> {
        if let Some((_, snapshot)) = self.remembered.lock().iter().find(|(have, _)| *have == revision) {
            return Some(snapshot.clone());
        }
        let (snapshot, touched) = self.snapshot();
        (touched <= revision && revision <= applied).then_some(snapshot)
    }

    pub fn paths(&self) -> &peek::Paths {
        &self.paths
    }

    /// Nothing is written here any more: watchers get what they have not seen yet, and then `Gone`.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.scopes.lock().values().flatten().for_each(|waiting| waiting.wake());
    }

    /// Replaces everything, after a first list or when the log was cut off. Watchers of before are told
    /// to start over, since what happened in between is not known. Objects that cannot be read are named by their key.
    pub fn reset(&self, read: impl IntoIterator<Item = Result<Entry, Arc<str>>>, revision: Revision) {
        let (mut snapshot, mut unreadable) = (Snapshot::new(), BTreeSet::new());
        for read in read {
            match read {
                Ok(entry) => {
                    snapshot.insert(entry.key.clone(), Arc::new(entry));
                }
                Err(key) => {
                    unreadable.insert(key);
                }
            }
        }
        let mut state = self.state.write();
        state.bytes = snapshot.values().map(|entry| entry.size()).sum();
        state.snapshot = snapshot;
        state.unreadable = unreadable;
        state.ring.clear();
        state.ring_bytes = 0;
        // What nobody knows has a position that is never in the ring.
        state.next += 1;
        state.revision = revision;
        state.forgotten = revision;
        state.loaded = revision;
        self.published.store(state.next, Ordering::Release);
        let scopes = self.scopes.lock();
        let all = || scopes.values().flatten();
        all().for_each(|waiting| waiting.note(state.next - 1));
        drop(state);
        all().for_each(|waiting| waiting.wake());
    }

    /// Takes in one put. Returns the entry.
    pub fn put(&self, entry: Entry) -> Arc<Entry> {
        let entry = Arc::new(entry);
        let mut state = self.state.write();
        let previous = state.snapshot.insert(entry.key.clone(), entry.clone());
        state.bytes += entry.size();
        state.bytes -= previous.as_ref().map_or(0, |previous| previous.size());
        state.unreadable.remove(&entry.key);
        self.publish(state, Event::new(entry.clone(), previous, false));
        entry
    }

    /// Takes in one deletion. A key that is not there was deleted before.
    pub fn delete(&self, key: &str, revision: Revision) {
        self.remove(key, revision, false);
    }

    /// Takes in one put of a value that cannot be read: what was there before is there no more.
    pub fn put_unreadable(&self, key: &str, revision: Revision) {
        self.remove(key, revision, true);
    }

    fn remove(&self, key: &str, revision: Revision, unreadable: bool) {
        let mut state = self.state.write();
        let changed = match unreadable {
            true => state.unreadable.insert(key.into()),
            false => state.unreadable.remove(key),
        };
        if changed {
            state.revision = revision;
        }
        let Some(previous) = state.snapshot.remove(key) else { return };
        state.bytes -= previous.size();
        let entry = Arc::new(previous.deleted_at(revision));
        self.publish(state, Event::new(entry, Some(previous), true));
    }

    /// Puts an event into the ring and wakes those whose scope it is of.
    fn publish(&self, mut state: RwLockWriteGuard<'_, State>, event: Event) {
        let (entry, previous) = (event.entry.clone(), event.previous.clone());
        let position = state.next;
        state.push(event);
        self.published.store(state.next, Ordering::Release);
        let scopes = self.scopes.lock();
        let group_of = |entry: &Entry| self.grouped_by.map(|field| entry.fields[field].clone());
        let group = group_of(&entry);
        let group_before =
            previous.as_deref().and_then(group_of).filter(|before| Some(before) != group.as_ref());
        let namespace = Some(entry.namespace()).filter(|namespace| !namespace.is_empty());
        let woken = [
            Some(WakeScope::All),
            Some(WakeScope::Object(entry.key.clone())),
            namespace.map(|namespace| WakeScope::Namespace(namespace.into())),
            group.map(WakeScope::Group),
            group_before.map(WakeScope::Group),
        ]
        .map(|scope| scope.and_then(|scope| scopes.get(&scope)));
        let [_, narrow @ ..] = &woken;
        // Noted before anybody can look at the ring again, and so before the event can leave it.
        narrow.iter().flatten().copied().flatten().for_each(|waiting| waiting.note(position));
        drop(state);
        woken.iter().flatten().copied().flatten().for_each(|waiting| waiting.wake());
    }
}

impl State {
    fn push(&mut self, event: Event) {
        self.revision = event.revision;
        self.ring_bytes += event.entry.size();
        self.ring.push_back(Arc::new(event));
        self.next += 1;
        while self.ring.len() > RING_EVENTS
            || (self.ring_bytes > RING_BYTES && self.ring.len() > RING_EVENTS_AT_LEAST)
        {
            if let Some(old) = self.ring.pop_front() {
                self.ring_bytes -= old.entry.size();
                self.forgotten = old.revision;
            }
        }
    }
}

impl Event {
    fn new(entry: Arc<Entry>, previous: Option<Arc<Entry>>, deleted: bool) -> Event {
        Event {
            revision: entry.revision,
            entry,
            previous,
            deleted,
            departed: OnceLock::new(),
            frames: OnceLock::new(),
        }
    }

    /// What `filter` sees of this event: an object that begins to match is added, one that ceases to
    /// match is deleted.
    pub fn seen_through(&self, filter: &Filter) -> Option<Change> {
        let before = self.previous.as_deref().is_some_and(|previous| filter.matches(previous));
        let after = !self.deleted && filter.matches(&self.entry);
        Change::between(before, after)
    }

    /// The object that a watcher is shown: one that left its selector is shown as it last matched, at the
    /// revision of the change.
    pub fn shown(&self, change: Change) -> Arc<Entry> {
        match (&self.previous, change) {
            (Some(previous), Change::Deleted) if !self.deleted => {
                self.departed.get_or_init(|| Arc::new(previous.deleted_at(self.revision))).clone()
            }
            _ => self.entry.clone(),
        }
    }

    /// The event as written for one sort of watcher, made by `make` when it is the first.
    pub fn frame<E>(
        &self,
        change: Change,
        form: &Form,
        make: impl FnOnce(&Entry) -> Result<Bytes, E>,
    ) -> Result<Bytes, E> {
        let mut place = &self.frames;
        while let Some(frame) = place.get() {
            if frame.change == change && frame.form == *form {
                return Ok(frame.bytes.clone());
            }
            place = &frame.next;
        }
        let bytes = make(&self.shown(change))?;
        let mut frame =
            Box::new(Frame { change, form: form.clone(), bytes: bytes.clone(), next: OnceLock::new() });
        // Two watchers may make it at once; the result is the same.
        while let Err(refused) = place.set(frame) {
            frame = refused;
            place = &place.get().expect("the place is taken").next;
        }
        Ok(bytes)
    }
}

impl Change {
    /// What becomes of an object for those who see it before, after, both or neither.
    pub fn between(before: bool, after: bool) -> Option<Change> {
        match (before, after) {
            (false, true) => Some(Change::Added),
            (true, true) => Some(Change::Modified),
            (true, false) => Some(Change::Deleted),
            (false, false) => None,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Change::Added => "ADDED",
            Change::Modified => "MODIFIED",
            Change::Deleted => "DELETED",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_encoded_once_for_each_format() {
        let entry = Entry::from_stored(
            "ns/a".into(),
            &Bytes::from_static(br#"{"apiVersion":"v1","kind":"Pod","metadata":{}}"#),
            Revision(1),
            &peek::Paths::new(&[]),
        );
        let event = Event::new(Arc::new(entry.expect("valid JSON")), None, false);
        let form = |version: &str, encoding| Form { version: version.into(), encoding };
        let sorts = [
            (Change::Added, form("v1", Encoding::Json)),
            (Change::Modified, form("v1", Encoding::Json)),
            (Change::Added, form("v2", Encoding::Json)),
            (Change::Added, form("v1", Encoding::Protobuf)),
        ];
        for (number, (change, form)) in sorts.iter().enumerate() {
            let made = event.frame::<()>(*change, form, |_| Ok(number.to_string().into()));
            assert_eq!(made, Ok(number.to_string().into()));
        }
        for (number, (change, form)) in sorts.iter().enumerate() {
            let kept = event.frame::<()>(*change, form, |_| panic!("made twice"));
            assert_eq!(kept, Ok(number.to_string().into()));
        }
    }
}
