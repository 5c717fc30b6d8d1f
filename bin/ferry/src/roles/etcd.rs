//! `ferry etcd`, or a link to the binary called `etcd`: etcd's v3 API over the embedded store, with etcd's flag names. It
//! has one member; clusters with several members need etcd itself.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{ArgAction, Args};
use ferry_etcd::server::Limits;
use ferry_etcd::{Config, Listen, Member, Tls};
use ferry_store::Embedded;

use super::component;
use super::no_effect::{NoEffect, Row, Table};

/// History is kept until somebody compacts it, as etcd does.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

#[derive(Args)]
pub struct Flags {
    /// Human-readable name for this member
    #[arg(long, default_value = "default")]
    name: String,
    /// Data directory [default: NAME.etcd]
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Keep all data in memory; it is lost when the process exits
    #[arg(long, conflicts_with = "data_dir")]
    in_memory: bool,
    /// URLs that serve clients: http://127.0.0.1:2379, or https:// with a certificate
    #[arg(long, value_delimiter = ',', default_value = "http://localhost:2379")]
    listen_client_urls: Vec<String>,
    /// URLs that are advertised to clients [default: the URLs that serve clients]
    #[arg(long, value_delimiter = ',')]
    advertise_client_urls: Vec<String>,
    /// URLs that serve health and metrics only, without client certificates
    #[arg(long, value_delimiter = ',')]
    listen_metrics_urls: Vec<String>,
    /// Peer URLs in the member list; nothing listens on them
    #[arg(long, value_delimiter = ',', default_value = "http://localhost:2380")]
    initial_advertise_peer_urls: Vec<String>,
    /// Do not sync to disk: a crash of the machine may lose acknowledged writes, a crash of the process does not
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    unsafe_no_fsync: bool,
    /// Size in bytes above which puts are refused; 0 for 2 GB
    #[arg(long, default_value_t = 0)]
    quota_backend_bytes: u64,
    /// Maximum size in bytes of a write request
    #[arg(long, default_value_t = 3 << 19)]
    max_request_bytes: usize,
    /// Maximum number of operations in a transaction
    #[arg(long, default_value_t = 128)]
    max_txn_ops: usize,
    /// Unit of --auto-compaction-retention: periodic (time) or revision (changes)
    #[arg(long, default_value = "periodic", value_parser = ["periodic", "revision"])]
    auto_compaction_mode: String,
    /// History to keep: hours, a duration like 5m, or a number of revisions with mode revision; 0 for all
    #[arg(long, default_value = "0")]
    auto_compaction_retention: String,
    /// Period of progress notifications for watches without events
    #[arg(
        long,
        alias = "experimental-watch-progress-notify-interval",
        default_value = "10m",
        value_parser = component::duration
    )]
    watch_progress_notify_interval: Duration,
    /// PEM file of the serving certificate
    #[arg(long, requires = "key_file")]
    cert_file: Option<PathBuf>,
    /// Key of --cert-file
    #[arg(long, requires = "cert_file")]
    key_file: Option<PathBuf>,
    /// Require client certificates that --trusted-ca-file signed
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    client_cert_auth: bool,
    /// File with CA certificates; clients must present a certificate that one of them signed
    #[arg(long)]
    trusted_ca_file: Option<PathBuf>,
    #[command(flatten)]
    no_effect: NoEffect<Upstream>,
}

struct Upstream;

impl Table for Upstream {
    /// Flags for clusters with several members, for etcd's own files, and for its log.
    const ROWS: &'static [Row] = &[
        Row::Value("listen-peer-urls"),
        Row::Value("initial-cluster"),
        Row::Value("initial-cluster-state"),
        Row::Value("initial-cluster-token"),
        Row::Value("heartbeat-interval"),
        Row::Value("election-timeout"),
        Row::Value("snapshot-count"),
        Row::Value("max-snapshots"),
        Row::Value("max-wals"),
        Row::Value("wal-dir"),
        Row::Value("peer-cert-file"),
        Row::Value("peer-key-file"),
        Row::Value("peer-trusted-ca-file"),
        Row::Switch("peer-client-cert-auth"),
        Row::Switch("strict-reconfig-check"),
        Row::Switch("pre-vote"),
        Row::Switch("experimental-initial-corrupt-check"),
        Row::Value("feature-gates"),
        Row::Value("logger"),
        Row::Value("log-outputs"),
        Row::Value("log-level"),
        Row::Value("log-format"),
    ];
}

pub fn run(flags: Flags) -> anyhow::Result<()> {
    flags.no_effect.log();
    component::run_on_one_thread(|shutdown| async move {
        let data_dir = match (&flags.data_dir, flags.in_memory) {
            (_, true) => None,
            (Some(data_dir), false) => Some(data_dir.clone()),
            (None, false) => Some(PathBuf::from(format!("{}.etcd", flags.name))),
        };
        let store = Arc::new(flags.open_store(data_dir.as_ref())?);
        let config = flags.config(data_dir.map(|data_dir| data_dir.join("leases")))?;
        let running = ferry_etcd::start(config, store).await.context("serve etcd's API")?;
        tracing::info!(addresses = ?running.addresses, "serving etcd's API");
        shutdown.cancelled().await;
        tracing::info!("stopping");
        running.stop().await.context("close the store")
    })
}

impl Flags {
    fn open_store(&self, data_dir: Option<&PathBuf>) -> anyhow::Result<Embedded> {
        let mut config = match data_dir {
            Some(data_dir) => super::apiserver::embedded_store(&data_dir.join("store")),
            None => super::apiserver::embedded_store("".as_ref()),
        };
        config.sync = !self.unsafe_no_fsync;
        config.quota = if self.quota_backend_bytes > 0 { self.quota_backend_bytes } else { 2 << 30 };
        config.retention = FOR_EVER;
        config.history = usize::MAX;
        match self.auto_compaction_mode.as_str() {
            "revision" => {
                let kept: usize = self.auto_compaction_retention.parse().with_context(|| {
                    format!("--auto-compaction-retention: {:?} is no number", self.auto_compaction_retention)
                })?;
                config.history = if kept > 0 { kept } else { usize::MAX };
            }
            _ => {
                let kept = retention(&self.auto_compaction_retention)?;
                config.retention = if kept.is_zero() { FOR_EVER } else { kept };
            }
        }
        match data_dir {
            Some(data_dir) => Embedded::open(config)
                .with_context(|| format!("open the store in {}", data_dir.join("store").display())),
            None => Embedded::in_memory(config).context("make a store in memory"),
        }
    }

    fn config(self, lease_file: Option<PathBuf>) -> anyhow::Result<Config> {
        let mut listen = Vec::new();
        for url in &self.listen_client_urls {
            let (address, tls) = address(url)?;
            listen.push(Listen { address, tls, pages_only: false });
        }
        for url in &self.listen_metrics_urls {
            let (address, tls) = address(url)?;
            listen.push(Listen { address, tls, pages_only: true });
        }
        if self.client_cert_auth && self.trusted_ca_file.is_none() {
            bail!("--client-cert-auth needs --trusted-ca-file");
        }
        let tls = self.cert_file.zip(self.key_file).map(|(certificate, key)| Tls {
            certificate,
            key,
            client_ca: self.trusted_ca_file,
        });
        let client_urls = match self.advertise_client_urls.is_empty() {
            true => self.listen_client_urls,
            false => self.advertise_client_urls,
        };
        Ok(Config {
            listen,
            tls,
            member: Member { name: self.name, peer_urls: self.initial_advertise_peer_urls, client_urls },
            lease_file,
            sync: !self.unsafe_no_fsync,
            limits: Limits {
                request_bytes: self.max_request_bytes,
                operations: self.max_txn_ops,
                progress_interval: self.watch_progress_notify_interval.max(Duration::from_millis(100)),
                ..Limits::default()
            },
        })
    }
}

/// The address behind a URL, and whether it is https.
fn address(url: &str) -> anyhow::Result<(SocketAddr, bool)> {
    let (rest, tls) = if let Some(rest) = url.strip_prefix("http://") {
        (rest, false)
    } else if let Some(rest) = url.strip_prefix("https://") {
        (rest, true)
    } else {
        bail!("{url:?} is neither an http:// nor an https:// URL");
    };
    let rest = rest.trim_end_matches('/');
    let mut found: Vec<SocketAddr> =
        rest.to_socket_addrs().with_context(|| format!("find the address of {url:?}"))?.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    let address = found.first().with_context(|| format!("{url:?} has no address"))?;
    Ok((*address, tls))
}

/// A bare number means hours.
fn retention(text: &str) -> anyhow::Result<Duration> {
    if let Ok(hours) = text.parse::<u32>() {
        return Ok(Duration::from_secs(u64::from(hours) * 3600));
    }
    component::duration(text).map_err(|words| anyhow::anyhow!("--auto-compaction-retention: {words}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_addresses() {
        let check = |url: &str, expected: Option<(&str, bool)>| {
            let found = address(url).ok().map(|(address, tls)| (address.to_string(), tls));
            assert_eq!(found, expected.map(|(address, tls)| (address.to_owned(), tls)), "{url}");
        };
        check("http://127.0.0.1:2379", Some(("127.0.0.1:2379", false)));
        check("https://127.0.0.1:2379/", Some(("127.0.0.1:2379", true)));
        check("http://localhost:0", Some(("127.0.0.1:0", false)));
        check("http://[::1]:2379", Some(("[::1]:2379", false)));
        check("unix://etcd:2379", None);
        check("127.0.0.1:2379", None);
    }

    #[test]
    fn retention_is_hours_or_a_duration() {
        assert_eq!(retention("0").unwrap(), Duration::ZERO);
        assert_eq!(retention("2").unwrap(), Duration::from_secs(7200));
        assert_eq!(retention("5m").unwrap(), Duration::from_secs(300));
        assert!(retention("soon").is_err());
    }
}
