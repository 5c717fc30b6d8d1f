//! Names that are taken inside the runtime by something of this pod that does
//! not say whose it is: what a crash, or somebody by hand, left behind. It is
//! told and taken away. A name held by what the runtime does not show is that
//! of a call still under way: then the error stands, and is tried again.

use ferry_client::EventType;
use k8s_openapi::api::core::v1::Pod;

use super::Worker;
use crate::cri;
use crate::pod;

impl Worker {
    pub(super) async fn run_sandbox(
        &self,
        pod: &Pod,
        config: &cri::PodSandboxConfig,
        handler: &str,
    ) -> Result<String, cri::Error> {
        let runtime = &self.runtime;
        let error = match runtime.run_pod_sandbox(config.clone(), handler).await {
            Ok(id) => return Ok(id),
            Err(error) => error,
        };
        let Some(holder) = error.name_holder() else { return Err(error) };
        let status = runtime.pod_sandbox_status(holder).await.ok().and_then(|answer| answer.status);
        let is_own = status.and_then(|status| status.metadata).is_some_and(|data| data.uid == self.uid);
        if !is_own {
            return Err(error);
        }
        let note = format!("Failed to create pod sandbox: {error}; what holds the name is removed");
        self.context.events.event(pod, EventType::Warning, "FailedCreatePodSandBox", "Syncing", note);
        runtime.stop_pod_sandbox(holder).await?;
        runtime.remove_pod_sandbox(holder).await?;
        runtime.run_pod_sandbox(config.clone(), handler).await
    }

    pub(super) async fn create_container(
        &self,
        pod: &Pod,
        name: &str,
        sandbox: &str,
        config: cri::ContainerConfig,
        sandbox_config: &cri::PodSandboxConfig,
    ) -> Result<String, cri::Error> {
        let runtime = &self.runtime;
        let error = match runtime.create_container(sandbox, config.clone(), sandbox_config.clone()).await {
            Ok(id) => return Ok(id),
            Err(error) => error,
        };
        let Some(holder) = error.name_holder() else { return Err(error) };
        let filter = cri::ContainerFilter { id: holder.into(), ..Default::default() };
        let found = runtime.list_containers(Some(filter)).await?;
        if !found.iter().any(|container| container.pod_sandbox_id == sandbox) {
            return Err(error);
        }
        let note = format!("Error: {error}; what holds the name is removed");
        self.event(pod, name, EventType::Warning, "Failed", note);
        runtime.stop_container(holder, pod::grace_period(pod)).await?;
        runtime.remove_container(holder).await?;
        runtime.create_container(sandbox, config, sandbox_config.clone()).await
    }
}
