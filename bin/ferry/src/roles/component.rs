//! What every component that is a client of the API has in common: a kubeconfig, a runtime, an orderly end.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use ferry_client::{CancellationToken, Client, Kubeconfig};

#[derive(Args)]
pub struct Connection {
    /// How to reach the API server; without it $KUBECONFIG, then ~/.kube/config
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
}

impl Connection {
    pub async fn client(&self, component: &str) -> anyhow::Result<Client> {
        let kubeconfig = Kubeconfig {
            path: self.kubeconfig.clone(),
            context: None,
            user_agent: Some(format!("{component}/{} (ferry)", env!("CARGO_PKG_VERSION"))),
        };
        ferry_client::connect(&kubeconfig).await.context("reach the API server")
    }
}

/// Runs a component until it ends or a signal tells it to.
pub fn run<F, T>(component: impl FnOnce(CancellationToken) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<T>>,
{
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    runtime.block_on(async {
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        tokio::spawn(async move {
            match signalled().await {
                Ok(()) => stop.cancel(),
                Err(error) => tracing::warn!(%error, "signals cannot be heard"),
            }
        });
        component(shutdown).await.map(|_| ())
    })
}

/// Returns when SIGTERM or SIGINT arrives.
pub async fn signalled() -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

pub fn host_name() -> anyhow::Result<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").context("read the host's name")?;
    Ok(name.trim().to_ascii_lowercase())
}
