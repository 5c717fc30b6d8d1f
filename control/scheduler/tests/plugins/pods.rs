//! Plugins that look at the pods on nodes of one topology.

use serde_json::{Value, json};

use crate::world::World;

fn in_zone(zone: &str) -> Value {
    json!({"metadata": {"labels": {"zone": zone}}})
}

fn labelled(app: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}}})
}

/// Two nodes of one zone, one of another, one of none.
fn world() -> World {
    World::of(&[("a", in_zone("x")), ("b", in_zone("x")), ("c", in_zone("y")), ("d", json!({}))])
}

fn term(app: &str, topology: &str, more: Value) -> Value {
    let mut term = json!({"topologyKey": topology, "labelSelector": {"matchLabels": {"app": app}}});
    for (key, value) in more.as_object().expect("fields of the term") {
        term[key] = value.clone();
    }
    term
}

fn required(which: &str, terms: &[Value]) -> Value {
    json!({"spec": {"affinity": {which: {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}})
}

#[test]
fn pods_are_placed_beside_others_or_away_from_them() {
    let plugin = "InterPodAffinity";
    let world = world().on("b", labelled("db")).on("c", labelled("web"));
    let reason = "node(s) didn't match pod affinity rules";
    let near = |app: &str, topology: &str| required("podAffinity", &[term(app, topology, json!({}))]);
    world.check(plugin, json!({}), "a b c d", reason);
    world.check(plugin, near("db", "zone"), "a b", reason);
    world.check(plugin, near("db", "kubernetes.io/hostname"), "b", reason);
    world.check(plugin, near("none", "zone"), "", reason);
    world.check(plugin, near("db", "no-such-topology"), "", reason);
    // both terms together, or nothing
    let both = [term("db", "zone", json!({})), term("web", "zone", json!({}))];
    world.check(plugin, required("podAffinity", &both), "", reason);
    // the first of its kind may begin where the topology is known
    let first = json!({"metadata": {"labels": {"app": "new"}}, "spec": near("new", "zone")["spec"]});
    world.check(plugin, first, "a b c", reason);

    let reason = "node(s) didn't match pod anti-affinity rules";
    let apart = |app: &str, topology: &str| required("podAntiAffinity", &[term(app, topology, json!({}))]);
    world.check(plugin, apart("db", "zone"), "c d", reason);
    world.check(plugin, apart("db", "kubernetes.io/hostname"), "a c d", reason);
    world.check(plugin, apart("none", "zone"), "a b c d", reason);
}

#[test]
fn inter_pod_affinity_of_those_who_are_there() {
    let apart = required("podAntiAffinity", &[term("web", "zone", json!({}))]);
    let world = world().on("a", apart);
    let reason = "node(s) didn't satisfy existing pods anti-affinity rules";
    world.check("InterPodAffinity", json!({}), "c d", reason);
    world.check("InterPodAffinity", labelled("db"), "a b c d", reason);
}

#[test]
fn inter_pod_affinity_across_namespaces() {
    let elsewhere = json!({"metadata": {"namespace": "other", "labels": {"app": "db"}}});
    let world = world()
        .on("b", elsewhere)
        .with("namespace", json!({"metadata": {"name": "other", "labels": {"team": "storage"}}}));
    let near = |more: Value| required("podAffinity", &[term("db", "zone", more)]);
    let reason = "node(s) didn't match pod affinity rules";
    world.check("InterPodAffinity", near(json!({})), "", reason);
    world.check("InterPodAffinity", near(json!({"namespaces": ["other"]})), "a b", reason);
    let team = |team: &str| json!({"namespaceSelector": {"matchLabels": {"team": team}}});
    world.check("InterPodAffinity", near(team("storage")), "a b", reason);
    world.check("InterPodAffinity", near(team("web")), "", reason);
    world.check("InterPodAffinity", near(json!({"namespaceSelector": {}})), "a b", reason);
}

#[test]
fn inter_pod_affinity_preferred() {
    let world = world().on("b", labelled("db")).on("c", labelled("web"));
    let prefers = |which: &str, app: &str, weight: i64| {
        let term = json!({"weight": weight, "podAffinityTerm": term(app, "zone", json!({}))});
        json!({"spec": {"affinity": {which: {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}}})
    };
    world.check_scores("InterPodAffinity", prefers("podAffinity", "db", 5), &[100, 100, 0, 0]);
    world.check_scores("InterPodAffinity", prefers("podAntiAffinity", "db", 5), &[0, 0, 100, 100]);
    world.check_scores("InterPodAffinity", json!({}), &[0; 4]);
}

fn spread(more: Value) -> Value {
    let mut constraint = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}}});
    for (key, value) in more.as_object().expect("fields of the constraint") {
        constraint[key] = value.clone();
    }
    json!({"spec": {"topologySpreadConstraints": [constraint]}})
}

#[test]
fn pods_spread_over_topologies_up_to_the_skew() {
    let plugin = "PodTopologySpread";
    let skewed = "node(s) didn't match pod topology spread constraints";
    let missing = "node(s) didn't match pod topology spread constraints (missing required label)";
    let zones = || World::of(&[("a", in_zone("x")), ("b", in_zone("x")), ("c", in_zone("y"))]);
    World::of(&[("d", json!({}))]).check(plugin, spread(json!({})), "", missing);
    zones().check(plugin, spread(json!({})), "a b c", skewed);
    let one = || zones().on("a", json!({}));
    one().check(plugin, spread(json!({})), "c", skewed);
    one().check(plugin, spread(json!({"maxSkew": 2})), "a b c", skewed);
    // pods that do not match, are of another namespace or on their way out do not count
    zones().on("a", labelled("db")).check(plugin, spread(json!({})), "a b c", skewed);
    let elsewhere = json!({"metadata": {"namespace": "other"}});
    zones().on("a", elsewhere).check(plugin, spread(json!({})), "a b c", skewed);
    let leaving = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    zones().on("a", leaving).check(plugin, spread(json!({})), "a b c", skewed);
    // with fewer domains than wanted the least is none
    let balanced = || zones().on("a", json!({})).on("c", json!({}));
    balanced().check(plugin, spread(json!({})), "a b c", skewed);
    balanced().check(plugin, spread(json!({"minDomains": 3})), "", skewed);
    // a zone that the pod cannot be in takes part only if asked to
    let only_x = |more: Value| {
        let mut pod = spread(more);
        pod["spec"]["nodeSelector"] = json!({"zone": "x"});
        pod
    };
    one().check(plugin, only_x(json!({})), "a b c", skewed);
    one().check(plugin, only_x(json!({"nodeAffinityPolicy": "Ignore"})), "c", skewed);
    // pods of one revision spread apart from those of another
    let revision = |hash: &str, more: Value| {
        let mut pod = more;
        pod["metadata"] = json!({"labels": {"app": "web", "hash": hash}});
        pod
    };
    let world = zones().on("a", revision("1", json!({})));
    world.check(plugin, revision("1", spread(json!({"matchLabelKeys": ["hash"]}))), "c", skewed);
    world.check(plugin, revision("2", spread(json!({"matchLabelKeys": ["hash"]}))), "a b c", skewed);
}

#[test]
fn pod_topology_spread_where_there_is_a_choice() {
    let softly = spread(json!({"whenUnsatisfiable": "ScheduleAnyway"}));
    let world = World::of(&[("a", in_zone("x")), ("c", in_zone("y"))]).on("a", json!({})).on("a", json!({}));
    world.check("PodTopologySpread", softly.clone(), "a c", "");
    world.check_scores("PodTopologySpread", softly, &[0, 100]);
    // a pod that says nothing spreads as its workload does, with some tolerance
    let workload = json!({"matchLabels": {"app": "web"}});
    let world =
        World::of(&[("a", json!({})), ("b", json!({}))]).on("a", json!({})).with("workload", workload);
    world.check_scores("PodTopologySpread", json!({}), &[66, 100]);
}
