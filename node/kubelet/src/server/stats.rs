//! `stats/summary`: what the node and its pods use.

use std::collections::HashMap;

use http::Response;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{Body, Server, json as json_response};
use crate::consumption::{self, ContainerUsage};
use crate::cri;
use crate::pod;
use ferry_linux::cgroup::{Path, Usage};
use ferry_linux::disk;

/// Counters become rates between two looks, kept per subject. Nothing is sampled while nobody asks: the first look counts from
/// the subject's start, when its counter was zero.
#[derive(Default)]
pub(super) struct Sampler {
    last: Mutex<HashMap<String, Sample>>,
}

#[derive(Clone, Copy)]
struct Sample {
    at: Timestamp,
    cpu_nanoseconds: u64,
    rate: Option<u64>,
}

/// Looks closer together than this would measure noise.
const LEAST_INTERVAL: i64 = 1;
/// Subjects not seen for this long are forgotten.
const FORGET_AFTER: i64 = 600;

impl Sampler {
    /// Nano-cores used since the last look, or since `start` when this is the first.
    fn rate(
        &self,
        subject: &str,
        start: Option<Timestamp>,
        cpu_nanoseconds: u64,
        at: Timestamp,
    ) -> Option<u64> {
        let mut last = self.last.lock();
        let at_start = || start.map(|at| Sample { at, cpu_nanoseconds: 0, rate: None });
        let before = last.get(subject).copied().or_else(at_start);
        let (rate, keep) = match before {
            Some(before) if at.as_second() - before.at.as_second() < LEAST_INTERVAL => {
                (before.rate, Some(before))
            }
            Some(before) => {
                let seconds = at.duration_since(before.at).as_secs_f64();
                let used = cpu_nanoseconds.saturating_sub(before.cpu_nanoseconds) as f64;
                (Some((used / seconds) as u64), None)
            }
            None => (None, None),
        };
        last.insert(subject.into(), keep.unwrap_or(Sample { at, cpu_nanoseconds, rate }));
        if last.len() > 2048 {
            last.retain(|_, sample| at.as_second() - sample.at.as_second() < FORGET_AFTER);
        }
        rate
    }
}

impl Server {
    pub(super) async fn container_usage(&self) -> Result<Vec<ContainerUsage>, cri::Error> {
        consumption::of_containers(&self.context.runtime).await
    }

    pub(super) async fn summary(&self) -> Response<Body> {
        let now = Timestamp::now();
        let booted = boot_time(now);
        let containers = self.container_usage().await.unwrap_or_else(|error| {
            tracing::debug!(%error, "container statistics");
            vec![]
        });
        self.measure_volumes().await;
        let pods: Vec<Value> =
            self.shown_pods().iter().map(|pod| self.pod_stats(pod, &containers, now)).collect();
        let root = &self.context.config.root_dir;
        let image_root = self.image_directory().await;
        let node_fs = file_system(root, now);
        let image_fs = image_root.as_deref().map_or_else(|| node_fs.clone(), |path| file_system(path, now));
        let node = json!({
            "nodeName": self.context.config.node_name,
            "startTime": booted,
            "cpu": self.node_usage().map(|usage| self.cpu("node", booted, usage.cpu_nanoseconds, now)),
            "memory": self.node_usage().map(|usage| {
                let available = (self.context.machine_memory as u64).saturating_sub(usage.working_set_bytes);
                let mut memory = memory(&usage, now);
                memory["availableBytes"] = json!(available);
                memory
            }),
            "fs": node_fs,
            "runtime": {"imageFs": image_fs, "containerFs": image_fs},
            "rlimit": crate::node::machine::process_ids()
                .map(|(running, max)| json!({"time": now, "maxpid": max, "curproc": running})),
        });
        json_response(&json!({"node": node, "pods": pods}))
    }

    pub(super) fn node_usage(&self) -> Option<Usage> {
        self.context.cgroups.hierarchy()?.usage(&Path::new("/")).ok()
    }

    async fn image_directory(&self) -> Option<std::path::PathBuf> {
        let info = self.context.runtime.image_fs_info().await.ok()?;
        let mountpoint = info.image_filesystems.into_iter().next()?.fs_id?.mountpoint;
        Some(mountpoint.into())
    }

    fn pod_stats(&self, pod: &Pod, all: &[ContainerUsage], now: Timestamp) -> Value {
        let own: Vec<&ContainerUsage> = all.iter().filter(|each| each.pod_uid == pod::uid(pod)).collect();
        let containers: Vec<Value> = own
            .iter()
            .map(|each| {
                let started = pod::container_status(pod::status(pod), &each.name)
                    .and_then(|status| status.state.as_ref()?.running.as_ref()?.started_at.clone());
                json!({
                    "name": each.name,
                    "startTime": started,
                    "cpu": self.cpu(&each.id, started.map(|started| started.0), each.cpu_nanoseconds, now),
                    "memory": {
                        "time": now,
                        "usageBytes": each.usage_bytes,
                        "workingSetBytes": each.working_set_bytes,
                        "rssBytes": each.rss_bytes,
                        "pageFaults": each.page_faults,
                        "majorPageFaults": each.major_page_faults,
                    },
                    "rootfs": {"time": now, "usedBytes": each.writable_bytes, "inodesUsed": each.writable_inodes},
                    "logs": {"time": now, "usedBytes": consumption::logs(&self.context, pod, &each.name)},
                })
            })
            .collect();
        let usage = self.context.cgroups.usage(pod);
        let (_, inodes) = disk::usage(&self.context.pod_dir(pod::uid(pod)));
        let bytes = consumption::disk(&self.context, pod, all);
        let started = pod::status(pod).start_time.as_ref().map(|started| started.0);
        json!({
            "podRef": {"name": pod::name(pod), "namespace": pod::namespace(pod), "uid": pod::uid(pod)},
            "startTime": pod::status(pod).start_time,
            "containers": containers,
            "cpu": usage.map(|usage| self.cpu(pod::uid(pod), started, usage.cpu_nanoseconds, now)),
            "memory": usage.map(|usage| memory(&usage, now)),
            "process_stats": usage.map(|usage| json!({"process_count": usage.pids})),
            "volume": self.volume_stats(pod, now),
            "ephemeral-storage": {"time": now, "usedBytes": bytes, "inodesUsed": inodes},
        })
    }

    fn cpu(&self, subject: &str, start: Option<Timestamp>, nanoseconds: u64, now: Timestamp) -> Value {
        json!({
            "time": now,
            "usageNanoCores": self.sampler.rate(subject, start, nanoseconds, now),
            "usageCoreNanoSeconds": nanoseconds,
        })
    }
}

fn memory(usage: &Usage, now: Timestamp) -> Value {
    json!({
        "time": now,
        "usageBytes": usage.memory_bytes,
        "workingSetBytes": usage.working_set_bytes,
        "rssBytes": usage.rss_bytes,
        "pageFaults": usage.page_faults,
        "majorPageFaults": usage.major_page_faults,
    })
}

fn file_system(path: &std::path::Path, now: Timestamp) -> Value {
    match disk::space(path) {
        Ok(space) => json!({
            "time": now,
            "availableBytes": space.available_bytes,
            "capacityBytes": space.capacity_bytes,
            "usedBytes": space.capacity_bytes.saturating_sub(space.available_bytes),
            "inodes": space.inodes,
            "inodesFree": space.inodes_free,
            "inodesUsed": space.inodes.saturating_sub(space.inodes_free),
        }),
        Err(_) => Value::Null,
    }
}

fn boot_time(now: Timestamp) -> Option<Timestamp> {
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    let seconds: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    Timestamp::from_second(now.as_second() - seconds as i64).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_become_rates_between_looks() {
        let sampler = Sampler::default();
        let at = |second| Timestamp::from_second(second).expect("a time");
        let rate = |cpu_nanoseconds, second| sampler.rate("a", None, cpu_nanoseconds, at(second));
        assert_eq!(rate(1_000_000_000, 100), None);
        assert_eq!(rate(2_000_000_000, 110), Some(100_000_000));
        assert_eq!(rate(2_000_000_000, 110), Some(100_000_000), "too soon: as before");
        assert_eq!(rate(1, 120), Some(0), "a counter that went back counts nothing");
    }

    #[test]
    fn the_first_look_counts_from_the_start() {
        let sampler = Sampler::default();
        let at = |second| Timestamp::from_second(second).expect("a time");
        let rate = |cpu_nanoseconds, second| sampler.rate("a", Some(at(100)), cpu_nanoseconds, at(second));
        assert_eq!(rate(1_000_000_000, 100), None, "it has only just begun");
        assert_eq!(rate(2_000_000_000, 104), Some(500_000_000));
        assert_eq!(rate(3_000_000_000, 114), Some(100_000_000), "from then on between looks");
    }
}
