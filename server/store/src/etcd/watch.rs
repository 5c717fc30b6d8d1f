//! A watch that survives lost connections.
//!
//! Each watch has a stream of its own. When that breaks, another begins at the first revision
//! not yet delivered, on whichever member answers.

use std::sync::Arc;
use std::time::Duration;

use ferry_etcd_api::etcdserverpb::watch_request::RequestUnion;
use ferry_etcd_api::etcdserverpb::{WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse};
use ferry_etcd_api::mvccpb::event::EventType;
use futures::StreamExt;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::failure::{is_final, translate};
use super::members::Members;
use super::{bounds, key_value, revision_of};
use crate::{Batch, Error, Event, EventKind, Progress, Result, Revision, Watch};

/// A quiet watch asks this often how far the store is: were it to reconnect from a revision
/// long past, that could be compacted.
const REFRESH: Duration = Duration::from_secs(60);
/// Requests of a watch that wait to be sent: its creation, and at most one for progress.
const REQUESTS: usize = 2;
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How often in a row an etcd that does not order progress must name one without an event
/// coming between. Each time it picks by chance what to send first.
const ROUNDS: usize = 16;
/// And how long such an etcd is given to catch up a watch that begins in the past.
const SETTLE: Duration = Duration::from_millis(300);

/// Whether this version tells the progress of a watch in order with its events.
pub fn has_ordered_progress(version: &str) -> bool {
    let mut parts = version.split(['.', '-', '+']).map(|part| part.parse::<u32>().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    match (next(), next(), next()) {
        (3, 4, patch) => patch >= 25,
        (3, 5, patch) => patch >= 8,
        version => version > (3, 5, 8),
    }
}

pub struct Follower {
    pub members: Members,
    pub prefix: Box<str>,
    /// The first revision not delivered yet.
    pub next: Revision,
    pub ordered_progress: bool,
    pub closed: CancellationToken,
}

impl Follower {
    pub fn follow(self) -> Watch {
        let requested = Arc::new(Notify::new());
        let mut refresh = tokio::time::interval_at(Instant::now() + REFRESH, REFRESH);
        refresh.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let following = Following { requested: requested.clone(), refresh, connection: None, follower: self };
        let batches = futures::stream::unfold(Some(following), |following| async move {
            let mut following = following?;
            match following.next_batch().await {
                Ok(batch) => Some((Ok(batch), Some(following))),
                Err(error) => Some((Err(error), None)),
            }
        });
        Watch::new(batches.boxed(), Progress::on_request(requested))
    }
}

struct Following {
    follower: Follower,
    requested: Arc<Notify>,
    refresh: Interval,
    connection: Option<Connection>,
}

struct Connection {
    requests: mpsc::Sender<WatchRequest>,
    answers: Streaming<WatchResponse>,
    /// Answers to progress requests since the last event; `None` while none is wanted.
    rounds: Option<usize>,
    settled_at: Instant,
}

impl Following {
    async fn next_batch(&mut self) -> Result<Batch> {
        loop {
            if self.connection.is_none() {
                self.connection = Some(self.connect().await?);
            }
            if let Some(batch) = self.step().await? {
                self.follower.next = batch.revision.next();
                return Ok(batch);
            }
        }
    }

    /// Waits for whatever comes first.
    async fn step(&mut self) -> Result<Option<Batch>> {
        let Some(connection) = &mut self.connection else {
            return Ok(None);
        };
        let answer = tokio::select! {
            biased;
            () = self.follower.closed.cancelled() => return Err(super::closed()),
            answer = connection.answers.message() => answer,
            () = self.requested.notified() => {
                return self.ask().await;
            }
            _ = self.refresh.tick() => {
                return self.ask().await;
            }
        };
        match answer {
            Ok(Some(answer)) => self.take(answer).await,
            Ok(None) => {
                self.connection = None;
                Ok(None)
            }
            Err(error) => self.lost(error),
        }
    }

    async fn ask(&mut self) -> Result<Option<Batch>> {
        if let Some(connection) = &mut self.connection
            && connection.rounds.is_none()
        {
            if !self.follower.ordered_progress {
                tokio::time::sleep_until(connection.settled_at).await;
            }
            connection.rounds = Some(0);
            if let Err(error) = connection.request_progress().await {
                return self.lost(error);
            }
        }
        Ok(None)
    }

    async fn take(&mut self, answer: WatchResponse) -> Result<Option<Batch>> {
        let current = revision_of(answer.header.as_ref())?;
        if answer.compact_revision > 0 {
            return Err(Error::Compacted {
                requested: self.follower.next,
                compacted: Revision(answer.compact_revision),
                current,
            });
        }
        if answer.canceled {
            tracing::info!(reason = answer.cancel_reason, "etcd ended a watch");
            self.connection = None;
            return Ok(None);
        }
        if answer.created {
            return Ok(None);
        }
        if answer.events.is_empty() {
            return self.progress(answer.watch_id, current).await;
        }
        if let Some(connection) = &mut self.connection
            && let Some(rounds) = &mut connection.rounds
        {
            *rounds = 0;
        }
        batch(answer).map(Some)
    }

    async fn progress(&mut self, watch_id: i64, current: Revision) -> Result<Option<Batch>> {
        // What etcd says on its own it says in order; what it says on request has no watch's id.
        let on_request = watch_id < 0;
        if let Some(connection) = &mut self.connection
            && on_request
        {
            let rounds = connection.rounds.unwrap_or(0) + 1;
            if !self.follower.ordered_progress && rounds < ROUNDS {
                connection.rounds = Some(rounds);
                if let Err(error) = connection.request_progress().await {
                    return self.lost(error);
                }
                return Ok(None);
            }
            connection.rounds = None;
        }
        // A watch that begins in the future has nothing to say before it has begun.
        Ok((current >= self.follower.next).then_some(Batch { events: Vec::new(), revision: current }))
    }

    fn lost(&mut self, error: Status) -> Result<Option<Batch>> {
        if is_final(&error) {
            return Err(translate("watch etcd", error));
        }
        tracing::info!(%error, "lost a watch; resuming at its last revision");
        self.connection = None;
        // Whoever asked still waits for an answer.
        self.requested.notify_one();
        Ok(None)
    }

    async fn connect(&mut self) -> Result<Connection> {
        let (mut backoff, longest) = BACKOFF;
        loop {
            let attempt = self.open();
            let failure = tokio::select! {
                opened = attempt => match opened {
                    Ok(connection) => return Ok(connection),
                    Err(error) if is_final(&error) => return Err(translate("watch etcd", error)),
                    Err(error) => error,
                },
                () = self.follower.closed.cancelled() => return Err(super::closed()),
            };
            tracing::info!(error = %failure, "cannot watch etcd; will try again");
            tokio::select! {
                () = tokio::time::sleep(backoff) => {}
                () = self.follower.closed.cancelled() => return Err(super::closed()),
            }
            backoff = (backoff * 2).min(longest);
        }
    }

    async fn open(&self) -> Result<Connection, Status> {
        let (start, end) = bounds(&self.follower.prefix, None);
        let create = WatchCreateRequest {
            key: start.into(),
            range_end: end.into(),
            start_revision: self.follower.next.0,
            progress_notify: true,
            ..Default::default()
        };
        let (requests, sent) = mpsc::channel(REQUESTS);
        // There is room for it, and the other end is not closed before it is sent.
        requests.try_send(request(RequestUnion::CreateRequest(create))).ok();
        let (at, mut member) = self.follower.members.current();
        let answers = member.watch.watch(ReceiverStream::new(sent)).await;
        if answers.is_err() {
            self.follower.members.switch_from(at);
        }
        let answers = answers?.into_inner();
        Ok(Connection { requests, answers, rounds: None, settled_at: Instant::now() + SETTLE })
    }
}

impl Connection {
    async fn request_progress(&self) -> Result<(), Status> {
        let request = request(RequestUnion::ProgressRequest(WatchProgressRequest {}));
        self.requests.send(request).await.map_err(|_| Status::unavailable("the watch has ended"))
    }
}

fn request(union: RequestUnion) -> WatchRequest {
    WatchRequest { request_union: Some(union) }
}

fn batch(answer: WatchResponse) -> Result<Batch> {
    let mut events = Vec::with_capacity(answer.events.len());
    for event in answer.events {
        let kind = match event.r#type() {
            EventType::Put => EventKind::Put,
            EventType::Delete => EventKind::Delete,
        };
        let Some(kv) = event.kv else {
            return Err(Error::corrupt("an event of etcd has no key"));
        };
        events.push(Event { kind, kv: key_value(kv)? });
    }
    // The header may name a later revision while the watch still catches up.
    let revision = events.last().map_or(Revision(0), |event| event.kv.mod_revision);
    Ok(Batch { events, revision })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_are_known_by_their_number() {
        for version in ["3.4.25", "3.4.34", "3.5.8", "3.5.21", "3.6.0", "4.0.0"] {
            assert!(has_ordered_progress(version), "{version}");
        }
        for version in ["3.4.23", "3.5.7", "3.3.27", "3.5.0-rc.1", "", "x"] {
            assert!(!has_ordered_progress(version), "{version}");
        }
    }
}
