//! Random work on the embedded engine beside a model of it that is too simple to be wrong: a map
//! for each revision. Small segments and short history make space be reclaimed all the time; the
//! store is opened anew now and then, from a copy of its files as a crash would leave them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use ferry_store::embedded::Config;
use ferry_store::{Durability, Error, Operation, Range, Revision, Txn};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::contract::Subject;
use crate::embedded::open_with;

type Contents = BTreeMap<String, Bytes>;

#[derive(Default)]
struct Model {
    /// The contents after each revision that changed something.
    revisions: BTreeMap<Revision, Contents>,
    compacted: Revision,
}

impl Model {
    fn at(&self, revision: Revision) -> Contents {
        let found = self.revisions.range(..=revision).next_back();
        found.map(|(_, contents)| contents.clone()).unwrap_or_default()
    }

    fn last(&self) -> Contents {
        self.at(Revision(i64::MAX))
    }
}

fn config(directory: &Path) -> Config {
    Config { segment: 64 << 10, ..Config::new(directory) }
}

async fn contents(store: &Subject, at: Revision) -> Result<Contents, Error> {
    let page = store.range(Range::prefix("").at(at)).await?;
    Ok(page.kvs.into_iter().map(|kv| (kv.key.to_string(), kv.value)).collect())
}

fn transaction(random: &mut StdRng) -> Txn {
    let mut operations: HashMap<String, Operation> = HashMap::new();
    for _ in 0..random.random_range(1..4) {
        let key = format!("/key/{}", random.random_range(0..40));
        let operation = if random.random_bool(0.3) {
            Operation::Delete { key: key.as_str().into() }
        } else {
            let mut value = vec![0; random.random_range(0..3000)];
            random.fill(&mut value[..]);
            Operation::Put { key: key.as_str().into(), value: value.into(), ttl: None }
        };
        operations.insert(key, operation);
    }
    let durability = match random.random_bool(0.9) {
        true => Durability::Relaxed,
        false => Durability::Sync,
    };
    Txn { compare: Vec::new(), operations: operations.into_values().collect(), durability }
}

/// The files as they are at one moment, in a new place: what a process killed then would leave.
fn crash_image(from: &Path, to: &Path) {
    let names = || {
        let entries = std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap().file_name());
        entries.collect::<BTreeSet<_>>()
    };
    loop {
        let before = names();
        std::fs::create_dir_all(to).unwrap();
        let copied = before.iter().all(|name| std::fs::copy(from.join(name), to.join(name)).is_ok());
        // Appending meanwhile does no harm. If a segment came or went, it was not one moment.
        if copied && names() == before {
            return;
        }
        std::fs::remove_dir_all(to).unwrap();
    }
}

/// Names the keys that differ, not their contents.
fn same(found: &Contents, expected: &Contents, at: Revision) {
    let differ = |key: &&String| found.get(*key) != expected.get(*key);
    let differing: BTreeSet<_> = found.keys().chain(expected.keys()).filter(differ).collect();
    assert!(differing.is_empty(), "at revision {at}: {differing:?} are not as they should be");
}

async fn check(store: &Subject, model: &Model, random: &mut StdRng) {
    let current = store.current_revision().await.unwrap();
    same(&contents(store, current).await.unwrap(), &model.last(), current);
    for _ in 0..5 {
        let at = Revision(random.random_range(1..=current.0));
        match contents(store, at).await {
            Ok(found) => same(&found, &model.at(at), at),
            Err(Error::Compacted { .. }) => assert!(at < model.compacted, "{at} was compacted too early"),
            Err(other) => panic!("{other}"),
        }
    }
}

async fn run(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let root = tempfile::tempdir().unwrap();
    let mut directory: PathBuf = root.path().join("0");
    let mut store = open_with(config(&directory));
    let mut model = Model::default();
    for step in 0..1500 {
        let txn = transaction(&mut random);
        let mut next = model.last();
        let mut changed = false;
        for operation in &txn.operations {
            match operation {
                Operation::Put { key, value, .. } => {
                    next.insert(key.to_string(), value.clone());
                    changed = true;
                }
                Operation::Delete { key } => changed |= next.remove(&**key).is_some(),
            }
        }
        let revision = store.commit(txn).await.unwrap().revision;
        if changed {
            model.revisions.insert(revision, next);
        }
        match random.random_range(0..100) {
            0..4 => {
                let at = Revision(random.random_range(1..=revision.0));
                if store.compact(at).await.is_ok() {
                    model.compacted = at;
                }
            }
            4 => {
                let image = root.path().join(format!("{}", step + 1));
                crash_image(&directory, &image);
                store.close().await.unwrap();
                directory = image;
                store = open_with(config(&directory));
                let reopened = store.current_revision().await.unwrap();
                assert!(reopened >= revision, "the revision went back");
                check(&store, &model, &mut random).await;
            }
            5 => {
                store.close().await.unwrap();
                store = open_with(config(&directory));
                assert_eq!(store.current_revision().await.unwrap(), revision.max(Revision(1)));
                check(&store, &model, &mut random).await;
            }
            6..10 => check(&store, &model, &mut random).await,
            _ => {}
        }
    }
    check(&store, &model, &mut random).await;
    let segments = |directory: &Path| std::fs::read_dir(directory).unwrap().count() - 1;
    let first =
        std::fs::read_dir(&directory).unwrap().any(|entry| entry.unwrap().file_name() == "0000000001.log");
    assert!(!first, "seed {seed} reclaimed no space in {} segments", segments(&directory));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_work_agrees_with_a_simple_model() {
    for seed in 0..2 {
        run(seed).await;
    }
}
