//! The causal chain of an object, a trace or a revision, put together from records.
//!
//! Three links join spans: a parent (same trace, `traceparent` between processes), and a
//! revision, which one span committed and others were caused by. Going back along them from
//! the focus finds what led to it; going forward finds what came of it.

use std::collections::{HashMap, HashSet, VecDeque};

use serde::Serialize;

use crate::context::{SpanId, TraceId};
use crate::lives::{life_of, lives};
use crate::record::Record;

/// What a timeline is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Focus {
    Trace(TraceId),
    /// `resource/namespace/name`, as [`crate::span::object_key`] prints it.
    Object(String),
    /// One life of an object: from its creation to its deletion under one uid.
    Life {
        object: String,
        uid: String,
    },
    Revision(i64),
}

/// Spans in causal order: each stands after what made it happen, siblings by start.
#[derive(Debug, Serialize)]
pub struct Timeline {
    pub entries: Vec<Entry>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// How many links from the first cause.
    pub depth: usize,
    pub link: Link,
    #[serde(flatten)]
    pub record: Record,
}

/// Why an entry stands where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Link {
    /// Nothing that led to it is recorded here.
    Root,
    /// Called by the span above it.
    Child,
    /// Woken by a revision that the span above it committed.
    CausedBy(i64),
}

/// Assembles what led to `focus` and what came of it.
pub fn timeline(records: &[Record], focus: &Focus) -> Timeline {
    let graph = Graph::of(records);
    let lives = match focus {
        Focus::Life { object, .. } => lives(records, object),
        _ => Vec::new(),
    };
    let seeds = records.iter().enumerate().filter(|(_, record)| match focus {
        Focus::Trace(trace) => record.trace == *trace,
        Focus::Object(object) => record.object.as_deref() == Some(object),
        Focus::Life { object, uid } => {
            record.object.as_deref() == Some(object)
                && life_of(record, &lives).is_some_and(|life| life.uid == *uid)
        }
        Focus::Revision(revision) => record.committed == Some(*revision) || record.causes.contains(revision),
    });
    let chosen = graph.chain(seeds.map(|(index, _)| index));
    graph.in_causal_order(&chosen)
}

/// All of `records`, each after what made it happen.
pub fn in_causal_order(records: &[Record]) -> Timeline {
    Graph::of(records).in_causal_order(&(0..records.len()).collect())
}

struct Graph<'a> {
    records: &'a [Record],
    /// What made each span happen: its parent if that is recorded, else the writers of the
    /// revisions it names, in their order.
    origins: Vec<Vec<(usize, Link)>>,
    /// The same links, seen from above.
    consequences: Vec<Vec<usize>>,
}

impl<'a> Graph<'a> {
    fn of(records: &'a [Record]) -> Self {
        let by_span: HashMap<SpanId, usize> = records.iter().enumerate().map(|(i, r)| (r.span, i)).collect();
        // The registry's commit and the store's inside it both say the revision: the outer one is the cause.
        let mut writers: HashMap<i64, usize> = HashMap::new();
        for (index, record) in records.iter().enumerate() {
            if let Some(revision) = record.committed {
                let writer = writers.entry(revision).or_insert(index);
                if records[index].start < records[*writer].start {
                    *writer = index;
                }
            }
        }
        let mut graph = Graph { records, origins: Vec::new(), consequences: vec![Vec::new(); records.len()] };
        for (index, record) in records.iter().enumerate() {
            let parent = record.parent.and_then(|parent| by_span.get(&parent));
            let origins: Vec<(usize, Link)> = match parent {
                Some(parent) => vec![(*parent, Link::Child)],
                None => {
                    let writer = |cause: &i64| Some((*writers.get(cause)?, Link::CausedBy(*cause)));
                    record.causes.iter().filter_map(writer).collect()
                }
            };
            for (origin, _) in &origins {
                graph.consequences[*origin].push(index);
            }
            graph.origins.push(origins);
        }
        graph
    }

    /// The seeds, the first causes that lead to them, and all that follows from the seeds. A
    /// sibling caused by another revision of an ancestor stays out: the story of one pod is
    /// not that of its whole ReplicaSet.
    fn chain(&self, seeds: impl Iterator<Item = usize>) -> HashSet<usize> {
        let mut chosen: HashSet<usize> = seeds.collect();
        let mut forward: VecDeque<usize> = chosen.iter().copied().collect();
        let mut backward: Vec<usize> = chosen.iter().copied().collect();
        while let Some(index) = forward.pop_front() {
            for &consequence in &self.consequences[index] {
                if chosen.insert(consequence) {
                    forward.push_back(consequence);
                }
            }
        }
        while let Some(index) = backward.pop() {
            if let Some(&(origin, _)) = self.origins[index].first()
                && chosen.insert(origin)
            {
                backward.push(origin);
            }
        }
        chosen
    }

    fn in_causal_order(&self, chosen: &HashSet<usize>) -> Timeline {
        let by_start = |index: &usize| (self.records[*index].start, self.records[*index].sequence);
        let place = |index: usize| self.origins[index].iter().find(|(origin, _)| chosen.contains(origin));
        let mut below: HashMap<usize, Vec<usize>> = HashMap::new();
        let mut roots = Vec::new();
        for &index in chosen {
            match place(index) {
                Some((origin, _)) => below.entry(*origin).or_default().push(index),
                None => roots.push(index),
            }
        }
        roots.sort_by_key(by_start);
        let mut entries = Vec::with_capacity(chosen.len());
        let mut stack: Vec<(usize, usize)> = roots.into_iter().rev().map(|index| (index, 0)).collect();
        while let Some((index, depth)) = stack.pop() {
            let link = place(index).map_or(Link::Root, |(_, link)| *link);
            entries.push(Entry { depth, link, record: self.records[index].clone() });
            // Each list leaves the map once, so records that claim to cause each other cannot
            // make this run for ever.
            let mut children = below.remove(&index).unwrap_or_default();
            children.sort_by_key(by_start);
            stack.extend(children.into_iter().rev().map(|child| (child, depth + 1)));
        }
        Timeline { entries }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    /// A scripted history: who called whom, who wrote and who answered what.
    #[derive(Default)]
    struct History(Vec<Record>);

    impl History {
        fn add(&mut self, name: &'static str, parent: Option<&str>) -> &mut Record {
            let mut new = record(name, self.0.len() as u64);
            if let Some(parent) = parent {
                let parent = self.0.iter().find(|record| record.name == parent).expect("parent comes first");
                (new.trace, new.parent) = (parent.trace, Some(parent.span));
            }
            self.0.push(new);
            self.0.last_mut().expect("was just pushed")
        }

        fn wrote(&mut self, name: &'static str, parent: &str, object: &str, revision: i64) {
            let record = self.add(name, Some(parent));
            (record.object, record.committed) = (Some(object.into()), Some(revision));
        }

        fn woken(&mut self, name: &'static str, object: &str, causes: &[i64]) {
            let record = self.add(name, None);
            (record.object, record.causes) = (Some(object.into()), causes.into());
        }
    }

    fn rollout() -> History {
        let mut history = History::default();
        history.add("kubectl", None);
        history.wrote("create deployment", "kubectl", "deployments.apps/default/nginx", 10);
        history.woken("reconcile deployment", "deployments.apps/default/nginx", &[10]);
        history.wrote("create replicaset", "reconcile deployment", "replicasets.apps/default/nginx-1", 11);
        history.woken("reconcile replicaset", "replicasets.apps/default/nginx-1", &[11]);
        history.wrote("create pod a", "reconcile replicaset", "pods/default/a", 12);
        history.wrote("create pod b", "reconcile replicaset", "pods/default/b", 13);
        history.woken("schedule a", "pods/default/a", &[12]);
        history.woken("reconcile endpoints", "services/default/nginx", &[12, 13]);
        history.woken("unrelated", "nodes/n1", &[99]);
        history
    }

    fn check(focus: Focus, expected: &[(usize, &str)]) {
        let timeline = timeline(&rollout().0, &focus);
        let seen: Vec<(usize, &str)> =
            timeline.entries.iter().map(|e| (e.depth, e.record.name.as_ref())).collect();
        assert_eq!(seen, expected, "{focus:?}");
    }

    #[test]
    fn the_command_leads_to_everything_it_caused() {
        check(
            Focus::Object("deployments.apps/default/nginx".into()),
            &[
                (0, "kubectl"),
                (1, "create deployment"),
                (2, "reconcile deployment"),
                (3, "create replicaset"),
                (4, "reconcile replicaset"),
                (5, "create pod a"),
                (6, "schedule a"),
                (6, "reconcile endpoints"),
                (5, "create pod b"),
            ],
        );
    }

    #[test]
    fn a_pod_shows_its_ancestors_and_consequences_but_not_its_siblings() {
        check(
            Focus::Object("pods/default/b".into()),
            &[
                (0, "kubectl"),
                (1, "create deployment"),
                (2, "reconcile deployment"),
                (3, "create replicaset"),
                (4, "reconcile replicaset"),
                (5, "create pod b"),
                (6, "reconcile endpoints"),
            ],
        );
    }

    #[test]
    fn a_revision_and_a_trace_are_places_to_start_too() {
        check(Focus::Revision(99), &[(0, "unrelated")]);
        let history = rollout();
        let focus = Focus::Trace(history.0[0].trace);
        assert_eq!(timeline(&history.0, &focus).entries.len(), 9);
        assert!(timeline(&history.0, &Focus::Object("pods/default/none".into())).entries.is_empty());
    }

    #[test]
    fn in_causal_order_leaves_nothing_out() {
        let mut records = rollout().0;
        records.reverse();
        let timeline = in_causal_order(&records);
        assert_eq!(timeline.entries.len(), records.len());
        let roots: Vec<&str> =
            timeline.entries.iter().filter(|e| e.depth == 0).map(|e| e.record.name.as_ref()).collect();
        assert_eq!(roots, ["kubectl", "unrelated"]);
    }

    #[test]
    fn a_span_that_claims_to_cause_itself_is_shown_once() {
        let mut odd = record("odd", 0);
        (odd.committed, odd.causes) = (Some(5), vec![5]);
        odd.parent = Some(odd.span);
        assert!(timeline(&[odd], &Focus::Revision(5)).entries.len() <= 1);
    }

    #[test]
    fn entries_serialize_flat() {
        let entry = &timeline(&rollout().0, &Focus::Revision(11)).entries[3];
        let json = serde_json::to_value(entry).unwrap();
        assert_eq!(json["name"], "create replicaset");
        assert_eq!(json["committed"], 11);
        assert_eq!(json["link"], "child");
    }
}
