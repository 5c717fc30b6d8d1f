//! A pod's devices: prepared before its sandbox, handed to its containers, taken back when all of them have stopped.

use ferry_client::EventType;
use k8s_openapi::api::core::v1::Pod;

use super::Worker;
use super::start::{Held, held};
use super::stop::about;
use super::sync::Error;
use crate::cri;
use crate::devices::{self, cdi};
use crate::plan::Plan;
use crate::pod::{self, ContainerOf};
use crate::runtime;

impl Worker {
    /// Whether drivers have to be asked before the plan is carried out. A sandbox that stands without it was made by a
    /// kubelet that knew no devices.
    pub(super) fn lacks_devices(&self, pod: &Pod, plan: &Plan) -> bool {
        let claims = pod::spec(pod).resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
        let extended = pod::status(pod).extended_resource_claim_status.is_some();
        let is_due = || {
            plan.sandbox.is_some() || (!plan.start.is_empty() && !self.context.devices.are_held(&self.uid))
        };
        (claims || extended) && is_due()
    }

    pub(super) async fn prepare_devices(&self, pod: &Pod) -> Result<(), Error> {
        let mut span = ferry_trace::span("kubelet.prepare_devices");
        about(&mut span, pod);
        let (devices, pod) = (self.context.devices.clone(), pod.clone());
        let prepared = self.finish(&span, async move { devices.prepare(&pod).await }).await;
        prepared.map_err(|error| {
            span.fail(&error);
            Error::Prepare(error)
        })
    }

    pub(super) async fn unprepare_devices(&self) -> Result<(), Error> {
        if !self.context.devices.are_held(&self.uid) {
            return Ok(());
        }
        let mut span = ferry_trace::span("kubelet.unprepare_devices");
        about(&mut span, &self.orders.borrow().pod);
        let (devices, uid) = (self.context.devices.clone(), self.uid.clone());
        let done = self.finish(&span, async move { devices.unprepare(&uid).await }).await;
        done.map_err(|error| {
            span.fail(&error);
            Error::Unprepare(error)
        })
    }

    /// What a driver is asked to do goes on though the pod's worker turns to something else; whoever takes the pod down
    /// waits for it.
    async fn finish(
        &self,
        span: &ferry_trace::Span,
        work: impl Future<Output = Result<(), devices::Error>> + Send + 'static,
    ) -> Result<(), devices::Error> {
        match self.work.spawn(span.in_scope(work)).await {
            Ok(result) => result,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // cancelled: the process is ending, and so is whoever waits here
            Err(_) => std::future::pending().await,
        }
    }

    /// Gives a container what its device plugins ask for, and names its CDI devices to the runtime, or makes them of
    /// their specifications where the runtime knows no names.
    pub(super) async fn give_devices(
        &self,
        pod: &Pod,
        each: &ContainerOf<'_>,
        config: &mut cri::ContainerConfig,
    ) -> Result<(), Held> {
        let refuse = |message: String| held("CreateContainerConfigError", message);
        let names = self.context.devices.cdi_devices(pod, &each.container);
        let mut names = names.map_err(|error| refuse(error.to_string()))?;
        let plugins = &self.context.device_plugins;
        let of_plugins = plugins.prepare(pod, &each.container, config).await;
        names.extend(of_plugins.map_err(|error| refuse(error.to_string()))?);
        if names.is_empty() {
            return Ok(());
        }
        let settings = runtime::settings(&self.runtime).await.map_err(|error| refuse(error.to_string()))?;
        if cdi::runtime_injects(&self.context.runtime_version, settings.as_ref()) {
            config.cdi_devices.extend(names.into_iter().map(|name| cri::CdiDevice { name }));
            return Ok(());
        }
        let directories = self.context.devices.spec_dirs.clone();
        let known = self.on_node(move |_, _| cdi::Devices::read(&directories)).await;
        let edits = known.edits(&names).map_err(|error| refuse(error.to_string()))?;
        let undone = cdi::apply(&edits, config);
        if !undone.is_empty() {
            let version = &self.context.runtime_version;
            let note = format!(
                "{} {} knows no CDI devices; the kubelet gives the container what their specifications ask for but: {}",
                version.runtime_name,
                version.runtime_version,
                undone.join(", ")
            );
            self.event(pod, &each.container.name, EventType::Warning, "DeviceIncomplete", note);
        }
        Ok(())
    }
}
