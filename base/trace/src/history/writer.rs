//! The one thread that writes: it follows the ring, fills segments, and removes those that are too old or too many.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use super::choice::{Choice, Outline};
use super::retention::Retention;
use super::segment::{self, Open, Segment};
use crate::block::Block;
use crate::ring::Ring;

/// Spans end in bursts: one write and one sync take a burst along. What is lost in a crash is younger than this.
const GATHER: Duration = Duration::from_millis(500);
/// After a failure, a full disk say.
const RETRY: Duration = Duration::from_secs(10);
/// Small enough that a question reads little, large enough that an index is a small part of it.
const SEGMENT_BYTES: u64 = 1 << 20;
/// Spans that are looked at together.
const STEP: u64 = 2_048;
/// However little happens, old segments are looked for as often as this.
const LOOK_AT_AGE: Duration = Duration::from_secs(3600);

pub struct Writer {
    shared: Arc<Shared>,
    handle: Mutex<Option<JoinHandle<()>>>,
    thread: Thread,
}

#[derive(Default)]
struct Shared {
    is_stopping: AtomicBool,
    dropped: AtomicU64,
    failure: Mutex<Option<String>>,
}

impl Writer {
    pub fn start(directory: PathBuf, retention: Retention, ring: &'static Ring) -> io::Result<Writer> {
        let shared = Arc::new(Shared::default());
        // What a crash left is completed before anything is written.
        let mut segments = Segments { directory, retention, open: None, is_torn: true };
        segments.complete()?;
        segments.prune()?;
        let own = shared.clone();
        // What ended before is of the start of this very process, and belongs to the history too.
        let handle = thread::Builder::new()
            .name("trace-history".into())
            .spawn(move || follow(ring, &mut segments, &own))?;
        let thread = handle.thread().clone();
        Ok(Writer { shared, handle: Mutex::new(Some(handle)), thread })
    }

    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::SeqCst)
    }

    pub fn failure(&self) -> Option<String> {
        self.shared.failure.lock().clone()
    }

    /// Returns when everything that has ended is written.
    pub fn stop(&self) {
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        self.thread.unpark();
        if let Some(handle) = self.handle.lock().take()
            && handle.join().is_err()
        {
            *self.shared.failure.lock() = Some("the writer panicked".into());
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn follow(ring: &Ring, segments: &mut Segments, shared: &Shared) {
    let (mut written, mut reader) = (0, Reader::default());
    loop {
        let is_stopping = wait_for_more(ring, written, shared);
        let latest = ring.latest();
        if latest == written {
            if let Err(error) = segments.prune() {
                *shared.failure.lock() = Some(error.to_string());
            }
        } else {
            let (mut missed, mut taken, mut outcome) = (0, 0, Ok(()));
            while written < latest {
                let until = latest.min(written + STEP);
                missed += reader.read(ring, written, until);
                taken += reader.batch.len() as u64;
                outcome = outcome.and_then(|()| segments.add(&reader.batch));
                written = until;
            }
            let lost = match outcome.and_then(|()| segments.write()) {
                Ok(()) => {
                    *shared.failure.lock() = None;
                    missed
                }
                Err(error) => {
                    // This segment's stream cannot be gone on with; the next batch begins another one.
                    (segments.open, segments.is_torn) = (None, true);
                    *shared.failure.lock() = Some(error.to_string());
                    if !is_stopping {
                        thread::park_timeout(RETRY);
                    }
                    missed + taken
                }
            };
            shared.dropped.fetch_add(lost, Ordering::SeqCst);
        }
        if is_stopping && ring.latest() <= written {
            if let Err(error) = segments.seal() {
                *shared.failure.lock() = Some(error.to_string());
            }
            return;
        }
    }
}

/// Takes out of the ring what is to be written, some at a time: a burst takes no memory, and nobody waits long for a shard.
#[derive(Default)]
struct Reader {
    choice: Choice,
    ended: Vec<Outline>,
    chosen: Vec<u64>,
    batch: Block,
}

impl Reader {
    /// Of the spans that ended after the one and until the other: the batch is those that are kept. How many the ring had
    /// let go of.
    fn read(&mut self, ring: &Ring, after: u64, until: u64) -> u64 {
        let Reader { choice, ended, chosen, batch } = self;
        ended.clear();
        ring.each_between(after, until, |kept| ended.push(Outline::of(kept)));
        ended.sort_by_key(|outline| outline.sequence);
        chosen.clear();
        chosen.extend(ended.iter().filter(|outline| choice.takes(outline)).map(|outline| outline.sequence));
        ring.copy(chosen, batch);
        (until - after) - (ended.len() - (chosen.len() - batch.len())) as u64
    }
}

/// Sleeps until something has ended, gathers what ends with it, and says whether the writer is to stop.
fn wait_for_more(ring: &Ring, written: u64, shared: &Shared) -> bool {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let is_stopping = || shared.is_stopping.load(Ordering::SeqCst);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut more = pin!(ring.ended_after(written));
    if !is_stopping() && more.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Pending {
        thread::park_timeout(LOOK_AT_AGE);
    }
    if !is_stopping() {
        thread::park_timeout(GATHER);
    }
    is_stopping()
}

/// The files.
struct Segments {
    directory: PathBuf,
    retention: Retention,
    open: Option<Open>,
    /// There may be a segment that was never finished; without an index it would stay for ever.
    is_torn: bool,
}

impl Segments {
    /// What a crash or a full disk left unfinished: an index that was not written, a file that was not renamed.
    fn complete(&mut self) -> io::Result<()> {
        if self.is_torn {
            let _ = fs::remove_file(self.directory.join("partial"));
            segment::list(&self.directory)?.iter().try_for_each(Segment::complete)?;
            self.is_torn = false;
        }
        Ok(())
    }

    /// What is to be written next.
    fn add(&mut self, batch: &Block) -> io::Result<()> {
        if batch.len() == 0 {
            return Ok(());
        }
        if self.open.is_none() {
            self.complete()?;
        }
        let open = match &mut self.open {
            Some(open) => open,
            None => self.open.insert(begin(&self.directory)?),
        };
        open.add(batch);
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        open.write()?;
        let is_full = open.bytes() >= SEGMENT_BYTES.min(self.retention.bytes / 8);
        // A segment goes as a whole: one that covers too much time would keep what is too old.
        let began = open.began().map(Duration::from_nanos).unwrap_or_default();
        let is_old = now().saturating_sub(began) > self.retention.age / 8;
        if is_full || is_old {
            self.seal()?;
            self.prune()?;
        }
        Ok(())
    }

    fn seal(&mut self) -> io::Result<()> {
        self.open.take().map_or(Ok(()), Open::seal)
    }

    fn prune(&mut self) -> io::Result<()> {
        let mut kept = Vec::new();
        for segment in segment::list(&self.directory)? {
            // The one that is being written has no index, and stays.
            if let Some(index) = segment.index()? {
                kept.push((segment.bytes(), Duration::from_nanos(index.last_end), segment));
            }
        }
        for segment in surplus(&kept, &self.retention, now()) {
            segment.remove()?;
        }
        Ok(())
    }
}

fn begin(directory: &Path) -> io::Result<Open> {
    let last = segment::list(directory)?.last().map_or(0, |segment| segment.id);
    Open::create(directory, last + 1)
}

/// Those that go, of segments in their order with their size and when their last span ended.
fn surplus<'a, T>(segments: &'a [(u64, Duration, T)], retention: &Retention, now: Duration) -> Vec<&'a T> {
    // The next one has to find room as well.
    let limit = retention.bytes - retention.bytes / 8;
    let mut total = 0;
    let mut gone = Vec::new();
    for (bytes, ended, segment) in segments.iter().rev() {
        total += bytes;
        if total > limit || now.saturating_sub(*ended) > retention.age {
            gone.push(segment);
        }
    }
    gone
}

fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;
    use crate::record::tests::record;

    #[test]
    fn the_oldest_segments_go_when_they_are_too_many_or_too_old() {
        fn check(segments: &[(u64, u64)], bytes: u64, age: u64, expected: &[usize]) {
            let segments: Vec<(u64, Duration, usize)> = segments
                .iter()
                .enumerate()
                .map(|(id, (bytes, ended))| (*bytes, Duration::from_secs(*ended), id))
                .collect();
            let retention = Retention { bytes, age: Duration::from_secs(age) };
            let mut gone: Vec<usize> =
                surplus(&segments, &retention, Duration::from_secs(1_000)).into_iter().copied().collect();
            gone.sort_unstable();
            assert_eq!(gone, expected);
        }
        let four = [(10, 100), (10, 400), (10, 700), (10, 900)];
        check(&four, 80, 1_000, &[]);
        check(&four, 35, 1_000, &[0]);
        check(&four, 80, 500, &[0, 1]);
        check(&four, 12, 1_000, &[0, 1, 2]);
        check(&[], 10, 10, &[]);
    }

    fn write(segments: &mut Segments, batch: &Block) {
        segments.add(batch).unwrap();
        segments.write().unwrap();
    }

    #[test]
    fn segments_are_sealed_when_full_and_the_disk_stays_within_its_limit() {
        let directory = tempfile::tempdir().unwrap();
        let retention = Retention { bytes: 64 << 10, age: Duration::from_secs(3600) };
        let mut segments =
            Segments { directory: directory.path().into(), retention, open: None, is_torn: false };
        let time = now().as_nanos() as u64;
        for batch in 0..200 {
            let records: Vec<Record> =
                (0..100).map(|each| record("step", time + batch * 100 + each)).collect();
            write(&mut segments, &Block::of(&records));
        }
        let left = segment::list(directory.path()).unwrap();
        let bytes: u64 = left.iter().map(Segment::bytes).sum();
        assert!(left.len() > 3 && bytes <= 64 << 10, "{} segments of {bytes} bytes", left.len());
        let newest = left.last().unwrap().records(|_| true).unwrap();
        assert_eq!(newest.last().unwrap().start, time + 19_999);
    }

    #[test]
    fn a_segment_that_was_never_finished_is_completed_before_the_next_begins() {
        let directory = tempfile::tempdir().unwrap();
        let retention = Retention::default();
        let mut segments =
            Segments { directory: directory.path().into(), retention, open: None, is_torn: false };
        let time = now().as_nanos() as u64;
        write(&mut segments, &Block::of(&[record("first", time)]));
        (segments.open, segments.is_torn) = (None, true);
        write(&mut segments, &Block::of(&[record("second", time)]));
        let indexed: Vec<bool> = segment::list(directory.path())
            .unwrap()
            .iter()
            .map(|segment| segment.index().unwrap().is_some())
            .collect();
        assert_eq!(indexed, [true, false]);
    }
}
