//! What the embedded engine promises beyond the contract, of a store that is opened and closed
//! in peace: one process at a time, private files, history and deadlines that outlive it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ferry_store::embedded::Config;
use ferry_store::{Embedded, Error, EventKind, Range, Revision, Txn};
use futures::StreamExt;

use crate::contract::{Subject, create, delete, events, put};

pub fn open(directory: &Path) -> Subject {
    open_with(Config::new(directory))
}

pub fn open_with(config: Config) -> Subject {
    Arc::new(Embedded::open(config).expect("a store"))
}

/// Waits until something holds, for as long as it could reasonably take.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds().await {
        assert!(Instant::now() < deadline, "still not so: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_second_process_is_kept_out() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let error = Embedded::open(Config::new(directory.path())).err().expect("a refusal");
    assert!(error.to_string().contains("another process has this store open"), "{error}");
    // An open watch does not hold on to the directory.
    let _watch = store.watch("/", Revision(2)).await.unwrap();
    store.close().await.unwrap();
    open(directory.path()).close().await.unwrap();
}

#[tokio::test]
async fn only_the_owner_can_read_the_files() {
    let directory = tempfile::tempdir().unwrap();
    let inside = directory.path().join("deeply/nested");
    let store = open(&inside);
    create(&store, "/secret", "value").await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&inside), 0o700);
    for entry in std::fs::read_dir(&inside).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}

#[tokio::test]
async fn a_store_opened_again_is_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let one = create(&store, "/a", "1").await.revision;
    let two = put(&store, "/a", "2").await;
    let three = create(&store, "/b", "").await.revision;
    let four = delete(&store, "/b").await.revision;
    let before = store.range(Range::prefix("/")).await.unwrap();
    store.close().await.unwrap();

    let store = open(directory.path());
    assert_eq!(store.current_revision().await.unwrap(), four);
    assert_eq!(store.range(Range::prefix("/")).await.unwrap(), before);
    let old = store.get("/a", Some(one)).await.unwrap().kv.unwrap();
    assert_eq!((&*old.value, old.version), (b"1".as_slice(), 1));
    let mut watch = store.watch("/", one).await.unwrap();
    let seen: Vec<_> = events(&mut watch, 4).await.iter().map(|event| event.kv.mod_revision).collect();
    assert_eq!(seen, [one, two, three, four]);
    assert_eq!(put(&store, "/a", "3").await, four.next());
    assert_eq!(store.get("/a", None).await.unwrap().kv.unwrap().version, 3);
}

#[tokio::test]
async fn a_compaction_outlives_its_process() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let old = create(&store, "/a", "1").await.revision;
    let at = put(&store, "/a", "2").await;
    store.compact(at).await.unwrap();
    store.close().await.unwrap();
    let store = open(directory.path());
    let gone = store.get("/a", Some(old)).await;
    assert!(matches!(gone, Err(Error::Compacted { .. })), "{gone:?}");
    assert!(store.get("/a", Some(at)).await.unwrap().kv.is_some());
}

#[tokio::test]
async fn a_key_expires_though_the_store_was_closed_in_between() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let txn = Txn::create("/event", "v".into()).expiring(Duration::from_millis(300));
    store.commit(txn).await.unwrap();
    let txn = Txn::create("/later", "v".into()).expiring(Duration::from_secs(3600));
    store.commit(txn).await.unwrap();
    store.close().await.unwrap();
    let store = open(directory.path());
    let from = store.current_revision().await.unwrap();
    let mut watch = store.watch("/", from.next()).await.unwrap();
    let gone = events(&mut watch, 1).await.remove(0);
    assert_eq!((gone.kind, &*gone.kv.key), (EventKind::Delete, "/event"));
    assert!(store.get("/later", None).await.unwrap().kv.is_some());
}

#[tokio::test]
async fn closing_ends_watches_and_refuses_further_use() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let mut watch = store.watch("/", Revision(2)).await.unwrap();
    store.close().await.unwrap();
    let end = tokio::time::timeout(Duration::from_secs(10), watch.next()).await.unwrap();
    assert!(matches!(end, Some(Err(Error::Unavailable { .. }))), "{end:?}");
    assert!(watch.next().await.is_none());
    for refused in [
        store.get("/", None).await.map(drop),
        store.commit(Txn::create("/a", Bytes::new())).await.map(drop),
        store.watch("/", Revision(2)).await.map(drop),
        store.current_revision().await.map(drop),
        store.close().await,
    ] {
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    }
}

/// More happens than a follower's channel holds before it looks; it misses nothing all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_follower_reads_the_log_and_catches_up() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let mut watch = store.watch("/s/", Revision(2)).await.unwrap();
    let progress = watch.progress();
    let mut last = Revision(0);
    for at in 0..4000 {
        let txn = Txn::create(format!("/s/{at}"), Bytes::from(at.to_string())).relaxed();
        last = store.commit(txn).await.unwrap().revision;
    }
    assert!(progress.newest_event().unwrap() >= last, "a follower that lags must not seem up to date");
    let seen = events(&mut watch, 4000).await;
    for (at, event) in seen.iter().enumerate() {
        assert_eq!((&*event.kv.value, event.kv.mod_revision.0), (at.to_string().as_bytes(), at as i64 + 2));
    }
    // And it is live again.
    let live = create(&store, "/s/live", "").await.revision;
    assert_eq!(events(&mut watch, 1).await[0].kv.mod_revision, live);
    assert_eq!(progress.newest_event(), Some(live));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_too_slow_for_the_history_kept_is_told_so() {
    let directory = tempfile::tempdir().unwrap();
    let store = open_with(Config { history: 500, ..Config::new(directory.path()) });
    let mut watch = store.watch("/s/", Revision(2)).await.unwrap();
    for at in 0..4000 {
        let txn = Txn::create(format!("/s/{at}"), Bytes::new()).relaxed();
        store.commit(txn).await.unwrap();
    }
    let mut seen = 0;
    let end = loop {
        match watch.next().await.expect("a watch ends only with an error") {
            Ok(batch) => seen += batch.events.len(),
            Err(error) => break error,
        }
    };
    assert!(matches!(end, Error::Compacted { .. }), "{end}");
    assert!(seen < 4000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_goes_when_its_time_has_come() {
    let directory = tempfile::tempdir().unwrap();
    let retention = Duration::from_millis(300);
    let store = open_with(Config { retention, ..Config::new(directory.path()) });
    let old = create(&store, "/a", "1").await.revision;
    let started = Instant::now();
    put(&store, "/a", "2").await;
    eventually("the old version is compacted", async || {
        matches!(store.get("/a", Some(old)).await, Err(Error::Compacted { .. }))
    })
    .await;
    assert!(started.elapsed() >= retention, "history was kept for less than its time");
    assert_eq!(&*store.get("/a", None).await.unwrap().kv.unwrap().value, b"2");
}
