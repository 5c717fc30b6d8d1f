//! Not a test: how long a large store takes to open, and how much memory. Run it twice, the first run fills the store.
//!
//!     FERRY_STORE_LARGE=DIR [FERRY_STORE_LARGE_KEYS=110000] cargo test -p ferry-store large -- --ignored --nocapture

use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use ferry_store::embedded::Config;
use ferry_store::{Operation, Range, Txn};

use crate::embedded::open_with;

/// Of each value.
const BYTES: usize = 3000;

fn resident_kilobytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
#[ignore = "a measurement"]
async fn open() {
    let Ok(directory) = std::env::var("FERRY_STORE_LARGE") else { return };
    let keys: usize = std::env::var("FERRY_STORE_LARGE_KEYS")
        .map_or(110_000, |keys| keys.parse().expect("a number of keys"));
    if !Path::new(&directory).exists() {
        let store = open_with(Config::new(&directory));
        for first in (0..keys).step_by(2000) {
            let put = |at: usize| Operation::Put {
                key: format!("/registry/configmaps/namespace-{:04}/configmap-{at:08}", at % 100).into(),
                value: Bytes::from(vec![b'x'; BYTES]),
                ttl: None,
            };
            let operations = (first..keys.min(first + 2000)).map(put).collect();
            store.commit(Txn { operations, ..Txn::default() }).await.unwrap();
        }
        return store.close().await.unwrap();
    }
    let (before, start) = (resident_kilobytes(), Instant::now());
    let store = open_with(Config::new(&directory));
    let (opened, after) = (start.elapsed(), resident_kilobytes());
    let usage = store.usage().await.unwrap();
    println!(
        "{} keys, {} MB: opened in {opened:?}, {} MB of memory",
        usage.keys,
        usage.size >> 20,
        (after - before) >> 10
    );
    for uncounted in [false, true] {
        let (start, mut pages, mut count) = (Instant::now(), 0, 0);
        let mut range = Range::prefix("/registry/").limit(2_000);
        range.uncounted = uncounted;
        loop {
            let page = store.range(range.clone()).await.unwrap();
            (pages, count) = (pages + 1, count + page.kvs.len());
            match page.kvs.last() {
                Some(last) if page.remaining > 0 => range = range.after(&*last.key).at(page.revision),
                _ => break,
            }
        }
        println!("{count} keys read in {pages} pages, uncounted {uncounted}: {:?}", start.elapsed());
    }
}
