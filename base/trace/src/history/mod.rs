//! What happened in the last days: the spans of the ring on disk, bounded in bytes and age.
//!
//! ```text
//!              every half second                  1 MB each
//!  ring ──▶ writer (a thread of its own) ──▶ segments ──┐
//!    │                                       + indexes  ├──▶ find (by key and time) ──▶ gather (the causal chain)
//!    └──────────────────────────────────────────────────┘
//! ```
//!
//! Of each write the steps are kept that say something a day later ([`choice`]), a fifth of them.
//!
//! Nothing is added to a request: the writer reads the ring, as any follower does, and what the ring lets go of before
//! the writer comes is counted ([`History::dropped`]). A crash loses what ended in the last half second. A segment
//! that is full gets an index beside it, a sorted list of hashes of the objects, uids, traces, revisions and users that
//! occur in it, so that a question reads the segments that may answer it and no others.

mod choice;
pub(crate) mod codec;
mod gather;
mod index;
mod retention;
mod segment;
mod texts;
mod writer;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

pub use gather::{Direction, gather};
pub use retention::{Retention, RetentionError};

use crate::context::{SpanId, TraceId};
use crate::record::{Record, Step};
use crate::ring::{Ring, ring};
use index::{Index, Key};
use segment::Segment;
use writer::Writer;

/// The spans that a server keeps on disk, and those in the ring. Dropping it writes what is left and ends the writer.
pub struct History {
    directory: PathBuf,
    ring: &'static Ring,
    writer: Writer,
    written_until: u64,
}

impl History {
    /// Starts to write what ends from now on into `directory`, which is made if it is not there.
    pub fn start(directory: impl Into<PathBuf>, retention: Retention) -> io::Result<History> {
        History::of_ring(directory.into(), retention, ring())
    }

    fn of_ring(directory: PathBuf, retention: Retention, ring: &'static Ring) -> io::Result<History> {
        segment::make_directory(&directory)?;
        let writer = Writer::start(directory.clone(), retention, ring)?;
        let last = match segment::list(&directory)?.last() {
            Some(segment) => segment.index()?,
            None => None,
        };
        let written_until = last.map_or(0, |index| index.last_end);
        Ok(History { directory, ring, writer, written_until })
    }

    /// What is on disk and in the ring. Blocks: it reads files.
    pub fn find(&self, wanted: &Wanted) -> io::Result<Found> {
        let mut found = read(&self.directory, wanted)?;
        found.add(self.ring.matching(|kept| wanted.takes(kept)));
        Ok(found)
    }

    /// How many spans the ring let go of before they were written.
    pub fn dropped(&self) -> u64 {
        self.writer.dropped()
    }

    /// What keeps the writer from writing: a full disk, say.
    pub fn failure(&self) -> Option<String> {
        self.writer.failure()
    }

    /// When the last span ended that was on disk when this history began: nanoseconds since 1970, 0 where there was none.
    pub fn written_until(&self) -> u64 {
        self.written_until
    }

    /// Writes what has ended so far, and ends.
    pub fn close(&self) {
        self.writer.stop();
    }
}

/// Which records: those that match any of the sets, within the time; with no set at all, everything in the time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub objects: HashSet<String>,
    pub uids: HashSet<String>,
    pub traces: HashSet<TraceId>,
    /// Written, or answered.
    pub revisions: HashSet<i64>,
    pub users: HashSet<String>,
    /// Nanoseconds since 1970: what had not ended before. 0 for the beginning.
    pub from: u64,
    /// What had begun until then.
    pub to: Option<u64>,
}

impl Wanted {
    pub fn object(object: impl Into<String>) -> Self {
        Wanted { objects: HashSet::from([object.into()]), ..Wanted::default() }
    }

    pub fn traces(traces: impl IntoIterator<Item = TraceId>) -> Self {
        Wanted { traces: traces.into_iter().collect(), ..Wanted::default() }
    }

    pub fn revisions(revisions: impl IntoIterator<Item = i64>) -> Self {
        Wanted { revisions: revisions.into_iter().collect(), ..Wanted::default() }
    }

    pub fn user(user: impl Into<String>) -> Self {
        Wanted { users: HashSet::from([user.into()]), ..Wanted::default() }
    }

    fn is_everything(&self) -> bool {
        self.objects.is_empty()
            && self.uids.is_empty()
            && self.traces.is_empty()
            && self.revisions.is_empty()
            && self.users.is_empty()
    }

    pub fn takes(&self, step: &impl Step) -> bool {
        let has = |set: &HashSet<String>, text: Option<&str>| text.is_some_and(|text| set.contains(text));
        let is_in_time = step.end() >= self.from && self.to.is_none_or(|to| step.start() <= to);
        let answers = |revision: i64| self.revisions.contains(&revision);
        is_in_time
            && (self.is_everything()
                || (!self.traces.is_empty() && self.traces.contains(&step.trace()))
                || (!self.objects.is_empty() && has(&self.objects, step.object()))
                || (!self.revisions.is_empty()
                    && (step.committed().is_some_and(answers) || step.is_caused_by(answers)))
                || (!self.uids.is_empty() && has(&self.uids, step.text("uid")))
                || (!self.users.is_empty() && has(&self.users, step.text("user"))))
    }

    fn keys(&self) -> impl Iterator<Item = Key<'_>> {
        let objects = self.objects.iter().map(|object| Key::Object(object));
        let uids = self.uids.iter().map(|uid| Key::Uid(uid));
        let traces = self.traces.iter().map(|trace| Key::Trace(*trace));
        let revisions = self.revisions.iter().map(|revision| Key::Revision(*revision));
        let users = self.users.iter().map(|user| Key::User(user));
        objects.chain(uids).chain(traces).chain(revisions).chain(users)
    }

    /// Whether a segment with this index may hold any of it.
    fn may_be_in(&self, index: &Index) -> bool {
        let is_in_time = index.last_end >= self.from && self.to.is_none_or(|to| index.first_start <= to);
        is_in_time && (self.is_everything() || self.keys().any(|key| index.may_hold(key)))
    }
}

/// Each span once, by start.
#[derive(Debug, Default)]
pub struct Found {
    pub records: Vec<Record>,
    /// Older than these it was not looked at, because there are too many.
    pub is_cut: bool,
    /// How many segments were read, of how many.
    pub segments_read: usize,
    pub segments: usize,
}

impl Found {
    /// Records that one answer holds at most: 20 MB or so.
    pub const MAX_RECORDS: usize = 50_000;

    fn add(&mut self, records: impl IntoIterator<Item = Record>) {
        let mut known: HashMap<SpanId, usize> =
            self.records.iter().enumerate().map(|(index, record)| (record.span, index)).collect();
        for record in records {
            match known.get(&record.span) {
                Some(index) if self.records[*index].outranks(&record) => {}
                // The ring's has its sequence, by which a follower goes on.
                Some(index) => self.records[*index] = record,
                None => {
                    known.insert(record.span, self.records.len());
                    self.records.push(record);
                }
            }
        }
        self.records.sort_by_key(|record| (record.start, record.sequence));
    }
}

/// Reads what is on disk, the newest segments first; also of a server that does not run.
pub fn read(directory: &Path, wanted: &Wanted) -> io::Result<Found> {
    let mut segments = segment::list(directory)?;
    segments.sort_by_key(|segment| std::cmp::Reverse(segment.id));
    let mut found = Found { segments: segments.len(), ..Found::default() };
    for segment in segments {
        if !may_answer(&segment, wanted)? {
            continue;
        }
        if found.records.len() >= Found::MAX_RECORDS {
            found.is_cut = true;
            break;
        }
        found.segments_read += 1;
        match segment.records(|record| wanted.takes(record)) {
            Ok(records) => found.records.extend(records),
            // Retention took it while we read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    // What another server told twice is told once.
    let twice = std::mem::take(&mut found.records);
    found.add(twice);
    Ok(found)
}

/// The segment that is being written has no index yet, and is read.
fn may_answer(segment: &Segment, wanted: &Wanted) -> io::Result<bool> {
    Ok(segment.index()?.is_none_or(|index| wanted.may_be_in(&index)))
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::sync::LazyLock;
    use std::time::{Duration, Instant, SystemTime};

    use super::*;
    use crate::block::Block;
    use crate::record::tests::record;
    use crate::value::Value;

    fn ring() -> &'static Ring {
        Box::leak(Box::new(Ring::new(4 << 20)))
    }

    fn start(directory: &Path, ring: &'static Ring) -> History {
        History::of_ring(directory.to_owned(), Retention::default(), ring).unwrap()
    }

    /// Records of this hour: older ones would not stay.
    static BASE: LazyLock<u64> = LazyLock::new(|| {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock").as_nanos() as u64
    });

    fn write(number: u64) -> Record {
        let mut record = record("store.commit", *BASE + number * 1_000);
        record.object = Some(format!("pods/default/p{}", number % 50).into());
        record.committed = Some(number as i64);
        record.causes = vec![number as i64 - 1];
        record.attributes = vec![
            (Cow::Borrowed("user"), Value::from(if number.is_multiple_of(2) { "alice" } else { "bob" })),
            (Cow::Borrowed("uid"), Value::from(format!("uid-{}", number % 50))),
        ];
        record
    }

    fn without_sequence(mut records: Vec<Record>) -> Vec<Record> {
        records.iter_mut().for_each(|record| record.sequence = 0);
        records
    }

    #[test]
    fn what_was_written_is_found_again_over_a_restart_by_every_key() {
        let directory = tempfile::tempdir().unwrap();
        let first = ring();
        let history = start(directory.path(), first);
        let written: Vec<Record> = (1..=500).map(write).collect();
        written.iter().for_each(|record| first.push(record));
        history.close();
        assert_eq!(history.dropped(), 0);

        let second = ring();
        let history = start(directory.path(), second);
        second.push(&write(501));
        let check = |wanted: Wanted, expected: &dyn Fn(&Record) -> bool| {
            let found = without_sequence(history.find(&wanted).unwrap().records);
            let expected: Vec<Record> = written.iter().filter(|record| expected(record)).cloned().collect();
            assert!(!expected.is_empty());
            assert_eq!(found[..expected.len()], expected, "{wanted:?}");
            assert!(found[expected.len()..].iter().all(|record| record.committed == Some(501)), "{wanted:?}");
        };
        check(Wanted::object("pods/default/p7"), &|record| {
            record.object.as_deref() == Some("pods/default/p7")
        });
        check(Wanted::traces([written[17].trace]), &|record| record.span == written[17].span);
        check(Wanted::revisions([40]), &|record| matches!(record.committed, Some(40 | 41)));
        check(Wanted::user("bob"), &|record| record.text("user") == Some("bob"));
        let uid = Wanted { uids: HashSet::from(["uid-3".to_owned()]), ..Wanted::default() };
        check(uid, &|record| record.text("uid") == Some("uid-3"));
        let time = Wanted { from: *BASE + 100_000, to: Some(*BASE + 200_000), ..Wanted::default() };
        check(time, &|record| matches!(record.committed, Some(100..=200)));
        // What is in the ring and on disk is told once.
        let all = history.find(&Wanted::default()).unwrap();
        assert_eq!(all.records.len(), 501);
    }

    #[test]
    fn what_ends_is_on_disk_within_a_second_while_others_read() {
        let directory = tempfile::tempdir().unwrap();
        let ring = ring();
        let history = start(directory.path(), ring);
        let give_up = Instant::now() + Duration::from_secs(30);
        for round in 1..=3_u64 {
            ring.push(&write(round));
            // A file and nothing but the file, as another process or a restart would find it.
            while read(directory.path(), &Wanted::default()).unwrap().records.len() < round as usize {
                assert!(Instant::now() < give_up, "nothing was written: {:?}", history.failure());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    #[test]
    fn a_question_reads_only_the_segments_that_may_answer_it() {
        let directory = tempfile::tempdir().unwrap();
        let mut ids = Vec::new();
        for number in 0..10_u64 {
            let mut file = segment::Open::create(directory.path(), number + 1).unwrap();
            let records: Vec<Record> = (0..100).map(|each| write(number * 100 + each)).collect();
            file.add(&Block::of(&records));
            file.write().unwrap();
            ids.push(records[0].trace);
            file.seal().unwrap();
        }
        let found = read(directory.path(), &Wanted::traces([ids[4]])).unwrap();
        assert_eq!((found.records.len(), found.segments_read, found.segments), (1, 1, 10));
        let found = read(directory.path(), &Wanted::revisions([555])).unwrap();
        assert_eq!((found.records.len(), found.segments_read), (2, 1));
        let late = Wanted { from: *BASE + 950_000, ..Wanted::default() };
        assert_eq!(read(directory.path(), &late).unwrap().segments_read, 1);
    }

    #[test]
    fn what_the_ring_lets_go_of_too_early_is_counted() {
        let directory = tempfile::tempdir().unwrap();
        let ring: &'static Ring = Box::leak(Box::new(Ring::new(16 << 10)));
        let history = start(directory.path(), ring);
        (1..=5_000).map(write).for_each(|record| ring.push(&record));
        history.close();
        let kept = read(directory.path(), &Wanted::default()).unwrap().records.len() as u64;
        assert!(kept > 0 && history.dropped() > 0, "{kept} kept, {} dropped", history.dropped());
        assert_eq!(kept + history.dropped(), 5_000);
    }
}
