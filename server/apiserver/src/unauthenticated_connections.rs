//! Connections on which nobody known has spoken yet. They cost whoever opens them nothing, so there are only so many: where
//! one more comes, the oldest is ended. Who has something to say has said it by then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// More than anybody needs who asks for the server's health or has yet to show a certificate.
pub const MOST: usize = 1024;

pub struct Newcomers {
    most: usize,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    next: u64,
    by_age: BTreeMap<u64, CancellationToken>,
}

/// One connection, until it is dropped.
pub struct Newcomer {
    all: Arc<Newcomers>,
    number: u64,
    is_known: AtomicBool,
    end: CancellationToken,
}

impl Newcomers {
    pub fn new(most: usize) -> Arc<Newcomers> {
        Arc::new(Newcomers { most, waiting: Mutex::default() })
    }

    pub fn add(self: &Arc<Self>) -> Newcomer {
        let end = CancellationToken::new();
        let mut waiting = self.waiting.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.by_age.insert(number, end.clone());
        if waiting.by_age.len() > self.most
            && let Some((_, oldest)) = waiting.by_age.pop_first()
        {
            oldest.cancel();
        }
        Newcomer { all: self.clone(), number, is_known: AtomicBool::new(false), end }
    }
}

impl Newcomer {
    /// Somebody known has spoken.
    pub fn is_known(&self) {
        if !self.is_known.swap(true, Ordering::Relaxed) {
            self.all.waiting.lock().by_age.remove(&self.number);
        }
    }

    /// Resolves when the connection is to be ended.
    pub async fn is_unwanted(&self) {
        self.end.cancelled().await;
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        self.is_known();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn the_oldest_goes_unless_it_is_known() {
        let all = Newcomers::new(2);
        let (first, second) = (all.add(), all.add());
        first.is_known();
        let third = all.add();
        assert!(second.is_unwanted().now_or_never().is_none());
        drop(third);
        let (_fourth, fifth) = (all.add(), all.add());
        assert!(second.is_unwanted().now_or_never().is_some());
        assert!(first.is_unwanted().now_or_never().is_none());
        assert!(fifth.is_unwanted().now_or_never().is_none());
        drop((first, second, fifth));
        assert_eq!(all.waiting.lock().by_age.len(), 1);
    }
}
