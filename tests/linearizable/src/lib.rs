//! A linearizability checker: whether the operations that concurrent clients observed on a key can be ordered so that each
//! sees the result of the previous one, and takes effect between its request and its response.
//!
//! It uses Wing and Gong's search with a memory of visited states, separately for each key: a history is linearizable if it
//! is linearizable for each of its keys. A write without a response may take effect at any time after its request, or
//! never.

use std::collections::HashSet;

/// A value and the revision that it was written at.
pub type Seen = Option<(String, u64)>;

#[derive(Debug, Clone)]
pub enum Action {
    Read {
        saw: Seen,
    },
    /// Puts, or deletes where there is no value, if the key was last changed at `expected`; zero for an absent key.
    Write {
        expected: u64,
        value: Option<String>,
        outcome: Outcome,
    },
}

#[derive(Debug, Clone)]
pub enum Outcome {
    /// Done at a revision, where the answer tells it.
    Done(Option<u64>),
    /// Refused, since the key was not as expected; with what it was, where the answer tells it.
    Conflict(Option<Seen>),
    /// No answer came.
    Unknown,
}

/// `begin` and `end` are ticks of one clock.
#[derive(Debug, Clone)]
pub struct Call {
    pub begin: u64,
    pub end: u64,
    pub action: Action,
}

impl Call {
    /// No answer ends it: it may still happen when all others have ended.
    fn last_turn(&self) -> u64 {
        if self.is_unknown() { u64::MAX } else { self.end }
    }

    fn is_unknown(&self) -> bool {
        matches!(self.action, Action::Write { outcome: Outcome::Unknown, .. })
    }
}

/// What the key is at one place of an order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    Absent,
    /// The revision is not known of a write without an answer until somebody reads it.
    Value(String, Option<u64>),
}

impl State {
    /// The state with what a read tells of it, if the read can have seen it.
    fn as_seen(&self, saw: &Seen) -> Option<State> {
        match (self, saw) {
            (State::Absent, None) => Some(State::Absent),
            (State::Value(value, revision), Some((seen, at))) => {
                let fits = value == seen && revision.is_none_or(|revision| revision == *at);
                fits.then(|| State::Value(seen.clone(), Some(*at)))
            }
            _ => None,
        }
    }

    /// Nobody can expect a revision that nobody has seen.
    fn is_at(&self, expected: u64) -> bool {
        match self {
            State::Absent => expected == 0,
            State::Value(_, revision) => *revision == Some(expected),
        }
    }

    fn is_before(&self, at: Option<u64>) -> bool {
        match (self, at) {
            (State::Value(_, Some(revision)), Some(at)) => *revision < at,
            _ => true,
        }
    }

    fn written(value: Option<&String>, at: Option<u64>) -> State {
        value.map_or(State::Absent, |value| State::Value(value.clone(), at))
    }
}

/// What the call leaves, if it can have met `state`.
fn apply(state: &State, action: &Action) -> Option<State> {
    match action {
        Action::Read { saw } => state.as_seen(saw),
        Action::Write { expected, value, outcome } => match outcome {
            Outcome::Done(at) => {
                (state.is_at(*expected) && state.is_before(*at)).then(|| State::written(value.as_ref(), *at))
            }
            Outcome::Conflict(_) if state.is_at(*expected) => None,
            Outcome::Conflict(None) => Some(state.clone()),
            Outcome::Conflict(Some(saw)) => state.as_seen(saw),
            // Where it is refused, it is as if it never happened; the search tries that by leaving it out.
            Outcome::Unknown => state.is_at(*expected).then(|| State::written(value.as_ref(), None)),
        },
    }
}

/// Whether the calls of one key, which did not exist before, have an order.
pub fn is_linearizable(calls: &[Call]) -> bool {
    let mut seen = HashSet::new();
    let mut open = vec![(vec![false; calls.len()], State::Absent)];
    while let Some((done, state)) = open.pop() {
        let left = || (0..calls.len()).filter(|at| !done[*at]);
        if left().all(|at| calls[at].is_unknown()) {
            return true;
        }
        // The next in order began before any that is still to come had ended.
        let first_end = left().map(|at| calls[at].last_turn()).min().unwrap_or(u64::MAX);
        for at in left().filter(|at| calls[*at].begin < first_end) {
            if let Some(state) = apply(&state, &calls[at].action) {
                let mut done = done.clone();
                done[at] = true;
                if seen.insert((done.clone(), state.clone())) {
                    open.push((done, state));
                }
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(revision: u64) -> Seen {
        Some((revision.to_string(), revision))
    }

    fn put(expected: u64, at: u64) -> Action {
        let outcome = Outcome::Done(Some(at));
        Action::Write { expected, value: Some(at.to_string()), outcome }
    }

    fn read(revision: u64) -> Action {
        Action::Read { saw: value(revision) }
    }

    fn check(calls: &[(u64, u64, Action)], expected: bool) {
        let calls: Vec<Call> = calls
            .iter()
            .map(|(begin, end, action)| Call { begin: *begin, end: *end, action: action.clone() })
            .collect();
        assert_eq!(is_linearizable(&calls), expected, "{calls:?}");
    }

    #[test]
    fn a_stale_read_has_no_place() {
        check(&[(0, 1, put(0, 2)), (2, 3, put(2, 3)), (4, 5, read(3))], true);
        check(&[(0, 1, put(0, 2)), (2, 3, put(2, 3)), (4, 5, read(2))], false);
        // The read and the second write overlap: either may be first.
        check(&[(0, 1, put(0, 2)), (2, 5, put(2, 3)), (3, 4, read(2))], true);
        check(&[(0, 1, put(0, 2)), (2, 5, put(2, 3)), (3, 4, read(3))], true);
        // But not one after the other.
        check(&[(0, 1, put(0, 2)), (2, 9, put(2, 3)), (3, 4, read(3)), (5, 6, read(2))], false);
    }

    #[test]
    fn a_lost_write_has_no_place() {
        check(&[(0, 1, put(0, 2)), (2, 3, put(0, 3))], false);
        let refused = |saw| Action::Write { expected: 2, value: None, outcome: Outcome::Conflict(saw) };
        check(&[(0, 1, put(0, 2)), (2, 3, refused(None))], false);
        check(&[(0, 1, put(0, 2)), (2, 3, put(2, 3)), (4, 5, refused(None))], true);
        check(&[(0, 1, put(0, 2)), (2, 3, put(2, 3)), (4, 5, refused(Some(value(2))))], false);
    }

    #[test]
    fn a_write_without_an_answer_may_have_happened_or_not() {
        let unknown = |expected, value: &str| Action::Write {
            expected,
            value: Some(value.to_string()),
            outcome: Outcome::Unknown,
        };
        let saw = |value: &str, at| Action::Read { saw: Some((value.to_string(), at)) };
        check(&[(0, 1, put(0, 2)), (2, 3, unknown(2, "x")), (4, 5, read(2))], true);
        check(&[(0, 1, put(0, 2)), (2, 3, unknown(2, "x")), (4, 5, saw("x", 7))], true);
        // Late, but not twice and not undone.
        check(&[(0, 1, put(0, 2)), (2, 3, unknown(2, "x")), (4, 5, read(2)), (6, 7, saw("x", 7))], true);
        check(&[(0, 1, put(0, 2)), (2, 3, unknown(2, "x")), (4, 5, saw("x", 7)), (6, 7, read(2))], false);
        // It expected what was no longer there.
        check(&[(0, 1, put(0, 2)), (2, 3, put(2, 3)), (4, 5, unknown(2, "x")), (6, 7, saw("x", 7))], false);
    }
}
