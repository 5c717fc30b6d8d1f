//! API priority and fairness (KEP 1040): FlowSchemas sort requests into flows and priority levels, and each level has
//! seats, queues and a share of the server's concurrency.
//!
//! ```text
//!   request ─► classify ─► work_estimate ─► levels: queue_set (shuffle_sharding, virtual time) ─► Seats, until dropped
//!   FlowSchemas, PriorityLevelConfigurations ─► levels (demand, allocation) ◄─ every ten seconds
//! ```
//!
//! The deciders are pure and take the time; [`Fairness`] owns them behind one short lock. [`keeper`] keeps the bootstrap
//! objects and the schemas' `Dangling` condition. Without priority and fairness two counters limit reads and writes.

mod allocation;
mod bootstrap;
mod classify;
mod demand;
mod dump;
mod keeper;
mod levels;
mod max_in_flight;
pub mod metrics;
mod queue_set;
mod retry_after;
mod shuffle_sharding;
mod watch_count;
mod work_estimate;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ferry_api::Status;
use ferry_auth::User;
use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use self::classify::Schema;
use self::levels::{LevelSpec, Levels};
use self::max_in_flight::{InFlight, MaxInFlight};
use self::metrics::Metrics;
use self::queue_set::{Description, Start, Ticket};
pub use self::watch_count::CountedWatch;
use self::watch_count::WatchCount;
pub use self::work_estimate::Stored;
use self::work_estimate::{WorkEstimate, estimate};
use crate::request_info::{Query, RequestInfo};

pub const GROUP: &str = "flowcontrol.apiserver.k8s.io";

/// How often limits follow the demand.
const ADJUSTMENT_PERIOD: Duration = Duration::from_secs(10);
/// No request waits in a queue for longer.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A watch holds seats while its initial events are sent, but not for longer.
const LONGEST_WATCH_START: Duration = Duration::from_secs(5);
const REFUSAL: &str = "Too many requests, please try again later.";

/// What limits concurrency.
pub enum FlowControl {
    Fairness(Arc<Fairness>),
    MaxInFlight(Arc<MaxInFlight>),
}

/// The flags that limit concurrency.
#[derive(Debug, Clone, Copy)]
pub struct FlowControlConfig {
    /// `--enable-priority-and-fairness`
    pub enabled: bool,
    /// `--max-requests-inflight` and `--max-mutating-requests-inflight`; their sum is the number of seats.
    pub max_requests: usize,
    pub max_mutating_requests: usize,
    /// `--request-timeout`: a request waits for at most a quarter of it.
    pub request_timeout: Duration,
}

impl Default for FlowControlConfig {
    fn default() -> FlowControlConfig {
        FlowControlConfig {
            enabled: true,
            max_requests: 400,
            max_mutating_requests: 200,
            request_timeout: Duration::from_secs(60),
        }
    }
}

/// The FlowSchema and priority level of a request.
#[derive(Clone)]
pub struct Class {
    schema: Arc<Schema>,
    pub level_uid: String,
}

impl Class {
    pub fn schema_uid(&self) -> &str {
        &self.schema.uid
    }
}

/// What a request occupies until it is dropped.
pub enum Seats {
    Fairness(Occupied),
    InFlight(InFlight),
}

impl FlowControl {
    pub fn new(config: FlowControlConfig) -> FlowControl {
        match config.enabled {
            true => FlowControl::Fairness(Arc::new(Fairness::new(config))),
            false => {
                FlowControl::MaxInFlight(MaxInFlight::new(config.max_requests, config.max_mutating_requests))
            }
        }
    }

    /// `None` for streams, which hold no seats, and without priority and fairness.
    pub fn classify(&self, info: &RequestInfo, user: &User) -> Option<Class> {
        match self {
            FlowControl::Fairness(fairness) if is_limited(info) => fairness.classify(info, user),
            _ => None,
        }
    }

    /// Waits for seats. `stored` says how much a list would load.
    pub async fn acquire(
        &self,
        class: Option<Class>,
        info: &RequestInfo,
        query: &Query,
        user: &User,
        stored: impl FnOnce() -> Option<Stored>,
    ) -> Result<Option<Seats>, Status> {
        match (self, class) {
            _ if !is_limited(info) => Ok(None),
            (FlowControl::Fairness(fairness), Some(class)) => fairness
                .acquire(class, info, query, user, stored)
                .await
                .map(|seats| Some(Seats::Fairness(seats))),
            (FlowControl::Fairness(_), None) => Ok(None),
            (FlowControl::MaxInFlight(limit), _) => match limit.acquire(info, user) {
                Ok(place) => Ok(place.map(Seats::InFlight)),
                Err(()) => Err(Status::too_many_requests(REFUSAL, 1)),
            },
        }
    }

    /// Counts a watch, for the width of the writes that it hears of.
    pub fn count_watch(&self, info: &RequestInfo) -> Option<CountedWatch> {
        match self {
            FlowControl::Fairness(fairness) => Some(fairness.watches.add(info)),
            FlowControl::MaxInFlight(_) => None,
        }
    }

    pub fn fairness(&self) -> Option<&Arc<Fairness>> {
        match self {
            FlowControl::Fairness(fairness) => Some(fairness),
            FlowControl::MaxInFlight(_) => None,
        }
    }
}

/// Of long-running requests only watches hold seats, while they begin.
fn is_limited(info: &RequestInfo) -> bool {
    !info.is_long_running() || info.verb == "watch"
}

/// Priority and fairness of one server.
pub struct Fairness {
    /// Those whose priority level exists, in the order in which they are asked.
    schemas: RwLock<Arc<Vec<Arc<Schema>>>>,
    state: Mutex<State>,
    objects: Mutex<Objects>,
    /// Another configuration is in force.
    changed: Notify,
    /// Other seats expire next.
    expires: Notify,
    watches: Arc<WatchCount>,
    hasher: RandomState,
    wait_limit: Duration,
}

struct State {
    levels: Levels,
    /// Who waits in a queue, by priority level.
    waiters: HashMap<(Arc<str>, Ticket), oneshot::Sender<()>>,
    /// Seats that time frees, the next ones first.
    expiring: BinaryHeap<Reverse<Expiring>>,
    metrics: Metrics,
}

/// When seats are freed, why, and whose they are: priority level and ticket.
type Expiring = (Instant, Expiry, Arc<str>, Ticket);

/// Why time frees seats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Expiry {
    /// The request has finished and the events that it caused are sent.
    Lingered,
    /// The watch has had long enough to begin: a client that reads its initial events slowly holds up nobody.
    WatchBegun,
}

/// The configuration objects, as they are stored.
#[derive(Default)]
struct Objects {
    schemas: BTreeMap<String, FlowSchema>,
    levels: BTreeMap<String, PriorityLevelConfiguration>,
}

impl Fairness {
    fn new(config: FlowControlConfig) -> Fairness {
        let fairness = Fairness {
            schemas: RwLock::default(),
            state: Mutex::new(State {
                levels: Levels::new(config.max_requests + config.max_mutating_requests),
                waiters: HashMap::new(),
                expiring: BinaryHeap::new(),
                metrics: Metrics::default(),
            }),
            objects: Mutex::default(),
            changed: Notify::new(),
            expires: Notify::new(),
            watches: Arc::default(),
            hasher: RandomState::new(),
            wait_limit: (config.request_timeout / 4).min(LONGEST_WAIT),
        };
        fairness.configure();
        fairness
    }

    /// Changes FlowSchemas as they are stored; `None` for one that is gone or cannot be read.
    pub fn set_schemas(&self, changes: impl Iterator<Item = (String, Option<FlowSchema>)>) {
        for (name, schema) in changes {
            let schemas = &mut self.objects.lock().schemas;
            match schema {
                Some(schema) => schemas.insert(name, schema),
                None => schemas.remove(&name),
            };
        }
        self.configure();
    }

    /// Changes PriorityLevelConfigurations as they are stored.
    pub fn set_levels(&self, changes: impl Iterator<Item = (String, Option<PriorityLevelConfiguration>)>) {
        for (name, level) in changes {
            let levels = &mut self.objects.lock().levels;
            match level {
                Some(level) => levels.insert(name, level),
                None => levels.remove(&name),
            };
        }
        self.configure();
    }

    /// Takes over what the objects say. The mandatory ones hold even where they are not stored.
    fn configure(&self) {
        let objects = self.objects.lock();
        let mut specs: BTreeMap<Arc<str>, LevelSpec> = BTreeMap::new();
        for (name, level) in &objects.levels {
            match LevelSpec::read(level) {
                Some(spec) => _ = specs.insert(name.as_str().into(), spec),
                None => tracing::warn!(name, "a PriorityLevelConfiguration is invalid and has no effect"),
            }
        }
        for boot in bootstrap::LEVELS.iter().filter(|boot| boot.mandatory) {
            let name = boot.object.metadata.name.as_deref().unwrap_or("");
            if let (false, Some(spec)) = (specs.contains_key(name), LevelSpec::read(&boot.object)) {
                specs.insert(name.into(), spec);
            }
        }
        let stored = objects.schemas.values().map(|schema| Arc::new(Schema::new(schema)));
        let mut schemas: Vec<Arc<Schema>> =
            stored.filter(|schema| specs.contains_key(&schema.level)).collect();
        for boot in bootstrap::SCHEMAS.iter().filter(|boot| boot.mandatory) {
            let schema = Schema::new(&boot.object);
            if !schemas.iter().any(|stored| stored.name == schema.name) {
                schemas.push(Arc::new(schema));
            }
        }
        classify::sort(&mut schemas);
        let mut state = self.state.lock();
        state.levels.configure(specs, Instant::now());
        state.metrics.retain(|name| schemas.iter().any(|schema| &*schema.name == name));
        state.wake_all();
        *self.schemas.write() = Arc::new(schemas);
        drop((state, objects));
        self.changed.notify_one();
    }

    fn classify(&self, info: &RequestInfo, user: &User) -> Option<Class> {
        let schemas = self.schemas.read().clone();
        let schema = classify::classify(&schemas, info, user)?.clone();
        let state = self.state.lock();
        let level_uid = state.levels.get(&schema.level)?.spec.uid.clone();
        Some(Class { schema, level_uid })
    }

    async fn acquire(
        self: &Arc<Self>,
        class: Class,
        info: &RequestInfo,
        query: &Query,
        user: &User,
        stored: impl FnOnce() -> Option<Stored>,
    ) -> Result<Occupied, Status> {
        let arrived = Instant::now();
        let (ticket, dispatched) = self.start(&class, info, query, user, stored, arrived)?;
        let mut occupied = Occupied {
            fairness: self.clone(),
            level: class.schema.level.clone(),
            schema: class.schema.name.clone(),
            ticket,
            started: arrived,
            is_watch: info.verb == "watch",
        };
        let Some(dispatched) = dispatched else {
            self.limit_watch(&occupied);
            return Ok(occupied);
        };
        let mut span = ferry_trace::span("filter.flowControl");
        span.set("level", occupied.level.to_string());
        // Dropped while it waits, the request leaves its queue.
        let is_dispatched = span.in_scope(tokio::time::timeout(self.wait_limit, dispatched)).await;
        if let Ok(Ok(())) = is_dispatched {
            occupied.started = Instant::now();
            let mut state = self.state.lock();
            state.metrics.flow(&occupied.level, &occupied.schema).dispatched(Some(arrived.elapsed()));
            drop(state);
            self.limit_watch(&occupied);
            return Ok(occupied);
        }
        Err(self.refusal(&occupied.level))
    }

    fn limit_watch(&self, occupied: &Occupied) {
        if occupied.is_watch {
            let until = occupied.started + LONGEST_WATCH_START;
            let (level, ticket) = (occupied.level.clone(), occupied.ticket);
            self.state.lock().expiring.push(Reverse((until, Expiry::WatchBegun, level, ticket)));
            self.expires.notify_one();
        }
    }

    /// The ticket, and what tells that the request is dispatched unless it is already.
    fn start(
        &self,
        class: &Class,
        info: &RequestInfo,
        query: &Query,
        user: &User,
        stored: impl FnOnce() -> Option<Stored>,
        now: Instant,
    ) -> Result<(Ticket, Option<oneshot::Receiver<()>>), Status> {
        let schema = &class.schema;
        let distinguisher = schema.distinguish(info, user);
        let hash = self.hasher.hash_one((&*schema.name, distinguisher));
        let mut reached = None;
        let mut watchers = || *reached.insert(self.watches.reached_by(info));
        let mut state = self.state.lock();
        let state = &mut *state;
        let Some(level) = state.levels.get_mut(&schema.level) else {
            // Its level went in this very moment.
            return Err(Status::too_many_requests(REFUSAL, 1));
        };
        let work: WorkEstimate = estimate(info, query, stored, &mut watchers, level.most_seats());
        let start = level.queues.start(hash, description(schema, distinguisher, info, user), work, now);
        let flow = state.metrics.flow(&schema.level, &schema.name);
        flow.estimated(work.max_seats());
        if let Some(reached) = reached {
            flow.reached(reached);
        }
        match start {
            Start::Execute(ticket) => {
                flow.dispatched(None);
                Ok((ticket, None))
            }
            Start::Wait(ticket, length) => {
                flow.enqueued(length);
                let (wake, dispatched) = oneshot::channel();
                state.waiters.insert((schema.level.clone(), ticket), wake);
                // Another request may have been first in line and fit.
                state.wake(&schema.level);
                Ok((ticket, Some(dispatched)))
            }
            Start::Reject(reason) => {
                flow.rejected(reason.as_str(), None);
                let seconds = level.retry_after.refused(unix_seconds());
                Err(Status::too_many_requests(REFUSAL, u32::try_from(seconds).unwrap_or(1)))
            }
        }
    }

    fn refusal(&self, level: &str) -> Status {
        let mut state = self.state.lock();
        let seconds =
            state.levels.get_mut(level).map_or(1, |level| level.retry_after.refused(unix_seconds()));
        Status::too_many_requests(REFUSAL, u32::try_from(seconds).unwrap_or(1))
    }

    fn finish(&self, occupied: &Occupied) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let state = &mut *state;
        let key = (occupied.level.clone(), occupied.ticket);
        let is_waiting = state.waiters.remove(&key).is_some();
        let Some(level) = state.levels.get_mut(&occupied.level) else { return };
        let took = now.saturating_duration_since(occupied.started);
        if is_waiting && level.queues.cancel(occupied.ticket, now) {
            state.metrics.flow(&occupied.level, &occupied.schema).rejected("time-out", Some(took));
        } else {
            let lingers = level.queues.finish(occupied.ticket, now);
            state.metrics.flow(&occupied.level, &occupied.schema).finished(took, occupied.is_watch);
            if let Some(lingers) = lingers {
                state.expiring.push(Reverse((now + lingers, Expiry::Lingered, key.0, key.1)));
                self.expires.notify_one();
            }
        }
        state.wake(&occupied.level);
        state.levels.reap(&occupied.level);
    }

    /// Adjusts limits to the demand and frees the seats that lingered, until the server stops.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut adjust = tokio::time::Instant::now() + ADJUSTMENT_PERIOD;
        loop {
            let next = self.release_expired(Instant::now()).map_or(adjust, |next| adjust.min(next.into()));
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.expires.notified() => {}
                () = tokio::time::sleep_until(next) => {}
            }
            if tokio::time::Instant::now() >= adjust {
                let mut state = self.state.lock();
                state.levels.adjust(Instant::now());
                state.wake_all();
                adjust = tokio::time::Instant::now() + ADJUSTMENT_PERIOD;
            }
        }
    }

    /// Returns when the next seats are to be freed.
    fn release_expired(&self, now: Instant) -> Option<Instant> {
        let mut state = self.state.lock();
        loop {
            let Reverse((until, ..)) = state.expiring.peek()?;
            if *until > now {
                return Some(*until);
            }
            let Reverse((_, expiry, name, ticket)) = state.expiring.pop()?;
            if let Some(level) = state.levels.get_mut(&name) {
                match expiry {
                    Expiry::Lingered => level.queues.release(ticket, now),
                    Expiry::WatchBegun => _ = level.queues.finish(ticket, now),
                }
            }
            state.wake(&name);
            state.levels.reap(&name);
        }
    }

    pub fn collect(&self, page: &mut ferry_metrics::Page) {
        let state = self.state.lock();
        state.metrics.collect(&state.levels, page);
    }

    /// One of the three tables of `/debug/api_priority_and_fairness`.
    pub fn dump(&self, what: &str, with_details: bool) -> Option<String> {
        let state = self.state.lock();
        match what {
            "dump_priority_levels" => Some(dump::priority_levels(&state.levels)),
            "dump_queues" => Some(dump::queues(&state.levels)),
            "dump_requests" => Some(dump::requests(&state.levels, with_details)),
            _ => None,
        }
    }
}

impl State {
    /// Tells those that were dispatched.
    fn wake(&mut self, name: &Arc<str>) {
        let Some(level) = self.levels.get_mut(name) else { return };
        for ticket in level.queues.take_dispatched() {
            if let Some(waiter) = self.waiters.remove(&(name.clone(), ticket)) {
                // One whose client has gone in this moment finishes when it is dropped.
                let _ = waiter.send(());
            }
        }
    }

    fn wake_all(&mut self) {
        let names: Vec<Arc<str>> = self.levels.iter().map(|(name, _)| name.clone()).collect();
        names.iter().for_each(|name| self.wake(name));
    }
}

/// The seats of one request, or its place in a queue.
pub struct Occupied {
    fairness: Arc<Fairness>,
    level: Arc<str>,
    schema: Arc<str>,
    ticket: Ticket,
    /// When it was dispatched; when it arrived, before that.
    started: Instant,
    is_watch: bool,
}

impl Drop for Occupied {
    fn drop(&mut self) {
        let fairness = self.fairness.clone();
        fairness.finish(self);
    }
}

fn description(schema: &Schema, distinguisher: &str, info: &RequestInfo, user: &User) -> Description {
    Description {
        flow_schema: schema.name.clone(),
        distinguisher: distinguisher.to_string(),
        user: user.name.clone(),
        verb: info.verb,
        path: info.path.clone(),
        namespace: info.namespace.clone(),
        name: info.name.clone(),
        api_version: match info.group.as_str() {
            "" => info.version.clone(),
            group => format!("{group}/{}", info.version),
        },
        resource: info.resource.clone(),
        subresource: info.subresource.clone(),
        arrived: SystemTime::now(),
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
