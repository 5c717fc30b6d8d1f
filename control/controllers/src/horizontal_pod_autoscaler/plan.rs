//! What an autoscaler does about its target, from what its metrics propose.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerSpec, MetricStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::behavior::{Bounds, History};
use super::replicas::Tolerances;
use ferry_api::quantity::Quantity;

pub const GOT_SCALE: (&str, &str) =
    ("SucceededGetScale", "the HPA controller was able to get the target's current scale");

/// What one metric proposes.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricProposal {
    pub replicas: i32,
    /// As the reason for a change names it: `cpu resource utilization (percentage of request)`.
    pub name: String,
    pub status: MetricStatus,
}

/// Why a metric proposes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricError {
    /// `FailedGetResourceMetric`
    pub reason: &'static str,
    /// For the event and the condition.
    pub cause: String,
    /// For the account of all metrics.
    pub error: String,
}

/// What is to be done before metrics are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// The target was set to zero by hand, which switches the autoscaler off.
    Nothing,
    /// The target is outside the bounds, whatever is measured.
    Bound(i32, &'static str),
    Metrics,
}

pub fn need(spec: &HorizontalPodAutoscalerSpec, current: i32) -> Need {
    let min = min_replicas(spec);
    if current == 0 {
        Need::Nothing
    } else if current > spec.max_replicas {
        Need::Bound(spec.max_replicas, "Current number of replicas above Spec.MaxReplicas")
    } else if current < min {
        Need::Bound(min, "Current number of replicas below Spec.MinReplicas")
    } else {
        Need::Metrics
    }
}

/// The decision on one look.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The replicas to set, and why, if they change.
    pub rescale: Option<(i32, String)>,
    pub conditions: Vec<HorizontalPodAutoscalerCondition>,
    pub metrics: Vec<MetricStatus>,
    /// Why too little was measured to decide on, and for each metric the reason and its cause.
    pub failure: Option<String>,
    pub failures: Vec<(&'static str, String)>,
}

/// Decides; `measured` are the metrics of the spec in order, and empty where they are not needed.
pub fn plan(
    autoscaler: &HorizontalPodAutoscaler,
    current: i32,
    measured: &[Result<MetricProposal, MetricError>],
    history: &mut History,
    down_window: Duration,
    now: Timestamp,
) -> Plan {
    let spec = &autoscaler.spec;
    let mut conditions = Conditions::of(autoscaler, now);
    conditions.set("AbleToScale", true, GOT_SCALE.0, GOT_SCALE.1);
    let mut plan = Plan::default();
    match need(spec, current) {
        Need::Nothing => conditions.set(
            "ScalingActive",
            false,
            "ScalingDisabled",
            "scaling is disabled since the replica count of the target is zero",
        ),
        Need::Bound(replicas, reason) => plan.rescale = Some((replicas, reason.into())),
        Need::Metrics => {
            // kubectl matches a metric's status with the spec by position.
            plan.metrics = measured
                .iter()
                .map(|one| one.as_ref().map_or_else(|_| MetricStatus::default(), |one| one.status.clone()))
                .collect();
            let found: Vec<&MetricProposal> = measured.iter().filter_map(|one| one.as_ref().ok()).collect();
            let failed: Vec<&MetricError> = measured.iter().filter_map(|one| one.as_ref().err()).collect();
            let largest = largest(&found);
            plan.failures = failed.iter().map(|one| (one.reason, one.cause.clone())).collect();
            // A failed metric might have asked for more replicas, so the others suffice to scale up but not down.
            match (failed.first(), largest) {
                (Some(first), proposal) if proposal.is_none_or(|largest| largest.replicas < current) => {
                    conditions.scaling_inactive(first);
                    plan.failure = Some(format!(
                        "invalid metrics ({} invalid out of {}), first error is: {}",
                        failed.len(),
                        measured.len(),
                        first.error
                    ));
                }
                (_, Some(largest)) => {
                    conditions.scaling_active(largest);
                    plan.rescale = decide(spec, current, largest, history, down_window, &mut conditions);
                }
                (_, None) => {}
            }
        }
    }
    plan.conditions = conditions.list;
    plan
}

/// The first of those that ask for most.
fn largest<'m>(found: &[&'m MetricProposal]) -> Option<&'m MetricProposal> {
    found.iter().copied().reduce(|largest, one| if one.replicas > largest.replicas { one } else { largest })
}

fn decide(
    spec: &HorizontalPodAutoscalerSpec,
    current: i32,
    proposal: &MetricProposal,
    history: &mut History,
    down_window: Duration,
    conditions: &mut Conditions,
) -> Option<(i32, String)> {
    let desired = proposal.replicas.max(0);
    let reason = match desired > current {
        true => format!("{} above target", proposal.name),
        false => "All metrics below target".into(),
    };
    let (behavior, now) = (spec.behavior.as_ref(), conditions.now);
    let (stabilized, why, message) = history.stabilize(behavior, desired, current, down_window, now);
    conditions.set("AbleToScale", true, why, message);
    let bounds = Bounds { min: min_replicas(spec), max: spec.max_replicas, current };
    let (replicas, why, message) = history.limit(behavior, stabilized, bounds, now);
    conditions.set("ScalingLimited", replicas != stabilized, why, message);
    (replicas != current).then_some((replicas, reason))
}

fn min_replicas(spec: &HorizontalPodAutoscalerSpec) -> i32 {
    spec.min_replicas.unwrap_or(1)
}

/// The tolerance of the cluster, or an autoscaler's own for each direction.
pub fn tolerances(spec: &HorizontalPodAutoscalerSpec, default: f64) -> Tolerances {
    let behavior = spec.behavior.as_ref();
    let own = |rules: Option<&k8s_openapi::api::autoscaling::v2::HPAScalingRules>| {
        let tolerance = rules.and_then(|rules| rules.tolerance.as_ref());
        let tolerance = tolerance.and_then(|tolerance| Quantity::parse(&tolerance.0).ok());
        tolerance.map_or(default, |tolerance| tolerance.milli() as f64 / 1000.0)
    };
    Tolerances {
        down: own(behavior.and_then(|behavior| behavior.scale_down.as_ref())),
        up: own(behavior.and_then(|behavior| behavior.scale_up.as_ref())),
    }
}

/// The conditions of a status that is being made.
pub struct Conditions {
    pub list: Vec<HorizontalPodAutoscalerCondition>,
    pub now: Timestamp,
}

impl Conditions {
    pub fn of(autoscaler: &HorizontalPodAutoscaler, now: Timestamp) -> Self {
        let known = autoscaler.status.as_ref().and_then(|status| status.conditions.clone());
        Conditions { list: known.unwrap_or_default(), now }
    }

    pub fn set(&mut self, kind: &str, holds: bool, reason: &str, message: impl Into<String>) {
        let status = if holds { "True" } else { "False" };
        let known = self.list.iter_mut().find(|condition| condition.type_ == kind);
        let condition = match known {
            Some(known) => known,
            None => {
                self.list.push(HorizontalPodAutoscalerCondition { type_: kind.into(), ..Default::default() });
                self.list.last_mut().expect("was pushed")
            }
        };
        if condition.status != status {
            condition.last_transition_time = Some(Time(self.now));
        }
        condition.status = status.into();
        condition.reason = Some(reason.into());
        condition.message = Some(message.into());
    }

    fn scaling_active(&mut self, by: &MetricProposal) {
        let message = format!("the HPA was able to successfully calculate a replica count from {}", by.name);
        self.set("ScalingActive", true, "ValidMetricFound", message);
    }

    fn scaling_inactive(&mut self, error: &MetricError) {
        let message = format!("the HPA was unable to compute the replica count: {}", error.cause);
        self.set("ScalingActive", false, error.reason, message);
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
