//! The metrics and health ports of all components except the API server and the kubelet. As in upstream they use TLS and
//! delegate authentication and authorization to the API server.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use ferry_client::{Api, CancellationToken, Client};
use ferry_metrics::Registry;
use ferry_serving::{AlwaysAllowed, Certificate, ClientCa, Error, Extra, Guard, Listener, Pages, Tls};
use futures::FutureExt;
use k8s_openapi::api::core::v1::ConfigMap;
use tokio_util::task::TaskTracker;

/// What a component shows.
pub struct Shown {
    pub registry: Registry,
    pub extra: Vec<Extra>,
}

impl Shown {
    fn of(register: fn(&mut Registry)) -> Shown {
        let mut registry = Registry::default();
        register(&mut registry);
        Shown { registry, extra: Vec::new() }
    }

    fn pages(self, guard: Option<Guard>, always_allowed: AlwaysAllowed) -> Pages {
        Pages { guard, always_allowed, registry: self.registry, checks: Vec::new(), extra: self.extra }
    }
}

pub fn scheduler(client: Client) -> Shown {
    let resources = move || {
        let client = client.clone();
        async move { ferry_scheduler::pod_resources::text(client).await.map_err(|error| error.to_string()) }
            .boxed()
    };
    let extra: Vec<Extra> = vec![("/metrics/resources", Box::new(resources))];
    Shown { extra, ..Shown::of(ferry_scheduler::metrics::register) }
}

pub fn controllers() -> Shown {
    Shown::of(ferry_controllers::metrics::register)
}

pub fn proxy() -> Shown {
    Shown::of(ferry_proxy::metrics::register)
}

pub fn dns() -> Shown {
    Shown::of(ferry_dns::metrics::register)
}

/// Flags of a component's own port, by upstream's names.
#[derive(Args)]
pub struct ServingFlags<const PORT: u16> {
    /// Address that serves metrics and health
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    bind_address: IpAddr,
    /// Port of metrics and health; 0 turns it off [default: upstream's port if it is free]
    #[arg(long)]
    secure_port: Option<u16>,
    /// CA certificates that verify client certificates [default: those of the API server]
    #[arg(long)]
    client_ca_file: Option<PathBuf>,
    /// PEM file of the serving certificate [default: a self-signed one, new at each start]
    #[arg(long, requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// Key of --tls-cert-file
    #[arg(long, requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// Paths that everybody may read without authorization; one that ends in * stands for all that begin so
    #[arg(long, value_delimiter = ',', default_value = "/healthz,/readyz,/livez")]
    authorization_always_allow_paths: Vec<String>,
}

impl<const PORT: u16> ServingFlags<PORT> {
    /// Serves until `shutdown`; what is returned is done after that.
    pub async fn start(
        &self,
        shown: Shown,
        client: &Client,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<TaskTracker> {
        let tasks = TaskTracker::new();
        tasks.close();
        if self.secure_port == Some(0) {
            return Ok(tasks);
        }
        let client_ca = match &self.client_ca_file {
            Some(file) => Some(ClientCa::File(file.clone())),
            None => client_ca(client).await,
        };
        let certificate = match (&self.tls_cert_file, &self.tls_private_key_file) {
            (Some(certificate), Some(key)) => {
                Certificate::Files { certificate: certificate.clone(), key: key.clone() }
            }
            _ => Certificate::SelfSigned(own_names()),
        };
        let address = SocketAddr::new(self.bind_address, self.secure_port.unwrap_or(PORT));
        let bound = Listener::bind(address, &Tls { certificate, client_ca });
        let Some(listener) = unless_taken(bound, self.secure_port.is_some())? else { return Ok(tasks) };
        tracing::info!(address = %listener.address(), "metrics and health are served");
        let guard = Guard::new(Some(client.clone()), true);
        let always_allowed = AlwaysAllowed(self.authorization_always_allow_paths.clone());
        tasks.spawn(shown.pages(Some(guard), always_allowed).serve(listener, shutdown.clone()));
        Ok(tasks)
    }
}

pub fn own_names() -> Vec<String> {
    vec!["localhost".into(), Ipv4Addr::LOCALHOST.to_string()]
}

/// The authorities that the API server believes, as it tells every component. Without them only tokens are known.
async fn client_ca(client: &Client) -> Option<ClientCa> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    match maps.get("extension-apiserver-authentication").await {
        Ok(map) => map.data?.remove("client-ca-file").map(ClientCa::Pem),
        Err(error) => {
            tracing::warn!(%error, "the metrics port accepts tokens only, no client certificates");
            None
        }
    }
}

/// A port for everybody on this host, as upstream's proxy and DNS have it.
pub fn plain(
    address: Option<SocketAddr>,
    usual: u16,
    shown: Shown,
    shutdown: &CancellationToken,
) -> anyhow::Result<TaskTracker> {
    let tasks = TaskTracker::new();
    tasks.close();
    let wanted = address.unwrap_or(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), usual));
    if wanted.port() != 0
        && let Some(listener) = unless_taken(Listener::plain(wanted), address.is_some())?
    {
        tasks.spawn(shown.pages(None, AlwaysAllowed::default()).serve(listener, shutdown.clone()));
    }
    Ok(tasks)
}

/// A port by custom may be another cluster's, and a component is of use without it; one that was asked for is not.
fn unless_taken(bound: Result<Listener, Error>, was_asked_for: bool) -> anyhow::Result<Option<Listener>> {
    match bound {
        Ok(listener) => Ok(Some(listener)),
        Err(Error::Listen { address, source }) if !was_asked_for => {
            tracing::warn!(%address, %source, "metrics are not served");
            Ok(None)
        }
        Err(error) => Err(error).context("serve metrics"),
    }
}

/// A port of this process beside others: already bound, with TLS and a guard.
pub fn secure(
    address: SocketAddr,
    shown: Shown,
    client: &Client,
    client_ca: String,
) -> anyhow::Result<(Listener, Pages)> {
    let tls =
        Tls { certificate: Certificate::SelfSigned(own_names()), client_ca: Some(ClientCa::Pem(client_ca)) };
    let listener = Listener::bind(address, &tls)?;
    Ok((listener, shown.pages(Some(Guard::new(Some(client.clone()), true)), AlwaysAllowed::default())))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use ferry_metrics::{Description, slis};

    use super::*;

    /// Every family of every part.
    fn served() -> BTreeMap<&'static str, Description> {
        let mut registry = Registry::default();
        ferry_apiserver::metrics::register(&mut registry);
        ferry_controllers::metrics::register(&mut registry);
        ferry_scheduler::metrics::register(&mut registry);
        ferry_kubelet::metrics::register(&mut registry);
        ferry_kubelet::metrics::register_probes(&mut registry);
        ferry_proxy::metrics::register(&mut registry);
        slis::register(&mut registry);
        let mut all = registry.describe();
        all.extend(ferry_apiserver::metrics::descriptions());
        all.extend(ferry_apiserver::flow_control::metrics::descriptions());
        all.extend(ferry_kubelet::server::metrics::resource_descriptions().into_iter().copied());
        all.extend([ferry_scheduler::pod_resources::REQUEST, ferry_scheduler::pod_resources::LIMIT]);
        all.into_iter().map(|description| (description.name, description)).collect()
    }

    #[test]
    fn upstreams_stable_metrics_are_served_with_their_labels_and_buckets() {
        let served = served();
        let mut faults = Vec::new();
        for line in include_str!("upstream_metrics.txt").lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split(' ').collect();
            let [name, stability, kind, labels, buckets] = words[..] else { panic!("{line}") };
            let Some(own) = served.get(name) else {
                if stability == "stable" {
                    faults.push(format!("{name} is not served"));
                }
                continue;
            };
            let listed =
                |text: &'static str| text.split(',').filter(|text| *text != "-").collect::<BTreeSet<_>>();
            if listed(labels) != own.labels.iter().copied().collect() {
                faults.push(format!("{name} has labels {:?}, not {labels}", own.labels));
            }
            if kind != "custom" && kind != own.kind.as_str() {
                faults.push(format!("{name} is a {}, not a {kind}", own.kind.as_str()));
            }
            let bounds: Vec<f64> = buckets.split(',').filter_map(|bound| bound.parse().ok()).collect();
            let are_equal = bounds.len() == own.buckets.len()
                && bounds.iter().zip(own.buckets).all(|(one, other)| (one - other).abs() <= one.abs() * 1e-9);
            if !bounds.is_empty() && !are_equal {
                faults.push(format!("{name} has buckets {:?}, not {buckets}", own.buckets));
            }
        }
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    #[test]
    fn every_family_has_a_sentence_and_upstreams_form_of_name() {
        for (name, description) in served() {
            assert!(!description.help.is_empty() && !description.help.ends_with('.'), "{name}");
            assert!(
                name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
            );
        }
    }
}
