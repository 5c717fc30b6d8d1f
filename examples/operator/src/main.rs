//! An operator as somebody outside writes one, on kube-rs alone: a custom resource in two versions with validating and
//! conversion webhooks, server-side apply, owner references, a finalizer, a status, and leader election among its pods.
//!
//! It runs in a pod (`operator.yaml`); who it is comes from the environment: `POD_NAMESPACE`, `POD_NAME`, and
//! `LEASE_SECONDS` for how long a leader may be silent.

mod install;
mod lease;
mod reconcile;
mod site;
mod webhook;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let variable = |name: &str| std::env::var(name).with_context(|| format!("read ${name}"));
    let (namespace, pod) = (variable("POD_NAMESPACE")?, variable("POD_NAME")?);
    let seconds: u64 = variable("LEASE_SECONDS")?.parse().context("understand $LEASE_SECONDS")?;
    let mut terminate = signal(SignalKind::terminate())?;

    let client = Client::try_default().await.context("find the API server")?;
    let is_ready = Arc::new(AtomicBool::new(false));
    let certificate = install::certificate(&client, &namespace).await?;
    webhook::serve(&certificate, is_ready.clone()).await?;
    install::install(&client, &namespace, &certificate).await?;
    is_ready.store(true, Ordering::Relaxed);

    let duration = Duration::from_secs(seconds);
    let mut election = lease::Election::new(client.clone(), &namespace, install::MANAGER, &pod, duration);
    let context = Arc::new(reconcile::Context { client, namespace, pod });
    let lead = async {
        loop {
            election.win().await;
            tracing::info!("leading");
            tokio::select! {
                () = election.keep() => tracing::warn!("no longer leading"),
                () = reconcile::run(context.clone()) => {}
            }
        }
    };
    tokio::select! {
        _ = lead => {}
        _ = terminate.recv() => {}
    }
    election.resign().await.context("give the lease back")
}
