//! `/ferry/v1/trace`: serves the recorded spans by object, trace, revision or time, once or as a stream, and accepts the
//! spans of other processes.
//!
//! | request | answer |
//! | --- | --- |
//! | `GET ?object=deployment/nginx&namespace=default` | what led to the latest life of that object, and what came of it |
//! | `GET ?object=…&uid=UID`, `&lives=all` | the same for one life, or for all of them |
//! | `GET ?object=…&direction=back` | only what led to it |
//! | `GET ?trace=ID`, `?revision=N`, `?user=NAME` | the same for a trace, a revision, and all that a user did |
//! | `GET ?last=true` | the same for the latest write that was no component's |
//! | `GET ?from=NANOSECONDS&to=NANOSECONDS` | everything in that time |
//! | `GET ?after=SEQUENCE` | everything in memory that ended since |
//! | `GET ?follow=true[&after=SEQUENCE]` | one record a line, as spans end |
//! | `&watch=true` | the answer as a line, and another one whenever it has changed |
//! | `&story=chapters`, `&story=steps` | besides the records, the lines that `ferry trace` prints, as JSON; all of them with `steps` |
//! | `POST` a list of records | they are kept, marked with who sent them |
//! | `POST ?server=ADDRESS` a packet | the same by another server ([`crate::trace_peers`]) |
//!
//! Answers are put together from what is in memory and, where the server keeps a history, from disk.
//!
//! RBAC gives the path to administrators. Nodes may hand in their spans and read none.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ferry_api::Status;
use ferry_auth::user::MASTERS;
use ferry_trace::axis::Fold;
use ferry_trace::chapters::{Detail, Story, story};
use ferry_trace::clocks::{self, Correction};
use ferry_trace::history::{Direction, Found, Wanted, gather};
use ferry_trace::lives::life_of;
use ferry_trace::timeline::{Focus, timeline};
use ferry_trace::{History, Life, Record, SpanId, TraceId, lives, packet, ring};
use http::header::CONTENT_TYPE;
use serde::Serialize;

use crate::api::Api;
use crate::body::{Body, Response};
use crate::request::Request;
use crate::respond;
use crate::trace_peers::{self, Taken};

pub const PATH: &str = "/ferry/v1/trace";

/// More than a kubectl command records; an agent sends several batches.
const MAX_RECORDS: usize = 512;
const MAX_BYTES: usize = 512 * 1024;

/// Spans end in bursts; a follower gets one burst at a time.
const GATHER: Duration = Duration::from_millis(50);
/// Minimum time between two lines of a watched response.
const WATCH: Duration = Duration::from_millis(300);
/// A stream ends after this time, and its client reconnects; abandoned connections do not stay open.
const FOLLOW: Duration = Duration::from_secs(3600);

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct TraceResponse {
    /// The value of `after` for the next request.
    sequence: u64,
    records: Vec<Record>,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lives: Vec<Life>,
    /// The life that the records are of, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    is_cut: bool,
    /// Clocks of other hosts that contradict the causes; their records were shifted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    clocks: Vec<Correction>,
    dropped: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    story: Option<StoryLines>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
}

/// The records as the lines of `ferry trace`.
#[derive(Serialize)]
struct StoryLines {
    #[serde(flatten)]
    story: Story,
    folds: Vec<Fold>,
}

/// Columns of the axis that gaps are folded for.
const COLUMNS: usize = 120;

impl StoryLines {
    fn of(records: &[Record], detail: Detail) -> StoryLines {
        let story = story(records, detail);
        StoryLines { folds: story.folds(COLUMNS), story }
    }
}

/// The spans that a request selects.
#[derive(Clone)]
enum Question {
    Object { key: String, uid: Option<String>, all_lives: bool, direction: Direction },
    Trace(TraceId),
    Revision(i64),
    User(String),
    Last,
    Time { from: u64, to: Option<u64> },
    After(u64),
}

pub async fn answer(api: &Api, request: &Request) -> Result<Response, Status> {
    if request.query.flag("follow") {
        let after = request.query.get("after").map(number::<u64>).transpose()?;
        let latest = ring().latest();
        // A sequence above the latest is of an earlier run: send everything of this run.
        return Ok(follow(after.map_or(latest, |after| if after > latest { 0 } else { after })));
    }
    let question = question(api, request)?;
    let detail = match request.query.get("story") {
        None => None,
        Some("chapters") => Some(Detail::Chapters),
        Some("steps") => Some(Detail::All),
        Some(_) => return Err(Status::bad_request("story must be chapters or steps")),
    };
    let asked = TraceQuery { question, detail, history: api.history.clone() };
    if request.query.flag("watch") {
        return Ok(watch(asked));
    }
    let body = asked.answer().await.and_then(|answer| json_of(&answer))?;
    Ok(respond::json_bytes(200, body.into()))
}

fn json_of(answer: &TraceResponse) -> Result<Vec<u8>, Status> {
    serde_json::to_vec(answer)
        .map_err(|error| Status::internal(format!("the trace cannot be written: {error}")))
}

/// A request for spans, and the history that is searched besides the memory.
#[derive(Clone)]
struct TraceQuery {
    question: Question,
    detail: Option<Detail>,
    history: Option<Arc<History>>,
}

impl TraceQuery {
    async fn answer(&self) -> Result<TraceResponse, Status> {
        let TraceQuery { question, detail, history } = self.clone();
        let sequence = ring().latest();
        // Files are read.
        let answer = tokio::task::spawn_blocking(move || {
            let mut answer = question.answer(history.as_deref())?;
            answer.clocks = clocks::correct(&mut answer.records);
            answer.story = detail.map(|detail| StoryLines::of(&answer.records, detail));
            Ok::<_, io::Error>(TraceResponse { sequence, ..answer })
        })
        .await;
        let answer =
            answer.map_err(|error| Status::internal(format!("the trace cannot be put together: {error}")))?;
        answer.map_err(|error| Status::internal(format!("the history cannot be read: {error}")))
    }

    /// Whether a span that has just ended can change the response.
    fn concerns(&self, traces: &HashSet<TraceId>, written: &HashSet<i64>, record: &Record) -> bool {
        let is_new = match &self.question {
            Question::Object { key, .. } => record.object.as_deref() == Some(key),
            Question::Last => is_command(record),
            Question::User(user) => record.text("user") == Some(user),
            Question::Revision(revision) => record.causes.contains(revision),
            Question::Time { .. } | Question::After(_) => true,
            Question::Trace(_) => false,
        };
        is_new || traces.contains(&record.trace) || record.causes.iter().any(|cause| written.contains(cause))
    }
}

/// The response now, and again after each change.
fn watch(asked: TraceQuery) -> Response {
    let ends = tokio::time::Instant::now() + FOLLOW;
    let answers = futures::stream::unfold(None::<(TraceResponse, Duration)>, move |last| {
        let asked = asked.clone();
        async move {
            if let Some((answer, pause)) = last {
                let change = changed(&asked, &answer, pause);
                tokio::time::timeout_at(ends, change).await.ok()?;
            }
            let began = std::time::Instant::now();
            let answer = asked.answer().await.ok()?;
            let mut line = json_of(&answer).ok()?;
            line.push(b'\n');
            // Limits the CPU of expensive responses to a fifth of the time.
            let pause = WATCH.max(began.elapsed() * 4);
            Some((Bytes::from(line), Some((answer, pause))))
        }
    });
    let builder = http::Response::builder().header(CONTENT_TYPE, "application/x-ndjson");
    respond::finish(builder, Body::stream(answers))
}

async fn changed(asked: &TraceQuery, answer: &TraceResponse, pause: Duration) {
    let traces: HashSet<TraceId> = answer.records.iter().map(|record| record.trace).collect();
    let written: HashSet<i64> = answer.records.iter().filter_map(|record| record.committed).collect();
    let mut after = answer.sequence;
    loop {
        ring().ended_after(after).await;
        tokio::time::sleep(pause).await;
        let ended = ring().after(after);
        if ended.iter().any(|record| asked.concerns(&traces, &written, record)) {
            return;
        }
        after = ended.last().map_or(after, |record| record.sequence);
    }
}

fn question(api: &Api, request: &Request) -> Result<Question, Status> {
    let query = &request.query;
    if let Some(object) = query.get("object") {
        let direction = match query.get("direction") {
            None | Some("both") => Direction::Both,
            Some("back") => Direction::Back,
            Some(_) => return Err(Status::bad_request("direction must be back or both")),
        };
        let all_lives = match query.get("lives") {
            None | Some("latest") => false,
            Some("all") => true,
            Some(_) => return Err(Status::bad_request("lives must be latest or all")),
        };
        let key = object_key(api, object, query.text("namespace"))?;
        return Ok(Question::Object { key, uid: query.get("uid").map(str::to_owned), all_lives, direction });
    }
    if let Some(trace) = query.get("trace") {
        let trace = trace.parse::<TraceId>();
        let trace = trace.map_err(|_| Status::bad_request("trace must be 32 hexadecimal digits"))?;
        return Ok(Question::Trace(trace));
    }
    if let Some(revision) = query.get("revision") {
        return Ok(Question::Revision(number(revision)?));
    }
    if let Some(user) = query.get("user") {
        return Ok(Question::User(user.to_owned()));
    }
    if query.flag("last") {
        return Ok(Question::Last);
    }
    let (from, to) = (query.get("from").map(number::<u64>), query.get("to").map(number::<u64>));
    if from.is_some() || to.is_some() {
        return Ok(Question::Time { from: from.transpose()?.unwrap_or(0), to: to.transpose()? });
    }
    Ok(Question::After(query.get("after").map(number::<u64>).transpose()?.unwrap_or(0)))
}

impl Question {
    fn answer(self, history: Option<&History>) -> io::Result<TraceResponse> {
        let records = Records { history };
        let answer = match self {
            Question::Object { key, uid, all_lives, direction } => {
                records.object(key, uid, all_lives, direction)?
            }
            Question::Trace(trace) => records.trace(trace)?,
            Question::Revision(revision) => {
                records.chained(&Wanted::revisions([revision]), &Focus::Revision(revision))?
            }
            Question::User(user) => {
                response(gather(&Wanted::user(user), Direction::Both, |wanted| records.find(wanted))?)
            }
            Question::Last => records.last_command()?,
            Question::Time { from, to } => {
                response(records.find(&Wanted { from, to, ..Wanted::default() })?)
            }
            Question::After(after) => {
                TraceResponse { records: ring().after(after), ..TraceResponse::default() }
            }
        };
        let dropped = history.map_or(0, History::dropped);
        Ok(TraceResponse { dropped, failure: history.and_then(History::failure), ..answer })
    }
}

fn response(found: Found) -> TraceResponse {
    TraceResponse { records: found.records, is_cut: found.is_cut, ..TraceResponse::default() }
}

/// The recorded spans: in memory and, with a history, on disk.
struct Records<'a> {
    history: Option<&'a History>,
}

impl Records<'_> {
    fn find(&self, wanted: &Wanted) -> io::Result<Found> {
        match self.history {
            Some(history) => history.find(wanted),
            None => Ok(Found { records: ring().matching(|record| wanted.takes(record)), ..Found::default() }),
        }
    }

    /// What led to `seeds` and what they caused, in causal order.
    fn chained(&self, seeds: &Wanted, focus: &Focus) -> io::Result<TraceResponse> {
        let found = gather(seeds, Direction::Both, |wanted| self.find(wanted))?;
        Ok(TraceResponse {
            records: chain(found.records, focus),
            is_cut: found.is_cut,
            ..TraceResponse::default()
        })
    }

    fn trace(&self, trace: TraceId) -> io::Result<TraceResponse> {
        self.chained(&Wanted::traces([trace]), &Focus::Trace(trace))
    }

    /// One life of an object: that of `uid`, or else the latest; or all of them.
    fn object(
        &self,
        key: String,
        uid: Option<String>,
        all_lives: bool,
        direction: Direction,
    ) -> io::Result<TraceResponse> {
        let about = self.find(&Wanted::object(key.clone()))?.records;
        let lives = lives(&about, &key);
        let uid = uid.or_else(|| lives.last().filter(|_| !all_lives).map(|life| life.uid.clone()));
        let is_of_life = |record: &&Record| match &uid {
            Some(uid) => life_of(record, &lives).is_some_and(|life| life.uid == *uid),
            None => true,
        };
        let seeds = Wanted::traces(about.iter().filter(is_of_life).map(|record| record.trace));
        // `Wanted` without traces takes every record.
        let found = match seeds.traces.is_empty() {
            true => Found::default(),
            false => gather(&seeds, direction, |wanted| self.find(wanted))?,
        };
        let focus = match &uid {
            Some(uid) => Focus::Life { object: key.clone(), uid: uid.clone() },
            None => Focus::Object(key.clone()),
        };
        let is_cut = found.is_cut;
        let records = match direction {
            Direction::Back => found.records,
            Direction::Both => chain(found.records, &focus),
        };
        Ok(TraceResponse { records, object: Some(key), lives, uid, is_cut, ..TraceResponse::default() })
    }

    /// The trace of the latest write that no component made; from disk if there was none since the server's start.
    fn last_command(&self) -> io::Result<TraceResponse> {
        let command = match last_command(&ring().all()) {
            Some(command) => Some(command),
            None => last_command(&self.find(&Wanted::default())?.records),
        };
        command.map_or_else(|| Ok(TraceResponse::default()), |trace| self.trace(trace))
    }
}

/// Stores the spans that another process recorded.
pub fn receive(api: &Api, request: &Request) -> Result<Response, Status> {
    if request.body.len() > MAX_BYTES {
        return Err(Status::too_large(MAX_BYTES));
    }
    let taken = match request.header(CONTENT_TYPE.as_str()) == packet::CONTENT_TYPE {
        true => take_over(api, request)?,
        false => take_from_others(request)?,
    };
    let taken = serde_json::to_vec(&Taken::new(taken));
    let taken = taken.map_err(|error| Status::internal(format!("the answer cannot be written: {error}")))?;
    Ok(respond::json_bytes(200, taken.into()))
}

/// What another server keeps. Who has the certificate that this server shows to kubelets is a server.
fn take_over(api: &Api, request: &Request) -> Result<usize, Status> {
    let is_server = request.user.name == api.server_user && request.user.is_in(MASTERS);
    let server = request.query.get("server").filter(|_| is_server);
    let server = server
        .ok_or_else(|| Status::new(403, "Forbidden", "servers of this cluster send packets of spans"))?;
    let records = packet::unpack(&request.body)
        .map_err(|error| Status::bad_request(format!("the spans cannot be read: {error}")))?;
    let taken = records.len();
    ring().take_over(records, &trace_peers::name_of(server));
    Ok(taken)
}

fn take_from_others(request: &Request) -> Result<usize, Status> {
    let records: Vec<Record> = serde_json::from_slice(&request.body)
        .map_err(|error| Status::bad_request(format!("the spans cannot be read: {error}")))?;
    if records.len() > MAX_RECORDS {
        return Err(Status::bad_request(format!("at most {MAX_RECORDS} spans at a time")));
    }
    let taken = records.len();
    ring().take_in(records, &request.user.name);
    Ok(taken)
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, Status> {
    text.parse().map_err(|_| Status::bad_request(format!("{text:?} is not a number")))
}

fn chain(records: Vec<Record>, focus: &Focus) -> Vec<Record> {
    let chosen = timeline(&records, focus).entries.into_iter().map(|entry| entry.record).collect();
    with_their_steps(&records, chosen)
}

/// The chain goes back from a commit to the request and the command that made it, past what they did before: the
/// filters, the plugins that admitted it. Those belong to it too; only what wrote something else does not. Each record is
/// looked at once, however those that others hand in are nested.
fn with_their_steps(records: &[Record], mut chosen: Vec<Record>) -> Vec<Record> {
    let mut below: HashMap<SpanId, Vec<&Record>> = HashMap::new();
    for record in records {
        if let Some(parent) = record.parent.filter(|parent| *parent != record.span) {
            below.entry(parent).or_default().push(record);
        }
    }
    let above_writes = above_writes(records);
    let mut known: HashSet<SpanId> = chosen.iter().map(|record| record.span).collect();
    let mut at = 0;
    while let Some(span) = chosen.get(at).map(|record| record.span) {
        at += 1;
        // Taken out, so that a second record of this id does not look at them again.
        for step in below.remove(&span).unwrap_or_default() {
            let has_written = step.committed.is_some() || above_writes.contains(&step.span);
            if !has_written && known.insert(step.span) {
                chosen.push(step.clone());
            }
        }
    }
    chosen
}

/// The spans that something was written in, by a step at whatever depth.
fn above_writes(records: &[Record]) -> HashSet<SpanId> {
    let mut parents: HashMap<SpanId, Vec<SpanId>> = HashMap::new();
    for record in records {
        if let Some(parent) = record.parent {
            parents.entry(record.span).or_default().push(parent);
        }
    }
    let mut next: Vec<SpanId> = records
        .iter()
        .filter(|record| record.committed.is_some())
        .filter_map(|record| record.parent)
        .collect();
    let mut above = HashSet::new();
    while let Some(span) = next.pop() {
        if above.insert(span) {
            next.extend(parents.remove(&span).unwrap_or_default());
        }
    }
    above
}

/// A write of somebody who is no part of the cluster.
fn is_command(record: &Record) -> bool {
    record.name == "apiserver.request"
        && record.causes.is_empty()
        && record.text("method").is_some_and(|method| method != "GET" && method != "HEAD")
        && record.text("user").is_some_and(|user| !user.starts_with("system:"))
}

/// The trace of the latest write that somebody made who is no part of the cluster.
fn last_command(records: &[Record]) -> Option<TraceId> {
    let has_written =
        |trace: TraceId| records.iter().any(|other| other.trace == trace && other.committed.is_some());
    let mut commands: Vec<&Record> = records.iter().filter(|record| is_command(record)).collect();
    commands.sort_by_key(|record| std::cmp::Reverse(record.start));
    commands.into_iter().map(|record| record.trace).find(|trace| has_written(*trace))
}

/// `pods/default/nginx` is what records say; `deployment/nginx`, `deploy/nginx` and `deployments.apps/nginx` are
/// what people do.
fn object_key(api: &Api, object: &str, namespace: &str) -> Result<String, Status> {
    let words: Vec<&str> = object.split('/').collect();
    let (kind, namespace, name) = match words.as_slice() {
        [kind, namespace, name] => (*kind, *namespace, *name),
        [kind, name] => (*kind, if namespace.is_empty() { "default" } else { namespace }, *name),
        _ => return Err(Status::bad_request("object must be KIND/NAME or RESOURCE/NAMESPACE/NAME")),
    };
    let (word, group) = kind.split_once('.').unwrap_or((kind, ""));
    let word = word.to_ascii_lowercase();
    let served = api.served();
    let row = served.rows.iter().find(|row| {
        let names = [&row.plural, &row.singular];
        let is_named =
            names.iter().any(|name| ***name == *word) || row.short_names.iter().any(|name| **name == *word);
        is_named && (group.is_empty() || *row.group == *group)
    });
    let row =
        row.ok_or_else(|| Status::bad_request(format!("the server doesn't have a resource type {kind:?}")))?;
    let namespace = if row.is_namespaced() { namespace } else { "" };
    Ok(ferry_trace::span::object_key(&row.group_resource().to_string(), namespace, name))
}

fn follow(after: u64) -> Response {
    let ends = tokio::time::Instant::now() + FOLLOW;
    let records = futures::stream::unfold((after, true), move |(after, is_first)| async move {
        // The first look shows that somebody listens, and what is there already.
        if !is_first {
            tokio::time::timeout_at(ends, ring().ended_after(after)).await.ok()?;
            tokio::time::sleep(GATHER).await;
        }
        let found = ring().after(after);
        let latest = found.last().map_or(after, |record| record.sequence);
        Some((lines(&found), (latest, false)))
    });
    let builder = http::Response::builder().header(CONTENT_TYPE, "application/x-ndjson");
    respond::finish(builder, Body::stream(records))
}

fn lines(records: &[Record]) -> Bytes {
    let mut lines = Vec::new();
    for record in records {
        // A record is text and numbers, which JSON can say; a failure would leave a line out.
        if serde_json::to_writer(&mut lines, record).is_ok() {
            lines.push(b'\n');
        }
    }
    // An empty line is no record, and still tells that the stream is open.
    if lines.is_empty() {
        lines.push(b'\n');
    }
    lines.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(span: u64, parent: Option<u64>, committed: Option<i64>) -> Record {
        let id = |number: u64| format!("{number:016x}");
        let record = json!({
            "trace": "0123456789abcdef0123456789abcdef", "span": id(span), "parent": parent.map(id),
            "name": "step", "start": 1, "duration": 1, "sequence": 1, "committed": committed,
        });
        serde_json::from_value(record).expect("a record")
    }

    fn spans(records: &[Record], chosen: u64) -> Vec<String> {
        let chosen = records.iter().filter(|record| record.span == self::record(chosen, None, None).span);
        let found = with_their_steps(records, chosen.take(1).cloned().collect());
        found.iter().map(|record| record.span.to_string()).collect()
    }

    #[test]
    fn steps_belong_to_a_chain_unless_they_wrote_something_else() {
        let records = [
            record(1, None, None),
            record(2, Some(1), None),
            record(3, Some(2), None),
            record(4, Some(1), None),
            record(5, Some(4), Some(7)),
            record(6, Some(5), None),
        ];
        let names =
            |numbers: &[u64]| numbers.iter().map(|number| format!("{number:016x}")).collect::<Vec<_>>();
        assert_eq!(spans(&records, 1), names(&[1, 2, 3]));
        assert_eq!(spans(&records, 5), names(&[5, 6]));
    }

    /// The number of ways through these is beyond all counting.
    #[test]
    fn spans_that_are_each_others_parents_take_no_time() {
        for size in [2, 3, 100] {
            let one = |number: u64| record(number % size + 1, Some((number + 1) % size + 1), None);
            let records: Vec<Record> = (0..20_000).map(one).collect();
            assert_eq!(spans(&records, 1).len() as u64, size);
        }
    }
}
