use k8s_openapi::api::batch::v1::{SuccessPolicy, SuccessPolicyRule};

use super::*;
use crate::testing::{at, deleting, labels, named, pod};

fn job(parallelism: i32, completions: Option<i32>) -> Job {
    let mut job: Job = named("job");
    let spec = job.spec.get_or_insert_default();
    (spec.parallelism, spec.completions, spec.backoff_limit) = (Some(parallelism), completions, Some(2));
    job
}

fn indexed(parallelism: i32, completions: i32) -> Job {
    let mut job = job(parallelism, Some(completions));
    job.spec.as_mut().unwrap().completion_mode = Some("Indexed".into());
    job
}

fn tracked(name: &str, phase: &str, index: Option<i32>) -> Pod {
    let mut pod = pod(name, "node", phase, None);
    pod.metadata.finalizers = Some(vec![TRACKING.into()]);
    pod.metadata.annotations = index.map(|index| labels(&[(INDEX, &index.to_string())]));
    pod
}

/// Follows a Job as the server would have it: every plan is carried out at once.
struct World {
    job: Job,
    pods: Vec<Pod>,
    failures: Failures,
    clock: i64,
    made: usize,
}

impl World {
    fn new(job: Job) -> Self {
        World { job, pods: Vec::new(), failures: Failures::default(), clock: 0, made: 0 }
    }

    fn step(&mut self) -> Plan {
        let pods: Vec<Arc<Pod>> = self.pods.iter().cloned().map(Arc::new).collect();
        let plan = plan(&self.job, &pods, self.failures, true, at(self.clock));
        // As the API server judges it.
        assert!(plan.status.ready.unwrap_or(0) <= plan.status.active.unwrap_or(0), "{:?}", plan.status);
        self.job.status = Some(plan.status.clone());
        self.failures = plan.failures;
        for released in &plan.release {
            for pod in self.pods.iter_mut().filter(|pod| pod.metadata.uid == released.metadata.uid) {
                pod.metadata.finalizers = None;
            }
        }
        let going: Vec<Option<String>> = plan.delete.iter().map(|pod| pod.uid()).collect();
        self.pods.retain(|pod| !going.contains(&pod.uid()));
        for wanted in &plan.create {
            let name = format!("pod-{}", self.made);
            let mut made = tracked(&name, "Running", wanted.map(|(index, _)| index));
            made.status.get_or_insert_default().conditions =
                pod(&name, "", "", Some(0)).status.unwrap().conditions;
            if let Some((_, failures)) = wanted {
                made.annotations_mut().insert(INDEX_FAILURES.into(), failures.to_string());
            }
            self.made += 1;
            self.pods.push(made);
        }
        plan
    }

    fn settle(&mut self) {
        (0..6).for_each(|_| {
            self.step();
        });
    }

    /// The oldest running pod ends.
    fn end_one(&mut self, phase: &str) {
        let pod = self.pods.iter_mut().find(|pod| is_active(pod)).expect("one is running");
        pod.status.as_mut().unwrap().phase = Some(phase.into());
        self.clock += 10_000;
    }

    fn status(&self) -> &JobStatus {
        self.job.status.as_ref().unwrap()
    }

    fn running(&self) -> usize {
        self.pods.iter().filter(|pod| is_active(pod)).count()
    }

    fn reason(&self, kind: &str) -> Option<String> {
        let conditions = self.status().conditions.iter().flatten();
        conditions.into_iter().find(|c| c.type_ == kind && c.status == "True").and_then(|c| c.reason.clone())
    }
}

#[test]
fn completions_are_counted_once_each_and_end_the_job() {
    let mut world = World::new(job(2, Some(3)));
    world.settle();
    assert_eq!(world.running(), 2);
    for _ in 0..3 {
        world.end_one("Succeeded");
        world.settle();
    }
    assert_eq!((world.status().succeeded, world.status().failed), (Some(3), None));
    assert_eq!(world.reason("Complete").as_deref(), Some("CompletionsReached"));
    assert!(world.status().completion_time.is_some() && world.made == 3);
    let again = world.step();
    assert!(again.create.is_empty() && again.events.is_empty());
}

#[test]
fn the_end_of_a_pod_is_noted_before_its_finalizer_goes_and_counted_after() {
    let job = job(1, Some(2));
    let ended = Arc::new(tracked("a", "Succeeded", None));
    let first = plan(&job, std::slice::from_ref(&ended), Failures::default(), true, at(0));
    assert_eq!(
        first.status.uncounted_terminated_pods.as_ref().unwrap().succeeded,
        Some(vec!["uid-a".into()])
    );
    assert_eq!((first.status.succeeded, first.release.len()), (None, 1));
    // The finalizer could not be removed: nothing is counted, the release is tried again.
    let noted = Job { status: Some(first.status), ..job.clone() };
    let second = plan(&noted, std::slice::from_ref(&ended), Failures::default(), true, at(1));
    assert_eq!((second.status.succeeded, second.release.len()), (None, 1));
    // The pod is gone altogether: counted, once.
    let third = plan(&noted, &[], Failures::default(), true, at(2));
    assert_eq!(third.status.succeeded, Some(1));
    let counted = Job { status: Some(third.status), ..job };
    assert_eq!(plan(&counted, &[], Failures::default(), true, at(3)).status.succeeded, Some(1));
}

#[test]
fn too_many_failures_end_the_job_and_its_pods() {
    let mut world = World::new(job(2, Some(5)));
    world.settle();
    for _ in 0..3 {
        world.end_one("Failed");
        world.settle();
        world.clock += 1000;
        world.settle();
    }
    assert_eq!(world.reason("Failed").as_deref(), Some("BackoffLimitExceeded"));
    assert_eq!((world.status().failed, world.running()), (Some(3), 0));
}

#[test]
fn a_failed_pod_is_replaced_later_and_later() {
    let mut world = World::new(job(1, Some(1)));
    world.step();
    world.end_one("Failed");
    let plan = world.step();
    assert_eq!((plan.create.len(), plan.again), (0, Some(Duration::from_secs(10))));
    world.clock += 10;
    assert_eq!(world.step().create.len(), 1);
    world.end_one("Failed");
    assert_eq!(world.step().again, Some(Duration::from_secs(20)));
}

#[test]
fn every_index_succeeds_once() {
    let mut world = World::new(indexed(2, 3));
    let first = world.step();
    assert_eq!(first.create, [Some((0, 0)), Some((1, 0))]);
    world.end_one("Succeeded");
    world.settle();
    assert_eq!(world.status().completed_indexes.as_deref(), Some("0"));
    world.end_one("Failed");
    world.settle();
    world.clock += 1000;
    world.settle();
    let running: BTreeSet<i32> =
        world.pods.iter().filter(|pod| is_active(pod)).filter_map(index_of).collect();
    assert_eq!(running, BTreeSet::from([1, 2]));
    world.end_one("Succeeded");
    world.settle();
    world.end_one("Succeeded");
    world.settle();
    assert_eq!(world.status().completed_indexes.as_deref(), Some("0-2"));
    assert!(world.reason("Complete").is_some());
}

#[test]
fn two_pods_of_one_index_become_one() {
    let job = indexed(2, 2);
    let pods = [
        tracked("a", "Running", Some(0)),
        tracked("b", "Running", Some(0)),
        tracked("c", "Running", Some(7)),
    ];
    let pods: Vec<Arc<Pod>> = pods.into_iter().map(Arc::new).collect();
    let plan = plan(&job, &pods, Failures::default(), true, at(0));
    assert_eq!((plan.delete.len(), plan.create.len()), (2, 1));
}

#[test]
fn an_index_that_fails_too_often_does_not_end_the_others() {
    let mut job = indexed(2, 2);
    job.spec.as_mut().unwrap().backoff_limit_per_index = Some(1);
    job.spec.as_mut().unwrap().backoff_limit = Some(i32::MAX);
    let mut world = World::new(job);
    world.settle();
    for _ in 0..2 {
        let failing = world
            .pods
            .iter_mut()
            .find(|pod| is_active(pod) && index_of(pod) == Some(0))
            .expect("index 0 runs");
        failing.status.as_mut().unwrap().phase = Some("Failed".into());
        world.clock += 10_000;
        world.settle();
        world.clock += 10_000;
        world.settle();
    }
    assert_eq!(world.status().failed_indexes.as_deref(), Some("0"));
    assert_eq!(world.running(), 1);
    world.end_one("Succeeded");
    world.settle();
    assert_eq!(world.reason("Failed").as_deref(), Some("FailedIndexes"));
}

#[test]
fn a_clock_that_goes_back_neither_ends_a_job_nor_keeps_it_waiting() {
    let mut job = job(1, Some(1));
    job.spec.as_mut().unwrap().active_deadline_seconds = Some(600_000);
    let mut world = World::new(job);
    world.clock = 100_000;
    world.settle();
    world.end_one("Failed");
    world.settle();
    world.clock = 50_000;
    let again = world.step().again.expect("it backs off");
    assert_eq!(world.reason("Failed"), None);
    // the back-off is counted from now, not from a failure that has yet to come
    world.clock += again.as_secs() as i64 + 1;
    world.settle();
    assert_eq!(world.running(), 1, "after {again:?}");
}

#[test]
fn a_success_policy_ends_the_job_early() {
    let mut job = indexed(3, 3);
    job.spec.as_mut().unwrap().success_policy = Some(SuccessPolicy {
        rules: vec![SuccessPolicyRule { succeeded_indexes: Some("0,2".into()), succeeded_count: Some(1) }],
    });
    let mut world = World::new(job);
    world.settle();
    world.end_one("Succeeded");
    world.settle();
    assert_eq!(world.reason("Complete").as_deref(), Some("SuccessPolicy"));
    assert_eq!(world.running(), 0);
}

#[test]
fn a_suspended_job_has_no_pods_and_starts_its_time_anew() {
    let mut world = World::new(job(2, Some(2)));
    world.settle();
    world.job.spec.as_mut().unwrap().suspend = Some(true);
    let plan = world.step();
    assert_eq!((plan.delete.len(), plan.events[0].1.as_str()), (2, "Suspended"));
    assert!(world.status().start_time.is_none() && world.reason("Suspended").is_some());
    world.settle();
    assert_eq!(world.running(), 0);
    world.job.spec.as_mut().unwrap().suspend = Some(false);
    world.clock = 500;
    world.settle();
    assert_eq!(world.running(), 2);
    assert_eq!(world.status().start_time, Some(Time(at(500))));
}

#[test]
fn the_deadline_is_watched_and_ends_the_job() {
    let mut job = job(1, Some(1));
    job.spec.as_mut().unwrap().active_deadline_seconds = Some(60);
    let mut world = World::new(job);
    assert_eq!(world.step().again, Some(Duration::from_secs(60)));
    world.clock = 60;
    world.settle();
    assert_eq!(world.reason("Failed").as_deref(), Some("DeadlineExceeded"));
}

#[test]
fn a_work_queue_is_done_when_one_succeeded_and_none_runs() {
    let mut world = World::new(job(3, None));
    world.settle();
    assert_eq!(world.running(), 3);
    for _ in 0..3 {
        world.end_one("Succeeded");
        world.settle();
    }
    assert!(world.reason("Complete").is_some());
    assert_eq!(world.made, 3);
}

#[test]
fn the_job_is_over_only_when_the_last_pod_is() {
    let job = job(1, Some(1));
    let mut ended = tracked("a", "Succeeded", None);
    ended.metadata.finalizers = None;
    let leaving = Arc::new(deleting(pod("b", "node", "Running", None)));
    let mut status = JobStatus { succeeded: Some(1), start_time: Some(Time(at(0))), ..Default::default() };
    status.uncounted_terminated_pods = Some(Default::default());
    let job = Job { status: Some(status), ..job };
    let waiting = plan(&job, &[Arc::new(ended.clone()), leaving], Failures::default(), true, at(0));
    assert!(holds(&waiting.status, "SuccessCriteriaMet") && !holds(&waiting.status, "Complete"));
    let done = plan(&job, &[Arc::new(ended)], Failures::default(), true, at(0));
    assert!(holds(&done.status, "Complete"));
}

#[test]
fn no_pods_are_created_before_the_last_writes_are_seen() {
    let plan = plan(&job(2, Some(2)), &[], Failures::default(), false, at(0));
    assert!(plan.create.is_empty() && plan.delete.is_empty());
}
