//! The control plane in this process. Each part has its own identity, and only the rights that RBAC grants it.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::Context;
use ferry_apiserver::run::Running;
use ferry_auth::User;
use ferry_auth::user::{ALL_AUTHENTICATED, MASTERS};
use ferry_client::leader::{self, Election};
use ferry_client::{CancellationToken, Client, Informers};
use ferry_controllers::config::{ApiServerNames, SigningCa};
use tokio_util::task::TaskTracker;

use super::facts::{self, Facts};
use super::metrics_ports::{self, MetricsPorts};
use super::options::DefaultStorageClass;
use super::parts::Parts;
use super::ranges::Ranges;
use super::{rights, storage};
use crate::roles::serving;

/// This server among those that may share its store.
pub struct Instance<'a> {
    pub cluster: &'a str,
    pub name: &'a str,
    pub address: IpAddr,
    pub shares_store: bool,
    pub default_storage_class: DefaultStorageClass,
}

impl Instance<'_> {
    /// Who waits for the lease of a part that only one server of several does; `None` where there is only one.
    ///
    /// A server that died and came back is the same to its lease and leads on at once. No two are: a data directory has
    /// one server, and where names are given twice the addresses differ.
    fn election(&self, lease: &str) -> Option<Election> {
        let identity = format!("{}_{}", self.name, self.address);
        self.shares_store.then(|| Election::new("kube-system", lease, identity))
    }
}

/// Starts everything that needs the API and no node. Ends with `shutdown`.
pub async fn start(
    running: &Running,
    facts: &Facts,
    instance: &Instance<'_>,
    parts: &Parts,
    tasks: &TaskTracker,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let owner = running.client(User::new("system:ferry").with_groups([MASTERS, ALL_AUTHENTICATED]));
    rights::grant(&owner).await.context("give the node parts their rights")?;
    facts::publish(&owner, facts).await?;
    if instance.default_storage_class == DefaultStorageClass::Local {
        storage::provide(&owner).await?;
    }

    let controllers = Controllers::new(running, &facts.ranges, instance.name)?;
    let client = component(running, "system:kube-controller-manager");
    let election = instance.election("kube-controller-manager");
    let ca = running.pki.ca_pem();
    let metrics = MetricsPorts { cluster: instance.cluster, parts, tasks, shutdown };
    let answers = &running.api.component_ports;
    let port =
        metrics.secure("controllers", metrics_ports::CONTROLLERS, serving::controllers(), &client, &ca);
    if let Some(port) = port {
        answers.controller_manager.store(port, Ordering::Relaxed);
    }
    keep(parts, "controllers", tasks, shutdown, move |stop| {
        let (controllers, client, election) = (controllers.clone(), client.clone(), election.clone());
        async move { controllers.run(client, election, stop).await }
    });

    let client = component(running, "system:kube-scheduler");
    let config = ferry_scheduler::Config {
        instance: instance.name.to_owned(),
        leader_election: instance.election("kube-scheduler"),
        ..Default::default()
    };
    let shown = serving::scheduler(client.clone());
    if let Some(port) = metrics.secure("scheduler", metrics_ports::SCHEDULER, shown, &client, &ca) {
        answers.scheduler.store(port, Ordering::Relaxed);
    }
    keep(parts, "scheduler", tasks, shutdown, move |stop| {
        ferry_scheduler::run(client.clone(), config.clone(), stop)
    });
    Ok(())
}

fn keep<F, E>(
    parts: &Parts,
    name: &'static str,
    tasks: &TaskTracker,
    shutdown: &CancellationToken,
    run: impl Fn(CancellationToken) -> F + Send + Sync + 'static,
) where
    F: Future<Output = Result<(), E>> + Send,
    E: std::fmt::Display + Send,
{
    let (parts, stop) = (parts.clone(), shutdown.clone());
    tasks.spawn(async move {
        let again = || {
            parts.running(name, "");
            run(stop.clone())
        };
        parts.keep(name, stop.clone(), again).await;
    });
}

/// What one server of the cluster does at a time: the control loops, and what writes the cluster's own addresses.
#[derive(Clone)]
struct Controllers {
    config: ferry_controllers::Config,
    accounts: ferry_controllers::Accounts,
    /// Writes where the DNS is, from what it reads with `proxy`.
    dns: Client,
    dns_address: IpAddr,
    proxy: Client,
}

impl Controllers {
    fn new(running: &Running, ranges: &Ranges, instance: &str) -> anyhow::Result<Controllers> {
        let (pki, (certificate, key)) = (running.pki.clone(), running.pki.ca_files());
        let read = |path: std::path::PathBuf| {
            std::fs::read(&path).with_context(|| format!("read {}", path.display()))
        };
        let config = ferry_controllers::Config {
            instance: instance.to_owned(),
            cluster_cidrs: vec![ranges.cluster_cidr.to_string()],
            service_cidrs: vec![ranges.service_cidr.to_string()],
            root_ca: Some(running.pki.ca_pem().into_bytes()),
            signing_ca: Some(SigningCa { certificate: read(certificate)?, key: read(key)? }),
            service_account_key: Some(running.pki.service_account_key().as_bytes().to_vec()),
            approve_kubelet_serving: true,
            api_server_names: ApiServerNames(Arc::new(move || pki.names())),
            ..Default::default()
        };
        let api = running.api.clone();
        Ok(Controllers {
            config,
            accounts: Arc::new(move |account| {
                ferry_client::over(ferry_apiserver::InProcess::new(api.clone(), account_user(account)))
            }),
            dns: component(running, rights::DNS_USER),
            dns_address: ranges.dns()?,
            proxy: component(running, "system:kube-proxy"),
        })
    }

    async fn run(
        self,
        client: Client,
        election: Option<Election>,
        shutdown: CancellationToken,
    ) -> Result<(), ferry_controllers::RunError> {
        let Some(election) = election else { return self.lead(client, shutdown).await };
        let mut ended = Ok(());
        let lead = async |leading| ended = self.lead(client.clone(), leading).await;
        leader::run(client.clone(), election, shutdown, lead).await?;
        ended
    }

    async fn lead(
        self,
        client: Client,
        shutdown: CancellationToken,
    ) -> Result<(), ferry_controllers::RunError> {
        let nodes = Informers::new(self.proxy, shutdown.clone());
        let dns = ferry_dns::publish::run(nodes, self.dns, self.dns_address, shutdown.clone());
        // One address per service is what a cluster without a cloud can give.
        let balanced = Informers::new((self.accounts)("service-controller"), shutdown.clone());
        let instance = self.config.instance.clone();
        let balancer = ferry_proxy::load_balancer::run(balanced, instance, shutdown.clone());
        let controllers = ferry_controllers::run_as(client, self.accounts, self.config, shutdown);
        tokio::join!(controllers, dns, balancer).0
    }
}

/// A client that acts as one of the users upstream's components have.
pub fn component(running: &Running, user: &str) -> Client {
    running.client(User::new(user).with_groups([ALL_AUTHENTICATED]))
}

fn account_user(account: &str) -> User {
    let mut user = User::service_account("kube-system", account, "");
    user.groups.push(ALL_AUTHENTICATED.to_owned());
    user
}
