use k8s_openapi::api::core::v1::{PodCondition, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::testing::{at, deleting, named};

const NOW: i64 = 10_000;
const MINUTE: i64 = 60;

/// A pod that has been ready for long, and requests a core in its one container.
fn pod(name: &str) -> Pod {
    let mut pod: Pod = named(name);
    let spec = pod.spec.get_or_insert_default();
    spec.containers = vec![container("main", &[("cpu", "1"), ("memory", "1Gi")])];
    pod.status = Some(PodStatus {
        phase: Some("Running".into()),
        start_time: Some(Time(at(0))),
        conditions: Some(vec![PodCondition {
            type_: "Ready".into(),
            status: "True".into(),
            last_transition_time: Some(Time(at(1))),
            ..Default::default()
        }]),
        ..Default::default()
    });
    pod
}

fn container(name: &str, requests: &[(&str, &str)]) -> Container {
    let requests = requests.iter().map(|(name, amount)| (name.to_string(), Written(amount.to_string())));
    let resources = ResourceRequirements { requests: Some(requests.collect()), ..Default::default() };
    Container { name: name.into(), resources: Some(resources), ..Default::default() }
}

fn pods(count: usize) -> Vec<Pod> {
    (0..count).map(|index| pod(&format!("pod-{index}"))).collect()
}

fn unready(mut pod: Pod) -> Pod {
    let status = pod.status.as_mut().expect("has a status");
    status.conditions.as_mut().expect("has conditions")[0].status = "False".into();
    pod
}

/// Started a moment ago, and ready since.
fn hot(mut pod: Pod) -> Pod {
    let status = pod.status.as_mut().expect("has a status");
    status.start_time = Some(Time(at(NOW - 2)));
    status.conditions.as_mut().expect("has conditions")[0].last_transition_time = Some(Time(at(NOW - 1)));
    pod
}

fn in_phase(mut pod: Pod, phase: &str) -> Pod {
    pod.status.as_mut().expect("has a status").phase = Some(phase.into());
    pod
}

fn target(pods: &[Pod], current: i32) -> Target<'_> {
    Target {
        pods,
        current,
        observed: current,
        tolerances: Tolerances { down: 0.1, up: 0.1 },
        cpu_initialization_period: Duration::from_secs(120),
        initial_readiness_delay: Duration::from_secs(10),
        now: at(NOW),
    }
}

/// Values of the first pods; None is a pod without metrics.
fn metrics(values: &[Option<i64>]) -> PodMetrics {
    let named = values.iter().enumerate().filter_map(|(index, value)| Some((index, (*value)?)));
    let metric = |value| PodMetric { value, timestamp: at(NOW), window: Duration::from_secs(MINUTE as u64) };
    named.map(|(index, value)| (format!("pod-{index}"), metric(value))).collect()
}

fn all(values: &[i64]) -> PodMetrics {
    metrics(&values.iter().copied().map(Some).collect::<Vec<_>>())
}

/// Percent of the request: what is used, and how many replicas that asks for.
fn check(pods: &[Pod], current: i32, percent: i32, values: PodMetrics, utilization: i32, replicas: i32) {
    let found = target(pods, current).by_utilization("cpu", None, percent, values).expect("metrics");
    assert_eq!((found.utilization, found.replicas), (Some(utilization), replicas));
}

#[test]
fn replicas_follow_the_utilization_of_ready_pods() {
    check(&pods(3), 3, 30, all(&[300, 500, 700]), 50, 5);
    check(&pods(5), 5, 50, all(&[100, 300, 500, 250, 250]), 28, 3);
    check(&pods(3), 3, 100, all(&[1010, 1030, 1020]), 102, 3);
    check(&pods(1), 1, 50, all(&[0]), 0, 0);
}

#[test]
fn pods_that_end_or_failed_count_for_nothing() {
    let mut some = pods(4);
    some[2] = in_phase(some[2].clone(), "Failed");
    some[3] = deleting(some[3].clone());
    check(&some, 2, 30, all(&[500, 700, 9000, 9000]), 60, 4);
}

#[test]
fn unready_pods_damp_growth_and_are_left_out_of_shrinking() {
    let mut some = pods(3);
    some[0] = in_phase(some[0].clone(), "Pending");
    // (500 + 700) of two; with the third at nothing 40 % of 30 %
    check(&some, 3, 30, all(&[300, 500, 700]), 60, 4);
    check(&some, 3, 59, all(&[300, 500, 700]), 60, 3);
    let mut five = pods(5);
    for one in &mut five[3..] {
        *one = in_phase(one.clone(), "Pending");
    }
    check(&five, 5, 50, all(&[100, 300, 500, 250, 250]), 30, 2);
}

#[test]
fn the_cpu_of_a_start_says_nothing_of_the_load() {
    let mut some = pods(3);
    some[0] = hot(some[0].clone());
    check(&some, 3, 30, all(&[9000, 500, 700]), 60, 4);
    // memory does not go up and down with a start
    let found = target(&some, 3).by_average(Some("memory"), 100, all(&[400, 400, 400])).expect("metrics");
    assert_eq!((found.usage, found.replicas), (400, 12));
    // ready once, and not now: its load is real
    let mut turned = pods(1);
    turned[0] = unready(turned[0].clone());
    turned[0].status.as_mut().expect("status").conditions.as_mut().expect("conditions")[0]
        .last_transition_time = Some(Time(at(500)));
    check(&turned, 1, 50, all(&[1000]), 100, 2);
    // never ready, however long ago it started
    let never = [unready(pod("pod-0"))];
    let refused = target(&never, 1).by_utilization("cpu", None, 50, all(&[1000]));
    assert_eq!(refused, Err("did not receive metrics for targeted pods (pods might be unready)".into()));
}

#[test]
fn a_sample_from_before_a_young_pod_was_ready_is_left_out() {
    let mut some = pods(2);
    let status = some[0].status.as_mut().expect("has a status");
    status.start_time = Some(Time(at(NOW - 100)));
    status.conditions.as_mut().expect("conditions")[0].last_transition_time = Some(Time(at(NOW - 61)));
    check(&some, 2, 50, all(&[1000, 1000]), 100, 4);
    some[0].status.as_mut().expect("status").conditions.as_mut().expect("conditions")[0]
        .last_transition_time = Some(Time(at(NOW - 59)));
    // counted as nothing: 50 % of all, which is the target
    check(&some, 2, 50, all(&[9000, 1000]), 100, 2);
}

#[test]
fn missing_metrics_never_make_the_change_larger() {
    // on the way down as if they used all they request
    check(&pods(4), 4, 100, all(&[400, 95]), 24, 3);
    check(&pods(2), 2, 100, all(&[600]), 60, 2);
    // on the way up as if they used nothing
    check(&pods(2), 2, 100, all(&[1900]), 190, 2);
    check(&pods(2), 2, 100, all(&[1000]), 100, 2);
    // a target beyond the request is presumed
    check(&pods(2), 2, 300, all(&[1000]), 100, 2);
}

#[test]
fn missing_and_unready_pods_together() {
    let mut some = pods(3);
    some[0] = in_phase(some[0].clone(), "Pending");
    check(&some, 3, 50, all(&[100, 450]), 45, 3);
    check(&some, 3, 50, all(&[100, 2000]), 200, 4);
    let mut four = pods(4);
    four[0] = in_phase(four[0].clone(), "Pending");
    check(&four, 4, 50, all(&[100, 100, 100]), 10, 3);
}

#[test]
fn tolerances_of_the_two_directions_differ() {
    let some = pods(10);
    let mut target = target(&some, 10);
    target.tolerances = Tolerances { down: 0.2, up: 0.0 };
    let replicas = |value: i64| target.by_average(None, 1000, all(&[value; 10])).expect("metrics").replicas;
    assert_eq!((replicas(1010), replicas(1000), replicas(810), replicas(700)), (11, 10, 10, 7));
}

#[test]
fn averages_of_a_metric_are_compared_with_the_target() {
    let check = |pods: &[Pod], current, wanted, values: PodMetrics, usage, replicas| {
        let found = target(pods, current).by_average(None, wanted, values).expect("metrics");
        assert_eq!((found.usage, found.replicas), (usage, replicas));
    };
    check(&pods(3), 3, 15_000, all(&[20_000, 10_000, 30_000]), 20_000, 4);
    check(&pods(5), 5, 20_000, all(&[12_000; 5]), 12_000, 3);
    check(&pods(3), 3, 20_000, all(&[20_666; 3]), 20_666, 3);
    // without metrics: nothing on the way up, the target on the way down
    check(&pods(4), 4, 10_000, all(&[40_000, 40_000]), 40_000, 8);
    check(&pods(4), 4, 10_000, all(&[2_000, 2_000]), 2_000, 3);
    // readiness matters to CPU alone
    check(&[unready(pod("pod-0"))], 1, 10_000, all(&[30_000]), 30_000, 3);
}

#[test]
fn the_value_of_something_else_is_compared_as_a_whole_or_per_pod() {
    let mut some = pods(3);
    let whole = |pods: &[Pod], current, usage, wanted| {
        target(pods, current).by_value(usage, wanted).map(|found| (found.usage, found.replicas))
    };
    assert_eq!(whole(&some, 3, 20_000, 15_000), Ok((20_000, 4)));
    assert_eq!(whole(&some, 3, 20_666, 20_000), Ok((20_666, 3)));
    assert_eq!(whole(&some, 3, 5_000, 15_000), Ok((5_000, 1)));
    assert_eq!(whole(&some, 0, 20_001, 10_000), Ok((20_001, 3)), "from zero");
    assert_eq!(whole(&some, 3, i64::MAX, 1), Ok((i64::MAX, i32::MAX)));
    some[0] = unready(some[0].clone());
    assert_eq!(whole(&some, 3, 40_000, 10_000), Ok((40_000, 8)), "two are ready");
    let no_pods = "no pods returned by selector while calculating replica count".to_owned();
    assert_eq!(whole(&[], 3, 20_000, 10_000), Err(no_pods));
    let per_pod = |current, usage, wanted| {
        let found = target(&some, current).by_value_per_pod(usage, wanted);
        (found.usage, found.replicas)
    };
    assert_eq!(per_pod(3, 8_600, 2_150), (2_867, 4));
    assert_eq!(per_pod(6, 8_600, 2_150), (1_434, 4));
    assert_eq!(per_pod(4, 8_600, 2_151), (2_150, 4));
    assert_eq!(per_pod(0, 8_600, 4_300), (8_600, 2), "no pod is there yet");
}

#[test]
fn pod_requests_are_the_sum_of_containers_and_sidecars_or_pod_level() {
    let mut one = pod("pod-0");
    let spec = one.spec.get_or_insert_default();
    spec.containers.push(container("helper", &[("cpu", "500m")]));
    let mut sidecar = container("sidecar", &[("cpu", "250m")]);
    sidecar.restart_policy = Some("Always".into());
    spec.init_containers = Some(vec![container("setup", &[("cpu", "8")]), sidecar]);
    assert_eq!(request(&one, None, "cpu"), Ok(1750));
    assert_eq!(request(&one, Some("helper"), "cpu"), Ok(500));
    assert_eq!(
        request(&one, None, "memory"),
        Err("missing request for memory in container helper of Pod pod-0".into())
    );
    assert_eq!(request(&one, Some("nobody"), "cpu"), Err("container nobody not found in Pod pod-0".into()));
    let own = [("cpu".to_string(), Written("3".into()))].into();
    one.spec.get_or_insert_default().resources =
        Some(ResourceRequirements { requests: Some(own), ..Default::default() });
    assert_eq!(request(&one, None, "cpu"), Ok(3000));
    assert_eq!(request(&one, Some("helper"), "cpu"), Ok(500), "a container's own comes first");
}

#[test]
fn incomparable_metrics_are_errors() {
    let some = pods(1);
    let utilization = |pods: &[Pod], values| target(pods, 1).by_utilization("cpu", None, 50, values);
    let no_pods = "no pods returned by selector while calculating replica count".to_owned();
    assert_eq!(utilization(&[], all(&[100])), Err(no_pods));
    let other = [pod("other")];
    assert_eq!(
        utilization(&other, all(&[100])),
        Err("no metrics returned matched known pods".into()),
        "metrics of pods that are not the target's"
    );
    assert_eq!(
        utilization(&some, metrics(&[None])),
        Err("did not receive metrics for targeted pods (pods might be unready)".into())
    );
    let mut asks_nothing = pod("pod-0");
    asks_nothing.spec.get_or_insert_default().containers = vec![container("main", &[])];
    assert_eq!(
        utilization(&[asks_nothing], all(&[100])),
        Err("missing request for cpu in container main of Pod pod-0".into())
    );
}
