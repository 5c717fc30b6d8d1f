//! Snapshots of the embedded store: consistent while it is written to, and refused when damaged.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ferry_store::embedded;
use ferry_store::{Error, Operation, Range, Revision, Txn, snapshot};

use crate::contract::{create, delete, events, put};
use crate::embedded::open;

fn both(number: u64) -> Txn {
    let value = Bytes::from(format!("{number} ").repeat(200));
    let put = |key: &str| Operation::Put { key: key.into(), value: value.clone(), ttl: None };
    Txn { operations: vec![put("/pair/a"), put("/pair/b")], ..Txn::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_under_load_is_of_one_revision() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("store"));
    for at in 0..300 {
        create(&store, &format!("/k/{at}"), &"v".repeat(2000)).await;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let writing = {
        let (store, stop) = (store.clone(), stop.clone());
        tokio::spawn(async move {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                store.commit(both(number)).await.unwrap();
            }
        })
    };
    for round in 0..5 {
        let acknowledged = store.commit(both(0)).await.unwrap().revision;
        let file = directory.path().join(format!("snapshot-{round}"));
        let size = snapshot::save(&*store, &file).await.unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let target = directory.path().join(format!("restored-{round}"));
        let summary = embedded::restore(&file, &target, 0).unwrap();
        assert_eq!((summary.bytes, summary.keys), (size, 302));
        assert!(summary.revision >= acknowledged);

        let restored = open(&target);
        assert_eq!(restored.current_revision().await.unwrap(), summary.revision);
        let at = Range::prefix("/").at(summary.revision);
        assert_eq!(restored.range(at.clone()).await.unwrap(), store.range(at).await.unwrap());
        let pair = restored.range(Range::prefix("/pair/")).await.unwrap().kvs;
        assert_eq!(pair[0].value, pair[1].value);
        // It goes on where the snapshot was taken.
        assert_eq!(put(&restored, "/new", "").await, summary.revision.next());
    }
    stop.store(true, Ordering::Relaxed);
    writing.await.unwrap();
    let leftovers = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(leftovers.into_iter().all(|name| !name.to_string_lossy().contains(".part")));
}

#[tokio::test]
async fn a_damaged_snapshot_is_refused_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("store"));
    for at in 0..20 {
        create(&store, &format!("/k/{at}"), &"v".repeat(500)).await;
    }
    let file = directory.path().join("snapshot");
    snapshot::save(&*store, &file).await.unwrap();
    let whole = std::fs::read(&file).unwrap();
    let target = directory.path().join("restored");
    let check = |what: &str, bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        let refused = embedded::restore(&file, &target, 0);
        assert!(matches!(refused, Err(Error::Corrupt { .. })), "{what}: {refused:?}");
        assert!(!target.exists(), "{what}");
    };
    for length in (0..whole.len()).step_by(173) {
        check(&format!("cut to {length}"), &whole[..length]);
    }
    for at in (0..whole.len()).step_by(131) {
        let mut damaged = whole.clone();
        damaged[at] ^= 4;
        check(&format!("flipped at {at}"), &damaged);
    }
    check("with something after its end", &[&whole[..], b"more"].concat());
    check("of something else", b"SQLite format 3");

    std::fs::write(&file, &whole).unwrap();
    assert_eq!(embedded::verify(&file).unwrap().keys, 20);
    let occupied = embedded::restore(&file, &directory.path().join("store"), 0);
    assert!(matches!(occupied, Err(Error::Unavailable { .. })), "{occupied:?}");
    embedded::restore(&file, &target, 0).unwrap();
}

#[tokio::test]
async fn a_bumped_restore_sends_old_followers_back_to_a_list() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("store"));
    create(&store, "/a", "1").await;
    create(&store, "/b", "1").await;
    let gone = delete(&store, "/b").await.revision;
    let expiring = Txn::create("/event", "v".into()).expiring(Duration::from_millis(1500));
    store.commit(expiring).await.unwrap();
    let file = directory.path().join("snapshot");
    snapshot::save(&*store, &file).await.unwrap();
    // What the lost store did after the snapshot, clients may have seen.
    let seen = put(&store, "/a", "2").await;
    let target = directory.path().join("restored");
    let summary = embedded::restore(&file, &target, 1_000_000).unwrap();
    let restored = open(&target);
    let current = restored.current_revision().await.unwrap();
    assert_eq!(current, Revision(summary.revision.0 + 1_000_000));
    let stale = restored.watch("/", seen).await.err();
    assert!(matches!(stale, Some(Error::Compacted { .. })), "{stale:?}");
    assert!(restored.get("/a", Some(gone)).await.is_err());
    let page = restored.range(Range::prefix("/")).await.unwrap();
    assert_eq!(page.kvs.iter().map(|kv| &*kv.key).collect::<Vec<_>>(), ["/a", "/event"]);
    // A time to live goes on counting.
    let mut watch = restored.watch("/", current.next()).await.unwrap();
    assert_eq!(&*events(&mut watch, 1).await[0].kv.key, "/event");
}

#[tokio::test]
async fn an_empty_store_can_be_saved_and_restored() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("store"));
    let file = directory.path().join("snapshot");
    snapshot::save(&*store, &file).await.unwrap();
    let target = directory.path().join("restored");
    embedded::restore(&file, &target, 0).unwrap();
    let restored = open(&target);
    assert_eq!(restored.current_revision().await.unwrap(), Revision(1));
    create(&restored, "/a", "").await;
}
