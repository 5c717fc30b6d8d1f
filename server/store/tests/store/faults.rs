//! The embedded engine on a disk that fails, at every call it makes. Whatever happens: no acknowledged write is lost,
//! none is there by half, a refused one is not there, and a store that lacks a file is not opened with less.
//!
//! FERRY_STORE_FAULT_STRIDE: try every so-many-th call (1 by hand; 29 otherwise).

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use ferry_store::embedded::Config;
use ferry_store::{Compare, Durability, Embedded, Error, Operation, Range, Store, Txn};
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::faulty::{EIO, EMFILE, ENOSPC, Fault, FaultyDisk};

const ATTEMPTS: usize = 60;

type State = BTreeMap<String, Bytes>;

fn config() -> Config {
    Config { segment: 16 << 10, history: 20, ..Config::new("/faulty") }
}

fn open(disk: &FaultyDisk) -> Result<Embedded, Error> {
    Embedded::open_over(config(), Arc::new(disk.clone()))
}

/// What attempt `number` writes.
fn changes(number: usize) -> Vec<(String, Option<Bytes>)> {
    let value = |size: usize| Some(Bytes::from(format!("{number} ").repeat(1 + size)));
    match number % 6 {
        0 | 1 => vec![(format!("/one/{}", number % 7), value(number * 37 % 900))],
        2 => vec![("/pair/a".into(), value(3)), ("/pair/b".into(), value(400))],
        3 => vec![(format!("/one/{}", (number + 2) % 7), None)],
        // Zeros and long values: nothing of them may pass for space that was never written.
        4 => vec![(format!("/zeros/{}", number % 3), Some(Bytes::from(vec![0; 1500])))],
        _ => vec![(format!("/long/{}", number % 2), value(1200))],
    }
}

fn apply(state: &mut State, number: usize) {
    for (key, value) in changes(number) {
        match value {
            Some(value) => drop(state.insert(key, value)),
            None => drop(state.remove(&key)),
        }
    }
}

/// The states that may be found again.
#[derive(Default)]
struct Expected {
    now: State,
    /// After each write since the last one that was synced, that one included.
    since_sync: Vec<State>,
    /// A write of which nobody knows whether it happened: the disk failed for good.
    unknown: Option<State>,
    refused: usize,
}

impl Expected {
    async fn work(&mut self, store: &Embedded) {
        for number in 0..ATTEMPTS {
            self.attempt(store, number).await;
            // Space comes back, too: segments are emptied and removed.
            if number % 20 == 19
                && let Ok(current) = store.current_revision().await
            {
                store.compact(current).await.ok();
            }
        }
    }

    async fn attempt(&mut self, store: &Embedded, number: usize) {
        let durability = if number % 4 == 1 { Durability::Relaxed } else { Durability::Sync };
        let operations = changes(number).into_iter().map(|(key, value)| match value {
            Some(value) => Operation::Put { key: key.into(), value, ttl: None },
            None => Operation::Delete { key: key.into() },
        });
        let txn = Txn { compare: Vec::<Compare>::new(), operations: operations.collect(), durability };
        match store.commit(txn).await {
            Ok(_) => {
                assert!(
                    self.unknown.is_none(),
                    "attempt {number} was taken after the disk had failed for good"
                );
                let before = self.now.clone();
                apply(&mut self.now, number);
                // Nothing was written, so nothing was synced.
                if durability == Durability::Sync && before != self.now {
                    self.since_sync.clear();
                }
                self.since_sync.push(self.now.clone());
            }
            Err(_) => {
                self.refused += 1;
                if store.health().await.is_err() && self.unknown.is_none() {
                    let mut unknown = self.now.clone();
                    apply(&mut unknown, number);
                    self.unknown = Some(unknown);
                }
            }
        }
        assert!(read(store).await == self.now, "readers see something else after attempt {number}");
    }

    fn check(&self, found: &State, power_cut: bool, what: &str) {
        let lost_relaxed = power_cut && self.since_sync.contains(found);
        assert!(
            *found == self.now || self.unknown.as_ref() == Some(found) || lost_relaxed,
            "{what}: {:?} instead of {:?}",
            summary(found),
            summary(&self.now)
        );
    }
}

fn summary(state: &State) -> Vec<(&str, String)> {
    let start = |value: &Bytes| String::from_utf8_lossy(&value[..value.len().min(8)]).into_owned();
    state.iter().map(|(key, value)| (key.as_str(), start(value))).collect()
}

async fn read(store: &Embedded) -> State {
    let page = store.range(Range::prefix("")).await.unwrap();
    page.kvs.into_iter().map(|kv| (kv.key.to_string(), kv.value)).collect()
}

/// Works on a disk that fails at `at`, then looks at what a killed process and what a power cut leave.
async fn run(at: usize, steps: usize, fault: Fault) -> Expected {
    let what = format!("{fault:?} at call {at}");
    let disk = FaultyDisk::default();
    disk.fail(at, steps, fault);
    let mut expected = Expected::default();
    expected.since_sync.push(State::new());
    let store = match open(&disk) {
        Ok(store) => Some(store),
        Err(_) => {
            disk.heal();
            (fault != Fault::PowerCut).then(|| open(&disk).unwrap_or_else(|error| panic!("{what}: {error}")))
        }
    };
    if let Some(store) = &store {
        expected.work(store).await;
    }
    let mut random = StdRng::seed_from_u64(at as u64);
    for image in 0..4 {
        let left = disk.power_cut(&mut random);
        let store = open(&left).unwrap_or_else(|error| panic!("{what}, power cut {image}: {error}"));
        expected.check(&read(&store).await, true, &format!("{what}, power cut {image}"));
    }
    drop(store);
    disk.heal();
    if fault == Fault::PowerCut {
        return expected;
    }
    // Opened again, it goes on; and what it says then outlives the next power cut.
    let store = open(&disk).unwrap_or_else(|error| panic!("{what}, opened again: {error}"));
    let found = read(&store).await;
    expected.check(&found, false, &format!("{what}, opened again"));
    let refused = expected.refused;
    let mut after = Expected { now: found.clone(), since_sync: vec![found], ..Expected::default() };
    for number in ATTEMPTS..ATTEMPTS + 8 {
        after.attempt(&store, number).await;
    }
    assert_eq!(after.refused, 0, "{what}: writes are refused after it was opened again");
    for image in 0..2 {
        let left = disk.power_cut(&mut random);
        let store = open(&left).unwrap_or_else(|error| panic!("{what}, second power cut {image}: {error}"));
        after.check(&read(&store).await, true, &format!("{what}, second power cut {image}"));
    }
    assert_eq!(expected.refused, refused);
    expected
}

/// Calls of the whole work when nothing fails.
async fn calls() -> usize {
    let disk = FaultyDisk::default();
    let store = open(&disk).unwrap();
    let mut expected = Expected::default();
    expected.work(&store).await;
    assert_eq!(expected.refused, 0);
    assert!(!disk.files().contains(&"0000000001.log".into()), "no segment was removed");
    disk.steps()
}

fn stride() -> usize {
    std::env::var("FERRY_STORE_FAULT_STRIDE").map_or(29, |stride| stride.parse().expect("a number of calls"))
}

#[tokio::test]
async fn a_failure_of_any_call_loses_no_acknowledged_write() {
    let calls = calls().await;
    let mut runs = 0;
    for (offset, fault) in [
        Fault::PowerCut,
        Fault::Error(EIO),
        Fault::Torn,
        Fault::Short,
        Fault::Error(ENOSPC),
        Fault::Error(EMFILE),
    ]
    .into_iter()
    .enumerate()
    {
        for at in (1 + offset % stride()..=calls).step_by(stride()) {
            let steps = match fault {
                Fault::PowerCut => usize::MAX,
                Fault::Error(ENOSPC | EMFILE) => 40,
                _ => 1,
            };
            let expected = run(at, steps, fault).await;
            runs += 1;
            if matches!(fault, Fault::Short | Fault::Error(EMFILE)) {
                assert_eq!(expected.refused, 0, "{fault:?} at call {at}");
            }
            if fault == Fault::Error(ENOSPC) {
                assert!(expected.unknown.is_none(), "a full disk at call {at} stopped the store for good");
            }
        }
    }
    println!("{runs} faults in work of {calls} calls");
}

#[tokio::test]
async fn the_store_continues_without_file_descriptors() {
    let disk = FaultyDisk::default();
    let store = open(&disk).unwrap();
    disk.fail(0, usize::MAX, Fault::Error(EMFILE));
    let mut expected = Expected::default();
    for number in 0..ATTEMPTS {
        expected.attempt(&store, number).await;
        store.health().await.unwrap();
    }
    assert_eq!(expected.refused, 0);
    assert_eq!(disk.files(), ["0000000001.log", "MANIFEST"]);
    disk.heal();
    for number in ATTEMPTS..20 * ATTEMPTS {
        expected.attempt(&store, number).await;
        if disk.files().len() > 2 {
            break;
        }
    }
    assert!(disk.files().len() > 2, "no segment was begun: {:?}", disk.files());
    drop(store);
    expected.check(&read(&open(&disk).unwrap()).await, false, "opened again");
}

#[tokio::test]
async fn a_store_whose_disk_fails_says_so_when_asked_for_its_health() {
    let disk = FaultyDisk::default();
    let store = open(&disk).unwrap();
    store.commit(Txn::create("/a", "1".into())).await.unwrap();
    store.health().await.unwrap();
    disk.fail(0, usize::MAX, Fault::Error(EIO));
    let refused = store.commit(Txn::create("/b", "2".into())).await;
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    disk.heal();
    for refused in [store.health().await, store.current_revision().await.map(drop)] {
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    }
    assert!(store.get("/a", None).await.unwrap().kv.is_some(), "reads go on");
}

#[tokio::test]
async fn a_full_disk_sets_an_alarm_that_ends_when_there_is_space() {
    let disk = FaultyDisk::default();
    let store = open(&disk).unwrap();
    let large = |name: &str| Txn::create(name, Bytes::from(vec![1; 600 << 10]));
    store.commit(Txn::create("/a", "1".into())).await.unwrap();
    assert!(!store.usage().await.unwrap().no_space);
    disk.fail(0, usize::MAX, Fault::Error(ENOSPC));
    let refused = store.commit(large("/b")).await;
    assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
    assert!(store.usage().await.unwrap().no_space);
    store.health().await.unwrap();
    disk.heal();
    store.commit(large("/b")).await.unwrap();
    assert!(!store.usage().await.unwrap().no_space);
}

#[tokio::test]
async fn a_store_that_lacks_a_file_is_not_opened_with_less() {
    let disk = FaultyDisk::default();
    let store = open(&disk).unwrap();
    let mut expected = Expected::default();
    let mut refused = 0;
    for number in 0..ATTEMPTS {
        expected.attempt(&store, number).await;
        for missing in disk.files() {
            match open(&disk.without(Some(&missing))) {
                Ok(store) => {
                    let found = read(&store).await;
                    assert!(found == expected.now, "{missing} is missing after attempt {number}");
                }
                Err(error) => {
                    refused += 1;
                    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
                    assert!(error.to_string().contains(".log"), "{error}");
                }
            }
        }
    }
    assert!(refused > ATTEMPTS, "only {refused} were refused");
}
