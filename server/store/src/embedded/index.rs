//! The index: the versions of each key and their locations in the log, without values. Pure: no file, no lock, no clock.
//!
//! The writer adds versions before they are durable; readers ask at a revision that is, so they
//! do not see them yet, and a failed append takes them back.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::{Revision, Span};

/// Where a record lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    pub segment: u32,
    pub offset: u32,
    pub size: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    pub modified: Revision,
    pub created: Revision,
    /// Zero for a deletion.
    pub version: i64,
    pub sub: u32,
    pub location: Location,
}

impl Version {
    pub fn is_deletion(&self) -> bool {
        self.version == 0
    }
}

/// Versions of one key, oldest first. Most keys have one.
type Chain = SmallVec<[Version; 1]>;

#[derive(Debug, Clone)]
struct Change {
    revision: Revision,
    key: Arc<str>,
}

#[derive(Default)]
pub struct Index {
    keys: BTreeMap<Arc<str>, Chain>,
    /// Every change since the compacted revision, in order.
    history: VecDeque<Change>,
    compacted: Revision,
    /// Bytes of records that are still referred to, by segment.
    retained: BTreeMap<u32, u64>,
    retained_total: u64,
    live_keys: usize,
}

impl Index {
    pub fn compacted(&self) -> Revision {
        self.compacted
    }

    pub fn live_keys(&self) -> usize {
        self.live_keys
    }

    pub fn retained(&self) -> u64 {
        self.retained_total
    }

    pub fn retained_in(&self, segment: u32) -> u64 {
        self.retained.get(&segment).copied().unwrap_or(0)
    }

    pub fn history_len(&self) -> usize {
        self.history.len()
    }

    /// The revision of the change that has `newer` changes after it.
    pub fn revision_before(&self, newer: usize) -> Option<Revision> {
        let at = self.history.len().checked_sub(newer + 1)?;
        Some(self.history[at].revision)
    }

    /// The newest version of a key, durable or not; `None` where it does not exist.
    pub fn head(&self, key: &str) -> Option<&Version> {
        self.keys.get(key)?.last().filter(|version| !version.is_deletion())
    }

    /// The key as of a revision.
    pub fn at(&self, key: &str, revision: Revision) -> Option<(Arc<str>, Version)> {
        let (key, chain) = self.keys.get_key_value(key)?;
        Some((key.clone(), visible(chain, revision)?))
    }

    /// Keys of a span as of a revision, and how many more the limit left out, `most` at most.
    pub fn range(
        &self,
        span: &Span,
        after: Option<&str>,
        revision: Revision,
        limit: usize,
        most: usize,
    ) -> (Vec<(Arc<str>, Version)>, usize) {
        let first = span.first();
        let start = match after {
            Some(after) if after >= first => Bound::Excluded(after),
            _ => Bound::Included(first),
        };
        let mut found = Vec::new();
        let mut remaining = 0;
        for (key, chain) in self.keys.range::<str, _>((start, Bound::Unbounded)) {
            if span.ends_before(key) {
                break;
            }
            if !span.contains(key) {
                continue;
            }
            let Some(version) = visible(chain, revision) else {
                continue;
            };
            if found.len() < limit {
                found.push((key.clone(), version));
            } else {
                remaining += 1;
                if remaining >= most {
                    break;
                }
            }
        }
        (found, remaining)
    }

    /// Every version visible at a revision.
    pub fn all_at(&self, revision: Revision) -> impl Iterator<Item = (&Arc<str>, Version)> {
        self.keys.iter().filter_map(move |(key, chain)| Some((key, visible(chain, revision)?)))
    }

    /// Changes of a span in `from..=until`, about `limit` of them but only whole revisions.
    /// The revision returned is the last one that the answer covers.
    pub fn changes(
        &self,
        span: &Span,
        from: Revision,
        until: Revision,
        limit: usize,
    ) -> (Vec<(Arc<str>, Version)>, Revision) {
        let start = self.history.partition_point(|change| change.revision < from);
        let mut found: Vec<(Arc<str>, Version)> = Vec::new();
        for change in self.history.range(start..) {
            if change.revision > until {
                break;
            }
            if !span.contains(&change.key) {
                continue;
            }
            if let Some((_, last)) = found.last()
                && found.len() >= limit
                && last.modified != change.revision
            {
                let covered = last.modified;
                return (found, covered);
            }
            let version = self
                .version(&change.key, change.revision)
                .expect("history refers only to versions that are kept");
            found.push((change.key.clone(), *version));
        }
        (found, until)
    }

    /// The version of a key that came about at exactly this revision.
    pub fn version(&self, key: &str, modified: Revision) -> Option<&Version> {
        let chain = self.keys.get(key)?;
        let at = position(chain, modified).ok()?;
        Some(&chain[at])
    }

    /// The versions of a key from this one on, if the record at `location` is still referred to.
    pub fn chain_from(&self, key: &str, modified: Revision, location: Location) -> &[Version] {
        let Some(chain) = self.keys.get(key) else {
            return &[];
        };
        match position(chain, modified) {
            Ok(at) if chain[at].location == location => &chain[at..],
            _ => &[],
        }
    }

    /// Everything that is still referred to in a segment.
    pub fn in_segment(&self, segment: u32) -> Vec<(Arc<str>, Revision, Location)> {
        let mut found = Vec::new();
        for (key, chain) in &self.keys {
            for version in chain {
                if version.location.segment == segment {
                    found.push((key.clone(), version.modified, version.location));
                }
            }
        }
        found
    }

    /// Adds a version newer than all others of its key.
    pub fn push(&mut self, key: Arc<str>, version: Version) {
        self.retain(version.location);
        let entry = self.keys.entry(key);
        // History shares the name with the map, whoever named the key this time.
        self.history.push_back(Change { revision: version.modified, key: entry.key().clone() });
        let chain = entry.or_default();
        let existed = chain.last().is_some_and(|last| !last.is_deletion());
        chain.push(version);
        match (existed, !version.is_deletion()) {
            (false, true) => self.live_keys += 1,
            (true, false) => self.live_keys -= 1,
            _ => {}
        }
    }

    /// Takes back every version newer than `revision`.
    pub fn roll_back(&mut self, revision: Revision) {
        while let Some(change) = self.history.pop_back_if(|change| change.revision > revision) {
            let chain = self.keys.get_mut(&change.key).expect("history refers only to keys that are kept");
            let version = chain.pop().expect("a kept key has a version");
            let exists = chain.last().is_some_and(|last| !last.is_deletion());
            let emptied = chain.is_empty();
            if emptied {
                self.keys.remove(&change.key);
            }
            match (exists, !version.is_deletion()) {
                (false, true) => self.live_keys -= 1,
                (true, false) => self.live_keys += 1,
                _ => {}
            }
            self.release(version.location);
        }
    }

    /// From now on nothing older than `revision` can be asked for; `trim` then forgets it.
    pub fn compact(&mut self, revision: Revision) {
        self.compacted = revision;
    }

    /// Forgets up to `budget` changes that compaction passed. False: there are more.
    pub fn trim(&mut self, budget: usize) -> bool {
        let compacted = self.compacted;
        for _ in 0..budget {
            let passed = |change: &mut Change| change.revision < compacted;
            let Some(change) = self.history.pop_front_if(passed) else {
                // The changes at the compacted revision itself stay, as a watch may begin there;
                // what they replaced does not.
                let at: Vec<_> = self
                    .history
                    .iter()
                    .take_while(|change| change.revision == compacted)
                    .map(|change| change.key.clone())
                    .collect();
                at.iter().for_each(|key| self.trim_key(key));
                return true;
            };
            self.trim_key(&change.key);
        }
        false
    }

    fn trim_key(&mut self, key: &str) {
        let Some(chain) = self.keys.get_mut(key) else {
            return;
        };
        let dropped: SmallVec<[Version; 4]> = chain.drain(..superseded(chain, self.compacted)).collect();
        if chain.is_empty() {
            self.keys.remove(key);
        }
        for version in dropped {
            self.release(version.location);
        }
    }

    /// The record of a version now lies elsewhere.
    pub fn relocate(&mut self, key: &str, modified: Revision, location: Location) {
        let Some(chain) = self.keys.get_mut(key) else {
            return;
        };
        if let Ok(at) = position(chain, modified) {
            let old = std::mem::replace(&mut chain[at].location, location);
            self.release(old);
            self.retain(location);
        }
    }

    /// Adds a version found in the log, in whatever order; of two copies the later one counts.
    pub fn recover(&mut self, key: &str, version: Version) {
        let chain = match self.keys.get_mut(key) {
            Some(chain) => chain,
            None => self.keys.entry(Arc::from(key)).or_default(),
        };
        match position(chain, version.modified) {
            Ok(at) => chain[at] = version,
            Err(at) => chain.insert(at, version),
        }
    }

    /// After the last `recover`: drops what was compacted and puts the history in order.
    pub fn recovered(&mut self, compacted: Revision) {
        self.compacted = compacted;
        self.keys.retain(|_, chain| {
            chain.drain(..superseded(chain, compacted));
            !chain.is_empty()
        });
        let mut history = Vec::new();
        for (key, chain) in &self.keys {
            for version in chain {
                *self.retained.entry(version.location.segment).or_default() +=
                    u64::from(version.location.size);
                self.retained_total += u64::from(version.location.size);
                if version.modified >= compacted {
                    history.push((version.modified, version.sub, key.clone()));
                }
            }
            if chain.last().is_some_and(|last| !last.is_deletion()) {
                self.live_keys += 1;
            }
        }
        history.sort_unstable_by_key(|(revision, sub, _)| (*revision, *sub));
        self.history = history.into_iter().map(|(revision, _, key)| Change { revision, key }).collect();
    }

    fn retain(&mut self, location: Location) {
        *self.retained.entry(location.segment).or_default() += u64::from(location.size);
        self.retained_total += u64::from(location.size);
    }

    fn release(&mut self, location: Location) {
        if let Some(bytes) = self.retained.get_mut(&location.segment) {
            *bytes -= u64::from(location.size);
            if *bytes == 0 {
                self.retained.remove(&location.segment);
            }
        }
        self.retained_total -= u64::from(location.size);
    }
}

fn position(chain: &Chain, modified: Revision) -> Result<usize, usize> {
    chain.binary_search_by_key(&modified, |version| version.modified)
}

fn visible(chain: &Chain, revision: Revision) -> Option<Version> {
    let after = chain.partition_point(|version| version.modified <= revision);
    let version = chain[..after].last()?;
    (!version.is_deletion()).then_some(*version)
}

/// How many versions, from the oldest on, no one can ask for once `compacted` is.
fn superseded(chain: &Chain, compacted: Revision) -> usize {
    let after = chain.partition_point(|version| version.modified <= compacted);
    match chain[..after].last() {
        Some(last) if last.is_deletion() && last.modified < compacted => after,
        Some(_) => after - 1,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(modified: i64, version: i64) -> Version {
        Version {
            modified: Revision(modified),
            created: Revision(1),
            version,
            sub: 0,
            location: Location { segment: (modified / 10) as u32, offset: modified as u32, size: 10 },
        }
    }

    fn index(changes: &[(&str, i64, i64)]) -> Index {
        let mut index = Index::default();
        for (key, modified, count) in changes {
            index.push(Arc::from(*key), version(*modified, *count));
        }
        index
    }

    fn keys_at(index: &Index, revision: i64) -> Vec<String> {
        let (found, _) = index.range(&Span::all(), None, Revision(revision), usize::MAX, usize::MAX);
        found.into_iter().map(|(key, _)| key.to_string()).collect()
    }

    #[test]
    fn each_revision_sees_its_own_keys() {
        let index = index(&[("a", 2, 1), ("b", 3, 1), ("a", 4, 0), ("c", 5, 1)]);
        for (revision, expected) in
            [(1, vec![]), (2, vec!["a"]), (3, vec!["a", "b"]), (4, vec!["b"]), (5, vec!["b", "c"])]
        {
            assert_eq!(keys_at(&index, revision), expected, "at {revision}");
        }
        assert_eq!(index.live_keys(), 2);
    }

    #[test]
    fn a_prefix_ends_where_it_ends() {
        let index = index(&[("/a/1", 2, 1), ("/a/2", 3, 1), ("/a0", 4, 1), ("/b", 5, 1)]);
        let (found, remaining) = index.range(&Span::prefix("/a/"), None, Revision(9), 1, usize::MAX);
        assert_eq!((found.len(), remaining), (1, 1));
        let (found, remaining) = index.range(&Span::prefix("/a/"), Some("/a/1"), Revision(9), 9, usize::MAX);
        assert_eq!((&*found[0].0, remaining), ("/a/2", 0));
        let (found, _) = index.range(&Span::prefix("/a/"), Some("/"), Revision(9), 9, usize::MAX);
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn rolling_back_leaves_no_trace() {
        let mut index = index(&[("a", 2, 1), ("b", 3, 1)]);
        let retained = index.retained();
        index.push("a".into(), version(4, 2));
        index.push("b".into(), version(5, 0));
        index.push("c".into(), version(5, 1));
        index.roll_back(Revision(3));
        assert_eq!(keys_at(&index, 9), ["a", "b"]);
        assert_eq!(index.head("a").unwrap().modified, Revision(2));
        assert_eq!((index.live_keys(), index.retained(), index.history_len()), (2, retained, 2));
    }

    #[test]
    fn compaction_keeps_what_is_visible_at_its_revision_and_after() {
        let mut index = index(&[("a", 2, 1), ("b", 3, 1), ("a", 4, 2), ("b", 5, 0), ("a", 6, 3)]);
        index.compact(Revision(5));
        assert!(index.trim(100));
        assert_eq!(index.at("a", Revision(5)).unwrap().1.modified, Revision(4));
        assert_eq!(index.at("a", Revision(6)).unwrap().1.modified, Revision(6));
        let (changes, covered) = index.changes(&Span::all(), Revision(5), Revision(6), 100);
        assert_eq!((changes.len(), covered), (2, Revision(6)));
        index.compact(Revision(6));
        index.trim(100);
        assert_eq!(index.retained(), 10);
        assert_eq!(keys_at(&index, 6), ["a"]);
    }

    #[test]
    fn trimming_in_small_steps_ends_where_one_step_does() {
        let changes: Vec<_> =
            (2..200).map(|at| (["x", "y", "z"][at as usize % 3], at, i64::from(at % 7 != 0))).collect();
        let (mut whole, mut steps) = (index(&changes), index(&changes));
        whole.compact(Revision(150));
        steps.compact(Revision(150));
        whole.trim(usize::MAX);
        while !steps.trim(3) {}
        for revision in 150..200 {
            assert_eq!(keys_at(&whole, revision), keys_at(&steps, revision));
        }
        assert_eq!(whole.retained(), steps.retained());
    }

    #[test]
    fn changes_are_cut_between_revisions_only() {
        let index = index(&[("a", 2, 1), ("b", 2, 1), ("c", 2, 1), ("d", 3, 1)]);
        let (changes, covered) = index.changes(&Span::all(), Revision(2), Revision(3), 1);
        assert_eq!((changes.len(), covered), (3, Revision(2)));
    }

    #[test]
    fn a_log_read_back_in_any_order_gives_the_same_index() {
        let changes: Vec<_> =
            (2..60).map(|at| (["x", "y", "z"][at as usize % 3], at, i64::from(at % 7 != 0))).collect();
        let mut written = index(&changes);
        written.compact(Revision(30));
        written.trim(usize::MAX);
        let mut recovered = Index::default();
        for (key, modified, count) in changes.iter().rev().chain(&changes) {
            recovered.recover(key, version(*modified, *count));
        }
        recovered.recovered(Revision(30));
        for revision in 30..60 {
            assert_eq!(keys_at(&written, revision), keys_at(&recovered, revision));
        }
        assert_eq!(written.live_keys(), recovered.live_keys());
        let all = |index: &Index| index.changes(&Span::all(), Revision(30), Revision(99), 999);
        assert_eq!(all(&written), all(&recovered));
    }
}
