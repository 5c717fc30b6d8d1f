//! Clocks of several hosts, corrected by causes: nothing begins before what made it happen.
//!
//! Who sent a record says whose clock it is of. A link between two clocks (a call from one process into another, a
//! revision that one wrote and the other answered) bounds how far they can be apart: the effect began after its cause
//! did. Links in both directions leave an interval. Clocks that can agree are left alone; otherwise the offset is the
//! middle of the interval, as NTP would have it, or its end where it has only one.
//!
//! The clock of the server that is asked is the reference. A clock has one offset for all records of an answer.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use crate::context::SpanId;
use crate::handoff;
use crate::record::Record;

/// A clock whose records were moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Correction {
    /// Whose clock it is, as [`Record::source`] says.
    pub source: String,
    /// Nanoseconds that were added.
    pub offset: i64,
}

/// Moves the records of clocks that contradict what caused what, and puts all of them in their new order.
pub fn correct(records: &mut [Record]) -> Vec<Correction> {
    let clocks: BTreeSet<Option<String>> =
        records.iter().map(|record| clock(record).map(str::to_owned)).chain([None]).collect();
    // None is the first of them.
    let numbers: BTreeMap<Option<&str>, usize> =
        clocks.iter().enumerate().map(|(number, clock)| (clock.as_deref(), number)).collect();
    let offsets = offsets(&links(records, &numbers), clocks.len());
    if offsets.iter().all(|offset| *offset == 0) {
        return Vec::new();
    }
    for record in records.iter_mut() {
        record.start = record.start.saturating_add_signed(offsets[numbers[&clock(record)]]);
    }
    records.sort_by_key(|record| (record.start, record.sequence));
    let corrections = clocks.into_iter().zip(offsets).filter(|(_, offset)| *offset != 0);
    corrections.filter_map(|(clock, offset)| Some(Correction { source: clock?, offset })).collect()
}

/// A plugin on this host has this host's clock.
fn clock(record: &Record) -> Option<&str> {
    record.source.as_deref().filter(|source| *source != handoff::PLUGIN)
}

/// Between two clocks, by number: how much later than its cause, each by its own clock, an effect began at least.
struct Link {
    cause: usize,
    effect: usize,
    latency: i64,
}

fn links(records: &[Record], clocks: &BTreeMap<Option<&str>, usize>) -> Vec<Link> {
    let by_span: HashMap<SpanId, &Record> = records.iter().map(|record| (record.span, record)).collect();
    let mut writers: HashMap<i64, &Record> = HashMap::new();
    for record in records {
        if let Some(revision) = record.committed {
            let writer = writers.entry(revision).or_insert(record);
            if record.start < writer.start {
                *writer = record;
            }
        }
    }
    let mut latencies: BTreeMap<(usize, usize), i64> = BTreeMap::new();
    for effect in records {
        let parent = effect.parent.and_then(|parent| by_span.get(&parent).copied());
        let causes = effect.causes.iter().filter_map(|cause| writers.get(cause).copied());
        for cause in parent.into_iter().chain(causes).filter(|cause| clock(cause) != clock(effect)) {
            let latency = effect.start.wrapping_sub(cause.start) as i64;
            let least = latencies.entry((clocks[&clock(cause)], clocks[&clock(effect)])).or_insert(latency);
            *least = (*least).min(latency);
        }
    }
    latencies.into_iter().map(|((cause, effect), latency)| Link { cause, effect, latency }).collect()
}

/// One clock after the other is fixed, those first that need not be moved; each narrows what the others can be.
fn offsets(links: &[Link], clocks: usize) -> Vec<i64> {
    let mut fixed: Vec<Option<i64>> = vec![None; clocks];
    fixed[0] = Some(0);
    loop {
        let bounds = bounds(links, &fixed);
        let open = |number: &usize| fixed[*number].is_none() && bounds[*number] != (None, None);
        let may_stay = |number: &usize| offset(bounds[*number]) == 0;
        let next = (0..clocks).filter(open).min_by_key(|number| !may_stay(number));
        let Some(next) = next else { break };
        fixed[next] = Some(offset(bounds[next]));
    }
    fixed.into_iter().map(Option::unwrap_or_default).collect()
}

fn offset((lowest, highest): (Option<i64>, Option<i64>)) -> i64 {
    match (lowest, highest) {
        (Some(lowest), Some(highest)) if lowest <= 0 && 0 <= highest => 0,
        (Some(lowest), Some(highest)) => lowest.midpoint(highest),
        (lowest, highest) => lowest.unwrap_or(0).max(0) + highest.unwrap_or(0).min(0),
    }
}

/// A chain of causes goes through a handful of hosts. A clock that ran unevenly may contradict itself: then no bound
/// holds, and this ends all the same.
const MAX_PASSES: usize = 16;

/// What each clock's offset may be, given those that are fixed.
fn bounds(links: &[Link], fixed: &[Option<i64>]) -> Vec<(Option<i64>, Option<i64>)> {
    let mut bounds: Vec<_> = fixed.iter().map(|fixed| (*fixed, *fixed)).collect();
    for _ in 0..MAX_PASSES {
        let mut is_settled = true;
        for Link { cause, effect, latency } in links {
            if let (Some(lowest), None) = (bounds[*cause].0, fixed[*effect]) {
                let bound = Some(lowest.saturating_sub(*latency));
                is_settled &= bound <= bounds[*effect].0;
                bounds[*effect].0 = bounds[*effect].0.max(bound);
            }
            if let (Some(highest), None) = (bounds[*effect].1, fixed[*cause]) {
                let bound = highest.saturating_add(*latency);
                is_settled &= bounds[*cause].1.is_some_and(|known| known <= bound);
                bounds[*cause].1 = Some(bounds[*cause].1.map_or(bound, |known| known.min(bound)));
            }
        }
        if is_settled {
            break;
        }
    }
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::history;

    /// A command on one server; a controller on another answers it and writes back; a node answers that and writes back.
    /// Steps are a millisecond apart.
    fn story() -> Vec<Record> {
        let mut records = history(
            "
            apiserver.request
            store.commit ^apiserver.request >10
            reconcile <10
            apiserver.request ^reconcile
            store.commit ^apiserver.request >11
            kubelet.sync <11
            kubelet.status ^kubelet.sync
            apiserver.request ^kubelet.status
            ",
        );
        for at in [2, 3, 4] {
            records[at].source = Some("server two".into());
        }
        for at in [5, 6] {
            records[at].source = Some("system:node:n1".into());
        }
        records
    }

    fn check(offsets: &[(&str, i64)], expected: &[(&str, i64)]) {
        let truth = story();
        let mut records = truth.clone();
        for record in &mut records {
            let of = |(source, _): &&(&str, i64)| record.source.as_deref() == Some(*source);
            let offset = offsets.iter().find(of).map_or(0, |(_, offset)| *offset);
            record.start = record.start.checked_add_signed(offset * 1_000_000).unwrap();
        }
        let corrections = correct(&mut records);
        let seen: Vec<(&str, i64)> =
            corrections.iter().map(|each| (each.source.as_str(), each.offset / 1_000_000)).collect();
        assert_eq!(seen, expected);
        let names =
            |records: &[Record]| records.iter().map(|record| record.name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(&records), names(&truth), "in the order of causes");
    }

    #[test]
    fn clocks_that_agree_with_what_happened_are_left_alone() {
        check(&[], &[]);
        check(&[("server two", 0), ("system:node:n1", 0)], &[]);
    }

    #[test]
    fn a_clock_that_is_behind_or_ahead_is_moved_by_what_caused_what() {
        check(&[("server two", -500)], &[("server two", 500)]);
        check(&[("system:node:n1", -300)], &[("system:node:n1", 300)]);
        check(&[("system:node:n1", 300)], &[("system:node:n1", -300)]);
        check(
            &[("server two", 200), ("system:node:n1", -300)],
            &[("server two", -199), ("system:node:n1", 300)],
        );
    }

    #[test]
    fn a_clock_that_nothing_leads_back_from_is_moved_as_little_as_keeps_the_order() {
        let mut records = history("store.commit >10\nreconcile <10");
        records[1].source = Some("server two".into());
        records[1].start -= 500_000_000;
        let corrections = correct(&mut records);
        assert_eq!(corrections, [Correction { source: "server two".into(), offset: 499_000_000 }]);
        assert_eq!(records[0].name, "store.commit");
    }

    #[test]
    fn causes_that_lead_nowhere_move_nothing() {
        let mut records = history("a <99\nb >1 <2\nc >2 <1");
        records[1].source = Some("x".into());
        records[2].source = Some("y".into());
        assert_eq!(correct(&mut records), []);
        assert_eq!(correct(&mut []), []);
    }
}
