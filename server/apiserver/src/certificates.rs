//! The server's certificates: serving, clients for kubelets and as front proxy, and trusted authorities. They are replaced
//! without a restart when a certificate is renewed or the host's address changes.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;

use ferry_auth::authenticate::{RequestHeader, X509};
use ferry_auth::pki::{PemPair, Pki, PkiConfig, Renewed};
use ferry_auth::tls::{AnyClientCertificate, ServingCertificate};
use ferry_client::tls::{self, Trust};
use ferry_client::trusted_certificates::TrustedCertificates;
use rustls::sign::CertifiedKey;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::account_keys::AccountKeys;
use crate::aggregation::FrontProxy;
use crate::api::Api;
use crate::bootstrap::Bootstrap;
use crate::run::{Config, StartError, config_error};
use crate::server_addresses::ServerAddresses;

/// Who believes certificates, and has to be told of new authorities.
#[derive(Clone)]
pub struct CertificateAuthenticators {
    pub clients: Arc<X509>,
    pub front_proxies: Arc<RequestHeader>,
}

/// Keeps the certificates of a running server fresh.
pub struct Upkeep {
    pub config: Config,
    pub pki: Arc<Pki>,
    pub api: Arc<Api>,
    pub serving: Arc<ServingCertificate>,
    pub certificate_authenticators: CertificateAuthenticators,
    pub front_proxy: Arc<FrontProxy>,
    pub bootstrap: Bootstrap,
    pub addresses: Arc<ServerAddresses>,
    pub client: kube::Client,
    pub url: String,
}

impl Upkeep {
    /// Looks every so often, until `stop`: certificates are renewed long before they end, the serving one also when
    /// the host's address is another. What could not be done is done in the next round.
    pub async fn run(self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(self.config.certificate_check);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut kubeconfig_is_fresh = true;
        let mut keys = AccountKeys::read(&self.config, &self.pki).ok();
        let mut announced = self.bootstrap.trust.clone();
        let mut given = self.config.given.contents().ok();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => return,
            }
            let advertise = host_address(&self.config);
            let names = serving_names(&self.config, advertise, self.bootstrap.service_ip).names;
            match self.pki.renew(names, SystemTime::now()) {
                Ok(renewed) if renewed.is_empty() => {}
                Ok(renewed) => {
                    tracing::info!(?renewed, "certificates were renewed");
                    self.take_over();
                    // The administrator's has the same life as those on disk and began no earlier.
                    kubeconfig_is_fresh &=
                        !renewed.iter().any(|what| [Renewed::Ca, Renewed::KubeletClient].contains(what));
                }
                // What is in use still works for a third of its life.
                Err(error) => tracing::error!(%error, "certificates cannot be renewed"),
            }
            if !kubeconfig_is_fresh {
                let written = write_kubeconfig(&self.config, &self.pki, &self.url);
                kubeconfig_is_fresh = reported(written, "the administrator's kubeconfig cannot be written");
            }
            self.follow_account_keys(&mut keys);
            self.follow_given_files(&mut given);
            let moved = self.addresses.move_to(advertise, &self.client).await;
            reported(moved, "the server's address cannot be told");
            match self.config.given.trust(&self.pki) {
                Ok(trust) if trust != announced => {
                    let bootstrap = Bootstrap { trust: trust.clone(), ..self.bootstrap.clone() };
                    if reported(bootstrap.announce(&self.client).await, "whom to believe cannot be told") {
                        announced = trust;
                    }
                }
                Ok(_) => {}
                Err(error) => tracing::error!(%error, "cannot read the certificate authorities"),
            }
        }
    }

    /// Somebody may have replaced the files.
    fn follow_account_keys(&self, known: &mut Option<AccountKeys>) {
        match AccountKeys::read(&self.config, &self.pki) {
            Ok(keys) if known.as_ref() == Some(&keys) => {}
            Ok(keys) => {
                let taken = self.api.service_accounts.set_keys(&keys.signing, &keys.verifying);
                if reported(taken, "the new keys of service accounts cannot be used") {
                    tracing::info!("the keys of service accounts were replaced");
                }
                *known = Some(keys);
            }
            Err(error) => tracing::error!(%error, "the keys of service accounts cannot be read"),
        }
    }

    /// Somebody may have replaced the certificates that others have made.
    fn follow_given_files(&self, known: &mut Option<Vec<String>>) {
        match self.config.given.contents() {
            Ok(contents) if known.as_ref() == Some(&contents) => {}
            Ok(contents) => {
                tracing::info!("certificates were replaced");
                self.take_over();
                *known = Some(contents);
            }
            Err(error) => tracing::error!(%error, "certificates cannot be read"),
        }
    }

    fn take_over(&self) {
        let (given, authenticators) = (&self.config.given, &self.certificate_authenticators);
        let clients = given.client_authorities(&self.pki).and_then(|authorities| {
            authenticators.clients.set_authorities(&authorities).map_err(config_error)
        });
        reported(clients, "the renewed authority cannot be used");
        let proxies = given.front_proxy_authorities(&self.pki).and_then(|authorities| {
            authenticators.front_proxies.set_authorities(&authorities).map_err(config_error)
        });
        reported(proxies, "the front proxy's renewed authority cannot be used");
        if given.serving.is_some() {
            match given.serving(&self.pki) {
                Ok(serving) => self.serving.replace((*serving.current()).clone()),
                Err(error) => tracing::error!(%error, "the replaced serving certificate cannot be used"),
            }
        }
        match kubelet_tls(&self.config, &self.pki) {
            Ok(tls) => self.api.node_connection.set_tls(tls),
            Err(error) => tracing::error!(%error, "the renewed kubelet client cannot be used"),
        }
        match given.front_proxy_client(&self.pki).and_then(|pair| certified_key(&pair)) {
            Ok(key) => self.front_proxy.replace(key),
            Err(error) => tracing::error!(%error, "the renewed front proxy's client cannot be used"),
        }
    }
}

fn reported<T, E: std::fmt::Display>(result: Result<T, E>, failed: &'static str) -> bool {
    if let Err(error) = &result {
        tracing::error!(%error, "{failed}");
    }
    result.is_ok()
}

/// All that the server is reached by.
pub fn serving_names(config: &Config, advertise: IpAddr, service_ip: IpAddr) -> PkiConfig {
    let mut names = config.names.clone();
    names.extend([advertise.to_string(), service_ip.to_string()]);
    PkiConfig::new(&config.cluster_domain, names)
}

pub fn server_tls(
    config: &Config,
    pki: &Pki,
    serving: Arc<ServingCertificate>,
) -> Result<Arc<rustls::ServerConfig>, StartError> {
    let authorities = config.given.client_authorities(pki)?;
    let provider = Arc::new(ferry_auth::tls::provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(config_error)?
        .with_client_cert_verifier(Arc::new(AnyClientCertificate::new(&authorities)))
        .with_cert_resolver(serving);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // Large answers are written in large records.
    config.max_fragment_size = None;
    Ok(Arc::new(config))
}

/// Kubelets are believed when their certificate is of the cluster's CA; the server shows its own.
pub fn kubelet_tls(config: &Config, pki: &Pki) -> Result<Arc<rustls::ClientConfig>, StartError> {
    let authorities =
        TrustedCertificates::new(config.given.kubelet_authorities(pki)?).map_err(config_error)?;
    let pair = config.given.kubelet_client(pki)?;
    let config =
        tls::showing(Trust::Certificates(authorities), pair.certificate.as_bytes(), pair.key.as_bytes());
    Ok(Arc::new(config.map_err(config_error)?))
}

/// Whom a pair's certificate names.
pub fn common_name(pair: &PemPair) -> Result<String, StartError> {
    let (chain, _) =
        tls::chain_and_key(pair.certificate.as_bytes(), pair.key.as_bytes()).map_err(config_error)?;
    let first = chain.first().ok_or_else(|| config_error("the certificate shown to kubelets is empty"))?;
    let (_, certificate) = x509_parser::parse_x509_certificate(first).map_err(config_error)?;
    let name = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    Ok(name.unwrap_or_default().to_owned())
}

/// A pair as handshakes take it.
pub fn certified_key(pair: &PemPair) -> Result<CertifiedKey, StartError> {
    let (chain, key) =
        tls::chain_and_key(pair.certificate.as_bytes(), pair.key.as_bytes()).map_err(config_error)?;
    let key = rustls::crypto::ring::sign::any_supported_type(&key).map_err(config_error)?;
    Ok(CertifiedKey::new(chain, key))
}

/// Readable by the owner alone, and never seen half written.
pub fn write_kubeconfig(config: &Config, pki: &Pki, url: &str) -> Result<(), StartError> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let path = config.data_dir.join("admin.kubeconfig");
    let unfinished = path.with_extension("kubeconfig.new");
    let text = pki.admin_kubeconfig(url)?;
    let write = || {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        file.write_all(text.as_bytes())?;
        std::fs::rename(&unfinished, &path)
    };
    write().map_err(|source| StartError::Write { path: path.clone(), source })
}

/// Where others reach this server: as it was told, or the address that leads to the outside, which is what the
/// kernel would send from. Nothing is sent.
pub fn host_address(config: &Config) -> IpAddr {
    let bind = config.bind.ip();
    if let Some(address) = config.advertise.or((!bind.is_unspecified()).then_some(bind)) {
        return address;
    }
    let probe = || {
        let socket = std::net::UdpSocket::bind(SocketAddr::from(([0, 0, 0, 0], 0)))?;
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    };
    probe().map_or(IpAddr::from([127, 0, 0, 1]), |address| address.ip())
}
