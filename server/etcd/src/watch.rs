//! One stream of watches: a task owns all of them, takes requests from the client and batches from the store, and
//! writes what each is told. A client that does not read makes the task wait; the store then drops its watches and they
//! replay from the log.

use std::collections::HashMap;
use std::pin::Pin;
use std::time::Duration;

use ferry_etcd_api::etcdserverpb::watch_create_request::FilterType;
use ferry_etcd_api::etcdserverpb::watch_request::RequestUnion;
use ferry_etcd_api::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse};
use ferry_etcd_api::mvccpb;
use ferry_etcd_api::mvccpb::event::EventType;
use ferry_store::{Batch, Error, Event, EventKind, Progress, Revision, Store};
use futures::stream::{AbortHandle, BoxStream, SelectAll, abortable};
use futures::{Stream, StreamExt};
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::failure::Failure;
use crate::kv::{key_value, span_of};
use crate::service::Service;

/// Answers that wait for the client.
const CHANNEL: usize = 8;
/// The id of an answer that concerns all watches of a stream.
const EVERY_WATCH: i64 = -1;

pub type Answers = Pin<Box<dyn Stream<Item = Result<WatchResponse, Status>> + Send>>;

impl Service {
    pub fn watch(&self, requests: Streaming<WatchRequest>) -> Answers {
        let (answers, receiver) = mpsc::channel(CHANNEL);
        let watching = Watching {
            service: self.clone(),
            answers,
            watches: HashMap::new(),
            batches: SelectAll::new(),
            next_id: 0,
            progress_wanted: false,
        };
        tokio::spawn(watching.run(requests));
        Box::pin(ReceiverStream::new(receiver))
    }

    async fn event(&self, event: Event, with_previous: bool) -> ferry_store::Result<mvccpb::Event> {
        let mut prev_kv = None;
        if with_previous && !event.is_create() {
            let before = Revision(event.kv.mod_revision.0 - 1);
            prev_kv = match self.store.get(&event.kv.key, Some(before)).await {
                Ok(found) => found.kv.map(key_value),
                // As in etcd, history that is gone is left out.
                Err(Error::Compacted { .. }) => None,
                Err(error) => return Err(error),
            };
        }
        let r#type = match event.kind {
            EventKind::Put => EventType::Put,
            EventKind::Delete => EventType::Delete,
        };
        Ok(mvccpb::Event { r#type: r#type as i32, kv: Some(key_value(event.kv)), prev_kv })
    }
}

struct Watching {
    service: Service,
    answers: mpsc::Sender<Result<WatchResponse, Status>>,
    watches: HashMap<i64, Watch>,
    batches: SelectAll<BoxStream<'static, (i64, ferry_store::Result<Batch>)>>,
    next_id: i64,
    /// The client has asked how far its watches are, and some are behind.
    progress_wanted: bool,
}

struct Watch {
    request: WatchCreateRequest,
    progress: Progress,
    /// Everything up to this revision has been sent.
    delivered: Revision,
    /// Something was sent since the last tick.
    told: bool,
    handle: AbortHandle,
}

/// The client has gone.
struct Gone;

impl Watching {
    async fn run(mut self, mut requests: Streaming<WatchRequest>) {
        let mut tick = tokio::time::interval(self.service.limits.progress_interval);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let stopped = self.service.stopped.clone();
        loop {
            let done = tokio::select! {
                request = requests.message() => match request {
                    Ok(Some(request)) => self.take(request).await,
                    Ok(None) | Err(_) => return,
                },
                Some((id, batch)) = self.batches.next() => self.deliver(id, batch).await,
                _ = tick.tick() => self.notify().await,
                () = self.answers.closed() => return,
                () = stopped.cancelled() => {
                    let ending = Failure::unavailable("etcdserver: server stopped");
                    self.answers.send(Err(ending.into())).await.ok();
                    return;
                }
            };
            if done.is_err() {
                return;
            }
        }
    }

    async fn take(&mut self, request: WatchRequest) -> Result<(), Gone> {
        match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => self.create(request).await,
            Some(RequestUnion::CancelRequest(request)) => match self.watches.remove(&request.watch_id) {
                Some(watch) => {
                    watch.handle.abort();
                    let answer = self.answer(request.watch_id).await?;
                    self.send(WatchResponse { canceled: true, ..answer }).await
                }
                None => Ok(()),
            },
            Some(RequestUnion::ProgressRequest(_)) => {
                self.progress_wanted = true;
                self.tell_progress().await
            }
            None => Ok(()),
        }
    }

    async fn create(&mut self, request: WatchCreateRequest) -> Result<(), Gone> {
        // etcd takes no key for the least one.
        let key = if request.key.is_empty() { &[0][..] } else { &request.key };
        let id = match request.watch_id {
            0 => {
                while self.watches.contains_key(&self.next_id) {
                    self.next_id += 1;
                }
                self.next_id += 1;
                self.next_id - 1
            }
            id => id,
        };
        let mut created = self.answer(id).await?;
        created.created = true;
        let end = &request.range_end[..];
        let refused = if self.watches.contains_key(&id) || id < 0 {
            Some("mvcc: duplicate watch ID provided on the WatchStream")
        } else if !end.is_empty() && end != [0] && key >= end {
            Some("mvcc: watcher range is empty")
        } else {
            None
        };
        if let Some(reason) = refused {
            created.watch_id = EVERY_WATCH;
            return self
                .send(WatchResponse { canceled: true, cancel_reason: reason.into(), ..created })
                .await;
        }
        let current = created.header.map_or(Revision(0), |header| Revision(header.revision));
        let from = match request.start_revision {
            start if start > 0 => Revision(start),
            _ => current.next(),
        };
        let watch = self.service.store.watch_span(span_of(key, &request.range_end), from);
        self.send(created).await?;
        match watch {
            Ok(watch) => {
                let progress = watch.progress();
                let (batches, handle) = abortable(watch.map(move |batch| (id, batch)));
                self.batches.push(batches.boxed());
                let delivered = Revision(from.0 - 1);
                self.watches.insert(id, Watch { request, progress, delivered, told: true, handle });
                Ok(())
            }
            Err(error) => self.end(id, error).await,
        }
    }

    async fn deliver(&mut self, id: i64, batch: ferry_store::Result<Batch>) -> Result<(), Gone> {
        let Some(watch) = self.watches.get_mut(&id) else { return Ok(()) };
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => {
                self.watches.remove(&id);
                return self.end(id, error).await;
            }
        };
        watch.delivered = batch.revision;
        let filters = watch.request.filters.clone();
        let (prev_kv, fragment) = (watch.request.prev_kv, watch.request.fragment);
        let leaves_out = |filter: FilterType| filters.contains(&(filter as i32));
        let mut events = Vec::with_capacity(batch.events.len());
        for event in batch.events {
            let left_out = match event.kind {
                EventKind::Put => leaves_out(FilterType::Noput),
                EventKind::Delete => leaves_out(FilterType::Nodelete),
            };
            if !left_out {
                match self.service.event(event, prev_kv).await {
                    Ok(event) => events.push(event),
                    Err(error) => {
                        self.watches.remove(&id);
                        return self.end(id, error).await;
                    }
                }
            }
        }
        if !events.is_empty() {
            if let Some(watch) = self.watches.get_mut(&id) {
                watch.told = true;
            }
            let header = Some(self.service.header(batch.revision));
            let whole = WatchResponse { header, watch_id: id, events, ..Default::default() };
            let most = if fragment { self.service.limits.request_bytes } else { usize::MAX };
            for part in fragments(whole, most) {
                self.send(part).await?;
            }
        }
        self.tell_progress().await
    }

    /// Ends one watch of the stream, and says why.
    async fn end(&mut self, id: i64, error: Error) -> Result<(), Gone> {
        let mut answer = WatchResponse { canceled: true, ..self.answer(id).await? };
        match error {
            Error::Compacted { compacted, .. } => {
                answer.compact_revision = compacted.0;
                answer.cancel_reason = "etcdserver: mvcc: required revision has been compacted".into();
            }
            error => answer.cancel_reason = error.to_string(),
        }
        self.send(answer).await
    }

    /// Answers a request for progress once every watch has been sent all that happened before.
    async fn tell_progress(&mut self) -> Result<(), Gone> {
        if !self.progress_wanted {
            return Ok(());
        }
        let answer = self.answer(EVERY_WATCH).await?;
        if !self.watches.values().all(|watch| watch.is_up_to(&answer)) {
            return Ok(());
        }
        self.progress_wanted = false;
        self.send(answer).await
    }

    /// Tells watches that were quiet since the last tick how far the store is.
    async fn notify(&mut self) -> Result<(), Gone> {
        let mut answers = Vec::new();
        let now = self.answer(EVERY_WATCH).await?;
        for (id, watch) in &mut self.watches {
            if watch.request.progress_notify && !watch.told && watch.is_up_to(&now) {
                answers.push(WatchResponse { watch_id: *id, ..now.clone() });
            }
            watch.told = false;
        }
        for answer in answers {
            self.send(answer).await?;
        }
        Ok(())
    }

    /// An answer that says nothing yet but the store's revision.
    async fn answer(&mut self, id: i64) -> Result<WatchResponse, Gone> {
        match self.service.current_header().await {
            Ok(header) => Ok(WatchResponse { header, watch_id: id, ..Default::default() }),
            Err(failure) => {
                self.answers.send(Err(failure.into())).await.ok();
                Err(Gone)
            }
        }
    }

    async fn send(&mut self, answer: WatchResponse) -> Result<(), Gone> {
        self.answers.send(Ok(answer)).await.map_err(|_| Gone)
    }
}

impl Watch {
    /// Whether nothing up to the revision of this answer is still to be sent. The answer was made before: what the
    /// store has published since only makes a watch seem behind.
    fn is_up_to(&self, answer: &WatchResponse) -> bool {
        let revision = answer.header.map_or(i64::MAX, |header| header.revision);
        self.delivered.0 >= revision
            || self.progress.newest_event().is_some_and(|newest| self.delivered >= newest)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.watches.values().for_each(|watch| watch.handle.abort());
    }
}

/// Cuts an answer into pieces of at most about `most` bytes; all but the last are marked.
fn fragments(whole: WatchResponse, most: usize) -> Vec<WatchResponse> {
    if most == usize::MAX || whole.encoded_len() <= most {
        return vec![whole];
    }
    let mut parts = Vec::new();
    let mut part = WatchResponse { events: Vec::new(), ..whole.clone() };
    let mut size = 0;
    for event in whole.events {
        let bytes = event.encoded_len();
        if size + bytes > most && !part.events.is_empty() {
            let next = WatchResponse { events: Vec::new(), ..part.clone() };
            parts.push(WatchResponse { fragment: true, ..std::mem::replace(&mut part, next) });
            size = 0;
        }
        size += bytes;
        part.events.push(event);
    }
    parts.push(part);
    parts
}

/// How often etcd tells quiet watches how far it is.
pub const PROGRESS_INTERVAL: Duration = Duration::from_secs(10 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_answer_is_cut_between_events_and_all_but_the_last_piece_say_so() {
        let event = |size: usize| mvccpb::Event {
            kv: Some(mvccpb::KeyValue { value: vec![1; size].into(), ..Default::default() }),
            ..Default::default()
        };
        let answer = |sizes: &[usize]| WatchResponse {
            watch_id: 3,
            events: sizes.iter().map(|size| event(*size)).collect(),
            ..Default::default()
        };
        let shape = |parts: Vec<WatchResponse>| -> Vec<(usize, bool)> {
            assert!(parts.iter().all(|part| part.watch_id == 3));
            parts.iter().map(|part| (part.events.len(), part.fragment)).collect()
        };
        assert_eq!(shape(fragments(answer(&[10, 10, 10]), 1000)), [(3, false)]);
        assert_eq!(shape(fragments(answer(&[400, 400, 400]), 1000)), [(2, true), (1, false)]);
        assert_eq!(shape(fragments(answer(&[4000, 10]), 1000)), [(1, true), (1, false)]);
        assert_eq!(shape(fragments(answer(&[4000, 10]), usize::MAX)), [(2, false)]);
    }
}
