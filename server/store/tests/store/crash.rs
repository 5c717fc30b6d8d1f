//! A process that writes as fast as it can is killed at random moments, again and again, on one
//! directory. Nothing acknowledged may be missing, nothing torn, and no revision go back.
//!
//! FERRY_STORE_CRASH_ROUNDS: how often (24 if not set; 1,000 by hand).

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ferry_store::embedded::Config;
use ferry_store::{Durability, Embedded, Error, Operation, Revision, Store, Txn};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::contract::Subject;
use crate::embedded::open_with;

const WRITERS: usize = 8;
/// Numbers that one round may use.
const NUMBERS: u64 = 1_000_000;

const DIRECTORY: &str = "FERRY_STORE_CRASH_DIRECTORY";
const ROUNDS: &str = "FERRY_STORE_CRASH_ROUNDS";
const START: &str = "FERRY_STORE_CRASH_START";

fn config(directory: &Path) -> Config {
    // Small enough that segments end and space is reclaimed while it is being killed.
    Config { segment: 256 << 10, history: 2000, ..Config::new(directory) }
}

/// What writer `writer` does as its step `number`; what it leaves depends on nothing else.
fn step(writer: usize, number: u64) -> Vec<(String, Option<Bytes>)> {
    let value = |name: &str| {
        let mut random = StdRng::seed_from_u64(number * WRITERS as u64 + writer as u64);
        let mut value = format!("{name} {writer} {number} ").into_bytes();
        value.resize(value.len() + random.random_range(0..6000), b'x');
        Some(Bytes::from(value))
    };
    match number % 4 {
        0 | 1 => vec![(format!("/one/{writer}/{}", number % 5), value("one"))],
        2 => vec![(format!("/pair/{writer}/a"), value("a")), (format!("/pair/{writer}/b"), value("b"))],
        _ => vec![(format!("/flip/{writer}"), if number % 8 == 3 { value("flip") } else { None })],
    }
}

/// Not a test: the process that is killed. It says each step that was acknowledged.
#[test]
#[ignore = "the child of the crash test"]
fn writer() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let start: u64 = std::env::var(START).unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Arc::new(Embedded::open(config(Path::new(&directory))).unwrap());
        let writers: Vec<_> =
            (0..WRITERS).map(|writer| tokio::spawn(write(store.clone(), writer, start))).collect();
        for writer in writers {
            writer.await.unwrap();
        }
    });
}

async fn write(store: Arc<Embedded>, writer: usize, start: u64) {
    for number in start..start + NUMBERS {
        let operations = step(writer, number).into_iter().map(|(key, value)| match value {
            Some(value) => Operation::Put { key: key.into(), value, ttl: None },
            None => Operation::Delete { key: key.into() },
        });
        let durability = if number % 3 == 0 { Durability::Relaxed } else { Durability::Sync };
        let txn = Txn { operations: operations.collect(), durability, ..Txn::default() };
        let revision = store.commit(txn).await.unwrap().revision;
        println!("ack {writer} {number} {revision}");
    }
}

/// What one child said before it was killed: per writer, each step and its revision.
type Acknowledged = Vec<Vec<(u64, Revision)>>;

fn run_and_kill(directory: &Path, start: u64, after: Duration) -> Acknowledged {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["crash::writer", "--exact", "--ignored", "--nocapture"])
        .env(DIRECTORY, directory)
        .env(START, start.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let lines = Arc::new(AtomicUsize::new(0));
    let counted = lines.clone();
    let reader = std::thread::spawn(move || {
        let mut acknowledged: Acknowledged = vec![Vec::new(); WRITERS];
        // The last line may be cut short by the kill.
        for line in output.lines().map_while(Result::ok) {
            let parts: Vec<&str> = line.split(' ').collect();
            if let ["ack", writer, number, revision] = parts[..] {
                let writer: usize = writer.parse().unwrap();
                acknowledged[writer].push((number.parse().unwrap(), Revision(revision.parse().unwrap())));
                counted.fetch_add(1, Ordering::Relaxed);
            }
        }
        acknowledged
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    while lines.load(Ordering::Relaxed) == 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}

/// Everything acknowledged is there; what else is there is at most the step that was under way.
async fn check(
    store: &Subject,
    start: u64,
    acknowledged: &Acknowledged,
    state: &mut HashMap<String, Option<Bytes>>,
) {
    let mut newest = Revision(0);
    for (writer, steps) in acknowledged.iter().enumerate() {
        for (number, revision) in steps {
            newest = newest.max(*revision);
            state.extend(step(writer, *number));
        }
        let next = steps.last().map_or(start, |(last, _)| last + 1);
        let under_way = step(writer, next);
        let mut took_effect = Vec::new();
        for (key, value) in &under_way {
            let found = store.get(key, None).await.unwrap().kv.map(|kv| kv.value);
            let before = state.get(key).cloned().flatten();
            if before != *value {
                took_effect.push(found == *value);
                assert!(found == *value || found == before, "{key} is torn");
            }
        }
        assert!(took_effect.windows(2).all(|pair| pair[0] == pair[1]), "half a transaction is there");
        if took_effect.first() == Some(&true) {
            state.extend(under_way);
        }
    }
    for (key, value) in state.iter() {
        let found = store.get(key, None).await.unwrap().kv.map(|kv| kv.value);
        assert!(found == *value, "{key} is not as it was acknowledged");
    }
    assert!(store.current_revision().await.unwrap() >= newest, "the revision went back");
    // Each revision that is still remembered holds what was acknowledged at it.
    for (writer, steps) in acknowledged.iter().enumerate() {
        for (number, revision) in steps.iter().rev().take(50) {
            for (key, value) in step(writer, *number) {
                match store.get(&key, Some(*revision)).await {
                    Ok(found) => assert!(found.kv.map(|kv| kv.value) == value, "{key} at {revision}"),
                    Err(Error::Compacted { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_dash_nine_loses_nothing_and_tears_nothing() {
    let rounds: usize =
        std::env::var(ROUNDS).map_or(24, |rounds| rounds.parse().expect("a number of rounds"));
    let directory = tempfile::tempdir().unwrap();
    let mut random = StdRng::seed_from_u64(9);
    let mut state = HashMap::new();
    let mut revision = Revision(0);
    let mut acknowledged_in_all = 0;
    for round in 0..rounds {
        let after = Duration::from_millis(random.random_range(5..250));
        let path = directory.path().to_path_buf();
        let start = (round as u64 + 1) * NUMBERS;
        let acknowledged =
            tokio::task::spawn_blocking(move || run_and_kill(&path, start, after)).await.unwrap();
        acknowledged_in_all += acknowledged.iter().map(Vec::len).sum::<usize>();
        let first =
            acknowledged.iter().filter_map(|steps| steps.first()).map(|(_, revision)| *revision).min();
        assert!(first.is_none_or(|first| first > revision), "a revision was given away twice");
        let store = open_with(config(directory.path()));
        check(&store, start, &acknowledged, &mut state).await;
        revision = store.current_revision().await.unwrap();
        store.close().await.unwrap();
    }
    assert!(acknowledged_in_all > rounds * WRITERS, "only {acknowledged_in_all} writes in all");
    println!("{acknowledged_in_all} acknowledged writes survived {rounds} kills");
}
