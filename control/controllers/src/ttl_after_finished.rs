//! Removes finished Jobs that asked for it, after the time they asked for.

use std::sync::Arc;
use std::time::Duration;

use ferry_client::{Attempt, Client, Error, Informer, NamespacedName, Outcome, error};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Preconditions};

use crate::context::{Context, Running};

const CONTROLLER: &str = "ttl-after-finished-controller";

/// How long until a Job may go; None if it does not ask to, or has not finished.
fn expires_in(job: &Job, now: Timestamp) -> Option<Duration> {
    let ttl = job.spec.as_ref()?.ttl_seconds_after_finished?;
    if job.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let finished =
        conditions.iter().find(|c| c.status == "True" && (c.type_ == "Complete" || c.type_ == "Failed"))?;
    let since = finished.last_transition_time.as_ref()?.0;
    let passed = Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO);
    Some(Duration::from_secs(ttl.max(0) as u64).saturating_sub(passed))
}

struct Controller {
    client: Client,
    jobs: Informer<Job>,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let jobs = builder.informer::<Job>();
    let controller = Controller { client: context.client.clone(), jobs: jobs.clone() };
    builder.of(&jobs, Arc::new(controller)).run(Controller::reconcile)
}

impl Controller {
    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        match self.jobs.get(&key).and_then(|job| expires_in(&job, Timestamp::now())) {
            None => Ok(Outcome::Done),
            Some(left) if !left.is_zero() => Ok(Outcome::After(left)),
            Some(_) => remove(&self.client, &key).await,
        }
    }
}

/// The Job is read once more: its TTL may just have been raised.
async fn remove(client: &Client, key: &NamespacedName) -> Result<Outcome, Error> {
    let api: Api<Job> = Api::namespaced(client.clone(), &key.namespace);
    let Some(fresh) = api.get_opt(&key.name).await.attempting("read job before removing it")? else {
        return Ok(Outcome::Done);
    };
    match expires_in(&fresh, Timestamp::now()) {
        None => Ok(Outcome::Done),
        Some(left) if !left.is_zero() => Ok(Outcome::After(left)),
        Some(_) => {
            let exactly = Preconditions { uid: fresh.uid(), resource_version: fresh.resource_version() };
            let deleted = api.delete(&key.name, &DeleteParams::foreground().preconditions(exactly)).await;
            error::ignore_not_found(deleted).attempting("remove finished job")?;
            Ok(Outcome::Done)
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::batch::v1::JobCondition;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::testing::{at, deleting, named};

    #[test]
    fn a_finished_job_expires_when_its_time_is_up() {
        let job = |ttl: Option<i32>, finished: Option<(&str, &str)>| {
            let mut job: Job = named("job");
            job.spec.get_or_insert_default().ttl_seconds_after_finished = ttl;
            job.status.get_or_insert_default().conditions = finished.map(|(kind, status)| {
                vec![JobCondition {
                    type_: kind.into(),
                    status: status.into(),
                    last_transition_time: Some(Time(at(0))),
                    ..Default::default()
                }]
            });
            job
        };
        let check = |job: &Job, now: i64, expected: Option<u64>| {
            assert_eq!(expires_in(job, at(now)), expected.map(Duration::from_secs));
        };
        check(&job(Some(10), Some(("Complete", "True"))), 4, Some(6));
        check(&job(Some(10), Some(("Failed", "True"))), 10, Some(0));
        check(&job(Some(0), Some(("Failed", "True"))), 0, Some(0));
        check(&job(Some(10), Some(("Complete", "False"))), 99, None);
        check(&job(Some(10), None), 99, None);
        check(&job(None, Some(("Complete", "True"))), 99, None);
        check(&deleting(job(Some(10), Some(("Complete", "True")))), 99, None);
        check(&job(Some(10), Some(("Complete", "True"))), -100, Some(10));
    }
}
