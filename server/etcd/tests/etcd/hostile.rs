//! Clients that say nothing, or the largest numbers there are.

use std::time::Duration;

use ferry_etcd::server::Limits;
use ferry_etcd_api::etcdserverpb::watch_request::RequestUnion;
use ferry_etcd_api::etcdserverpb::{LeaseGrantRequest, RangeRequest, WatchCreateRequest, WatchRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_stream::wrappers::ReceiverStream;

use crate::client::{get, get_prefix};
use crate::server::{Server, limits};

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn connections_without_a_request_are_closed_and_others_are_kept() {
    let server = Server::with_limits(Limits { first_request: Duration::from_secs(2), ..limits() }).await;
    let mut client = server.client().await;
    client.put_value("a", "1").await;
    // Nothing, a part of what begins HTTP/2, all of it, and a part of a request.
    let said: [&[u8]; 4] = [
        b"",
        b"PRI * HT",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        b"GET /health HTTP/1.1\r\nHost:",
    ];
    for words in said {
        let mut silent = TcpStream::connect(server.address()).await.expect("a connection");
        silent.write_all(words).await.expect("there is room");
        let ended = async {
            // A reset is an end too.
            let _ = silent.read_to_end(&mut Vec::new()).await;
        };
        let ended = tokio::time::timeout(PATIENCE, ended).await;
        assert!(ended.is_ok(), "still there: {}", words.escape_ascii());
    }
    client.range(get("a")).await.expect("the connection is as it was");
    server.stop().await;
}

#[tokio::test]
async fn the_largest_and_smallest_numbers_are_numbers() {
    let server = Server::in_memory().await;
    let mut client = server.client().await;
    client.put_value("a", "1").await;
    for number in [i64::MIN, -1, i64::MAX] {
        let limited =
            client.range(RangeRequest { limit: number, ..get_prefix("a") }).await.expect("an answer");
        assert_eq!(limited.kvs.len(), 1, "limit {number}");
        for request in [
            RangeRequest { revision: number, ..get("a") },
            RangeRequest { min_mod_revision: number, max_create_revision: number, ..get("a") },
        ] {
            // An error or nothing, as etcd has it; an answer in any case.
            let _ = client.range(request).await;
        }
        let _ = client.compact(number).await;
        let _ = client.lease.lease_grant(LeaseGrantRequest { ttl: number, id: number }).await;
        client.time_to_live(number, true).await;
        let (requests, sent) = tokio::sync::mpsc::channel(2);
        let create = WatchCreateRequest {
            key: "a".into(),
            start_revision: number,
            watch_id: number,
            ..WatchCreateRequest::default()
        };
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        requests.send(request).await.expect("a channel");
        let answers = client.watch.watch(ReceiverStream::new(sent)).await.expect("a stream");
        let first = tokio::time::timeout(PATIENCE, answers.into_inner().message()).await.expect("in time");
        assert!(first.expect("no error").is_some_and(|answer| answer.created), "watch {number}");
    }
    client.put_value("a", "2").await;
    client.range(get("a")).await.expect("the server goes on");
    server.stop().await;
}
