//! Which servers the cluster has: the endpoints of the `kubernetes` Service, by which pods and nodes find one.
//!
//! Where servers share a store, each keeps its address there under a lease, as upstream's do and at the same keys,
//! and writes the endpoints from all that are alive. One that died is out of them when its lease has run out.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ferry_client::CancellationToken;
use ferry_store::{Durability, KeyValue, Operation, Range, Revision, Store, Txn, Watch};
use kube::Client;
use parking_lot::RwLock;
use serde_json::{Value, json};

use crate::bootstrap::{ensure, object};

const LEASES: &str = "/registry/masterleases/";
const LEASE: Duration = Duration::from_secs(15);
/// One renewal may be lost.
const RENEWAL: Duration = Duration::from_secs(6);
/// How long a server that stops waits for the store: its lease runs out without that too.
const WITHDRAWAL: Duration = Duration::from_secs(2);
/// How often the endpoints are written again when another server was quicker.
const TRIES: usize = 8;

pub struct ServerAddresses {
    own: RwLock<SocketAddr>,
    /// Where the others are found; `None` when there can be no others.
    store: Option<Arc<dyn Store>>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("write the endpoints of the servers: {0}")]
    Api(#[from] kube::Error),
    #[error("keep this server's address in the store: {0}")]
    Store(#[from] ferry_store::Error),
}

impl ServerAddresses {
    pub fn new(own: SocketAddr, store: Option<Arc<dyn Store>>) -> ServerAddresses {
        ServerAddresses { own: RwLock::new(own), store }
    }

    /// The endpoints of a cluster that has nothing yet: this server.
    pub fn first_objects(&self) -> [Value; 2] {
        let own = *self.own.read();
        objects(&BTreeSet::from([own.ip()]), own.port())
    }

    /// Says that this server is there, and writes down who is.
    pub async fn publish(&self, client: &Client) -> Result<(), Error> {
        let span = ferry_trace::span("apiserver.addresses");
        let publish = async {
            let own = *self.own.read();
            let Some(store) = &self.store else {
                return write(client, &BTreeSet::from([own.ip()]), own.port()).await;
            };
            let put = Operation::Put { key: key(own.ip()), value: lease(own), ttl: Some(LEASE) };
            commit(&**store, put).await?;
            write_alive(client, &**store, own.port()).await
        };
        span.in_scope(publish).await
    }

    /// The host has another address now.
    pub async fn move_to(&self, address: IpAddr, client: &Client) -> Result<(), Error> {
        let old = *self.own.read();
        if old.ip() == address {
            return Ok(());
        }
        *self.own.write() = SocketAddr::new(address, old.port());
        if let Some(store) = &self.store {
            commit(&**store, Operation::Delete { key: key(old.ip()) }).await?;
        }
        self.publish(client).await
    }

    /// Renews this server's lease and watches the others' until `stop`; then takes itself off.
    pub async fn keep(self: Arc<Self>, client: Client, stop: CancellationToken) {
        let Some(store) = self.store.clone() else { return };
        loop {
            tokio::select! {
                () = tokio::time::sleep(RENEWAL) => {}
                () = stop.cancelled() => break,
            }
            if let Err(error) = self.publish(&client).await {
                tracing::warn!(%error, "cannot update the list of API servers");
            }
        }
        let withdrawn = async {
            let own = *self.own.read();
            commit(&*store, Operation::Delete { key: key(own.ip()) }).await?;
            write_alive(&client, &*store, own.port()).await
        };
        match tokio::time::timeout(WITHDRAWAL, withdrawn).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot remove this server from the cluster's endpoints");
            }
            Err(_) => tracing::warn!(
                "the store did not answer; this server's lease ends in {} s and takes it off the cluster's endpoints",
                LEASE.as_secs()
            ),
        }
    }
}

/// Writes those that are alive, as often as it takes until that is what was written: servers that start together write at
/// the same time, and none of them may be left out.
async fn write_alive(client: &Client, store: &dyn Store, port: u16) -> Result<(), Error> {
    let mut found = alive(store).await?;
    for _ in 0..TRIES {
        // With nobody left there is nobody to ask instead.
        if found.is_empty() {
            break;
        }
        let quicker = match write(client, &found, port).await {
            Err(Error::Api(error)) if ferry_client::error::is_conflict(&error) => true,
            written => written.map(|()| false)?,
        };
        let now = alive(store).await?;
        if !quicker && now == found {
            break;
        }
        found = now;
    }
    // What is still not so is mended by the next renewal.
    Ok(())
}

async fn write(client: &Client, addresses: &BTreeSet<IpAddr>, port: u16) -> Result<(), Error> {
    let [slice, endpoints] = objects(addresses, port);
    ensure(client, slice).await?;
    ensure(client, endpoints).await?;
    Ok(())
}

fn objects(addresses: &BTreeSet<IpAddr>, port: u16) -> [Value; 2] {
    let (slice, endpoints) = (slice(addresses, port), endpoints(addresses, port));
    [
        object("discovery.k8s.io/v1", "EndpointSlice", "default", "kubernetes", slice),
        object("v1", "Endpoints", "default", "kubernetes", endpoints),
    ]
}

fn key(address: IpAddr) -> Arc<str> {
    format!("{LEASES}{address}").into()
}

fn lease(own: SocketAddr) -> bytes::Bytes {
    let mut lease = endpoints(&BTreeSet::from([own.ip()]), own.port());
    lease["apiVersion"] = "v1".into();
    lease["kind"] = "Endpoints".into();
    lease.to_string().into()
}

async fn commit(store: &dyn Store, operation: Operation) -> Result<(), ferry_store::Error> {
    let txn = Txn { operations: vec![operation], durability: Durability::Relaxed, ..Txn::default() };
    store.commit(txn).await.map(|_| ())
}

/// The key says who it is; what upstream writes into it is not needed.
async fn alive(store: &dyn Store) -> Result<BTreeSet<IpAddr>, ferry_store::Error> {
    let page = store.range(Range::prefix(LEASES)).await?;
    Ok(page.kvs.iter().filter_map(|kv| kv.key.strip_prefix(LEASES)?.parse().ok()).collect())
}

/// Those that are alive, with their ports, and the revision at which they are. What upstream's servers write is no JSON;
/// they are left out.
pub async fn servers(store: &dyn Store) -> Result<(BTreeSet<SocketAddr>, Revision), ferry_store::Error> {
    let page = store.range(Range::prefix(LEASES)).await?;
    let address = |kv: &KeyValue| {
        let address: IpAddr = kv.key.strip_prefix(LEASES)?.parse().ok()?;
        let lease: Value = serde_json::from_slice(&kv.value).ok()?;
        let port = lease.pointer("/subsets/0/ports/0/port")?.as_u64()?;
        Some(SocketAddr::new(address, u16::try_from(port).ok()?))
    };
    Ok((page.kvs.iter().filter_map(address).collect(), page.revision))
}

/// What happens to the leases after a revision.
pub async fn changes(store: &dyn Store, after: Revision) -> Result<Watch, ferry_store::Error> {
    store.watch(LEASES, after.next()).await
}

/// A slice has addresses of one family: that of the first.
fn slice(addresses: &BTreeSet<IpAddr>, port: u16) -> Value {
    let four = addresses.first().is_none_or(IpAddr::is_ipv4);
    let family = addresses.iter().filter(|address| address.is_ipv4() == four);
    let endpoints: Vec<Value> = family
        .map(|address| json!({"addresses": [address.to_string()], "conditions": {"ready": true}}))
        .collect();
    json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": if four { "IPv4" } else { "IPv6" },
        "endpoints": endpoints,
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    })
}

fn endpoints(addresses: &BTreeSet<IpAddr>, port: u16) -> Value {
    let addresses: Vec<Value> = addresses.iter().map(|address| json!({"ip": address.to_string()})).collect();
    json!({
        "metadata": {"labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{
            "addresses": addresses,
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_is_an_endpoint() {
        let servers = ["10.0.0.2", "10.0.0.1"].map(|text| text.parse().expect("an address")).into();
        let slice = slice(&servers, 6443);
        assert_eq!(slice["endpoints"][0]["addresses"], json!(["10.0.0.1"]));
        assert_eq!(slice["endpoints"][1]["addresses"], json!(["10.0.0.2"]));
        assert_eq!(slice["ports"][0]["port"], 6443);
        let endpoints = endpoints(&servers, 6443);
        assert_eq!(endpoints["subsets"][0]["addresses"], json!([{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]));
    }
}
