//! What the runtime is told to make a container.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod};

use super::labels;
use super::security::{self, ImageUser};
use crate::cri;
use crate::env::Environment;
use crate::pod::{self, ContainerOf};
use crate::resources::{Side, container_amounts, oom_score_adjustment};
use ferry_linux::cgroup;

pub struct Facts<'a> {
    pub pod: &'a Pod,
    pub each: &'a ContainerOf<'a>,
    pub restart_count: u32,
    /// What the pull made of the image's name.
    pub image_ref: &'a str,
    pub image_user: &'a ImageUser,
    pub environment: &'a Environment,
    pub mounts: Vec<cri::Mount>,
    /// Whose process namespace an ephemeral container joins.
    pub target_id: Option<String>,
    pub root_dir: &'a Path,
    pub machine_memory: i64,
    pub cpuset: Option<String>,
    pub seccomp_default: bool,
    pub cfs_quota: bool,
}

pub fn container_config(facts: Facts<'_>) -> Result<cri::ContainerConfig, security::Error> {
    let (pod, container) = (facts.pod, &facts.each.container);
    let expand = |list: &Option<Vec<String>>| {
        list.iter().flatten().map(|text| facts.environment.expand(text)).collect::<Vec<_>>()
    };
    let mut resources = resources(pod, container, facts.machine_memory, facts.cfs_quota);
    resources.cpuset_cpus = facts.cpuset.unwrap_or_default();
    Ok(cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: container.name.clone(), attempt: facts.restart_count }),
        image: Some(cri::ImageSpec {
            image: facts.image_ref.into(),
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..Default::default()
        }),
        command: expand(&container.command),
        args: expand(&container.args),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: facts
            .environment
            .iter()
            .map(|(key, value)| cri::KeyValue { key: key.into(), value: value.into() })
            .collect(),
        mounts: facts.mounts,
        labels: labels::for_container(pod, &container.name),
        annotations: labels::container_annotations(pod, facts.each, facts.restart_count),
        log_path: log_file(&container.name, facts.restart_count).to_string_lossy().into_owned(),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(resources),
            security_context: Some(security::container(
                pod,
                facts.each,
                facts.image_user,
                facts.target_id,
                facts.root_dir,
                facts.seccomp_default,
            )?),
        }),
        ..Default::default()
    })
}

/// `NAMESPACE_NAME_UID`, where a pod's logs are.
pub fn log_directory(logs: &Path, pod: &Pod) -> PathBuf {
    logs.join(format!("{}_{}_{}", pod::namespace(pod), pod::name(pod), pod::uid(pod)))
}

/// A container's log within its pod's directory.
pub fn log_file(container: &str, restart_count: u32) -> PathBuf {
    Path::new(container).join(format!("{restart_count}.log"))
}

pub fn resources(
    pod: &Pod,
    container: &Container,
    machine_memory: i64,
    cfs_quota: bool,
) -> cri::LinuxContainerResources {
    let requests = container_amounts(container.resources.as_ref(), Side::Requests);
    let limits = container_amounts(container.resources.as_ref(), Side::Limits);
    let milli = |amounts: &std::collections::BTreeMap<String, i64>| {
        amounts.get("cpu").copied().unwrap_or(0).max(0) as u64
    };
    let mut resources = cri::LinuxContainerResources {
        cpu_period: cgroup::CPU_PERIOD_MICROSECONDS as i64,
        cpu_shares: cgroup::shares_for_milli_cpu(milli(&requests)) as i64,
        memory_limit_in_bytes: limits.get("memory").copied().unwrap_or(0),
        oom_score_adj: oom_score_adjustment(pod, container, machine_memory),
        ..Default::default()
    };
    if milli(&limits) > 0 && cfs_quota {
        resources.cpu_quota = cgroup::quota_for_milli_cpu(milli(&limits));
    }
    resources
}

/// How mounts made on one side reach the other.
pub fn propagation(mode: Option<&str>) -> cri::MountPropagation {
    match mode {
        Some("HostToContainer") => cri::MountPropagation::PropagationHostToContainer,
        Some("Bidirectional") => cri::MountPropagation::PropagationBidirectional,
        _ => cri::MountPropagation::PropagationPrivate,
    }
}
