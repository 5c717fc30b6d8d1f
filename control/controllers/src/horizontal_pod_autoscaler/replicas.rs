//! How many replicas a measured value asks for. Pods whose metrics are missing, or that are not ready, count so that
//! they never make the change larger.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ferry_api::pod_resources::{self, Count};
use ferry_api::quantity::Quantity;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt;

use crate::pods::{condition, is_deleting, is_ready, phase};

/// What was measured of a pod, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PodMetric {
    pub value: i64,
    pub timestamp: Timestamp,
    pub window: Duration,
}

/// By the pods' names.
pub type PodMetrics = BTreeMap<String, PodMetric>;

/// Changes smaller than these are left alone: parts of the target, below it and above it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerances {
    pub down: f64,
    pub up: f64,
}

impl Tolerances {
    fn contain(&self, ratio: f64) -> bool {
        (1.0 - self.down..=1.0 + self.up).contains(&ratio)
    }
}

/// What is known of the target when a metric is judged.
#[derive(Clone, Copy)]
pub struct Target<'t> {
    pub pods: &'t [Pod],
    /// Of the scale's spec.
    pub current: i32,
    /// Of the scale's status.
    pub observed: i32,
    pub tolerances: Tolerances,
    pub cpu_initialization_period: Duration,
    pub initial_readiness_delay: Duration,
    pub now: Timestamp,
}

/// What a metric asks for, and what it measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposal {
    pub replicas: i32,
    /// In thousandths: the average of a pod, or the whole where the target is a value of the whole.
    pub usage: i64,
    /// The average in percent of what pods request.
    pub utilization: Option<i32>,
}

impl Target<'_> {
    /// For a percentage of what pods request.
    pub fn by_utilization(
        &self,
        resource: &str,
        container: Option<&str>,
        percent: i32,
        metrics: PodMetrics,
    ) -> Result<Proposal, String> {
        let groups = self.group(metrics, Some(resource))?;
        let requests = self.pods.iter().map(|pod| Ok((pod.name_any(), request(pod, container, resource)?)));
        let requests: BTreeMap<String, i64> = requests.collect::<Result<_, String>>()?;
        let ratio = |metrics: &PodMetrics| {
            let known: Vec<(i64, i64)> = metrics
                .iter()
                .filter_map(|(pod, metric)| Some((metric.value, *requests.get(pod)?)))
                .collect();
            let (used, requested) = sums(&known);
            if requested == 0 {
                return Err("no metrics returned matched known pods".to_owned());
            }
            let utilization = i32::try_from(used * 100 / requested).unwrap_or(i32::MAX);
            let average = used / known.len() as i128;
            Ok((f64::from(utilization) / f64::from(percent), (clamp(average), Some(utilization))))
        };
        // on the way down a pod without metrics counts as if it used all of its request, or the target beyond that
        let presumed =
            |pod: &str| requests.get(pod).map_or(0, |request| request * i64::from(percent.max(100)) / 100);
        let (replicas, (usage, utilization)) =
            groups.replicas(self.current, self.tolerances, ratio, presumed)?;
        Ok(Proposal { replicas, usage, utilization })
    }

    /// For an average value of a pod, in thousandths.
    pub fn by_average(
        &self,
        resource: Option<&str>,
        target: i64,
        metrics: PodMetrics,
    ) -> Result<Proposal, String> {
        let groups = self.group(metrics, resource)?;
        let ratio = |metrics: &PodMetrics| {
            let used: i128 = metrics.values().map(|metric| i128::from(metric.value)).sum();
            let average = clamp(used / metrics.len() as i128);
            Ok((average as f64 / target as f64, average))
        };
        let (replicas, usage) = groups.replicas(self.current, self.tolerances, ratio, |_| target)?;
        Ok(Proposal { replicas, usage, utilization: None })
    }

    /// For the value of something else as a whole.
    pub fn by_value(&self, usage: i64, target: i64) -> Result<Proposal, String> {
        let ratio = usage as f64 / target as f64;
        let replicas = if self.current == 0 {
            ratio.ceil() as i32
        } else if self.tolerances.contain(ratio) {
            self.current
        } else {
            self.has_pods()?;
            let ready = self.pods.iter().filter(|pod| phase(pod) == "Running" && is_ready(pod)).count();
            (ratio * ready as f64).ceil() as i32
        };
        Ok(Proposal { replicas, usage, utilization: None })
    }

    /// For the value of something else, divided by the pods there are.
    pub fn by_value_per_pod(&self, usage: i64, target: i64) -> Proposal {
        let (usage, target, observed) = (usage as f64, target as f64, f64::from(self.observed));
        let ratio = usage / (target * observed);
        let within = self.observed > 0 && self.tolerances.contain(ratio);
        let replicas = if within { self.observed } else { (usage / target).ceil() as i32 };
        Proposal { replicas, usage: (usage / observed.max(1.0)).ceil() as i64, utilization: None }
    }

    fn has_pods(&self) -> Result<(), String> {
        match self.pods {
            [] => Err("no pods returned by selector while calculating replica count".into()),
            _ => Ok(()),
        }
    }

    fn group(&self, mut metrics: PodMetrics, resource: Option<&str>) -> Result<Groups, String> {
        self.has_pods()?;
        let mut groups = Groups::default();
        for pod in self.pods {
            let name = pod.name_any();
            match self.group_of(pod, metrics.get(&name), resource) {
                PodGroup::Ready => groups.ready += 1,
                PodGroup::Missing => groups.missing.push(name),
                PodGroup::Ignored => drop(metrics.remove(&name)),
                PodGroup::Unready => {
                    metrics.remove(&name);
                    groups.unready.push(name);
                }
            }
        }
        if metrics.is_empty() {
            return Err("did not receive metrics for targeted pods (pods might be unready)".into());
        }
        groups.metrics = metrics;
        Ok(groups)
    }

    fn group_of(&self, pod: &Pod, metric: Option<&PodMetric>, resource: Option<&str>) -> PodGroup {
        if is_deleting(pod) || phase(pod) == "Failed" {
            return PodGroup::Ignored;
        }
        if phase(pod) == "Pending" {
            return PodGroup::Unready;
        }
        let Some(metric) = metric else { return PodGroup::Missing };
        match resource == Some("cpu") && self.is_starting(pod, metric) {
            true => PodGroup::Unready,
            false => PodGroup::Ready,
        }
    }

    /// A start takes CPU that says nothing of the load.
    fn is_starting(&self, pod: &Pod, metric: &PodMetric) -> bool {
        let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|time| time.0);
        let (Some(ready), Some(started)) = (condition(pod, "Ready"), started) else { return true };
        let changed = ready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let unready = ready.status == "False";
        if later(started, self.cpu_initialization_period) > self.now {
            // a sample that began before the pod was ready has the start in it
            unready || metric.timestamp < later(changed, metric.window)
        } else {
            // it never was ready
            unready && later(started, self.initial_readiness_delay) > changed
        }
    }
}

fn later(time: Timestamp, by: Duration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

enum PodGroup {
    Ready,
    Unready,
    /// It runs, and there are no metrics of it.
    Missing,
    Ignored,
}

#[derive(Default)]
struct Groups {
    metrics: PodMetrics,
    ready: usize,
    unready: Vec<String>,
    missing: Vec<String>,
}

impl Groups {
    /// `ratio` compares metrics with the target; `presumed` is what a pod without metrics counts on the way down.
    fn replicas<U>(
        mut self,
        current: i32,
        tolerances: Tolerances,
        ratio: impl Fn(&PodMetrics) -> Result<(f64, U), String>,
        presumed: impl Fn(&str) -> i64,
    ) -> Result<(i32, U), String> {
        let (first, usage) = ratio(&self.metrics)?;
        let up_with_unready = !self.unready.is_empty() && first > 1.0;
        if !up_with_unready && self.missing.is_empty() {
            let replicas = match tolerances.contain(first) {
                true => current,
                false => (first * self.ready as f64).ceil() as i32,
            };
            return Ok((replicas, usage));
        }
        let unmeasured =
            |value| PodMetric { value, timestamp: Timestamp::UNIX_EPOCH, window: Duration::ZERO };
        if first != 1.0 {
            for pod in std::mem::take(&mut self.missing) {
                let value = if first < 1.0 { presumed(&pod) } else { 0 };
                self.metrics.insert(pod, unmeasured(value));
            }
        }
        if up_with_unready {
            self.metrics.extend(self.unready.iter().map(|pod| (pod.clone(), unmeasured(0))));
        }
        let (second, _) = ratio(&self.metrics)?;
        let turned = (first < 1.0 && second > 1.0) || (first > 1.0 && second < 1.0);
        if tolerances.contain(second) || turned {
            return Ok((current, usage));
        }
        let replicas = (second * self.metrics.len() as f64).ceil() as i32;
        // more or fewer pods than before were counted, which must not turn the direction either
        let turned = (second < 1.0 && replicas > current) || (second > 1.0 && replicas < current);
        Ok((if turned { current } else { replicas }, usage))
    }
}

fn sums(pairs: &[(i64, i64)]) -> (i128, i128) {
    pairs.iter().fold((0, 0), |(a, b), (x, y)| (a + i128::from(*x), b + i128::from(*y)))
}

fn clamp(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

/// What a pod, or one container of it, requests, in thousandths.
fn request(pod: &Pod, container: Option<&str>, resource: &str) -> Result<i64, String> {
    let name = pod.name_any();
    let spec = pod.spec.as_ref();
    let own = spec.and_then(|spec| spec.resources.as_ref()).and_then(|own| own.requests.as_ref());
    if container.is_none() && own.is_some_and(|own| own.keys().any(|name| is_pod_level(name))) {
        let requests = pod_resources::requests(pod, Count::Asked);
        let request = requests.get(resource).map(Quantity::milli);
        return request.ok_or_else(|| format!("missing pod-level request for {resource} in Pod {name}"));
    }
    let is_sidecar = |init: &&Container| init.restart_policy.as_deref() == Some("Always");
    let containers = spec.into_iter().flat_map(|spec| {
        spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(is_sidecar))
    });
    let mut total = 0_i64;
    let mut seen = BTreeSet::new();
    for one in containers.filter(|one| container.is_none_or(|wanted| wanted == one.name)) {
        let requests = one.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let request = requests.and_then(|requests| requests.get(resource));
        let request = request.and_then(|request| Quantity::parse(&request.0).ok()).ok_or_else(|| {
            format!("missing request for {resource} in container {} of Pod {name}", one.name)
        })?;
        total = total.saturating_add(request.milli());
        seen.insert(one.name.as_str());
    }
    match container {
        Some(wanted) if !seen.contains(wanted) => Err(format!("container {wanted} not found in Pod {name}")),
        _ => Ok(total),
    }
}

fn is_pod_level(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory") || resource.starts_with("hugepages-")
}

#[cfg(test)]
#[path = "replicas_tests.rs"]
mod tests;
