//! Requests waiting for the writer.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::segment::Located;
use crate::{Committed, Result, Revision, Txn};

/// More than this many waiting means the disk stands still; further ones are refused at once.
const LIMIT: usize = 16 << 10;

pub enum Request {
    Commit {
        txn: Txn,
        answer: oneshot::Sender<Result<Outcome>>,
    },
    /// Whether the writer is alive and can write.
    Health {
        answer: oneshot::Sender<Result<()>>,
    },
    Compact {
        at: Revision,
        answer: oneshot::Sender<Result<()>>,
    },
    Close {
        answer: oneshot::Sender<Result<()>>,
    },
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
    waiting: Mutex<Option<Vec<Request>>>,
    arrived: Condvar,
}

impl Default for Queue {
    fn default() -> Self {
        Queue { waiting: Mutex::new(Some(Vec::new())), arrived: Condvar::new() }
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
        if waiting.len() >= LIMIT {
            return Err(Refused::Full);
        }
        waiting.push(request);
        if waiting.len() == 1 {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Exchanges the empty `taken` for all that wait; waits for the first until `deadline`.
    pub fn take(&self, taken: &mut Vec<Request>, deadline: Option<Instant>) {
        let mut waiting = self.waiting.lock();
        while waiting.as_ref().is_some_and(Vec::is_empty) {
            match deadline {
                Some(deadline) => {
                    if self.arrived.wait_until(&mut waiting, deadline).timed_out() {
                        break;
                    }
                }
                None => self.arrived.wait(&mut waiting),
            }
        }
        if let Some(waiting) = waiting.as_mut() {
            std::mem::swap(waiting, taken);
        }
    }

    /// Takes no more requests, and drops those that wait: whoever sent one is told.
    pub fn close(&self) {
        self.waiting.lock().take();
    }
}
