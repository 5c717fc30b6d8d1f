//! Files that are not as they were written: what a crash can leave is mended, and anything else
//! is refused with the name of the file.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use ferry_store::embedded::Config;
use ferry_store::{Embedded, Error, Range, Store, Txn};

use crate::contract::Subject;
use crate::embedded::open_with;

const KEYS: usize = 400;

fn config(directory: &Path) -> Config {
    Config { segment: 64 << 10, ..Config::new(directory) }
}

fn value(at: usize) -> Bytes {
    Bytes::from(format!("{at} ").repeat(1 + at * 7 % 500))
}

/// A store of a few segments, as a crash would leave it, or as a clean end does.
async fn written(directory: &Path, clean: bool) {
    let origin = tempfile::tempdir().unwrap();
    let store = open_with(config(origin.path()));
    for at in 0..KEYS {
        store.commit(Txn::create(format!("/k/{at:04}"), value(at))).await.unwrap();
    }
    if clean {
        store.close().await.unwrap();
    }
    copy(origin.path(), directory);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn segments(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut segments: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "log")).collect();
    segments.sort();
    segments
}

/// Where the written part of a segment ends.
fn end_of(path: &Path) -> usize {
    let bytes = std::fs::read(path).unwrap();
    bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1
}

/// The store holds the first so many keys, each whole.
async fn keys_in(store: &Subject) -> usize {
    let page = store.range(Range::prefix("/k/")).await.unwrap();
    for (at, kv) in page.kvs.iter().enumerate() {
        assert_eq!((&*kv.key, &kv.value), (&*format!("/k/{at:04}"), &value(at)));
    }
    page.kvs.len()
}

fn refusal(directory: &Path) -> Error {
    match Embedded::open(config(directory)) {
        Ok(_) => panic!("a damaged store was opened"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_write_cut_short_is_dropped_and_all_before_it_kept() {
    let origin = tempfile::tempdir().unwrap();
    written(origin.path(), false).await;
    let last = segments(origin.path()).pop().unwrap();
    let end = end_of(&last);
    let whole = keys_in(&open_with(config(origin.path()))).await;
    assert_eq!(whole, KEYS);
    let mut counts = Vec::new();
    for cut in (end / 2..end).step_by((end / 101) | 1) {
        let crashed = tempfile::tempdir().unwrap();
        copy(origin.path(), crashed.path());
        let file =
            OpenOptions::new().write(true).open(crashed.path().join(last.file_name().unwrap())).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(cut as u64).unwrap();
        // Half of the time the space stays allocated, as it is when the process is killed.
        if cut % 2 == 0 {
            file.set_len(length).unwrap();
        }
        let store = open_with(config(crashed.path()));
        counts.push(keys_in(&store).await);
        // It goes on from there, and what comes now is not mixed up with what was cut.
        store.commit(Txn::create("/new", value(3))).await.unwrap();
        drop(store);
        let store = open_with(config(crashed.path()));
        assert_eq!(store.get("/new", None).await.unwrap().kv.unwrap().value, value(3));
        assert_eq!(keys_in(&store).await, *counts.last().unwrap());
    }
    assert!(counts.is_sorted() && counts.first() < counts.last(), "{counts:?}");
}

#[tokio::test]
async fn a_flipped_bit_anywhere_is_found_when_the_store_is_opened() {
    let origin = tempfile::tempdir().unwrap();
    written(origin.path(), true).await;
    let mut refused = 0;
    for segment in segments(origin.path()) {
        let end = end_of(&segment);
        for at in (0..end).step_by(1511) {
            let damaged = tempfile::tempdir().unwrap();
            copy(origin.path(), damaged.path());
            let path = damaged.path().join(segment.file_name().unwrap());
            flip(&path, at as u64);
            match Embedded::open(config(damaged.path())) {
                Err(Error::Corrupt { what }) => {
                    refused += 1;
                    assert!(what.contains("segment") || what.contains(".log"), "{what}");
                }
                Err(other) => panic!("{other}"),
                // Padding between frames means nothing.
                Ok(store) => {
                    let page = store.range(Range::prefix("/k/")).await.unwrap();
                    assert_eq!(page.kvs.len(), KEYS, "offset {at} of {}", path.display());
                }
            }
        }
    }
    assert!(refused > 50, "only {refused} cases were refused");
}

#[tokio::test]
async fn a_missing_segment_is_refused_by_name() {
    let origin = tempfile::tempdir().unwrap();
    written(origin.path(), false).await;
    let all = segments(origin.path());
    assert!(all.len() > 3);
    for missing in [0, 1, all.len() - 2] {
        let damaged = tempfile::tempdir().unwrap();
        copy(origin.path(), damaged.path());
        std::fs::remove_file(damaged.path().join(all[missing].file_name().unwrap())).unwrap();
        let error = refusal(damaged.path());
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains(".log"), "{error}");
    }
}

#[tokio::test]
async fn a_segment_that_a_crash_left_without_a_header_is_begun_anew() {
    let directory = tempfile::tempdir().unwrap();
    written(directory.path(), false).await;
    let last = segments(directory.path()).pop().unwrap();
    let next: u32 = last.file_stem().unwrap().to_str().unwrap().parse::<u32>().unwrap() + 1;
    std::fs::write(directory.path().join(format!("{next:010}.log")), vec![0; 4096]).unwrap();
    let store = open_with(config(directory.path()));
    assert_eq!(keys_in(&store).await, KEYS);
    for at in 0..50 {
        store.commit(Txn::create(format!("/new/{at}"), value(at))).await.unwrap();
    }
}

#[tokio::test]
async fn damage_under_a_running_store_spoils_only_what_it_hits() {
    let directory = tempfile::tempdir().unwrap();
    let store = open_with(config(directory.path()));
    for key in ["/a", "/b"] {
        store.commit(Txn::create(key, Bytes::from(key.repeat(500)))).await.unwrap();
    }
    let segment = segments(directory.path()).remove(0);
    let bytes = std::fs::read(&segment).unwrap();
    let at = bytes.windows(8).position(|window| window == b"/a/a/a/a").unwrap();
    flip(&segment, at as u64 + 100);
    let damaged = store.get("/a", None).await;
    assert!(matches!(damaged, Err(Error::Corrupt { .. })), "{damaged:?}");
    assert!(store.range(Range::prefix("/")).await.is_err(), "a list must not leave a key out");
    assert!(store.get("/b", None).await.unwrap().kv.is_some());
}

fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x20], at).unwrap();
}
