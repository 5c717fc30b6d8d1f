//! What occurs in a segment: hashes of its keys, in order, and the time that it covers.

use crate::context::TraceId;
use crate::record::Step;

const MAGIC: &[u8; 8] = b"FerryIx2";

/// Something that records are looked for by.
#[derive(Clone, Copy)]
pub enum Key<'a> {
    Object(&'a str),
    Uid(&'a str),
    Trace(TraceId),
    Revision(i64),
    User(&'a str),
}

impl Key<'_> {
    /// Eight bytes at a time; the same in every build. Two keys of one hash cost a segment that is read in vain.
    fn hash(self) -> u32 {
        let of = |tag: u8, bytes: &[u8]| {
            let each = |hash: u64, word: u64| {
                let mixed = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                mixed ^ (mixed >> 29)
            };
            let (words, rest) = bytes.as_chunks();
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            let words = words.iter().chain([&last]).map(|word| u64::from_le_bytes(*word));
            (words.fold(each(0, u64::from(tag) | (bytes.len() as u64) << 8), each) >> 32) as u32
        };
        match self {
            Key::Object(object) => of(b'o', object.as_bytes()),
            Key::Uid(uid) => of(b'i', uid.as_bytes()),
            Key::Trace(trace) => of(b't', &trace.to_bytes()),
            Key::Revision(revision) => of(b'r', &revision.to_be_bytes()),
            Key::User(user) => of(b'u', user.as_bytes()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// Nanoseconds since 1970.
    pub first_start: u64,
    pub last_end: u64,
    keys: Vec<u32>,
}

#[derive(Default)]
pub struct IndexBuilder {
    times: Option<(u64, u64)>,
    /// Some of them several times.
    keys: Vec<u32>,
    /// The trace, user and revision of the span before, which the next one often names too.
    before: [Option<u32>; 3],
}

impl IndexBuilder {
    pub fn add(&mut self, step: &impl Step) {
        let (start, end) = (step.start(), step.end());
        let (first, last) = self.times.unwrap_or((start, end));
        self.times = Some((first.min(start), last.max(end)));
        let trace = Some(Key::Trace(step.trace()));
        let [user, uid] = step.texts(["user", "uid"]);
        let committed = step.committed().map(Key::Revision);
        for (key, before) in [trace, user.map(Key::User), committed].into_iter().zip(&mut self.before) {
            let hash = key.map(Key::hash);
            if hash.is_some() && *before != hash {
                self.keys.extend(hash);
                *before = hash;
            }
        }
        let named = [step.object().map(Key::Object), uid.map(Key::Uid)];
        self.keys.extend(named.into_iter().flatten().map(Key::hash));
        step.each_cause(|cause| self.keys.push(Key::Revision(cause).hash()));
    }

    /// When its first record began.
    pub fn began(&self) -> Option<u64> {
        self.times.map(|(first, _)| first)
    }

    pub fn build(mut self) -> Index {
        let (first_start, last_end) = self.times.unwrap_or_default();
        self.keys.sort_unstable();
        self.keys.dedup();
        Index { first_start, last_end, keys: self.keys }
    }
}

impl Index {
    pub fn may_hold(&self, key: Key<'_>) -> bool {
        self.keys.binary_search(&key.hash()).is_ok()
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.first_start.to_le_bytes());
        bytes.extend(self.last_end.to_le_bytes());
        self.keys.iter().for_each(|key| bytes.extend(key.to_le_bytes()));
        let sum = crc32fast::hash(&bytes);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    /// Nothing if it is torn, or another version's: then the segment is read without.
    pub fn from_bytes(bytes: &[u8]) -> Option<Index> {
        let (body, sum) = bytes.split_last_chunk::<4>()?;
        if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
            return None;
        }
        let rest = body.strip_prefix(MAGIC)?;
        let (first_start, rest) = rest.split_first_chunk::<8>()?;
        let (last_end, rest) = rest.split_first_chunk::<8>()?;
        let keys = rest.chunks_exact(4).map(|key| u32::from_le_bytes([key[0], key[1], key[2], key[3]]));
        Some(Index {
            first_start: u64::from_le_bytes(*first_start),
            last_end: u64::from_le_bytes(*last_end),
            keys: keys.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn an_index_knows_what_is_in_its_segment_and_survives_the_disk() {
        let mut builder = IndexBuilder::default();
        let mut one = record("step", 50);
        (one.object, one.committed, one.causes) = (Some("pods/default/a".into()), Some(7), vec![6]);
        builder.add(&one);
        builder.add(&record("step", 10));
        let index = builder.build();
        assert_eq!((index.first_start, index.last_end), (10, 51));
        for key in [Key::Object("pods/default/a"), Key::Revision(7), Key::Revision(6), Key::Trace(one.trace)]
        {
            assert!(index.may_hold(key));
        }
        assert!(!index.may_hold(Key::Object("pods/default/b")));
        assert!(!index.may_hold(Key::User("pods/default/a")), "a user is no object");
        let bytes = index.to_bytes();
        assert_eq!(Index::from_bytes(&bytes), Some(index));
        assert_eq!(Index::from_bytes(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Index::from_bytes(b""), None);
    }
}
