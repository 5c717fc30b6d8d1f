//! Watches: what they tell, in which order, and how they end.

use std::time::Duration;

use etcd_client::{Client, EventType, Txn, TxnOp, WatchFilterType, WatchOptions, WatchResponse, WatchStream};

use crate::server::Server;

const PATIENCE: Duration = Duration::from_secs(30);

async fn next(stream: &mut WatchStream) -> WatchResponse {
    let message = tokio::time::timeout(PATIENCE, stream.message()).await.expect("an answer in time");
    message.expect("a stream without an error").expect("a stream that has not ended")
}

/// Begins a watch, and waits until it has begun.
async fn watch(client: &mut Client, key: &str, options: WatchOptions) -> (WatchStream, i64) {
    let mut stream = client.watch(key, Some(options)).await.expect("a stream");
    let created = next(&mut stream).await;
    assert!(created.created(), "{created:?}");
    (stream, created.watch_id())
}

/// The next answer that carries events.
async fn next_events(stream: &mut WatchStream) -> WatchResponse {
    loop {
        let answer = next(stream).await;
        assert!(!answer.canceled(), "{answer:?}");
        if !answer.events().is_empty() {
            return answer;
        }
    }
}

async fn put(client: &mut Client, key: &str, value: &str) -> i64 {
    client.put(key, value, None).await.expect("a put").header().expect("a header").revision()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_come_with_what_was_there_before() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    let first = put(client, "/a", "1").await;
    put(client, "/a", "2").await;
    client.delete("/a", None).await.unwrap();
    put(client, "/a", "3").await;
    let options = WatchOptions::new().with_prefix().with_prev_key().with_start_revision(first);
    let (mut stream, _) = watch(client, "/", options).await;
    let mut seen = Vec::new();
    while seen.len() < 4 {
        for event in next_events(&mut stream).await.events() {
            let previous = event.prev_kv().map(|kv| kv.value_str().unwrap().to_owned());
            seen.push((event.event_type(), event.kv().unwrap().mod_revision() - first, previous));
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
    let filters = [WatchFilterType::NoDelete];
    let options = WatchOptions::new().with_prefix().with_filters(filters);
    let (mut stream, _) = watch(client, "/", options).await;
    let both = [TxnOp::put("/a", "", None), TxnOp::put("/b", "", None)];
    client.txn(Txn::new().and_then(both)).await.unwrap();
    assert_eq!(next_events(&mut stream).await.events().len(), 2);
    client.delete("/a", None).await.unwrap();
    let last = put(client, "/c", "").await;
    let answer = next_events(&mut stream).await;
    assert_eq!(answer.events().len(), 1);
    assert_eq!(answer.events()[0].kv().unwrap().mod_revision(), last);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_watches_share_a_stream_and_end_one_by_one() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    let (mut stream, first) = watch(client, "/a", WatchOptions::new()).await;
    stream.watch("/b", Some(WatchOptions::new().with_watch_id(77))).await.unwrap();
    let created = next(&mut stream).await;
    assert_eq!((created.created(), created.watch_id()), (true, 77));
    put(client, "/b", "").await;
    assert_eq!(next_events(&mut stream).await.watch_id(), 77);
    put(client, "/a", "").await;
    assert_eq!(next_events(&mut stream).await.watch_id(), first);
    stream.cancel(77).await.unwrap();
    let canceled = next(&mut stream).await;
    assert_eq!((canceled.canceled(), canceled.watch_id()), (true, 77));
    put(client, "/b", "").await;
    put(client, "/a", "").await;
    assert_eq!(next_events(&mut stream).await.watch_id(), first, "a watch that was ended tells nothing more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_from_before_the_history_kept_is_told_so() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    put(client, "/a", "1").await;
    put(client, "/a", "2").await;
    let third = put(client, "/a", "3").await;
    client.compact(third, None).await.unwrap();
    let (mut stream, _) = watch(client, "/a", WatchOptions::new().with_start_revision(2)).await;
    let end = next(&mut stream).await;
    assert_eq!((end.canceled(), end.compact_revision()), (true, third));
    let (mut stream, _) = watch(client, "/a", WatchOptions::new().with_start_revision(third)).await;
    assert_eq!(next_events(&mut stream).await.events()[0].kv().unwrap().value(), b"3");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_is_told_on_request_and_to_quiet_watches_that_want_it() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    let (mut asking, _) = watch(client, "/quiet", WatchOptions::new()).await;
    let last = put(client, "/elsewhere", "").await;
    asking.request_progress().await.unwrap();
    let answer = next(&mut asking).await;
    assert_eq!((answer.watch_id(), answer.events().len()), (-1, 0));
    assert!(answer.header().unwrap().revision() >= last);

    let (mut told, id) = watch(client, "/quiet", WatchOptions::new().with_progress_notify()).await;
    let last = put(client, "/elsewhere", "").await;
    loop {
        let answer = next(&mut told).await;
        assert!(answer.events().is_empty());
        assert_eq!(answer.watch_id(), id);
        if answer.header().unwrap().revision() >= last {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_with_the_server() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    let (mut stream, _) = watch(client, "/", WatchOptions::new()).await;
    let stopping = tokio::spawn(server.stop());
    let end = tokio::time::timeout(PATIENCE, stream.message()).await.expect("an end in time");
    assert!(!matches!(end, Ok(Some(_))), "{end:?}");
    tokio::time::timeout(PATIENCE, stopping).await.expect("an end in time").unwrap();
}
