//! A limited resource (requests in flight, bytes of memory) that users share. A user may take more while they hold less than
//! what is free: the first gets at most half, the next a quarter, and so on, so that something is left for others.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use ferry_auth::User;
use parking_lot::Mutex;

pub struct FairLimit {
    limit: usize,
    /// What one user gets, however much is free.
    most_of_one: usize,
    hasher: RandomState,
    held: Mutex<HeldCounts>,
}

#[derive(Default)]
struct HeldCounts {
    all: usize,
    /// By the hash of a user's name: two users in one entry only share with each other.
    by_user: HashMap<u64, usize>,
}

/// What one user holds, until it is dropped.
pub struct FairPermit {
    of: Arc<FairLimit>,
    user: u64,
    amount: usize,
}

impl FairLimit {
    pub fn new(limit: usize) -> Arc<FairLimit> {
        FairLimit::with_most_of_one(limit, limit)
    }

    pub fn with_most_of_one(limit: usize, most_of_one: usize) -> Arc<FairLimit> {
        Arc::new(FairLimit { limit, most_of_one, hasher: RandomState::new(), held: Mutex::default() })
    }

    /// `None` when the user holds its share already. The last amount may go beyond the limit: what is larger than the
    /// limit is not refused for ever.
    pub fn take(self: &Arc<Self>, user: &User, amount: usize) -> Option<FairPermit> {
        let mut permit = self.nothing(user);
        permit.grow(amount).then_some(permit)
    }

    /// A permit for nothing yet, to grow.
    pub fn nothing(self: &Arc<Self>, user: &User) -> FairPermit {
        FairPermit { of: self.clone(), user: self.hasher.hash_one(&user.name), amount: 0 }
    }

    pub fn has_room(&self, user: &User) -> bool {
        self.has_room_for(&self.held.lock(), self.hasher.hash_one(&user.name))
    }

    fn has_room_for(&self, held: &HeldCounts, user: u64) -> bool {
        let free = self.limit.saturating_sub(held.all);
        held.by_user.get(&user).copied().unwrap_or(0) < free.min(self.most_of_one)
    }

    #[cfg(test)]
    fn held(&self) -> (usize, usize) {
        let held = self.held.lock();
        (held.all, held.by_user.len())
    }
}

impl HeldCounts {
    fn add(&mut self, user: u64, more: usize) {
        self.all += more;
        *self.by_user.entry(user).or_default() += more;
    }
}

impl FairPermit {
    /// Whether there was room for `more`.
    pub fn grow(&mut self, more: usize) -> bool {
        let mut held = self.of.held.lock();
        let has_room = self.of.has_room_for(&held, self.user);
        if has_room {
            held.add(self.user, more);
            self.amount += more;
        }
        has_room
    }

    /// Whether it holds `amount` now.
    pub fn grow_to(&mut self, amount: usize) -> bool {
        amount <= self.amount || self.grow(amount - self.amount)
    }

    /// For what is there already, whether there was room or not.
    pub fn add(&mut self, more: usize) {
        self.of.held.lock().add(self.user, more);
        self.amount += more;
    }
}

impl Drop for FairPermit {
    fn drop(&mut self) {
        if self.amount == 0 {
            return;
        }
        let mut held = self.of.held.lock();
        held.all -= self.amount;
        if let Some(mine) = held.by_user.get_mut(&self.user) {
            *mine -= self.amount;
            if *mine == 0 {
                held.by_user.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(limit: &Arc<FairLimit>, user: &str) -> Vec<FairPermit> {
        std::iter::from_fn(|| limit.take(&User::new(user), 1)).collect()
    }

    #[test]
    fn the_greedy_leave_something_for_others() {
        let limit = FairLimit::new(200);
        let first = take_all(&limit, "first");
        let second = take_all(&limit, "second");
        let third = take_all(&limit, "third");
        assert_eq!((first.len(), second.len(), third.len()), (100, 50, 25));
        assert!(limit.take(&User::new("last"), 1).is_some());
        drop((first, second, third));
        assert_eq!(limit.held(), (0, 0));
        assert_eq!(take_all(&FairLimit::new(1), "only").len(), 1);
    }

    #[test]
    fn one_user_is_limited_to_its_share() {
        let limit = FairLimit::with_most_of_one(100, 10);
        let held: Vec<Vec<FairPermit>> =
            ["a", "b", "c", "d", "e", "f", "g", "h", "i"].map(|user| take_all(&limit, user)).into();
        assert!(held.iter().all(|held| held.len() == 10));
        assert_eq!(take_all(&limit, "last").len(), 5, "half of what is left");
    }

    #[test]
    fn a_request_above_the_limit_is_admitted_alone() {
        let (limit, user) = (FairLimit::new(10), User::new("a"));
        let large = limit.take(&user, 1000).expect("nothing is held");
        assert!(limit.take(&user, 1).is_none());
        assert!(limit.take(&User::new("b"), 1).is_none());
        drop(large);
        let mut permit = limit.nothing(&user);
        assert!(permit.grow(3) && permit.grow(3) && !permit.grow(1));
    }
}
