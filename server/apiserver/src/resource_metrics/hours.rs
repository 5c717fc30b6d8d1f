//! The usage of all nodes in the last hours, sampled once a minute, for the plots of the web page.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ferry_api::GroupResource;
use futures::StreamExt;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::AT_ONCE;
use crate::api::Api;

const INTERVAL: Duration = Duration::from_secs(60);
/// A day: 46 KB.
const MAX_SAMPLES: usize = 24 * 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sample {
    /// Milliseconds since 1970.
    pub time: i64,
    pub nano_cores: u64,
    pub memory_bytes: u64,
    /// How many nodes told.
    pub nodes: usize,
}

/// The newest samples, oldest first.
#[derive(Default)]
pub struct Hours {
    samples: Mutex<VecDeque<Sample>>,
}

impl Hours {
    pub fn samples(&self) -> Vec<Sample> {
        self.samples.lock().iter().copied().collect()
    }

    fn add(&self, sample: Sample) {
        let mut samples = self.samples.lock();
        if samples.len() == MAX_SAMPLES {
            samples.pop_front();
        }
        samples.push_back(sample);
    }
}

/// Looks once a minute, until `stop`. A server that has just started has nothing to tell.
pub async fn follow(api: Arc<Api>, stop: CancellationToken) {
    // Looking is no part of any story.
    let silent = ferry_trace::span("usage").unsampled();
    while stop.run_until_cancelled(tokio::time::sleep(INTERVAL)).await.is_some() {
        if let Some(sample) = silent.in_scope(sample(&api)).await {
            api.hours.add(sample);
        }
    }
}

/// `None` if no node reports its usage.
async fn sample(api: &Api) -> Option<Sample> {
    let nodes = api.registry.resource(&GroupResource::new("", "nodes"))?;
    let names: Vec<String> = nodes.cache.snapshot().0.keys().map(ToString::to_string).collect();
    let used = futures::stream::iter(names)
        .map(|node| async move { api.kubelets.window(api, &node).await?.node() })
        .buffer_unordered(AT_ONCE)
        .filter_map(std::future::ready)
        .collect::<Vec<_>>()
        .await;
    (!used.is_empty()).then(|| Sample {
        time: Timestamp::now().as_millisecond(),
        nano_cores: used.iter().map(|usage| usage.nano_cores).sum(),
        memory_bytes: used.iter().map(|usage| usage.memory_bytes).sum(),
        nodes: used.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_kept_and_no_more() {
        let hours = Hours::default();
        for time in 0..MAX_SAMPLES as i64 + 10 {
            hours.add(Sample { time, nano_cores: 1, memory_bytes: 2, nodes: 3 });
        }
        let kept = hours.samples();
        assert_eq!((kept.len(), kept[0].time), (MAX_SAMPLES, 10));
        assert!(kept.is_sorted_by_key(|sample| sample.time));
    }
}
