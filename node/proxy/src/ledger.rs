//! Who holds each key of the kernel's maps.
//!
//! Two services may ask for the same key: the same external IP and port, by mistake, or the same pod's
//! address, rightly. The oldest service holds it; when it lets go the next takes over. So the maps are a
//! function of the services alone, not of the order in which they came, and a change costs only what it
//! touches.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    sync::Arc,
};

/// Orders the owners of a key: the older service first, then by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank {
    pub created: String,
    pub name: String,
}

pub type Owner = Arc<Rank>;

#[derive(Debug)]
pub struct Ledger<K, V> {
    held: HashMap<K, (Owner, V)>,
    waiting: HashMap<K, BTreeMap<Owner, V>>,
}

/// Keys touched since a change began, with what they held then.
#[derive(Debug)]
pub struct Change<K, V> {
    before: BTreeMap<K, Option<V>>,
}

/// One key's difference.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference<K, V> {
    pub key: K,
    pub before: Option<V>,
    pub after: Option<V>,
}

impl<K, V> Default for Ledger<K, V> {
    fn default() -> Self {
        Self { held: HashMap::new(), waiting: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash + Ord, V: Clone + PartialEq> Ledger<K, V> {
    pub fn begin(&self) -> Change<K, V> {
        Change { before: BTreeMap::new() }
    }

    /// Replaces what an owner asked for by what it asks for now.
    pub fn replace(&mut self, owner: &Owner, old: &[(K, V)], new: &[(K, V)], change: &mut Change<K, V>) {
        for (key, _) in old {
            self.touch(key, change);
            self.release(owner, key);
        }
        for (key, value) in new {
            self.touch(key, change);
            self.claim(owner, key, value.clone());
        }
    }

    /// The same where the owner itself may be another: deleted and made again under the same name, which is
    /// another age and another rank.
    pub fn hand_over(
        &mut self,
        old: Option<(&Owner, &[(K, V)])>,
        (owner, new): (&Owner, &[(K, V)]),
        change: &mut Change<K, V>,
    ) {
        match old {
            Some((old_owner, old)) if old_owner != owner => {
                self.replace(old_owner, old, &[], change);
                self.replace(owner, &[], new, change);
            }
            old => self.replace(owner, old.map_or(&[], |(_, old)| old), new, change),
        }
    }

    /// What really changed; keys that hold what they held are left out.
    pub fn finish(&self, change: Change<K, V>) -> Vec<Difference<K, V>> {
        let mut differences = Vec::new();
        for (key, before) in change.before {
            let after = self.get(&key).cloned();
            if before != after {
                differences.push(Difference { key, before, after });
            }
        }
        differences
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        self.held.get(key).map(|(_, value)| value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.held.iter().map(|(key, (_, value))| (key, value))
    }

    fn touch(&self, key: &K, change: &mut Change<K, V>) {
        if !change.before.contains_key(key) {
            change.before.insert(key.clone(), self.get(key).cloned());
        }
    }

    fn claim(&mut self, owner: &Owner, key: &K, value: V) {
        match self.held.get_mut(key) {
            None => drop(self.held.insert(key.clone(), (owner.clone(), value))),
            Some((holder, held)) if holder == owner => *held = value,
            Some(held) if *owner < held.0 => {
                let (loser, lost) = std::mem::replace(held, (owner.clone(), value));
                self.waiting.entry(key.clone()).or_default().insert(loser, lost);
            }
            Some(_) => drop(self.waiting.entry(key.clone()).or_default().insert(owner.clone(), value)),
        }
    }

    fn release(&mut self, owner: &Owner, key: &K) {
        let holds = self.held.get(key).is_some_and(|(holder, _)| holder == owner);
        let Some(waiting) = self.waiting.get_mut(key) else {
            if holds {
                self.held.remove(key);
            }
            return;
        };
        if holds {
            let (next, value) = waiting.pop_first().expect("an empty queue is removed at once");
            self.held.insert(key.clone(), (next, value));
        } else {
            waiting.remove(owner);
        }
        if waiting.is_empty() {
            self.waiting.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(created: u32) -> Owner {
        Arc::new(Rank { created: format!("{created:04}"), name: "s".into() })
    }

    #[test]
    fn the_oldest_holds_and_the_next_takes_over() {
        let mut ledger: Ledger<&str, u32> = Ledger::default();
        let (old, young) = (owner(1), owner(2));
        let mut step = |who: &Owner, before: &[(&'static str, u32)], after: &[(&'static str, u32)]| {
            let mut change = ledger.begin();
            ledger.replace(who, before, after, &mut change);
            ledger.finish(change)
        };
        let difference = |before, after| vec![Difference { key: "k", before, after }];
        assert_eq!(step(&young, &[], &[("k", 2)]), difference(None, Some(2)));
        assert_eq!(step(&old, &[], &[("k", 1)]), difference(Some(2), Some(1)));
        assert_eq!(step(&young, &[("k", 2)], &[("k", 3)]), []);
        assert_eq!(step(&old, &[("k", 1)], &[("k", 1)]), [], "asking for the same is no change");
        assert_eq!(step(&old, &[("k", 1)], &[]), difference(Some(1), Some(3)));
        assert_eq!(step(&young, &[("k", 3)], &[]), difference(Some(3), None));
    }

    #[test]
    fn the_outcome_does_not_depend_on_the_order() {
        // A small generator with a fixed seed: many orders, one outcome.
        let mut seed = 7_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..200 {
            let mut ledger: Ledger<u64, u64> = Ledger::default();
            let mut asked: HashMap<u32, Vec<(u64, u64)>> = HashMap::new();
            for _ in 0..60 {
                let who = random(5) as u32;
                let mut new: Vec<(u64, u64)> = (0..random(4)).map(|_| (random(6), u64::from(who))).collect();
                new.dedup_by_key(|(key, _)| *key);
                let old = asked.insert(who, new.clone()).unwrap_or_default();
                let mut change = ledger.begin();
                ledger.replace(&owner(who), &old, &new, &mut change);
            }
            for key in 0..6 {
                let expected = asked
                    .iter()
                    .filter(|(_, all)| all.iter().any(|(k, _)| *k == key))
                    .map(|(w, _)| u64::from(*w))
                    .min();
                assert_eq!(ledger.get(&key).copied(), expected);
            }
        }
    }
}
