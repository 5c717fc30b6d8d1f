//! What claims take of their volumes: in `stats/summary`, and as upstream's `kubelet_volume_stats_*`.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Server;
use super::metrics::Page;
use crate::pod;
use crate::volumes::usage::Usage;

/// The series, and which number each is.
const SERIES: [(&str, &str, fn(&Usage) -> u64); 6] = [
    ("kubelet_volume_stats_available_bytes", "Number of available bytes in the volume", |usage| {
        usage.available_bytes
    }),
    ("kubelet_volume_stats_capacity_bytes", "Capacity in bytes of the volume", |usage| usage.capacity_bytes),
    ("kubelet_volume_stats_inodes", "Maximum number of inodes in the volume", |usage| usage.inodes),
    ("kubelet_volume_stats_inodes_free", "Number of free inodes in the volume", |usage| usage.inodes_free),
    ("kubelet_volume_stats_inodes_used", "Number of used inodes in the volume", |usage| usage.inodes_used),
    ("kubelet_volume_stats_used_bytes", "Number of used bytes in the volume", |usage| usage.used_bytes),
];

impl Server {
    /// Claims of a pod, as its summary lists them.
    pub(super) fn volume_stats(&self, pod: &k8s_openapi::api::core::v1::Pod, now: Timestamp) -> Vec<Value> {
        let claims = self.context.volumes.claims();
        let shown = claims.of(pod::uid(pod)).into_iter().filter_map(|claim| {
            let usage = claims.usage(&claim)?;
            Some(json!({
                "name": claim.volume,
                "pvcRef": {"name": claim.claim, "namespace": pod::namespace(pod)},
                "time": now,
                "capacityBytes": usage.capacity_bytes,
                "availableBytes": usage.available_bytes,
                "usedBytes": usage.used_bytes,
                "inodes": usage.inodes,
                "inodesFree": usage.inodes_free,
                "inodesUsed": usage.inodes_used,
            }))
        });
        shown.collect()
    }

    pub(super) fn volume_metrics(&self, page: &mut Page) {
        let claims = self.context.volumes.claims();
        // one that several pods share is told once
        let mut all = std::collections::BTreeMap::new();
        for pod in self.shown_pods() {
            for claim in claims.of(pod::uid(&pod)) {
                let key = (pod::namespace(&pod).to_owned(), claim.claim.clone());
                if let Some(usage) = claims.usage(&claim) {
                    all.insert(key, usage);
                }
            }
        }
        for (name, help, number) in SERIES {
            page.family(name, help, "gauge");
            for ((namespace, claim), usage) in &all {
                let labels = [("namespace", namespace.as_str()), ("persistentvolumeclaim", claim.as_str())];
                page.sample(name, &labels, number(usage) as f64);
            }
        }
    }
}
