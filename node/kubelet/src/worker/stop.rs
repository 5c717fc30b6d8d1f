//! Stopping a pod: hooks, signals, grace, and then everything it left.

use std::net::IpAddr;
use std::time::Duration;

use ferry_client::EventType;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Preconditions};
use tokio::time::Instant;

use super::sync::{Error, io_error};
use super::{Orders, Worker};
use crate::cri;
use crate::hooks;
use crate::pod::{self, ContainerKind};
use crate::runtime::container_config::log_directory;
use crate::runtime::view::{Container, PodRuntime, State};

/// Whatever a hook took, a container gets this to end by itself.
const LEAST_GRACE: Duration = Duration::from_secs(2);

/// Names the pod of a step, and the revision that made it due.
pub(super) fn about(span: &mut ferry_trace::Span, pod: &Pod) {
    span.object("pods", pod::namespace(pod), pod::name(pod));
    if let Some(revision) = ferry_client::name::revision(pod) {
        span.caused_by(revision);
    }
}

impl Worker {
    /// Stops all containers and the sandbox, then takes cgroup and volumes
    /// away. A shorter grace that is ordered meanwhile takes effect at once.
    pub(super) async fn terminate(&mut self) -> Result<(), Error> {
        let mut span = ferry_trace::span("kubelet.terminate");
        about(&mut span, &self.orders.borrow().pod);
        let result = span.in_scope(self.termination_steps()).await;
        if let Err(error) = &result {
            span.fail(error);
        }
        result
    }

    async fn termination_steps(&mut self) -> Result<(), Error> {
        // what the runtime is making it does not show yet
        self.work.wait().await;
        loop {
            let orders = self.orders.borrow_and_update().clone();
            let runtime = self.look().await?;
            let pod_ip = self.pod_ip(&orders.pod, &runtime);
            self.probes.follow(&orders.pod, &runtime, pod_ip, true);
            self.show(&orders, &runtime);
            if !runtime.is_anything_alive() {
                break;
            }
            let grace = orders.grace();
            let mut changes = self.orders.clone();
            let shortened = changes.wait_for(|orders| orders.grace() < grace);
            tokio::select! {
                biased;
                _ = shortened => {}
                stopped = self.stop_everything(&orders, &runtime) => stopped?,
            }
        }
        // a stop whose grace was too long is over with its container
        self.work.wait().await;
        self.unprepare_devices().await?;
        if self.on_node(|context, uid| context.device_plugins.release(uid)).await {
            tracing::debug!(uid = self.uid, "devices are free");
        }
        let orders = self.orders.borrow().clone();
        let runtime = self.look().await?;
        self.probes.follow(&orders.pod, &runtime, None, true);
        self.show(&orders, &runtime);
        self.context.volumes.tear_down_mounts(&self.uid).await?;
        self.context.cgroups.kill(&self.uid).await;
        self.on_node(|context, uid| context.cgroups.remove(uid)).await?;
        if self.on_node(|context, uid| context.cpus.release(uid)).await {
            tracing::debug!(uid = self.uid, "exclusive CPUs given back");
        }
        Ok(())
    }

    /// Takes the rest of a deleted pod off the node and out of the API.
    pub(super) async fn remove(&mut self, orders: &Orders) -> Result<(), Error> {
        let runtime = self.look().await?;
        for sandbox in &runtime.sandboxes {
            // removes its containers too
            let removed = ignore_missing(self.runtime.remove_pod_sandbox(&sandbox.id).await);
            if removed.is_err() {
                // its network may not have been taken down; only stopping tries that again
                ignore_missing(self.runtime.stop_pod_sandbox(&sandbox.id).await)?;
                ignore_missing(self.runtime.remove_pod_sandbox(&sandbox.id).await)?;
            }
        }
        for container in &runtime.containers {
            ignore_missing(self.runtime.remove_container(&container.id).await)?;
        }
        self.context.volumes.tear_down(&self.uid).await?;
        let logs = log_directory(&self.context.config.pod_logs_dir, &orders.pod);
        let removed = self.on_node(move |_, _| ferry_linux::tree::remove(&logs)).await;
        removed.map_err(io_error("removing the pod's logs"))?;
        self.context.objects.unregister(&self.uid);
        self.context.images.forget(&self.uid);
        if !orders.gone && !pod::is_static(&orders.pod) {
            self.context.writer.written(&self.uid).await;
            self.delete_from_api(&orders.pod).await?;
        }
        self.context.writer.forget(&self.uid);
        Ok(())
    }

    async fn delete_from_api(&self, pod: &Pod) -> Result<(), Error> {
        let Some(client) = self.context.client.clone() else { return Ok(()) };
        let api: kube::Api<Pod> = kube::Api::namespaced(client, pod::namespace(pod));
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: Some(self.uid.clone()), resource_version: None }),
            ..DeleteParams::default()
        };
        let mut span = ferry_trace::span("kubelet.delete");
        about(&mut span, pod);
        match span.in_scope(api.delete(pod::name(pod), &parameters)).await {
            Ok(_) => Ok(()),
            // gone, or another pod of that name by now
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(Error::Delete(error)),
        }
    }

    /// Regular containers stop together; then the sidecars that served them,
    /// the last started first; then the sandbox.
    pub(super) async fn stop_everything(
        &mut self,
        orders: &Orders,
        runtime: &PodRuntime,
    ) -> Result<(), Error> {
        let pod = &orders.pod;
        let deadline = Instant::now() + orders.grace();
        let pod_ip = self.pod_ip(pod, runtime);
        let kind_of = |record: &Container| pod::find_container(pod, &record.name).map(|each| each.kind);
        let alive: Vec<&Container> = runtime
            .containers
            .iter()
            .filter(|record| matches!(record.state, State::Running | State::Unknown | State::Created))
            .collect();
        let (sidecars, others): (Vec<&Container>, Vec<&Container>) =
            alive.into_iter().partition(|record| kind_of(record) == Some(ContainerKind::Sidecar));

        self.stop_together(orders, runtime, &others, deadline).await?;
        let order: Vec<String> =
            pod::containers(pod).into_iter().rev().map(|each| each.container.name.clone()).collect();
        for name in order {
            for record in sidecars.iter().filter(|record| record.name == name) {
                let left = deadline.saturating_duration_since(Instant::now());
                self.stop_container(pod, record, pod_ip, left, &stopping(record))
                    .await
                    .map_err(Error::Kill)?;
            }
        }
        for sandbox in runtime.sandboxes.iter().filter(|sandbox| sandbox.ready) {
            ignore_missing(self.runtime.stop_pod_sandbox(&sandbox.id).await).map_err(
                |error| match error {
                    Error::Runtime(error) => Error::Kill(error),
                    other => other,
                },
            )?;
        }
        Ok(())
    }

    /// Stops containers at the same time, and shows meanwhile whether they are ready: they may serve to their end.
    async fn stop_together(
        &mut self,
        orders: &Orders,
        runtime: &PodRuntime,
        records: &[&Container],
        deadline: Instant,
    ) -> Result<(), Error> {
        let pod = &orders.pod;
        let pod_ip = self.pod_ip(pod, runtime);
        for record in records.iter().filter(|record| record.state == State::Running) {
            self.event(pod, &record.name, EventType::Normal, "Killing", stopping(record));
        }
        let client = self.runtime.clone();
        let stops: Vec<_> = records
            .iter()
            .map(|record| {
                let run_hook = !self.pre_stopped.contains(&record.id);
                stop_one(&client, pod, record, pod_ip, deadline, run_hook)
            })
            .collect();
        let mut stops = std::pin::pin!(futures::future::join_all(stops));
        let mut woken = self.orders.clone();
        let results = loop {
            tokio::select! {
                results = &mut stops => break results,
                Ok(()) = woken.changed() => {
                    self.show(orders, runtime);
                }
            }
        };
        self.pre_stopped.extend(records.iter().map(|record| record.id.clone()));
        for (hook, result) in results {
            if let Some((name, problem)) = hook {
                let message = format!("PreStopHook failed: {problem}");
                self.event(pod, &name, EventType::Warning, "FailedPreStopHook", message);
            }
            result.map_err(Error::Kill)?;
        }
        Ok(())
    }

    /// Stops one container within its grace.
    pub(super) async fn stop_container(
        &mut self,
        pod: &Pod,
        record: &Container,
        pod_ip: Option<IpAddr>,
        grace: Duration,
        message: &str,
    ) -> Result<(), cri::Error> {
        self.event(pod, &record.name, EventType::Normal, "Killing", message.to_string());
        let run_hook = self.pre_stopped.insert(record.id.clone());
        let deadline = Instant::now() + grace;
        let (hook, result) = stop_one(&self.runtime, pod, record, pod_ip, deadline, run_hook).await;
        if let Some((name, problem)) = hook {
            self.event(
                pod,
                &name,
                EventType::Warning,
                "FailedPreStopHook",
                format!("PreStopHook failed: {problem}"),
            );
        }
        result
    }
}

/// The hook's failure if it failed, and whether the container stopped.
type Stopped = (Option<(String, String)>, Result<(), cri::Error>);

async fn stop_one(
    runtime: &cri::Client,
    pod: &Pod,
    record: &Container,
    pod_ip: Option<IpAddr>,
    deadline: Instant,
    run_hook: bool,
) -> Stopped {
    let each = pod::find_container(pod, &record.name);
    let hook = each.as_ref().and_then(|each| each.container.lifecycle.as_ref()?.pre_stop.as_ref());
    let mut failed = None;
    let left = deadline.saturating_duration_since(Instant::now());
    if let (Some(each), Some(hook), true) =
        (&each, hook, run_hook && record.state == State::Running && !left.is_zero())
    {
        let ran = hooks::run(runtime, &record.id, &each.container, hook, pod_ip, left);
        match tokio::time::timeout(left, ran).await {
            Ok(Ok(())) => {}
            Ok(Err(problem)) => failed = Some((record.name.clone(), problem)),
            Err(_) => failed = Some((record.name.clone(), "the hook took the whole grace period".into())),
        }
    }
    // a grace of nothing is meant; one used up by a hook leaves a little
    let after = deadline.saturating_duration_since(Instant::now());
    let grace = if left.is_zero() { Duration::ZERO } else { after.max(LEAST_GRACE.min(left)) };
    // the runtime counts whole seconds
    let grace = Duration::from_secs(grace.as_secs() + u64::from(grace.subsec_nanos() > 0));
    let stopped = match runtime.stop_container(&record.id, grace).await {
        Err(error) if error.is_not_found() => Ok(()),
        result => result,
    };
    (failed, stopped)
}

fn stopping(record: &Container) -> String {
    format!("Stopping container {}", record.name)
}

fn ignore_missing(result: Result<(), cri::Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        result => Ok(result?),
    }
}
