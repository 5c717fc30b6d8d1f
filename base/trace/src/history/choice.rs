//! What goes to disk: spans that say something a day later, and what they are part of.
//!
//! A write is some twenty spans, most of them steps of a few microseconds (an authorizer that allowed, a plugin that had
//! nothing to say). They are in memory for whoever looks now. To keep each of them for days would cost a write more than
//! everything else about its trace.

use std::collections::HashSet;

use crate::context::SpanId;
use crate::facts::mark;
use crate::record::{Head, Kept};

/// A step that took as long as this is worth keeping, whatever it was: somebody waited for it.
const LONG: u64 = 500_000;

/// Calls that are open at a time; a span whose parent never ends must not take memory for ever.
const MAX_AWAITED: usize = 16 * 1024;

/// What of a span decides whether it is kept.
pub struct Outline {
    pub sequence: u64,
    span: SpanId,
    parent: Option<SpanId>,
    says_something: bool,
}

impl Outline {
    pub fn of(kept: Kept<'_>) -> Outline {
        let Head { sequence, span, parent, .. } = *kept.head;
        Outline { sequence, span, parent, says_something: says_something(kept.head) }
    }
}

/// Spans end before what called them does, so a chosen span's callers come later.
pub struct Choice {
    awaited: HashSet<SpanId, foldhash::fast::RandomState>,
    /// How many of them have the same last bits: nearly every span is seen at a glance not to be among them.
    alike: Box<[u16; ALIKE]>,
}

/// More than there are requests at a time, few enough to stay in the processor's cache. Each counts up to [`MAX_AWAITED`].
const ALIKE: usize = 1_024;

impl Default for Choice {
    fn default() -> Self {
        Choice { awaited: HashSet::default(), alike: Box::new([0; ALIKE]) }
    }
}

fn last_bits(span: SpanId) -> usize {
    let [.., high, low] = span.to_bytes();
    usize::from(u16::from_be_bytes([high, low])) % ALIKE
}

impl Choice {
    /// Whether it is kept. Spans are shown in the order in which they ended, on whichever thread.
    pub fn takes(&mut self, outline: &Outline) -> bool {
        let bits = last_bits(outline.span);
        let is_awaited = self.alike[bits] > 0 && self.awaited.remove(&outline.span);
        if is_awaited {
            self.alike[bits] -= 1;
        }
        let is_chosen = is_awaited || outline.says_something;
        if let Some(parent) = outline.parent.filter(|_| is_chosen) {
            if self.awaited.len() >= MAX_AWAITED {
                self.awaited.clear();
                self.alike.fill(0);
            }
            if self.awaited.insert(parent) {
                self.alike[last_bits(parent)] += 1;
            }
        }
        is_chosen
    }
}

fn says_something(head: &Head) -> bool {
    const SAID: u8 = mark::COMMITTED | mark::OBJECT | mark::ERROR | mark::CAUSE;
    head.parent.is_none() || head.marks & SAID != 0 || head.duration >= LONG
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;
    use crate::script::history;

    fn outline(record: &Record) -> Outline {
        let (head, facts) = record.take_apart();
        Outline::of(Kept { head: &head, facts: facts.bytes() })
    }

    #[test]
    fn what_says_something_is_kept_with_all_that_called_it() {
        let mut records = history(
            "
            apiserver.request user=alice
            filter.authorization ^apiserver.request verdict=allowed
            registry.create ^apiserver.request
            registry.validate ^registry.create
            admission.validate ^registry.create !denied
            store.commit ^registry.create >7
            watch.cache ^store.commit
            webhook.call ^apiserver.request
            ",
        );
        records.iter_mut().for_each(|record| record.duration = 1_000);
        records[7].duration = LONG;
        // A call comes from somebody else.
        records[0].parent = Some(SpanId::generate());
        records.reverse();
        let mut choice = Choice::default();
        let mut kept: Vec<&str> = records
            .iter()
            .filter(|record| choice.takes(&outline(record)))
            .map(|record| &*record.name)
            .collect();
        kept.reverse();
        assert_eq!(
            kept,
            ["apiserver.request", "registry.create", "admission.validate", "store.commit", "webhook.call"]
        );
    }

    #[test]
    fn callers_that_never_end_take_bounded_memory() {
        let mut choice = Choice::default();
        for _ in 0..MAX_AWAITED * 3 {
            let mut record = history("step >1").remove(0);
            record.parent = Some(SpanId::generate());
            assert!(choice.takes(&outline(&record)));
        }
        assert!(choice.awaited.len() <= MAX_AWAITED);
    }
}
