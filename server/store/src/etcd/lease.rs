//! Implements times to live with leases. A lease costs etcd about as much as a key, so keys with similar times share one.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ferry_etcd_api::etcdserverpb::LeaseGrantRequest;
use tokio::sync::Mutex;

use super::members::{Members, Repeatable};
use crate::Result;

/// A lease revoked at once with all its keys should not be a burden.
const KEYS_PER_LEASE: usize = 1000;

pub struct Leases {
    members: Members,
    /// The lease in use for each time to live.
    open: Mutex<HashMap<Duration, Lease>>,
}

struct Lease {
    id: i64,
    /// A key attached later would live less long than it should.
    until: Instant,
    keys: usize,
}

impl Leases {
    pub fn new(members: Members) -> Self {
        Leases { members, open: Mutex::default() }
    }

    /// A lease that lasts for `ttl` from now, and a little longer.
    pub async fn lease(&self, ttl: Duration) -> Result<i64> {
        let mut open = self.open.lock().await;
        let now = Instant::now();
        open.retain(|_, lease| lease.until > now && lease.keys < KEYS_PER_LEASE);
        if let Some(lease) = open.get_mut(&ttl) {
            lease.keys += 1;
            return Ok(lease.id);
        }
        let shared = sharing(ttl);
        let request = LeaseGrantRequest { ttl: seconds(ttl + shared), id: 0 };
        let granted = self.members.send("grant a lease", Repeatable::Yes, |mut member| async move {
            member.lease.lease_grant(request).await
        });
        let granted = granted.await?;
        let lease = Lease { id: granted.id, until: now + shared, keys: 1 };
        open.insert(ttl, lease);
        Ok(granted.id)
    }
}

/// For how long keys join a lease: a twentieth of its time, a minute at most.
fn sharing(ttl: Duration) -> Duration {
    (ttl / 20).min(Duration::from_secs(60))
}

fn seconds(ttl: Duration) -> i64 {
    ttl.as_secs_f64().ceil().max(1.0) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_share_a_lease_for_a_minute_and_short_lived_keys_hardly_at_all() {
        assert_eq!(sharing(Duration::from_secs(3600)), Duration::from_secs(60));
        assert_eq!(sharing(Duration::from_secs(2)), Duration::from_millis(100));
        assert_eq!(seconds(Duration::from_millis(2100)), 3);
        assert_eq!(seconds(Duration::ZERO), 1);
    }
}
