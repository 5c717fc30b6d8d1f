//! Runs a reconcile function over the keys of a queue.

use std::fmt::Display;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::queue::Item;
use crate::{Error, NamespacedName, Queue};

/// How a control loop is run.
#[derive(Debug)]
pub(crate) struct Workers {
    /// Its name in logs and traces: `replicaset`.
    pub controller: &'static str,
    /// The resource its keys name, as the trace writes it: `replicasets.apps`.
    pub resource: String,
    /// How many keys are worked on at a time.
    pub count: usize,
}

/// When to look at the key again, if nothing changes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// When something changes.
    Done,
    /// Also after this time: a deadline is near, a back-off runs.
    After(Duration),
}

/// What is done with a key. Boxed: the program holds what is around it once, and not for each controller.
pub(crate) type Reconcile<K> = Box<dyn Fn(K) -> BoxFuture<'static, Result<Outcome, Error>> + Send + Sync>;

/// Works until `shutdown`: each key in a `reconcile` span that names what woke it; an error
/// is logged once and the key backs off.
///
/// A reconcile that is under way at shutdown is finished: half a write is worse than a late
/// stop. Callers bound the time with their own deadline on requests.
pub(crate) async fn run<K: Key>(
    workers: Workers,
    queue: Queue<K>,
    shutdown: CancellationToken,
    reconcile: Reconcile<K>,
) {
    let shared = Arc::new((workers, reconcile));
    let mut tasks = JoinSet::new();
    for _ in 0..shared.0.count.max(1) {
        let (queue, shared) = (queue.clone(), shared.clone());
        tasks.spawn(async move {
            let (workers, reconcile) = &*shared;
            while let Some(item) = queue.next().await {
                work(workers, &queue, item, reconcile).await;
            }
        });
    }
    shutdown.cancelled().await;
    queue.shut_down();
    while tasks.join_next().await.is_some() {}
}

/// What a queue may hold: something that can be logged, and that usually names an object.
pub trait Key: Clone + Eq + Hash + Display + Send + Sync + 'static {
    fn object(&self) -> Option<&NamespacedName>;
}

impl Key for NamespacedName {
    fn object(&self) -> Option<&NamespacedName> {
        Some(self)
    }
}

impl Key for String {
    fn object(&self) -> Option<&NamespacedName> {
        None
    }
}

async fn work<K: Key>(workers: &Workers, queue: &Queue<K>, item: Item<K>, reconcile: &Reconcile<K>) {
    let mut span = ferry_trace::Span::root("reconcile", None);
    span.set("controller", workers.controller).set("waitMicros", item.waited.as_micros());
    match item.key.object() {
        Some(key) => span.object(&workers.resource, &key.namespace, &key.name),
        None => span.object(&workers.resource, "", &item.key.to_string()),
    };
    for revision in &item.causes {
        span.caused_by(*revision);
    }
    let key = item.key.clone();
    // A bug met by one object must not stop the work on all others.
    let reconcile = async { reconcile(key.clone()).await };
    let outcome = span.in_scope(AssertUnwindSafe(reconcile).catch_unwind()).await;
    match outcome {
        Ok(Ok(outcome)) => {
            queue.forget(&key);
            if let Outcome::After(delay) = outcome {
                queue.add_after(key, delay);
            }
        }
        Ok(Err(error)) => {
            span.fail(&error);
            let failures = queue.failures(&key);
            // Said at once, and then ever more rarely: the same error does not get more true.
            if error.is_conflict() || !(failures + 1).is_power_of_two() {
                tracing::debug!(controller = workers.controller, %key, failures, %error, "reconcile failed");
            } else {
                tracing::warn!(controller = workers.controller, %key, failures, %error, "reconcile failed");
            }
            queue.add_failed(key, &item.causes);
        }
        Err(_) => {
            span.fail(&"panicked");
            tracing::error!(controller = workers.controller, %key, "reconcile panicked");
            queue.add_failed(key, &item.causes);
        }
    }
    drop(item);
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::Backoff;
    use crate::test_server::until;

    fn workers() -> Workers {
        Workers { controller: "test", resource: "configmaps".into(), count: 2 }
    }

    fn refused() -> Error {
        Error::new("create pod", kube::Error::Api(kube::core::Status::failure("no", "Forbidden").boxed()))
    }

    #[tokio::test(start_paused = true)]
    async fn errors_and_panics_back_off_and_other_keys_go_on() {
        let queue: Queue<NamespacedName> =
            Queue::new(Backoff { base: Duration::from_secs(1), max: Duration::from_secs(60) });
        let shutdown = CancellationToken::new();
        let log: Arc<Mutex<Vec<(String, u64)>>> = Arc::default();
        let (seen, start) = (log.clone(), tokio::time::Instant::now());
        let running = tokio::spawn(run(
            workers(),
            queue.clone(),
            shutdown.clone(),
            Box::new(move |key: NamespacedName| {
                seen.lock().push((key.name.clone(), start.elapsed().as_secs()));
                let attempt = seen.lock().iter().filter(|(name, _)| *name == key.name).count();
                let outcome = async move {
                    match (key.name.as_str(), attempt) {
                        ("fails", ..3) => Err(refused()),
                        ("panics", ..2) => panic!("on purpose"),
                        ("again", ..2) => Ok(Outcome::After(Duration::from_secs(30))),
                        _ => Ok(Outcome::Done),
                    }
                };
                outcome.boxed()
            }),
        ));
        for name in ["fails", "panics", "again", "works"] {
            queue.add(NamespacedName::new("default", name));
        }
        tokio::time::sleep(Duration::from_secs(100)).await;
        shutdown.cancel();
        running.await.unwrap();
        let times = |name: &str| -> Vec<u64> {
            log.lock().iter().filter(|(seen, _)| seen == name).map(|(_, at)| *at).collect()
        };
        assert_eq!(times("fails"), [0, 1, 3]);
        assert_eq!(times("panics"), [0, 1]);
        assert_eq!(times("again"), [0, 30]);
        assert_eq!(times("works"), [0]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_span_names_the_object_and_what_woke_it() {
        let queue: Queue<NamespacedName> = Queue::default();
        let shutdown = CancellationToken::new();
        let context = Arc::new(Mutex::new(None));
        let seen = context.clone();
        let reconcile: Reconcile<NamespacedName> = Box::new(move |_| {
            *seen.lock() = ferry_trace::current();
            async { Err(refused()) }.boxed()
        });
        let running = tokio::spawn(run(workers(), queue.clone(), shutdown.clone(), reconcile));
        queue.add_caused(NamespacedName::new("default", "a"), Some(17));
        until(|| context.lock().is_some()).await;
        shutdown.cancel();
        running.await.unwrap();
        let context = context.lock().expect("was reconciled");
        let spans = ferry_trace::ring().trace(context.trace);
        let span = spans.iter().find(|span| span.span == context.span).expect("is recorded");
        assert_eq!(span.object.as_deref(), Some("configmaps/default/a"));
        assert_eq!(span.causes, [17]);
        assert_eq!(span.error.as_deref(), Some("create pod: no"));
    }
}
