//! What the kubelet asks of a Pod object, in one place.

use std::borrow::Cow;
use std::time::Duration;

use ferry_client::NamespacedName;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, EphemeralContainer, Pod, PodSpec, PodStatus};
use sha2::{Digest, Sha256};

/// Where a pod came from; "api" unless it is a static pod.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// The hash of a static pod's manifest; its uid too.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// Marks the API's copy of a static pod, with the manifest's hash.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";

const DEFAULT_GRACE: i64 = 30;
/// From here on a pod is one of the cluster's own parts.
const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ContainerKind {
    /// Runs to completion before the next.
    Init,
    /// An init container with restart policy Always: runs beside the others.
    Sidecar,
    Regular,
    Ephemeral,
}

impl ContainerKind {
    /// As metrics name it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Init | Self::Sidecar => "init_container",
            Self::Regular => "container",
            Self::Ephemeral => "ephemeral_container",
        }
    }
}

/// A container of a pod, of whichever list.
#[derive(Clone, Debug)]
pub struct ContainerOf<'a> {
    pub kind: ContainerKind,
    /// The pod's own, but for an ephemeral one, which has a type of its own there.
    pub container: Cow<'a, Container>,
    /// For an ephemeral container: whose processes it shares.
    pub target: Option<&'a str>,
}

pub fn key(pod: &Pod) -> NamespacedName {
    NamespacedName::of(pod)
}

pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or("default")
}

pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// The identity under which a pod runs. The mirror of a static pod has a uid
/// of its own; the manifest's hash is what its containers carry.
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, CONFIG_SOURCE).is_some_and(|source| source != "api")
}

pub fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, CONFIG_MIRROR).is_some()
}

pub fn is_critical(pod: &Pod) -> bool {
    let priority = spec(pod).priority.unwrap_or(0);
    is_static(pod) || is_mirror(pod) || priority >= SYSTEM_CRITICAL_PRIORITY
}

/// A pod without a spec cannot come from the API; nothing runs in it.
pub fn spec(pod: &Pod) -> &PodSpec {
    static EMPTY: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
    pod.spec.as_ref().unwrap_or(&EMPTY)
}

pub fn status(pod: &Pod) -> &PodStatus {
    static EMPTY: std::sync::LazyLock<PodStatus> = std::sync::LazyLock::new(PodStatus::default);
    pod.status.as_ref().unwrap_or(&EMPTY)
}

pub fn is_terminal(phase: Option<&str>) -> bool {
    matches!(phase, Some("Succeeded" | "Failed"))
}

pub fn uses_host_network(pod: &Pod) -> bool {
    spec(pod).host_network == Some(true)
}

pub fn restart_policy(pod: &Pod) -> &str {
    spec(pod).restart_policy.as_deref().unwrap_or("Always")
}

/// How long a deleted pod may take to stop.
pub fn grace_period(pod: &Pod) -> Duration {
    let seconds = pod.metadata.deletion_grace_period_seconds.or(spec(pod).termination_grace_period_seconds);
    Duration::from_secs(seconds.unwrap_or(DEFAULT_GRACE).max(0) as u64)
}

pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Every container of a pod in starting order.
pub fn containers(pod: &Pod) -> Vec<ContainerOf<'_>> {
    let spec = spec(pod);
    let init = spec.init_containers.iter().flatten().map(|container| ContainerOf {
        kind: if is_sidecar(container) { ContainerKind::Sidecar } else { ContainerKind::Init },
        container: Cow::Borrowed(container),
        target: None,
    });
    let regular = spec.containers.iter().map(|container| ContainerOf {
        kind: ContainerKind::Regular,
        container: Cow::Borrowed(container),
        target: None,
    });
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|container| ContainerOf {
        kind: ContainerKind::Ephemeral,
        container: Cow::Owned(plain(container)),
        target: container.target_container_name.as_deref(),
    });
    init.chain(regular).chain(ephemeral).collect()
}

pub fn find_container<'a>(pod: &'a Pod, name: &str) -> Option<ContainerOf<'a>> {
    containers(pod).into_iter().find(|each| each.container.name == name)
}

/// An ephemeral container has the fields of any other, under a type of its own.
fn plain(ephemeral: &EphemeralContainer) -> Container {
    let ephemeral = ephemeral.clone();
    Container {
        args: ephemeral.args,
        command: ephemeral.command,
        env: ephemeral.env,
        env_from: ephemeral.env_from,
        image: ephemeral.image,
        image_pull_policy: ephemeral.image_pull_policy,
        lifecycle: ephemeral.lifecycle,
        liveness_probe: ephemeral.liveness_probe,
        name: ephemeral.name,
        ports: ephemeral.ports,
        readiness_probe: ephemeral.readiness_probe,
        resize_policy: ephemeral.resize_policy,
        resources: ephemeral.resources,
        restart_policy: ephemeral.restart_policy,
        restart_policy_rules: ephemeral.restart_policy_rules,
        security_context: ephemeral.security_context,
        startup_probe: ephemeral.startup_probe,
        stdin: ephemeral.stdin,
        stdin_once: ephemeral.stdin_once,
        termination_message_path: ephemeral.termination_message_path,
        termination_message_policy: ephemeral.termination_message_policy,
        tty: ephemeral.tty,
        volume_devices: ephemeral.volume_devices,
        volume_mounts: ephemeral.volume_mounts,
        working_dir: ephemeral.working_dir,
    }
}

/// Changes when the container must be started anew. Only what needs a restart
/// counts: resources can change in place, and the image is what users edit.
pub fn container_hash(container: &Container) -> String {
    let identity = format!("{}\u{0}{}", container.name, container.image.as_deref().unwrap_or_default());
    short_hash(identity.as_bytes())
}

/// Sixteen hexadecimal digits of a digest.
pub fn short_hash(data: &[u8]) -> String {
    Sha256::digest(data).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

pub fn find_status<'a>(
    statuses: Option<&'a Vec<ContainerStatus>>,
    name: &str,
) -> Option<&'a ContainerStatus> {
    statuses?.iter().find(|status| status.name == name)
}

/// The status of a container in a pod's last known status, of whichever list.
pub fn container_status<'a>(status: &'a PodStatus, name: &str) -> Option<&'a ContainerStatus> {
    find_status(status.container_statuses.as_ref(), name)
        .or_else(|| find_status(status.init_container_statuses.as_ref(), name))
        .or_else(|| find_status(status.ephemeral_container_statuses.as_ref(), name))
}
