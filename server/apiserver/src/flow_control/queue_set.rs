//! The queues of one priority level: fair queuing for server requests, with seats as the unit of concurrency. Pure: every
//! method takes the time.
//!
//! ```text
//!   start ──► Wait ──► dispatched ──► finish ──► (lingers) ──► release
//!     │         └────► cancel
//!     ├──► Execute
//!     └──► Reject
//! ```
//!
//! Virtual time `r` counts the seat-seconds that each active queue could have used so far. A queue's `next_dispatch_r` is
//! where its oldest request starts in virtual time; the queue whose oldest request would finish first is dispatched next. A
//! request counts with its estimated duration until it has finished, then with its real one. See KEP 1040.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use super::demand::Demand;
use super::shuffle_sharding::deal;
use super::work_estimate::WorkEstimate;

/// Identifies a request. No two requests have the same, whatever their queue set: a level may go and come again while a
/// request of before still holds its ticket.
pub type Ticket = u64;

static NEXT_TICKET: AtomicU64 = AtomicU64::new(0);

/// What a request is assumed to take until it has finished.
const ESTIMATED_SERVICE: Duration = Duration::from_millis(3);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queuing {
    pub queues: usize,
    pub hand_size: usize,
    pub queue_length_limit: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nothing waits and nothing is refused.
    Exempt,
    /// What exceeds the limit is refused.
    Reject,
    Queue(Queuing),
}

/// A request as dumps show it.
#[derive(Debug, Clone)]
pub struct Description {
    pub flow_schema: Arc<str>,
    pub distinguisher: String,
    pub user: String,
    pub verb: &'static str,
    pub path: String,
    pub namespace: String,
    pub name: String,
    pub api_version: String,
    pub resource: String,
    pub subresource: String,
    pub arrived: SystemTime,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    ConcurrencyLimit,
    QueueFull,
}

impl Reason {
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::ConcurrencyLimit => "concurrency-limit",
            Reason::QueueFull => "queue-full",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    Execute(Ticket),
    /// The queue's length with this request.
    Wait(Ticket, usize),
    Reject(Reason),
}

#[derive(Debug)]
pub struct Request {
    pub description: Description,
    pub work: WorkEstimate,
    /// None without queues.
    pub queue: Option<usize>,
    arrival_r: f64,
    /// Set when it is dispatched.
    started: Option<Instant>,
}

impl Request {
    pub fn is_executing(&self) -> bool {
        self.started.is_some()
    }

    pub fn executing_for(&self) -> Option<Duration> {
        self.started.map(|started| started.elapsed())
    }
}

#[derive(Debug, Default)]
pub struct Queue {
    pub waiting: VecDeque<Ticket>,
    pub executing: usize,
    pub seats_in_use: usize,
    pub next_dispatch_r: f64,
    /// Seat-seconds of the waiting requests.
    pub waiting_work: f64,
}

impl Queue {
    fn is_active(&self) -> bool {
        !self.waiting.is_empty() || self.executing > 0
    }
}

/// How many requests of each fate there were.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    pub dispatched: u64,
    pub rejected: u64,
    pub cancelled: u64,
}

#[derive(Debug)]
pub struct QueueSet {
    mode: Mode,
    limit: usize,
    queues: Vec<Queue>,
    requests: HashMap<Ticket, Request>,
    enqueued: usize,
    r: f64,
    last: Instant,
    robin: usize,
    active_queues: usize,
    waiting: usize,
    executing: usize,
    seats_in_use: usize,
    seats_waiting: usize,
    pub totals: Totals,
    pub demand: Demand,
    /// Dispatched since it was last taken.
    dispatched: Vec<Ticket>,
    /// Dispatches that had to wait for seats, by flow schema.
    pub not_accommodated: HashMap<Arc<str>, u64>,
}

impl QueueSet {
    pub fn new(mode: Mode, limit: usize, now: Instant) -> QueueSet {
        let mut set = QueueSet {
            mode,
            limit,
            queues: Vec::new(),
            requests: HashMap::new(),
            enqueued: 0,
            r: 0.0,
            last: now,
            robin: 0,
            active_queues: 0,
            waiting: 0,
            executing: 0,
            seats_in_use: 0,
            seats_waiting: 0,
            totals: Totals::default(),
            demand: Demand::new(now),
            dispatched: Vec::new(),
            not_accommodated: HashMap::new(),
        };
        set.configure(mode, limit, now);
        set
    }

    /// Queues beyond the wanted number stay until they are empty.
    pub fn configure(&mut self, mode: Mode, limit: usize, now: Instant) {
        self.sync_time(now);
        (self.mode, self.limit) = (mode, limit);
        let wanted = self.wanted_queues();
        if self.queues.len() < wanted {
            self.queues.resize_with(wanted, Queue::default);
        }
        self.remove_surplus_queues();
        self.dispatch(now);
    }

    pub fn start(&mut self, hash: u64, description: Description, work: WorkEstimate, now: Instant) -> Start {
        self.sync_time(now);
        let Mode::Queue(queuing) = self.mode else {
            if !self.has_seats(work.max_seats()) {
                self.totals.rejected += 1;
                return Start::Reject(Reason::ConcurrencyLimit);
            }
            let ticket =
                self.add(Request { description, work, queue: None, arrival_r: self.r, started: None });
            self.execute(ticket, now);
            return Start::Execute(ticket);
        };
        let at = self.choose_queue(hash, queuing);
        // Seats may be free: a wide request that is first in line waits for more of them.
        if self.queues[at].waiting.len() >= queuing.queue_length_limit {
            self.totals.rejected += 1;
            return Start::Reject(Reason::QueueFull);
        }
        let ticket =
            self.add(Request { description, work, queue: Some(at), arrival_r: self.r, started: None });
        self.enqueue(at, ticket, work, now);
        let length = self.queues[at].waiting.len();
        self.dispatch(now);
        match self.dispatched.iter().position(|dispatched| *dispatched == ticket) {
            Some(position) => {
                self.dispatched.swap_remove(position);
                Start::Execute(ticket)
            }
            None => Start::Wait(ticket, length),
        }
    }

    /// The request waits no longer: its time is over or its client has gone. Says whether it was still waiting.
    pub fn cancel(&mut self, ticket: Ticket, now: Instant) -> bool {
        self.sync_time(now);
        let is_waiting = |request: &&Request| request.started.is_none();
        let Some(request) = self.requests.get(&ticket).filter(is_waiting) else { return false };
        let (Some(at), work) = (request.queue, request.work) else { return false };
        self.queues[at].waiting.retain(|waiting| *waiting != ticket);
        self.left_queue(at, work, now);
        self.requests.remove(&ticket);
        self.totals.rejected += 1;
        self.totals.cancelled += 1;
        self.bound(at);
        self.after_change(at);
        self.dispatch(now);
        true
    }

    /// The request has been served. Returns how long its seats stay in use; `release` frees them then.
    pub fn finish(&mut self, ticket: Ticket, now: Instant) -> Option<Duration> {
        self.sync_time(now);
        let request = self.requests.get(&ticket)?;
        let (queue, work, started) = (request.queue, request.work, request.started?);
        self.executing -= 1;
        if let Some(at) = queue {
            self.update_queue(at, |queue| queue.executing -= 1);
            let real = now.saturating_duration_since(started);
            let correction = real.as_secs_f64() - ESTIMATED_SERVICE.as_secs_f64();
            self.queues[at].next_dispatch_r += work.initial_seats as f64 * correction;
            self.bound(at);
        }
        if work.additional_latency.is_zero() {
            self.release(ticket, now);
            return None;
        }
        self.dispatch(now);
        Some(work.additional_latency)
    }

    /// Frees the seats of a request that has finished.
    pub fn release(&mut self, ticket: Ticket, now: Instant) {
        self.sync_time(now);
        let Some(request) = self.requests.remove(&ticket) else { return };
        let seats = request.work.max_seats();
        self.seats_in_use -= seats;
        if let Some(at) = request.queue {
            self.queues[at].seats_in_use -= seats;
            self.after_change(at);
        }
        self.note_demand(now);
        self.dispatch(now);
    }

    /// Those that waited and may execute now.
    pub fn take_dispatched(&mut self) -> Vec<Ticket> {
        std::mem::take(&mut self.dispatched)
    }

    pub fn request(&self, ticket: Ticket) -> Option<&Request> {
        self.requests.get(&ticket)
    }

    pub fn requests(&self) -> impl Iterator<Item = (&Ticket, &Request)> {
        self.requests.iter()
    }

    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    pub fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    pub fn waiting(&self) -> usize {
        self.waiting
    }

    pub fn executing(&self) -> usize {
        self.executing
    }

    pub fn current_r(&self) -> f64 {
        self.r
    }

    fn wanted_queues(&self) -> usize {
        match self.mode {
            Mode::Queue(queuing) => queuing.queues,
            Mode::Exempt | Mode::Reject => 0,
        }
    }

    fn add(&mut self, request: Request) -> Ticket {
        let ticket = NEXT_TICKET.fetch_add(1, Ordering::Relaxed);
        self.requests.insert(ticket, request);
        ticket
    }

    /// Advances virtual time, as if the state had been this since it was last advanced.
    fn sync_time(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.last).as_secs_f64();
        self.last = self.last.max(now);
        if self.active_queues > 0 {
            let wanted = self.seats_in_use + self.seats_waiting;
            self.r += elapsed * wanted.min(self.limit) as f64 / self.active_queues as f64;
        }
    }

    /// The queue of the flow's hand with the least work waiting. The first one looked at changes, so that flows with
    /// overlapping hands are not biased.
    fn choose_queue(&mut self, hash: u64, queuing: Queuing) -> usize {
        let hand = deal(hash, queuing.queues, queuing.hand_size);
        let offset = self.enqueued % hand.len().max(1);
        self.enqueued = self.enqueued.wrapping_add(1);
        let (front, back) = hand.split_at(offset);
        let work = |at: &usize| self.queues[*at].waiting_work;
        let least = back.iter().chain(front).copied().min_by(|one, other| work(one).total_cmp(&work(other)));
        least.unwrap_or(0)
    }

    fn enqueue(&mut self, at: usize, ticket: Ticket, work: WorkEstimate, now: Instant) {
        if !self.queues[at].is_active() {
            self.queues[at].next_dispatch_r = self.r;
        }
        self.update_queue(at, |queue| {
            queue.waiting.push_back(ticket);
            queue.waiting_work += total_work(work);
        });
        self.waiting += 1;
        self.seats_waiting += work.max_seats();
        self.note_demand(now);
        self.bound(at);
    }

    fn dispatch(&mut self, now: Instant) {
        while self.waiting > 0 && self.seats_in_use < self.limit && self.dispatch_one(now) {}
    }

    /// Says whether a request was dispatched: the next one in line may need more seats than are free.
    fn dispatch_one(&mut self, now: Instant) -> bool {
        let Some((at, ticket)) = self.next_in_line() else { return false };
        let Some(request) = self.requests.get(&ticket) else { return false };
        let (waited, work) = (request.work, request.work.within(self.limit));
        if !self.has_seats(work.max_seats()) {
            let schema = request.description.flow_schema.clone();
            *self.not_accommodated.entry(schema).or_default() += 1;
            return false;
        }
        if let Some(request) = self.requests.get_mut(&ticket) {
            request.work = work;
        }
        self.robin = at;
        self.queues[at].waiting.pop_front();
        self.left_queue(at, waited, now);
        self.execute(ticket, now);
        self.queues[at].next_dispatch_r += total_work(work);
        self.bound(at);
        self.dispatched.push(ticket);
        true
    }

    /// The oldest request of the queue whose oldest request would finish first in virtual time. Of equals, the first after
    /// the queue that was dispatched last.
    fn next_in_line(&self) -> Option<(usize, Ticket)> {
        let count = self.queues.len();
        let mut best: Option<(f64, usize, Ticket)> = None;
        for at in (1..=count).map(|step| (self.robin + step) % count) {
            let queue = &self.queues[at];
            let Some(ticket) = queue.waiting.front() else { continue };
            let Some(request) = self.requests.get(ticket) else { continue };
            let finish = queue.next_dispatch_r + total_work(request.work);
            if best.is_none_or(|(least, ..)| finish < least) {
                best = Some((finish, at, *ticket));
            }
        }
        best.map(|(_, at, ticket)| (at, ticket))
    }

    /// A request that is wider than the limit executes alone.
    fn has_seats(&self, seats: usize) -> bool {
        match self.mode {
            Mode::Exempt => true,
            _ if seats > self.limit => self.executing == 0,
            _ => self.seats_in_use + seats <= self.limit,
        }
    }

    fn execute(&mut self, ticket: Ticket, now: Instant) {
        let Some(request) = self.requests.get_mut(&ticket) else { return };
        request.started = Some(now);
        let (queue, seats) = (request.queue, request.work.max_seats());
        self.executing += 1;
        self.seats_in_use += seats;
        self.totals.dispatched += 1;
        if let Some(at) = queue {
            self.update_queue(at, |queue| {
                queue.executing += 1;
                queue.seats_in_use += seats;
            });
        }
        self.note_demand(now);
    }

    fn left_queue(&mut self, at: usize, work: WorkEstimate, now: Instant) {
        self.waiting -= 1;
        self.seats_waiting -= work.max_seats();
        let queue = &mut self.queues[at];
        queue.waiting_work =
            if queue.waiting.is_empty() { 0.0 } else { queue.waiting_work - total_work(work) };
        self.count_active();
        self.note_demand(now);
    }

    /// Requests do not start before they arrived, not even virtually: a queue that cannot use its share of seats does not
    /// save it up.
    fn bound(&mut self, at: usize) {
        let oldest = self.queues[at].waiting.front().and_then(|ticket| self.requests.get(ticket));
        if let Some(arrival_r) = oldest.map(|request| request.arrival_r) {
            let queue = &mut self.queues[at];
            queue.next_dispatch_r = queue.next_dispatch_r.max(arrival_r);
        }
    }

    fn update_queue(&mut self, at: usize, change: impl FnOnce(&mut Queue)) {
        let was_active = self.queues[at].is_active();
        change(&mut self.queues[at]);
        match (was_active, self.queues[at].is_active()) {
            (false, true) => self.active_queues += 1,
            (true, false) => self.active_queues -= 1,
            _ => {}
        }
    }

    fn count_active(&mut self) {
        self.active_queues = self.queues.iter().filter(|queue| queue.is_active()).count();
    }

    fn after_change(&mut self, at: usize) {
        self.count_active();
        if at >= self.wanted_queues() {
            self.remove_surplus_queues();
        }
    }

    /// From the end: requests know their queue by its number.
    fn remove_surplus_queues(&mut self) {
        let wanted = self.wanted_queues();
        let is_empty = |queue: &Queue| !queue.is_active() && queue.seats_in_use == 0;
        while self.queues.len() > wanted && self.queues.last().is_some_and(is_empty) {
            self.queues.pop();
        }
        self.robin %= self.queues.len().max(1);
    }

    fn note_demand(&mut self, now: Instant) {
        self.demand.set((self.seats_in_use + self.seats_waiting) as f64, now);
    }
}

/// Estimated seat-seconds: while it executes, and while its seats linger.
fn total_work(work: WorkEstimate) -> f64 {
    work.initial_seats as f64 * ESTIMATED_SERVICE.as_secs_f64()
        + work.final_seats as f64 * work.additional_latency.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(flow: &str) -> Description {
        Description {
            flow_schema: "schema".into(),
            distinguisher: flow.into(),
            user: flow.into(),
            verb: "get",
            path: String::new(),
            namespace: String::new(),
            name: String::new(),
            api_version: String::new(),
            resource: String::new(),
            subresource: String::new(),
            arrived: SystemTime::UNIX_EPOCH,
        }
    }

    fn wide(seats: usize) -> WorkEstimate {
        WorkEstimate { initial_seats: seats, final_seats: 0, additional_latency: Duration::ZERO }
    }

    const QUEUING: Queuing = Queuing { queues: 8, hand_size: 1, queue_length_limit: 10 };

    /// A queue set, its clock, and what executes.
    struct World {
        set: QueueSet,
        now: Instant,
        executing: Vec<(Ticket, String)>,
    }

    impl World {
        fn new(mode: Mode, limit: usize) -> World {
            let now = Instant::now();
            World { set: QueueSet::new(mode, limit, now), now, executing: Vec::new() }
        }

        fn pass(&mut self, millis: u64) {
            self.now += Duration::from_millis(millis);
        }

        /// With a hand of one queue the hash is the queue.
        fn start(&mut self, flow: u64, seats: usize) -> Start {
            let start = self.set.start(flow, request(&flow.to_string()), wide(seats), self.now);
            if let Start::Execute(ticket) = start {
                self.executing.push((ticket, flow.to_string()));
            }
            start
        }

        fn finish(&mut self, ticket: Ticket) {
            self.executing.retain(|(executing, _)| *executing != ticket);
            assert_eq!(self.set.finish(ticket, self.now), None);
            self.collect();
        }

        fn collect(&mut self) {
            for ticket in self.set.take_dispatched() {
                let flow = self.set.request(ticket).expect("it executes").description.distinguisher.clone();
                self.executing.push((ticket, flow));
            }
        }

        /// Serves `count` requests, one millisecond each, and counts those of each flow.
        fn serve(&mut self, count: usize) -> HashMap<String, usize> {
            let mut served = HashMap::new();
            for _ in 0..count {
                self.pass(1);
                let (ticket, flow) = self.executing.first().cloned().expect("something executes");
                *served.entry(flow).or_default() += 1;
                self.finish(ticket);
            }
            served
        }
    }

    #[test]
    fn a_level_without_queues_rejects_at_its_limit() {
        let mut world = World::new(Mode::Reject, 2);
        let first = world.start(0, 1);
        assert!(matches!(first, Start::Execute(_)));
        assert!(matches!(world.start(1, 1), Start::Execute(_)));
        assert_eq!(world.start(2, 1), Start::Reject(Reason::ConcurrencyLimit));
        let Start::Execute(ticket) = first else { unreachable!() };
        world.finish(ticket);
        assert!(matches!(world.start(2, 1), Start::Execute(_)));
        assert_eq!(world.set.totals, Totals { dispatched: 3, rejected: 1, cancelled: 0 });
    }

    #[test]
    fn an_exempt_level_refuses_nothing() {
        let mut world = World::new(Mode::Exempt, 0);
        assert!((0..100).all(|flow| matches!(world.start(flow, 10), Start::Execute(_))));
        assert_eq!(world.set.executing(), 100);
    }

    #[test]
    fn requests_wait_in_their_queue_until_it_is_full() {
        let mut world = World::new(Mode::Queue(QUEUING), 1);
        assert!(matches!(world.start(0, 1), Start::Execute(_)));
        for length in 1..=10 {
            assert!(matches!(world.start(0, 1), Start::Wait(_, at) if at == length));
        }
        assert_eq!(world.start(0, 1), Start::Reject(Reason::QueueFull));
        assert!(matches!(world.start(1, 1), Start::Wait(_, 1)));
    }

    #[test]
    fn a_flood_of_one_flow_takes_half_when_another_wants_as_much() {
        let mut world = World::new(Mode::Queue(QUEUING), 4);
        let mut served: HashMap<String, usize> = HashMap::new();
        for _ in 0..100 {
            while matches!(world.start(0, 1), Start::Execute(_) | Start::Wait(..)) {}
            world.start(1, 1);
            world.start(1, 1);
            for (flow, count) in world.serve(4) {
                *served.entry(flow).or_default() += count;
            }
        }
        let small = served.get("1").copied().unwrap_or(0);
        // All 200 of the small flow but the ones that still wait.
        assert!(small >= 195, "{served:?}");
        assert!(world.set.queues()[1].waiting.len() + 4 >= 200 - small);
    }

    #[test]
    fn flows_that_want_more_than_their_share_get_equal_numbers_of_seats() {
        let mut world = World::new(Mode::Queue(QUEUING), 4);
        let mut served: HashMap<String, usize> = HashMap::new();
        for _ in 0..300 {
            for flow in 0..4 {
                while matches!(world.start(flow, 1), Start::Execute(_) | Start::Wait(..)) {}
            }
            for (flow, count) in world.serve(4) {
                *served.entry(flow).or_default() += count;
            }
        }
        assert_eq!(served.len(), 4);
        assert!(served.values().all(|count| (270..=330).contains(count)), "{served:?}");
    }

    #[test]
    fn a_wide_flow_gets_as_many_seats_as_a_narrow_one() {
        let mut world = World::new(Mode::Queue(QUEUING), 8);
        let mut seats: HashMap<String, usize> = HashMap::new();
        for _ in 0..400 {
            while matches!(world.start(0, 4), Start::Execute(_) | Start::Wait(..)) {}
            while matches!(world.start(1, 1), Start::Execute(_) | Start::Wait(..)) {}
            for (flow, count) in world.serve(2) {
                let width = if flow == "0" { 4 } else { 1 };
                *seats.entry(flow).or_default() += count * width;
            }
        }
        let ratio = seats["0"] as f64 / seats["1"] as f64;
        assert!((0.8..1.25).contains(&ratio), "{seats:?}");
    }

    #[test]
    fn a_request_wider_than_the_limit_executes_alone() {
        let mut world = World::new(Mode::Queue(QUEUING), 4);
        let Start::Execute(first) = world.start(0, 1) else { panic!("there is a seat") };
        assert!(matches!(world.start(1, 6), Start::Wait(..)));
        // It is first in line, so nothing passes it.
        assert!(matches!(world.start(1, 1), Start::Wait(..)));
        world.pass(1);
        world.finish(first);
        assert_eq!(world.executing.len(), 1);
        assert_eq!(world.set.waiting(), 1);
        let wide = world.executing[0].0;
        world.finish(wide);
        assert_eq!((world.executing.len(), world.set.waiting()), (1, 0));
    }

    #[test]
    fn a_cancelled_request_leaves_its_queue() {
        let mut world = World::new(Mode::Queue(QUEUING), 1);
        let Start::Execute(executing) = world.start(0, 1) else { panic!("there is a seat") };
        let Start::Wait(waiting, _) = world.start(0, 1) else { panic!("the seat is taken") };
        assert!(world.set.cancel(waiting, world.now));
        assert!(!world.set.cancel(waiting, world.now));
        assert!(!world.set.cancel(executing, world.now), "it executes");
        assert_eq!(world.set.totals, Totals { dispatched: 1, rejected: 1, cancelled: 1 });
        world.finish(executing);
        assert!(world.set.is_idle());
        assert_eq!((world.set.seats_in_use, world.set.seats_waiting, world.set.active_queues), (0, 0, 0));
    }

    #[test]
    fn seats_linger_after_a_write_that_many_watch() {
        let mut world = World::new(Mode::Queue(QUEUING), 4);
        let work =
            WorkEstimate { initial_seats: 1, final_seats: 3, additional_latency: Duration::from_millis(5) };
        let Start::Execute(write) = world.set.start(0, request("0"), work, world.now) else {
            panic!("seats")
        };
        assert_eq!(world.set.finish(write, world.now), Some(Duration::from_millis(5)));
        assert!(matches!(world.start(1, 2), Start::Wait(..)));
        world.pass(5);
        world.set.release(write, world.now);
        world.collect();
        assert_eq!(world.executing.len(), 1);
    }

    #[test]
    fn fewer_queues_drain_before_they_go() {
        let mut world = World::new(Mode::Queue(QUEUING), 1);
        let Start::Execute(first) = world.start(7, 1) else { panic!("there is a seat") };
        assert!(matches!(world.start(7, 1), Start::Wait(..)));
        world.set.configure(Mode::Queue(Queuing { queues: 2, ..QUEUING }), 1, world.now);
        assert_eq!(world.set.queues().len(), 8);
        world.finish(first);
        let second = world.executing[0].0;
        world.finish(second);
        assert_eq!(world.set.queues().len(), 2);
        world.set.configure(Mode::Reject, 1, world.now);
        assert_eq!(world.set.queues().len(), 0);
    }

    #[test]
    fn a_higher_limit_dispatches_what_waits() {
        let mut world = World::new(Mode::Queue(QUEUING), 1);
        for flow in 0..4 {
            world.start(flow, 1);
        }
        world.set.configure(Mode::Queue(QUEUING), 3, world.now);
        world.collect();
        assert_eq!((world.set.executing(), world.set.waiting()), (3, 1));
    }
}
