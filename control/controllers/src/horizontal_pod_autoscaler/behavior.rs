//! How fast a target may change: stabilisation windows over past recommendations, and policies over past changes.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{HPAScalingRules, HorizontalPodAutoscalerBehavior};

/// What an autoscaler wanted and did before. It does not survive a restart: nor does upstream's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// Before they were stabilised.
    recommendations: Vec<(Timestamp, i32)>,
    /// How many replicas were added, and removed, at a time.
    added: Vec<(Timestamp, i32)>,
    removed: Vec<(Timestamp, i32)>,
}

/// A number of replicas, with the reason and message of the condition that says how it came about.
pub type Reasoned = (i32, &'static str, &'static str);

/// What bounds a decision.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub min: i32,
    pub max: i32,
    pub current: i32,
}

const WITHIN: (&str, &str) = ("DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_FEW: (&str, &str) =
    ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
const TOO_MANY: (&str, &str) =
    ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const UP_LIMIT: (&str, &str) =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const DOWN_LIMIT: (&str, &str) =
    ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");
const STEADY: (&str, &str) = ("ReadyForNewScale", "recommended size matches current size");
const HELD_UP: (&str, &str) = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const HELD_DOWN: (&str, &str) = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
/// Without rules a target at most doubles, but may always reach this many.
const UNRULED_MINIMUM: i32 = 4;
/// The longest window that validation lets through.
const LONGEST_WINDOW: Duration = Duration::from_secs(3600);

impl History {
    /// The first look at a target: it is not made smaller before a window has passed.
    pub fn begin(&mut self, current: i32, now: Timestamp) {
        if self.recommendations.is_empty() {
            self.recommendations.push((now, current));
        }
    }

    /// Notes a change that was made.
    pub fn changed(&mut self, from: i32, to: i32, now: Timestamp) {
        let events = if to > from { &mut self.added } else { &mut self.removed };
        events.push((now, to.abs_diff(from) as i32));
    }

    /// Holds a recommendation back by those of the windows, and notes it.
    pub fn stabilize(
        &mut self,
        behavior: Option<&HorizontalPodAutoscalerBehavior>,
        desired: i32,
        current: i32,
        down_window: Duration,
        now: Timestamp,
    ) -> Reasoned {
        self.forget_before(now, down_window.max(LONGEST_WINDOW));
        let recent = self.recommendations.iter().copied();
        let stabilized = match behavior {
            None => {
                let cutoff = before(now, down_window);
                recent.filter(|(at, _)| *at >= cutoff).map(|(_, past)| past).fold(desired, i32::max)
            }
            Some(behavior) => {
                let window = |rules: Option<&HPAScalingRules>, otherwise: Duration| {
                    let own = rules.and_then(|rules| rules.stabilization_window_seconds);
                    own.map_or(otherwise, |own| Duration::from_secs(own.max(0) as u64))
                };
                let up = before(now, window(behavior.scale_up.as_ref(), Duration::ZERO));
                let down = before(now, window(behavior.scale_down.as_ref(), down_window));
                let (mut lowest, mut highest) = (desired, desired);
                for (at, past) in recent {
                    lowest = if at > up { lowest.min(past) } else { lowest };
                    highest = if at > down { highest.max(past) } else { highest };
                }
                current.max(lowest).min(highest)
            }
        };
        self.recommendations.push((now, desired));
        let (reason, message) = match behavior {
            _ if stabilized == desired => STEADY,
            Some(_) if desired >= current => HELD_UP,
            _ => HELD_DOWN,
        };
        (stabilized, reason, message)
    }

    /// The replicas that bounds and policies let through.
    pub fn limit(
        &self,
        behavior: Option<&HorizontalPodAutoscalerBehavior>,
        desired: i32,
        bounds: Bounds,
        now: Timestamp,
    ) -> Reasoned {
        let Bounds { min, max, current } = bounds;
        let (floor, ceiling) = match behavior {
            None => (min, current.saturating_mul(2).max(UNRULED_MINIMUM)),
            Some(behavior) => (
                self.floor(behavior.scale_down.as_ref(), current, now).min(current),
                self.ceiling(behavior.scale_up.as_ref(), current, now).max(current),
            ),
        };
        let rises = behavior.is_none() || desired > current;
        let falls = behavior.is_none() || desired < current;
        let (lowest, few) = if floor > min { (floor, DOWN_LIMIT) } else { (min, TOO_FEW) };
        let (highest, many) = if max > ceiling { (ceiling, UP_LIMIT) } else { (max, TOO_MANY) };
        let (replicas, (reason, message)) = if falls && desired < lowest {
            (lowest, few)
        } else if rises && desired > highest {
            (highest, many)
        } else {
            (desired, WITHIN)
        };
        (replicas, reason, message)
    }

    /// The most replicas that policies let a target have now.
    fn ceiling(&self, rules: Option<&HPAScalingRules>, current: i32, now: Timestamp) -> i32 {
        let proposals = self.proposals(rules, current, now, |start, percent, value| match percent {
            // rounded up, or a small target would never grow
            true => (f64::from(start) * (1.0 + f64::from(value) / 100.0)).ceil() as i32,
            false => start.saturating_add(value),
        });
        match rules.and_then(|rules| rules.select_policy.as_deref()) {
            Some("Disabled") => current,
            Some("Min") => proposals.into_iter().min().unwrap_or(i32::MAX),
            _ => proposals.into_iter().max().unwrap_or(i32::MIN),
        }
    }

    /// The fewest.
    fn floor(&self, rules: Option<&HPAScalingRules>, current: i32, now: Timestamp) -> i32 {
        let proposals = self.proposals(rules, current, now, |start, percent, value| match percent {
            true => (f64::from(start) * (1.0 - f64::from(value) / 100.0)) as i32,
            false => start.saturating_sub(value),
        });
        match rules.and_then(|rules| rules.select_policy.as_deref()) {
            Some("Disabled") => current,
            Some("Min") => proposals.into_iter().max().unwrap_or(i32::MIN),
            _ => proposals.into_iter().min().unwrap_or(i32::MAX),
        }
    }

    /// What each policy says, of the replicas that there were when its period began.
    fn proposals(
        &self,
        rules: Option<&HPAScalingRules>,
        current: i32,
        now: Timestamp,
        propose: impl Fn(i32, bool, i32) -> i32,
    ) -> Vec<i32> {
        let policies = rules.and_then(|rules| rules.policies.as_ref()).into_iter().flatten();
        let proposals = policies.map(|policy| {
            let cutoff = before(now, Duration::from_secs(policy.period_seconds.max(0) as u64));
            let within = |events: &[(Timestamp, i32)]| -> i32 {
                events.iter().filter(|(at, _)| *at > cutoff).map(|(_, change)| change).sum()
            };
            let start = current - within(&self.added) + within(&self.removed);
            propose(start, policy.type_ == "Percent", policy.value)
        });
        proposals.collect()
    }

    fn forget_before(&mut self, now: Timestamp, window: Duration) {
        let cutoff = before(now, window);
        for events in [&mut self.recommendations, &mut self.added, &mut self.removed] {
            events.retain(|(at, _)| *at >= cutoff);
        }
    }
}

fn before(now: Timestamp, window: Duration) -> Timestamp {
    now.checked_sub(window).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
#[path = "behavior_tests.rs"]
mod tests;
