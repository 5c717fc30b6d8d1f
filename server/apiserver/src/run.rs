//! Starts a server and stops it: its parts are made, it serves, the objects that every cluster has are written, and only
//! then is it ready.

mod defaults;
mod parts;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ferry_admission::plugins;
use ferry_admission::usage_history::UsageHistory;
use ferry_api::Status;
use ferry_auth::User;
use ferry_auth::pki::{Pki, PkiError};
use ferry_auth::user::MASTERS;
use ferry_registry::Registry;
use ferry_registry::settings::AddressRange;
use ferry_store::Store;
use futures::future::OptionFuture;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::aggregation::{Aggregation, FrontProxy};
use crate::api::Api;
use crate::bootstrap::Bootstrap;
use crate::certificates::{self, Upkeep};
pub use crate::config::{AuditConfig, Config};
use crate::definitions::Definitions;
use crate::in_process::InProcess;
use crate::resource_metrics::hours;
use crate::server_addresses::{self, ServerAddresses};
use crate::tokens::{self, UsedToken};
use crate::trace_peers::TracePeers;
use crate::{address_repair, server, usage_samples};
use defaults::{Defaults, serves_flow_control};

/// How long a server has been ready when it makes documents that nobody asked for yet.
const WARM_AFTER: Duration = Duration::from_secs(2);

/// Starts serving. When this returns the server is ready: caches filled, default objects there.
pub async fn start(config: Config, store: Arc<dyn Store>) -> Result<Running, StartError> {
    let mut span = ferry_trace::span("apiserver.start");
    let (listener, address) = listen(config.bind).await?;
    span.set("address", address.to_string());
    let (server, new_files) = Assembled::new(config, store, address).await?;
    let Upkeep { config, pki, api, client, url, .. } = &server.upkeep;
    if let Some(definitions) = Definitions::new(api.clone(), client.clone(), server.stop.clone()) {
        definitions.start().await;
    }
    let serving = server.serve(listener)?;
    server.write_defaults().await?;
    new_files.await.map_err(config_error)??;
    certificates::write_kubeconfig(config, pki, url)?;
    api.health.started();
    server.run(address, serving)
}

/// A server whose parts are made and whose caches are filled.
struct Assembled {
    /// Holds the parts, since it replaces the certificates in them.
    upkeep: Upkeep,
    store: Arc<dyn Store>,
    registry: Arc<Registry>,
    usage: Arc<UsageHistory>,
    used_tokens: mpsc::Receiver<UsedToken>,
    advertised: SocketAddr,
    stop: CancellationToken,
}

impl Assembled {
    /// Also returns the task that writes new certificates and keys: disks are slow, and only readiness waits for it.
    async fn new(
        config: Config,
        store: Arc<dyn Store>,
        address: SocketAddr,
    ) -> Result<(Assembled, JoinHandle<Result<(), PkiError>>), StartError> {
        let advertised = SocketAddr::new(certificates::host_address(&config), address.port());
        let service_range: AddressRange = config.service_cidr.parse().map_err(config_error)?;
        let service_ip = service_range
            .nth(1)
            .ok_or_else(|| config_error("the range of service addresses is too small"))?;
        let names = certificates::serving_names(&config, advertised.ip(), service_ip);
        let (pki, new_files) = Pki::open(config.data_dir.join("pki"), names)?;
        let new_files = tokio::task::spawn_blocking(|| new_files.write());
        let stop = CancellationToken::new();
        let (registry, rows) = parts::registry(&config, store.clone(), service_range);
        fill_caches(&registry, stop.clone()).await?;

        let usage = Arc::new(UsageHistory::default());
        let (api, certificate_authenticators, used_tokens) =
            parts::api(&config, &pki, registry.clone(), rows, advertised, usage.clone()).await?;
        let api = Arc::new(api);
        api.health.caches_filled();
        let front_proxy = certificates::certified_key(&config.given.front_proxy_client(&pki)?)?;
        let upkeep = Upkeep {
            serving: config.given.serving(&pki)?,
            certificate_authenticators,
            front_proxy: Arc::new(FrontProxy::new(front_proxy)),
            bootstrap: Bootstrap {
                service_cidr: config.service_cidr.clone(),
                service_ip,
                port: address.port(),
                trust: config.given.trust(&pki)?,
            },
            addresses: Arc::new(ServerAddresses::new(advertised, config.shared_store.then(|| store.clone()))),
            client: ferry_client::connect::over(InProcess::new(api.clone(), server_identity())),
            url: local_url(config.bind.ip(), address.port()),
            config,
            pki: Arc::new(pki),
            api,
        };
        Ok((Assembled { upkeep, store, registry, usage, used_tokens, advertised, stop }, new_files))
    }

    /// Takes connections from now on, though not ready yet.
    fn serve(&self, listener: TcpListener) -> Result<JoinHandle<()>, StartError> {
        let Upkeep { config, pki, api, serving, .. } = &self.upkeep;
        let tls = certificates::server_tls(config, pki, serving.clone())?;
        if let Some(fairness) = api.flow_control.fairness() {
            tokio::spawn(fairness.clone().run(self.stop.clone()));
        }
        Ok(tokio::spawn(server::serve(api.clone(), listener, tls, self.stop.clone())))
    }

    /// The objects that every cluster has. Aggregated API servers are registered meanwhile.
    async fn write_defaults(&self) -> Result<(), StartError> {
        let Upkeep { config, api, client, bootstrap, addresses, front_proxy, .. } = &self.upkeep;
        let defaults = Defaults { config, api, client, bootstrap };
        let is_founded = defaults.found(addresses).await?;
        let aggregation =
            Aggregation::new(api.clone(), client.clone(), front_proxy.clone(), self.stop.clone());
        let registering = OptionFuture::from(aggregation.map(Aggregation::start));
        let completed = async {
            match is_founded {
                true => defaults.in_force(addresses).await,
                // In a box: it holds requests, and whoever starts a server would carry them on the stack through all calls.
                false => Box::pin(defaults.write(addresses)).await,
            }
        };
        tokio::join!(registering, completed).1
    }

    /// Starts what goes on for as long as the server runs.
    fn run(self, address: SocketAddr, serving: JoinHandle<()>) -> Result<Running, StartError> {
        let Upkeep { config, pki, api, client, addresses, url, .. } = &self.upkeep;
        let stop = &self.stop;
        if let Some(fairness) = api.flow_control.fairness().filter(|_| serves_flow_control(api)) {
            tokio::spawn(fairness.clone().keep(client.clone(), stop.clone()));
        }
        let announcing = tokio::spawn(addresses.clone().keep(client.clone(), stop.clone()));
        let telling = config.shared_store.then(|| {
            let peers = TracePeers {
                own: self.advertised,
                config: config.clone(),
                pki: pki.clone(),
                store: self.store.clone(),
                history: api.history.clone(),
            };
            tokio::spawn(peers.run(stop.clone()))
        });
        tokio::spawn(tokens::note_uses(
            self.registry.clone(),
            client.clone(),
            self.used_tokens,
            stop.clone(),
        ));
        tokio::spawn(hours::follow(api.clone(), stop.clone()));
        let instance = self.advertised.ip().to_string();
        tokio::spawn(address_repair::start(self.registry.clone(), client.clone(), &instance, stop.clone()));
        follow_usage(config, api, client, self.registry, self.usage, stop)?;
        let running = Running {
            api: api.clone(),
            pki: pki.clone(),
            address,
            url: url.clone(),
            stop: self.stop.clone(),
            serving,
            announcing,
            telling,
            store: self.store,
        };
        tokio::spawn(self.upkeep.run(self.stop));
        Ok(running)
    }
}

/// A server that serves.
pub struct Running {
    pub api: Arc<Api>,
    pub pki: Arc<Pki>,
    pub address: SocketAddr,
    /// `https://…`, as the admin kubeconfig names it.
    pub url: String,
    stop: CancellationToken,
    serving: JoinHandle<()>,
    announcing: JoinHandle<()>,
    telling: Option<JoinHandle<()>>,
    store: Arc<dyn Store>,
}

impl Running {
    /// A client that acts as `user`, inside this process.
    pub fn client(&self, user: User) -> kube::Client {
        ferry_client::connect::over(InProcess::new(self.api.clone(), user))
    }

    /// Makes the documents that clients ask for first, before they ask. They cost more CPU and memory than all else that a
    /// start does, so it is done apart, and not by a server that somebody starts for one short test.
    pub fn warm_documents(&self) {
        let (api, stop) = (self.api.clone(), self.stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(WARM_AFTER) => {}
                () = stop.cancelled() => return,
            }
            let made = tokio::task::spawn_blocking(move || {
                let _span = ferry_trace::span("apiserver.documents");
                api.served().documents.openapi_v3_index();
            });
            if let Err(error) = made.await {
                tracing::error!(%error, "cannot build the OpenAPI documents");
            }
        });
    }

    /// Stops taking requests, lets the open ones finish, and makes everything durable.
    pub async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.announcing.await {
            tracing::error!(%error, "the task that maintains the servers' addresses failed");
        }
        if let Err(error) = self.serving.await {
            tracing::error!(%error, "the listener failed");
        }
        self.api.unfinished.close();
        if tokio::time::timeout(server::DRAIN, self.api.unfinished.wait()).await.is_err() {
            tracing::warn!("some writes did not finish in time");
        }
        if let Some(telling) = self.telling
            && let Err(error) = telling.await
        {
            tracing::error!(%error, "cannot send the last spans to the other servers");
        }
        if let Some(audit) = &self.api.audit {
            audit.close().await;
        }
        if let Some(history) = self.api.history.clone()
            && let Err(error) = tokio::task::spawn_blocking(move || history.close()).await
        {
            tracing::error!(%error, "the last spans were not written");
        }
        if let Err(error) = self.store.close().await {
            tracing::error!(%error, "the store could not be closed");
        }
    }

    pub fn stopping(&self) -> CancellationToken {
        self.stop.clone()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}")]
    Config(String),
    #[error("listen on {address}: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("write {}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Pki(#[from] ferry_auth::pki::PkiError),
    #[error("read the store: {0}")]
    Store(#[from] ferry_store::Error),
    #[error("make the objects that every cluster has: {0}")]
    Bootstrap(#[from] kube::Error),
    #[error("make the objects that every cluster has: {}", .0.message)]
    Found(Box<Status>),
    #[error(transparent)]
    Addresses(#[from] server_addresses::Error),
}

pub(crate) fn config_error(error: impl std::fmt::Display) -> StartError {
    StartError::Config(error.to_string())
}

async fn listen(bind: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Listen { address: bind, source };
    let listener = TcpListener::bind(bind).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// As clients on this host reach the server.
fn local_url(bind: IpAddr, port: u16) -> String {
    let host = if bind.is_unspecified() { IpAddr::from([127, 0, 0, 1]) } else { bind };
    format!("https://{}", SocketAddr::new(host, port))
}

/// Follows the store for as long as the server lives; returns when the caches are filled.
async fn fill_caches(registry: &Arc<Registry>, stop: CancellationToken) -> Result<(), StartError> {
    let (ready, filled) = tokio::sync::oneshot::channel();
    let log = registry.log.clone();
    let (failed, failure) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let mut ready = Some(ready);
        let mut failed = Some(failed);
        let mut pause = Duration::from_millis(50);
        loop {
            let ended = tokio::select! {
                error = log.run(|| {
                    if let Some(ready) = ready.take() {
                        // Whoever started us may have given up.
                        let _ = ready.send(());
                    }
                }) => error,
                () = stop.cancelled() => return,
            };
            if ready.is_some() {
                if let Some(failed) = failed.take() {
                    let _ = failed.send(ended);
                }
                return;
            }
            // The store went away; reads go on from the caches until it is back.
            tracing::error!(error = %ended, "the store cannot be followed, trying again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    });
    tokio::select! {
        Ok(()) = filled => Ok(()),
        Ok(error) = failure => Err(StartError::Store(error)),
        else => Err(config_error("stopped before the store was read")),
    }
}

/// Samples what containers use, where an admission plugin wants to know.
fn follow_usage(
    config: &Config,
    api: &Api,
    client: &kube::Client,
    registry: Arc<Registry>,
    usage: Arc<UsageHistory>,
    stop: &CancellationToken,
) -> Result<(), StartError> {
    if api.admission.has(plugins::initial_resources::NAME) {
        let settings = plugins::initial_resources::Settings::read(&parts::admission_configuration(config)?);
        let interval = settings.map_err(config_error)?.interval();
        tokio::spawn(usage_samples::follow(client.clone(), registry, usage, interval, stop.clone()));
    }
    Ok(())
}

/// Who the server itself is to its API.
fn server_identity() -> User {
    User::new("system:apiserver").with_groups([MASTERS])
}
