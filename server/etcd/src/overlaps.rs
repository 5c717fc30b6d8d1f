//! Which keys the operations of a transaction change twice, those of transactions inside it with them. etcd refuses a put of
//! a key that is put or deleted elsewhere in the transaction, whether the key exists or not: in one revision only one of them
//! could be seen.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;

use ferry_etcd_api::etcdserverpb::request_op::Request;
use ferry_etcd_api::etcdserverpb::{RequestOp, TxnRequest};

use crate::failure::{Failure, Result};
use crate::kv::span_of;

/// Refuses a transaction that would put a key and change it a second time. Only one of its branches is taken, so each is
/// looked at by itself.
pub fn check(txn: &TxnRequest) -> Result<()> {
    for branch in [&txn.success, &txn.failure] {
        changes(branch)?;
    }
    Ok(())
}

/// What a list of operations may change.
#[derive(Default)]
struct Changes<'a> {
    puts: HashSet<&'a [u8]>,
    deletions: Spans,
}

impl<'a> Changes<'a> {
    fn put(&mut self, key: &'a [u8]) -> Result<()> {
        match self.deletions.contains(key) || !self.puts.insert(key) {
            true => Err(Failure::duplicate_key()),
            false => Ok(()),
        }
    }
}

/// In etcd's order: this list's deletions, the transactions inside it one after the other, its own puts. A key that one
/// inner transaction puts and a later one deletes is therefore let through.
fn changes(operations: &[RequestOp]) -> Result<Changes<'_>> {
    let mut changes = Changes::default();
    let requests = || operations.iter().filter_map(|operation| operation.request.as_ref());
    for request in requests() {
        if let Request::RequestDeleteRange(deletion) = request {
            changes.deletions.add(span_of(&deletion.key, &deletion.range_end).into_bounds());
        }
    }
    for request in requests() {
        let Request::RequestTxn(txn) = request else { continue };
        let (then, otherwise) = (self::changes(&txn.success)?, self::changes(&txn.failure)?);
        // Both may put the same key: one of them is not carried out.
        for key in then.puts.union(&otherwise.puts) {
            changes.put(key)?;
        }
        [then, otherwise].into_iter().for_each(|branch| changes.deletions.extend(branch.deletions));
    }
    for request in requests() {
        if let Request::RequestPut(put) = request {
            changes.put(&put.key)?;
        }
    }
    Ok(changes)
}

/// Where a span starts, and before which key it ends, if it does.
type Bounds = (Box<[u8]>, Option<Box<[u8]>>);

/// Keys of many spans. They are merged where they meet, so that a look-up is one step in a map.
#[derive(Default)]
struct Spans(BTreeMap<Box<[u8]>, Option<Box<[u8]>>>);

impl Spans {
    fn add(&mut self, (mut start, mut end): Bounds) {
        if end.as_ref().is_some_and(|end| *end <= start) {
            return;
        }
        // From the last that begins within it, backwards.
        while let Some((before, until)) = self.up_to(end.as_deref()) {
            if until.as_ref().is_some_and(|until| *until < start) {
                break;
            }
            self.0.remove(&before);
            start = start.min(before);
            end = end.zip(until).map(|(end, until)| end.max(until));
        }
        self.0.insert(start, end);
    }

    fn extend(&mut self, others: Spans) {
        others.0.into_iter().for_each(|bounds| self.add(bounds));
    }

    fn contains(&self, key: &[u8]) -> bool {
        let before = self.0.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back();
        before.is_some_and(|(_, end)| end.as_ref().is_none_or(|end| key < &**end))
    }

    /// The last span that begins at or before a key.
    fn up_to(&self, key: Option<&[u8]>) -> Option<Bounds> {
        let found = match key {
            Some(key) => self.0.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back(),
            None => self.0.last_key_value(),
        };
        found.map(|(start, end)| (start.clone(), end.clone()))
    }
}

#[cfg(test)]
mod tests {
    use ferry_store::Span;

    use super::*;

    #[test]
    fn spans_are_merged_and_looked_up() {
        let mut spans = Spans::default();
        let span = |start: &str, end: &str| Span::between(start.as_bytes(), end.as_bytes()).into_bounds();
        for (start, end) in
            [("d", "f"), ("a", "b"), ("e", "h"), ("x", ""), ("c", "c"), ("z", "y"), ("b", "c")]
        {
            spans.add(span(start, end));
        }
        assert_eq!(spans.0.len(), 3, "a to c, d to h, x");
        let check = |spans: &Spans, key: &str, expected: bool| {
            assert_eq!(spans.contains(key.as_bytes()), expected, "{key}");
        };
        for key in ["a", "aa", "b", "bz", "d", "e", "gz", "x"] {
            check(&spans, key, true);
        }
        for key in ["", "A", "c", "ca", "h", "w", "xa", "z"] {
            check(&spans, key, false);
        }
        spans.add(span("g", "\0"));
        assert_eq!(spans.0.len(), 2, "everything from d on is one");
        check(&spans, "zz", true);
        check(&spans, "c", false);
    }
}
