//! Limits without priority and fairness: concurrent reading and mutating requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferry_auth::User;
use ferry_auth::user::MASTERS;

use crate::request_info::RequestInfo;

pub struct MaxInFlight {
    reads: Limit,
    writes: Limit,
}

struct Limit {
    /// None where it is not limited: the flag says 0.
    most: Option<usize>,
    now: AtomicUsize,
}

/// A request in flight, until it is dropped.
pub struct InFlight {
    limits: Arc<MaxInFlight>,
    is_write: bool,
}

impl MaxInFlight {
    pub fn new(reads: usize, writes: usize) -> Arc<MaxInFlight> {
        let limit =
            |most: usize| Limit { most: Some(most).filter(|most| *most > 0), now: AtomicUsize::new(0) };
        Arc::new(MaxInFlight { reads: limit(reads), writes: limit(writes) })
    }

    /// `None` for who is not limited: administrators may end an overload.
    pub fn acquire(self: &Arc<Self>, info: &RequestInfo, user: &User) -> Result<Option<InFlight>, ()> {
        if user.is_in(MASTERS) || info.is_long_running() {
            return Ok(None);
        }
        let in_flight = InFlight { limits: self.clone(), is_write: info.is_mutating() };
        let limit = in_flight.limit();
        // Counted before it is judged; a refusal is dropped, and with it its count.
        let before = limit.now.fetch_add(1, Ordering::Relaxed);
        match limit.most {
            Some(most) if before >= most => Err(()),
            _ => Ok(Some(in_flight)),
        }
    }
}

impl InFlight {
    fn limit(&self) -> &Limit {
        if self.is_write { &self.limits.writes } else { &self.limits.reads }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.limit().now.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::request_info::Query;

    #[test]
    fn reads_and_writes_have_limits_of_their_own() {
        let limits = MaxInFlight::new(2, 1);
        let (user, admin) = (User::new("a"), User::new("b").with_groups([MASTERS]));
        let info = |method: &Method, path: &str| {
            RequestInfo::parse(method, path, &Query::default()).expect("a path")
        };
        let (read, write) = (info(&Method::GET, "/api/v1/pods"), info(&Method::POST, "/api/v1/namespaces"));
        let first = limits.acquire(&read, &user).expect("room");
        let _second = limits.acquire(&read, &user).expect("room");
        assert!(limits.acquire(&read, &user).is_err());
        let _written = limits.acquire(&write, &user).expect("room");
        assert!(limits.acquire(&write, &user).is_err());
        assert!(limits.acquire(&write, &admin).is_ok_and(|place| place.is_none()));
        drop(first);
        assert!(limits.acquire(&read, &user).is_ok());
        let unlimited = MaxInFlight::new(0, 0);
        let places: Vec<_> = (0..1000).map(|_| unlimited.acquire(&read, &user)).collect();
        assert!(places.iter().all(Result::is_ok));
    }
}
