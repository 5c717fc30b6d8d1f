//! DefaultPreemption: who has to go for a pod that fits nowhere.

use ferry_scheduler::cycle::Search;
use ferry_scheduler::nominated::Nominated;
use ferry_scheduler::plugins::default_preemption::{best, find};
use ferry_scheduler::plugins::{Cycle, State};
use serde_json::{Value, json};

use crate::world::{World, pod};

/// A pod on a node of four CPUs.
fn running(cpu: &str, priority: i32, started: u32, more: Value) -> Value {
    let mut pod = json!({
        "spec": {"priority": priority, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
        "status": {"startTime": format!("2026-01-01T00:00:{started:02}Z")},
    });
    for (key, value) in more.as_object().expect("fields of the pod") {
        pod[key] = value.clone();
    }
    pod
}

/// The node and the victims that are chosen for a pod that asks for three of its four CPUs, or why none.
fn check(mut world: World, more: Value, expected: &str) {
    let mut wants = running("3", 10, 0, json!({}));
    for (key, value) in more.as_object().expect("fields of the spec") {
        wants["spec"][key] = value.clone();
    }
    let pod = pod("new", wants);
    let (snapshot, profile, cluster) = world.parts();
    let mut cycle = Cycle { pod: &pod, profile, cluster, state: State::default() };
    let nominated = Nominated::default();
    let found = Search::new(1).feasible(&mut cycle, snapshot, &nominated);
    assert!(found.nodes.is_empty(), "it fits without anyone going");
    let candidates = find(&mut cycle, snapshot, &found.filters, &nominated, &found.refused, 0);
    let chosen = match candidates {
        Err(reason) => reason,
        Ok(candidates) => {
            let best = best(candidates).expect("there is a candidate");
            let victims = best.victims.iter().map(|victim| victim.key.name.as_str());
            format!("{}: {}", snapshot.name(best.node), victims.collect::<Vec<_>>().join(" "))
        }
    };
    assert_eq!(chosen, expected, "{more}");
}

#[test]
fn as_few_and_as_unimportant_as_will_do() {
    let two = || World::of(&[("a", json!({})), ("b", json!({}))]);
    let one = |priority| running("2", priority, 0, json!({}));
    // the highest priority that is lost decides
    check(two().on("a", one(5)).on("b", one(3)), json!({}), "b: placed-1");
    // then how many go
    let half = |priority| running("1500m", priority, 0, json!({}));
    check(two().on("a", half(3)).on("a", half(3)).on("b", one(3)), json!({}), "b: placed-2");
    // then who has run longest
    let since = |second| running("2", 3, second, json!({}));
    check(two().on("a", since(1)).on("b", since(2)), json!({}), "b: placed-1");
    // of one node's pods the less important go, and only as many as must
    let small = |priority| running("1", priority, 0, json!({}));
    let full = World::of(&[("a", json!({}))]).on("a", small(4)).on("a", small(2)).on("a", small(3));
    check(full, json!({}), "a: placed-2 placed-1");
}

#[test]
fn budgets_are_kept_where_they_can_be() {
    let protected = |world: World| {
        let selector = json!({"matchLabels": {"app": "kept"}});
        let budget = json!({"metadata": {"name": "b", "namespace": "default"}, "spec": {"selector": selector},
            "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}});
        world.with("budget", budget)
    };
    let kept = |priority| {
        let metadata = json!({"metadata": {"labels": {"app": "kept"}}});
        running("2", priority, 0, metadata)
    };
    let other = |priority| running("2", priority, 0, json!({}));
    let two = World::of(&[("a", json!({})), ("b", json!({}))]);
    check(protected(two.on("a", kept(1)).on("b", other(5))), json!({}), "b: placed-1");
    // but not at any price
    check(protected(World::of(&[("a", json!({}))]).on("a", kept(1))), json!({}), "a: placed-0");
}

#[test]
fn pods_that_may_not_or_need_not_preempt() {
    let one = |priority| World::of(&[("a", json!({}))]).on("a", running("2", priority, 0, json!({})));
    check(
        one(1),
        json!({"preemptionPolicy": "Never"}),
        "preemption: not eligible due to preemptionPolicy=Never.",
    );
    check(
        one(10),
        json!({}),
        "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.",
    );
    // a node that would not do empty either is not worth a look
    let selector = json!({"nodeSelector": {"zone": "nowhere"}});
    check(
        one(1),
        selector,
        "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
    );
}
