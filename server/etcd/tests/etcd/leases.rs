//! Leases: they end in time or when told to, take their keys along, and outlive the server.

use std::time::Duration;

use ferry_etcd_api::etcdserverpb::{
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest, PutRequest,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::client::{Client, get, put};
use crate::server::Server;

const PATIENCE: Duration = Duration::from_secs(30);

async fn put_with(client: &mut Client, key: &str, lease: i64) {
    client.put(PutRequest { lease, ..put(key, "") }).await.expect("a put");
}

async fn exists(client: &mut Client, key: &str) -> bool {
    client.range(get(key)).await.expect("a read").count > 0
}

/// A stream that keeps leases alive.
async fn keep_alive(
    client: &mut Client,
) -> (mpsc::Sender<LeaseKeepAliveRequest>, Streaming<LeaseKeepAliveResponse>) {
    let (requests, sent) = mpsc::channel(1);
    let answers = client.lease.lease_keep_alive(ReceiverStream::new(sent)).await.expect("a stream");
    (requests, answers.into_inner())
}

async fn gone(client: &mut Client, key: &str) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while exists(client, key).await {
        assert!(tokio::time::Instant::now() < deadline, "{key} does not go");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_takes_its_keys_along_at_one_revision() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    let lease = client.lease_grant(600).await;
    for key in ["/a", "/b", "/moved", "/freed"] {
        put_with(client, key, lease).await;
    }
    let other = client.lease_grant(600).await;
    put_with(client, "/moved", other).await;
    client.put_value("/freed", "").await;
    let left = client.time_to_live(lease, true).await;
    assert_eq!(left.keys, ["/a", "/b"]);
    assert!(left.granted_ttl == 600 && (590..=600).contains(&left.ttl), "{left:?}");

    let before = client.range(get("/a")).await.unwrap().header.unwrap().revision;
    let revoked = client.lease_revoke(lease).await.unwrap();
    assert_eq!(revoked.header.unwrap().revision, before + 1);
    assert!(!exists(client, "/a").await && !exists(client, "/b").await);
    assert!(exists(client, "/moved").await && exists(client, "/freed").await);
    assert_eq!(client.time_to_live(lease, true).await.ttl, -1);
    let again = client.lease_revoke(lease).await.expect_err("it is gone").to_string();
    assert!(again.contains("requested lease not found"), "{again}");
    let leases = client.lease.lease_leases(LeaseLeasesRequest {}).await.unwrap().into_inner().leases;
    let leases: Vec<_> = leases.iter().map(|lease| lease.id).collect();
    assert_eq!(leases, [other]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_ends_in_time_unless_it_is_kept_alive() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    let short = client.lease_grant(1).await;
    let granted = client.time_to_live(short, false).await.granted_ttl;
    assert_eq!(granted, 2, "etcd grants no less, nor does who counts on it have to renew it earlier");
    put_with(client, "/short", short).await;
    gone(client, "/short").await;
    let (keeper, mut answers) = keep_alive(client).await;
    keeper.send(LeaseKeepAliveRequest { id: short }).await.unwrap();
    assert_eq!(answers.message().await.unwrap().unwrap().ttl, 0, "it has ended");

    let kept = client.lease_grant(600).await;
    let left = async |client: &mut Client| client.time_to_live(kept, false).await.ttl;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut used = left(client).await;
    while used > 597 {
        assert!(tokio::time::Instant::now() < deadline, "its time does not pass");
        tokio::time::sleep(Duration::from_millis(20)).await;
        used = left(client).await;
    }
    // On a machine that is busy a second may pass between one question and the next.
    loop {
        keeper.send(LeaseKeepAliveRequest { id: kept }).await.unwrap();
        assert_eq!(answers.message().await.unwrap().unwrap().ttl, 600);
        if left(client).await > used {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "it was not kept alive");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_and_their_keys_are_there_again_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::in_directory(directory.path()).await;
    let client = &mut server.client().await;
    let long = client.lease_grant(600).await;
    let short = client.lease_grant(2).await;
    put_with(client, "/long", long).await;
    put_with(client, "/short", short).await;
    server.stop().await;

    let server = Server::in_directory(directory.path()).await;
    let client = &mut server.client().await;
    let left = client.time_to_live(long, true).await;
    assert_eq!((left.granted_ttl, &left.keys[..]), (600, &["/long".into()][..]));
    gone(client, "/short").await;
    assert!(exists(client, "/long").await);
    client.lease_revoke(long).await.unwrap();
    assert!(!exists(client, "/long").await);
}
