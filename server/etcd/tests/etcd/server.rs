//! A server in the test's process, on a free port, with its store in memory or in a directory.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ferry_etcd::server::Limits;
use ferry_etcd::{Config, Listen, Member, Running};
use ferry_store::{Embedded, embedded};

use crate::client::Client;

pub struct Server {
    running: Running,
}

impl Server {
    pub async fn in_memory() -> Server {
        Server::with_limits(limits()).await
    }

    pub async fn with_limits(limits: Limits) -> Server {
        let store = Embedded::in_memory(store_config(Path::new(""))).expect("a store");
        Server::over(store, None, limits).await
    }

    pub async fn in_directory(directory: &Path) -> Server {
        let store = Embedded::open(store_config(&directory.join("store"))).expect("a store");
        Server::over(store, Some(directory), limits()).await
    }

    async fn over(store: Embedded, directory: Option<&Path>, limits: Limits) -> Server {
        let config = Config {
            listen: vec![Listen {
                address: SocketAddr::from(([127, 0, 0, 1], 0)),
                tls: false,
                pages_only: false,
            }],
            tls: None,
            member: Member { name: "test".into(), peer_urls: Vec::new(), client_urls: Vec::new() },
            lease_file: directory.map(|directory| directory.join("leases")),
            sync: true,
            limits,
        };
        Server { running: ferry_etcd::start(config, Arc::new(store)).await.expect("a server") }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address())
    }

    pub fn address(&self) -> SocketAddr {
        self.running.addresses[0]
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.endpoint()).await
    }

    pub async fn stop(self) {
        self.running.stop().await.expect("an orderly end");
    }
}

pub fn limits() -> Limits {
    Limits { progress_interval: Duration::from_millis(200), ..Limits::default() }
}

/// History is kept until it is compacted.
fn store_config(directory: &Path) -> embedded::Config {
    let mut config = embedded::Config::new(directory);
    config.retention = Duration::from_secs(100 * 365 * 24 * 3600);
    config.history = usize::MAX;
    config
}
