//! Shuffle sharding: a flow's hash deals it a hand of queues. Two flows share their whole hand rarely, so a flow that fills
//! its queues leaves others a way.

/// Deals `hand` distinct queues out of `deck`. Every hand is about equally likely while the number of ordered hands is far
/// below 2^64, which the validation of PriorityLevelConfigurations sees to.
pub fn deal(mut hash: u64, deck: usize, hand: usize) -> Vec<usize> {
    let mut remainders = Vec::with_capacity(hand);
    for dealt in 0..hand.min(deck) {
        let left = (deck - dealt) as u64;
        remainders.push((hash % left) as usize);
        hash /= left;
    }
    // A remainder is a position among the queues that earlier ones left over.
    let position = |at: usize| {
        remainders[..at]
            .iter()
            .rev()
            .fold(remainders[at], |card, earlier| card + usize::from(card >= *earlier))
    };
    (0..remainders.len()).map(position).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use super::*;

    #[test]
    fn a_hand_has_distinct_queues() {
        for (deck, hand) in [(128, 6), (64, 6), (16, 4), (4, 4), (1, 1), (3, 5)] {
            for hash in (0..2000u64).map(|seed| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
                let dealt = deal(hash, deck, hand);
                assert_eq!(dealt.iter().collect::<BTreeSet<_>>().len(), hand.min(deck), "{dealt:?}");
                assert!(dealt.iter().all(|queue| *queue < deck), "{dealt:?}");
            }
        }
    }

    #[test]
    fn every_ordered_hand_is_dealt_as_often_as_any_other() {
        let mut counts: HashMap<Vec<usize>, usize> = HashMap::new();
        for hash in 0..(5 * 4 * 3 * 10) {
            *counts.entry(deal(hash, 5, 3)).or_default() += 1;
        }
        assert_eq!(counts.len(), 5 * 4 * 3);
        assert!(counts.values().all(|count| *count == 10));
    }
}
