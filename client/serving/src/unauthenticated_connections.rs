//! Connections without an authenticated request so far. Opening one costs a client nothing, so their number is limited: a
//! new connection beyond the limit closes the oldest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// More than health checks and clients that are about to authenticate need.
pub const MOST: usize = 1024;

pub struct UnauthenticatedConnections {
    most: usize,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    next: u64,
    by_age: BTreeMap<u64, CancellationToken>,
}

/// One connection, until it is dropped.
pub struct UnauthenticatedConnection {
    all: Arc<UnauthenticatedConnections>,
    number: u64,
    is_authenticated: AtomicBool,
    end: CancellationToken,
}

impl UnauthenticatedConnections {
    pub fn new(most: usize) -> Arc<UnauthenticatedConnections> {
        Arc::new(UnauthenticatedConnections { most, waiting: Mutex::default() })
    }

    pub fn add(self: &Arc<Self>) -> UnauthenticatedConnection {
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
        UnauthenticatedConnection { all: self.clone(), number, is_authenticated: AtomicBool::new(false), end }
    }
}

impl UnauthenticatedConnection {
    /// A request on the connection was authenticated.
    pub fn authenticated(&self) {
        if !self.is_authenticated.swap(true, Ordering::Relaxed) {
            self.all.waiting.lock().by_age.remove(&self.number);
        }
    }

    /// Resolves when the connection is to be closed.
    pub async fn evicted(&self) {
        self.end.cancelled().await;
    }
}

impl Drop for UnauthenticatedConnection {
    fn drop(&mut self) {
        self.authenticated();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn the_oldest_connection_is_closed_unless_it_is_authenticated() {
        let all = UnauthenticatedConnections::new(2);
        let (first, second) = (all.add(), all.add());
        first.authenticated();
        let third = all.add();
        assert!(second.evicted().now_or_never().is_none());
        drop(third);
        let (_fourth, fifth) = (all.add(), all.add());
        assert!(second.evicted().now_or_never().is_some());
        assert!(first.evicted().now_or_never().is_none());
        assert!(fifth.evicted().now_or_never().is_none());
        drop((first, second, fifth));
        assert_eq!(all.waiting.lock().by_age.len(), 1);
    }
}
