//! A bounded map whose entries expire.

use std::{collections::HashMap, time::SystemTime};

use parking_lot::Mutex;
use ring::digest::{SHA256, digest};

/// A secret's fingerprint: caches keep it instead of the secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub(crate) fn of(secret: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, secret).as_ref());
        Fingerprint(bytes)
    }

    pub(crate) fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Remembers what was expensive to find out. When full, the half that would end first goes: a
/// flood of distinct keys costs misses, never memory.
pub(crate) struct ExpiringCache<K, V> {
    capacity: usize,
    entries: Mutex<HashMap<K, (V, SystemTime)>>,
}

impl<K: Eq + std::hash::Hash, V: Clone> ExpiringCache<K, V> {
    pub(crate) fn new(capacity: usize) -> Self {
        ExpiringCache { capacity, entries: Mutex::new(HashMap::new()) }
    }

    pub(crate) fn get(&self, key: &K, now: SystemTime) -> Option<V> {
        let entries = self.entries.lock();
        entries.get(key).filter(|(_, expires)| *expires > now).map(|(value, _)| value.clone())
    }

    pub(crate) fn insert(&self, key: K, value: V, expires: SystemTime, now: SystemTime) {
        if expires <= now {
            return;
        }
        let mut entries = self.entries.lock();
        if entries.len() >= self.capacity && !entries.contains_key(&key) {
            entries.retain(|_, (_, expires)| *expires > now);
            if entries.len() >= self.capacity {
                let mut ends: Vec<SystemTime> = entries.values().map(|(_, expires)| *expires).collect();
                let middle = ends.len() / 2;
                let (_, median, _) = ends.select_nth_unstable(middle);
                let median = *median;
                entries.retain(|_, (_, expires)| *expires > median);
            }
        }
        entries.insert(key, (value, expires));
    }

    pub(crate) fn clear(&self) {
        self.entries.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn entries_end_and_the_cache_stays_bounded() {
        let start = SystemTime::UNIX_EPOCH;
        let at = |seconds| start + Duration::from_secs(seconds);
        let cache = ExpiringCache::new(4);
        for key in 1..=100u64 {
            cache.insert(key, key * 10, at(key), start);
            assert!(cache.entries.lock().len() <= 4);
        }
        assert_eq!(cache.get(&100, start), Some(1000), "the newest is kept");
        assert_eq!(cache.get(&100, at(100)), None, "it ends when its time has come");
        cache.insert(7, 1, start, start);
        assert_eq!(cache.get(&7, start), None, "what has ended already is not taken");
    }
}
