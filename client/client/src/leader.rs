//! Leader election by a Lease, with client-go's rules, so that both can share one Lease:
//!
//! - A lease is held by whoever is written in it. Others judge it by their own clock, from
//!   when they saw it change, so clocks need not agree.
//! - Every write names the version it replaces, so of two that try at once one wins.
//! - A leader that could not renew in time stops leading before the others may start.

use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use rand::RngExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{Client, error, metrics};

/// Which lease, under which name, how long.
#[derive(Clone, Debug)]
pub struct Election {
    pub namespace: String,
    pub name: String,
    /// Unique among the candidates: host name and a random part.
    pub identity: String,
    /// How long others wait after the last renewal they saw.
    pub lease_duration: Duration,
    /// How long a leader may fail to renew before it stops leading.
    pub renew_deadline: Duration,
    /// How long between tries.
    pub retry_period: Duration,
}

impl Election {
    /// Upstream's times for its own components.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        Election {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }

    fn check(&self) -> Result<(), LeaderError> {
        let sound = self.lease_duration > self.renew_deadline
            && self.renew_deadline > self.retry_period.mul_f64(JITTER)
            && !self.retry_period.is_zero()
            && !self.identity.is_empty();
        if sound { Ok(()) } else { Err(LeaderError::Configuration) }
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LeaderError {
    #[error(
        "leader election needs an identity, and lease duration > renew deadline > 1.2 x retry period > 0"
    )]
    Configuration,
    /// The leader must stop: another may already be leading.
    #[error("leader election lost")]
    Lost,
}

/// Tries spread over this much of the retry period, so that rivals do not march in step.
const JITTER: f64 = 1.2;

/// Waits for the lease, then runs `lead` until it ends, `shutdown`, or the lease is lost.
///
/// The token handed to `lead` is cancelled in the last two cases; the lease is given back
/// only after `lead` has ended, so there are never two.
pub async fn run<F, Fut>(
    client: Client,
    election: Election,
    shutdown: CancellationToken,
    lead: F,
) -> Result<(), LeaderError>
where
    F: FnOnce(CancellationToken) -> Fut,
    Fut: Future<Output = ()>,
{
    election.check()?;
    let status = metrics::leading(&election.name);
    status.set(0.0);
    let mut candidate = Candidate::new(client, election);
    tokio::select! {
        () = shutdown.cancelled() => return Ok(()),
        () = candidate.acquire() => {}
    }
    tracing::info!(lease = candidate.election.name, identity = candidate.election.identity, "leading");
    status.set(1.0);
    let leading = shutdown.child_token();
    let result = {
        let work = lead(leading.clone());
        tokio::pin!(work);
        tokio::select! {
            () = &mut work => Ok(()),
            () = shutdown.cancelled() => {
                work.await;
                Ok(())
            }
            () = candidate.renew() => {
                tracing::error!(lease = candidate.election.name, "could not renew in time; stopping");
                leading.cancel();
                work.await;
                Err(LeaderError::Lost)
            }
        }
    };
    status.set(0.0);
    if result.is_ok() {
        candidate.release().await;
    }
    result
}

struct Candidate {
    leases: Api<Lease>,
    election: Election,
    observed: Observed,
}

/// The lease as last seen, and since when by our own clock.
#[derive(Default)]
struct Observed {
    lease: Option<Lease>,
    at: Option<Instant>,
}

/// What to do about a lease.
#[derive(Debug, PartialEq)]
enum Step {
    Create(LeaseSpec),
    Write(LeaseSpec),
    /// Another holds it.
    Wait,
}

/// The rules, over what was seen and the time.
fn decide(election: &Election, observed: &Observed, now: Instant, wall: Timestamp) -> Step {
    let mine = |acquired: MicroTime, transitions: i32| LeaseSpec {
        holder_identity: Some(election.identity.clone()),
        lease_duration_seconds: Some(i32::try_from(election.lease_duration.as_secs()).unwrap_or(i32::MAX)),
        acquire_time: Some(acquired),
        renew_time: Some(MicroTime(wall)),
        lease_transitions: Some(transitions),
        ..Default::default()
    };
    let Some(lease) = &observed.lease else {
        return Step::Create(mine(MicroTime(wall), 0));
    };
    let spec = lease.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.as_deref().unwrap_or("");
    let transitions = spec.lease_transitions.unwrap_or(0);
    if holder == election.identity {
        return Step::Write(mine(spec.acquire_time.unwrap_or(MicroTime(wall)), transitions));
    }
    let lasts = Duration::from_secs(spec.lease_duration_seconds.unwrap_or(0).max(0) as u64);
    let held = !holder.is_empty() && observed.at.is_some_and(|at| now < at + lasts);
    if held { Step::Wait } else { Step::Write(mine(MicroTime(wall), transitions.saturating_add(1))) }
}

impl Candidate {
    fn new(client: Client, election: Election) -> Self {
        let leases = Api::namespaced(client, &election.namespace);
        Candidate { leases, election, observed: Observed::default() }
    }

    async fn acquire(&mut self) {
        loop {
            // Renewals every few seconds are not worth a trace; the work they allow is.
            let span = ferry_trace::span("leader.acquire").unsampled();
            match span.in_scope(self.attempt()).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(
                        lease = self.election.name,
                        error = error::message(&error),
                        "acquire failed"
                    );
                }
            }
            let jitter = rand::rng().random_range(1.0..=JITTER);
            tokio::time::sleep(self.election.retry_period.mul_f64(jitter)).await;
        }
    }

    /// Renews until that fails for too long.
    async fn renew(&mut self) {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(self.election.retry_period).await;
            let deadline = renewed + self.election.renew_deadline;
            let span = ferry_trace::span("leader.renew").unsampled();
            match tokio::time::timeout_at(deadline, span.in_scope(self.attempt())).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => return,
                Ok(Err(error)) => {
                    tracing::warn!(
                        lease = self.election.name,
                        error = error::message(&error),
                        "renew failed"
                    );
                }
                Err(_) => return,
            }
            if Instant::now() >= deadline {
                return;
            }
        }
    }

    /// True if the lease is ours afterwards. Who holds it writes at once, which is one request every few
    /// seconds instead of two; only where another has written in between, or holds it, is it looked at.
    async fn attempt(&mut self) -> Result<bool, kube::Error> {
        let holder =
            self.observed.lease.as_ref().and_then(|lease| lease.spec.as_ref()?.holder_identity.as_ref());
        if holder == Some(&self.election.identity) && self.write().await? {
            return Ok(true);
        }
        let seen = self.leases.get_opt(&self.election.name).await?;
        self.observe(seen);
        self.write().await
    }

    async fn write(&mut self) -> Result<bool, kube::Error> {
        let written = match decide(&self.election, &self.observed, Instant::now(), Timestamp::now()) {
            Step::Wait => return Ok(false),
            Step::Create(spec) => {
                let metadata = ObjectMeta { name: Some(self.election.name.clone()), ..Default::default() };
                let lease = Lease { metadata, spec: Some(spec) };
                self.leases.create(&PostParams::default(), &lease).await
            }
            Step::Write(spec) => {
                let mut lease = self.observed.lease.clone().expect("a lease that is written was seen");
                lease.spec = Some(spec);
                self.leases.replace(&self.election.name, &PostParams::default(), &lease).await
            }
        };
        match written {
            Ok(lease) => {
                self.observe(Some(lease));
                Ok(true)
            }
            // A rival was quicker, or someone removed the lease.
            Err(error)
                if error::is_conflict(&error)
                    || error::is_already_exists(&error)
                    || error::is_not_found(&error) && self.observed.lease.is_some() =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn observe(&mut self, lease: Option<Lease>) {
        let spec = |lease: &Option<Lease>| lease.as_ref().and_then(|lease| lease.spec.clone());
        if spec(&self.observed.lease) != spec(&lease) {
            self.observed.at = Some(Instant::now());
        }
        self.observed.lease = lease;
    }

    /// Releases the lease, so that another candidate leads immediately. If that fails, the lease expires.
    async fn release(&mut self) {
        let Some(mut lease) = self.observed.lease.take() else { return };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&self.election.identity) {
            return;
        }
        let now = MicroTime(Timestamp::now());
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        (spec.acquire_time, spec.renew_time) = (Some(now.clone()), Some(now));
        if let Err(error) = self.leases.replace(&self.election.name, &PostParams::default(), &lease).await {
            tracing::warn!(lease = self.election.name, error = error::message(&error), "release failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::test_server::TestServer;

    const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/test";

    /// Candidates that log when they lead, on one server.
    #[derive(Default)]
    struct Race {
        server: TestServer,
        log: Arc<Mutex<Vec<String>>>,
    }

    impl Race {
        fn enter(
            &self,
            identity: &'static str,
            client: Client,
        ) -> (CancellationToken, tokio::task::JoinHandle<Result<(), LeaderError>>) {
            let stop = CancellationToken::new();
            let (log, shutdown) = (self.log.clone(), stop.clone());
            let task = tokio::spawn(run(
                client,
                Election::new("kube-system", "test", identity),
                shutdown,
                move |leading| async move {
                    log.lock().push(format!("{identity} starts"));
                    leading.cancelled().await;
                    log.lock().push(format!("{identity} stops"));
                },
            ));
            (stop, task)
        }

        fn holder(&self) -> String {
            self.server
                .object(PATH)
                .map_or(String::new(), |lease| lease["spec"]["holderIdentity"].as_str().unwrap_or("").into())
        }

        async fn until(&self, entry: &str) {
            let wait = async {
                while !self.log.lock().iter().any(|seen| seen == entry) {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(120), wait)
                .await
                .unwrap_or_else(|_| panic!("never: {entry}"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_leads_and_a_stop_hands_over_at_once() {
        let race = Race::default();
        let (stop_a, a) = race.enter("a", race.server.client());
        race.until("a starts").await;
        let (stop_b, b) = race.enter("b", race.server.client());
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(*race.log.lock(), ["a starts"]);
        let start = Instant::now();
        stop_a.cancel();
        race.until("b starts").await;
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
        assert_eq!(*race.log.lock(), ["a starts", "a stops", "b starts"]);
        assert_eq!(race.server.object(PATH).unwrap()["spec"]["leaseTransitions"], 1);
        stop_b.cancel();
        assert_eq!((a.await.unwrap(), b.await.unwrap()), (Ok(()), Ok(())));
        assert_eq!(race.holder(), "");
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_is_one_request() {
        let race = Race::default();
        let (stop, task) = race.enter("a", race.server.client());
        race.until("a starts").await;
        let before = race.server.requests();
        tokio::time::sleep(Duration::from_secs(60)).await;
        let asked = race.server.requests() - before;
        assert!((28..=31).contains(&asked), "{asked} requests in a minute");
        stop.cancel();
        task.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_killed_leader_is_replaced_after_the_lease() {
        let race = Race::default();
        let (_stop_a, a) = race.enter("a", race.server.client());
        race.until("a starts").await;
        let (stop_b, b) = race.enter("b", race.server.client());
        tokio::time::sleep(Duration::from_secs(10)).await;
        a.abort();
        let start = Instant::now();
        race.until("b starts").await;
        assert!(
            start.elapsed() > Duration::from_secs(12) && start.elapsed() < Duration::from_secs(20),
            "{:?}",
            start.elapsed()
        );
        stop_b.cancel();
        b.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_cannot_renew_stops_before_anyone_else_may_start() {
        let race = Race::default();
        let (_stop, a) = race.enter("a", race.server.client());
        race.until("a starts").await;
        let start = Instant::now();
        race.server.fail(true);
        race.until("a stops").await;
        assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
        assert_eq!(a.await.unwrap(), Err(LeaderError::Lost));
    }

    #[test]
    fn a_lease_is_judged_by_when_it_was_seen_to_change() {
        let election = Election::new("kube-system", "test", "me");
        let wall = Timestamp::from_second(1_000_000).unwrap();
        let spec = |holder: &str| LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(15),
            // Far in the past: the other's clock is wrong, which must not matter.
            renew_time: Some(MicroTime(Timestamp::from_second(1).unwrap())),
            acquire_time: Some(MicroTime(Timestamp::from_second(1).unwrap())),
            lease_transitions: Some(3),
            ..Default::default()
        };
        let seen = Instant::now();
        let check = |holder: &str, age: u64, expected: Option<(i32, i64)>| {
            let observed = Observed {
                lease: Some(Lease { spec: Some(spec(holder)), ..Default::default() }),
                at: Some(seen),
            };
            let step = decide(&election, &observed, seen + Duration::from_secs(age), wall);
            let outcome = match step {
                Step::Write(spec) => {
                    Some((spec.lease_transitions.unwrap(), spec.acquire_time.unwrap().0.as_second()))
                }
                _ => None,
            };
            assert_eq!(outcome, expected, "{holder} after {age} s");
        };
        check("other", 14, None);
        check("other", 15, Some((4, 1_000_000)));
        check("", 0, Some((4, 1_000_000)));
        check("me", 0, Some((3, 1)));
    }

    #[test]
    fn times_that_could_make_two_leaders_are_refused() {
        let good = Election::new("kube-system", "test", "me");
        assert_eq!(good.check(), Ok(()));
        for bad in [
            Election { lease_duration: good.renew_deadline, ..good.clone() },
            Election { retry_period: good.renew_deadline, ..good.clone() },
            Election { retry_period: Duration::ZERO, ..good.clone() },
            Election { identity: String::new(), ..good.clone() },
        ] {
            assert_eq!(bad.check(), Err(LeaderError::Configuration));
        }
    }
}
