//! Requests waiting for the writer.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::segment::Located;
use crate::{Committed, Result, Revision, Txn};

/// More than this many waiting means the disk stands still; further ones are refused at once.
const LIMIT: usize = 16 << 10;

pub enum Request {
    Commit { txn: Txn, answer: oneshot::Sender<Result<Outcome>> },
    Compact { at: Revision, answer: oneshot::Sender<Result<()>> },
    Close { answer: oneshot::Sender<Result<()>> },
}

pub enum Outcome {
    Committed(Committed),
    /// What stood in the way is read by whoever asked, not by the writer.
    Conflict {
        key: std::sync::Arc<str>,
        current: Option<Located>,
    },
}

pub struct Queue {
    /// `None` once nobody takes from it any more.
    waiting: Mutex<Option<Waiting>>,
    arrived: Condvar,
}

#[derive(Default)]
struct Waiting {
    requests: Vec<Request>,
    /// With how many of them the writer is woken.
    wanted: usize,
}

impl Default for Queue {
    fn default() -> Self {
        Queue { waiting: Mutex::new(Some(Waiting::default())), arrived: Condvar::new() }
    }
}

/// Why a request was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    Full,
    Closed,
}

impl Queue {
    pub fn push(&self, request: Request) -> std::result::Result<(), Refused> {
        let mut waiting = self.waiting.lock();
        let waiting = waiting.as_mut().ok_or(Refused::Closed)?;
        if waiting.requests.len() >= LIMIT {
            return Err(Refused::Full);
        }
        let urgent = !matches!(request, Request::Commit { .. });
        waiting.requests.push(request);
        if waiting.requests.len() == waiting.wanted || urgent {
            waiting.wanted = waiting.requests.len();
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Adds all that wait to `taken`; waits until there are so many of them, or something else than a commit, or
    /// `deadline`.
    pub fn take(&self, taken: &mut Vec<Request>, wanted: usize, deadline: Option<Instant>) {
        let mut guard = self.waiting.lock();
        if let Some(waiting) = guard.as_mut() {
            waiting.wanted = wanted;
        }
        while guard.as_ref().is_some_and(|waiting| waiting.requests.len() < waiting.wanted) {
            match deadline {
                Some(deadline) => {
                    if self.arrived.wait_until(&mut guard, deadline).timed_out() {
                        break;
                    }
                }
                None => self.arrived.wait(&mut guard),
            }
        }
        if let Some(waiting) = guard.as_mut() {
            taken.append(&mut waiting.requests);
        }
    }

    pub fn len(&self) -> usize {
        self.waiting.lock().as_ref().map_or(0, |waiting| waiting.requests.len())
    }

    /// Takes no more requests, and drops those that wait: whoever sent one is told.
    pub fn close(&self) {
        self.waiting.lock().take();
    }
}
