//! What concurrent clients of the embedded engine saw can be put in one order in which each saw what the one before
//! left, and nobody's turn comes before it asked or after it was answered: the engine is linearizable.
//!
//! Wing and Gong's search, with a memory of where it has been, for each key alone: a history is linearizable if it is so
//! for each of its keys. FERRY_STORE_HISTORIES: how many histories are recorded (4 if not set).

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use ferry_store::embedded::Config;
use ferry_store::{Durability, Error, KeyValue, Revision, Txn};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::contract::Subject;
use crate::embedded::open_with;

const CLIENTS: u64 = 6;
const CALLS: usize = 120;
const KEYS: usize = 3;

/// A key as one client saw it: its value and the revision of that.
type State = Option<(Bytes, Revision)>;

#[derive(Debug, Clone)]
enum Action {
    Read {
        saw: State,
    },
    /// Puts, or deletes where there is no value, if the key was last changed at `expected`; zero for an absent key.
    Write {
        expected: Revision,
        value: Option<Bytes>,
        outcome: Outcome,
    },
}

#[derive(Debug, Clone)]
enum Outcome {
    Done(Revision),
    Conflict(State),
}

#[derive(Debug, Clone)]
struct Call {
    begin: u64,
    end: u64,
    action: Action,
}

/// What the call leaves, if it can have seen `state`.
fn apply(state: &State, action: &Action) -> Option<State> {
    let revision = state.as_ref().map_or(Revision(0), |(_, revision)| *revision);
    match action {
        Action::Read { saw } => (saw == state).then(|| state.clone()),
        Action::Write { expected, value, outcome: Outcome::Done(at) } => {
            (*expected == revision && *at > revision).then(|| value.clone().map(|value| (value, *at)))
        }
        Action::Write { expected, outcome: Outcome::Conflict(saw), .. } => {
            (*expected != revision && saw == state).then(|| state.clone())
        }
    }
}

/// Whether the calls of one key, which did not exist before, have an order.
fn is_linearizable(calls: &[Call]) -> bool {
    let mut seen = HashSet::new();
    let mut open = vec![(vec![false; calls.len()], None)];
    while let Some((done, state)) = open.pop() {
        // The next in order began before any that is still to come had ended.
        let Some(first_end) = (0..calls.len()).filter(|at| !done[*at]).map(|at| calls[at].end).min() else {
            return true;
        };
        for at in (0..calls.len()).filter(|at| !done[*at] && calls[*at].begin < first_end) {
            if let Some(state) = apply(&state, &calls[at].action) {
                let mut done = done.clone();
                done[at] = true;
                if seen.insert((done.clone(), state.clone())) {
                    open.push((done, state));
                }
            }
        }
    }
    false
}

fn state_of(kv: Option<KeyValue>) -> State {
    kv.map(|kv| (kv.value, kv.mod_revision))
}

async fn client(store: Subject, number: u64, seed: u64, clock: Arc<AtomicU64>) -> Vec<(usize, Call)> {
    let mut random = StdRng::seed_from_u64(seed * CLIENTS + number);
    let mut known: [Revision; KEYS] = Default::default();
    let mut calls = Vec::new();
    for step in 0..CALLS {
        let at = random.random_range(0..KEYS);
        let key = format!("/key/{at}");
        let kind = random.random_range(0..10);
        let begin = clock.fetch_add(1, Ordering::SeqCst);
        let action = if kind < 4 {
            let saw = state_of(store.get(&key, None).await.unwrap().kv);
            known[at] = saw.as_ref().map_or(Revision(0), |(_, revision)| *revision);
            Action::Read { saw }
        } else {
            let expected = known[at];
            let value = (kind < 9 || expected.0 == 0).then(|| Bytes::from(format!("{number} {step}")));
            let mut txn = match &value {
                Some(value) if expected.0 == 0 => Txn::create(key.as_str(), value.clone()),
                Some(value) => Txn::update(key.as_str(), expected, value.clone()),
                None => Txn::delete(key.as_str(), expected),
            };
            txn.durability = if random.random() { Durability::Sync } else { Durability::Relaxed };
            let outcome = match store.commit(txn).await {
                Ok(committed) => Outcome::Done(committed.revision),
                Err(Error::Conflict { current, .. }) => Outcome::Conflict(state_of(current)),
                Err(other) => panic!("{other}"),
            };
            known[at] = match (&outcome, &value) {
                (Outcome::Done(revision), Some(_)) => *revision,
                (Outcome::Conflict(Some((_, revision))), _) => *revision,
                _ => Revision(0),
            };
            Action::Write { expected, value, outcome }
        };
        calls.push((at, Call { begin, end: clock.fetch_add(1, Ordering::SeqCst), action }));
    }
    calls
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_concurrent_clients_see_has_one_order() {
    let histories =
        std::env::var("FERRY_STORE_HISTORIES").map_or(4, |histories| histories.parse().expect("a number"));
    let mut calls_in_all = 0;
    for seed in 0..histories {
        let directory = tempfile::tempdir().unwrap();
        let store = open_with(Config { segment: 64 << 10, ..Config::new(directory.path()) });
        let clock = Arc::new(AtomicU64::new(0));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| tokio::spawn(client(store.clone(), number, seed, clock.clone())))
            .collect();
        let mut keys: [Vec<Call>; KEYS] = Default::default();
        for client in clients {
            for (at, call) in client.await.unwrap() {
                keys[at].push(call);
            }
        }
        for (at, calls) in keys.iter_mut().enumerate() {
            calls.sort_by_key(|call| call.begin);
            calls_in_all += calls.len();
            assert!(
                is_linearizable(calls),
                "history {seed}: the calls of key {at} have no order: {calls:#?}"
            );
        }
    }
    println!("{histories} histories of {calls_in_all} calls are linearizable");
}

#[test]
fn the_search_tells_a_stale_read_and_a_lost_write_from_an_order() {
    let value = |revision: i64| Some((Bytes::from(revision.to_string()), Revision(revision)));
    let put = |expected: i64, at: i64| Action::Write {
        expected: Revision(expected),
        value: Some(Bytes::from(at.to_string())),
        outcome: Outcome::Done(Revision(at)),
    };
    let call = |begin, end, action| Call { begin, end, action };
    let check = |calls: &[Call], expected: bool| assert_eq!(is_linearizable(calls), expected, "{calls:?}");
    let read = |revision| Action::Read { saw: value(revision) };
    check(&[call(0, 1, put(0, 2)), call(2, 3, put(2, 3)), call(4, 5, read(3))], true);
    check(&[call(0, 1, put(0, 2)), call(2, 3, put(2, 3)), call(4, 5, read(2))], false);
    // The read and the second write overlap: either may be first.
    check(&[call(0, 1, put(0, 2)), call(2, 5, put(2, 3)), call(3, 4, read(2))], true);
    check(&[call(0, 1, put(0, 2)), call(2, 5, put(2, 3)), call(3, 4, read(3))], true);
    // But not one after the other.
    check(&[call(0, 1, put(0, 2)), call(2, 9, put(2, 3)), call(3, 4, read(3)), call(5, 6, read(2))], false);
    check(&[call(0, 1, put(0, 2)), call(2, 3, put(0, 3))], false);
}
