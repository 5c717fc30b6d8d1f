//! The laws of the store's engines, over the engine for etcd, over this server.

use std::sync::Arc;

use ferry_store::{Etcd, etcd};

use crate::contract::{Subject, store_contract};
use crate::server::Server;

struct ServedSubject {
    store: Subject,
    _server: Server,
}

impl ServedSubject {
    async fn start() -> Option<Self> {
        let server = Server::in_memory().await;
        let store = Etcd::connect(etcd::Config::new([server.endpoint()])).await.expect("a connection");
        Some(ServedSubject { store: Arc::new(store), _server: server })
    }
}

store_contract! {
    over_ferry_etcd: ServedSubject
}
