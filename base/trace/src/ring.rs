//! Where ended spans are kept: the newest ones, within a fixed number of bytes.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::mem::size_of;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::context::{Context, SpanId, TraceId};
use crate::value::{Value, cut};

/// The ring of this process. All its components write here, so in a one-process cluster it
/// holds the whole chain.
pub fn ring() -> &'static Ring {
    static RING: LazyLock<Ring> = LazyLock::new(|| Ring::new(Ring::DEFAULT_BYTES));
    &RING
}

/// An ended span.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub name: Cow<'static, str>,
    pub trace: TraceId,
    pub span: SpanId,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub parent: Option<SpanId>,
    /// Nanoseconds since 1970.
    pub start: u64,
    /// Nanoseconds, by a clock that does not jump.
    pub duration: u64,
    /// Position in this process' order of ending; what a follower asks to continue from.
    pub sequence: u64,
    /// `resource/namespace/name`, or `resource/name` for cluster scope.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub object: Option<Box<str>>,
    /// The revisions this step answers.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub causes: Vec<i64>,
    /// The revision this step wrote.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub committed: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<Box<str>>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub attributes: Vec<(Cow<'static, str>, Value)>,
    /// Who sent it, where another process did; this process' own have none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub source: Option<Box<str>>,
    /// Another server told it, and has told all others too: it is not told again.
    #[serde(skip)]
    pub is_relayed: bool,
}

impl Record {
    pub const MAX_CAUSES: usize = 8;
    const MAX_NAME: usize = 64;
    const MAX_ATTRIBUTES: usize = 16;

    pub fn attribute(&self, key: &str) -> Option<&Value> {
        self.attributes.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The attribute, where it is text.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.attribute(key).and_then(Value::as_str)
    }

    /// Nanoseconds since 1970.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.duration)
    }

    fn heap(&self) -> usize {
        let text = |text: &Option<Box<str>>| text.as_deref().map_or(0, str::len);
        let name = |name: &Cow<'static, str>| match name {
            Cow::Borrowed(_) => 0,
            Cow::Owned(name) => name.capacity(),
        };
        text(&self.object)
            + text(&self.error)
            + text(&self.source)
            + name(&self.name)
            + self.causes.capacity() * size_of::<i64>()
            + self.attributes.capacity() * size_of::<(Cow<'static, str>, Value)>()
            + self.attributes.iter().map(|(key, value)| name(key) + value.heap()).sum::<usize>()
    }

    /// What another process says. Only the server that commits knows which span wrote a revision, so nobody else is
    /// believed about that.
    fn received(mut self, source: &str) -> Self {
        self.committed = None;
        self.source = Some(cut(source).into());
        self.bounded()
    }

    /// What another server says, of itself and of those who handed in their spans there.
    fn relayed(mut self, server: &str) -> Self {
        self.source = Some(cut(self.source.as_deref().unwrap_or(server)).into());
        self.is_relayed = true;
        self.bounded()
    }

    /// Whether this one is told of two records with one id. Whoever hands in spans knows the ids of its own requests and may
    /// use them again; what it sends must not hide what a server recorded.
    pub fn outranks(&self, other: &Record) -> bool {
        let rank = |record: &Record| (record.source.is_none(), record.committed.is_some());
        rank(self) > rank(other)
    }

    /// Within the bounds that our own spans keep by construction.
    fn bounded(mut self) -> Self {
        let shorten = |name: &mut Cow<'static, str>| {
            let cut = name[..name.floor_char_boundary(Self::MAX_NAME)].to_owned();
            *name = Cow::Owned(cut);
        };
        shorten(&mut self.name);
        self.attributes.truncate(Self::MAX_ATTRIBUTES);
        self.attributes.shrink_to_fit();
        self.attributes.iter_mut().for_each(|(key, _)| shorten(key));
        self.causes.truncate(Self::MAX_CAUSES);
        self.causes.shrink_to_fit();
        self.object = self.object.map(|object| cut(&object).into());
        self.error = self.error.map(|error| cut(&error).into());
        self
    }
}

/// A bounded store of records, split into shards so that threads rarely meet on a lock.
///
/// Half of its bytes are for the records themselves, the other half for what they hold on
/// the heap (object names, attributes); a small part is the table of writers. Whichever half
/// is full first makes a shard drop its oldest.
pub struct Ring {
    shards: [Mutex<Shard>; SHARDS],
    slots_per_shard: usize,
    heap_per_shard: usize,
    next_sequence: AtomicU64,
    /// Revision → the span that wrote it, for the latest revisions, at `revision % len`. Empty in a process
    /// that writes no revisions.
    writers: Mutex<Vec<Option<(i64, Context)>>>,
    max_writers: usize,
    followers: Mutex<Vec<Waker>>,
    /// Whether anyone waits in `followers`, so that a push need not lock it to find out.
    is_followed: AtomicBool,
}

#[derive(Default)]
struct Shard {
    records: VecDeque<Record>,
    heap: usize,
}

const SHARDS: usize = 4;

impl Ring {
    pub const DEFAULT_BYTES: usize = 16 << 20;

    pub fn new(bytes: usize) -> Self {
        let writers = (bytes / 16 / size_of::<Option<(i64, Context)>>()).max(1);
        let half_shard = bytes * 15 / 16 / 2 / SHARDS;
        // A VecDeque grows by doubling, so a power of two never reserves room it may not use.
        let slots = half_shard / size_of::<Record>();
        Ring {
            shards: Default::default(),
            slots_per_shard: if slots < 2 { 1 } else { 1 << slots.ilog2() },
            heap_per_shard: half_shard,
            next_sequence: AtomicU64::new(1),
            writers: Mutex::default(),
            max_writers: writers,
            followers: Mutex::default(),
            is_followed: AtomicBool::new(false),
        }
    }

    pub fn push(&self, mut record: Record) {
        let heap = record.heap();
        let mut shard = self.shards[shard_of_this_thread()].lock();
        // Taken under the lock, so a shard is always in order.
        record.sequence = self.next_sequence.fetch_add(1, Ordering::SeqCst);
        while shard.records.len() >= self.slots_per_shard
            || (shard.heap + heap > self.heap_per_shard && !shard.records.is_empty())
        {
            if let Some(oldest) = shard.records.pop_front() {
                shard.heap -= oldest.heap();
            }
        }
        shard.heap += heap;
        shard.records.push_back(record);
        drop(shard);
        if self.is_followed.load(Ordering::SeqCst) {
            let mut followers = self.followers.lock();
            self.is_followed.store(false, Ordering::SeqCst);
            followers.drain(..).for_each(Waker::wake);
        }
    }

    /// Takes in spans that `source`, another process, has recorded. The caller bounds how many.
    pub fn take_in(&self, records: impl IntoIterator<Item = Record>, source: &str) {
        for record in records {
            self.push(record.received(source));
        }
    }

    /// Takes in what `server`, another server of this cluster, keeps. It commits too, and is believed about it.
    pub fn take_over(&self, records: impl IntoIterator<Item = Record>, server: &str) {
        for record in records {
            self.push(record.relayed(server));
        }
    }

    /// The sequence of what ended last; 0 where nothing has.
    pub fn latest(&self) -> u64 {
        self.next_sequence.load(Ordering::SeqCst) - 1
    }

    /// Returns when something has ended after the record with this sequence.
    pub async fn ended_after(&self, sequence: u64) {
        std::future::poll_fn(|context| {
            let mut followers = self.followers.lock();
            // Said before looking: whoever pushes after our look sees it, and wakes us.
            self.is_followed.store(true, Ordering::SeqCst);
            if self.latest() > sequence {
                return Poll::Ready(());
            }
            if !followers.iter().any(|follower| follower.will_wake(context.waker())) {
                followers.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Remembers which span wrote a revision. Said by [`crate::Span::committed`].
    pub(crate) fn note_writer(&self, revision: i64, context: Context) {
        let mut writers = self.writers.lock();
        if writers.is_empty() {
            *writers = vec![None; self.max_writers];
        }
        let slot = revision.rem_euclid(writers.len() as i64) as usize;
        writers[slot] = Some((revision, context));
    }

    /// The span that wrote `revision`, as far back as is remembered.
    pub fn writer(&self, revision: i64) -> Option<Context> {
        let writers = self.writers.lock();
        let slot = revision.rem_euclid(self.max_writers as i64) as usize;
        writers
            .get(slot)
            .copied()
            .flatten()
            .filter(|(written, _)| *written == revision)
            .map(|(_, context)| context)
    }

    /// Everything that is kept, by start.
    pub fn all(&self) -> Vec<Record> {
        self.matching(|_| true)
    }

    /// What ended after the record with this sequence; a follower starts with 0.
    pub fn after(&self, sequence: u64) -> Vec<Record> {
        // What ends while the shards are read is left for the next call: a follower that saw it in one shard would
        // go on behind it and miss what ended before it in a shard that was read already.
        let latest = self.latest();
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let first = shard.records.partition_point(|record| record.sequence <= sequence);
            let last = shard.records.partition_point(|record| record.sequence <= latest);
            found.extend(shard.records.range(first..last.max(first)).cloned());
        }
        found.sort_by_key(|record| record.sequence);
        found
    }

    /// What `outline` says of each of them, with their sequences, in the order in which they ended.
    pub fn outlines_after<T>(&self, sequence: u64, outline: impl Fn(&Record) -> T) -> Vec<(u64, T)> {
        let latest = self.latest();
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let first = shard.records.partition_point(|record| record.sequence <= sequence);
            let ended = shard.records.range(first..).take_while(|record| record.sequence <= latest);
            found.extend(ended.map(|record| (record.sequence, outline(record))));
        }
        found.sort_by_key(|(sequence, _)| *sequence);
        found
    }

    /// The records of these sequences, which are in order, as far as they are still here.
    pub fn of_sequences(&self, sequences: &[u64]) -> Vec<Record> {
        let Some(&oldest) = sequences.first() else { return Vec::new() };
        let mut found = Vec::with_capacity(sequences.len());
        for shard in &self.shards {
            let shard = shard.lock();
            let first = shard.records.partition_point(|record| record.sequence < oldest);
            let mut wanted = sequences.iter().peekable();
            for record in shard.records.range(first..) {
                while wanted.next_if(|wanted| **wanted < record.sequence).is_some() {}
                match wanted.peek() {
                    None => break,
                    Some(wanted) if **wanted == record.sequence => found.push(record.clone()),
                    Some(_) => {}
                }
            }
        }
        found.sort_by_key(|record| record.sequence);
        found
    }

    /// Forgets everything up to the record with this sequence: another process has it now.
    pub fn let_go(&self, sequence: u64) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let gone = shard.records.partition_point(|record| record.sequence <= sequence);
            let heap: usize = shard.records.drain(..gone).map(|record| record.heap()).sum();
            shard.heap -= heap;
            if shard.records.len() < shard.records.capacity() / 8 {
                shard.records.shrink_to_fit();
            }
        }
    }

    pub fn trace(&self, trace: TraceId) -> Vec<Record> {
        self.matching(|record| record.trace == trace)
    }

    /// Spans about an object, named as [`crate::span::object_key`] does.
    pub fn object(&self, object: &str) -> Vec<Record> {
        self.matching(|record| record.object.as_deref() == Some(object))
    }

    /// Spans that wrote a revision or were caused by it.
    pub fn revision(&self, revision: i64) -> Vec<Record> {
        self.matching(|record| record.committed == Some(revision) || record.causes.contains(&revision))
    }

    /// What `wanted` says yes to, by start.
    pub fn matching(&self, wanted: impl Fn(&Record) -> bool) -> Vec<Record> {
        let mut found = Vec::new();
        for shard in &self.shards {
            found.extend(shard.lock().records.iter().filter(|record| wanted(record)).cloned());
        }
        found.sort_by_key(|record| (record.start, record.sequence));
        found
    }

    /// Bytes in use, by our own count.
    pub fn bytes(&self) -> usize {
        let writers = self.writers.lock().len() * size_of::<Option<(i64, Context)>>();
        let shards = self.shards.iter().map(|shard| {
            let shard = shard.lock();
            shard.heap + shard.records.capacity() * size_of::<Record>()
        });
        writers + shards.sum::<usize>()
    }
}

fn shard_of_this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    SHARD.with(|shard| *shard)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record(name: &'static str, start: u64) -> Record {
        let context = Context::generate();
        Record {
            name: Cow::Borrowed(name),
            trace: context.trace,
            span: context.span,
            parent: None,
            start,
            duration: 1,
            sequence: 0,
            object: None,
            causes: Vec::new(),
            committed: None,
            error: None,
            attributes: Vec::new(),
            source: None,
            is_relayed: false,
        }
    }

    #[test]
    fn what_was_let_go_takes_no_room() {
        let ring = Ring::new(1 << 20);
        for start in 0..100 {
            ring.push(Record { object: Some("pods/default/a".into()), ..record("step", start) });
        }
        let full = ring.bytes();
        ring.let_go(90);
        assert_eq!(
            ring.all().iter().map(|record| record.sequence).collect::<Vec<_>>(),
            Vec::from_iter(91..=100)
        );
        ring.let_go(100);
        assert!(ring.all().is_empty());
        assert!(ring.bytes() < full / 10, "{} of {full}", ring.bytes());
        ring.push(record("next", 101));
        assert_eq!(ring.after(100).len(), 1);
    }

    #[test]
    fn memory_is_bounded_and_the_newest_stay() {
        let ring = Ring::new(64 << 10);
        for start in 0..10_000 {
            let mut record = record("step", start);
            record.attributes.push((Cow::Borrowed("text"), Value::from("x".repeat(200))));
            ring.push(record);
        }
        assert!(ring.bytes() <= 64 << 10, "{} bytes", ring.bytes());
        let kept = ring.all();
        assert!(kept.len() > 10, "only {} kept", kept.len());
        assert_eq!(kept.last().map(|record| record.start), Some(9_999));
    }

    #[test]
    fn many_threads_lose_nothing_while_there_is_room() {
        let ring = Ring::new(4 << 20);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..100).for_each(|start| ring.push(record("step", start))));
            }
        });
        assert_eq!(ring.all().len(), 800);
        let sequences: Vec<u64> = ring.after(0).iter().map(|record| record.sequence).collect();
        assert_eq!(sequences, (1..=800).collect::<Vec<u64>>());
        assert_eq!(ring.after(790).len(), 10);
    }

    #[test]
    fn the_table_of_writers_forgets_the_oldest_and_never_lies() {
        let ring = Ring::new(16 << 10);
        let contexts: Vec<Context> = (0..1000).map(|_| Context::generate()).collect();
        for (revision, context) in contexts.iter().enumerate() {
            ring.note_writer(revision as i64, *context);
        }
        assert_eq!(ring.writer(999), Some(contexts[999]));
        assert_eq!(ring.writer(0), None);
        assert_eq!(ring.writer(-1), None);
    }

    #[tokio::test]
    async fn a_follower_hears_of_what_ends() {
        let ring = std::sync::Arc::new(Ring::new(1 << 20));
        ring.push(record("before", 1));
        ring.ended_after(0).await;
        let latest = ring.latest();
        let follower = tokio::spawn({
            let ring = ring.clone();
            async move {
                ring.ended_after(latest).await;
                ring.after(latest)
            }
        });
        while !ring.is_followed.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
        ring.push(record("later", 2));
        assert_eq!(follower.await.unwrap()[0].name, "later");
    }

    #[test]
    fn another_process_is_bounded_marked_and_not_believed_about_revisions() {
        let ring = Ring::new(1 << 20);
        let mut sent = record("kubectl.command", 1);
        sent.name = Cow::Owned("n".repeat(5_000));
        (sent.committed, sent.causes) = (Some(7), (0..100).collect());
        sent.error = Some("e".repeat(5_000).into());
        sent.attributes = (0..100).map(|n| (Cow::Owned("k".repeat(500)), Value::from(n))).collect();
        ring.take_in([sent], "alice");
        let kept = &ring.all()[0];
        assert_eq!((kept.committed, kept.source.as_deref()), (None, Some("alice")));
        assert!(kept.heap() < 4_000, "{} bytes", kept.heap());
    }

    #[test]
    fn a_record_survives_json() {
        let mut original = record("step", 5);
        original.attributes.push((Cow::Borrowed("count"), Value::from(3)));
        original.causes.push(12);
        let json = serde_json::to_string(&original).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&json).unwrap(), original);
    }
}
