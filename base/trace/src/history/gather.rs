//! The records of a causal chain, asked for step by step: the traces of what was asked about, what caused them, and
//! what they caused. [`crate::timeline()`] then chooses among them; this only makes sure that they are there.

use std::collections::{HashMap, HashSet};

use super::{Found, Wanted};
use crate::context::{SpanId, TraceId};
use crate::ring::Record;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// What led to it.
    Back,
    /// And what came of it.
    Both,
}

/// From a command to a name in DNS there are a dozen causes at most; a chain that is longer is told in part.
const MAX_STEPS: usize = 24;

/// `find` answers from wherever records are kept.
pub fn gather<E>(
    seeds: &Wanted,
    direction: Direction,
    mut find: impl FnMut(&Wanted) -> Result<Found, E>,
) -> Result<Found, E> {
    let mut gathered = Gathered::default();
    let seeds = gathered.take(find(seeds)?);
    let mut backward: HashSet<TraceId> = traces(&seeds);
    let mut forward = if direction == Direction::Both { backward.clone() } else { HashSet::new() };
    let mut loaded: HashSet<TraceId> = HashSet::new();
    let mut asked: HashSet<i64> = HashSet::new();
    for _ in 0..MAX_STEPS {
        let missing: HashSet<TraceId> =
            backward.union(&forward).filter(|trace| !loaded.contains(*trace)).copied().collect();
        if missing.is_empty() || gathered.is_full() {
            break;
        }
        loaded.extend(&missing);
        gathered.take(find(&Wanted::traces(missing))?);
        let (mut causes, mut commits): (HashSet<i64>, HashSet<i64>) = Default::default();
        for record in gathered.records.values() {
            if backward.contains(&record.trace) {
                causes.extend(&record.causes);
            }
            if forward.contains(&record.trace) {
                commits.extend(record.committed);
            }
        }
        let new: HashSet<i64> =
            causes.union(&commits).filter(|revision| !asked.contains(*revision)).copied().collect();
        if new.is_empty() {
            continue;
        }
        asked.extend(&new);
        for record in gathered.take(find(&Wanted::revisions(new))?) {
            if record.committed.is_some_and(|revision| causes.contains(&revision)) {
                backward.insert(record.trace);
            }
            if record.causes.iter().any(|cause| commits.contains(cause)) {
                forward.insert(record.trace);
            }
        }
    }
    Ok(gathered.found())
}

#[derive(Default)]
struct Gathered {
    records: HashMap<SpanId, Record>,
    is_cut: bool,
    segments_read: usize,
    segments: usize,
}

impl Gathered {
    fn take(&mut self, found: Found) -> Vec<Record> {
        self.is_cut |= found.is_cut;
        self.segments_read += found.segments_read;
        self.segments = found.segments;
        for record in &found.records {
            if !self.records.get(&record.span).is_some_and(|known| known.outranks(record)) {
                self.records.insert(record.span, record.clone());
            }
        }
        found.records
    }

    fn is_full(&mut self) -> bool {
        self.is_cut |= self.records.len() >= Found::MAX_RECORDS;
        self.is_cut
    }

    fn found(self) -> Found {
        let mut records: Vec<Record> = self.records.into_values().collect();
        records.sort_by_key(|record| (record.start, record.sequence));
        Found { records, is_cut: self.is_cut, segments_read: self.segments_read, segments: self.segments }
    }
}

fn traces(records: &[Record]) -> HashSet<TraceId> {
    records.iter().map(|record| record.trace).collect()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::ring::tests::record;

    /// A command makes a set (r1), the set's reconcile two pods (r2, r3), each pod is bound (r4, r5).
    fn history() -> Vec<Record> {
        let mut records = Vec::new();
        let mut step = |name: &'static str, object: &str, causes: &[i64], commits: &[i64]| {
            let mut first = record(name, records.len() as u64);
            (first.object, first.causes) = (Some(object.into()), causes.into());
            let trace = first.trace;
            records.push(first);
            for revision in commits {
                let mut commit = record("store.commit", records.len() as u64);
                (commit.trace, commit.committed) = (trace, Some(*revision));
                commit.object = Some(format!("written/{revision}").into());
                records.push(commit);
            }
        };
        step("command", "sets/a", &[], &[1]);
        step("reconcile", "sets/a", &[1], &[2, 3]);
        step("schedule", "pods/x", &[2], &[4]);
        step("schedule", "pods/y", &[3], &[5]);
        step("command", "other", &[], &[9]);
        records
    }

    fn check(seeds: Wanted, direction: Direction, expected: &[u64]) {
        let history = history();
        let find = |wanted: &Wanted| {
            let records = history.iter().filter(|record| wanted.takes(record)).cloned().collect();
            Ok::<_, Infallible>(Found { records, ..Found::default() })
        };
        let Ok(found) = gather(&seeds, direction, find);
        let starts: Vec<u64> = found.records.iter().map(|record| record.start).collect();
        assert_eq!(starts, expected, "{seeds:?}");
    }

    #[test]
    fn what_others_hand_in_hides_no_record_of_a_server() {
        let mut own = record("store.commit", 7);
        (own.object, own.committed) = (Some("pods/x".into()), Some(7));
        let forged = Record { committed: None, source: Some("system:node:n".into()), ..own.clone() };
        let relayed = Record { source: Some("other-server".into()), ..own.clone() };
        for records in [[&own, &forged], [&forged, &own], [&relayed, &forged], [&forged, &relayed]] {
            let mut found = Found::default();
            found.add(records.map(Record::clone));
            assert_eq!(found.records.iter().map(|record| record.committed).collect::<Vec<_>>(), [Some(7)]);
            let find = |wanted: &Wanted| {
                let records = records.into_iter().filter(|record| wanted.takes(record)).cloned().collect();
                Ok::<_, Infallible>(Found { records, ..Found::default() })
            };
            let Ok(found) = gather(&Wanted::object("pods/x"), Direction::Both, find);
            assert_eq!(found.records.iter().map(|record| record.committed).collect::<Vec<_>>(), [Some(7)]);
        }
    }

    #[test]
    fn a_chain_is_gathered_to_its_first_cause_and_its_last_consequence() {
        check(Wanted::object("sets/a"), Direction::Both, &[0, 1, 2, 3, 4, 5, 6, 7, 8]);
        check(Wanted::object("written/4"), Direction::Back, &[0, 1, 2, 3, 4, 5, 6]);
        check(Wanted::object("pods/y"), Direction::Both, &[0, 1, 2, 3, 4, 7, 8]);
        check(Wanted::revisions([9]), Direction::Both, &[9, 10]);
        check(Wanted::object("nobody"), Direction::Both, &[]);
    }
}
