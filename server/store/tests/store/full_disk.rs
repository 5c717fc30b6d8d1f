//! No space left, by the quota or on the disk: puts are refused and say why, reads and deletions
//! go on, nothing is lost, and when there is space again puts go on too.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use ferry_store::embedded::Config;
use ferry_store::{Error, Range, Txn};

use crate::contract::{Subject, delete};
use crate::embedded::{eventually, open_with};

/// A small disk in memory, unmounted at the end.
struct SmallDisk {
    directory: tempfile::TempDir,
}

impl SmallDisk {
    fn mount(megabytes: u32) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "ferry-store-test"])
            .arg(directory.path())
            .status();
        if !mounted.is_ok_and(|status| status.success()) {
            ferry_skip::missing("the right to mount");
            return None;
        }
        Some(SmallDisk { directory })
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Takes all the space that is left.
    fn fill(&self) -> PathBuf {
        let path = self.path().join("filler");
        let mut file = File::create(&path).unwrap();
        let mut piece = vec![1; 256 << 10];
        while piece.len() >= 512 {
            if file.write_all(&piece).is_err() {
                piece.truncate(piece.len() / 2);
            }
        }
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(self.path()).status().ok();
    }
}

/// Puts until there is no more space; returns how many were acknowledged.
async fn put_until_full(store: &Subject, name: &str) -> usize {
    for at in 0..10_000 {
        match store.commit(Txn::create(format!("/{name}/{at:05}"), Bytes::from(vec![b'v'; 20_000]))).await {
            Ok(_) => {}
            Err(Error::NoSpace { what }) => {
                assert!(!what.is_empty());
                return at;
            }
            Err(other) => panic!("{other}"),
        }
    }
    panic!("the disk is never full");
}

async fn count(store: &Subject, prefix: &str) -> usize {
    let page = store.range(Range::prefix(prefix)).await.unwrap();
    assert!(page.kvs.iter().all(|kv| kv.value.len() == 20_000));
    page.kvs.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_puts_and_nothing_else() {
    let Some(disk) = SmallDisk::mount(12) else { return };
    let directory = disk.path().join("store");
    let config = || Config { segment: 1 << 20, ..Config::new(&directory) };
    let store = open_with(config());
    store.commit(Txn::create("/first", Bytes::from_static(b"value"))).await.unwrap();
    let filler = disk.fill();
    let acknowledged = put_until_full(&store, "a").await;
    let revision = store.current_revision().await.unwrap();
    // Reads and deletions go on, and refused puts leave no trace.
    assert_eq!(count(&store, "/a/").await, acknowledged);
    assert!(store.get("/first", None).await.unwrap().kv.is_some());
    assert_eq!(delete(&store, "/first").await.revision, revision.next());
    assert!(matches!(
        store.commit(Txn::create("/b", vec![0; 20_000].into())).await,
        Err(Error::NoSpace { .. })
    ));
    // A full disk does not keep the store from being opened.
    store.close().await.unwrap();
    let store = open_with(config());
    assert_eq!(count(&store, "/a/").await, acknowledged);
    assert!(store.get("/first", None).await.unwrap().kv.is_none());
    // With space again, puts go on without a restart.
    std::fs::remove_file(filler).unwrap();
    let more = put_until_full(&store, "b").await;
    assert!(more > 100, "only {more} puts fit on the disk");
    assert_eq!(count(&store, "/a/").await + count(&store, "/b/").await, acknowledged + more);
    drop(store);
    let store = open_with(config());
    assert_eq!(count(&store, "/a/").await + count(&store, "/b/").await, acknowledged + more);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_refuses_puts_until_deletions_made_room() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config { segment: 256 << 10, quota: 8 << 20, ..Config::new(directory.path()) };
    let store = open_with(config);
    let acknowledged = put_until_full(&store, "a").await;
    assert!((200..420).contains(&acknowledged), "{acknowledged} values of 20 KB in 8 MB");
    let usage = store.usage().await.unwrap();
    assert!(usage.size <= usage.quota && usage.keys == acknowledged as u64, "{usage:?}");
    for at in 0..acknowledged / 2 {
        delete(&store, &format!("/a/{at:05}")).await;
    }
    // History is what still takes the room.
    store.compact(store.current_revision().await.unwrap()).await.unwrap();
    eventually("puts go on", async || {
        store.commit(Txn::create("/again", vec![b'v'; 20_000].into())).await.is_ok()
    })
    .await;
    assert_eq!(count(&store, "/a/").await, acknowledged - acknowledged / 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_of_the_same_keys_do_not_fill_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config { segment: 128 << 10, history: 100, ..Config::new(directory.path()) };
    let store = open_with(config);
    for round in 0..60 {
        for key in 0..20 {
            let operations = vec![ferry_store::Operation::Put {
                key: format!("/k/{key}").into(),
                value: Bytes::from(format!("{round}").repeat(2000)),
                ttl: None,
            }];
            store.commit(Txn { operations, ..Txn::default() }.relaxed()).await.unwrap();
        }
    }
    eventually("space is reclaimed", async || store.usage().await.unwrap().size < 3 << 20).await;
    let page = store.range(Range::prefix("/k/")).await.unwrap();
    assert!(page.kvs.len() == 20 && page.kvs.iter().all(|kv| kv.value.starts_with(b"59")));
}
