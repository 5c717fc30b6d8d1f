//! The laws that every engine keeps, one function each. They say what etcd does.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ferry_store::{
    Batch, Committed, Compare, Error, Event, EventKind, KeyValue, Operation, Range, Result, Revision, Store,
    Txn, Watch,
};
use futures::StreamExt;

pub type Subject = Arc<dyn Store>;

const PATIENCE: Duration = Duration::from_secs(30);

pub async fn create(store: &Subject, key: &str, value: &str) -> Committed {
    store
        .commit(Txn::create(key, Bytes::copy_from_slice(value.as_bytes())))
        .await
        .unwrap_or_else(|error| panic!("cannot create {key}: {error}"))
}

/// Puts whatever was there before.
pub async fn put(store: &Subject, key: &str, value: &str) -> Revision {
    let txn = Txn { operations: vec![put_operation(key, value)], ..Txn::default() };
    store.commit(txn).await.expect("a put").revision
}

pub async fn delete(store: &Subject, key: &str) -> Committed {
    let txn = Txn { operations: vec![Operation::Delete { key: key.into() }], ..Txn::default() };
    store.commit(txn).await.expect("a delete")
}

fn put_operation(key: &str, value: &str) -> Operation {
    Operation::Put { key: key.into(), value: Bytes::copy_from_slice(value.as_bytes()), ttl: None }
}

async fn get(store: &Subject, key: &str) -> Option<KeyValue> {
    store.get(key, None).await.expect("a get").kv
}

fn text(kv: &KeyValue) -> &str {
    std::str::from_utf8(&kv.value).expect("test values are text")
}

fn keys(kvs: &[KeyValue]) -> Vec<&str> {
    kvs.iter().map(|kv| &*kv.key).collect()
}

async fn next_batch(watch: &mut Watch) -> Result<Batch> {
    tokio::time::timeout(PATIENCE, watch.next())
        .await
        .expect("a batch in time")
        .expect("a watch ends only with an error")
}

/// The next so many events, whatever batches they come in.
pub async fn events(watch: &mut Watch, count: usize) -> Vec<Event> {
    let mut events = Vec::new();
    while events.len() < count {
        events.extend(next_batch(watch).await.expect("a batch").events);
    }
    assert_eq!(events.len(), count, "more events than expected: {events:?}");
    events
}

pub async fn a_new_key_begins_at_version_one(store: Subject) {
    let before = store.current_revision().await.unwrap();
    let created = create(&store, "/a", "one").await;
    assert_eq!(created.revision, before.next());
    let found = store.get("/a", None).await.unwrap();
    assert_eq!(found.revision, created.revision);
    let kv = found.kv.unwrap();
    assert_eq!((text(&kv), kv.version), ("one", 1));
    assert_eq!(kv.create_revision, created.revision);
    assert_eq!(kv.mod_revision, created.revision);
}

pub async fn each_put_counts_and_keeps_the_create_revision(store: Subject) {
    let created = create(&store, "/a", "0").await.revision;
    let mut last = created;
    for version in 2..=10 {
        let updated = store.commit(Txn::update("/a", last, Bytes::from(version.to_string()))).await.unwrap();
        assert_eq!(updated.revision, last.next());
        last = updated.revision;
        let kv = get(&store, "/a").await.unwrap();
        assert_eq!((kv.version, kv.create_revision), (version, created));
        assert_eq!(kv.mod_revision, last);
    }
}

pub async fn a_key_deleted_and_created_again_begins_anew(store: Subject) {
    create(&store, "/a", "old").await;
    put(&store, "/a", "older").await;
    let deleted = delete(&store, "/a").await;
    assert_eq!(deleted.deleted, 1);
    assert_eq!(get(&store, "/a").await, None);
    let created = create(&store, "/a", "new").await.revision;
    assert_eq!(created, deleted.revision.next());
    let kv = get(&store, "/a").await.unwrap();
    assert_eq!((kv.version, kv.create_revision), (1, created));
}

pub async fn deleting_an_absent_key_changes_nothing(store: Subject) {
    let before = create(&store, "/a", "").await.revision;
    let deleted = delete(&store, "/b").await;
    assert_eq!((deleted.deleted, deleted.revision), (0, before));
    assert_eq!(store.current_revision().await.unwrap(), before);
}

pub async fn a_conflict_tells_what_is_there(store: Subject) {
    let first = create(&store, "/a", "mine").await.revision;
    let conflict = |error| match error {
        Error::Conflict { key, current } => (key.to_string(), current),
        other => panic!("not a conflict: {other}"),
    };
    let again = store.commit(Txn::create("/a", "x".into())).await;
    let (key, current) = conflict(again.unwrap_err());
    assert_eq!((key.as_str(), text(&current.unwrap())), ("/a", "mine"));

    let second = put(&store, "/a", "yours").await;
    let stale = store.commit(Txn::update("/a", first, "x".into())).await;
    let (_, current) = conflict(stale.unwrap_err());
    let current = current.unwrap();
    assert_eq!((text(&current), current.mod_revision), ("yours", second));

    delete(&store, "/a").await;
    let gone = store.commit(Txn::delete("/a", second)).await;
    assert_eq!(conflict(gone.unwrap_err()).1, None);
    assert_eq!(get(&store, "/a").await, None);
}

pub async fn of_many_writers_with_one_expectation_exactly_one_wins(store: Subject) {
    let mut revision = create(&store, "/a", "start").await.revision;
    for round in 0..20 {
        let mut writers = Vec::new();
        for writer in 0..16 {
            let store = store.clone();
            let value = Bytes::from(format!("{round}/{writer}"));
            writers.push(tokio::spawn(async move {
                let done = store.commit(Txn::update("/a", revision, value.clone())).await;
                (done, value)
            }));
        }
        let mut winners = Vec::new();
        for writer in writers {
            match writer.await.unwrap() {
                (Ok(committed), value) => winners.push((committed.revision, value)),
                (Err(Error::Conflict { current, .. }), _) => {
                    assert!(current.unwrap().mod_revision > revision);
                }
                (Err(other), _) => panic!("not a conflict: {other}"),
            }
        }
        assert_eq!(winners.len(), 1, "in round {round}");
        let (won, value) = winners.remove(0);
        let kv = get(&store, "/a").await.unwrap();
        assert_eq!((kv.mod_revision, kv.value), (won, value));
        revision = won;
    }
}

pub async fn a_transaction_is_one_revision_and_all_or_nothing(store: Subject) {
    create(&store, "/old", "").await;
    let txn = Txn {
        compare: vec![Compare::Absent { key: "/a".into() }],
        operations: vec![
            put_operation("/a", "1"),
            put_operation("/b", "2"),
            Operation::Delete { key: "/old".into() },
        ],
        ..Txn::default()
    };
    let before = store.current_revision().await.unwrap();
    let committed = store.commit(txn.clone()).await.unwrap();
    assert_eq!((committed.revision, committed.deleted), (before.next(), 1));
    for key in ["/a", "/b"] {
        let kv = get(&store, key).await.unwrap();
        assert_eq!(kv.mod_revision, committed.revision);
    }
    assert_eq!(get(&store, "/old").await, None);

    let refused = Txn { operations: vec![put_operation("/b", "changed"), put_operation("/c", "new")], ..txn };
    assert!(matches!(store.commit(refused).await, Err(Error::Conflict { .. })));
    assert_eq!(text(&get(&store, "/b").await.unwrap()), "2");
    assert_eq!(get(&store, "/c").await, None);
    let now = store.current_revision().await.unwrap();
    assert_eq!(now, committed.revision);
}

pub async fn a_key_written_twice_in_a_transaction_is_refused(store: Subject) {
    let txn = Txn { operations: vec![put_operation("/a", "1"), put_operation("/a", "2")], ..Txn::default() };
    let refused = store.commit(txn).await;
    assert!(matches!(refused, Err(Error::InvalidTransaction { .. })), "{refused:?}");
    assert_eq!(get(&store, "/a").await, None);
}

pub async fn a_range_is_ordered_and_ends_with_its_prefix(store: Subject) {
    for key in ["/r/b", "/r/a", "/r0", "/r/c/d", "/q/z", "/r"] {
        create(&store, key, key).await;
    }
    let page = store.range(Range::prefix("/r/")).await.unwrap();
    assert_eq!(keys(&page.kvs), ["/r/a", "/r/b", "/r/c/d"]);
    assert_eq!(page.remaining, 0);
    assert_eq!(text(&page.kvs[2]), "/r/c/d");

    let page = store.range(Range::prefix("/r/").limit(1)).await.unwrap();
    assert_eq!((keys(&page.kvs), page.remaining), (vec!["/r/a"], 2));
    let page = store.range(Range::prefix("/r/").limit(1).uncounted()).await.unwrap();
    assert!(keys(&page.kvs) == ["/r/a"] && page.remaining > 0, "{page:?}");
    let page = store.range(Range::prefix("/r/").limit(3).uncounted()).await.unwrap();
    assert_eq!((page.kvs.len(), page.remaining), (3, 0));
    let rest = Range::prefix("/r/").after("/r/a").limit(5);
    let page = store.range(rest).await.unwrap();
    assert_eq!((keys(&page.kvs), page.remaining), (vec!["/r/b", "/r/c/d"], 0));
    let page = store.range(Range::prefix("/none/")).await.unwrap();
    assert!(page.kvs.is_empty() && page.remaining == 0);
    let page = store.range(Range::prefix("")).await.unwrap();
    assert_eq!(page.kvs.len(), 6);
}

pub async fn the_past_can_be_read_as_it_was(store: Subject) {
    let one = create(&store, "/a", "1").await.revision;
    let two = create(&store, "/b", "1").await.revision;
    let three = put(&store, "/a", "2").await;
    let four = delete(&store, "/b").await.revision;
    let expected = [
        (one, vec![("/a", "1")]),
        (two, vec![("/a", "1"), ("/b", "1")]),
        (three, vec![("/a", "2"), ("/b", "1")]),
        (four, vec![("/a", "2")]),
    ];
    for (revision, expected) in expected {
        let page = store.range(Range::prefix("/").at(revision)).await.unwrap();
        let found: Vec<_> = page.kvs.iter().map(|kv| (&*kv.key, text(kv))).collect();
        assert_eq!((found, page.revision), (expected, revision));
    }
    let found = store.get("/b", Some(three)).await.unwrap();
    assert_eq!((text(&found.kv.unwrap()), found.revision), ("1", four));
    assert_eq!(store.get("/b", Some(one)).await.unwrap().kv, None);
}

pub async fn the_future_cannot_be_read(store: Subject) {
    let current = create(&store, "/a", "").await.revision;
    let requested = Revision(current.0 + 5);
    let get = store.get("/a", Some(requested)).await;
    assert!(matches!(get, Err(Error::FutureRevision { .. })), "{get:?}");
    let range = store.range(Range::prefix("/").at(requested)).await;
    assert!(matches!(range, Err(Error::FutureRevision { .. })));
    let compact = store.compact(requested).await;
    assert!(matches!(compact, Err(Error::FutureRevision { .. })));
}

pub async fn pages_of_one_list_are_of_one_revision(store: Subject) {
    for at in 0..50 {
        create(&store, &format!("/p/{at:03}"), "before").await;
    }
    let mut page = store.range(Range::prefix("/p/").limit(7)).await.unwrap();
    let revision = page.revision;
    let mut all = page.kvs;
    let mut round = 0;
    while page.remaining > 0 {
        // Every page sees a changed store, and none of the changes.
        put(&store, &format!("/p/{:03}", 49 - round), "after").await;
        delete(&store, &format!("/p/{:03}", 40 - round)).await;
        create(&store, &format!("/p/x{round}"), "after").await;
        round += 1;
        let last = all.last().unwrap().key.to_string();
        let next = Range::prefix("/p/").after(last).at(revision).limit(7);
        page = store.range(next).await.unwrap();
        assert_eq!((page.revision, page.kvs.len() + page.remaining), (revision, 50 - all.len()));
        all.append(&mut page.kvs);
    }
    assert_eq!(all.len(), 50);
    assert!(all.iter().all(|kv| text(kv) == "before"));
    assert!(all.is_sorted_by_key(|kv| kv.key.clone()));
}

pub async fn compaction_removes_only_older_revisions(store: Subject) {
    let first = create(&store, "/a", "1").await.revision;
    create(&store, "/b", "1").await;
    delete(&store, "/b").await;
    let at = put(&store, "/a", "2").await;
    let last = put(&store, "/a", "3").await;
    store.compact(at).await.unwrap();

    let compacted = |error: Error| matches!(error, Error::Compacted { .. });
    assert!(compacted(store.get("/a", Some(first)).await.unwrap_err()));
    let range = store.range(Range::prefix("/").at(first)).await;
    assert!(compacted(range.unwrap_err()));
    assert!(compacted(store.compact(first).await.unwrap_err()));
    assert!(compacted(store.compact(at).await.unwrap_err()));
    let watch = match store.watch("/", first).await {
        Ok(mut watch) => next_batch(&mut watch).await.map(drop),
        Err(error) => Err(error),
    };
    assert!(compacted(watch.unwrap_err()));

    let found = store.get("/a", Some(at)).await.unwrap();
    assert_eq!(text(&found.kv.unwrap()), "2");
    let mut watch = store.watch("/", at).await.unwrap();
    let seen: Vec<_> = events(&mut watch, 2).await.into_iter().map(|event| event.kv.mod_revision).collect();
    assert_eq!(seen, [at, last]);
}

pub async fn a_watch_tells_creation_change_and_deletion(store: Subject) {
    let from = store.current_revision().await.unwrap().next();
    let mut watch = store.watch("/w/", from).await.unwrap();
    let one = create(&store, "/w/a", "1").await.revision;
    create(&store, "/other", "").await;
    let two = put(&store, "/w/a", "2").await;
    let three = delete(&store, "/w/a").await.revision;
    let events = events(&mut watch, 3).await;
    let facts: Vec<_> = events
        .iter()
        .map(|event| {
            (event.kind, event.is_create(), text(&event.kv), event.kv.version, event.kv.mod_revision)
        })
        .collect();
    assert_eq!(
        facts,
        [
            (EventKind::Put, true, "1", 1, one),
            (EventKind::Put, false, "2", 2, two),
            (EventKind::Delete, false, "", 0, three),
        ]
    );
    assert!(events.iter().all(|event| &*event.kv.key == "/w/a"));
    assert_eq!(events[1].kv.create_revision, one);
}

pub async fn a_transaction_arrives_in_one_batch(store: Subject) {
    let from = store.current_revision().await.unwrap().next();
    let mut live = store.watch("/t/", from).await.unwrap();
    let txn = Txn {
        operations: (0..50).map(|at| put_operation(&format!("/t/{at:02}"), "")).collect(),
        ..Txn::default()
    };
    let revision = store.commit(txn).await.unwrap().revision;
    let mut replayed = store.watch("/t/", from).await.unwrap();
    for watch in [&mut live, &mut replayed] {
        let batch = loop {
            let batch = next_batch(watch).await.unwrap();
            if !batch.events.is_empty() {
                break batch;
            }
        };
        assert_eq!((batch.events.len(), batch.revision), (50, revision));
        assert!(batch.events.is_sorted_by_key(|event| event.kv.key.clone()));
    }
}

/// Watches that begin at different times and revisions, while many write, all see every change
/// from their revision on, once and in order.
pub async fn a_watch_misses_nothing_and_repeats_nothing(store: Subject) {
    const WRITERS: usize = 8;
    const WRITES: usize = 60;
    let start = store.current_revision().await.unwrap();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut written = Vec::new();
                for round in 0..WRITES {
                    let prefix = ["/n/", "/elsewhere/"][round % 2];
                    let key = format!("{prefix}{writer}");
                    let revision = match round % 10 {
                        8 | 9 => delete(&store, &key).await.revision,
                        _ => put(&store, &key, &format!("{round}")).await,
                    };
                    if round % 2 == 0 {
                        written.push(revision);
                    }
                }
                written
            })
        })
        .collect();
    let followers: Vec<_> = (0..6)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let page = store.range(Range::prefix("/n/")).await.unwrap();
                let from = page.revision.next();
                let mut watch = store.watch("/n/", from).await.unwrap();
                let mut seen = Vec::new();
                loop {
                    let batch = next_batch(&mut watch).await.unwrap();
                    for event in batch.events {
                        assert!(event.kv.mod_revision <= batch.revision);
                        if &*event.kv.key == "/n/end" {
                            return (page.revision, seen);
                        }
                        seen.push(event.kv.mod_revision);
                    }
                }
            })
        })
        .collect();
    let mut written = Vec::new();
    for writer in writers {
        written.extend(writer.await.unwrap());
    }
    written.sort_unstable();
    create(&store, "/n/end", "").await;
    let mut outcomes = vec![];
    for follower in followers {
        outcomes.push(follower.await.unwrap());
    }
    let mut late = store.watch("/n/", start.next()).await.unwrap();
    let all = events(&mut late, written.len() + 1).await;
    let all = all.iter().map(|event| event.kv.mod_revision).filter(|at| written.contains(at));
    outcomes.push((start, all.collect()));
    for (after, seen) in outcomes {
        let expected: Vec<_> = written.iter().copied().filter(|at| *at > after).collect();
        assert_eq!(seen, expected);
    }
}

pub async fn a_watch_may_begin_in_the_future(store: Subject) {
    let from = Revision(store.current_revision().await.unwrap().0 + 3);
    let mut watch = store.watch("/f/", from).await.unwrap();
    for at in 0..4 {
        create(&store, &format!("/f/{at}"), "").await;
    }
    let seen = events(&mut watch, 2).await;
    assert_eq!(seen[0].kv.mod_revision, from);
}

/// A follower of a prefix where nothing happens can serve reads as new as the store.
pub async fn a_quiet_watch_learns_how_far_the_store_is(store: Subject) {
    let from = store.current_revision().await.unwrap().next();
    let mut watch = store.watch("/quiet/", from).await.unwrap();
    let progress = watch.progress();
    for round in 0..3 {
        put(&store, "/loud", &round.to_string()).await;
        let current = store.current_revision().await.unwrap();
        let mut applied = from;
        loop {
            // What the engine knows, it says without a batch.
            if progress.newest_event().is_some_and(|newest| newest <= applied) {
                break;
            }
            progress.request();
            let batch = next_batch(&mut watch).await.unwrap();
            assert!(batch.events.is_empty());
            applied = batch.revision;
            if applied >= current {
                break;
            }
        }
    }
    let last = create(&store, "/quiet/a", "").await.revision;
    if let Some(newest) = progress.newest_event() {
        assert_eq!(newest, last);
    }
    assert_eq!(events(&mut watch, 1).await[0].kv.mod_revision, last);
}

pub async fn a_key_with_a_time_to_live_deletes_itself(store: Subject) {
    let from = store.current_revision().await.unwrap().next();
    let mut watch = store.watch("/ttl/", from).await.unwrap();
    let short = Duration::from_secs(2);
    for key in ["/ttl/goes", "/ttl/stays", "/ttl/deleted"] {
        let txn = Txn::create(key, "v".into()).expiring(short).relaxed();
        store.commit(txn).await.unwrap();
    }
    // A put without a time to live takes the time to live away.
    put(&store, "/ttl/stays", "v2").await;
    let deleted = delete(&store, "/ttl/deleted").await.revision;
    let seen = events(&mut watch, 6).await;
    let gone = &seen[5];
    assert_eq!((gone.kind, &*gone.kv.key), (EventKind::Delete, "/ttl/goes"));
    assert!(gone.kv.mod_revision > deleted);
    assert_eq!(get(&store, "/ttl/goes").await, None);
    assert_eq!(text(&get(&store, "/ttl/stays").await.unwrap()), "v2");
    let current = store.current_revision().await.unwrap();
    assert_eq!(current, gone.kv.mod_revision);
}

pub async fn large_values_come_back_whole(store: Subject) {
    let value: Bytes = (0..1_200_000u32).map(|at| (at % 251) as u8).collect();
    let from = store.current_revision().await.unwrap().next();
    let mut watch = store.watch("/big", from).await.unwrap();
    store.commit(Txn::create("/big", value.clone())).await.unwrap();
    assert_eq!(get(&store, "/big").await.unwrap().value, value);
    assert_eq!(events(&mut watch, 1).await[0].kv.value, value);
    let oversized = Bytes::from(vec![0; 16 << 20]);
    let refused = store.commit(Txn::create("/huge", oversized)).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })));
}

pub async fn what_is_acknowledged_is_read_by_everyone(store: Subject) {
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                for round in 0..25 {
                    let key = format!("/x/{writer}/{round}");
                    let txn = Txn::create(key.as_str(), "v".into());
                    let txn = if round % 2 == 0 { txn.relaxed() } else { txn };
                    let revision = store.commit(txn).await.unwrap().revision;
                    assert!(store.current_revision().await.unwrap() >= revision);
                    assert_eq!(get(&store, &key).await.unwrap().mod_revision, revision);
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let page = store.range(Range::prefix("/x/")).await.unwrap();
    let revisions: BTreeSet<_> = page.kvs.iter().map(|kv| kv.mod_revision).collect();
    assert_eq!((page.kvs.len(), revisions.len()), (200, 200));
}

pub async fn many_watches_share_one_store(store: Subject) {
    let from = store.current_revision().await.unwrap().next();
    let mut watches = Vec::new();
    for at in 0..64 {
        watches.push(store.watch(&format!("/m/{at:02}/"), from).await.unwrap());
    }
    for at in 0..64 {
        create(&store, &format!("/m/{at:02}/key"), "").await;
    }
    for (at, watch) in watches.iter_mut().enumerate() {
        let event = events(watch, 1).await.remove(0);
        assert_eq!(*event.kv.key, format!("/m/{at:02}/key"));
    }
}

macro_rules! laws {
    ($engine:ident: $subject:ident; $($law:ident)*) => {
        mod $engine {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $law() {
                    if let Some(subject) = super::$subject::start().await {
                        crate::contract::$law(subject.store.clone()).await;
                    }
                }
            )*
        }
    };
}

/// Every law over every engine: for each, the name of a module and of a type with `start` and a `store`.
macro_rules! store_contract {
    ($($engine:ident: $subject:ident)*) => { $(
        $crate::contract::laws! { $engine: $subject;
            a_new_key_begins_at_version_one
            each_put_counts_and_keeps_the_create_revision
            a_key_deleted_and_created_again_begins_anew
            deleting_an_absent_key_changes_nothing
            a_conflict_tells_what_is_there
            of_many_writers_with_one_expectation_exactly_one_wins
            a_transaction_is_one_revision_and_all_or_nothing
            a_key_written_twice_in_a_transaction_is_refused
            a_range_is_ordered_and_ends_with_its_prefix
            the_past_can_be_read_as_it_was
            the_future_cannot_be_read
            pages_of_one_list_are_of_one_revision
            compaction_removes_only_older_revisions
            a_watch_tells_creation_change_and_deletion
            a_transaction_arrives_in_one_batch
            a_watch_misses_nothing_and_repeats_nothing
            a_watch_may_begin_in_the_future
            a_quiet_watch_learns_how_far_the_store_is
            a_key_with_a_time_to_live_deletes_itself
            large_values_come_back_whole
            what_is_acknowledged_is_read_by_everyone
            many_watches_share_one_store
        }
    )* };
}

pub(crate) use {laws, store_contract};
