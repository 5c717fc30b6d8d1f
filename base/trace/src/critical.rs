//! The critical path: what the last step waited for, and what that waited for, back to the first cause.
//!
//! Inside a trace a step waits for what it called. A step that was woken by a revision waited for the commit of it, and
//! then for the watch and the queue that brought it. Every moment between the first cause and the last step is given to
//! exactly one of them, so the shares add up to the whole.

use std::collections::{BinaryHeap, HashMap, HashSet};

use crate::{Record, SpanId};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CriticalPath {
    /// Nanoseconds since 1970.
    pub start: u64,
    pub end: u64,
    /// How long the path stayed in each span itself, not in what it called.
    pub spans: HashMap<SpanId, u64>,
    /// Between a commit and the step that it woke: the watch, and the queue.
    pub waited: u64,
}

impl CriticalPath {
    pub fn length(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// The path to the last container that was started; where there is none, to the last write; else to the last step.
pub fn critical_path(records: &[Record]) -> CriticalPath {
    let last =
        |wanted: &dyn Fn(&&Record) -> bool| records.iter().filter(wanted).max_by_key(|record| record.end());
    let target = last(&|record| record.name == "kubelet.container" && record.error.is_none())
        .or_else(|| last(&|record| record.committed.is_some()))
        .or_else(|| last(&|_| true));
    target.map_or_else(CriticalPath::default, |target| Walk::over(records).back_from(target))
}

/// No watch and no queue takes as long as this. What began later was let go by something else (a timer, a restart), and the
/// path begins there: the time before it was nobody's.
const LONGEST_DELIVERY: u64 = 10_000_000_000;

struct Walk<'a> {
    by_span: HashMap<SpanId, &'a Record>,
    children: HashMap<SpanId, Vec<&'a Record>>,
    writers: HashMap<i64, &'a Record>,
    path: CriticalPath,
    seen: HashSet<SpanId>,
}

impl<'a> Walk<'a> {
    fn over(records: &'a [Record]) -> Self {
        let by_span: HashMap<SpanId, &Record> = records.iter().map(|record| (record.span, record)).collect();
        let mut children: HashMap<SpanId, Vec<&Record>> = HashMap::new();
        let mut writers: HashMap<i64, &Record> = HashMap::new();
        for record in records {
            if let Some(parent) = record.parent.filter(|parent| *parent != record.span) {
                children.entry(parent).or_default().push(record);
            }
            if let Some(revision) = record.committed {
                // The registry's commit and the store's inside it both name the revision: the outer one counts.
                let writer = writers.entry(revision).or_insert(record);
                if record.start < writer.start {
                    *writer = record;
                }
            }
        }
        Walk { by_span, children, writers, path: CriticalPath::default(), seen: HashSet::new() }
    }

    fn back_from(mut self, target: &'a Record) -> CriticalPath {
        self.path.end = target.end();
        let (mut target, mut until) = (target, target.end());
        loop {
            let lineage = self.lineage(target);
            let top = lineage.last().copied().unwrap_or(target);
            self.path.start = top.start.min(until);
            if self.seen.contains(&top.span) {
                break;
            }
            let line: HashSet<SpanId> = lineage.iter().map(|record| record.span).collect();
            self.inside(top, until, &line);
            let causes = top.causes.iter().filter_map(|cause| self.writers.get(cause).copied());
            let Some(writer) =
                causes.filter(|writer| writer.start <= top.start).max_by_key(|writer| writer.end())
            else {
                break;
            };
            if top.start.saturating_sub(writer.end()) > LONGEST_DELIVERY {
                break;
            }
            // Known to the watch before the commit's span is over, now and then.
            let written = writer.end().min(top.start);
            self.path.waited += top.start - written;
            (target, until) = (writer, written);
        }
        self.path
    }

    /// A record and what called it, up to where its trace began.
    fn lineage(&self, record: &'a Record) -> Vec<&'a Record> {
        let mut lineage = vec![record];
        let mut known = HashSet::from([record.span]);
        let mut at = record;
        while let Some(parent) = at.parent.and_then(|parent| self.by_span.get(&parent).copied()) {
            if !known.insert(parent.span) {
                break;
            }
            lineage.push(parent);
            at = parent;
        }
        lineage
    }

    /// Gives the time of `span` before `until` to it and to what it called: at each moment to the call that ended last.
    /// A list of what is open instead of a recursion: a node hands in as deep a chain of calls as it likes.
    fn inside(&mut self, span: &'a Record, until: u64, line: &HashSet<SpanId>) {
        let mut open = Vec::new();
        open.extend(self.open(span, until, line));
        while let Some(Open { span, at, calls }) = open.last_mut() {
            match calls.before(*at, &self.seen) {
                Some(call) => {
                    let ended = call.end().min(*at);
                    let own = *at - ended;
                    *at = call.start;
                    self.give(span.span, own);
                    open.extend(self.open(call, ended, line));
                }
                None => {
                    let own = at.saturating_sub(span.start);
                    self.give(span.span, own);
                    open.pop();
                }
            }
        }
    }

    /// A span whose time is about to be given; nothing where that was done.
    fn open(&mut self, span: &'a Record, until: u64, line: &HashSet<SpanId>) -> Option<Open<'a>> {
        if !self.seen.insert(span.span) {
            return None;
        }
        let calls = self.children.get(&span.span).into_iter().flatten().copied();
        let calls = Calls::new(calls.filter(|call| call.start >= span.start), line);
        Some(Open { span, at: until, calls })
    }

    fn give(&mut self, span: SpanId, time: u64) {
        *self.path.spans.entry(span).or_default() += time;
    }
}

/// A span, and the moment down to which its time is given.
struct Open<'a> {
    span: &'a Record,
    at: u64,
    calls: Calls<'a>,
}

/// The calls of a span, back in time: the one that ended last, and of those that were still going on the one that leads
/// on, or began last.
struct Calls<'a> {
    /// The last to end stands last.
    ended: Vec<Call<'a>>,
    going_on: BinaryHeap<(bool, u64, usize)>,
    calls: Vec<&'a Record>,
}

struct Call<'a> {
    record: &'a Record,
    leads_on: bool,
}

impl<'a> Calls<'a> {
    fn new(calls: impl Iterator<Item = &'a Record>, line: &HashSet<SpanId>) -> Self {
        let mut ended: Vec<Call<'a>> =
            calls.map(|record| Call { record, leads_on: line.contains(&record.span) }).collect();
        ended.sort_by_key(|call| (call.record.end(), call.leads_on, call.record.start));
        Calls { ended, going_on: BinaryHeap::new(), calls: Vec::new() }
    }

    /// The last call that began before `at`, which is earlier each time.
    fn before(&mut self, at: u64, seen: &HashSet<SpanId>) -> Option<&'a Record> {
        while let Some(call) = self.ended.pop_if(|call| call.record.end() >= at) {
            self.going_on.push((call.leads_on, call.record.start, self.calls.len()));
            self.calls.push(call.record);
        }
        while let Some((_, start, index)) = self.going_on.pop() {
            let call = self.calls[index];
            if start < at && !seen.contains(&call.span) {
                return Some(call);
            }
        }
        while let Some(Call { record, .. }) = self.ended.pop() {
            if !seen.contains(&record.span) {
                return Some(record);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::history;

    const MS: u64 = 1_000_000;

    /// Milliseconds of each step, by name, in the order of `times`; and what was waited.
    fn check(script: &str, times: &[(u64, u64)], expected: &[(&str, u64)], waited: u64) {
        let mut records = history(script);
        for (record, (start, end)) in records.iter_mut().zip(times) {
            (record.start, record.duration) = (start * MS, (end - start) * MS);
        }
        let path = critical_path(&records);
        let found: Vec<(&str, u64)> = records
            .iter()
            .filter_map(|record| Some((record.name.as_ref(), path.spans.get(&record.span)? / MS)))
            .collect();
        assert_eq!(found, expected);
        assert_eq!(path.waited / MS, waited);
        let sum: u64 = path.spans.values().sum();
        assert_eq!(sum + path.waited, path.length(), "every moment is given once");
    }

    #[test]
    fn a_step_waits_for_the_call_that_ended_last() {
        check(
            "kubelet.sync
             kubelet.sandbox ^kubelet.sync
             kubelet.volumes ^kubelet.sync
             kubelet.container ^kubelet.sync
             kubelet.status ^kubelet.sync",
            &[(0, 100), (10, 60), (10, 30), (65, 90), (92, 99)],
            &[("kubelet.sync", 15), ("kubelet.sandbox", 50), ("kubelet.container", 25)],
            0,
        );
    }

    #[test]
    fn the_path_goes_back_over_the_revision_to_the_first_cause() {
        check(
            "kubectl.command
             store.commit ^kubectl.command @pods/default/a >5
             other.command
             kubelet.sync <5
             kubelet.container ^kubelet.sync",
            &[(0, 20), (5, 10), (0, 90), (30, 100), (40, 80)],
            &[("kubectl.command", 5), ("store.commit", 5), ("kubelet.sync", 10), ("kubelet.container", 40)],
            20,
        );
    }

    #[test]
    fn calls_that_overlap_are_met_back_in_time() {
        // One call goes on while others come and go; the container is what the path leads back from.
        check(
            "kubelet.sync
             kubelet.volumes ^kubelet.sync
             kubelet.sandbox ^kubelet.sync
             kubelet.container ^kubelet.sync
             kubelet.late ^kubelet.sync",
            &[(0, 100), (5, 80), (20, 60), (30, 100), (98, 120)],
            &[
                ("kubelet.sync", 5),
                ("kubelet.volumes", 15),
                ("kubelet.sandbox", 10),
                ("kubelet.container", 70),
            ],
            0,
        );
    }

    /// Anybody who hands in spans says what called what.
    #[test]
    fn calls_of_any_depth_and_number_take_neither_stack_nor_time() {
        const MANY: u64 = 50_000;
        let id = |number: u64| SpanId::from_bytes((number + 1).to_be_bytes()).expect("is not zero");
        let record = |number: u64, parent: Option<u64>, start: u64, end: u64| Record {
            span: id(number),
            parent: parent.map(id),
            start,
            duration: end - start,
            ..history("step").remove(0)
        };
        let deep = (0..MANY).map(|each| record(each, each.checked_sub(1), each, 3 * MANY - each));
        let wide = (0..MANY).map(|each| record(each, (each > 0).then_some(0), each, 2 * each + 1));
        for records in [deep.collect::<Vec<_>>(), wide.collect()] {
            let small = std::thread::Builder::new().stack_size(512 << 10);
            let path =
                small.spawn(move || critical_path(&records)).expect("a thread").join().expect("no overflow");
            assert_eq!(path.spans.values().sum::<u64>() + path.waited, path.length());
        }
    }

    #[test]
    fn records_that_cause_each_other_end_the_path() {
        check(
            "reconcile <6 >5
             reconcile <5 >6",
            &[(0, 10), (10, 20)],
            &[("reconcile", 10), ("reconcile", 10)],
            0,
        );
        assert_eq!(critical_path(&[]), CriticalPath::default());
    }

    #[test]
    fn what_began_minutes_after_its_cause_did_not_wait_for_it() {
        let mut records = history(
            "store.commit @a/x >1
             reconcile <1 @a/x controller=c
             store.commit ^reconcile @a/y >2",
        );
        for (record, (start, end)) in
            records.iter_mut().zip([(0, 10), (600_000, 600_010), (600_002, 600_008)])
        {
            (record.start, record.duration) = (1_000_000_000 + start * 1_000_000, (end - start) * 1_000_000);
        }
        let path = critical_path(&records);
        assert_eq!((path.start, path.length(), path.waited), (records[1].start, 8_000_000, 0));
    }
}
