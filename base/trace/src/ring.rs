//! Where ended spans are kept: the newest ones, within a fixed number of bytes.

use std::collections::VecDeque;
use std::mem::size_of;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use parking_lot::Mutex;

use crate::block::Block;
use crate::context::{Context, TraceId};
use crate::record::{Head, Kept, Record, Step};

/// The ring of this process. All its components write here, so in a one-process cluster it
/// holds the whole chain.
pub fn ring() -> &'static Ring {
    static RING: LazyLock<Ring> = LazyLock::new(|| Ring::new(Ring::DEFAULT_BYTES));
    &RING
}

/// A bounded store of spans, split into shards so that threads rarely meet on a lock.
///
/// A shard is a row of blocks. The newest takes what ends; where there is no room for another one, the oldest is emptied
/// and used again, so that keeping a span is a copy of some hundred bytes and letting go of one is nothing. A sixteenth of
/// the ring's bytes is the table of writers.
pub struct Ring {
    shards: [Mutex<Shard>; SHARDS],
    bytes_per_shard: usize,
    bytes_per_block: usize,
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
    /// In order, as are the spans of each.
    blocks: VecDeque<Block>,
    bytes: usize,
}

const SHARDS: usize = 4;

impl Ring {
    /// With what the history keeps of the segment that it writes, some 16 MB.
    pub const DEFAULT_BYTES: usize = 12 << 20;

    pub fn new(bytes: usize) -> Self {
        /// What is let go of at once is a small part.
        const BLOCKS: usize = 64;
        let writers = (bytes / 16 / size_of::<Option<(i64, Context)>>()).max(1);
        let bytes_per_shard = bytes * 15 / 16 / SHARDS;
        Ring {
            shards: Default::default(),
            bytes_per_shard,
            bytes_per_block: (bytes_per_shard / BLOCKS).max(8 * size_of::<Head>()),
            next_sequence: AtomicU64::new(1),
            writers: Mutex::default(),
            max_writers: writers,
            followers: Mutex::default(),
            is_followed: AtomicBool::new(false),
        }
    }

    pub fn push(&self, record: &Record) {
        let (head, facts) = record.take_apart();
        self.keep(head, facts.bytes());
    }

    /// Keeps an ended span. Its sequence and the place of its facts are found here.
    pub(crate) fn keep(&self, mut head: Head, facts: &[u8]) {
        let mut shard = self.shards[shard_of_this_thread()].lock();
        // Taken under the lock, so a shard is always in order.
        head.sequence = self.next_sequence.fetch_add(1, Ordering::SeqCst);
        match shard.blocks.back_mut() {
            Some(block) if block.fits(facts) => block.push(head, facts),
            _ => shard.push_behind(head, facts, self.bytes_per_block, self.bytes_per_shard),
        }
        drop(shard);
        if self.is_followed.load(Ordering::SeqCst) {
            self.wake_followers();
        }
    }

    #[cold]
    fn wake_followers(&self) {
        let mut followers = self.followers.lock();
        self.is_followed.store(false, Ordering::SeqCst);
        followers.drain(..).for_each(Waker::wake);
    }

    /// Takes in spans that `source`, another process, has recorded. The caller bounds how many.
    pub fn take_in(&self, records: impl IntoIterator<Item = Record>, source: &str) {
        for record in records {
            self.push(&record.received(source));
        }
    }

    /// Takes in what `server`, another server of this cluster, keeps. It commits too, and is believed about it.
    pub fn take_over(&self, records: impl IntoIterator<Item = Record>, server: &str) {
        for record in records {
            self.push(&record.relayed(server));
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
        self.each_between(sequence, latest, |kept| found.push(kept.record()));
        found.sort_by_key(|record| record.sequence);
        found
    }

    /// Shows, shard by shard, what ended after the one sequence and until the other, which is not after the latest. Who
    /// ends a span meanwhile waits for a block at most.
    pub(crate) fn each_between(&self, after: u64, until: u64, mut see: impl FnMut(Kept<'_>)) {
        for shard in &self.shards {
            let mut seen = after;
            while seen < until {
                let shard = shard.lock();
                let next = shard.blocks.partition_point(|block| block.latest() <= seen);
                let Some(block) = shard.blocks.get(next) else { break };
                block.between(seen, until).for_each(&mut see);
                seen = block.latest();
            }
        }
    }

    /// Copies the spans of these sequences, which are in order, as far as they are still here.
    pub(crate) fn copy(&self, sequences: &[u64], into: &mut Block) {
        into.clear();
        let [Some(&oldest), Some(&newest)] = [sequences.first(), sequences.last()] else { return };
        for shard in &self.shards {
            let shard = shard.lock();
            let first = shard.blocks.partition_point(|block| block.latest() < oldest);
            let mut wanted = sequences.iter().peekable();
            let blocks = shard.blocks.range(first..).take_while(|block| block.earliest() <= newest);
            for kept in blocks.flat_map(|block| block.between(oldest.saturating_sub(1), newest)) {
                while wanted.next_if(|wanted| **wanted < kept.head.sequence).is_some() {}
                if wanted.peek() == Some(&&kept.head.sequence) {
                    into.push(*kept.head, kept.facts);
                }
            }
        }
        into.sort();
    }

    /// Forgets everything up to the record with this sequence: another process has it now.
    pub fn let_go(&self, sequence: u64) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let gone = shard.blocks.partition_point(|block| block.latest() <= sequence);
            let bytes: usize = shard.blocks.drain(..gone).map(|block| block.bytes()).sum();
            shard.bytes -= bytes;
            if let Some(block) = shard.blocks.front_mut() {
                block.let_go(sequence);
            }
        }
    }

    pub fn trace(&self, trace: TraceId) -> Vec<Record> {
        self.matching(|kept| kept.trace() == trace)
    }

    /// Spans about an object, named as [`crate::span::object_key`] does.
    pub fn object(&self, object: &str) -> Vec<Record> {
        self.matching(|kept| kept.object() == Some(object))
    }

    /// Spans that wrote a revision or were caused by it.
    pub fn revision(&self, revision: i64) -> Vec<Record> {
        self.matching(|kept| {
            kept.committed() == Some(revision) || kept.is_caused_by(|cause| cause == revision)
        })
    }

    /// What `wanted` says yes to, by start.
    pub fn matching(&self, wanted: impl Fn(&Kept<'_>) -> bool) -> Vec<Record> {
        let mut found = Vec::new();
        self.each_between(0, self.latest(), |kept| {
            if wanted(&kept) {
                found.push(kept.record());
            }
        });
        found.sort_by_key(|record| (record.start, record.sequence));
        found
    }

    /// Bytes in use, by our own count.
    pub fn bytes(&self) -> usize {
        let writers = self.writers.lock().len() * size_of::<Option<(i64, Context)>>();
        writers + self.shards.iter().map(|shard| shard.lock().bytes).sum::<usize>()
    }
}

impl Shard {
    /// Into another block: a new one while there is room for it, else the oldest.
    #[cold]
    fn push_behind(&mut self, head: Head, facts: &[u8], bytes_per_block: usize, limit: usize) {
        let mut spare = None;
        while self.bytes + bytes_per_block + facts.len() > limit {
            let Some(oldest) = self.blocks.pop_front() else { break };
            self.bytes -= oldest.bytes();
            spare = Some(oldest);
        }
        let mut block = spare
            .filter(|block| block.bytes() <= bytes_per_block)
            .unwrap_or_else(|| Block::with_capacity(bytes_per_block));
        block.clear();
        block.push(head, facts);
        self.bytes += block.bytes();
        self.blocks.push_back(block);
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
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::record::tests::record;
    use crate::value::Value;

    #[test]
    fn what_was_let_go_takes_no_room() {
        let ring = Ring::new(1 << 20);
        for start in 0..100 {
            ring.push(&Record { object: Some("pods/default/a".into()), ..record("step", start) });
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
        ring.push(&record("next", 101));
        assert_eq!(ring.after(100).len(), 1);
    }

    #[test]
    fn memory_is_bounded_and_the_newest_stay() {
        let ring = Ring::new(64 << 10);
        for start in 0..10_000 {
            let mut record = record("step", start);
            record.attributes.push((Cow::Borrowed("text"), Value::from("x".repeat(200))));
            ring.push(&record);
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
                scope.spawn(|| (0..100).for_each(|start| ring.push(&record("step", start))));
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
        ring.push(&record("before", 1));
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
        ring.push(&record("later", 2));
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
        let bytes = kept.take_apart().1.bytes().len();
        assert!(bytes < 4_000, "{bytes} bytes");
    }
}
