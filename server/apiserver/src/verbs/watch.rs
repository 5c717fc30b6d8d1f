//! WATCH: a stream of events. Each event is encoded once for all watchers with the same media type.

use std::collections::VecDeque;
use std::ops::Bound;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ferry_api::{Kind, Status, excerpt, protobuf};
use ferry_metrics::Counter;
use ferry_registry::cache::{
    Change, Encoding as FormEncoding, Entry, Event, Filter, Form, Snapshot, Watcher,
};
use ferry_registry::conversion::Conversion;
use ferry_registry::verbs::list::Freshness;
use ferry_registry::verbs::watch::Start;
use ferry_registry::{Registry, Resource};
use ferry_store::Revision;
use futures::future::BoxFuture;
use futures::{FutureExt, Stream};
use http::header::CONTENT_TYPE;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Target, read};
use crate::body::{Body, Response};
use crate::flow_control::{CountedWatch, Seats};
use crate::negotiate::{Encoding, MediaType, View};
use crate::poll_when_woken::PollWhenWoken;
use crate::request::{LONGEST_WAIT, revision};
use crate::{metrics, respond, table, websocket};

/// Period of the bookmarks of a watch without events.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// The last bookmark precedes the watch's end by this, so that its client resumes from there.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// Pending events are sent as one chunk of about this size at most.
const CHUNK: usize = 64 * 1024;

pub async fn watch(target: Target<'_>) -> Result<Response, Status> {
    let media_type = target.media_type()?;
    let query = &target.request.query;
    let bookmarks = query.flag("allowWatchBookmarks");
    let send_initial = match query.get("sendInitialEvents") {
        None | Some("") => None,
        Some(_) => Some(query.flag("sendInitialEvents")),
    };
    let (start, ends_initial) =
        start(query.text("resourceVersion"), query.text("resourceVersionMatch"), send_initial, bookmarks)?;
    let filter = read::filter(target)?;
    let frames = Frames::new(target, media_type);
    let deadline = Instant::now() + watch_duration(target, query.text("timeoutSeconds"))?;
    let watching = match target.api.registry.watch(target.resource, filter.clone(), start).await {
        // As an ERROR event, like in the middle of a watch: after a response with this code some clients retry the same
        // revision for ever.
        Err(status) if status.code == 410 => {
            let error = frames.error(&status);
            return answer(target, media_type, futures::stream::iter([error]));
        }
        watching => watching?,
    };
    if let (Conversion::Webhook(_), Some((snapshot, _))) = (&target.resource.conversion, &watching.initial) {
        let entries = snapshot.values().filter(|entry| filter.matches(entry));
        let entries: Vec<Arc<Entry>> = entries.cloned().collect();
        target.resource.prepare(&entries, target.kind).await?;
    }
    let stream = EventStream {
        frames,
        filter,
        initial: watching.initial.map(|(snapshot, revision)| Initial { snapshot, revision, sent_to: None }),
        ready: VecDeque::new(),
        converting: None,
        ends_initial,
        watcher: watching.watcher,
        next_bookmark: bookmarks.then(|| until(next_bookmark(Instant::now(), deadline))),
        deadline,
        over: PollWhenWoken::new(over(deadline, target.api.health.stopping())),
        last_sent: Revision(0),
        ended: false,
        seats: target.request.seats.lock().take(),
        _counted: target.api.flow_control.count_watch(&target.request.info),
        _running: metrics::long_running(&target.api.served(), target.request),
        sent: metrics::watch_events(target.kind),
    };
    answer(target, media_type, stream)
}

fn answer(
    target: Target<'_>,
    media_type: MediaType,
    stream: impl Stream<Item = Bytes> + Send + 'static,
) -> Result<Response, Status> {
    if websocket::is_upgrade(&target.request.headers) {
        return websocket::serve_lines(target.request, stream);
    }
    let builder = http::Response::builder().status(200).header(CONTENT_TYPE, media_type.watch_content_type());
    Ok(respond::finish(builder, Body::stream(stream)))
}

/// Where the watch begins, and whether a bookmark marks the end of the initial events.
fn start(
    version: &str,
    rule: &str,
    send_initial: Option<bool>,
    bookmarks: bool,
) -> Result<(Start, bool), Status> {
    let mut errors = ferry_api::FieldErrors::default();
    match send_initial {
        Some(_) if rule.is_empty() => errors.forbidden(
            "resourceVersionMatch",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ),
        None if !rule.is_empty() => errors.forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ),
        _ => {}
    }
    if !["", "NotOlderThan"].contains(&rule) {
        errors.not_supported("resourceVersionMatch", rule, &["NotOlderThan"]);
    }
    if !errors.is_empty() {
        return Err(Status::invalid("meta.k8s.io", "ListOptions", "", &errors));
    }
    let at_least = match version {
        "" => Freshness::Current,
        "0" => Freshness::Any,
        text => Freshness::NotOlderThan(revision(text)?),
    };
    Ok(match (send_initial, at_least) {
        (Some(true), freshness) => (Start::Now(freshness), bookmarks),
        (_, Freshness::NotOlderThan(revision)) => (Start::After(revision), false),
        // Without a revision, a watch begins with everything there is.
        (None, freshness) => (Start::Now(freshness), false),
        (Some(false), freshness) => (Start::ChangesOnly(freshness), false),
    })
}

fn watch_duration(target: Target<'_>, asked: &str) -> Result<Duration, Status> {
    match asked {
        "" | "0" => {
            let least = target.api.limits.min_watch;
            Ok(least + least.mul_f64(rand::random::<f64>()))
        }
        text => seconds(text),
    }
}

/// A number of seconds as upstream reads it, 64 bits with a sign. A year is as good as for ever.
fn seconds(text: &str) -> Result<Duration, Status> {
    match text.parse::<i64>().map(u64::try_from) {
        Ok(Ok(seconds)) => Ok(Duration::from_secs(seconds).min(LONGEST_WAIT)),
        _ => Err(Status::bad_request(format!("invalid timeoutSeconds: {:?}", excerpt::of(text, 64)))),
    }
}

struct EventStream {
    frames: Frames,
    filter: Filter,
    initial: Option<Initial>,
    /// Pieces to be sent next.
    ready: VecDeque<Bytes>,
    ends_initial: bool,
    watcher: Watcher,
    /// An event that a webhook is converting.
    converting: Option<Converting>,
    next_bookmark: Option<PollWhenWoken<()>>,
    deadline: Instant,
    /// Resolves when the watch has lasted long enough, or the server stops.
    over: PollWhenWoken<()>,
    last_sent: Revision,
    ended: bool,
    /// Held while the initial events are sent.
    seats: Option<Seats>,
    _counted: Option<CountedWatch>,
    _running: Option<metrics::GaugeGuard>,
    /// Counts events.
    sent: Arc<Counter>,
}

/// The objects that a watch begins with, as far as they are not sent yet.
struct Initial {
    snapshot: Snapshot,
    revision: Revision,
    sent_to: Option<Arc<str>>,
}

struct Converting {
    event: Arc<Event>,
    /// What the event is to the watch, when the object that it shows is converted.
    done: BoxFuture<'static, Result<Option<Change>, Status>>,
}

async fn over(deadline: Instant, stopping: CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep_until(deadline) => {}
        () = stopping.cancelled() => {}
    }
}

impl Stream for EventStream {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let next = ready!(self.poll_bytes(context));
        self.ended = !matches!(next, Ok(Some(_)));
        Poll::Ready(next.unwrap_or_else(|status| Some(self.frames.error(&status))))
    }
}

impl EventStream {
    /// The next bytes to send; `None` when the watch is over.
    fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        if let Some(mut initial) = self.initial.take_if(|_| self.ready.is_empty()) {
            self.frames.initial(&mut initial, &self.filter, &mut self.ready)?;
            if initial.sent_to.is_some() {
                self.initial = Some(initial);
            } else {
                self.last_sent = initial.revision;
                if self.ends_initial {
                    self.ready.push_back(self.frames.bookmark(initial.revision, true)?);
                }
            }
        }
        if let Some(bytes) = self.ready.pop_front() {
            return Poll::Ready(Ok(Some(bytes)));
        }
        self.seats = None;
        if let Some(converting) = &mut self.converting {
            let seen = ready!(converting.done.poll_unpin(context))?;
            let event = converting.event.clone();
            self.converting = None;
            self.last_sent = event.revision;
            let Some(change) = seen else {
                // The next one has its turn after others had theirs.
                context.waker().wake_by_ref();
                return Poll::Pending;
            };
            self.sent.inc();
            return Poll::Ready(self.frames.shared_frame(change, &event).map(Some));
        }
        // Read before the watcher looks: an event that is applied after its look must not be covered by a bookmark.
        let applied = self.frames.registry.log.applied();
        if let Poll::Ready(delivered) = self.watcher.poll_next(context) {
            let (change, event) = delivered.map_err(|gone| {
                Status::expired(format!("too old resource version: {} ({})", self.last_sent, gone.oldest))
            })?;
            if let Conversion::Webhook(_) = &self.frames.resource.conversion {
                self.converting = Some(self.frames.convert(change, event, &self.filter));
                return self.poll_bytes(context);
            }
            return Poll::Ready(self.events(change, &event).map(Some));
        }
        if let Some(time) = &mut self.next_bookmark
            && !self.watcher.has_more()
            && time.poll_unpin(context).is_ready()
        {
            self.next_bookmark = Some(until(next_bookmark(Instant::now(), self.deadline)));
            self.last_sent = self.last_sent.max(applied);
            return Poll::Ready(self.frames.bookmark(self.last_sent, false).map(Some));
        }
        self.over.poll_unpin(context).map(|()| Ok(None))
    }

    /// An event, and those that came meanwhile.
    fn events(&mut self, change: Change, event: &Event) -> Result<Bytes, Status> {
        self.last_sent = event.revision;
        self.sent.inc();
        let first = self.frames.shared_frame(change, event)?;
        // Mostly it is the only one, and goes out as it is for all watchers.
        let mut out = BytesMut::new();
        // One that fell behind meanwhile hears of it after what it still got.
        while first.len() + out.len() < CHUNK
            && let Ok(Some((change, event))) = self.watcher.try_next()
        {
            if out.is_empty() {
                out.extend_from_slice(&first);
            }
            self.last_sent = event.revision;
            self.sent.inc();
            out.extend_from_slice(&self.frames.shared_frame(change, &event)?);
        }
        Ok(if out.is_empty() { first } else { out.freeze() })
    }
}

fn until(time: Instant) -> PollWhenWoken<()> {
    PollWhenWoken::new(tokio::time::sleep_until(time))
}

fn next_bookmark(now: Instant, deadline: Instant) -> Instant {
    let usual = now + BOOKMARK_EVERY;
    match deadline.checked_sub(LAST_BOOKMARK) {
        Some(last) if last > now && last < usual => last,
        _ => usual,
    }
}

/// Writes events in the form one watcher asked for.
struct Frames {
    registry: Arc<Registry>,
    kind: Arc<Kind>,
    resource: Arc<Resource>,
    /// How whole objects are written.
    form: Form,
    media_type: MediaType,
    table_query: bool,
    include_object: String,
    columns_sent: bool,
    /// Each piece is one or more whole lines, as WebSockets need them.
    in_lines: bool,
}

impl Frames {
    fn new(target: Target<'_>, media_type: MediaType) -> Frames {
        let encoding = match media_type.encoding {
            Encoding::Protobuf => FormEncoding::Protobuf,
            _ => FormEncoding::Json,
        };
        Frames {
            registry: target.api.registry.clone(),
            kind: target.kind.clone(),
            resource: target.resource.clone(),
            form: Form { version: target.kind.api_version().into(), encoding },
            media_type,
            table_query: media_type.view == View::Table,
            include_object: target.request.query.text("includeObject").to_string(),
            columns_sent: false,
            in_lines: websocket::is_upgrade(&target.request.headers),
        }
    }

    /// A chunk of the initial events; sets `sent_to` to the last key sent, or to `None` at the end.
    fn initial(
        &mut self,
        initial: &mut Initial,
        filter: &Filter,
        ready: &mut VecDeque<Bytes>,
    ) -> Result<(), Status> {
        let mut out = BytesMut::new();
        let from = initial.sent_to.take().map_or(Bound::Unbounded, Bound::Excluded);
        for (key, entry) in initial.snapshot.range::<_, Arc<str>>((from, Bound::Unbounded)) {
            if !filter.matches(entry) {
                continue;
            }
            match self.large_json(entry)? {
                // It goes out as the cache's own bytes.
                Some(json) => {
                    json_frame_start(Change::Added.as_str())
                        .iter()
                        .for_each(|part| out.extend_from_slice(part));
                    ready.extend([out.split().freeze(), json]);
                    out.extend_from_slice(JSON_FRAME_END);
                }
                None => out.extend_from_slice(&self.frame(Change::Added, entry)?),
            }
            if out.len() >= CHUNK || !ready.is_empty() {
                initial.sent_to = Some(key.clone());
                break;
            }
        }
        if !out.is_empty() {
            ready.push_back(out.freeze());
        }
        Ok(())
    }

    fn large_json(&self, entry: &Entry) -> Result<Option<Bytes>, Status> {
        let is_json = self.media_type.view == View::Whole && self.media_type.encoding != Encoding::Protobuf;
        if self.in_lines || !is_json || entry.json.len() < CHUNK / 2 {
            return Ok(None);
        }
        self.resource.json_of(entry, &self.kind).map(Some)
    }

    /// Has the object that an event shows converted, for all who watch this version.
    fn convert(&self, change: Change, event: Arc<Event>, filter: &Filter) -> Converting {
        let (resource, kind, of) = (self.resource.clone(), self.kind.clone(), event.clone());
        let by_fields = filter.needs_version().map(|_| filter.clone());
        let done = async move {
            let seen = match by_fields {
                Some(filter) => resource.see_converted(&of, &filter, &kind).await?,
                None => Some(change),
            };
            if let Some(change) = seen {
                resource.prepare(&[of.shown(change)], &kind).await?;
            }
            Ok(seen)
        };
        Converting { event, done: done.boxed() }
    }

    /// Whole objects are written once per event; tables and partial objects per watcher.
    fn shared_frame(&mut self, change: Change, event: &Event) -> Result<Bytes, Status> {
        if self.media_type.view != View::Whole {
            return self.frame(change, &event.shown(change));
        }
        event.frame(change, &self.form, |entry| self.whole_frame(change.as_str(), entry))
    }

    fn frame(&mut self, change: Change, entry: &Entry) -> Result<Bytes, Status> {
        if self.media_type.view == View::Whole {
            return self.whole_frame(change.as_str(), entry);
        }
        let object = serde_json::from_slice(&self.resource.json_of(entry, &self.kind)?)
            .ok()
            .and_then(ferry_api::Object::from_value)
            .ok_or_else(|| Status::internal("an object of the cache cannot be read"))?;
        let shown = match self.media_type.view {
            View::Table => {
                let first = !std::mem::replace(&mut self.columns_sent, true);
                let columns = self.resource.strategy.columns(&self.kind.version);
                table::of_event(columns, &object, &self.include_object, first)?
            }
            _ => respond::partial(&object).into_value(),
        };
        self.value_frame(change.as_str(), shown)
    }

    fn whole_frame(&self, change: &str, entry: &Entry) -> Result<Bytes, Status> {
        match self.media_type.encoding {
            Encoding::Protobuf => {
                Ok(protobuf_frame(change, &respond::protobuf_of(&self.resource, &self.kind, entry)?))
            }
            _ => Ok(json_frame(change, &self.resource.json_of(entry, &self.kind)?)),
        }
    }

    fn value_frame(&self, change: &str, value: serde_json::Value) -> Result<Bytes, Status> {
        if self.media_type.encoding != Encoding::Protobuf {
            return Ok(json_frame(change, value.to_string().as_bytes()));
        }
        let object =
            ferry_api::Object::from_value(value).ok_or_else(|| Status::internal("no object to send"))?;
        let gvk = ferry_api::GroupVersionKind::from_api_version(object.api_version(), object.kind());
        let schema = ferry_api::Schema::on_the_wire(&gvk)
            .ok_or_else(|| Status::internal(format!("{gvk} has no protobuf form")))?;
        let bytes =
            protobuf::encode(&object, &schema).map_err(|error| Status::internal(error.to_string()))?;
        Ok(protobuf_frame(change, &bytes))
    }

    fn bookmark(&self, revision: Revision, ends_initial: bool) -> Result<Bytes, Status> {
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if ends_initial {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        if self.table_query {
            let table = json!({
                "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": revision.to_string()},
                "columnDefinitions": null,
                "rows": [{"cells": [], "object": {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}}],
            });
            return self.value_frame("BOOKMARK", table);
        }
        let (api_version, kind) = match self.media_type.view {
            View::PartialMetadata => ("meta.k8s.io/v1".to_string(), "PartialObjectMetadata"),
            _ => (self.kind.api_version(), &*self.kind.kind),
        };
        metadata.as_object_mut().map(|metadata| metadata.remove("creationTimestamp"));
        self.value_frame("BOOKMARK", json!({"kind": kind, "apiVersion": api_version, "metadata": metadata}))
    }

    fn error(&self, status: &Status) -> Bytes {
        let value = serde_json::to_value(status).expect("a Status is JSON");
        self.value_frame("ERROR", value).unwrap_or_else(|_| json_frame("ERROR", &status.to_json()))
    }
}

/// A length of four bytes, then the event.
fn protobuf_frame(change: &str, object: &[u8]) -> Bytes {
    let event = protobuf::encode_watch_event(change, object);
    let mut frame = Vec::with_capacity(event.len() + 4);
    frame.extend_from_slice(&(event.len() as u32).to_be_bytes());
    frame.extend_from_slice(&event);
    frame.into()
}

fn json_frame(change: &str, object: &[u8]) -> Bytes {
    let mut frame = Vec::with_capacity(object.len() + 40);
    json_frame_start(change).iter().for_each(|part| frame.extend_from_slice(part));
    frame.extend_from_slice(object);
    frame.extend_from_slice(JSON_FRAME_END);
    frame.into()
}

fn json_frame_start(change: &str) -> [&[u8]; 3] {
    [b"{\"type\":\"", change.as_bytes(), b"\",\"object\":"]
}

const JSON_FRAME_END: &[u8] = b"}\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_seconds_is_a_valid_time() {
        for text in ["1", "31536001", "9223372036854775807"] {
            let _ = Instant::now() + seconds(text).expect(text);
        }
        for text in ["18446744073709551615", "-1", "9223372036854775808", "x"] {
            assert_eq!(seconds(text).expect_err(text).code, 400);
        }
    }

    #[tokio::test]
    async fn a_watch_hears_of_the_revision_every_minute_and_before_its_end() {
        let now = Instant::now();
        let check = |lasts: u64, expected: u64| {
            let next = next_bookmark(now, now + Duration::from_secs(lasts));
            assert_eq!(next - now, Duration::from_secs(expected), "a watch of {lasts} s");
        };
        check(1800, 60);
        check(30, 28);
        check(3, 1);
        check(1, 60);
    }

    #[test]
    fn a_watch_begins_where_its_parameters_say() {
        let check = |version, rule, initial, expected| {
            assert_eq!(start(version, rule, initial, true).ok(), expected, "{version} {rule} {initial:?}");
        };
        check("", "", None, Some((Start::Now(Freshness::Current), false)));
        check("0", "", None, Some((Start::Now(Freshness::Any), false)));
        check("5", "", None, Some((Start::After(Revision(5)), false)));
        check("", "NotOlderThan", Some(true), Some((Start::Now(Freshness::Current), true)));
        check("5", "", Some(true), None);
        check("5", "NotOlderThan", None, None);
        check("x", "", None, None);
    }
}
