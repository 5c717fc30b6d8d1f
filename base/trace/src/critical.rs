//! The critical path: what the last step waited for, and what that waited for, back to the first cause.
//!
//! Inside a trace a step waits for what it called. A step that was woken by a revision waited for the commit of it, and
//! then for the watch and the queue that brought it. Every moment between the first cause and the last step is given to
//! exactly one of them, so the shares add up to the whole.

use std::collections::{HashMap, HashSet};

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
    fn inside(&mut self, span: &'a Record, until: u64, line: &HashSet<SpanId>) {
        if !self.seen.insert(span.span) {
            return;
        }
        let calls = self.children.get(&span.span).cloned().unwrap_or_default();
        let mut at = until;
        loop {
            let ends = |call: &&&Record| call.end().min(at);
            let ready = calls.iter().filter(|call| {
                call.start < at && call.start >= span.start && !self.seen.contains(&call.span)
            });
            let last = ready.max_by_key(|call| (ends(call), line.contains(&call.span), call.start));
            let Some(call) = last.copied() else { break };
            let ended = call.end().min(at);
            self.give(span.span, at - ended);
            self.inside(call, ended, line);
            at = call.start;
        }
        self.give(span.span, at.saturating_sub(span.start));
    }

    fn give(&mut self, span: SpanId, time: u64) {
        *self.path.spans.entry(span).or_default() += time;
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
}
