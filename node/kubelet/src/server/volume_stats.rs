//! What claims take of their volumes: in `stats/summary`, and as upstream's `kubelet_volume_stats_*`.

use ferry_metrics::{Description, Page};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Server;
use crate::pod;
use crate::volumes::usage::{MountedClaim, Usage};

const OF_CLAIM: &[&str] = &["namespace", "persistentvolumeclaim"];

const fn of_claim(name: &'static str, help: &'static str) -> Description {
    Description::gauge(name, help, OF_CLAIM)
}

type Number = fn(&Usage) -> u64;

/// The series, and which number each is.
static SERIES: [(Description, Number); 6] = [
    (
        of_claim("kubelet_volume_stats_available_bytes", "Bytes that can still be written to the volume"),
        |usage| usage.available_bytes,
    ),
    (of_claim("kubelet_volume_stats_capacity_bytes", "Bytes that the volume holds at most"), |usage| {
        usage.capacity_bytes
    }),
    (of_claim("kubelet_volume_stats_inodes", "Inodes that the volume holds at most"), |usage| usage.inodes),
    (of_claim("kubelet_volume_stats_inodes_free", "Inodes that can still be made in the volume"), |usage| {
        usage.inodes_free
    }),
    (of_claim("kubelet_volume_stats_inodes_used", "Inodes in the volume"), |usage| usage.inodes_used),
    (of_claim("kubelet_volume_stats_used_bytes", "Bytes that the volume's files take"), |usage| {
        usage.used_bytes
    }),
];

impl Server {
    /// Claims of a pod, as its summary lists them.
    pub(super) fn volume_stats(&self, pod: &k8s_openapi::api::core::v1::Pod, now: Timestamp) -> Vec<Value> {
        let claims = self.context.volumes.claims();
        let shown = claims.of(pod::uid(pod)).into_iter().filter_map(|claim| {
            let usage = self.usage_of(&claim)?;
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

    /// Asks drivers about their volumes, where that was not done a moment ago.
    pub(super) async fn measure_volumes(&self) {
        let volumes = &self.context.volumes;
        volumes.csi().measure(volumes.claims().of_drivers()).await;
    }

    fn usage_of(&self, claim: &MountedClaim) -> Option<Usage> {
        match &claim.asked {
            Some(asked) => self.context.volumes.csi().usage(asked),
            None => self.context.volumes.claims().usage(claim),
        }
    }

    pub(super) fn volume_metrics(&self, page: &mut Page) {
        let claims = self.context.volumes.claims();
        // one that several pods share is told once
        let mut all = std::collections::BTreeMap::new();
        for pod in self.shown_pods() {
            for claim in claims.of(pod::uid(&pod)) {
                let key = (pod::namespace(&pod).to_owned(), claim.claim.clone());
                if let Some(usage) = self.usage_of(&claim) {
                    all.insert(key, usage);
                }
            }
        }
        for (description, number) in &SERIES {
            page.announce(description);
            for ((namespace, claim), usage) in &all {
                page.sample(description, &[namespace, claim], number(usage) as f64);
            }
        }
    }
}
