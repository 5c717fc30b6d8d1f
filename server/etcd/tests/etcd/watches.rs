//! Watches: what they tell, in which order, and how they end.

use std::time::Duration;

use ferry_etcd_api::etcdserverpb::request_op::Request;
use ferry_etcd_api::etcdserverpb::watch_create_request::FilterType;
use ferry_etcd_api::etcdserverpb::watch_request::RequestUnion;
use ferry_etcd_api::etcdserverpb::{
    WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};
use ferry_etcd_api::mvccpb::event::EventType;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::client::{Client, always, delete, prefix_end, put};
use crate::server::Server;

const PATIENCE: Duration = Duration::from_secs(30);

struct Stream {
    requests: mpsc::Sender<WatchRequest>,
    answers: Streaming<WatchResponse>,
}

impl Stream {
    async fn send(&mut self, union: RequestUnion) {
        let request = WatchRequest { request_union: Some(union) };
        self.requests.send(request).await.expect("a stream that has not ended");
    }

    async fn next(&mut self) -> WatchResponse {
        let message =
            tokio::time::timeout(PATIENCE, self.answers.message()).await.expect("an answer in time");
        message.expect("a stream without an error").expect("a stream that has not ended")
    }

    /// The next answer that carries events.
    async fn next_events(&mut self) -> WatchResponse {
        loop {
            let answer = self.next().await;
            assert!(!answer.canceled, "{answer:?}");
            if !answer.events.is_empty() {
                return answer;
            }
        }
    }
}

/// Begins a watch, and waits until it has begun.
async fn watch(client: &mut Client, create: WatchCreateRequest) -> (Stream, i64) {
    let (requests, sent) = mpsc::channel(2);
    let union = Some(RequestUnion::CreateRequest(create));
    requests.send(WatchRequest { request_union: union }).await.expect("a channel");
    let answers = client.watch.watch(ReceiverStream::new(sent)).await.expect("a stream").into_inner();
    let mut stream = Stream { requests, answers };
    let created = stream.next().await;
    assert!(created.created, "{created:?}");
    (stream, created.watch_id)
}

fn of_key(key: &str) -> WatchCreateRequest {
    WatchCreateRequest { key: key.to_owned().into(), ..Default::default() }
}

fn of_prefix(prefix: &str) -> WatchCreateRequest {
    WatchCreateRequest { range_end: prefix_end(prefix).into(), ..of_key(prefix) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_come_with_what_was_there_before() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    let first = client.put_value("/a", "1").await;
    client.put_value("/a", "2").await;
    client.delete(delete("/a")).await.unwrap();
    client.put_value("/a", "3").await;
    let create = WatchCreateRequest { prev_kv: true, start_revision: first, ..of_prefix("/") };
    let (mut stream, _) = watch(client, create).await;
    let mut seen = Vec::new();
    while seen.len() < 4 {
        for event in stream.next_events().await.events {
            let previous = event.prev_kv.as_ref().map(|kv| String::from_utf8(kv.value.to_vec()).unwrap());
            seen.push((event.r#type(), event.kv.unwrap().mod_revision - first, previous));
        }
    }
    assert_eq!(
        seen,
        [
            (EventType::Put, 0, None),
            (EventType::Put, 1, Some("1".into())),
            (EventType::Delete, 2, Some("2".into())),
            (EventType::Put, 3, None),
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_is_one_answer_and_filters_leave_out() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    let filters = vec![FilterType::Nodelete as i32];
    let (mut stream, _) = watch(client, WatchCreateRequest { filters, ..of_prefix("/") }).await;
    let both = ["/a", "/b"].map(|key| Request::RequestPut(put(key, "")));
    client.txn(always(both)).await.unwrap();
    assert_eq!(stream.next_events().await.events.len(), 2);
    client.delete(delete("/a")).await.unwrap();
    let last = client.put_value("/c", "").await;
    let answer = stream.next_events().await;
    assert_eq!(answer.events.len(), 1);
    assert_eq!(answer.events[0].kv.as_ref().unwrap().mod_revision, last);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_watches_share_a_stream_and_end_one_by_one() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    let (mut stream, first) = watch(client, of_key("/a")).await;
    stream.send(RequestUnion::CreateRequest(WatchCreateRequest { watch_id: 77, ..of_key("/b") })).await;
    let created = stream.next().await;
    assert_eq!((created.created, created.watch_id), (true, 77));
    client.put_value("/b", "").await;
    assert_eq!(stream.next_events().await.watch_id, 77);
    client.put_value("/a", "").await;
    assert_eq!(stream.next_events().await.watch_id, first);
    stream.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: 77 })).await;
    let canceled = stream.next().await;
    assert_eq!((canceled.canceled, canceled.watch_id), (true, 77));
    client.put_value("/b", "").await;
    client.put_value("/a", "").await;
    assert_eq!(stream.next_events().await.watch_id, first, "a watch that was ended tells nothing more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_from_before_the_history_kept_is_told_so() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    client.put_value("/a", "1").await;
    client.put_value("/a", "2").await;
    let third = client.put_value("/a", "3").await;
    client.compact(third).await.unwrap();
    let (mut stream, _) = watch(client, WatchCreateRequest { start_revision: 2, ..of_key("/a") }).await;
    let end = stream.next().await;
    assert_eq!((end.canceled, end.compact_revision), (true, third));
    let (mut stream, _) = watch(client, WatchCreateRequest { start_revision: third, ..of_key("/a") }).await;
    let events = stream.next_events().await.events;
    assert_eq!(&events[0].kv.as_ref().unwrap().value[..], b"3");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_is_told_on_request_and_to_quiet_watches_that_want_it() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    let (mut asking, _) = watch(client, of_key("/quiet")).await;
    let last = client.put_value("/elsewhere", "").await;
    asking.send(RequestUnion::ProgressRequest(WatchProgressRequest {})).await;
    let answer = asking.next().await;
    assert_eq!((answer.watch_id, answer.events.len()), (-1, 0));
    assert!(answer.header.unwrap().revision >= last);

    let (mut told, id) =
        watch(client, WatchCreateRequest { progress_notify: true, ..of_key("/quiet") }).await;
    let last = client.put_value("/elsewhere", "").await;
    loop {
        let answer = told.next().await;
        assert!(answer.events.is_empty());
        assert_eq!(answer.watch_id, id);
        if answer.header.unwrap().revision >= last {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_with_the_server() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    let (mut stream, _) = watch(client, of_prefix("/")).await;
    let stopping = tokio::spawn(server.stop());
    let end = tokio::time::timeout(PATIENCE, stream.answers.message()).await.expect("an end in time");
    assert!(!matches!(end, Ok(Some(_))), "{end:?}");
    tokio::time::timeout(PATIENCE, stopping).await.expect("an end in time").unwrap();
}

#[tokio::test]
async fn a_watch_of_a_range_without_keys_is_refused_and_the_stream_goes_on() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    let (mut stream, _) = watch(client, WatchCreateRequest { key: "a".into(), ..Default::default() }).await;
    for (key, end) in [("b", "a"), ("a", "a")] {
        let create = WatchCreateRequest { key: key.into(), range_end: end.into(), ..Default::default() };
        stream.send(RequestUnion::CreateRequest(create)).await;
        let answer = stream.next().await;
        assert!(answer.created && answer.canceled && answer.watch_id == -1, "{answer:?}");
        assert_eq!(answer.cancel_reason, "mvcc: watcher range is empty");
    }
    // All keys from one on are no such range.
    let create = WatchCreateRequest { key: "b".into(), range_end: vec![0].into(), ..Default::default() };
    stream.send(RequestUnion::CreateRequest(create)).await;
    let created = stream.next().await;
    assert!(created.created && !created.canceled, "{created:?}");
    client.put_value("c", "1").await;
    assert_eq!(stream.next_events().await.watch_id, created.watch_id);
}
