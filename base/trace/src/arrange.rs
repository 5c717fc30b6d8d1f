//! Steps as lines: in chapters, and the same again and again as one.

use std::collections::HashMap;

use crate::chapters::{Chapter, Step};

/// Chapters in their order; in a chapter each step with what it called, by start; the same again and again is one line.
pub fn arrange(steps: Vec<Step>) -> Vec<Step> {
    let mut groups: Vec<Vec<Step>> = Vec::new();
    let mut places: HashMap<usize, usize> = HashMap::new();
    for step in steps {
        let place = *places.entry(step.group).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[place].push(step);
    }
    groups.sort_by_key(|group| (group[0].chapter, group[0].start));
    let mut arranged: Vec<Merged> = Vec::new();
    // A controller comes back to its object again and again: that is one line, whatever it did each time.
    let mut reconciles: HashMap<Key, usize> = HashMap::new();
    for group in groups {
        let first = &group[0];
        let same = if first.is_reconcile {
            reconciles.get(&key(first)).copied()
        } else {
            let near = arranged.len().saturating_sub(MERGE_WINDOW)..arranged.len();
            near.rev().find(|at| is_same(&arranged[*at].steps, &group))
        };
        match same {
            Some(at) => arranged[at].merge(group),
            None => {
                if first.is_reconcile {
                    reconciles.insert(key(first), arranged.len());
                }
                arranged.push(Merged::new(group));
            }
        }
    }
    arranged.into_iter().flat_map(Merged::in_order).collect()
}

/// What is the same in steps that are one line.
type Key = (Chapter, String, usize, Option<String>);

fn key(step: &Step) -> Key {
    (step.chapter, step.label.clone(), step.indent, step.error.clone())
}

/// The steps of groups that are the same. Nodes hand in as many as they like, so none is looked for one by one, or moved
/// for another one that comes before it.
struct Merged {
    steps: Vec<Step>,
    /// For each step which one stands behind it.
    behind: Vec<Option<usize>>,
    /// The first step of each key; made when something is merged.
    known: HashMap<Key, usize>,
}

impl Merged {
    fn new(steps: Vec<Step>) -> Self {
        let behind = (1..=steps.len()).map(|next| (next < steps.len()).then_some(next)).collect();
        Merged { steps, behind, known: HashMap::new() }
    }

    /// Adds up the same steps; one that was not there before stands behind the step it follows.
    fn merge(&mut self, group: Vec<Step>) {
        if self.known.is_empty() {
            for (at, step) in self.steps.iter().enumerate() {
                self.known.entry(key(step)).or_insert(at);
            }
        }
        // The first of both groups is the same.
        let mut last = 0;
        for again in group {
            let next = self.steps.len();
            let at = *self.known.entry(key(&again)).or_insert(next);
            if at == next {
                let follows = self.behind[last].replace(next);
                self.behind.push(follows);
                self.steps.push(again);
            } else {
                self.steps[at].add(again);
            }
            last = at;
        }
    }

    fn in_order(self) -> impl Iterator<Item = Step> {
        let mut steps: Vec<Option<Step>> = self.steps.into_iter().map(Some).collect();
        std::iter::successors(Some(0), move |at| self.behind[*at]).filter_map(move |at| steps[at].take())
    }
}

impl Step {
    fn add(&mut self, again: Step) {
        self.times += 1;
        self.duration = self.duration.saturating_add(again.duration);
        self.end = self.end.max(again.end);
        self.critical = self.critical.saturating_add(again.critical);
        self.intervals.extend(again.intervals);
        self.causes.extend(again.causes);
        self.writes.extend(again.writes);
    }
}

/// How far back the same step is looked for: pods of one set take turns.
const MERGE_WINDOW: usize = 12;

fn is_same(one: &[Step], other: &[Step]) -> bool {
    let same = |(one, other): (&Step, &Step)| {
        one.chapter == other.chapter
            && one.label == other.label
            && one.indent == other.indent
            && one.error == other.error
    };
    one.len() == other.len() && one.iter().zip(other).all(same)
}

#[cfg(test)]
mod tests {
    use crate::chapters::{Detail, Story, story};
    use crate::script::history;
    use crate::{Record, SpanId};

    /// One step for each letter: `a` is a reconcile, what follows is what it called.
    fn told(groups: &[&str]) -> Vec<(String, usize)> {
        let mut script = String::new();
        for group in groups {
            for (at, letter) in group.chars().enumerate() {
                script += &match at {
                    0 => format!("reconcile @pods/default/{letter} controller=c !e\n"),
                    _ => format!("pods.create ^reconcile @pods/default/{letter}\n"),
                };
            }
        }
        let Story { steps, .. } = story(&history(&script), Detail::All);
        let name = |label: &str| label.rsplit('/').next().unwrap_or_default().to_owned();
        steps.iter().map(|step| (name(&step.label), step.times)).collect()
    }

    #[test]
    fn what_was_not_there_before_stands_behind_the_step_that_it_follows() {
        let check = |groups: &[&str], expected: &[(&str, usize)]| {
            let expected: Vec<(String, usize)> =
                expected.iter().map(|(name, times)| (name.to_string(), *times)).collect();
            assert_eq!(told(groups), expected, "{groups:?}");
        };
        check(&["abc", "abc"], &[("a", 2), ("b", 2), ("c", 2)]);
        check(&["abc", "axc", "abyz"], &[("a", 3), ("x", 1), ("b", 2), ("y", 1), ("z", 1), ("c", 2)]);
        check(&["a", "b", "a"], &[("a", 2), ("b", 1)]);
        check(&["abb", "ab"], &[("a", 2), ("b", 2), ("b", 1)]);
    }

    /// Anybody who hands in spans says what they are, how long they took and what called what.
    #[test]
    fn stories_of_many_steps_take_no_time() {
        const MANY: u64 = 50_000;
        let record = |number: u64, object: String| Record {
            span: SpanId::from_bytes((number + 1).to_be_bytes()).expect("is not zero"),
            object: Some(object.into()),
            duration: u64::MAX,
            start: number,
            ..history("reconcile !e controller=c waitMicros=9223372036854775807 <7").remove(0)
        };
        let different = (0..MANY).map(|each| record(each, format!("pods/default/{each}")));
        let again = (0..MANY).map(|each| {
            let first = each - each % (MANY / 4);
            let of_first = SpanId::from_bytes((first + 1).to_be_bytes()).filter(|_| each > first);
            let object = if each == first { "pods/default/a".into() } else { format!("pods/default/{each}") };
            Record { parent: of_first, ..record(each, object) }
        });
        for records in [different.collect::<Vec<_>>(), again.collect()] {
            let told = story(&records, Detail::All);
            assert_eq!(told.steps.iter().map(|step| step.times).sum::<usize>(), records.len());
        }
    }
}
