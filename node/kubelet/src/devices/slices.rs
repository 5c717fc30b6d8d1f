//! ResourceSlices of drivers that are gone: pods must not be sent here for devices that nobody can prepare.

use std::collections::BTreeSet;
use std::time::Duration;

use ferry_client::CancellationToken;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{Api, DeleteParams, ListParams};
use tokio::time::Instant;

use super::drivers::Drivers;

const FIRST_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(300);

/// Removes what drivers left: those that do not come back after a restart of the kubelet, and later those that went
/// away. `looked` is set when all plugins that were there at the start have been asked.
pub async fn run(client: kube::Client, node: String, drivers: Drivers, looked: CancellationToken) {
    looked.cancelled().await;
    let slices = Slices { api: Api::all(client), node };
    let mut retry = FIRST_RETRY;
    while let Err(error) = slices.wipe_of_unknown(&drivers).await {
        tracing::warn!(%error, "cannot delete the ResourceSlices of unregistered drivers; will retry");
        tokio::time::sleep(retry).await;
        retry = (retry * 2).min(MAX_RETRY);
    }
    let mut changes = drivers.changes();
    let mut undone: BTreeSet<String> = BTreeSet::new();
    let mut retry = FIRST_RETRY;
    loop {
        let (due, next) = drivers.take_due(Instant::now());
        undone.extend(due);
        for driver in std::mem::take(&mut undone) {
            // one that came back keeps what it has published since
            if !drivers.is_out_of_reach(&driver) {
                continue;
            }
            if let Err(error) = slices.wipe(&driver).await {
                tracing::warn!(driver, %error, "cannot delete the ResourceSlices of a disconnected driver; will retry");
                undone.insert(driver);
            }
        }
        let again = (!undone.is_empty()).then(|| Instant::now() + retry);
        retry = if undone.is_empty() { FIRST_RETRY } else { (retry * 2).min(MAX_RETRY) };
        let wake = [next, again].into_iter().flatten().min();
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            } => {}
        }
    }
}

struct Slices {
    api: Api<ResourceSlice>,
    node: String,
}

impl Slices {
    async fn wipe_of_unknown(&self, drivers: &Drivers) -> Result<(), kube::Error> {
        let selection = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let published: BTreeSet<String> =
            self.api.list(&selection).await?.items.into_iter().map(|slice| slice.spec.driver).collect();
        for driver in published.iter().filter(|driver| !drivers.is_registered(driver)) {
            self.wipe(driver).await?;
        }
        Ok(())
    }

    async fn wipe(&self, driver: &str) -> Result<(), kube::Error> {
        let mut span = ferry_trace::Span::root("kubelet.wipe_slices", None);
        span.set("driver", driver);
        let fields = format!("spec.nodeName={},spec.driver={driver}", self.node);
        let selection = ListParams::default().fields(&fields);
        let wiped = span.in_scope(self.api.delete_collection(&DeleteParams::default(), &selection)).await;
        if let Err(error) = &wiped {
            span.fail(error);
        } else {
            tracing::info!(driver, "deleted the ResourceSlices of an unregistered driver");
        }
        wiped.map(|_| ())
    }
}
