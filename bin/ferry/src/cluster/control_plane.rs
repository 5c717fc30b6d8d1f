//! The control plane in this process: each part has its own identity, and no more rights than RBAC gives
//! it.

use std::sync::Arc;

use anyhow::Context;
use ferry_apiserver::run::Running;
use ferry_auth::User;
use ferry_auth::user::{ALL_AUTHENTICATED, MASTERS};
use ferry_client::{CancellationToken, Client, Informers};
use ferry_controllers::config::SigningCa;
use tokio_util::task::TaskTracker;

use super::facts::{self, Facts};
use super::parts::Parts;
use super::ranges::Ranges;
use super::rights;

/// Starts everything that needs the API and no node. Ends with `shutdown`.
pub async fn start(
    running: &Running,
    facts: &Facts,
    instance: &str,
    parts: &Parts,
    tasks: &TaskTracker,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let ranges = &facts.ranges;
    let owner = running.client(User::new("system:ferry").with_groups([MASTERS, ALL_AUTHENTICATED]));
    rights::grant(&owner).await.context("give the node parts their rights")?;
    facts::publish(&owner, facts).await?;
    let dns = component(running, rights::DNS_USER);
    let informers = Informers::new(component(running, "system:kube-proxy"), shutdown.clone());
    tasks.spawn(ferry_dns::publish::run(informers, dns, ranges.dns()?, shutdown.clone()));
    start_controllers(running, ranges, instance, parts, tasks, shutdown)?;

    let client = component(running, "system:kube-scheduler");
    let (parts, stop) = (parts.clone(), shutdown.clone());
    let config = ferry_scheduler::Config { instance: instance.to_owned(), ..Default::default() };
    tasks.spawn(async move {
        parts.running("scheduler", "");
        let run = || ferry_scheduler::run(client.clone(), config.clone(), stop.clone());
        parts.keep("scheduler", stop.clone(), run).await;
    });
    Ok(())
}

fn start_controllers(
    running: &Running,
    ranges: &Ranges,
    instance: &str,
    parts: &Parts,
    tasks: &TaskTracker,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let (certificate, key) = running.pki.ca_files();
    let read =
        |path: std::path::PathBuf| std::fs::read(&path).with_context(|| format!("read {}", path.display()));
    let config = ferry_controllers::Config {
        instance: instance.to_owned(),
        cluster_cidrs: vec![ranges.cluster_cidr.to_string()],
        service_cidrs: vec![ranges.service_cidr.to_string()],
        root_ca: Some(running.pki.ca_pem().into_bytes()),
        signing_ca: Some(SigningCa { certificate: read(certificate)?, key: read(key)? }),
        service_account_key: Some(running.pki.service_account_key().as_bytes().to_vec()),
        approve_kubelet_serving: true,
        ..Default::default()
    };
    let client = component(running, "system:kube-controller-manager");
    let api = running.api.clone();
    let accounts: ferry_controllers::Accounts = Arc::new(move |account| {
        let user = account_user(account);
        ferry_client::over(ferry_apiserver::InProcess::new(api.clone(), user))
    });
    // One address per service is what a cluster without a cloud can give.
    let balancer = ferry_client::over(ferry_apiserver::InProcess::new(
        running.api.clone(),
        account_user("service-controller"),
    ));
    let balancer = Informers::new(balancer, shutdown.clone());
    tasks.spawn(ferry_proxy::load_balancer::run(balancer, instance.to_owned(), shutdown.clone()));
    let (parts, stop) = (parts.clone(), shutdown.clone());
    tasks.spawn(async move {
        parts.running("controllers", "");
        let run =
            || ferry_controllers::run_as(client.clone(), accounts.clone(), config.clone(), stop.clone());
        parts.keep("controllers", stop.clone(), run).await;
    });
    Ok(())
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
