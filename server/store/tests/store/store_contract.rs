//! Every law of `contract` over every engine.

use std::sync::Arc;

use ferry_store::{Embedded, Encrypted, Etcd, embedded, etcd};

use crate::contract::{Subject, store_contract};
use crate::encryption::Everything;
use crate::etcd_server::EtcdServer;

/// A store in a directory of its own, which goes with it.
struct EmbeddedSubject {
    store: Subject,
    _directory: tempfile::TempDir,
}

impl EmbeddedSubject {
    async fn start() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory for the store");
        let store = Embedded::open(embedded::Config::new(directory.path().join("store")));
        Some(EmbeddedSubject { store: Arc::new(store.expect("a new store")), _directory: directory })
    }
}

/// A store in this process' memory.
struct MemorySubject {
    store: Subject,
}

impl MemorySubject {
    async fn start() -> Option<Self> {
        let store = Embedded::in_memory(embedded::Config::new(""));
        Some(MemorySubject { store: Arc::new(store.expect("a new store")) })
    }
}

/// A store in an etcd of its own, which ends with it.
struct EtcdSubject {
    store: Subject,
    _server: EtcdServer,
}

impl EtcdSubject {
    async fn start() -> Option<Self> {
        let server = EtcdServer::start(None, &[]).await?;
        let store = Etcd::connect(etcd::Config::new([&server.endpoint])).await;
        Some(EtcdSubject { store: Arc::new(store.expect("a connection")), _server: server })
    }
}

/// A store whose every value is encrypted.
struct EncryptedSubject {
    store: Subject,
    _below: EmbeddedSubject,
}

impl EncryptedSubject {
    async fn start() -> Option<Self> {
        let below = EmbeddedSubject::start().await?;
        let store = Arc::new(Encrypted::new(below.store.clone(), Arc::new(Everything::with(&["one"]))));
        Some(EncryptedSubject { store, _below: below })
    }
}

store_contract! {
    on_embedded: EmbeddedSubject
    in_memory: MemorySubject
    on_etcd: EtcdSubject
    encrypted: EncryptedSubject
}
