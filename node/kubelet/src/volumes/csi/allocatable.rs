//! How many volumes drivers can attach, asked again as often as their CSIDriver says (`nodeAllocatableUpdatePeriodSeconds`):
//! a cloud's machine may have other disks and addresses than its volumes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::controller::Builder;
use ferry_client::{Error, Informer, Informers, NamespacedName, Outcome};
use futures::future::BoxFuture;
use k8s_openapi::api::storage::v1::CSIDriver;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Csi;
use super::node_info::Installed;

/// How often a driver is asked; `None` for once, when it registers.
pub fn period(driver: &CSIDriver) -> Option<Duration> {
    let seconds = driver.spec.node_allocatable_update_period_seconds.unwrap_or(0);
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

struct Follower {
    csi: Arc<Csi>,
    objects: Informer<CSIDriver>,
    asked: Mutex<BTreeMap<String, Asked>>,
}

/// The last time that a driver was asked, or its period began.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Asked {
    period: Duration,
    at: Instant,
}

/// Whether a driver is asked now, and when to look again.
fn next(last: Option<Asked>, period: Duration, now: Instant) -> (bool, Duration) {
    match last.filter(|last| last.period == period) {
        None => (false, period),
        Some(last) => match (last.at + period).checked_duration_since(now).filter(|left| !left.is_zero()) {
            Some(left) => (false, left),
            None => (true, period),
        },
    }
}

pub fn follow(csi: Arc<Csi>, informers: &Informers) -> BoxFuture<'static, ()> {
    let builder = Builder::new("csi-driver", informers.clone(), 1);
    let objects = builder.informer::<CSIDriver>();
    let follower = Follower { csi, objects: objects.clone(), asked: Mutex::default() };
    builder.of(&objects, Arc::new(follower)).run(Follower::reconcile)
}

impl Follower {
    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let period = self.objects.get(&key).and_then(|driver| period(&driver));
        let Some(period) = period else {
            self.asked.lock().remove(&key.name);
            return Ok(Outcome::Done);
        };
        let now = Instant::now();
        let last = self.asked.lock().get(&key.name).copied();
        let (is_due, again) = next(last, period, now);
        if is_due || last.is_none_or(|last| last.period != period) {
            self.asked.lock().insert(key.name.clone(), Asked { period, at: now });
        }
        if is_due && let Err(problem) = self.csi.ask_again(&key.name).await {
            tracing::warn!(driver = key.name, problem, "cannot ask a driver for its attach limit");
        }
        Ok(Outcome::After(again))
    }
}

impl Csi {
    /// Shows what a driver says of this node now. One that is not registered is asked when it is.
    pub async fn ask_again(&self, name: &str) -> Result<(), String> {
        let Ok(driver) = self.drivers.get(name) else { return Ok(()) };
        let info = driver.info().await.map_err(|error| error.to_string())?;
        self.node_drivers.refresh(Installed::new(name, info)?).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_asked_after_every_period_and_a_new_period_begins_anew() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let minute = Duration::from_secs(60);
        let last = Some(Asked { period: minute, at: start });
        assert_eq!(next(None, minute, start), (false, minute));
        assert_eq!(next(last, minute, at(20)), (false, Duration::from_secs(40)));
        assert_eq!(next(last, minute, at(60)), (true, minute));
        assert_eq!(next(last, minute, at(90)), (true, minute));
        let shorter = Duration::from_secs(10);
        assert_eq!(next(last, shorter, at(20)), (false, shorter));
    }
}
