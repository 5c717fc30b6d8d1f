//! The writer thread, the only one that changes the store.
//!
//! It takes all waiting transactions and evaluates them in order, writes their changes as one frame, syncs once, sends the
//! events and responds to the callers. New transactions queue while it waits for the disk.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::cleaning::{Cleaning, Situation};
use super::expiry::Expiry;
use super::files::is_passing;
use super::frame::{self, FrameBuilder, Mark};
use super::log::{Log, Space};
use super::queue::{Outcome, Request, Task};
use super::transaction::{Lifetime, Transaction};
use super::{Config, Shared, State};
use crate::{Committed, Durability, Error, Event, Operation, Result, Revision, Txn};

/// Bytes of records in one frame, about.
const FRAME_LIMIT: usize = 4 << 20;
/// Memory kept for building frames.
const FRAME_KEEP: usize = 256 << 10;
/// Relaxed writes reach the disk after this time at the latest. Leases are renewed every other
/// second all life long; a sync for each would wear the disk for nothing.
const FLUSH: Duration = Duration::from_secs(5);
/// Followers of a quiet prefix hear this often that time goes on.
const PROGRESS: Duration = Duration::from_secs(5);
/// Keys that expire in one transaction.
const EXPIRE: usize = 128;
/// Before something that failed for want of space is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// Changes forgotten at a time after a compaction.
const TRIM: usize = 4096;
/// Revisions that may be given away before the next sync; as many are skipped after a crash.
const AHEAD: i64 = 1000;

pub struct Writer {
    shared: Arc<Shared>,
    config: Config,
    log: Log,
    frame: FrameBuilder,
    expiry: Expiry,
    /// The last revision given away.
    revision: Revision,
    /// No revision above it is given away before the next sync.
    ceiling: Revision,
    durable_ceiling: Revision,
    /// Revisions of the past, oldest first, from which automatic compaction chooses.
    marks: VecDeque<(Instant, Revision)>,
    trimming: bool,
    cleaning: Option<Cleaning>,
    clean_after: Instant,
    /// When the oldest write that is not durable yet has to be.
    flush_at: Option<Instant>,
    progress_at: Option<Instant>,
    /// Why nothing can be written any more.
    failed: Option<Error>,
    /// Puts are refused for want of space.
    no_space: bool,
    /// Keeps other processes out of the directory for as long as this thread may write to it.
    _lock: Option<File>,
}

/// However the thread ends, nobody waits for it any longer.
struct Guard(Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A transaction and who waits for it.
type Waiting = (Task, oneshot::Sender<Result<Outcome>>);

impl Writer {
    pub fn new(
        shared: Arc<Shared>,
        config: Config,
        log: Log,
        lock: Option<File>,
        expiry: Expiry,
        revision: Revision,
    ) -> Self {
        Writer {
            shared,
            config,
            log,
            frame: FrameBuilder::default(),
            expiry,
            revision,
            ceiling: revision,
            durable_ceiling: revision,
            marks: VecDeque::from([(Instant::now(), revision)]),
            trimming: false,
            cleaning: None,
            clean_after: Instant::now(),
            flush_at: None,
            progress_at: None,
            failed: None,
            no_space: false,
            _lock: lock,
        }
    }

    pub fn run(mut self) {
        let _guard = Guard(self.shared.clone());
        let mut requests = Vec::new();
        loop {
            self.shared.queue.take(&mut requests, self.deadline());
            self.expire();
            let mut batch = Vec::new();
            let mut bytes = 0;
            for request in requests.drain(..) {
                match request {
                    Request::Commit { task, answer } => {
                        let alone = task.deletes_spans();
                        if alone {
                            self.commit(std::mem::take(&mut batch));
                        }
                        bytes += task.size(&self.shared.state.read().index);
                        batch.push((task, answer));
                        if alone || bytes > FRAME_LIMIT {
                            self.commit(std::mem::take(&mut batch));
                            bytes = 0;
                        }
                    }
                    Request::Health { answer } => {
                        answer.send(self.failed.clone().map_or(Ok(()), Err)).ok();
                    }
                    Request::Compact { at, answer } => {
                        self.commit(std::mem::take(&mut batch));
                        bytes = 0;
                        let compacted = self.compact(at);
                        answer.send(compacted).ok();
                    }
                    Request::Close { answer } => {
                        self.commit(std::mem::take(&mut batch));
                        let closed = self.close();
                        answer.send(closed).ok();
                        return;
                    }
                }
            }
            self.commit(batch);
            self.keep_house();
        }
    }

    /// When to wake although nobody asks for anything.
    fn deadline(&self) -> Option<Instant> {
        if self.trimming || self.cleaning.is_some() {
            return Some(Instant::now());
        }
        [self.expiry.next(), self.flush_at, self.progress_at, self.next_mark()].into_iter().flatten().min()
    }

    fn commit(&mut self, waiting: Vec<Waiting>) {
        if waiting.is_empty() {
            return;
        }
        if let Some(error) = &self.failed {
            return refuse(waiting, error);
        }
        let waiting = self.make_room(waiting);
        let mut outcomes = Vec::with_capacity(waiting.len());
        let mut events = Vec::with_capacity(waiting.len());
        let mut sync = false;
        let mut expiring = Vec::new();
        self.frame.begin();
        {
            let shared = self.shared.clone();
            let mut state = shared.state.write();
            for (task, answer) in waiting {
                let before = events.len();
                let relaxed = task.is_relaxed();
                let outcome = self.decide(&mut state, task, &mut events, &mut expiring);
                sync |= !relaxed && events.len() > before;
                outcomes.push((answer, outcome));
            }
        }
        match self.write(sync) {
            Ok(()) => {
                if !expiring.is_empty() {
                    let now = Instant::now();
                    expiring.into_iter().for_each(|(ttl, key, at)| self.expiry.add(now, ttl, key, at));
                }
                if !events.is_empty() {
                    self.publish(&events);
                }
                for (answer, outcome) in outcomes {
                    answer.send(outcome).ok();
                }
            }
            Err(error) => {
                self.roll_back();
                for (answer, _) in outcomes {
                    answer.send(Err(error.clone())).ok();
                }
            }
        }
    }

    /// Makes room in the log for these transactions. Where there is none, those that put are
    /// refused and only the deletions are left.
    fn make_room(&mut self, waiting: Vec<Waiting>) -> Vec<Waiting> {
        let shared = self.shared.clone();
        let size = |waiting: &[Waiting]| {
            let state = shared.state.read();
            frame::frame_size(waiting.iter().map(|(task, _)| task.size(&state.index)).sum())
        };
        let bytes = size(&waiting);
        let refusal = match self.over_quota(bytes) {
            Some(error) => error,
            None => match self.prepare(bytes, Space::Common) {
                Ok(()) => {
                    if self.no_space && waiting.iter().any(|(task, _)| task.has_put()) {
                        self.set_alarm(None);
                    }
                    return waiting;
                }
                Err(error) => error,
            },
        };
        if matches!(refusal, Error::NoSpace { .. }) && waiting.iter().any(|(task, _)| task.has_put()) {
            self.set_alarm(Some(&refusal));
        }
        if self.failed.is_some() {
            refuse(waiting, &refusal);
            return Vec::new();
        }
        let (puts, deletions): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|(task, _)| task.has_put());
        refuse(puts, &refusal);
        match self.prepare(size(&deletions), Space::Reserve) {
            Ok(()) => deletions,
            Err(error) => {
                refuse(deletions, &error);
                Vec::new()
            }
        }
    }

    /// etcd's alarm NOSPACE: on while puts are refused.
    fn set_alarm(&mut self, refusal: Option<&Error>) {
        let no_space = refusal.is_some();
        if self.no_space == no_space {
            return;
        }
        self.no_space = no_space;
        self.shared.no_space.store(no_space, Ordering::Relaxed);
        match refusal {
            Some(error) => {
                tracing::error!(%error, "alarm NOSPACE: the store refuses puts; deletions still work")
            }
            None => tracing::info!("alarm NOSPACE is over: the store accepts puts again"),
        }
    }

    fn over_quota(&self, bytes: usize) -> Option<Error> {
        let quota = self.config.quota;
        (self.log.size() + self.log.growth(bytes) > quota)
            .then(|| Error::NoSpace { what: format!("the store's quota of {quota} bytes is used up") })
    }

    fn prepare(&mut self, bytes: usize, space: Space) -> Result<()> {
        let active = self.log.active().id;
        let prepared = self.log.prepare(bytes, space);
        if self.log.active().id != active {
            let segment = self.log.active().clone();
            self.shared.state.write().segments.insert(segment.id, segment);
        }
        self.shared.size.store(self.log.size(), Ordering::Relaxed);
        prepared.map_err(|error| self.failure("make room in the log", error))
    }

    /// Does the task, in the index and in the frame, and says how it ended.
    fn decide(
        &mut self,
        state: &mut State,
        task: Task,
        events: &mut Vec<Event>,
        expiring: &mut Vec<(Duration, Arc<str>, Revision)>,
    ) -> Result<Outcome> {
        let before = (self.frame.mark(), events.len(), expiring.len());
        let room = task.size(&state.index);
        let mut transaction =
            Transaction::new(state, &mut self.frame, &self.log, events, expiring, self.revision.next(), room);
        let outcome = match task {
            Task::Txn(txn) => carry_out(&txn, &mut transaction),
            Task::Work(_, work) => match work(&mut transaction) {
                true => Ok(Outcome::Committed(Committed { revision: transaction.revision(), deleted: 0 })),
                false => Ok(Outcome::Abandoned),
            },
        };
        let revision = transaction.revision();
        if let Ok(Outcome::Committed(_)) = outcome {
            self.revision = revision;
        } else {
            let (frame, changes, deadlines) = before;
            state.index.roll_back(self.revision);
            self.frame.truncate(frame);
            events.truncate(changes);
            expiring.truncate(deadlines);
        }
        outcome
    }

    /// Writes the frame that was built, unless it is empty.
    fn write(&mut self, sync: bool) -> Result<()> {
        if self.frame.is_empty() {
            return Ok(());
        }
        self.append()?;
        if sync || self.revision > self.durable_ceiling {
            self.sync()
        } else {
            self.flush_at.get_or_insert_with(|| Instant::now() + FLUSH);
            Ok(())
        }
    }

    fn append(&mut self) -> Result<()> {
        let compacted = self.shared.state.read().index.compacted();
        let ceiling = self.ceiling.max(Revision(self.revision.0 + AHEAD));
        let mark = Mark { revision: self.revision, compacted, ceiling, ..Mark::default() };
        let appended = self.log.append(&mut self.frame, mark);
        self.frame.shrink(FRAME_KEEP);
        appended.map_err(|error| self.failure("write to the log", error))?;
        self.ceiling = ceiling;
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.log.sync().map_err(|error| self.failure("sync the log", error))?;
        self.durable_ceiling = self.ceiling;
        self.flush_at = None;
        Ok(())
    }

    /// Tells what passes, after which all goes on (a full disk, no descriptor left), from a broken disk, after which
    /// nothing may.
    fn failure(&mut self, what: &str, error: io::Error) -> Error {
        if is_passing(&error) && !self.log.is_broken() {
            return match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    Error::NoSpace { what: format!("cannot {what}: {error}") }
                }
                _ => Error::unavailable(what, error),
            };
        }
        let error = Error::unavailable(what, error);
        tracing::error!(%error, "the store accepts no more writes");
        *self.shared.failed.write() = Some(error.clone());
        self.failed = Some(error.clone());
        error
    }

    fn roll_back(&mut self) {
        let published = self.shared.published();
        self.shared.state.write().index.roll_back(published);
        self.revision = published;
    }

    fn publish(&mut self, events: &[Event]) {
        self.shared.watchers.publish(events, self.revision, &self.shared.published);
        self.progress_at.get_or_insert_with(|| Instant::now() + PROGRESS);
    }

    /// Deletes keys whose time has come, as a transaction of the store's own.
    fn expire(&mut self) {
        let now = Instant::now();
        let mut due = self.expiry.due(now, EXPIRE);
        if due.is_empty() {
            return;
        }
        let shared = self.shared.clone();
        let is_current = |(key, revision): &(Arc<str>, Revision)| {
            let state = shared.state.read();
            state.index.head(key).is_some_and(|head| head.modified == *revision)
        };
        due.retain(is_current);
        let txn = Txn {
            compare: Vec::new(),
            operations: due.iter().map(|(key, _)| Operation::Delete { key: key.clone() }).collect(),
            durability: Durability::Relaxed,
        };
        let (answer, _) = oneshot::channel();
        self.commit(vec![(Task::Txn(txn), answer)]);
        // What could not be deleted, for a full disk say, is tried again.
        due.retain(is_current);
        for (key, revision) in due {
            self.expiry.add(now, RETRY, key, revision);
        }
    }

    fn compact(&mut self, at: Revision) -> Result<()> {
        let current = self.shared.published();
        {
            let mut state = self.shared.state.write();
            state.check_revision(at, current)?;
            if at == state.index.compacted() {
                return Err(Error::Compacted { requested: at, compacted: at, current });
            }
            state.index.compact(at);
        }
        self.trimming = true;
        self.log_mark()
    }

    /// Appends an empty frame, for what its header says.
    fn log_mark(&mut self) -> Result<()> {
        self.prepare(frame::frame_size(0), Space::Reserve)?;
        self.frame.begin();
        self.append()?;
        self.flush_at.get_or_insert_with(|| Instant::now() + FLUSH);
        Ok(())
    }

    /// What has to be done from time to time, in small pieces so that commits wait little.
    fn keep_house(&mut self) {
        let now = Instant::now();
        if self.flush_at.is_some_and(|at| at <= now) {
            self.flush_at = None;
            // A failure is remembered and answers the next commit.
            self.sync().ok();
        }
        if self.progress_at.is_some_and(|at| at <= now) {
            self.progress_at = None;
            self.shared.watchers.progress(self.shared.published());
        }
        self.compact_automatically(now);
        if self.trimming {
            let mut state = self.shared.state.write();
            self.trimming = !state.index.trim(TRIM);
        }
        if self.failed.is_none()
            && self.clean_after <= now
            && let Err(error) = self.clean()
        {
            tracing::warn!(%error, "cannot reclaim space in the log; will try again");
            self.cleaning = None;
            self.clean_after = now + RETRY;
        }
    }

    fn next_mark(&self) -> Option<Instant> {
        let (at, revision) = self.marks.back()?;
        let changed = *revision != self.revision || self.marks.len() > 1;
        changed.then(|| *at + self.config.retention / 5)
    }

    /// Keeps the history of the retention time, or less where that would be too much of it.
    fn compact_automatically(&mut self, now: Instant) {
        let mut target = None;
        if self.next_mark().is_some_and(|at| at <= now) {
            self.marks.push_back((now, self.revision));
            while let Some((_, revision)) =
                self.marks.pop_front_if(|(at, _)| now.duration_since(*at) >= self.config.retention)
            {
                target = Some(revision);
            }
        }
        let history = self.config.history;
        {
            let state = self.shared.state.read();
            if !self.trimming && state.index.history_len() > history.saturating_add(history / 4) {
                target = target.max(state.index.revision_before(history));
            }
            target = target.filter(|target| *target > state.index.compacted());
        }
        if let Some(target) = target
            && let Err(error) = self.compact(target)
        {
            tracing::warn!(%error, "cannot record a compaction in the log");
        }
    }

    /// One step of reclaiming space: moves some of what is still needed out of the oldest
    /// segment, and drops the segment when nothing is.
    fn clean(&mut self) -> Result<()> {
        let (Some(oldest), Some(mut cleaning)) = (
            self.log.oldest().map(|segment| segment.id),
            self.cleaning.take().or_else(|| self.next_cleaning()),
        ) else {
            return Ok(());
        };
        let room = cleaning.next_size(&self.shared.state.read().index);
        if room > 0 {
            self.prepare(frame::frame_size(room), Space::Common)?;
            self.frame.begin();
            let moved = cleaning.copy_next(&self.shared.state.read(), &mut self.frame)?;
            // The frame has its place in the log only until it is appended.
            let moved: Vec<_> = moved
                .into_iter()
                .map(|(key, modified, at, size)| (key, modified, self.log.location(at, size)))
                .collect();
            self.append()?;
            let mut state = self.shared.state.write();
            for (key, modified, location) in moved {
                state.index.relocate(&key, modified, location);
            }
        }
        if !cleaning.is_done() {
            self.cleaning = Some(cleaning);
            return Ok(());
        }
        // What was moved, the compaction that made the rest superfluous, and the word that the
        // segment is not needed must all outlive it.
        self.log.retire_oldest();
        self.log_mark()?;
        self.sync()?;
        let dropped = self.log.drop_oldest();
        if self.log.oldest().is_none_or(|left| left.id != oldest) {
            self.shared.state.write().segments.remove(&oldest);
            self.shared.size.store(self.log.size(), Ordering::Relaxed);
        }
        dropped.map_err(|error| self.failure("remove a segment of the log", error))?;
        self.cleaning = self.next_cleaning();
        Ok(())
    }

    /// Begins with the oldest segment, where that is worth it.
    fn next_cleaning(&self) -> Option<Cleaning> {
        let oldest = self.log.oldest()?.id;
        let state = self.shared.state.read();
        let situation = Situation {
            size: self.log.size(),
            written: self.log.written(),
            retained: state.index.retained(),
            retained_in_oldest: state.index.retained_in(oldest),
            segment: self.config.segment,
            quota: self.config.quota,
        };
        situation.wants_cleaning().then(|| Cleaning::begin(&state.index, oldest))
    }

    fn close(mut self) -> Result<()> {
        self.shared.close();
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.prepare(frame::frame_size(0), Space::Reserve)?;
        self.frame.begin();
        // A ceiling that is no higher than the revision says that none was given away unsynced.
        let mark = Mark {
            revision: self.revision,
            compacted: self.shared.state.read().index.compacted(),
            ceiling: self.revision,
            ..Mark::default()
        };
        self.log
            .append(&mut self.frame, mark)
            .and_then(|()| self.log.sync())
            .map_err(|error| self.failure("close the log", error))
    }
}

fn refuse(waiting: Vec<Waiting>, error: &Error) {
    for (_, answer) in waiting {
        // Who does not wait any longer need not know.
        answer.send(Err(error.clone())).ok();
    }
}

/// Compares and, if all holds, does every operation.
fn carry_out(txn: &Txn, transaction: &mut Transaction<'_>) -> Result<Outcome> {
    for compare in &txn.compare {
        let (key, expected) = compare.expectation();
        let current = transaction.entry(key);
        // As in etcd, a key that does not exist was last changed at revision zero.
        if current.as_ref().map_or(Revision(0), |entry| entry.mod_revision()) != expected {
            return Ok(Outcome::Conflict { key: key.clone(), current });
        }
    }
    let mut deleted = 0;
    for operation in &txn.operations {
        match operation {
            Operation::Put { key, value, ttl } => {
                transaction.put_for(key, value, ttl.map_or(Lifetime::Unlimited, Lifetime::Time))?;
            }
            Operation::Delete { key } => deleted += usize::from(transaction.delete(key)?),
        }
    }
    Ok(Outcome::Committed(Committed { revision: transaction.revision(), deleted }))
}
