//! What volumes hold, as their drivers tell it: asked when somebody wants to know, and not more often than once a
//! minute.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ferry_plugins_api::csi;
use ferry_plugins_api::csi::volume_usage::Unit;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::record::Record;
use super::{Csi, Problem};
use crate::volumes::usage::Usage;

/// How old what a driver has said may be.
const FRESH: Duration = Duration::from_secs(60);
/// Whoever asks for statistics waits no longer than this for drivers.
const PATIENCE: Duration = Duration::from_secs(2);

/// By the path that a volume is published at.
#[derive(Default)]
pub(super) struct Measured(Mutex<HashMap<String, (Instant, Option<Usage>)>>);

/// A volume that its driver is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub record: Record,
    pub is_block: bool,
    pub path: String,
}

impl Csi {
    /// What a driver has said of a volume, if it was asked already.
    pub fn usage(&self, volume: &Asked) -> Option<Usage> {
        self.measured.0.lock().get(&volume.path).and_then(|(_, usage)| *usage)
    }

    /// Asks about those volumes that were not asked about for a while. Others are forgotten.
    pub async fn measure(self: &Arc<Self>, volumes: Vec<Asked>) {
        let now = Instant::now();
        let due: Vec<Asked> = {
            let mut measured = self.measured.0.lock();
            measured.retain(|path, _| volumes.iter().any(|volume| volume.path == *path));
            let is_due = |volume: &Asked| {
                measured.get(&volume.path).is_none_or(|(at, _)| now.duration_since(*at) >= FRESH)
            };
            let due: Vec<Asked> = volumes.into_iter().filter(is_due).collect();
            for volume in &due {
                measured.entry(volume.path.clone()).or_insert((now, None)).0 = now;
            }
            due
        };
        let asked = due.into_iter().map(|volume| {
            let csi = self.clone();
            self.work.spawn(async move {
                let usage = csi.ask(&volume).await.unwrap_or_else(|problem| {
                    tracing::debug!(volume = volume.record.name, %problem, "volume not measured");
                    None
                });
                if let Some(entry) = csi.measured.0.lock().get_mut(&volume.path) {
                    entry.1 = usage;
                }
            })
        });
        let all = futures::future::join_all(asked.collect::<Vec<_>>());
        if tokio::time::timeout(PATIENCE, all).await.is_err() {
            tracing::debug!("a driver takes long to measure its volumes");
        }
    }

    async fn ask(&self, volume: &Asked) -> Result<Option<Usage>, Problem> {
        let driver = self.drivers.get(&volume.record.driver_name)?;
        let capabilities = driver.capabilities().await?;
        if !capabilities.stats {
            return Ok(None);
        }
        let staging = self.paths.staging(&volume.record, volume.is_block);
        let staging = capabilities.stage.then(|| staging.to_string_lossy().into_owned());
        let answer = driver.stats(csi::NodeGetVolumeStatsRequest {
            volume_id: volume.record.volume_handle.clone(),
            volume_path: volume.path.clone(),
            staging_target_path: staging.unwrap_or_default(),
        });
        Ok(Some(usage(&answer.await?)))
    }
}

fn usage(answer: &csi::NodeGetVolumeStatsResponse) -> Usage {
    let number = |value: i64| u64::try_from(value).unwrap_or(0);
    let mut usage = Usage::default();
    for each in &answer.usage {
        let (available, total, used) = (number(each.available), number(each.total), number(each.used));
        match Unit::try_from(each.unit) {
            Ok(Unit::Bytes) => {
                (usage.available_bytes, usage.capacity_bytes, usage.used_bytes) = (available, total, used);
            }
            Ok(Unit::Inodes) => {
                (usage.inodes_free, usage.inodes, usage.inodes_used) = (available, total, used);
            }
            Ok(Unit::Unknown) | Err(_) => {}
        }
    }
    usage
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drivers_numbers_are_bytes_and_inodes() {
        let each = |unit: Unit, available, total, used| csi::VolumeUsage {
            available,
            total,
            used,
            unit: unit as i32,
        };
        let answer = csi::NodeGetVolumeStatsResponse {
            usage: vec![
                each(Unit::Inodes, 3, 4, 1),
                each(Unit::Bytes, 10, 30, 20),
                each(Unit::Unknown, 9, 9, 9),
            ],
            volume_condition: None,
        };
        let expected = Usage {
            available_bytes: 10,
            capacity_bytes: 30,
            used_bytes: 20,
            inodes: 4,
            inodes_free: 3,
            inodes_used: 1,
        };
        assert_eq!(usage(&answer), expected);
        let odd = csi::NodeGetVolumeStatsResponse {
            usage: vec![each(Unit::Bytes, -1, 5, 0)],
            volume_condition: None,
        };
        assert_eq!(usage(&odd).available_bytes, 0);
    }
}
