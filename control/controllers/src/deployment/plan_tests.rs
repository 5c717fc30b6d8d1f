use k8s_openapi::api::apps::v1::{DeploymentStrategy, RollingUpdateDeployment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::*;
use crate::testing::{at, deleting, labels, named};

fn deployment(replicas: i32, image: &str) -> Deployment {
    let mut deployment: Deployment = named("web");
    deployment.metadata.generation = Some(1);
    let spec = deployment.spec.get_or_insert_default();
    spec.replicas = Some(replicas);
    spec.progress_deadline_seconds = Some(600);
    spec.revision_history_limit = Some(1);
    spec.selector.match_labels = Some(labels(&[("app", "web")]));
    let meta = spec.template.metadata.get_or_insert_default();
    meta.labels = Some(labels(&[("app", "web")]));
    meta.annotations = Some(labels(&[("image", image)]));
    bounds_of(&mut deployment, IntOrString::Int(1), IntOrString::Int(1));
    deployment
}

fn bounds_of(deployment: &mut Deployment, surge: IntOrString, unavailable: IntOrString) {
    deployment.spec.get_or_insert_default().strategy = Some(DeploymentStrategy {
        type_: Some("RollingUpdate".into()),
        rolling_update: Some(RollingUpdateDeployment {
            max_surge: Some(surge),
            max_unavailable: Some(unavailable),
        }),
    });
}

/// A set of `image` with so many wanted and available pods, made at `age`.
fn set(of: &Deployment, image: &str, size: i32, available: i32, age: i64) -> ReplicaSet {
    let mut owner = of.clone();
    owner.spec.as_mut().unwrap().template.metadata.as_mut().unwrap().annotations =
        Some(labels(&[("image", image)]));
    let mut set = sets::make(&owner, size, age);
    set.metadata.uid = Some(format!("uid-{image}"));
    set.metadata.creation_timestamp = Some(Time(at(age)));
    let status = set.status.get_or_insert_default();
    status.replicas = size;
    status.ready_replicas = Some(available);
    status.available_replicas = Some(available);
    set
}

fn run(deployment: &Deployment, sets: Vec<ReplicaSet>) -> Plan {
    plan(deployment, sets, &|_| false, at(1000))
}

/// `image: from→to` for each scaled set, `image: new N` for a created one.
fn told(plan: &Plan) -> Vec<String> {
    let image = |set: &ReplicaSet| {
        let template = set.spec.as_ref().unwrap().template.as_ref().unwrap();
        template.metadata.as_ref().unwrap().annotations.as_ref().unwrap()["image"].clone()
    };
    plan.actions
        .iter()
        .filter_map(|action| match action {
            Action::Create(set) => Some(format!("{}: new {}", image(set), replicas(set))),
            Action::Write { set, scaled_from: Some(from) } => {
                Some(format!("{}: {from}→{}", image(set), replicas(set)))
            }
            Action::Write { .. } => None,
            Action::Delete { name, .. } => Some(format!("delete {name}")),
        })
        .collect()
}

fn progressing(deployment: &Deployment) -> (String, String) {
    let condition = status::condition(deployment.status.as_ref().unwrap(), "Progressing").unwrap();
    (condition.status.clone(), condition.reason.clone().unwrap())
}

#[test]
fn the_first_set_is_made_at_full_size_with_revision_one() {
    let plan = run(&deployment(3, "v1"), vec![]);
    assert_eq!(told(&plan), ["v1: new 3"]);
    let Action::Create(set) = &plan.actions[0] else { panic!() };
    assert_eq!(set.annotations()[sets::REVISION], "1");
    assert!(set.name_any().starts_with("web-") && set.labels().contains_key("pod-template-hash"));
    assert_eq!(plan.deployment.annotations()[sets::REVISION], "1");
    assert_eq!(progressing(&plan.deployment), ("True".into(), "NewReplicaSetCreated".into()));
}

#[test]
fn a_rollout_goes_step_by_step_within_its_bounds() {
    let d = deployment(4, "v2");
    // One surge pod; then old ones go as far as availability allows; and so on.
    let steps: &[(i32, i32, i32, i32, &[&str])] = &[
        // old size, old available, new size, new available
        (4, 4, 1, 0, &["v1: 4→3"]),
        (3, 3, 1, 0, &["v2: 1→2"]),
        (3, 3, 2, 1, &["v1: 3→2"]),
        (2, 2, 2, 2, &["v2: 2→3"]),
        (2, 2, 3, 3, &["v1: 2→0"]),
        (0, 0, 3, 3, &["v2: 3→4"]),
        (0, 0, 4, 4, &[]),
    ];
    for (old, old_available, new, new_available, expected) in steps {
        let sets = vec![set(&d, "v1", *old, *old_available, 1), set(&d, "v2", *new, *new_available, 2)];
        assert_eq!(told(&run(&d, sets)), *expected, "{old}/{old_available} {new}/{new_available}");
    }
    assert_eq!(told(&run(&d, vec![set(&d, "v1", 4, 4, 1)])), ["v2: new 1"]);
}

#[test]
fn pods_that_never_came_up_go_first_and_do_not_block() {
    let d = deployment(4, "v3");
    let sets = vec![set(&d, "v1", 3, 3, 1), set(&d, "v2", 2, 0, 2), set(&d, "v3", 0, 0, 3)];
    assert_eq!(told(&run(&d, sets)), ["v2: 2→0"]);
}

#[test]
fn unavailable_new_pods_stop_the_rollout() {
    let d = deployment(10, "v2");
    let sets = vec![set(&d, "v1", 9, 9, 1), set(&d, "v2", 2, 0, 2)];
    assert_eq!(told(&run(&d, sets)), [] as [&str; 0]);
}

#[test]
fn percentages_round_up_for_surge_and_down_for_unavailable() {
    let mut d = deployment(10, "v2");
    let check = |d: &Deployment, surge: i32, unavailable: i32| assert_eq!(bounds(d), (surge, unavailable));
    bounds_of(&mut d, IntOrString::String("25%".into()), IntOrString::String("25%".into()));
    check(&d, 3, 2);
    bounds_of(&mut d, IntOrString::Int(0), IntOrString::String("1%".into()));
    check(&d, 0, 1);
    bounds_of(&mut d, IntOrString::Int(2), IntOrString::Int(20));
    check(&d, 2, 10);
}

#[test]
fn a_resize_in_the_middle_of_a_rollout_is_shared_in_proportion() {
    let before = deployment(10, "v2");
    let mut d = deployment(20, "v2");
    bounds_of(&mut d, IntOrString::Int(1), IntOrString::Int(1));
    let sets = vec![set(&before, "v1", 8, 8, 1), set(&before, "v2", 3, 3, 2)];
    let plan = run(&d, sets);
    assert_eq!(told(&plan), ["v1: 8→15", "v2: 3→6"]);
    let down = deployment(5, "v2");
    let sets = vec![set(&before, "v1", 8, 8, 1), set(&before, "v2", 3, 3, 2)];
    assert_eq!(told(&run(&down, sets)), ["v1: 8→4", "v2: 3→2"]);
    let none = deployment(0, "v2");
    let sets = vec![set(&before, "v1", 8, 8, 1), set(&before, "v2", 3, 3, 2)];
    assert_eq!(told(&run(&none, sets)), ["v1: 8→0", "v2: 3→0"]);
}

#[test]
fn a_paused_deployment_scales_but_does_not_roll() {
    let mut d = deployment(3, "v2");
    d.spec.as_mut().unwrap().paused = Some(true);
    let plan = run(&d, vec![set(&d, "v1", 3, 3, 1)]);
    assert_eq!(told(&plan), [] as [&str; 0]);
    assert_eq!(progressing(&plan.deployment), ("Unknown".into(), "DeploymentPaused".into()));
    d.spec.as_mut().unwrap().replicas = Some(5);
    assert_eq!(told(&run(&d, vec![set(&deployment(3, "v1"), "v1", 3, 3, 1)])), ["v1: 3→5"]);
    let mut resumed = plan.deployment;
    resumed.spec.as_mut().unwrap().paused = Some(false);
    resumed.spec.as_mut().unwrap().replicas = Some(3);
    let plan = run(&resumed, vec![set(&resumed, "v1", 3, 3, 1)]);
    assert_eq!(told(&plan), ["v2: new 1"]);
}

#[test]
fn recreate_waits_for_the_last_old_pod() {
    let mut d = deployment(3, "v2");
    d.spec.as_mut().unwrap().strategy =
        Some(DeploymentStrategy { type_: Some("Recreate".into()), rolling_update: None });
    assert_eq!(told(&run(&d, vec![set(&d, "v1", 3, 3, 1)])), ["v1: 3→0"]);
    let mut emptied = set(&d, "v1", 0, 0, 1);
    let waiting = plan(&d, vec![emptied.clone()], &|_| true, at(1000));
    assert_eq!(told(&waiting), [] as [&str; 0]);
    emptied.status.as_mut().unwrap().replicas = 1;
    assert_eq!(told(&run(&d, vec![emptied.clone()])), [] as [&str; 0]);
    emptied.status.as_mut().unwrap().replicas = 0;
    assert_eq!(told(&run(&d, vec![emptied])), ["v2: new 3"]);
}

#[test]
fn rolling_back_gives_the_old_set_a_new_revision_and_keeps_its_history() {
    let d = deployment(2, "v1");
    let sets = vec![set(&d, "v1", 0, 0, 1), set(&d, "v2", 2, 2, 2)];
    let plan = run(&d, sets);
    let Action::Write { set, .. } = &plan.actions[0] else { panic!("{:?}", plan.actions) };
    assert_eq!(set.annotations()[sets::REVISION], "3");
    assert_eq!(set.annotations()["deployment.kubernetes.io/revision-history"], "1");
    assert_eq!(plan.deployment.annotations()[sets::REVISION], "3");
    assert_eq!(plan.actions.len(), 1, "one write per set: {:?}", plan.actions);
}

#[test]
fn history_beyond_the_limit_goes_once_the_rollout_is_complete() {
    let mut d = deployment(2, "v4");
    let history =
        vec![set(&d, "v1", 0, 0, 1), set(&d, "v2", 0, 0, 2), set(&d, "v3", 0, 0, 3), set(&d, "v4", 2, 2, 4)];
    let plan = run(&d, history.clone());
    assert_eq!(told(&plan), [] as [&str; 0], "not yet known to be complete");
    d = plan.deployment;
    let names: Vec<String> = history[..2].iter().map(|set| format!("delete {}", set.name_any())).collect();
    assert_eq!(told(&run(&d, history)), names);
}

#[test]
fn progress_is_complete_late_or_under_way() {
    let d = deployment(2, "v1");
    let done = run(&d, vec![set(&d, "v1", 2, 2, 1)]);
    assert_eq!(progressing(&done.deployment), ("True".into(), "NewReplicaSetAvailable".into()));
    assert_eq!(done.again, None);
    let started = run(&d, vec![set(&d, "v1", 2, 0, 1)]);
    assert_eq!(progressing(&started.deployment).1, "ReplicaSetUpdated");
    let again = started.again.expect("looks again at the deadline");
    assert!(again > Duration::from_secs(590) && again <= Duration::from_secs(601), "{again:?}");
    let stuck = plan(&started.deployment, vec![set(&d, "v1", 2, 0, 1)], &|_| false, at(1000 + 700));
    assert_eq!(progressing(&stuck.deployment), ("False".into(), "ProgressDeadlineExceeded".into()));
}

#[test]
fn a_deployment_that_is_going_away_only_counts() {
    let d = deleting(deployment(3, "v2"));
    let plan = run(&d, vec![set(&d, "v1", 3, 2, 1)]);
    assert!(plan.actions.is_empty());
    let status = plan.deployment.status.unwrap();
    assert_eq!(
        (status.replicas, status.available_replicas, status.unavailable_replicas),
        (Some(3), Some(2), Some(1))
    );
}

#[test]
fn a_sets_failure_is_the_deployments() {
    let d = deployment(3, "v1");
    let mut failing = set(&d, "v1", 3, 0, 1);
    failing.status.as_mut().unwrap().conditions =
        Some(vec![k8s_openapi::api::apps::v1::ReplicaSetCondition {
            type_: "ReplicaFailure".into(),
            status: "True".into(),
            reason: Some("FailedCreate".into()),
            message: Some("exceeded quota".into()),
            last_transition_time: None,
        }]);
    let plan = run(&d, vec![failing]);
    let failure =
        status::condition(plan.deployment.status.as_ref().unwrap(), "ReplicaFailure").cloned().unwrap();
    assert_eq!(failure.message.as_deref(), Some("exceeded quota"));
    let recovered = run(&plan.deployment, vec![set(&d, "v1", 3, 3, 1)]);
    assert!(status::condition(recovered.deployment.status.as_ref().unwrap(), "ReplicaFailure").is_none());
}

#[test]
fn a_second_plan_over_the_result_changes_nothing() {
    let d = deployment(2, "v1");
    let sets = vec![set(&d, "v1", 2, 2, 1)];
    let once = run(&d, sets.clone());
    let twice = plan(&once.deployment, sets, &|_| false, at(5000));
    assert!(twice.actions.is_empty());
    assert_eq!(twice.deployment, once.deployment);
}

#[test]
fn the_largest_replica_counts_do_not_overflow() {
    for surge in [IntOrString::Int(i32::MAX), IntOrString::String("9223372036854775807%".into())] {
        let mut deployment = deployment(i32::MAX, "c");
        bounds_of(&mut deployment, surge, IntOrString::String("100%".into()));
        let revision = |set: &mut ReplicaSet| {
            set.annotations_mut().insert(sets::REVISION.into(), i64::MAX.to_string());
        };
        let mut olds = [set(&deployment, "a", i32::MAX, 0, 1), set(&deployment, "b", i32::MAX, i32::MAX, 2)];
        olds.iter_mut().for_each(revision);
        assert!(!run(&deployment, olds.to_vec()).actions.is_empty());
        let mut fewer = deployment.clone();
        fewer.spec.get_or_insert_default().replicas = Some(i32::MAX - 1);
        run(&fewer, olds.to_vec());
    }
}
