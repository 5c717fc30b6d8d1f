use k8s_openapi::api::autoscaling::v2::{
    HPAScalingRules, HorizontalPodAutoscalerBehavior, HorizontalPodAutoscalerStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;

use super::*;
use crate::testing::{at, named};

const WINDOW: Duration = Duration::from_secs(300);

fn autoscaler(min: i32, max: i32) -> HorizontalPodAutoscaler {
    let mut autoscaler: HorizontalPodAutoscaler = named("web");
    autoscaler.spec.min_replicas = Some(min);
    autoscaler.spec.max_replicas = max;
    autoscaler
}

fn asks(replicas: i32, name: &str) -> Result<MetricProposal, MetricError> {
    let status = MetricStatus { type_: name.into(), ..Default::default() };
    Ok(MetricProposal { replicas, name: name.into(), status })
}

fn fails(name: &str) -> Result<MetricProposal, MetricError> {
    Err(MetricError {
        reason: "FailedGetResourceMetric",
        cause: format!("no {name}"),
        error: format!("failed to get {name}"),
    })
}

fn run(
    autoscaler: &HorizontalPodAutoscaler,
    current: i32,
    measured: &[Result<MetricProposal, MetricError>],
) -> Plan {
    plan(autoscaler, current, measured, &mut History::default(), WINDOW, at(0))
}

/// The reason of a condition, and whether it holds.
fn condition<'p>(plan: &'p Plan, kind: &str) -> Option<(&'p str, &'p str)> {
    let found = plan.conditions.iter().find(|condition| condition.type_ == kind)?;
    Some((found.status.as_str(), found.reason.as_deref()?))
}

#[test]
fn the_metric_that_asks_for_most_decides() {
    let plan = run(&autoscaler(1, 10), 3, &[asks(4, "cpu"), asks(5, "queue"), asks(5, "other")]);
    assert_eq!(plan.rescale, Some((5, "queue above target".into())));
    assert_eq!(condition(&plan, "ScalingActive"), Some(("True", "ValidMetricFound")));
    assert_eq!(condition(&plan, "AbleToScale"), Some(("True", "ReadyForNewScale")));
    assert_eq!(condition(&plan, "ScalingLimited"), Some(("False", "DesiredWithinRange")));
    assert_eq!(plan.metrics.len(), 3);
    let plan = run(&autoscaler(1, 10), 3, &[asks(1, "cpu"), asks(2, "queue")]);
    assert_eq!(plan.rescale, Some((2, "All metrics below target".into())));
    let plan = run(&autoscaler(1, 10), 3, &[asks(3, "cpu")]);
    assert_eq!(plan.rescale, None);
}

#[test]
fn bounds_hold_whatever_is_measured() {
    let plan = run(&autoscaler(2, 5), 9, &[]);
    assert_eq!(plan.rescale, Some((5, "Current number of replicas above Spec.MaxReplicas".into())));
    assert_eq!(condition(&plan, "ScalingActive"), None);
    let plan = run(&autoscaler(2, 5), 1, &[]);
    assert_eq!(plan.rescale, Some((2, "Current number of replicas below Spec.MinReplicas".into())));
    let plan = run(&autoscaler(2, 5), 3, &[asks(9, "cpu")]);
    assert_eq!(plan.rescale, Some((5, "cpu above target".into())));
    assert_eq!(condition(&plan, "ScalingLimited"), Some(("True", "TooManyReplicas")));
    let plan = run(&autoscaler(2, 5), 3, &[asks(0, "cpu")]);
    assert_eq!(plan.rescale, Some((2, "All metrics below target".into())));
    assert_eq!(condition(&plan, "ScalingLimited"), Some(("True", "TooFewReplicas")));
    let plan = run(&autoscaler(1, 100), 3, &[asks(50, "cpu")]);
    assert_eq!(plan.rescale, Some((6, "cpu above target".into())));
    assert_eq!(condition(&plan, "ScalingLimited"), Some(("True", "ScaleUpLimit")));
}

#[test]
fn a_target_at_zero_is_left_alone() {
    let plan = run(&autoscaler(1, 5), 0, &[]);
    assert_eq!(plan.rescale, None);
    assert_eq!(condition(&plan, "ScalingActive"), Some(("False", "ScalingDisabled")));
    assert_eq!(need(&autoscaler(1, 5).spec, 0), Need::Nothing);
}

#[test]
fn failed_metrics_prevent_scaling_down_but_not_up() {
    let plan = run(&autoscaler(1, 10), 3, &[fails("cpu"), asks(5, "queue")]);
    assert_eq!(plan.rescale, Some((5, "queue above target".into())));
    assert_eq!(plan.failure, None);
    assert_eq!(plan.failures, [("FailedGetResourceMetric", "no cpu".to_string())]);
    assert_eq!(condition(&plan, "ScalingActive"), Some(("True", "ValidMetricFound")));
    let places: Vec<&str> = plan.metrics.iter().map(|metric| metric.type_.as_str()).collect();
    assert_eq!(places, ["", "queue"], "each at its place");

    let plan = run(&autoscaler(1, 10), 3, &[fails("cpu"), asks(2, "queue"), fails("memory")]);
    assert_eq!(plan.rescale, None);
    let failure = "invalid metrics (2 invalid out of 3), first error is: failed to get cpu";
    assert_eq!(plan.failure.as_deref(), Some(failure));
    assert_eq!(condition(&plan, "ScalingActive"), Some(("False", "FailedGetResourceMetric")));
    let message = plan.conditions.iter().find(|one| one.type_ == "ScalingActive").unwrap().message.as_deref();
    assert_eq!(message, Some("the HPA was unable to compute the replica count: no cpu"));

    let plan = run(&autoscaler(1, 10), 3, &[fails("cpu")]);
    assert_eq!((plan.rescale.is_none(), plan.failure.is_some()), (true, true));
}

#[test]
fn shrinking_waits_for_the_window() {
    let mut history = History::default();
    history.begin(6, at(0));
    let autoscaler = autoscaler(1, 10);
    let mut look = |second| {
        let plan = plan(&autoscaler, 6, &[asks(2, "cpu")], &mut history, WINDOW, at(second));
        let reason = condition(&plan, "AbleToScale").map(|(_, reason)| reason.to_owned());
        (plan.rescale.map(|(replicas, _)| replicas), reason)
    };
    assert_eq!(look(100), (None, Some("ScaleDownStabilized".into())));
    assert_eq!(look(301), (Some(2), Some("ReadyForNewScale".into())));
}

#[test]
fn a_condition_keeps_its_time_while_it_holds() {
    let mut autoscaler = autoscaler(1, 10);
    let first = run(&autoscaler, 3, &[asks(3, "cpu")]);
    autoscaler.status = Some(HorizontalPodAutoscalerStatus {
        conditions: Some(first.conditions.clone()),
        ..Default::default()
    });
    let again = plan(&autoscaler, 3, &[asks(3, "cpu")], &mut History::default(), WINDOW, at(60));
    assert_eq!(again.conditions, first.conditions);
    let failed = plan(&autoscaler, 3, &[fails("cpu")], &mut History::default(), WINDOW, at(60));
    let changed = |kind: &str| {
        let found = failed.conditions.iter().find(|one| one.type_ == kind).expect(kind);
        found.last_transition_time.as_ref().map(|time| time.0)
    };
    assert_eq!(changed("ScalingActive"), Some(at(60)));
    assert_eq!(changed("AbleToScale"), Some(at(0)));
}

#[test]
fn each_direction_may_have_a_tolerance_of_its_own() {
    let mut autoscaler = autoscaler(1, 10);
    assert_eq!(tolerances(&autoscaler.spec, 0.1), Tolerances { down: 0.1, up: 0.1 });
    let rules = HPAScalingRules { tolerance: Some(Written("50m".into())), ..Default::default() };
    autoscaler.spec.behavior =
        Some(HorizontalPodAutoscalerBehavior { scale_up: Some(rules), scale_down: None });
    assert_eq!(tolerances(&autoscaler.spec, 0.1), Tolerances { down: 0.1, up: 0.05 });
}
