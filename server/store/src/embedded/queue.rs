//! Requests waiting for the writer.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::frame::record_size;
use super::index::Index;
use super::segment::Located;
use super::transaction::{Budget, Transaction};
use crate::{Committed, Durability, Operation, Result, Revision, Txn};

/// More than this many waiting means the disk stands still; further ones are refused at once.
const LIMIT: usize = 16 << 10;

pub enum Request {
    Commit {
        task: Task,
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

/// What is to be done at one revision.
pub enum Task {
    Txn(Txn),
    Work(Budget, Work),
}

/// Says whether what it did shall stay.
pub type Work = Box<dyn FnOnce(&mut Transaction<'_>) -> bool + Send>;

pub enum Outcome {
    Committed(Committed),
    /// What stood in the way is read by whoever asked, not by the writer.
    Conflict {
        key: std::sync::Arc<str>,
        current: Option<Located>,
    },
    /// The work itself has said why, to whoever sent it.
    Abandoned,
}

impl Task {
    pub fn has_put(&self) -> bool {
        match self {
            Task::Txn(txn) => {
                txn.operations.iter().any(|operation| matches!(operation, Operation::Put { .. }))
            }
            Task::Work(budget, _) => budget.puts,
        }
    }

    pub fn is_relaxed(&self) -> bool {
        matches!(self, Task::Txn(Txn { durability: Durability::Relaxed, .. }))
    }

    /// How much it writes depends on what earlier transactions leave.
    pub fn deletes_spans(&self) -> bool {
        matches!(self, Task::Work(budget, _) if !budget.deletes.is_empty())
    }

    /// Bytes of records that it makes, at most.
    pub fn size(&self, index: &Index) -> usize {
        match self {
            Task::Txn(txn) => {
                let sizes = txn.operations.iter().map(|operation| match operation {
                    Operation::Put { key, value, .. } => record_size(key.len(), value.len()),
                    Operation::Delete { key } => record_size(key.len(), 0),
                });
                sizes.sum()
            }
            Task::Work(budget, _) => {
                let deletions = budget.deletes.iter().map(|span| {
                    let (found, _) = index.range(span, None, Revision(i64::MAX), usize::MAX, 0);
                    found.iter().map(|(key, _)| record_size(key.len(), 0)).sum::<usize>()
                });
                budget.bytes + deletions.sum::<usize>()
            }
        }
    }
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
