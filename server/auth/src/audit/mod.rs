//! Audit: records the user, the request, its time and its result.
//!
//! ```text
//! filter ─▶ Policy::decide ─▶ Record ─▶ Event per stage ─▶ Audit::emit ─▶ bounded queue ─▶ sink
//! ```
//!
//! A request never waits for its audit event. Events go into a bounded queue per sink; each sink
//! has a task of its own that takes them out in batches. When a sink cannot keep up its queue
//! fills, and further events are dropped and counted: a full disk must not stop the cluster.

mod event;
mod log_file;
mod policy;
mod queue;
mod webhook;

use std::sync::Arc;

pub use event::{Event, ObjectReference, Record, RequestFacts, ResponseFacts};
pub use log_file::{LogFile, LogFileConfig};
pub use policy::{Policy, PolicyError, RequestConfig};
use queue::Queue;
pub use webhook::{WebhookSink, WebhookSinkConfig};

use serde::{Deserialize, Serialize};

pub const API_VERSION: &str = "audit.k8s.io/v1";

/// How much of a request is written down. Each level includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Level {
    #[default]
    None,
    Metadata,
    Request,
    RequestResponse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    RequestReceived,
    /// A long-running request has begun to answer.
    ResponseStarted,
    ResponseComplete,
    Panic,
}

/// Where events go. Implementations are called from one task at a time.
pub trait Sink: Send + 'static {
    /// Names the sink in logs.
    fn name(&self) -> &'static str;

    fn batching(&self) -> Batching;

    /// Writes a batch. A failure is the sink's to report; the events are gone either way.
    fn write(&mut self, events: Vec<Arc<Event>>) -> impl Future<Output = ()> + Send;
}

/// How events are gathered for a sink.
#[derive(Clone, Copy, Debug)]
pub struct Batching {
    /// Events that may wait; more are dropped.
    pub buffer: usize,
    pub max_batch: usize,
    /// How long a batch may wait to become full.
    pub max_wait: std::time::Duration,
}

/// The policy and the sinks.
pub struct Audit {
    policy: Policy,
    queues: Vec<Queue>,
}

impl Audit {
    pub fn new(policy: Policy) -> Self {
        Audit { policy, queues: Vec::new() }
    }

    /// Adds a sink and starts its task.
    pub fn with_sink(mut self, sink: impl Sink) -> Self {
        self.queues.push(Queue::start(sink));
        self
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Hands an event to every sink, without waiting for any.
    pub fn emit(&self, event: Event) {
        let event = Arc::new(event);
        for queue in &self.queues {
            queue.offer(event.clone());
        }
    }

    /// Events lost so far because a sink could not keep up.
    pub fn dropped(&self) -> u64 {
        self.queues.iter().map(Queue::dropped).sum()
    }

    /// Writes out what is waiting, and ends the sinks' tasks.
    pub async fn close(&self) {
        for queue in &self.queues {
            queue.close().await;
        }
    }
}
