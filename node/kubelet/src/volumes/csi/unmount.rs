//! Volumes taken away: unpublished for a pod that has ended, unstaged when no pod of the node uses them any more.

use std::sync::Arc;

use ferry_plugins_api::csi;

use super::record::{Record, Use};
use super::{Csi, Failed, Problem, io_problem};

impl Csi {
    /// Takes the volumes of a pod away, as they are on disk: this kubelet may never have seen the pod. What is begun
    /// goes on though nobody waits for it any more.
    pub async fn tear_down(self: &Arc<Self>, uid: &str) -> Result<(), Failed> {
        let uses = self.paths.uses_of(uid).map_err(|source| Failed {
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
            let users = self.paths.users(record).map_err(io_problem("looking for users"));
            if users.map_err(failed(step))?.iter().all(|uid| *uid == one.uid) {
                let step = if one.is_block { "UnmapDevice" } else { "UnmountDevice" };
                self.unstage(record, one.is_block).await.map_err(failed(step))?;
            }
        }
        // last, so that all of it is done again when it is not done to the end
        self.paths
            .forget_use(one)
            .map_err(io_problem("removing the volume's directory"))
            .map_err(failed(step))?;
        if one.is_block && self.paths.users(record).is_ok_and(|users| users.is_empty()) {
            let forgotten = self.paths.forget_staged(record, true);
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
        self.paths.clear_target(one).map_err(io_problem("removing the volume's mount point"))
    }

    /// Whoever calls this has the volume alone.
    async fn unstage(&self, record: &Record, is_block: bool) -> Result<(), Problem> {
        if self.paths.may_be_staged(record, is_block) {
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
            return self
                .paths
                .clear_staging(record, true)
                .map_err(io_problem("removing the device's staging path"));
        }
        self.paths.forget_staged(record, false).map_err(io_problem("failed to clean up global mount"))
    }

    /// Unstages volumes that are left of pods that are gone.
    pub(super) async fn unstage_unused(self: &Arc<Self>) {
        let all = match self.paths.all_staged() {
            Ok(all) => all,
            Err(error) => return tracing::warn!(%error, "staged volumes not looked for"),
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
        match self.paths.users(&record) {
            Ok(users) if users.is_empty() => {}
            Ok(_) => return,
            Err(error) => return tracing::warn!(%error, volume = name, "users of a volume not looked for"),
        }
        // another may have taken it away meanwhile
        let still = self.paths.all_staged();
        if !still.is_ok_and(|all| all.iter().any(|(other, _)| other.unique_name() == name)) {
            return self.in_use.remove(&name, "");
        }
        let unstaged = async {
            self.unstage(&record, is_block).await?;
            self.paths.forget_staged(&record, is_block).map_err(io_problem("removing the volume's directory"))
        };
        match unstaged.await {
            Ok(()) => {
                tracing::info!(volume = name, "volume of pods that are gone unstaged");
                self.in_use.remove(&name, "");
            }
            Err(problem) => {
                tracing::warn!(volume = name, %problem, "volume of pods that are gone still staged")
            }
        }
    }
}
