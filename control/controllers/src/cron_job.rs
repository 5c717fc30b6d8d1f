//! CronJob: makes Jobs at given times.

use std::sync::Arc;
use std::time::Duration;

use ferry_client::informer::controller_uid;
use ferry_client::{
    Attempt, Client, Error, EventType, Index, Informer, NamespacedName, Outcome, Recorder, error, undecoded,
};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams, Preconditions};

use crate::context::{Context, Running};
use crate::cron_schedule::Schedule;
use crate::metrics;
use crate::ownership::controller_ref;

const CONTROLLER: &str = "cronjob-controller";
const SCHEDULED_AT: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// More missed times than this are a clock that jumped, not work to catch up with.
const MANY: usize = 100;

/// How a Job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Complete,
    Failed,
}

fn ended(job: &Job) -> Option<Ended> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().filter(|condition| condition.status == "True").find_map(|condition| {
        match condition.type_.as_str() {
            "Complete" => Some(Ended::Complete),
            "Failed" => Some(Ended::Failed),
            _ => None,
        }
    })
}

/// What to do about a CronJob now.
#[derive(Debug, Default)]
struct Plan {
    status: CronJobStatus,
    delete: Vec<Arc<Job>>,
    create: Option<Job>,
    events: Vec<(EventType, &'static str, String)>,
    again: Option<Duration>,
}

/// `missing` are those in the status' list that there no longer are; what the informer has not shown is not missing yet.
fn plan(cron: &CronJob, jobs: &[Arc<Job>], missing: &[ObjectReference], now: Timestamp) -> Plan {
    let mut plan = Plan { status: cron.status.clone().unwrap_or_default(), ..Default::default() };
    follow_jobs(jobs, missing, &mut plan);
    prune_history(cron, jobs, &mut plan);
    let spec = &cron.spec;
    if cron.metadata.deletion_timestamp.is_some() || spec.suspend == Some(true) {
        return plan;
    }
    let zone = match spec.time_zone.as_deref() {
        None => TimeZone::UTC,
        Some(name) => match TimeZone::get(name) {
            Ok(zone) => zone,
            Err(error) => {
                plan.events.push((
                    EventType::Warning,
                    "UnknownTimeZone",
                    format!("invalid timeZone: {name:?}: {error}"),
                ));
                return plan;
            }
        },
    };
    let schedule = match Schedule::parse(&spec.schedule) {
        Ok(schedule) => schedule,
        Err(error) => {
            let note = format!("unparseable schedule: {:?} : {error}", spec.schedule);
            plan.events.push((EventType::Warning, "UnparseableSchedule", note));
            return plan;
        }
    };
    let next = schedule.next(now, &zone);
    if next.is_none() {
        // 30 February: it can be read and never comes. Upstream's words.
        let note = format!(
            "invalid schedule: {} : time difference between two schedules is less than 1 second",
            spec.schedule
        );
        plan.events.push((EventType::Warning, "InvalidSchedule", note));
        return plan;
    }
    start_due(cron, jobs, &schedule, &zone, now, &mut plan);
    plan.again = next.map(|next| {
        Duration::try_from(next.duration_since(now)).unwrap_or(Duration::ZERO) + Duration::from_millis(100)
    });
    plan
}

/// Which Jobs run, and when one last succeeded.
fn follow_jobs(jobs: &[Arc<Job>], missing: &[ObjectReference], plan: &mut Plan) {
    let active = plan.status.active.take().unwrap_or_default();
    for job in jobs {
        let listed = active.iter().any(|reference| reference.uid == job.metadata.uid);
        match ended(job) {
            None if !listed && job.metadata.deletion_timestamp.is_none() => {
                let note =
                    format!("Saw a job that the controller did not create or forgot: {}", job.name_any());
                plan.events.push((EventType::Warning, "UnexpectedJob", note));
            }
            Some(how) if listed => {
                let note = format!("Saw completed job: {}, condition: {how:?}", job.name_any());
                plan.events.push((EventType::Normal, "SawCompletedJob", note));
            }
            _ => {}
        }
        if ended(job) == Some(Ended::Complete) {
            let completed = job.status.as_ref().and_then(|status| status.completion_time.clone());
            plan.status.last_successful_time = plan.status.last_successful_time.take().max(completed);
        }
    }
    for job in missing {
        let note = format!("Active job went missing: {}", job.name.as_deref().unwrap_or_default());
        plan.events.push((EventType::Normal, "MissingJob", note));
    }
    let is_over = |reference: &ObjectReference| {
        let job = jobs.iter().find(|job| job.metadata.uid == reference.uid);
        missing.contains(reference) || job.is_some_and(|job| ended(job).is_some())
    };
    let running: Vec<ObjectReference> = active.into_iter().filter(|reference| !is_over(reference)).collect();
    plan.status.active = (!running.is_empty()).then_some(running);
}

/// Finished Jobs beyond the limits, oldest first.
fn prune_history(cron: &CronJob, jobs: &[Arc<Job>], plan: &mut Plan) {
    let spec = &cron.spec;
    let limits = [
        (Ended::Complete, spec.successful_jobs_history_limit.unwrap_or(3)),
        (Ended::Failed, spec.failed_jobs_history_limit.unwrap_or(1)),
    ];
    for (how, limit) in limits {
        let mut finished: Vec<&Arc<Job>> = jobs.iter().filter(|job| ended(job) == Some(how)).collect();
        finished.sort_by_key(|job| {
            (job.status.as_ref().and_then(|status| status.start_time.clone()), job.name_any())
        });
        let surplus = finished.len().saturating_sub(limit.max(0) as usize);
        plan.delete.extend(finished[..surplus].iter().map(|job| (*job).clone()));
    }
}

fn start_due(
    cron: &CronJob,
    jobs: &[Arc<Job>],
    schedule: &Schedule,
    zone: &TimeZone,
    now: Timestamp,
    plan: &mut Plan,
) {
    let spec = &cron.spec;
    let deadline = spec.starting_deadline_seconds.map(|seconds| Duration::from_secs(seconds.max(0) as u64));
    let Some(due) = last_due(cron, schedule, zone, deadline, now, plan) else { return };
    let age = Duration::try_from(now.duration_since(due)).unwrap_or(Duration::ZERO);
    if deadline.is_some_and(|deadline| age > deadline) {
        plan.events.push((
            EventType::Warning,
            "MissSchedule",
            format!("Missed scheduled time to start a job: {due}"),
        ));
        return;
    }
    let name = job_name(cron, due);
    let running: Vec<&Arc<Job>> =
        jobs.iter().filter(|job| ended(job).is_none() && job.metadata.deletion_timestamp.is_none()).collect();
    if jobs.iter().any(|job| job.name_any() == name) {
        plan.status.last_schedule_time = Some(Time(due));
        return;
    }
    match spec.concurrency_policy.as_deref() {
        Some("Forbid") if !running.is_empty() => {
            let note = "Not starting job because prior execution is running and concurrency policy is Forbid";
            plan.events.push((EventType::Normal, "JobAlreadyActive", note.into()));
            return;
        }
        Some("Replace") => {
            plan.delete.extend(running.into_iter().cloned());
            plan.status.active = None;
        }
        _ => {}
    }
    plan.create = Some(make_job(cron, name, due, zone));
    plan.status.last_schedule_time = Some(Time(due));
}

/// The latest time at which a Job was due and that has not been dealt with.
fn last_due(
    cron: &CronJob,
    schedule: &Schedule,
    zone: &TimeZone,
    deadline: Option<Duration>,
    now: Timestamp,
    plan: &mut Plan,
) -> Option<Timestamp> {
    let last = cron
        .status
        .as_ref()
        .and_then(|status| status.last_schedule_time.as_ref())
        .or(cron.metadata.creation_timestamp.as_ref());
    let mut from = last.map_or(now, |time| time.0);
    if let Some(earliest) = deadline.and_then(|deadline| now.checked_sub(deadline).ok()) {
        from = from.max(earliest);
    }
    let mut due = None;
    let mut missed = 0;
    while let Some(next) = schedule.next(from, zone).filter(|next| *next <= now) {
        (due, from) = (Some(next), next);
        missed += 1;
        if missed == MANY {
            let note = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
            plan.events.push((EventType::Warning, "TooManyMissedTimes", note.into()));
            // From a little before now the latest is found without walking through all.
            from = from.max(now.checked_sub(Duration::from_secs(3600)).unwrap_or(from));
        }
    }
    due
}

/// The name says which time it is for, so that one time never makes two Jobs.
fn job_name(cron: &CronJob, due: Timestamp) -> String {
    format!("{}-{}", cron.name_any(), due.as_second() / 60)
}

fn make_job(cron: &CronJob, name: String, due: Timestamp, zone: &TimeZone) -> Job {
    let template = cron.spec.job_template.clone();
    let meta = template.metadata.unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    let at = due.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string().replace("+00:00", "Z");
    annotations.insert(SCHEDULED_AT.into(), at);
    Job {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: cron.namespace(),
            labels: meta.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![controller_ref(cron)]),
            ..Default::default()
        },
        spec: template.spec,
        status: None,
    }
}

struct Controller {
    client: Client,
    crons: Informer<CronJob>,
    jobs: Index<Job>,
    recorder: Recorder,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let (crons, jobs) = (builder.informer::<CronJob>(), builder.informer::<Job>());
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        crons: crons.clone(),
        jobs: jobs.index("controller", controller_uid),
        recorder: context.recorder(CONTROLLER),
    });
    builder.of(&crons, controller).owns(&jobs).run(Controller::reconcile)
}

impl Controller {
    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(cron) = self.crons.get(&key) else { return Ok(Outcome::Done) };
        let jobs = self.jobs.get(&cron.uid().unwrap_or_default());
        let api: Api<Job> = Api::namespaced(self.client.clone(), &key.namespace);
        let missing = missing(&api, &cron, &jobs).await?;
        let mut plan = plan(&cron, &jobs, &missing, Timestamp::now());
        for (kind, reason, note) in plan.events.drain(..) {
            self.recorder.event(&*cron, kind, reason, "Schedule", note);
        }
        for job in &plan.delete {
            let only_this = Preconditions { uid: job.uid(), resource_version: None };
            let deleted = undecoded::delete(
                &api,
                &job.name_any(),
                &DeleteParams::background().preconditions(only_this),
            )
            .await;
            if error::ignore_not_found(deleted).attempting("delete job")?.is_some() {
                let note = format!("Deleted job {}", job.name_any());
                self.recorder.event(&*cron, EventType::Normal, "SuccessfulDelete", "Delete", note);
            }
        }
        let mut status = plan.status;
        if let Some(job) = plan.create
            && let Some(created) = self.create(&api, &cron, &job).await?
        {
            let due = status.last_schedule_time.as_ref();
            let late = due.map(|due| Timestamp::now().duration_since(due.0));
            metrics::cron_job_created(
                late.and_then(|late| Duration::try_from(late).ok()).unwrap_or_default(),
            );
            status.active.get_or_insert_default().push(reference(&created));
        }
        self.write_status(&cron, status).await?;
        Ok(plan.again.map_or(Outcome::Done, Outcome::After))
    }

    async fn create(&self, api: &Api<Job>, cron: &CronJob, job: &Job) -> Result<Option<Job>, Error> {
        match api.create(&PostParams::default(), job).await {
            Ok(created) => {
                let note = format!("Created job {}", created.name_any());
                self.recorder.event(cron, EventType::Normal, "SuccessfulCreate", "Create", note);
                Ok(Some(created))
            }
            Err(refused)
                if error::is_already_exists(&refused) || error::is_namespace_terminating(&refused) =>
            {
                Ok(None)
            }
            Err(failed) => {
                let note = format!("Error creating job: {}", error::message(&failed));
                self.recorder.event(cron, EventType::Warning, "FailedCreate", "Create", note);
                Err(Error::new("create job", failed))
            }
        }
    }

    async fn write_status(&self, cron: &CronJob, status: CronJobStatus) -> Result<(), Error> {
        let mut next = cron.clone();
        next.status = Some(status);
        if next.status != cron.status {
            let api: Api<CronJob> =
                Api::namespaced(self.client.clone(), &cron.namespace().unwrap_or_default());
            let written = api.replace_status(&cron.name_any(), &PostParams::default(), &next).await;
            error::ignore_not_found(written).attempting("write status")?;
        }
        Ok(())
    }
}

/// The listed Jobs that are gone. The server is asked: the informer may not have shown a new one yet.
async fn missing(api: &Api<Job>, cron: &CronJob, jobs: &[Arc<Job>]) -> Result<Vec<ObjectReference>, Error> {
    let mut missing = Vec::new();
    for reference in cron.status.iter().flat_map(|status| status.active.iter().flatten()) {
        if jobs.iter().any(|job| job.metadata.uid == reference.uid) {
            continue;
        }
        let job = api.get_metadata_opt(reference.name.as_deref().unwrap_or_default()).await;
        if job.attempting("get active job")?.is_none_or(|job| job.metadata.uid != reference.uid) {
            missing.push(reference.clone());
        }
    }
    Ok(missing)
}

fn reference(job: &Job) -> ObjectReference {
    ferry_client::events::reference(job)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::batch::v1::JobCondition;

    use super::*;
    use crate::testing::{at, named, owned_by};

    fn cron(policy: &str, deadline: Option<i64>) -> CronJob {
        let mut cron: CronJob = named("tick");
        let spec = &mut cron.spec;
        spec.schedule = "* * * * *".into();
        spec.concurrency_policy = Some(policy.into());
        spec.starting_deadline_seconds = deadline;
        cron
    }

    fn job(name: &str, how: Option<&str>) -> Arc<Job> {
        let mut job: Job = owned_by(named(name), "uid-tick");
        job.status.get_or_insert_default().conditions = how
            .map(|how| vec![JobCondition { type_: how.into(), status: "True".into(), ..Default::default() }]);
        Arc::new(job)
    }

    fn plan(cron: &CronJob, jobs: &[Arc<Job>], now: Timestamp) -> Plan {
        super::plan(cron, jobs, &[], now)
    }

    fn reasons(plan: &Plan) -> Vec<&str> {
        plan.events.iter().map(|(_, reason, _)| *reason).collect()
    }

    // at(0) is 22:13:20 UTC, so minutes begin 40 seconds later.
    #[test]
    fn a_job_is_made_when_its_time_has_come_and_once() {
        assert!(plan(&cron("Allow", None), &[], at(10)).create.is_none());
        let due = plan(&cron("Allow", None), &[], at(45));
        let made = due.create.expect("a minute has begun");
        assert_eq!(made.name_any(), format!("tick-{}", at(40).as_second() / 60));
        assert_eq!(due.status.last_schedule_time, Some(Time(at(40))));
        assert_eq!(due.again.map(|again| again.as_secs()), Some(55));
        let mut later = cron("Allow", None);
        later.status = Some(due.status);
        assert!(plan(&later, &[], at(50)).create.is_none());
        assert!(plan(&cron("Allow", None), &[Arc::new(made)], at(45)).create.is_none());
    }

    #[test]
    fn concurrency_is_allowed_forbidden_or_replaced() {
        let running = [job("tick-1", None)];
        assert!(plan(&cron("Allow", None), &running, at(45)).create.is_some());
        let forbidden = plan(&cron("Forbid", None), &running, at(45));
        assert!(forbidden.create.is_none() && reasons(&forbidden).contains(&"JobAlreadyActive"));
        let replaced = plan(&cron("Replace", None), &running, at(45));
        assert!(replaced.create.is_some() && replaced.delete.len() == 1);
    }

    #[test]
    fn a_time_missed_by_too_much_is_left_out_and_the_latest_is_caught_up() {
        let caught_up = plan(&cron("Allow", None), &[], at(40 + 60 * 30 + 5));
        assert_eq!(caught_up.status.last_schedule_time, Some(Time(at(40 + 60 * 30))));
        let late = plan(&cron("Allow", Some(2)), &[], at(45));
        assert!(late.create.is_none());
        let jumped = plan(&cron("Allow", None), &[], at(1_000_000));
        assert!(jumped.create.is_some() && reasons(&jumped).contains(&"TooManyMissedTimes"));
    }

    #[test]
    fn a_schedule_that_never_comes_is_told() {
        let mut never = cron("Allow", None);
        never.spec.schedule = "59 23 31 2 *".into();
        let plan = plan(&never, &[], at(45));
        assert!(plan.create.is_none() && plan.again.is_none());
        assert_eq!(reasons(&plan), ["InvalidSchedule"]);
        assert!(plan.events[0].2.starts_with("invalid schedule: 59 23 31 2 * : "), "{}", plan.events[0].2);
    }

    #[test]
    fn a_clock_that_goes_back_makes_no_job_twice_and_no_tight_loop() {
        let mut cron = cron("Allow", None);
        let due = plan(&cron, &[], at(45));
        let made = due.create.expect("a minute has begun");
        cron.status = Some(due.status);
        // an hour back, with the job there and with it gone: its time is in the future now
        for jobs in [vec![Arc::new(made)], vec![]] {
            let back = plan(&cron, &jobs, at(45 - 3600));
            assert!(back.create.is_none());
            assert_eq!(back.status.last_schedule_time, Some(Time(at(40))), "what was done stays done");
            assert!(back.again.is_some_and(|again| again >= Duration::from_secs(1)), "{:?}", back.again);
        }
        // and forward again: the next minute is due, once
        assert!(plan(&cron, &[], at(101)).create.is_some());
    }

    #[test]
    fn suspended_and_malformed_ones_make_nothing() {
        let mut suspended = cron("Allow", None);
        suspended.spec.suspend = Some(true);
        assert!(plan(&suspended, &[], at(45)).create.is_none());
        let mut malformed = cron("Allow", None);
        malformed.spec.schedule = "now and then".into();
        assert_eq!(reasons(&plan(&malformed, &[], at(45))), ["UnparseableSchedule"]);
        let mut nowhere = cron("Allow", None);
        nowhere.spec.time_zone = Some("Atlantis/Centre".into());
        assert_eq!(reasons(&plan(&nowhere, &[], at(45))), ["UnknownTimeZone"]);
    }

    #[test]
    fn history_is_kept_to_its_limits() {
        let jobs: Vec<Arc<Job>> = (0..5)
            .map(|index| job(&format!("done-{index}"), Some("Complete")))
            .chain((0..3).map(|index| job(&format!("failed-{index}"), Some("Failed"))))
            .collect();
        let plan = plan(&cron("Allow", None), &jobs, at(10));
        let names: Vec<String> = plan.delete.iter().map(|job| job.name_any()).collect();
        assert_eq!(names, ["done-0", "done-1", "failed-0", "failed-1"]);
    }

    #[test]
    fn active_jobs_leave_the_list_when_they_end_or_vanish() {
        let mut cron = cron("Allow", None);
        let listed = |name: &str| ObjectReference {
            name: Some(name.into()),
            uid: Some(format!("uid-{name}")),
            ..Default::default()
        };
        cron.status.get_or_insert_default().active =
            Some(["runs", "ended", "gone", "unseen"].map(listed).into());
        let jobs = [job("runs", None), job("ended", Some("Complete"))];
        let plan = super::plan(&cron, &jobs, &[listed("gone")], at(10));
        assert_eq!(plan.status.active.as_deref(), Some(&["runs", "unseen"].map(listed)[..]));
        assert_eq!(reasons(&plan), ["SawCompletedJob", "MissingJob"]);
    }
}
