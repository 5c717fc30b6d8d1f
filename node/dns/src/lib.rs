//! Cluster DNS: serves the names of Services by Kubernetes' DNS specification (version 1.1.0).
//!
//! ```text
//! Service, EndpointSlices ─► zone::records_of ─► Zone ─► answer ─► server (UDP, TCP)
//!                                                          └─ other names ─► forward (cache, upstreams)
//! ```
//!
//! Pure functions over the [`zone`] resolve names; [`server`] and [`forward`] do the I/O. This crate knows no packet rules:
//! the proxy makes it reachable at the cluster's DNS address, through the Service that [`publish`] maintains.
//!
//! Start reading at [`zone`], then [`answer`].

pub mod answer;
mod cache;
pub mod forward;
pub mod metrics;
pub mod probe;
pub mod publish;
pub mod resolv_conf;
pub mod server;
mod sync;
pub mod zone;

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use ferry_client::{CancellationToken, Informers};
use parking_lot::RwLock;

use forward::Forwarder;
use server::Server;
use zone::Zone;

#[derive(Clone, Debug)]
pub struct Config {
    /// The cluster's domain, `cluster.local`.
    pub domain: String,
    /// Each is served over UDP and TCP.
    pub listen: Vec<SocketAddr>,
    /// Where other names are asked for.
    pub resolv_conf: PathBuf,
    /// Addresses that lead back here (the cluster's DNS address): never asked, lest questions go round.
    pub own_addresses: Vec<std::net::IpAddr>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{domain:?} is no domain name")]
    Domain { domain: String },
    #[error("listening on {address}: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
}

/// Serves the cluster's names until told to stop.
pub async fn run(informers: Informers, config: Config, shutdown: CancellationToken) -> Result<(), Error> {
    let zone = Arc::new(RwLock::new(Zone::new(&config.domain)?));
    let server = Server::bind(&config.listen).await?;
    let mut own = config.own_addresses.clone();
    own.extend(config.listen.iter().map(SocketAddr::ip).filter(|ip| !ip.is_unspecified()));
    let upstreams = match resolv_conf::read(&config.resolv_conf) {
        Ok(servers) => resolv_conf::without_loops(servers, &own, &config.listen),
        Err(error) => {
            tracing::warn!(path = %config.resolv_conf.display(), %error, "cannot resolve names outside the cluster");
            Vec::new()
        }
    };
    let forwarder = Arc::new(Forwarder::new(upstreams));
    tokio::select! {
        () = sync::keep(&informers, &zone) => {}
        () = shutdown.cancelled() => return Ok(()),
    }
    server.serve(zone, forwarder, shutdown).await;
    Ok(())
}
