//! Volumes taken away: unpublished for a pod that has ended, unstaged when no pod of the node uses them any more.

use std::sync::Arc;

use ferry_plugins_api::csi;

use super::record::{self, Record, Use};
use super::{Csi, Failed, Problem, io_problem};
use crate::blocking::blocking;

impl Csi {
    /// Looks at or changes what is on disk.
    pub(super) async fn on_disk<T: Send + 'static>(
        &self,
        act: impl FnOnce(&record::Paths) -> T + Send + 'static,
    ) -> T {
        let paths = self.paths.clone();
        blocking(&self.work, move || act(&paths)).await
    }

    /// The pods that use a volume.
    pub(super) async fn users(&self, record: &Record) -> std::io::Result<Vec<String>> {
        let record = record.clone();
        self.on_disk(move |paths| paths.users(&record)).await
    }

    async fn forget_staged(&self, record: &Record, is_block: bool) -> std::io::Result<()> {
        let record = record.clone();
        self.on_disk(move |paths| paths.forget_staged(&record, is_block)).await
    }

    /// Takes the volumes of a pod away, as they are on disk: this kubelet may never have seen the pod. What is begun
    /// goes on though nobody waits for it any more.
    pub async fn tear_down(self: &Arc<Self>, uid: &str) -> Result<(), Failed> {
        let of_pod = uid.to_owned();
        let uses = self.on_disk(move |paths| paths.uses_of(&of_pod)).await.map_err(|source| Failed {
            step: "UnmountVolume.TearDown",
            volume: "all".into(),
            source: Problem::Io { action: "looking for the pod's volumes", source },
        })?;
        for one in uses {
            let csi = self.clone();
            let span = ferry_trace::span("kubelet.csi_volume");
            let task = self.work.spawn(span.in_scope(async move { csi.take_away(&one).await }));
            match task.await {
                Ok(result) => result?,
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                // cancelled: the process is ending, and so is whoever waits here
                Err(_) => std::future::pending().await,
            }
        }
        self.in_use.release(uid);
        Ok(())
    }

    async fn take_away(&self, one: &Use) -> Result<(), Failed> {
        let failed = |step: &'static str| {
            move |source: Problem| Failed { step, volume: one.record.name.clone(), source }
        };
        let record = &one.record;
        let _alone = self.alone(&record.unique_name()).await;
        self.published.lock().remove(&(one.uid.clone(), record.name.clone()));
        let step = if one.is_block { "UnmapVolume.UnmapBlockVolume" } else { "UnmountVolume.TearDown" };
        self.unpublish(one).await.map_err(failed(step))?;
        if !record.is_ephemeral() {
            let users = self.users(record).await.map_err(io_problem("looking for users"));
            if users.map_err(failed(step))?.iter().all(|uid| *uid == one.uid) {
                let step = if one.is_block { "UnmapDevice" } else { "UnmountDevice" };
                self.unstage(record, one.is_block).await.map_err(failed(step))?;
            }
        }
        // last, so that all of it is done again when it is not done to the end
        let used = one.clone();
        let forgotten = self.on_disk(move |paths| paths.forget_use(&used)).await;
        forgotten.map_err(io_problem("removing the volume's directory")).map_err(failed(step))?;
        if one.is_block && self.users(record).await.is_ok_and(|users| users.is_empty()) {
            let forgotten = self.forget_staged(record, true).await;
            forgotten.map_err(io_problem("removing the volume's directory")).map_err(failed(step))?;
        }
        self.in_use.remove(&record.unique_name(), &one.uid);
        Ok(())
    }

    async fn unpublish(&self, one: &Use) -> Result<(), Problem> {
        let target = self.paths.target(&one.uid, &one.record.name, one.is_block);
        let driver = self.drivers.get(&one.record.driver_name).map_err(|source| Problem::Driver {
            doing: "kubernetes.io/csi: Unmounter.TearDownAt failed to get CSI client",
            source,
        })?;
        let request = csi::NodeUnpublishVolumeRequest {
            volume_id: one.record.volume_handle.clone(),
            target_path: target.to_string_lossy().into_owned(),
        };
        driver.unpublish(request).await.map_err(|source| Problem::Driver {
            doing: "kubernetes.io/csi: Unmounter.TearDownAt failed",
            source,
        })?;
        let used = one.clone();
        let cleared = self.on_disk(move |paths| paths.clear_target(&used)).await;
        cleared.map_err(io_problem("removing the volume's mount point"))
    }

    /// Whoever calls this has the volume alone.
    async fn unstage(&self, record: &Record, is_block: bool) -> Result<(), Problem> {
        let looked = record.clone();
        if self.on_disk(move |paths| paths.may_be_staged(&looked, is_block)).await {
            let driver = self.drivers.get(&record.driver_name).map_err(|source| Problem::Driver {
                doing: "kubernetes.io/csi: attacher.UnmountDevice failed to create newCsiDriverClient",
                source,
            })?;
            if driver.capabilities().await?.stage {
                let staging = self.paths.staging(record, is_block);
                let request = csi::NodeUnstageVolumeRequest {
                    volume_id: record.volume_handle.clone(),
                    staging_target_path: staging.to_string_lossy().into_owned(),
                };
                driver.unstage(request).await.map_err(|source| Problem::Driver {
                    doing: "kubernetes.io/csi: attacher.UnmountDevice failed",
                    source,
                })?;
            }
        }
        self.staged.lock().remove(&record.unique_name());
        if is_block {
            // what is kept of a device is also what its pods are found by
            let device = record.clone();
            let cleared = self.on_disk(move |paths| paths.clear_staging(&device, true)).await;
            return cleared.map_err(io_problem("removing the device's staging path"));
        }
        self.forget_staged(record, false).await.map_err(io_problem("failed to clean up global mount"))
    }

    /// Unstages volumes that are left of pods that are gone.
    pub(super) async fn unstage_unused(self: &Arc<Self>) {
        let all = match self.on_disk(record::Paths::all_staged).await {
            Ok(all) => all,
            Err(error) => return tracing::warn!(%error, "cannot list staged volumes"),
        };
        for (record, is_block) in all {
            let csi = self.clone();
            let task = self.work.spawn(async move { csi.unstage_if_unused(record, is_block).await });
            if let Err(error) = task.await
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }

    async fn unstage_if_unused(&self, record: Record, is_block: bool) {
        let name = record.unique_name();
        let _alone = self.alone(&name).await;
        match self.users(&record).await {
            Ok(users) if users.is_empty() => {}
            Ok(_) => return,
            Err(error) => return tracing::warn!(%error, volume = name, "cannot find the users of a volume"),
        }
        // another may have taken it away meanwhile
        let still = self.on_disk(record::Paths::all_staged).await;
        if !still.is_ok_and(|all| all.iter().any(|(other, _)| other.unique_name() == name)) {
            return self.in_use.remove(&name, "");
        }
        let unstaged = async {
            self.unstage(&record, is_block).await?;
            let forgotten = self.forget_staged(&record, is_block).await;
            forgotten.map_err(io_problem("removing the volume's directory"))
        };
        match unstaged.await {
            Ok(()) => {
                tracing::info!(volume = name, "unstaged a volume of deleted pods");
                self.in_use.remove(&name, "");
            }
            Err(problem) => {
                tracing::warn!(volume = name, %problem, "cannot unstage a volume of deleted pods")
            }
        }
    }
}
