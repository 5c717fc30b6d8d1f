//! Shared by all components that are API clients: the connection, the runtime, the shutdown.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use ferry_client::leader::Election;
use ferry_client::{CancellationToken, Client, Kubeconfig};

#[derive(Args)]
pub struct Connection {
    /// Kubeconfig for the API server [default: $KUBECONFIG, then ~/.kube/config]
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
}

impl Connection {
    pub async fn client(&self, component: &str) -> anyhow::Result<Client> {
        let kubeconfig = Kubeconfig {
            path: self.kubeconfig.clone(),
            context: None,
            user_agent: Some(format!("{component}/{} (ferry)", env!("CARGO_PKG_VERSION"))),
            ..Kubeconfig::default()
        };
        let client = ferry_client::connect(&kubeconfig).await.context("reach the API server")?;
        // Not joined at shutdown: it owns nothing that an abrupt end could damage.
        tokio::spawn(ferry_client::spans::hand_in(client.clone()));
        Ok(client)
    }
}

/// Leader election: one of several instances is active.
#[derive(Args)]
pub struct LeaderFlags {
    /// Work only while this instance holds the Lease
    #[arg(long, default_value_t = true, default_missing_value = "true", num_args = 0..=1, action = clap::ArgAction::Set)]
    pub leader_elect: bool,
    /// Time after the last renewal of the Lease until another instance takes over
    #[arg(long, default_value = "15s", value_parser = duration)]
    pub leader_elect_lease_duration: Duration,
    /// Time that a leader tries to renew the Lease before it gives up
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub leader_elect_renew_deadline: Duration,
    /// Time between two attempts to acquire or renew the Lease
    #[arg(long, default_value = "2s", value_parser = duration)]
    pub leader_elect_retry_period: Duration,
}

impl LeaderFlags {
    /// The lease `name` in kube-system, or none if every instance shall work.
    pub fn election(&self, name: &str, host: &str) -> Option<Election> {
        let identity = format!("{host}_{}", std::process::id());
        self.leader_elect.then(|| Election {
            lease_duration: self.leader_elect_lease_duration,
            renew_deadline: self.leader_elect_renew_deadline,
            retry_period: self.leader_elect_retry_period,
            ..Election::new("kube-system", name, identity)
        })
    }
}

/// `15s`, `1m30s`, `500ms`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let parsed: Option<jiff::SignedDuration> = text.parse().ok();
    let parsed = parsed.and_then(|parsed| Duration::try_from(parsed).ok());
    parsed.ok_or_else(|| format!("{text:?} is not a duration like 15s"))
}

/// A component that has ended waits this long for blocking threads. Everything that must not be lost is written before; the
/// rest, such as an OpenAPI document for a client that is gone, may take tens of seconds.
const ABANDON_AFTER: Duration = Duration::from_secs(1);

/// Stack size of the runtime's threads. With all parts in one process, a kubelet's call passes client, filters, verbs and
/// decoders on one stack, which exceeds tokio's default of 2 MB in unoptimised builds. Untouched pages use no memory.
const STACK: usize = 8 << 20;

/// Runs a component until it ends or a signal tells it to.
pub fn run<F, T>(component: impl FnOnce(CancellationToken) -> F) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>>,
{
    run_on(&mut tokio::runtime::Builder::new_multi_thread(), component)
}

/// Like [`run`], with one worker thread, for components that mostly wait for responses. It saves the memory of further
/// threads and the wake-ups between them (an eighth of the controllers' CPU).
pub fn run_on_one_thread<F, T>(component: impl FnOnce(CancellationToken) -> F) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>> + Send + 'static,
    T: Send + 'static,
{
    run_on(tokio::runtime::Builder::new_multi_thread().worker_threads(1), |shutdown| async {
        // `block_on` would run the component on a second thread.
        tokio::spawn(component(shutdown)).await.context("the component ended in a panic")?
    })
}

fn run_on<F, T>(
    runtime: &mut tokio::runtime::Builder,
    component: impl FnOnce(CancellationToken) -> F,
) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>>,
{
    let runtime = runtime.enable_all().thread_stack_size(STACK).build().context("start the runtime")?;
    let result = runtime.block_on(async {
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        tokio::spawn(async move {
            match signalled().await {
                Ok(()) => stop.cancel(),
                Err(error) => tracing::warn!(%error, "cannot listen for signals"),
            }
        });
        component(shutdown).await
    });
    runtime.shutdown_timeout(ABANDON_AFTER);
    result
}

/// Returns when SIGTERM or SIGINT arrives.
async fn signalled() -> anyhow::Result<()> {
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_component_that_ended_does_not_wait_for_work_that_nobody_needs() {
        let (finish, finished) = mpsc::channel::<()>();
        let (done, outcome) = mpsc::channel();
        let result = run(|_| async {
            tokio::task::spawn_blocking(move || done.send(finished.recv_timeout(Duration::from_secs(300))));
            Ok(7)
        });
        assert_eq!(result.expect("the component's own answer"), 7);
        finish.send(()).expect("the work is still under way");
        assert_eq!(outcome.recv(), Ok(Ok(())), "the work was not waited for");
    }
}
