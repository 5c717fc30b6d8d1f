use k8s_openapi::api::autoscaling::v2::HPAScalingPolicy;

use super::*;
use crate::testing::at;

fn rules(window: i32, select: &str, policies: &[(&str, i32, i32)]) -> HPAScalingRules {
    let policies = policies.iter().map(|(kind, value, period)| HPAScalingPolicy {
        type_: kind.to_string(),
        value: *value,
        period_seconds: *period,
    });
    HPAScalingRules {
        stabilization_window_seconds: Some(window),
        select_policy: Some(select.into()),
        policies: Some(policies.collect()),
        tolerance: None,
    }
}

fn behavior(up: HPAScalingRules, down: HPAScalingRules) -> HorizontalPodAutoscalerBehavior {
    HorizontalPodAutoscalerBehavior { scale_up: Some(up), scale_down: Some(down) }
}

const DOUBLE_OR_FOUR: &[(&str, i32, i32)] = &[("Pods", 4, 15), ("Percent", 100, 15)];
const ALL: &[(&str, i32, i32)] = &[("Percent", 100, 15)];

fn bounds(current: i32) -> Bounds {
    Bounds { min: 1, max: 1000, current }
}

#[test]
fn without_rules_a_target_doubles_at_most_and_stays_within_its_bounds() {
    let check = |bounds: Bounds, desired, replicas, reason| {
        let (found, why, _) = History::default().limit(None, desired, bounds, at(0));
        assert_eq!((found, why), (replicas, reason), "{bounds:?} {desired}");
    };
    check(bounds(5), 7, 7, "DesiredWithinRange");
    check(bounds(5), 11, 10, "ScaleUpLimit");
    check(bounds(1), 9, 4, "ScaleUpLimit");
    check(Bounds { min: 1, max: 8, current: 5 }, 9, 8, "TooManyReplicas");
    check(Bounds { min: 3, max: 8, current: 5 }, 1, 3, "TooFewReplicas");
    check(bounds(1000), 1, 1, "DesiredWithinRange");
}

#[test]
fn without_rules_the_highest_of_the_window_holds() {
    let window = Duration::from_secs(300);
    let mut history = History::default();
    history.begin(10, at(0));
    let mut look = |desired, second| {
        let (found, why, _) = history.stabilize(None, desired, 10, window, at(second));
        (found, why)
    };
    assert_eq!(look(12, 10), (12, "ReadyForNewScale"), "growing is not held");
    assert_eq!(look(4, 100), (12, "ScaleDownStabilized"));
    assert_eq!(look(5, 310), (12, "ScaleDownStabilized"), "exactly the window ago");
    assert_eq!(look(3, 311), (5, "ScaleDownStabilized"));
    assert_eq!(look(3, 1000), (3, "ReadyForNewScale"));
}

#[test]
fn a_target_of_which_nothing_is_known_is_not_shrunk_at_once() {
    let mut history = History::default();
    history.begin(8, at(0));
    history.begin(2, at(1));
    let (found, _, _) = history.stabilize(None, 1, 8, Duration::from_secs(60), at(2));
    assert_eq!(found, 8);
}

#[test]
fn windows_hold_back_growth_and_shrinking_each() {
    let both = behavior(rules(60, "Max", DOUBLE_OR_FOUR), rules(120, "Max", ALL));
    let mut history = History::default();
    let mut look = |desired, current, second| {
        let window = Duration::from_secs(300);
        let (found, why, _) = history.stabilize(Some(&both), desired, current, window, at(second));
        (found, why)
    };
    assert_eq!(look(5, 5, 0), (5, "ReadyForNewScale"));
    assert_eq!(look(9, 5, 30), (5, "ScaleUpStabilized"), "the lowest of a minute");
    assert_eq!(look(9, 5, 61), (9, "ReadyForNewScale"));
    assert_eq!(look(2, 9, 100), (9, "ScaleDownStabilized"), "the highest of two");
    assert_eq!(look(2, 9, 300), (2, "ReadyForNewScale"));
    // a window of its own, where the rules have none, is the controller's
    let mut open = both.clone();
    open.scale_down.as_mut().unwrap().stabilization_window_seconds = None;
    let mut history = History::default();
    history.begin(9, at(0));
    let look = |history: &mut History, second| {
        history.stabilize(Some(&open), 2, 9, Duration::from_secs(30), at(second)).0
    };
    assert_eq!((look(&mut history, 20), look(&mut history, 40)), (9, 2));
}

#[test]
fn a_window_of_zero_holds_nothing() {
    let both = behavior(rules(0, "Max", DOUBLE_OR_FOUR), rules(0, "Max", ALL));
    let mut history = History::default();
    history.begin(9, at(0));
    assert_eq!(history.stabilize(Some(&both), 2, 9, Duration::from_secs(300), at(0)).0, 2);
}

#[test]
fn policies_say_how_far_a_target_may_go_in_their_period() {
    let check = |up: HPAScalingRules, down: HPAScalingRules, current, desired, replicas, reason| {
        let both = behavior(up, down);
        let (found, why, _) = History::default().limit(Some(&both), desired, bounds(current), at(0));
        assert_eq!((found, why), (replicas, reason), "{current} to {desired}");
    };
    let all = || rules(0, "Max", ALL);
    let up = |select: &str, policies: &[(&str, i32, i32)]| rules(0, select, policies);
    check(up("Max", DOUBLE_OR_FOUR), all(), 3, 2000, 7, "ScaleUpLimit");
    check(up("Max", DOUBLE_OR_FOUR), all(), 10, 2000, 20, "ScaleUpLimit");
    check(up("Min", DOUBLE_OR_FOUR), all(), 10, 2000, 14, "ScaleUpLimit");
    check(up("Disabled", DOUBLE_OR_FOUR), all(), 10, 2000, 10, "ScaleUpLimit");
    check(up("Max", &[("Percent", 1, 60)]), all(), 10, 2000, 11, "ScaleUpLimit");
    check(up("Max", DOUBLE_OR_FOUR), all(), 600, 2000, 1000, "TooManyReplicas");
    check(up("Max", DOUBLE_OR_FOUR), all(), 10, 12, 12, "DesiredWithinRange");
    let down = |select: &str| rules(0, select, &[("Pods", 4, 60), ("Percent", 10, 60)]);
    check(all(), down("Max"), 10, 1, 6, "ScaleDownLimit");
    check(all(), down("Min"), 10, 1, 9, "ScaleDownLimit");
    check(all(), down("Disabled"), 10, 1, 10, "ScaleDownLimit");
    check(all(), all(), 10, 0, 1, "TooFewReplicas");
    check(all(), down("Max"), 10, 10, 10, "DesiredWithinRange");
}

#[test]
fn changes_of_the_period_count_towards_a_policy() {
    let both = behavior(rules(0, "Max", &[("Pods", 4, 60)]), rules(0, "Max", &[("Percent", 50, 60)]));
    let mut history = History::default();
    history.changed(10, 13, at(0));
    let limit = |history: &History, desired, current, second| {
        history.limit(Some(&both), desired, bounds(current), at(second)).0
    };
    assert_eq!(limit(&history, 30, 13, 30), 14, "one is left of four");
    assert_eq!(limit(&history, 30, 13, 61), 17);
    assert_eq!(limit(&history, 1, 13, 30), 5, "half of the ten there were");
    history.changed(13, 5, at(31));
    assert_eq!(limit(&history, 1, 5, 32), 5, "nothing is left");
    assert_eq!(limit(&history, 30, 5, 32), 14, "what went may come back");
    assert_eq!(limit(&history, 1, 5, 95), 2);
}

#[test]
fn scaling_history_outside_all_windows_is_dropped() {
    let mut history = History::default();
    for hour in 0..10 {
        history.changed(1, 2, at(hour * 3600));
        history.stabilize(None, 1, 1, Duration::from_secs(300), at(hour * 3600));
    }
    assert!(history.recommendations.len() <= 2 && history.added.len() <= 2, "{history:?}");
}
