//! The bounded queue between requests and a sink.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use ferry_client::CancellationToken;
use parking_lot::Mutex;
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, timeout_at},
};

use super::{Batching, Event, Sink};

pub(super) struct Queue {
    sink: &'static str,
    sender: mpsc::Sender<Arc<Event>>,
    dropped: AtomicU64,
    closing: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Queue {
    pub(super) fn start(sink: impl Sink) -> Self {
        let (name, batching) = (sink.name(), sink.batching());
        let (sender, receiver) = mpsc::channel(batching.buffer);
        let closing = CancellationToken::new();
        let task = tokio::spawn(deliver(sink, receiver, batching, closing.clone()));
        Queue { sink: name, sender, dropped: AtomicU64::new(0), closing, task: Mutex::new(Some(task)) }
    }

    /// Never waits: when the queue is full, the event is lost and counted.
    pub(super) fn offer(&self, event: Arc<Event>) {
        if self.sender.try_send(event).is_err() {
            let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            // One line for each doubling says enough and cannot flood the log.
            if dropped.is_power_of_two() {
                tracing::warn!(sink = self.sink, dropped, "audit events are lost: the sink does not keep up");
            }
        }
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// What is waiting is written; what comes later is dropped.
    pub(super) async fn close(&self) {
        self.closing.cancel();
        let task = self.task.lock().take();
        if let Some(task) = task
            && let Err(error) = task.await
        {
            tracing::error!(sink = self.sink, %error, "the audit sink's task failed");
        }
    }
}

async fn deliver(
    mut sink: impl Sink,
    mut receiver: mpsc::Receiver<Arc<Event>>,
    batching: Batching,
    closing: CancellationToken,
) {
    while let Some(first) = next(&mut receiver, &closing).await {
        let mut batch = vec![first];
        let deadline = Instant::now() + batching.max_wait;
        while batch.len() < batching.max_batch {
            // What is there already is taken in any case, also when nobody waits for more.
            let next = match receiver.try_recv() {
                Ok(event) => Some(event),
                Err(_) => timeout_at(deadline, next(&mut receiver, &closing)).await.ok().flatten(),
            };
            match next {
                Some(event) => batch.push(event),
                None => break,
            }
        }
        sink.write(batch).await;
    }
}

/// The next event; none when the queue is closed and empty.
async fn next(receiver: &mut mpsc::Receiver<Arc<Event>>, closing: &CancellationToken) -> Option<Arc<Event>> {
    tokio::select! {
        biased;
        event = receiver.recv() => event,
        () = closing.cancelled() => {
            receiver.close();
            receiver.recv().await
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::{
        attributes::Attributes,
        audit::{Level, Record, RequestConfig, RequestFacts, Stage},
        user::User,
    };

    pub(in crate::audit) fn event(id: usize) -> Event {
        let user = Arc::new(User::new("jane"));
        let attributes = Attributes::path(&user, "get", "/");
        let config = RequestConfig { level: Level::Metadata, ..RequestConfig::default() };
        let facts = RequestFacts {
            audit_id: id.to_string(),
            request_uri: "/".to_owned(),
            user_agent: None,
            source_ips: Vec::new(),
            received: SystemTime::UNIX_EPOCH,
            attributes: &attributes,
            user: user.clone(),
        };
        Record::new(config, facts).event(Stage::ResponseComplete, SystemTime::UNIX_EPOCH).unwrap()
    }

    struct Slow {
        gate: Arc<tokio::sync::Semaphore>,
        batches: mpsc::UnboundedSender<usize>,
        max_wait: Duration,
    }

    impl Sink for Slow {
        fn name(&self) -> &'static str {
            "slow"
        }

        fn batching(&self) -> Batching {
            Batching { buffer: 10, max_batch: 4, max_wait: self.max_wait }
        }

        async fn write(&mut self, events: Vec<Arc<Event>>) {
            self.gate.acquire().await.unwrap().forget();
            self.batches.send(events.len()).unwrap();
        }
    }

    #[tokio::test]
    async fn a_sink_that_hangs_costs_events_and_never_time() {
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let (batches, mut written) = mpsc::unbounded_channel();
        let queue = Queue::start(Slow { gate: gate.clone(), batches, max_wait: Duration::ZERO });
        let offered = 100;
        for id in 0..offered {
            queue.offer(Arc::new(event(id)));
        }
        let dropped = queue.dropped();
        assert_eq!(dropped, 90, "ten wait, the others are lost and counted");
        gate.add_permits(100);
        queue.close().await;
        let mut total = 0;
        while let Some(size) = written.recv().await {
            assert!(size <= 4);
            total += size;
        }
        assert_eq!(total + dropped as usize, offered, "what was not dropped is written before the end");
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_waits_to_become_full_but_not_for_ever() {
        let gate = Arc::new(tokio::sync::Semaphore::new(100));
        let (batches, mut written) = mpsc::unbounded_channel();
        let queue = Queue::start(Slow { gate, batches, max_wait: Duration::from_secs(30) });
        let started = Instant::now();
        for id in 0..5 {
            queue.offer(Arc::new(event(id)));
        }
        assert_eq!(written.recv().await, Some(4));
        assert!(started.elapsed() < Duration::from_secs(1), "a full batch does not wait");
        assert_eq!(written.recv().await, Some(1));
        assert!(started.elapsed() >= Duration::from_secs(30));
        queue.close().await;
    }
}
