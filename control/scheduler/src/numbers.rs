//! Maps by the scheduler's own small numbers, [`NodeIndex`](crate::snapshot::NodeIndex) and
//! [`Symbol`](crate::symbols::Symbol). No one outside chooses these numbers, so a hash need not
//! withstand anybody: one multiplication spreads them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub type ByNumber<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

#[derive(Clone, Copy, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write_u32(&mut self, number: u32) {
        // 2^64 divided by the golden ratio: neighbours land far apart
        self.0 = (self.0.rotate_left(32) ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn finish(&self) -> u64 {
        // tables choose their place by the low bits, and the high ones are the better mixed
        self.0 ^ (self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{BuildHasher, Hash};

    use super::*;

    #[test]
    fn numbers_and_pairs_of_them_spread() {
        let state = BuildHasherDefault::<NumberHasher>::default();
        let spread = |hashes: Vec<u64>| {
            let low: HashSet<u64> = hashes.iter().map(|hash| hash % 4096).collect();
            assert!(low.len() > 2000, "{} of 4096 places", low.len());
        };
        spread((0..4096u32).map(|number| state.hash_one(number)).collect());
        spread((0..4096u32).map(|number| state.hash_one((3u32, number))).collect());
        fn hash(pair: impl Hash) -> u64 {
            BuildHasherDefault::<NumberHasher>::default().hash_one(pair)
        }
        assert_ne!(hash((1u32, 2u32)), hash((2u32, 1u32)));
    }
}
