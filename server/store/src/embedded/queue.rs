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

#[derive(Default)]
pub struct Queue {
    waiting: Mutex<Vec<Request>>,
    arrived: Condvar,
}

impl Queue {
    /// Gives the request back where the queue is full.
    pub fn push(&self, request: Request) -> std::result::Result<(), Request> {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= LIMIT {
            return Err(request);
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
        while waiting.is_empty() {
            match deadline {
                Some(deadline) => {
                    if self.arrived.wait_until(&mut waiting, deadline).timed_out() {
                        break;
                    }
                }
                None => self.arrived.wait(&mut waiting),
            }
        }
        std::mem::swap(&mut *waiting, taken);
    }
}
