//! What containers used in the past, by the image they ran: the ground that InitialResources estimates on.
//!
//! Samples are handed in; where they come from is not known here. Memory is bounded: the images seen last are
//! kept, and of each its latest samples.

use std::collections::{HashMap, VecDeque};

use jiff::Timestamp;
use parking_lot::Mutex;

const DAY: i64 = 24 * 60 * 60;
const WEEK: i64 = 7 * DAY;
const MONTH: i64 = 30 * DAY;
const MOST_IMAGES: usize = 1000;
/// With one a minute, a good two days of one container.
const MOST_SAMPLES: usize = 3000;

#[derive(Default)]
pub struct UsageHistory {
    containers: Mutex<HashMap<Key, VecDeque<Sample>>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    namespace: String,
    image: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    pub at: Timestamp,
    pub usage: Usage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    pub cpu_milli: u64,
    pub memory_bytes: u64,
}

/// Selects samples of past usage.
#[derive(Debug, Clone, Copy)]
pub struct UsageQuery<'a> {
    pub image: &'a str,
    /// Narrows it to containers of one namespace.
    pub namespace: Option<&'a str>,
    /// Minimum number of samples.
    pub enough: usize,
}

impl UsageHistory {
    pub fn record(&self, namespace: &str, image: &str, sample: Sample) {
        let mut containers = self.containers.lock();
        let key = Key { namespace: namespace.into(), image: image.into() };
        if containers.len() >= MOST_IMAGES && !containers.contains_key(&key) {
            let last = |samples: &VecDeque<Sample>| samples.back().map(|sample| sample.at);
            let oldest =
                containers.iter().min_by_key(|(_, samples)| last(samples)).map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                containers.remove(&oldest);
            }
        }
        let samples = containers.entry(key).or_default();
        if samples.len() >= MOST_SAMPLES {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    /// What `percentile` of a hundred containers of this image would have been content with: those of the same
    /// tag of the last week, or of the last month, or of any tag of the last month. `None` where too little is
    /// known.
    pub fn estimate(&self, past: UsageQuery<'_>, percentile: u8, now: Timestamp) -> Option<Usage> {
        let UsageQuery { image, namespace, enough } = past;
        let containers = self.containers.lock();
        let within = |seconds: i64, any_tag: bool| -> Vec<Usage> {
            let is_past = |key: &Key| {
                namespace.is_none_or(|namespace| key.namespace == namespace)
                    && (key.image == image || any_tag && repository(&key.image) == repository(image))
            };
            let since = now.as_second() - seconds;
            let samples = containers.iter().filter(|(key, _)| is_past(key)).flat_map(|(_, samples)| samples);
            samples.filter(|sample| sample.at.as_second() >= since).map(|sample| sample.usage).collect()
        };
        let usages = [(WEEK, false), (MONTH, false), (MONTH, true)]
            .into_iter()
            .map(|(seconds, any_tag)| within(seconds, any_tag))
            .find(|usages| usages.len() >= enough.max(1))?;
        let of = |read: fn(&Usage) -> u64| nth(usages.iter().map(read).collect(), percentile);
        Some(Usage { cpu_milli: of(|usage| usage.cpu_milli), memory_bytes: of(|usage| usage.memory_bytes) })
    }
}

/// The value that `percentile` percent of all do not exceed.
fn nth(mut values: Vec<u64>, percentile: u8) -> u64 {
    values.sort_unstable();
    let rank = (values.len() * usize::from(percentile.min(100))).div_ceil(100);
    values.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

/// The image without its tag and digest; a port of the registry stays.
fn repository(image: &str) -> &str {
    let image = image.split_once('@').map_or(image, |(image, _)| image);
    match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => image,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(samples: &[(&str, &str, i64, u64)]) -> UsageHistory {
        let history = UsageHistory::default();
        for (namespace, image, age, cpu_milli) in samples {
            let at = Timestamp::from_second(MONTH * 2 - age).expect("a time");
            let usage = Usage { cpu_milli: *cpu_milli, memory_bytes: cpu_milli * 1000 };
            history.record(namespace, image, Sample { at, usage });
        }
        history
    }

    fn past<'a>(image: &'a str, namespace: Option<&'a str>) -> UsageQuery<'a> {
        UsageQuery { image, namespace, enough: 30 }
    }

    fn now() -> Timestamp {
        Timestamp::from_second(MONTH * 2).expect("a time")
    }

    #[test]
    fn the_percentile_of_the_same_image_counts() {
        let samples: Vec<_> = (1..=100).map(|number| ("a", "web:1", 60, number)).collect();
        let history = history(&samples);
        let usage = history.estimate(past("web:1", None), 90, now()).expect("enough is known");
        assert_eq!((usage.cpu_milli, usage.memory_bytes), (90, 90_000));
        assert_eq!(history.estimate(past("web:1", Some("b")), 90, now()), None, "another namespace");
        assert_eq!(history.estimate(past("api:1", None), 90, now()), None, "another image");
    }

    #[test]
    fn usage_of_a_tag_falls_back_to_other_tags_of_the_image() {
        let mut samples: Vec<_> = (0..29).map(|_| ("a", "registry:5000/web:2", 60, 10)).collect();
        samples.extend((0..40).map(|_| ("a", "registry:5000/web:1", WEEK * 2, 50)));
        samples.extend((0..40).map(|_| ("a", "registry:5000/other:1", 60, 999)));
        let history = history(&samples);
        let cpu = |image: &str| history.estimate(past(image, None), 90, now()).map(|usage| usage.cpu_milli);
        assert_eq!(cpu("registry:5000/web:1"), Some(50), "of the month");
        assert_eq!(cpu("registry:5000/web:2"), Some(50), "of all tags");
        assert_eq!(cpu("registry:5000/web"), Some(50));
    }

    #[test]
    fn old_samples_and_old_images_go() {
        let samples: Vec<_> = (0..60).map(|_| ("a", "web:1", MONTH + DAY, 5)).collect();
        assert_eq!(history(&samples).estimate(past("web:1", None), 90, now()), None);
        let history = UsageHistory::default();
        for number in 0..=MOST_IMAGES {
            let at = Timestamp::from_second(number as i64).expect("a time");
            let usage = Usage { cpu_milli: 1, memory_bytes: 1 };
            history.record("a", &format!("image-{number}"), Sample { at, usage });
        }
        let containers = history.containers.lock();
        assert_eq!(containers.len(), MOST_IMAGES);
        assert!(!containers.contains_key(&Key { namespace: "a".into(), image: "image-0".into() }));
    }
}
