//! The events and the progress that a watch delivers.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll};

use futures::Stream;
use futures::stream::BoxStream;
use tokio::sync::Notify;

use crate::{KeyValue, Result, Revision};

/// One or more whole revisions, in order. Without events it is a progress notification: nothing
/// under the prefix changed up to `revision`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    pub events: Vec<Event>,
    /// Everything up to and including this revision has now been delivered.
    pub revision: Revision,
}

/// A change of one key. It carries no previous value: a follower that began with a list has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    pub kv: KeyValue,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    Put,
    Delete,
}

impl Event {
    /// The key did not exist before this put.
    pub fn is_create(&self) -> bool {
        self.kind == EventKind::Put && self.kv.create_revision == self.kv.mod_revision
    }
}

/// A stream of batches. It ends only with an error: `Compacted` when its follower fell so far
/// behind that history is gone, or whatever ended the engine. Dropping it ends the watch.
pub struct Watch {
    batches: BoxStream<'static, Result<Batch>>,
    progress: Progress,
}

impl Watch {
    pub(crate) fn new(batches: BoxStream<'static, Result<Batch>>, progress: Progress) -> Self {
        Watch { batches, progress }
    }

    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }
}

impl Stream for Watch {
    type Item = Result<Batch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.batches.as_mut().poll_next(context)
    }
}

/// What a follower asks about its own watch, from any task, to serve reads that must be as new
/// as the store: first read `current_revision`, then see that its copy has come that far.
#[derive(Clone)]
pub struct Progress(Knowledge);

#[derive(Clone)]
enum Knowledge {
    /// The engine counts what it puts into the stream; `i64::MAX` while it does not.
    Exact { newest_event: Arc<AtomicI64>, published: Arc<AtomicI64> },
    /// The engine has to ask elsewhere, and answers in the stream.
    OnRequest(Arc<Notify>),
}

impl Progress {
    pub(crate) fn exact(newest_event: Arc<AtomicI64>, published: Arc<AtomicI64>) -> Self {
        Progress(Knowledge::Exact { newest_event, published })
    }

    pub(crate) fn on_request(requested: Arc<Notify>) -> Self {
        Progress(Knowledge::OnRequest(requested))
    }

    /// The revision of the newest event that this watch has to deliver so far, where the engine
    /// knows it. A follower that has applied this revision is as new as any `current_revision`
    /// answered before this call, though its prefix was quiet.
    pub fn newest_event(&self) -> Option<Revision> {
        match &self.0 {
            Knowledge::Exact { newest_event, published } => match newest_event.load(Ordering::Acquire) {
                i64::MAX => Some(Revision(published.load(Ordering::Acquire))),
                newest => Some(Revision(newest)),
            },
            Knowledge::OnRequest(_) => None,
        }
    }

    /// Where `newest_event` is not known: asks that the stream yield a batch, empty if need be,
    /// with a revision at least as new as the store's is now. One batch may answer several
    /// requests.
    pub fn request(&self) {
        if let Knowledge::OnRequest(requested) = &self.0 {
            requested.notify_one();
        }
    }
}
