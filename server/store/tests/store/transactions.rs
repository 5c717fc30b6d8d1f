//! What the embedded engine lets a transaction do that decides as it goes.

use std::sync::Arc;

use bytes::Bytes;
use ferry_store::embedded::{Budget, Config, Transaction};
use ferry_store::{Embedded, Error, EventKind, Result, Revision, Span, Store, Txn};
use futures::StreamExt;

fn in_memory() -> Embedded {
    Embedded::in_memory(Config::new("")).expect("a store")
}

async fn put(store: &Embedded, key: &str, value: &str, lease: i64) -> Revision {
    let mut budget = Budget::default();
    budget.put(key.as_bytes(), value.as_bytes());
    let (key, value): (Arc<str>, Bytes) = (key.into(), Bytes::copy_from_slice(value.as_bytes()));
    let put =
        store.transact(budget, move |transaction: &mut Transaction<'_>| transaction.put(&key, &value, lease));
    put.await.map(|((), revision)| revision).expect("a put")
}

async fn value(store: &Embedded, key: &str) -> Option<String> {
    let kv = store.get(key, None).await.expect("a read").kv?;
    Some(String::from_utf8_lossy(&kv.value).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_reads_what_it_has_just_written() {
    let store = in_memory();
    put(&store, "/a", "old", 0).await;
    let mut budget = Budget::default();
    budget.put(b"/a", b"new");
    let seen = store.transact::<_, Error>(budget, |transaction| {
        let before = transaction.get("/a")?.expect("it is there");
        assert_eq!(transaction.revision(), before.mod_revision);
        transaction.put(&"/a".into(), &"new".into(), 0)?;
        let after = transaction.get("/a")?.expect("it is there");
        assert_eq!(transaction.revision(), after.mod_revision);
        Ok((before, after))
    });
    let ((before, after), revision) = seen.await.unwrap();
    assert_eq!((&*before.value, &*after.value), (&b"old"[..], &b"new"[..]));
    assert_eq!(
        (after.mod_revision, after.create_revision, after.version),
        (revision, before.create_revision, 2)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_transaction_has_no_effect() {
    let store = in_memory();
    let before = put(&store, "/a", "1", 0).await;
    let mut budget = Budget::default();
    budget.put(b"/a", b"2");
    budget.put(b"/b", b"2");
    let failed = store.transact::<(), Error>(budget, |transaction| {
        transaction.put(&"/a".into(), &"2".into(), 0)?;
        transaction.put(&"/b".into(), &"2".into(), 0)?;
        Err(Error::InvalidTransaction { what: "a change of mind".into() })
    });
    assert!(matches!(failed.await, Err(Error::InvalidTransaction { .. })));
    assert_eq!(store.current_revision().await.unwrap(), before);
    assert_eq!((value(&store, "/a").await, value(&store, "/b").await), (Some("1".into()), None));
    // And what follows is as if it had never been.
    assert_eq!(put(&store, "/b", "3", 0).await, before.next());
    let mut watch = store.watch_span(Span::all(), before.next()).unwrap();
    let batch = watch.next().await.unwrap().unwrap();
    assert_eq!(batch.events.iter().map(|event| &*event.kv.key).collect::<Vec<_>>(), ["/b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_writes_no_more_than_it_said_and_no_key_twice() {
    let store = in_memory();
    let refused = |result: Result<((), Revision)>| matches!(result, Err(Error::InvalidTransaction { .. }));
    let unsaid = store.transact(Budget::default(), |transaction: &mut Transaction<'_>| {
        transaction.put(&"/a".into(), &"1".into(), 0)
    });
    assert!(refused(unsaid.await));
    let mut budget = Budget::default();
    budget.put(b"/a", b"1");
    budget.put(b"/a", b"1");
    let twice = store.transact(budget, |transaction: &mut Transaction<'_>| {
        transaction.put(&"/a".into(), &"1".into(), 0)?;
        transaction.put(&"/a".into(), &"2".into(), 0)
    });
    assert!(refused(twice.await));
    assert_eq!(value(&store, "/a").await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_go_at_one_revision() {
    let store = Arc::new(in_memory());
    let mut last = Revision(0);
    for at in 0..300 {
        last = put(&store, &format!("/a/{at:03}"), "", 0).await;
    }
    put(&store, "/b", "", 0).await;
    let span = Span::prefix("/a/");
    let mut watch = store.watch_span(span.clone(), last.next()).unwrap();
    let mut budget = Budget::default();
    budget.delete(span.clone());
    // Others write into the same span meanwhile: the room made must hold for what is there then.
    let writers: Vec<_> = (300..400)
        .map(|at| {
            let store = store.clone();
            tokio::spawn(async move { store.commit(Txn::create(format!("/a/{at}"), Bytes::new())).await })
        })
        .collect();
    let deleted = store.transact::<_, Error>(budget, move |transaction| {
        let (entries, _) = transaction.entries(&span, None, usize::MAX)?;
        for entry in &entries {
            assert!(transaction.delete(entry.key())?);
        }
        Ok(entries.len())
    });
    let (deleted, revision) = deleted.await.unwrap();
    for writer in writers {
        writer.await.unwrap().expect("a create");
    }
    assert!(deleted >= 300);
    let mut gone = 0;
    while gone < deleted {
        let batch = watch.next().await.unwrap().unwrap();
        let deletions = batch.events.iter().filter(|event| event.kind == EventKind::Delete);
        gone += deletions.inspect(|event| assert_eq!(event.kv.mod_revision, revision)).count();
    }
    let (left, _, _) = store.entries(&Span::all(), None, usize::MAX).unwrap();
    assert_eq!(left.len(), 1 + 400 - deleted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_stays_with_its_key_over_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    for sync in [true, false] {
        let config = Config { sync, ..Config::new(directory.path().join(sync.to_string())) };
        let store = Embedded::open(config.clone()).unwrap();
        put(&store, "/leased", "", 7).await;
        put(&store, "/moved", "", 7).await;
        put(&store, "/moved", "", 8).await;
        put(&store, "/freed", "", 7).await;
        put(&store, "/freed", "", 0).await;
        put(&store, "/gone", "", 7).await;
        store.commit(Txn::delete("/gone", store.current_revision().await.unwrap())).await.unwrap();
        assert_eq!(store.get("/leased", None).await.unwrap().kv.unwrap().lease, 7);
        store.close().await.unwrap();
        drop(store);
        let store = Embedded::open(config).unwrap();
        let mut leased = store.leased().to_vec();
        leased.sort();
        assert_eq!(leased, [("/leased".into(), 7), ("/moved".into(), 8)]);
        assert_eq!(store.get("/moved", None).await.unwrap().kv.unwrap().lease, 8);
        assert_eq!(store.get("/freed", None).await.unwrap().kv.unwrap().lease, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_span_is_listed_counted_and_watched() {
    let store = in_memory();
    for key in ["/a", "/b", "/c", "/d"] {
        put(&store, key, key, 0).await;
    }
    let span = Span::between(b"/b", b"/d");
    let (entries, left, revision) = store.entries(&span, None, 1).unwrap();
    assert_eq!((&**entries[0].key(), left, revision), ("/b", 1, Revision(5)));
    assert_eq!(store.read(entries).await.unwrap()[0].value, "/b");
    let (entries, left, _) = store.entries(&span, Some(Revision(3)), 9).unwrap();
    assert_eq!((entries.len(), left), (1, 0));
    let mut watch = store.watch_span(span, Revision(2)).unwrap();
    let batch = watch.next().await.unwrap().unwrap();
    assert_eq!(batch.events.iter().map(|event| &*event.kv.key).collect::<Vec<_>>(), ["/b", "/c"]);
}
