//! Hearing of containers that change by themselves.
//!
//! Three ways, the best the runtime has: CRI's own events; containerd's exit
//! events, where its CRI is too old for those; a list every second where
//! there is neither. With events a slow list remains, for what they missed.

use std::collections::HashMap;
use std::time::Duration;

use ferry_client::CancellationToken;
use tokio::time::MissedTickBehavior;

use super::labels;
use crate::cri;
use crate::images::containerd;

const RELIST_ALONE: Duration = Duration::from_secs(1);
const RELIST_WITH_EVENTS: Duration = Duration::from_secs(10);
const RECONNECT: Duration = Duration::from_secs(2);
/// CRI learns of an exit from the same event we do, a moment later or sooner.
const SETTLE: Duration = Duration::from_millis(5);
const SETTLE_TRIES: usize = 200;

/// Sandboxes and containers of one pod with their states; equal when nothing
/// happened.
type Summary = Vec<(String, i32)>;

/// Calls `wake` with the uid of each pod whose containers changed, until
/// stopped. `healthy` hears whether the runtime answers.
pub async fn run(
    runtime: cri::Client,
    endpoint: String,
    wake: impl Fn(&str) + Clone + Send + Sync + 'static,
    healthy: tokio::sync::watch::Sender<Result<(), String>>,
    stop: CancellationToken,
) {
    let (hints, mut hinted) = tokio::sync::mpsc::channel::<String>(1024);
    let (events_up, mut with_events) = tokio::sync::watch::channel(false);
    let listener = tokio::spawn(listen(runtime.clone(), endpoint, hints, events_up, stop.clone()));

    let mut known: HashMap<String, Summary> = HashMap::new();
    let mut period = RELIST_ALONE;
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(uid) = hinted.recv() => {
                wake(&uid);
                continue;
            }
            Ok(()) = with_events.changed() => {
                let wanted = if *with_events.borrow() { RELIST_WITH_EVENTS } else { RELIST_ALONE };
                if wanted != period {
                    period = wanted;
                    ticks = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
                    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                }
                continue;
            }
            _ = ticks.tick() => {}
        }
        match summaries(&runtime).await {
            Ok(current) => {
                healthy.send_if_modified(|state| std::mem::replace(state, Ok(())).is_err());
                let uids = current.keys().chain(known.keys()).collect::<std::collections::BTreeSet<_>>();
                for uid in uids {
                    if current.get(uid) != known.get(uid) {
                        wake(uid);
                    }
                }
                known = current;
            }
            Err(error) => {
                let message = error.to_string();
                healthy.send_if_modified(|state| std::mem::replace(state, Err(message)).is_ok());
            }
        }
    }
    // the listener stops by the same token; an abort would be the same
    let _ = listener.await;
}

async fn summaries(runtime: &cri::Client) -> Result<HashMap<String, Summary>, cri::Error> {
    let (sandboxes, containers) =
        tokio::try_join!(runtime.list_pod_sandboxes(None), runtime.list_containers(None))?;
    let mut pods: HashMap<String, Summary> = HashMap::new();
    for (labels, id, state) in sandboxes
        .into_iter()
        .map(|each| (each.labels, each.id, each.state))
        .chain(containers.into_iter().map(|each| (each.labels, each.id, each.state)))
    {
        if let Some(uid) = labels.get(labels::POD_UID) {
            pods.entry(uid.clone()).or_default().push((id, state));
        }
    }
    pods.values_mut().for_each(|summary| summary.sort());
    Ok(pods)
}

async fn listen(
    runtime: cri::Client,
    endpoint: String,
    hints: tokio::sync::mpsc::Sender<String>,
    events_up: tokio::sync::watch::Sender<bool>,
    stop: CancellationToken,
) {
    let mut cri_has_events = true;
    loop {
        let listening = async {
            if cri_has_events {
                match listen_to_cri(&runtime, &hints, &events_up).await {
                    Err(error) if error.is_unimplemented() => cri_has_events = false,
                    Err(error) => tracing::debug!(%error, "runtime events ended"),
                    Ok(()) => {}
                }
            }
            if !cri_has_events
                && let Err(error) = listen_to_containerd(&runtime, &endpoint, &hints, &events_up).await
            {
                tracing::debug!(%error, "containerd events ended");
            }
            events_up.send_replace(false);
            tokio::time::sleep(RECONNECT).await;
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = listening => {}
        }
    }
}

async fn listen_to_cri(
    runtime: &cri::Client,
    hints: &tokio::sync::mpsc::Sender<String>,
    events_up: &tokio::sync::watch::Sender<bool>,
) -> Result<(), cri::Error> {
    let mut events = runtime.container_events().await?;
    loop {
        let message = events.message().await;
        match message
            .map_err(|status| cri::call_error("/runtime.v1.RuntimeService/GetContainerEvents", status))?
        {
            None => return Ok(()),
            Some(event) => {
                events_up.send_replace(true);
                let metadata = event.pod_sandbox_status.and_then(|sandbox| sandbox.metadata);
                if let Some(metadata) = metadata
                    && hints.send(metadata.uid).await.is_err()
                {
                    return Ok(());
                }
            }
        }
    }
}

async fn listen_to_containerd(
    runtime: &cri::Client,
    endpoint: &str,
    hints: &tokio::sync::mpsc::Sender<String>,
    events_up: &tokio::sync::watch::Sender<bool>,
) -> Result<(), containerd::Error> {
    let mut exits = containerd::Client::new(endpoint)?.exits().await?;
    events_up.send_replace(true);
    while let Some(id) = exits.next().await? {
        let (runtime, hints) = (runtime.clone(), hints.clone());
        tokio::spawn(async move {
            if let Some(uid) = settled(&runtime, &id).await {
                // a full channel means the list will tell
                let _ = hints.try_send(uid);
            }
        });
    }
    Ok(())
}

/// The pod of a container, once CRI too says that the container has ended.
async fn settled(runtime: &cri::Client, id: &str) -> Option<String> {
    for _ in 0..SETTLE_TRIES {
        match runtime.container_status(id).await {
            Ok(Some(status)) if status.state == cri::ContainerState::ContainerRunning as i32 => {}
            Ok(Some(status)) => return status.labels.get(labels::POD_UID).cloned(),
            _ => match runtime.pod_sandbox_status(id).await {
                Ok(answer) => {
                    let status = answer.status?;
                    if status.state != cri::PodSandboxState::SandboxReady as i32 {
                        return status.labels.get(labels::POD_UID).cloned();
                    }
                }
                Err(_) => return None,
            },
        }
        tokio::time::sleep(SETTLE).await;
    }
    None
}
