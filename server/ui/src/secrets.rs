//! Secrets that stand for something for a while: links that count once, sessions that count until they end.
//!
//! A secret is 256 random bits. The table keeps only its hash, so what is in memory opens nothing, and a look-up compares no
//! secret byte by byte.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

/// How long secrets count, and how many there may be. When there is no room, whoever holds the most loses the oldest, so that
/// nobody is kept out by others.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub life: Duration,
    pub most: usize,
    /// Of one owner; their oldest ends when another is issued.
    pub most_of_owner: usize,
}

pub const LINKS: Limits = Limits { life: Duration::from_secs(120), most: 1024, most_of_owner: 8 };
pub const SESSIONS: Limits =
    Limits { life: Duration::from_secs(12 * 60 * 60), most: 4096, most_of_owner: 32 };

pub struct Secrets<V> {
    limits: Limits,
    table: Mutex<Table<V>>,
}

struct Table<V> {
    held: HashMap<[u8; 32], Held<V>>,
    issued: u64,
}

struct Held<V> {
    owner: String,
    value: V,
    ends: SystemTime,
    order: u64,
}

impl<V: Clone> Secrets<V> {
    pub fn new(limits: Limits) -> Self {
        Secrets { limits, table: Mutex::new(Table { held: HashMap::new(), issued: 0 }) }
    }

    pub fn life(&self) -> Duration {
        self.limits.life
    }

    /// A new secret that stands for `value`.
    pub fn issue(&self, owner: &str, value: V, now: SystemTime) -> String {
        let mut table = self.table.lock();
        table.held.retain(|_, held| held.ends > now);
        let of_owner = table.held.values().filter(|held| held.owner == owner).count();
        if of_owner >= self.limits.most_of_owner {
            table.end_oldest_of(owner);
        } else if table.held.len() >= self.limits.most {
            let loses = table.owner_of_most(owner);
            table.end_oldest_of(&loses);
        }
        let secret = random();
        table.issued += 1;
        let (ends, order) = (now + self.limits.life, table.issued);
        table.held.insert(hash(&secret), Held { owner: owner.to_owned(), value, ends, order });
        secret
    }

    pub fn get(&self, secret: &str, now: SystemTime) -> Option<V> {
        let table = self.table.lock();
        table.held.get(&hash(secret)).filter(|held| held.ends > now).map(|held| held.value.clone())
    }

    /// What it stands for; from now on it stands for nothing.
    pub fn take(&self, secret: &str, now: SystemTime) -> Option<V> {
        let held = self.table.lock().held.remove(&hash(secret));
        held.filter(|held| held.ends > now).map(|held| held.value)
    }
}

impl<V> Table<V> {
    fn end_oldest_of(&mut self, owner: &str) {
        let of_owner = self.held.iter().filter(|(_, held)| held.owner == owner);
        let oldest = of_owner.min_by_key(|(_, held)| held.order).map(|(hash, _)| *hash);
        oldest.map(|hash| self.held.remove(&hash));
    }

    /// Who will hold the most when `next` has one more; of several, who has the oldest.
    fn owner_of_most(&self, next: &str) -> String {
        let mut owners: HashMap<&str, (usize, Reverse<u64>)> = HashMap::new();
        owners.insert(next, (1, Reverse(u64::MAX)));
        for held in self.held.values() {
            let (count, oldest) = owners.entry(&held.owner).or_insert((0, Reverse(u64::MAX)));
            *count += 1;
            *oldest = (*oldest).max(Reverse(held.order));
        }
        let most = owners.into_iter().max_by_key(|(_, most)| *most);
        most.map_or_else(String::new, |(owner, _)| owner.to_owned())
    }
}

/// What the page shows besides its cookie, kept as a hash.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// A key, and what is kept of it.
    pub fn generate() -> (String, Key) {
        let key = random();
        let kept = Key(hash(&key));
        (key, kept)
    }

    pub fn is(&self, shown: &str) -> bool {
        self.0 == hash(shown)
    }
}

fn random() -> String {
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
}

fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Limits = Limits { life: Duration::from_secs(60), most: 4, most_of_owner: 2 };

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_link_counts_once() {
        let links = Secrets::new(SMALL);
        let link = links.issue("alice", 7, at(0));
        assert_eq!(links.take("guessed", at(1)), None);
        assert_eq!(links.take(&link, at(1)), Some(7));
        assert_eq!(links.take(&link, at(1)), None);
    }

    #[test]
    fn a_secret_ends_with_its_life() {
        let sessions = Secrets::new(SMALL);
        let session = sessions.issue("alice", 7, at(0));
        assert_eq!(sessions.get(&session, at(59)), Some(7));
        assert_eq!(sessions.get(&session, at(60)), None);
        assert_eq!(sessions.take(&session, at(60)), None);
    }

    #[test]
    fn an_owner_at_its_limit_loses_its_own_oldest() {
        let sessions = Secrets::new(SMALL);
        let bobs = sessions.issue("bob", 0, at(0));
        let alices: Vec<String> = (1..=3).map(|value| sessions.issue("alice", value, at(value))).collect();
        let found: Vec<_> = alices.iter().map(|secret| sessions.get(secret, at(4))).collect();
        assert_eq!(found, [None, Some(2), Some(3)]);
        assert_eq!(sessions.get(&bobs, at(4)), Some(0));
    }

    #[test]
    fn the_session_table_evicts_the_largest_holder_first() {
        let sessions = Secrets::new(SMALL);
        let issue = |owner: &str| sessions.issue(owner, (), at(0));
        let counts = |secret: &String| sessions.get(secret, at(1)).is_some();
        let greedy: Vec<String> = ["a", "a", "b", "b"].map(issue).into();
        let carol = issue("c");
        assert!(!counts(&greedy[0]) && counts(&greedy[1]), "the oldest of those with two");
        let dave = issue("d");
        assert!(!counts(&greedy[2]) && counts(&greedy[3]), "the others have one each");
        assert!([&greedy[1], &carol, &dave].into_iter().all(counts));
        // With one each, whoever wants a second one gives the first for it, and somebody new takes the place of the oldest.
        let second = issue("c");
        assert!(!counts(&carol) && counts(&second) && counts(&greedy[1]));
        let erin = issue("e");
        assert!(!counts(&greedy[1]));
        assert!([&greedy[3], &second, &dave, &erin].into_iter().all(counts));
        assert_eq!(sessions.table.lock().held.len(), SMALL.most);
    }

    #[test]
    fn expired_sessions_are_replaced_first() {
        let sessions = Secrets::new(SMALL);
        let ended: Vec<String> = ["a", "b", "c"].map(|owner| sessions.issue(owner, (), at(0))).into();
        let late = sessions.issue("d", (), at(30));
        sessions.issue("e", (), at(60));
        assert!(sessions.get(&late, at(61)).is_some());
        assert!(ended.iter().all(|secret| sessions.get(secret, at(61)).is_none()));
    }

    #[test]
    fn secrets_and_keys_are_long_and_differ() {
        let (one, kept) = Key::generate();
        let (other, _) = Key::generate();
        assert_ne!(one, other);
        assert_eq!(one.len(), 43, "256 bits");
        assert!(kept.is(&one) && !kept.is(&other) && !kept.is(""));
    }
}
