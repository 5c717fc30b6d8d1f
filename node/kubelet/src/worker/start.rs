//! Starting one container: image, environment, mounts, create, start, hook.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::{EventType, NamespacedName};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, Secret, VolumeMount};
use tokio::fs;
use tokio::time::Instant;

use super::block_devices::volume_devices;
use super::image_volumes::{self, ImageVolumes};
use super::{Orders, Worker};
use crate::cpu_manager::CpuSet;
use crate::cri;
use crate::env::{self, Addresses};
use crate::hooks;
use crate::images::pull::Present;
use crate::pod::{self, ContainerOf};
use crate::runtime::container_config::{self, container_config, log_directory, log_file, propagation};
use crate::runtime::dns;
use crate::runtime::view::{PodRuntime, State};
use crate::status::containers::StartFailure;
use crate::volumes::MountedVolumes;

/// Why a container did not start, and when to try again.
pub(super) type Held = (StartFailure, Duration);

const TRY_AGAIN: Duration = Duration::from_secs(10);
/// Ended containers kept of each name, so that `logs --previous` works.
const KEPT_ENDED: usize = 1;

pub(super) fn held(reason: &str, message: String) -> Held {
    (StartFailure { reason: reason.into(), message }, TRY_AGAIN)
}

/// What a container's configuration is made from, beside its pod.
#[derive(Clone, Copy)]
struct Facts<'a> {
    volumes: &'a MountedVolumes,
    image_volumes: &'a ImageVolumes,
    image: &'a Present,
    restart_count: u32,
}

impl Worker {
    pub(super) async fn start_container(
        &mut self,
        orders: &Orders,
        each: &ContainerOf<'_>,
        runtime: &PodRuntime,
        sandbox_config: &cri::PodSandboxConfig,
        volumes: &MountedVolumes,
    ) -> Result<String, Held> {
        let pod = &orders.pod;
        let name = &each.container.name;
        let Some(sandbox) = runtime.sandbox() else {
            return Err(held("ContainerCreating", "the sandbox is gone".into()));
        };
        self.check_restart(pod, each, runtime)?;
        let mut span = ferry_trace::span("kubelet.container");
        span.object("pods", pod::namespace(pod), pod::name(pod)).set("container", name.as_str());

        let secrets = self.pull_secrets(pod).await;
        let ensured = self.ensure_image(pod, &each.container, &secrets, sandbox_config);
        let image = span.in_scope(ensured).await.inspect_err(|(failure, _)| {
            span.fail(&failure.reason);
        })?;
        let image_volumes = self.image_volumes(pod, each, &secrets, sandbox_config).await?;

        let restart_count = self.restart_count(orders, name, runtime);
        let facts = Facts { volumes, image_volumes: &image_volumes, image: &image, restart_count };
        let config = self.config_with_devices(orders, each, runtime, facts).await;
        let config = config.inspect_err(|(failure, _)| {
            self.event(pod, name, EventType::Warning, "Failed", format!("Error: {}", failure.message));
        })?;
        let step = span.enter(|| ferry_trace::span("kubelet.create"));
        let created = step.instrument(self.create_container(pod, name, &sandbox.id, config, sandbox_config));
        let id = created.await.map_err(|error| {
            span.fail_unquoted(&error);
            self.event(pod, name, EventType::Warning, "Failed", format!("Error: {error}"));
            held("CreateContainerError", error.to_string())
        })?;
        self.event(pod, name, EventType::Normal, "Created", format!("Created container: {name}"));
        let step = span.enter(|| ferry_trace::span("kubelet.start"));
        step.instrument(self.runtime.start_container(&id)).await.map_err(|error| {
            span.fail_unquoted(&error);
            self.event(pod, name, EventType::Warning, "Failed", format!("Error: {error}"));
            held("RunContainerError", error.to_string())
        })?;
        let cpus = self.context.cpus.of_running(pod::uid(pod), name);
        let given = super::resize::AppliedResources::new(each.container.resources.as_ref(), cpus);
        self.given.insert(id.clone(), given);
        self.event(pod, name, EventType::Normal, "Started", format!("Started container {name}"));
        self.collect_ended(name, runtime).await;
        self.link_log(pod, name, &id, restart_count).await;

        let step = || span.enter(|| ferry_trace::span("kubelet.hook"));
        self.run_post_start(pod, each, &id, runtime, step).await?;
        Ok(id)
    }

    async fn config_with_devices(
        &self,
        orders: &Orders,
        each: &ContainerOf<'_>,
        runtime: &PodRuntime,
        facts: Facts<'_>,
    ) -> Result<cri::ContainerConfig, Held> {
        let refused = |message: String| held("CreateContainerConfigError", message);
        let mut config = self.config(orders, each, runtime, facts).await.map_err(refused)?;
        config.devices.extend(volume_devices(&each.container, facts.volumes).map_err(refused)?);
        self.give_devices(&orders.pod, each, &mut config).await?;
        Ok(config)
    }

    /// Runs the container's postStart hook, if it has one; a container whose hook fails is stopped.
    async fn run_post_start(
        &self,
        pod: &Pod,
        each: &ContainerOf<'_>,
        id: &str,
        runtime: &PodRuntime,
        step: impl FnOnce() -> ferry_trace::Span,
    ) -> Result<(), Held> {
        let hook = each.container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref());
        let Some(hook) = hook else { return Ok(()) };
        let pod_ip = self.pod_ip(pod, runtime);
        let ran = hooks::run(&self.runtime, id, &each.container, hook, pod_ip, Duration::from_secs(3600));
        let mut step = step();
        step.set("hook", "postStart");
        let Err(problem) = step.in_scope(ran).await else { return Ok(()) };
        // What a hook printed is the container's own business and no part of a trace.
        step.fail(&"the hook failed");
        drop(step);
        let note = format!("PostStartHook failed: {problem}");
        self.event(pod, &each.container.name, EventType::Warning, "FailedPostStartHook", note);
        if let Err(error) = self.runtime.stop_container(id, pod::grace_period(pod)).await {
            tracing::warn!(container = id, %error, "container with a failed hook not stopped");
        }
        Err((StartFailure { reason: "PostStartHookError".into(), message: problem }, Duration::ZERO))
    }

    /// A container that ended may have to wait.
    fn check_restart(&mut self, pod: &Pod, each: &ContainerOf<'_>, runtime: &PodRuntime) -> Result<(), Held> {
        let name = &each.container.name;
        let Some(last) = runtime.container(name).filter(|record| record.state == State::Exited) else {
            return Ok(());
        };
        let Some(finished) = last.finished_at else { return Ok(()) };
        let age = Duration::try_from(Timestamp::now().duration_since(finished)).unwrap_or_default();
        self.restarts.may_restart(name, age, Instant::now()).map_err(|(delay, left)| {
            let whole = format!("{}_{}({})", pod::name(pod), pod::namespace(pod), pod::uid(pod));
            let shown = shown(delay);
            let note = format!("Back-off restarting failed container {name} in pod {whole}");
            self.event(pod, name, EventType::Warning, "BackOff", note);
            let message = format!("back-off {shown} restarting failed container={name} pod={whole}");
            (StartFailure { reason: "CrashLoopBackOff".into(), message }, left)
        })
    }

    /// The image of a container, or of a volume that it mounts, pulled if need be; told either way.
    pub(super) async fn ensure_image(
        &self,
        pod: &Pod,
        container: &Container,
        secrets: &[Arc<Secret>],
        sandbox_config: &cri::PodSandboxConfig,
    ) -> Result<Present, Held> {
        let (name, image) = (&container.name, container.image.as_deref().unwrap_or_default());
        let pulling = || {
            self.context.writer.hurry(&self.uid);
            self.event(pod, name, EventType::Normal, "Pulling", format!("Pulling image \"{image}\""));
        };
        let images = &self.context.images;
        let ensured = images.ensure(&self.uid, container, secrets, sandbox_config, "", pulling).await;
        let present = ensured.map_err(|failure| {
            let (kind, reason, note) = match failure.reason.as_str() {
                "ImagePullBackOff" => {
                    (EventType::Normal, "BackOff", format!("Back-off pulling image \"{image}\""))
                }
                "ErrImageNeverPull" => (EventType::Warning, "ErrImageNeverPull", failure.message.clone()),
                "InvalidImageName" | "ImageInspectError" => {
                    (EventType::Warning, "InspectFailed", failure.message.clone())
                }
                _ => {
                    let note = format!("Failed to pull image \"{image}\": {}", failure.message);
                    (EventType::Warning, "Failed", note)
                }
            };
            self.event(pod, name, kind, reason, note);
            self.event(pod, name, EventType::Warning, "Failed", format!("Error: {}", failure.reason));
            (failure, TRY_AGAIN)
        })?;
        self.tell_image(pod, container, &present);
        Ok(present)
    }

    fn tell_image(&self, pod: &Pod, container: &Container, image: &Present) {
        let name = container.image.as_deref().unwrap_or_default();
        let note = match image.pulled_in {
            None => format!(
                "Container image \"{name}\" already present on machine and can be accessed by the pod"
            ),
            Some(took) => format!(
                "Successfully pulled image \"{name}\" in {0} ({0} including waiting). Image size: {1} bytes.",
                shown(took),
                image.size
            ),
        };
        self.event(pod, &container.name, EventType::Normal, "Pulled", note);
    }

    async fn pull_secrets(&self, pod: &Pod) -> Vec<Arc<Secret>> {
        let mut secrets = Vec::new();
        for reference in pod::spec(pod).image_pull_secrets.iter().flatten() {
            let key = NamespacedName::new(pod::namespace(pod), &reference.name);
            match self.context.objects.secrets.get(&key).await {
                Ok(Some(secret)) => secrets.push(secret),
                // the image may not need it; if it does, the pull says so
                Ok(None) => {
                    let note = format!(
                        "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                        reference.name
                    );
                    self.context.events.event(
                        pod,
                        EventType::Warning,
                        "FailedToRetrieveImagePullSecret",
                        "Pulling",
                        note,
                    );
                }
                Err(error) => tracing::warn!(pod = %pod::key(pod), %error, "pull secret not read"),
            }
        }
        secrets
    }

    fn restart_count(&self, orders: &Orders, name: &str, runtime: &PodRuntime) -> u32 {
        if let Some(last) = runtime.container(name) {
            return last.restart_count + 1;
        }
        // the runtime forgot it; what the API was told still counts
        let shown = pod::container_status(pod::status(&orders.pod), name)
            .or_else(|| pod::container_status(&self.status, name));
        let ran = shown.filter(|status| {
            status.container_id.is_some()
                && status
                    .state
                    .as_ref()
                    .is_some_and(|state| state.running.is_some() || state.terminated.is_some())
        });
        ran.map_or(0, |status| u32::try_from(status.restart_count).unwrap_or(0) + 1)
    }

    async fn config(
        &self,
        orders: &Orders,
        each: &ContainerOf<'_>,
        runtime: &PodRuntime,
        Facts { volumes, image_volumes, image, restart_count }: Facts<'_>,
    ) -> Result<cri::ContainerConfig, String> {
        let pod = &orders.pod;
        let context = &self.context;
        let host_ips: Vec<String> = context.host_ips().iter().map(ToString::to_string).collect();
        let pod_ips = match runtime.sandbox() {
            Some(sandbox) if !sandbox.host_network => sandbox.ips.clone(),
            _ => host_ips.clone(),
        };
        let addresses = Addresses { pod_ips: pod_ips.clone(), host_ips };
        let services = match &context.services {
            Some(informer) => {
                // a pod that starts before its services are known would miss them for ever
                informer.synced().await;
                informer.list()
            }
            None => vec![],
        };
        let environment = env::environment(
            pod,
            &each.container,
            &services,
            &context.objects,
            &addresses,
            &context.allocatable,
        )
        .await
        .map_err(|error| error.to_string())?;
        let mut mounts = self.volume_mounts(pod, each, volumes, image_volumes, &environment).await?;
        let own = self.own_mounts(pod, each, &pod_ips, restart_count, &mounts).await;
        mounts.extend(own.map_err(|error| error.to_string())?);
        let target_id = each
            .target
            .as_ref()
            .and_then(|target| runtime.current_container(target))
            .map(|target| target.id.clone());
        let cpuset = self.allocate_cpus(orders, &each.container).await?;
        container_config(container_config::Facts {
            pod,
            each,
            restart_count,
            image_ref: &image.reference,
            image_user: &image.user,
            environment: &environment,
            mounts,
            target_id,
            root_dir: &context.config.root_dir,
            machine_memory: context.machine_memory,
            cpuset: cpuset.map(|cpus| crate::cpu_manager::format_list(&cpus)),
            seccomp_default: context.config.seccomp_default,
            cfs_quota: context.config.enable_cfs_quota,
        })
        .map_err(|error| error.to_string())
    }

    async fn allocate_cpus(&self, orders: &Orders, container: &Container) -> Result<Option<CpuSet>, String> {
        let (pod, container) = (orders.pod.clone(), container.clone());
        let allocated = self.on_node(move |context, _| context.cpus.allocate(&pod, &container)).await;
        allocated.map_err(|error| error.to_string())
    }

    async fn volume_mounts(
        &self,
        pod: &Pod,
        each: &ContainerOf<'_>,
        volumes: &MountedVolumes,
        image_volumes: &ImageVolumes,
        environment: &env::Environment,
    ) -> Result<Vec<cri::Mount>, String> {
        let mut mounts = Vec::new();
        for (index, wanted) in each.container.volume_mounts.iter().flatten().enumerate() {
            if let Some(image) = image_volumes.get(&wanted.name) {
                mounts.push(image_volumes::mount(wanted, image));
                continue;
            }
            let Some(volume) = volumes.get(&wanted.name) else {
                return Err(format!(
                    "cannot find volume \"{}\" to mount into container \"{}\"",
                    wanted.name, each.container.name
                ));
            };
            if volume.is_block {
                return Err(format!(
                    "volume {} has volumeMode Block, but is specified in volumeMounts",
                    wanted.name
                ));
            }
            let host_path = match sub_path(wanted, environment)? {
                Some(sub_path) => self
                    .context
                    .volumes
                    .sub_path((pod, &each.container.name), (index, wanted), volume, &sub_path, &self.work)
                    .await
                    .map_err(|error| {
                        format!(
                            "failed to prepare subPath for volumeMount \"{}\" of container \"{}\": {error}",
                            wanted.name, each.container.name
                        )
                    })?,
                None => volume.path.clone(),
            };
            mounts.push(cri::Mount {
                container_path: absolute(&wanted.mount_path),
                host_path: host_path.to_string_lossy().into_owned(),
                readonly: wanted.read_only == Some(true) || volume.read_only,
                propagation: propagation(wanted.mount_propagation.as_deref()) as i32,
                ..Default::default()
            });
        }
        Ok(mounts)
    }

    /// The hosts file, and the file for last words.
    async fn own_mounts(
        &self,
        pod: &Pod,
        each: &ContainerOf<'_>,
        pod_ips: &[String],
        restart_count: u32,
        volume_mounts: &[cri::Mount],
    ) -> std::io::Result<Vec<cri::Mount>> {
        let mut mounts = Vec::new();
        let directory = self.context.pod_dir(pod::uid(pod));
        let is_taken = |path: &str| volume_mounts.iter().any(|mount| mount.container_path == path);
        if !is_taken("/etc/hosts") {
            let config = &self.context.config;
            let (name, domain) = dns::host_name(pod, &config.cluster_domain, &self.context.host_name);
            let node_file = fs::read_to_string("/etc/hosts").await.unwrap_or_else(|_| String::new());
            let file = directory.join("etc-hosts");
            let text = dns::hosts_file(pod, pod_ips, &name, domain.as_deref(), &node_file);
            fs::write(&file, text).await?;
            fs::set_permissions(&file, Permissions::from_mode(0o644)).await?;
            mounts.push(mount("/etc/hosts", file));
        }
        let path = each.container.termination_message_path.as_deref().unwrap_or("/dev/termination-log");
        if !path.is_empty() {
            let own = directory.join("containers").join(&each.container.name);
            fs::create_dir_all(&own).await?;
            let file = own.join(format!("termination-{restart_count}"));
            fs::write(&file, "").await?;
            fs::set_permissions(&file, Permissions::from_mode(0o666)).await?;
            mounts.push(mount(path, file));
        }
        Ok(mounts)
    }

    /// Removes what ended long ago, with its log.
    async fn collect_ended(&self, name: &str, runtime: &PodRuntime) {
        let own = || runtime.containers.iter().filter(|record| record.name == name);
        let ended = own().filter(|record| record.state == State::Exited).skip(KEPT_ENDED);
        // another has started in their place
        let never_started = own().filter(|record| record.state == State::Created);
        for record in ended.chain(never_started) {
            match self.runtime.remove_container(&record.id).await {
                Ok(()) => crate::logs::remove(&record.log_path),
                Err(error) => tracing::debug!(container = record.id, %error, "ended container not removed"),
            }
        }
    }

    /// The flat directory of links that log collectors read:
    /// `/var/log/containers/POD_NAMESPACE_CONTAINER-ID.log`.
    async fn link_log(&self, pod: &Pod, name: &str, id: &str, restart_count: u32) {
        let logs = &self.context.config.pod_logs_dir;
        let Some(parent) = logs.parent() else { return };
        let links = parent.join("containers");
        let target = log_directory(logs, pod).join(log_file(name, restart_count));
        let link = links.join(format!("{}_{}_{name}-{id}.log", pod::name(pod), pod::namespace(pod)));
        let linked = async {
            fs::create_dir_all(&links).await?;
            fs::symlink(target, link).await
        };
        if let Err(error) = linked.await {
            tracing::debug!(%error, "log not linked");
        }
    }
}

/// The part of a volume that is mounted; `None` for all of it.
fn sub_path(wanted: &VolumeMount, environment: &env::Environment) -> Result<Option<String>, String> {
    match (&wanted.sub_path, &wanted.sub_path_expr) {
        (Some(path), _) if !path.is_empty() => Ok(Some(path.clone())),
        (_, Some(expression)) if !expression.is_empty() => {
            let expanded = environment.expand(expression);
            if expanded.contains("$(") {
                return Err(format!("missing value for \"{expression}\""));
            }
            Ok(Some(expanded))
        }
        _ => Ok(None),
    }
}

fn mount(container_path: &str, host_path: PathBuf) -> cri::Mount {
    cri::Mount {
        container_path: container_path.into(),
        host_path: host_path.to_string_lossy().into_owned(),
        ..Default::default()
    }
}

pub(super) fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.into() } else { format!("/{path}") }
}

/// To the millisecond, in the words of all Kubernetes' durations: `1m20s`, `5m0s`, `1.25s`.
fn shown(duration: Duration) -> String {
    let milliseconds = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 1_000_000);
    ferry_api::duration::format(milliseconds.saturating_mul(1_000_000))
}
