//! What pods and their containers take of the node's memory and disk.

use ferry_linux::disk;
use k8s_openapi::api::core::v1::Pod;

use crate::context::Context;
use crate::cri;
use crate::pod;
use crate::runtime::container_config::log_directory;
use crate::runtime::labels;

/// Usage of one container, from the runtime.
#[derive(Clone, Debug, Default)]
pub struct ContainerUsage {
    pub pod_uid: String,
    pub name: String,
    pub id: String,
    pub cpu_nanoseconds: u64,
    pub usage_bytes: u64,
    pub working_set_bytes: u64,
    pub rss_bytes: u64,
    pub page_faults: u64,
    pub major_page_faults: u64,
    /// What it has written over its image.
    pub writable_bytes: u64,
    pub writable_inodes: u64,
}

pub async fn of_containers(runtime: &cri::Client) -> Result<Vec<ContainerUsage>, cri::Error> {
    Ok(runtime.list_container_stats().await?.into_iter().filter_map(usage_of).collect())
}

fn usage_of(stats: cri::ContainerStats) -> Option<ContainerUsage> {
    let attributes = stats.attributes?;
    let number = |value: Option<cri::UInt64Value>| value.map_or(0, |value| value.value);
    let cpu = stats.cpu.unwrap_or_default();
    let memory = stats.memory.unwrap_or_default();
    let writable = stats.writable_layer.unwrap_or_default();
    Some(ContainerUsage {
        pod_uid: attributes.labels.get(labels::POD_UID)?.clone(),
        name: attributes.labels.get(labels::CONTAINER_NAME)?.clone(),
        id: attributes.id,
        cpu_nanoseconds: number(cpu.usage_core_nano_seconds),
        usage_bytes: number(memory.usage_bytes),
        working_set_bytes: number(memory.working_set_bytes),
        rss_bytes: number(memory.rss_bytes),
        page_faults: number(memory.page_faults),
        major_page_faults: number(memory.major_page_faults),
        writable_bytes: number(writable.used_bytes),
        writable_inodes: number(writable.inodes_used),
    })
}

/// Bytes of a container's logs, rotated ones too.
pub fn logs(context: &Context, pod: &Pod, container: &str) -> u64 {
    disk::usage(&log_directory(&context.config.pod_logs_dir, pod).join(container)).0
}

/// Bytes a container takes of the disk: what it wrote over its image, and its logs.
pub fn container_disk(context: &Context, pod: &Pod, container: &str, all: &[ContainerUsage]) -> u64 {
    let own = all.iter().filter(|each| each.pod_uid == pod::uid(pod) && each.name == container);
    own.map(|each| each.writable_bytes).sum::<u64>() + logs(context, pod, container)
}

/// Bytes a pod takes of the disk: its containers, and its volumes on the node.
/// Those in memory are not on its file system.
pub fn disk(context: &Context, pod: &Pod, all: &[ContainerUsage]) -> u64 {
    let own = all.iter().filter(|each| each.pod_uid == pod::uid(pod));
    own.map(|each| each.writable_bytes).sum::<u64>()
        + disk::usage(&context.pod_dir(pod::uid(pod))).0
        + disk::usage(&log_directory(&context.config.pod_logs_dir, pod)).0
}
