//! The watchers, and the delivery of events to them.
//!
//! A follower begins by replaying history from the log up to a revision, then takes what the
//! writer puts into its channel. The writer never waits: where a channel is full, it drops the
//! follower, who empties the channel and replays again from where it stopped.
//!
//! ```text
//!            registered at revision P            caught up to P
//!   begin ──────────────────────────▶ Replaying ───────────────▶ Live
//!                                         ▲                       │ channel full
//!                                         └───────────────────────┘
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures::StreamExt;
use futures::stream;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::Shared;
use super::segment::Located;
use crate::{Batch, Error, Event, EventKind, Progress, Result, Revision, Span, Watch};

/// Batches that a follower may lie behind before it reads from the log again.
const CHANNEL: usize = 1024;
/// Events read from the log at a time.
const REPLAY: usize = 256;

#[derive(Default)]
pub struct Watchers {
    watchers: Mutex<Vec<Watcher>>,
}

struct Watcher {
    span: Span,
    sender: mpsc::Sender<Batch>,
    /// The revision of the newest event that this follower has to get.
    newest: Arc<AtomicI64>,
    /// The newest revision put into the channel.
    told: Revision,
    outgoing: Vec<Event>,
}

impl Watchers {
    /// Registers a follower; everything up to the returned revision it must replay.
    fn register(
        &self,
        span: &Span,
        newest: &Arc<AtomicI64>,
        published: &AtomicI64,
    ) -> (mpsc::Receiver<Batch>, Revision) {
        let (sender, receiver) = mpsc::channel(CHANNEL);
        let mut watchers = self.watchers.lock();
        let revision = Revision(published.load(Ordering::Acquire));
        newest.store(revision.0, Ordering::Release);
        watchers.push(Watcher {
            span: span.clone(),
            sender,
            newest: newest.clone(),
            told: revision,
            outgoing: Vec::new(),
        });
        (receiver, revision)
    }

    /// Lets readers see a revision and hands out its events. First each follower concerned is
    /// known to have something to come, so none seems up to date to a reader of this revision;
    /// then the revision can be read; then the events go out, so none is ahead of what is read.
    pub fn publish(&self, events: &[Event], revision: Revision, published: &AtomicI64) {
        let mut watchers = self.watchers.lock();
        for watcher in watchers.iter_mut() {
            let span = &watcher.span;
            let matching = events.iter().filter(|event| span.contains(&event.kv.key));
            watcher.outgoing.extend(matching.cloned());
            if !watcher.outgoing.is_empty() {
                watcher.newest.store(revision.0, Ordering::Release);
            }
        }
        published.store(revision.0, Ordering::Release);
        watchers.retain_mut(|watcher| {
            let events = std::mem::take(&mut watcher.outgoing);
            events.is_empty() || watcher.send(Batch { events, revision })
        });
    }

    /// Tells everyone who has not heard of `revision` that it has passed.
    pub fn progress(&self, revision: Revision) {
        self.watchers.lock().retain_mut(|watcher| {
            if watcher.told >= revision {
                return !watcher.sender.is_closed();
            }
            watcher.send(Batch { events: Vec::new(), revision })
        });
    }

    /// Ends every watch.
    pub fn close(&self) {
        self.watchers.lock().clear();
    }
}

impl Watcher {
    /// False: this follower is gone, or must replay.
    fn send(&mut self, batch: Batch) -> bool {
        let revision = batch.revision;
        match self.sender.try_send(batch) {
            Ok(()) => {
                self.told = revision;
                true
            }
            Err(_) => {
                // Until it is registered again nobody counts for it; it must not seem up to date.
                self.newest.store(i64::MAX, Ordering::Release);
                false
            }
        }
    }
}

pub fn watch(shared: Arc<Shared>, span: Span, from: Revision) -> Result<Watch> {
    let newest = Arc::new(AtomicI64::new(i64::MAX));
    let (receiver, until) = shared.watchers.register(&span, &newest, &shared.published);
    let follower = Follower {
        span,
        next: from,
        phase: Phase::Replaying { until },
        receiver,
        newest: newest.clone(),
        shared,
    };
    follower.shared.check_history(from)?;
    let progress = Progress::exact(newest, follower.shared.published.clone());
    let batches = stream::unfold(Some(follower), |follower| async move {
        let mut follower = follower?;
        match follower.next_batch().await {
            Ok(batch) => Some((Ok(batch), Some(follower))),
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok(Watch::new(batches.boxed(), progress))
}

struct Follower {
    shared: Arc<Shared>,
    span: Span,
    /// The first revision not delivered yet.
    next: Revision,
    phase: Phase,
    receiver: mpsc::Receiver<Batch>,
    newest: Arc<AtomicI64>,
}

enum Phase {
    Replaying { until: Revision },
    Live,
}

impl Follower {
    async fn next_batch(&mut self) -> Result<Batch> {
        loop {
            match self.phase {
                Phase::Replaying { until } if self.next > until => self.phase = Phase::Live,
                Phase::Replaying { until } => {
                    let batch = self.replay(until).await?;
                    self.next = batch.revision.next();
                    return Ok(batch);
                }
                Phase::Live => match self.receiver.recv().await {
                    Some(mut batch) => {
                        // A watch may begin in the future.
                        batch.events.retain(|event| event.kv.mod_revision >= self.next);
                        if batch.revision >= self.next {
                            self.next = batch.revision.next();
                            return Ok(batch);
                        }
                    }
                    None => self.register_again()?,
                },
            }
        }
    }

    fn register_again(&mut self) -> Result<()> {
        self.shared.check_open()?;
        let (receiver, until) =
            self.shared.watchers.register(&self.span, &self.newest, &self.shared.published);
        self.receiver = receiver;
        self.phase = Phase::Replaying { until };
        Ok(())
    }

    async fn replay(&self, until: Revision) -> Result<Batch> {
        let (changes, revision) = {
            let state = self.shared.state.read();
            state.check_history(self.next, until)?;
            let (changes, revision) = state.index.changes(&self.span, self.next, until, REPLAY);
            (state.locate_all(changes), revision)
        };
        let events = super::read_all(changes, |located: &Located, kv| Event {
            kind: match located.version.is_deletion() {
                true => EventKind::Delete,
                false => EventKind::Put,
            },
            kv,
        })
        .await?;
        Ok(Batch { events, revision })
    }
}

/// The error of a watch whose engine was closed.
pub fn closed() -> Error {
    Error::unavailable("use the store", std::io::Error::other("it has been closed"))
}
