//! What concurrent clients of an engine saw has one order, [`ferry_linearizable`] says which: of the embedded engine, and of
//! the one over etcd while its server is killed. FERRY_STORE_HISTORIES: how many histories are recorded of each (4 if not set,
//! one over etcd).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ferry_linearizable::{Action, Call, Outcome, Seen, is_linearizable};
use ferry_store::embedded::Config;
use ferry_store::{Durability, Error, Etcd, KeyValue, Revision, Txn};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::contract::Subject;
use crate::embedded::open_with;
use crate::etcd_server::EtcdServer;

const CLIENTS: u64 = 6;
const CALLS: usize = 120;
const KEYS: usize = 3;
/// What a client waits after a call that got no answer.
const PAUSE: Duration = Duration::from_millis(10);

fn number(revision: Revision) -> u64 {
    revision.0.try_into().expect("no revision is negative")
}

fn seen(kv: Option<KeyValue>) -> Seen {
    kv.map(|kv| (String::from_utf8_lossy(&kv.value).into_owned(), number(kv.mod_revision)))
}

async fn client(store: Subject, name: u64, seed: u64, clock: Arc<AtomicU64>) -> Vec<(usize, Call)> {
    let mut random = StdRng::seed_from_u64(seed * CLIENTS + name);
    let mut known = [0; KEYS];
    let mut calls = Vec::new();
    for step in 0..CALLS {
        let at = random.random_range(0..KEYS);
        let key = format!("/key/{at}");
        let kind = random.random_range(0..10);
        let begin = clock.fetch_add(1, Ordering::SeqCst);
        let action = if kind < 4 {
            match store.get(&key, None).await {
                Ok(got) => Some(Action::Read { saw: seen(got.kv) }),
                // A read that told nothing has no place in the history.
                Err(Error::Unavailable { .. }) => None,
                Err(other) => panic!("{other}"),
            }
        } else {
            let expected = known[at];
            let value = (kind < 9 || expected == 0).then(|| format!("{name} {step}"));
            let durability = if random.random() { Durability::Sync } else { Durability::Relaxed };
            let outcome = write(&store, &key, expected, value.clone(), durability).await;
            Some(Action::Write { expected, value, outcome })
        };
        let end = clock.fetch_add(1, Ordering::SeqCst);
        known[at] = match &action {
            Some(Action::Read { saw: Some((_, revision)) })
            | Some(Action::Write { outcome: Outcome::Conflict(Some(Some((_, revision)))), .. })
            | Some(Action::Write { value: Some(_), outcome: Outcome::Done(Some(revision)), .. }) => *revision,
            _ => 0,
        };
        if matches!(action, None | Some(Action::Write { outcome: Outcome::Unknown, .. })) {
            tokio::time::sleep(PAUSE).await;
        }
        calls.extend(action.map(|action| (at, Call { begin, end, action })));
    }
    calls
}

async fn write(
    store: &Subject,
    key: &str,
    expected: u64,
    value: Option<String>,
    durability: Durability,
) -> Outcome {
    let revision = Revision(expected.try_into().expect("a revision"));
    let mut txn = match value.map(Bytes::from) {
        Some(value) if expected == 0 => Txn::create(key, value),
        Some(value) => Txn::update(key, revision, value),
        None => Txn::delete(key, revision),
    };
    txn.durability = durability;
    match store.commit(txn).await {
        Ok(committed) => Outcome::Done(Some(number(committed.revision))),
        Err(Error::Conflict { current, .. }) => Outcome::Conflict(Some(seen(current))),
        Err(Error::Unavailable { .. }) => Outcome::Unknown,
        Err(other) => panic!("{other}"),
    }
}

/// Records a history of all clients and judges it; how many calls it had.
async fn judge(store: Subject, seed: u64) -> usize {
    let clock = Arc::new(AtomicU64::new(0));
    let clients: Vec<_> =
        (0..CLIENTS).map(|name| tokio::spawn(client(store.clone(), name, seed, clock.clone()))).collect();
    let mut keys: [Vec<Call>; KEYS] = Default::default();
    for client in clients {
        for (at, call) in client.await.unwrap() {
            keys[at].push(call);
        }
    }
    for (at, calls) in keys.iter_mut().enumerate() {
        calls.sort_by_key(|call| call.begin);
        assert!(is_linearizable(calls), "history {seed}: the calls of key {at} have no order: {calls:#?}");
    }
    keys.iter().map(Vec::len).sum()
}

fn histories(otherwise: u64) -> u64 {
    std::env::var("FERRY_STORE_HISTORIES").map_or(otherwise, |histories| histories.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_store_clients_are_linearizable() {
    let (histories, mut calls) = (histories(4), 0);
    for seed in 0..histories {
        let directory = tempfile::tempdir().unwrap();
        let store = open_with(Config { segment: 64 << 10, ..Config::new(directory.path()) });
        calls += judge(store, seed).await;
    }
    println!("{histories} histories of {calls} calls are linearizable");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn so_has_what_clients_of_an_etcd_see_that_is_killed() {
    /// Killed so often while the clients work.
    const KILLS: u32 = 3;
    let (histories, mut calls) = (histories(1), 0);
    for seed in 0..histories {
        let Some(mut server) = EtcdServer::start(None, &[]).await else { return };
        let store: Subject =
            Arc::new(Etcd::connect(ferry_store::etcd::Config::new([&server.endpoint])).await.unwrap());
        let history = tokio::spawn(judge(store, seed));
        for _ in 0..KILLS {
            tokio::time::sleep(Duration::from_millis(200)).await;
            server.kill();
            server.restart().await;
        }
        calls += history.await.unwrap();
    }
    println!("{histories} histories of {calls} calls are linearizable");
}
