//! Priority levels and the seats that each has: a nominal share of the server's, of which some may be lent, and more that
//! may be borrowed. Every ten seconds the current limits follow the demand. Pure: every method takes the time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::flowcontrol::v1::PriorityLevelConfiguration;

use super::allocation::{AllocationItem, allocate};
use super::classify::EXEMPT;
use super::demand::Observed;
use super::queue_set::{Mode, QueueSet, Queuing};
use super::retry_after::RetryAfter;

/// How slowly the smoothed demand falls.
const SMOOTHING: f64 = 0.977;
/// One request takes no more than this part of the nominal limit.
const MOST_OF_NOMINAL: f64 = 0.15;

/// What a PriorityLevelConfiguration says.
#[derive(Debug, Clone, PartialEq)]
pub struct LevelSpec {
    pub uid: String,
    pub mode: Mode,
    pub shares: f64,
    pub lendable_percent: f64,
    /// None: as much as there is.
    pub borrowing_percent: Option<f64>,
}

impl LevelSpec {
    /// `None` for one that makes no sense; it is treated as absent.
    pub fn read(level: &PriorityLevelConfiguration) -> Option<LevelSpec> {
        let spec = level.spec.as_ref()?;
        let uid = level.metadata.uid.clone().unwrap_or_default();
        let is_exempt = level.metadata.name.as_deref() == Some(EXEMPT);
        let number = |value: Option<i32>, otherwise: i32| f64::from(value.unwrap_or(otherwise).max(0));
        match (spec.type_.as_str(), &spec.limited, &spec.exempt) {
            ("Exempt", None, Some(exempt)) if is_exempt => Some(LevelSpec {
                uid,
                mode: Mode::Exempt,
                shares: number(exempt.nominal_concurrency_shares, 0),
                lendable_percent: number(exempt.lendable_percent, 0).min(100.0),
                borrowing_percent: None,
            }),
            ("Limited", Some(limited), None) if !is_exempt => {
                let response = limited.limit_response.as_ref()?;
                let mode = match (response.type_.as_str(), &response.queuing) {
                    ("Reject", None) => Mode::Reject,
                    ("Queue", Some(queuing)) => {
                        let count = |value: Option<i32>, otherwise: i32| {
                            usize::try_from(value.unwrap_or(otherwise)).ok().filter(|count| *count > 0)
                        };
                        let queuing = Queuing {
                            queues: count(queuing.queues, 64)?,
                            hand_size: count(queuing.hand_size, 8)?,
                            queue_length_limit: count(queuing.queue_length_limit, 50)?,
                        };
                        Mode::Queue(Some(queuing).filter(|queuing| queuing.hand_size <= queuing.queues)?)
                    }
                    _ => return None,
                };
                Some(LevelSpec {
                    uid,
                    mode,
                    shares: number(limited.nominal_concurrency_shares, 30),
                    lendable_percent: number(limited.lendable_percent, 0).min(100.0),
                    borrowing_percent: limited
                        .borrowing_limit_percent
                        .map(|percent| number(Some(percent), 0)),
                })
            }
            _ => None,
        }
    }
}

#[derive(Debug)]
pub struct Level {
    pub spec: LevelSpec,
    pub queues: QueueSet,
    /// Its object is gone; the level goes when it is idle.
    pub quiescing: bool,
    pub nominal: usize,
    pub lower: usize,
    pub upper: usize,
    pub current: usize,
    pub observed: Observed,
    pub smoothed: f64,
    pub target: f64,
    pub retry_after: RetryAfter,
}

impl Level {
    fn new(spec: LevelSpec, now: Instant) -> Level {
        Level {
            queues: QueueSet::new(spec.mode, 0, now),
            spec,
            quiescing: false,
            nominal: 0,
            lower: 0,
            upper: 0,
            current: 0,
            observed: Observed::default(),
            smoothed: 0.0,
            target: 0.0,
            retry_after: RetryAfter::default(),
        }
    }

    /// How many seats one request may take at most.
    pub fn most_seats(&self) -> Option<usize> {
        let Mode::Queue(queuing) = self.spec.mode else { return None };
        let part = (self.nominal as f64 * MOST_OF_NOMINAL).ceil() as usize;
        Some(part.min(self.nominal / queuing.hand_size).max(1))
    }

    fn observe(&mut self, now: Instant) {
        let (high_watermark, observed) = self.queues.demand.take(now);
        self.observed.high_watermark = high_watermark;
        if let Some(observed) = observed {
            self.observed = observed;
            let envelope = observed.average + observed.deviation;
            self.smoothed = envelope.max(SMOOTHING * self.smoothed + (1.0 - SMOOTHING) * envelope);
        }
    }

    /// What it keeps of its nominal limit: what it used in the last period, and what it does not lend.
    fn least(&self) -> usize {
        let used = self.observed.high_watermark.round() as usize;
        match self.spec.mode {
            Mode::Exempt => self.lower.max(used),
            Mode::Reject | Mode::Queue(_) => self.lower.max(self.nominal.min(used)),
        }
    }
}

#[derive(Debug)]
pub struct Levels {
    /// Seats of the server.
    total: usize,
    nominal_sum: usize,
    pub fair_fraction: f64,
    levels: BTreeMap<Arc<str>, Level>,
}

impl Levels {
    pub fn new(total: usize) -> Levels {
        Levels { total, nominal_sum: 0, fair_fraction: 0.0, levels: BTreeMap::new() }
    }

    pub fn get(&self, name: &str) -> Option<&Level> {
        self.levels.get(name)
    }

    pub fn get_mut(&mut self, name: &str) -> Option<&mut Level> {
        self.levels.get_mut(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Level)> {
        self.levels.iter()
    }

    /// Takes over what the objects say. Levels that are gone keep their seats until their requests are served.
    pub fn configure(&mut self, specs: BTreeMap<Arc<str>, LevelSpec>, now: Instant) {
        self.levels.retain(|name, level| specs.contains_key(name) || !level.queues.is_idle());
        for (name, level) in &mut self.levels {
            level.quiescing = !specs.contains_key(name);
        }
        for (name, spec) in specs {
            match self.levels.get_mut(&name) {
                Some(level) => level.spec = spec,
                None => {
                    self.levels.insert(name, Level::new(spec, now));
                }
            }
        }
        let shares: f64 = self.levels.values().map(|level| level.spec.shares).sum();
        for level in self.levels.values_mut() {
            let nominal = match shares > 0.0 {
                true => (self.total as f64 * level.spec.shares / shares).ceil(),
                false => 0.0,
            };
            let percent = |percent: f64| (nominal * percent / 100.0).round() as usize;
            level.nominal = nominal as usize;
            level.lower = level.nominal - percent(level.spec.lendable_percent).min(level.nominal);
            level.upper = level.nominal + level.spec.borrowing_percent.map_or(self.total, percent);
        }
        self.nominal_sum = self.levels.values().map(|level| level.nominal).sum();
        self.adjust(now);
    }

    /// Sets the current limits by the demand since the last time.
    pub fn adjust(&mut self, now: Instant) {
        self.levels.values_mut().for_each(|level| level.observe(now));
        let is_exempt = |level: &&Level| level.spec.mode == Mode::Exempt;
        let exempt: usize = self.levels.values().filter(is_exempt).map(Level::least).sum();
        let limited: Vec<&Level> = self.levels.values().filter(|level| !is_exempt(level)).collect();
        let remaining = self.nominal_sum.saturating_sub(exempt);
        let lower: usize = limited.iter().map(|level| level.lower).sum();
        let least: usize = limited.iter().map(|level| level.least()).sum();
        let wanted = |level: &&Level| {
            let lower = level.least() as f64;
            AllocationItem {
                lower,
                upper: (level.upper as f64).max(lower),
                target: level.smoothed.max(lower),
            }
        };
        let wanted: Vec<AllocationItem> = limited.iter().map(wanted).collect();
        let allocated: Vec<f64> = if remaining <= lower {
            self.fair_fraction = 0.0;
            limited.iter().map(|level| level.lower as f64).collect()
        } else if remaining <= least {
            let part = (remaining - lower) as f64 / (least - lower) as f64;
            self.fair_fraction = 0.0;
            let share = |level: &&Level| level.lower as f64 + (level.least() - level.lower) as f64 * part;
            limited.iter().map(share).collect()
        } else {
            match allocate(self.nominal_sum as f64, &wanted) {
                Some((allocated, fraction)) => {
                    self.fair_fraction = fraction;
                    allocated
                }
                None => limited.iter().map(|level| level.current as f64).collect(),
            }
        };
        let mut allocated = allocated.into_iter().zip(wanted);
        for level in self.levels.values_mut() {
            level.current = match level.spec.mode {
                Mode::Exempt => level.least(),
                Mode::Reject | Mode::Queue(_) => match allocated.next() {
                    Some((seats, wanted)) => {
                        level.target = wanted.target;
                        seats.round() as usize
                    }
                    None => level.current,
                },
            };
            level.queues.configure(level.spec.mode, level.current, now);
        }
    }

    /// A level that was removed goes when it is idle.
    pub fn reap(&mut self, name: &str) {
        if self.levels.get(name).is_some_and(|level| level.quiescing && level.queues.is_idle()) {
            self.levels.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::bootstrap;
    use super::*;

    fn specs() -> BTreeMap<Arc<str>, LevelSpec> {
        let spec = |boot: bootstrap::Boot<PriorityLevelConfiguration>| {
            let name = boot.object.metadata.name.clone().expect("a name");
            (Arc::from(name), LevelSpec::read(&boot.object).expect("a sound level"))
        };
        bootstrap::priority_levels().into_iter().map(spec).collect()
    }

    fn limits(levels: &Levels) -> Vec<(&str, usize, usize, usize)> {
        levels.iter().map(|(name, level)| (&**name, level.nominal, level.lower, level.upper)).collect()
    }

    #[test]
    fn seats_are_shared_out_as_upstream_does() {
        let mut levels = Levels::new(600);
        levels.configure(specs(), Instant::now());
        let expected = [
            ("catch-all", 13, 13, 613),
            ("exempt", 0, 0, 600),
            ("global-default", 49, 24, 649),
            ("leader-election", 25, 25, 625),
            ("node-high", 98, 73, 698),
            ("system", 74, 50, 674),
            ("workload-high", 98, 49, 698),
            ("workload-low", 245, 24, 845),
        ];
        assert_eq!(limits(&levels), expected);
        let most = |name: &str| levels.get(name).and_then(Level::most_seats);
        assert_eq!(
            (most("global-default"), most("workload-low"), most("catch-all")),
            (Some(8), Some(37), None)
        );
    }

    #[test]
    fn a_level_under_pressure_borrows_what_others_do_not_use() {
        let mut now = Instant::now();
        let mut levels = Levels::new(600);
        levels.configure(specs(), now);
        let demand = |levels: &mut Levels, name: &str, seats: f64, now: Instant| {
            levels.get_mut(name).expect("a level").queues.demand.set(seats, now);
        };
        demand(&mut levels, "global-default", 500.0, now);
        now += Duration::from_secs(10);
        levels.adjust(now);
        let current = |levels: &Levels, name: &str| levels.get(name).expect("a level").current;
        // All that is lent: the nominal sum less what the others keep.
        let kept: usize = levels
            .iter()
            .filter(|(name, _)| &***name != "global-default")
            .map(|(_, level)| level.lower)
            .sum();
        assert!(current(&levels, "global-default") >= 300, "{}", current(&levels, "global-default"));
        assert!(current(&levels, "global-default") <= levels.nominal_sum - kept);
        for (name, level) in levels.iter() {
            assert!(level.current >= level.lower && level.current <= level.upper, "{name}");
        }
        // Who lent gets back what it wants, up to its nominal limit, in the next period.
        demand(&mut levels, "workload-low", 1000.0, now);
        now += Duration::from_secs(10);
        levels.adjust(now);
        assert!(current(&levels, "workload-low") >= 245);
        let sum: usize = levels.iter().map(|(_, level)| level.current).sum();
        assert!((600..=610).contains(&sum), "{sum}");
    }

    #[test]
    fn exempt_requests_leave_fewer_seats_for_others() {
        let mut now = Instant::now();
        let mut levels = Levels::new(600);
        levels.configure(specs(), now);
        levels.get_mut(EXEMPT).expect("a level").queues.demand.set(590.0, now);
        now += Duration::from_secs(10);
        levels.adjust(now);
        assert_eq!(levels.get(EXEMPT).expect("a level").current, 590);
        assert!(levels.iter().all(|(name, level)| &**name == EXEMPT || level.current == level.lower));
    }

    #[test]
    fn a_level_whose_object_is_gone_stays_while_it_is_busy() {
        let now = Instant::now();
        let mut levels = Levels::new(600);
        levels.configure(specs(), now);
        let mut fewer = specs();
        fewer.remove("system");
        levels.configure(fewer.clone(), now);
        assert!(levels.get("system").is_none());
        let sum: usize = levels.iter().map(|(_, level)| level.nominal).sum();
        assert!((600..=610).contains(&sum), "{sum}");
    }

    #[test]
    fn broken_levels_are_passed_over() {
        let read = |name: &str, spec: serde_json::Value| {
            let object = serde_json::json!({"metadata": {"name": name}, "spec": spec});
            LevelSpec::read(&serde_json::from_value(object).expect("an object")).is_some()
        };
        let queue = |queues: i32, hand: i32| {
            serde_json::json!({"type": "Limited", "limited": {"limitResponse": {
                "type": "Queue", "queuing": {"queues": queues, "handSize": hand, "queueLengthLimit": 5},
            }}})
        };
        assert!(read("a", queue(4, 2)));
        assert!(!read("a", queue(4, 5)));
        assert!(!read("a", queue(0, 0)));
        assert!(!read("exempt", queue(4, 2)));
        assert!(!read("a", serde_json::json!({"type": "Exempt", "exempt": {}})));
        assert!(!read("a", serde_json::json!({"type": "Limited"})));
    }
}
