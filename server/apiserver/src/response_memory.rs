//! The memory budget for fully encoded responses that clients have not read yet, per connection and in total. A client that
//! does not read its responses gets no further ones.

use std::sync::Arc;

use ferry_api::Status;
use ferry_auth::User;
use parking_lot::Mutex;

use crate::fair_limit::{FairLimit, FairPermit};

/// Of one connection; of that, one user gets half.
const OF_CONNECTION: usize = 32 << 20;

pub fn of_connection() -> Arc<FairLimit> {
    FairLimit::new(OF_CONNECTION)
}

/// What one answer holds; a component's is its own.
#[derive(Default)]
pub struct ResponseMemory(Mutex<Option<[FairPermit; 2]>>);

impl ResponseMemory {
    /// Nothing is held yet, but there has to be room.
    pub fn new(limits: [&Arc<FairLimit>; 2], user: &User) -> Result<ResponseMemory, Status> {
        match limits.iter().all(|shares| shares.has_room(user)) {
            true => Ok(ResponseMemory(Mutex::new(Some(limits.map(|shares| shares.nothing(user)))))),
            false => Err(refusal()),
        }
    }

    /// Before as many bytes are made.
    pub fn take(&self, bytes: usize) -> Result<(), Status> {
        let mut shares = self.0.lock();
        match shares.iter_mut().flatten().all(|share| share.grow_to(bytes)) {
            true => Ok(()),
            false => Err(refusal()),
        }
    }

    /// For what is made already, and cannot be refused any more.
    pub fn add(&self, bytes: usize) {
        self.0.lock().iter_mut().flatten().for_each(|share| share.add(bytes));
    }
}

fn refusal() -> Status {
    Status::too_many_requests("Too many answers are not read yet, please try again later.", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_responses_use_up_the_memory_limit() {
        let (connection, all, user) = (FairLimit::new(100), FairLimit::new(1000), User::new("a"));
        let answer = || ResponseMemory::new([&connection, &all], &user);
        let (first, second) = (answer().expect("room"), answer().expect("room"));
        first.take(60).expect("nothing is held");
        first.take(50).expect("it is held already");
        assert_eq!(second.take(1).map_err(|status| status.code), Err(429));
        assert!(answer().is_err());
        second.add(60);
        drop(first);
        assert!(answer().is_err());
        drop(second);
        assert!(answer().is_ok());
        ResponseMemory::default().take(1 << 40).expect("a component's is its own");
    }
}
