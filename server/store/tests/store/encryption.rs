//! What lies below an encrypted store, on both engines.

use std::sync::Arc;

use bytes::Bytes;
use ferry_store::encryption::{Encryption, Providers, Scheme};
use ferry_store::{Embedded, Encrypted, Error, Etcd, Range, Revision, Store, Txn, embedded, etcd};
use futures::StreamExt;

use crate::etcd_server::EtcdServer;

const PLAIN: Bytes = Bytes::from_static(b"a very hidden value");

/// Every value but those below `/open/` is encrypted with the first of these keys; all of them read.
pub struct Everything(Arc<Providers>);

impl Everything {
    pub fn with(keys: &[&str]) -> Everything {
        let mut providers = Providers::default();
        for key in keys {
            let secret = [key.as_bytes()[0]; 32];
            providers.then_key(Scheme::AesGcm, key, &secret).expect("a key of the right size");
        }
        Everything(Arc::new(providers))
    }
}

impl Encryption for Everything {
    fn of(&self, key: &str) -> Option<Arc<Providers>> {
        (!key.starts_with("/open/")).then(|| self.0.clone())
    }
}

async fn value(store: &dyn Store, key: &str) -> Bytes {
    store.get(key, None).await.expect("an answer").kv.expect("it is there").value
}

/// Nothing below is readable, everything above is, and keys are replaced while watches go on.
async fn check(below: Arc<dyn Store>) {
    let store = Encrypted::new(below.clone(), Arc::new(Everything::with(&["one"])));
    let mut watch = store.watch("/", Revision(2)).await.expect("a watch");
    store.commit(Txn::create("/hidden/a", PLAIN)).await.expect("created");
    store.commit(Txn::create("/open/a", PLAIN)).await.expect("created");

    let raw = value(&*below, "/hidden/a").await;
    assert!(raw.starts_with(b"k8s:enc:aesgcm:v1:one:"), "{raw:?}");
    assert!(!raw.windows(6).any(|piece| piece == b"hidden"));
    assert_eq!(value(&*below, "/open/a").await, PLAIN);
    let page = store.range(Range::prefix("/")).await.expect("a page");
    assert_eq!(page.kvs.iter().map(|kv| kv.value.clone()).collect::<Vec<_>>(), [PLAIN, PLAIN]);
    match store.commit(Txn::create("/hidden/a", Bytes::new())).await {
        Err(Error::Conflict { current: Some(current), .. }) => assert_eq!(current.value, PLAIN),
        other => panic!("expected a conflict, got {other:?}"),
    }

    // A new key writes, the old one reads; what it wrote is worth writing again.
    store.replace(Arc::new(Everything::with(&["two", "one"])));
    assert_eq!(value(&store, "/hidden/a").await, PLAIN);
    assert!(store.is_outdated("/hidden/a").await.expect("an answer"));
    assert!(!store.is_outdated("/open/a").await.expect("an answer"));
    assert!(!store.is_outdated("/hidden/none").await.expect("an answer"));
    let revision =
        store.get("/hidden/a", None).await.expect("an answer").kv.expect("it is there").mod_revision;
    store.commit(Txn::update("/hidden/a", revision, PLAIN)).await.expect("written again");
    assert!(value(&*below, "/hidden/a").await.starts_with(b"k8s:enc:aesgcm:v1:two:"));
    assert!(!store.is_outdated("/hidden/a").await.expect("an answer"));

    let mut seen = 0;
    while seen < 3 {
        let batch = watch.next().await.expect("the watch goes on").expect("a batch");
        for event in &batch.events {
            assert_eq!(event.kv.value, PLAIN);
            seen += 1;
        }
    }

    // Without the key nothing is shown as if it were not there.
    store.replace(Arc::new(Everything::with(&["three"])));
    for failed in [
        store.get("/hidden/a", None).await.map(|_| ()),
        store.range(Range::prefix("/")).await.map(|_| ()),
        store.is_outdated("/hidden/a").await.map(|_| ()),
    ] {
        let error = failed.expect_err("nobody can read it").to_string();
        assert!(error.contains("/hidden/a cannot be decrypted"), "{error}");
    }
}

#[tokio::test]
async fn values_are_encrypted_in_the_embedded_store() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Embedded::open(embedded::Config::new(directory.path().join("store"))).expect("a store");
    check(Arc::new(store)).await;
}

#[tokio::test]
async fn values_are_encrypted_in_etcd() {
    let Some(server) = EtcdServer::start(None, &[]).await else { return };
    let store = Etcd::connect(etcd::Config::new([&server.endpoint])).await.expect("a connection");
    check(Arc::new(store)).await;
}
