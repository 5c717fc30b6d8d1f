//! Leases: each lives for a time, can be kept alive, and takes its keys along when it ends.
//!
//! Time is the monotonic clock's. A server that starts gives every lease its whole time again, as etcd does: how long
//! it was down only the machine's clock could say.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ferry_etcd_api::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse,
};
use ferry_store::embedded::{Budget, Transaction};
use ferry_store::{Embedded, Span};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::failure::{Failure, Result};
use crate::lease_file::LeaseFile;
use crate::service::Service;

/// etcd's own bound, some 285 years.
const LONGEST: i64 = 9_000_000_000;
/// etcd's own least: one and a half times what an election takes there, in whole seconds.
const SHORTEST: i64 = 2;
/// Before keys of a lease that has ended, and could not be deleted, are tried again.
const RETRY: Duration = Duration::from_secs(5);

pub struct Leases {
    table: Mutex<Table>,
    file: Arc<Mutex<LeaseFile>>,
    /// The first deadline may be another one now.
    changed: Notify,
}

#[derive(Default)]
struct Table {
    leases: HashMap<i64, Lease>,
    deadlines: BTreeSet<(Instant, i64)>,
    /// Which lease a key goes with.
    attached: HashMap<Arc<str>, i64>,
}

struct Lease {
    seconds: i64,
    until: Instant,
    /// It has ended and its keys are being deleted: none may join it.
    ending: bool,
    keys: BTreeSet<Arc<str>>,
}

impl Leases {
    /// The leases that a file holds (none, for a store in memory) and the keys that the store says go with them.
    pub fn open(file: Option<&Path>, sync: bool, attached: &[(Arc<str>, i64)]) -> std::io::Result<Self> {
        let (file, granted) = LeaseFile::open(file, sync)?;
        let mut table = Table::default();
        let now = Instant::now();
        for (id, seconds) in granted {
            table.insert(id, seconds, now);
        }
        for (key, id) in attached {
            if !table.leases.contains_key(id) {
                tracing::warn!(lease = id, %key, "no such lease: the key stays until it is deleted");
            }
        }
        table.attach(attached.to_vec());
        Ok(Leases { table: Mutex::new(table), file: Arc::new(Mutex::new(file)), changed: Notify::new() })
    }

    pub fn exists(&self, id: i64) -> bool {
        self.table.lock().leases.get(&id).is_some_and(|lease| !lease.ending)
    }

    /// Every lease and its seconds, in the order of their numbers.
    pub fn granted(&self) -> Vec<(i64, i64)> {
        let table = self.table.lock();
        let mut granted: Vec<_> = table.leases.iter().map(|(id, lease)| (*id, lease.seconds)).collect();
        granted.sort_unstable();
        granted
    }

    /// Keys that a transaction has put or deleted, each with its lease from now on; zero for none.
    pub fn attach(&self, keys: Vec<(Arc<str>, i64)>) {
        self.table.lock().attach(keys);
    }

    /// Ends leases as their time comes.
    pub async fn expire(self: Arc<Self>, store: Arc<Embedded>, stopped: CancellationToken) {
        loop {
            let first = self.table.lock().deadlines.first().copied();
            let due = async {
                match first {
                    Some((until, _)) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                () = self.changed.notified() => continue,
                () = stopped.cancelled() => return,
            }
            // It may have been kept alive meanwhile.
            let now = Instant::now();
            let due = self.table.lock().deadlines.first().filter(|(until, _)| *until <= now).copied();
            let Some((_, id)) = due else { continue };
            if let Err(failure) = self.end(&store, id).await {
                tracing::warn!(lease = id, ?failure, "cannot delete the keys of a lease; will try again");
            }
        }
    }

    /// Deletes the keys of a lease at one revision, and then the lease.
    async fn end(&self, store: &Embedded, id: i64) -> Result<()> {
        {
            let mut table = self.table.lock();
            // Should this fail, the lease comes up again.
            let lease = table.renew(id, Instant::now() + RETRY).ok_or_else(Failure::lease_not_found)?;
            lease.ending = true;
        }
        loop {
            let keys = self.table.lock().keys_of(id);
            self.delete(store, id, keys).await?;
            let mut table = self.table.lock();
            // A put that found the lease alive may have come before the deletion, and is seen now.
            if table.keys_of(id).is_empty() {
                table.remove(id);
                break;
            }
        }
        self.record(id, None).await
    }

    async fn delete(&self, store: &Embedded, id: i64, keys: Vec<Arc<str>>) -> Result<()> {
        let mut budget = Budget::default();
        keys.iter().for_each(|key| budget.delete(Span::key(key.as_bytes())));
        let work = move |transaction: &mut Transaction<'_>| -> Result<_> {
            for key in &keys {
                // It may have been put again, with another lease or none.
                if transaction.get(key)?.is_some_and(|kv| kv.lease == id) {
                    transaction.delete(key)?;
                }
            }
            Ok(keys)
        };
        let (keys, _) = store.transact(budget, work).await?;
        let mut table = self.table.lock();
        // One that was put again since goes with another lease now.
        let own = keys.into_iter().filter(|key| table.attached.get(key) == Some(&id)).map(|key| (key, 0));
        let own = own.collect();
        table.attach(own);
        Ok(())
    }

    /// Notes a lease, or the end of one, durably.
    async fn record(&self, id: i64, seconds: Option<i64>) -> Result<()> {
        let file = self.file.clone();
        let recorded = tokio::task::spawn_blocking(move || file.lock().record(id, seconds)).await;
        match recorded {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                Err(Failure::unavailable(format!("etcdserver: cannot record a lease: {error}")))
            }
            Err(error) => Err(Failure::unavailable(format!("etcdserver: cannot record a lease: {error}"))),
        }
    }
}

impl Table {
    fn insert(&mut self, id: i64, seconds: i64, now: Instant) {
        let until = now + Duration::from_secs(seconds.unsigned_abs());
        self.deadlines.insert((until, id));
        self.leases.insert(id, Lease { seconds, until, ending: false, keys: BTreeSet::new() });
    }

    fn renew(&mut self, id: i64, until: Instant) -> Option<&mut Lease> {
        let lease = self.leases.get_mut(&id)?;
        self.deadlines.remove(&(lease.until, id));
        self.deadlines.insert((until, id));
        lease.until = until;
        Some(lease)
    }

    fn keys_of(&self, id: i64) -> Vec<Arc<str>> {
        self.leases.get(&id).map(|lease| lease.keys.iter().cloned().collect()).unwrap_or_default()
    }

    fn remove(&mut self, id: i64) {
        if let Some(lease) = self.leases.remove(&id) {
            self.deadlines.remove(&(lease.until, id));
        }
    }

    fn attach(&mut self, keys: Vec<(Arc<str>, i64)>) {
        for (key, id) in keys {
            let before = match id {
                0 => self.attached.remove(&key),
                id => self.attached.insert(key.clone(), id),
            };
            if let Some(lease) = before.filter(|before| *before != id).and_then(|id| self.leases.get_mut(&id))
            {
                lease.keys.remove(&key);
            }
            if let Some(lease) = self.leases.get_mut(&id) {
                lease.keys.insert(key);
            }
        }
    }
}

impl Service {
    /// Comes to its end though the client may go: a lease that lives and is in no file would not be there after a restart,
    /// and its keys would stay for ever.
    pub async fn lease_grant(&self, request: LeaseGrantRequest) -> Result<LeaseGrantResponse> {
        let service = self.clone();
        let granted = tokio::spawn(async move { service.grant(request).await });
        granted.await.unwrap_or_else(|error| {
            Err(Failure::unavailable(format!("etcdserver: cannot record a lease: {error}")))
        })
    }

    async fn grant(&self, request: LeaseGrantRequest) -> Result<LeaseGrantResponse> {
        if request.ttl > LONGEST {
            return Err(Failure::lease_ttl_too_large());
        }
        let seconds = request.ttl.max(SHORTEST);
        let id = {
            let mut table = self.leases.table.lock();
            if request.id != 0 && table.leases.contains_key(&request.id) {
                return Err(Failure::lease_exists());
            }
            let mut id = request.id;
            while id == 0 || (request.id == 0 && table.leases.contains_key(&id)) {
                id = rand::random::<i64>() & i64::MAX;
            }
            table.insert(id, seconds, Instant::now());
            id
        };
        if let Err(failure) = self.leases.record(id, Some(seconds)).await {
            self.leases.table.lock().remove(id);
            return Err(failure);
        }
        self.leases.changed.notify_one();
        Ok(LeaseGrantResponse {
            header: self.current_header().await?,
            id,
            ttl: seconds,
            error: String::new(),
        })
    }

    pub async fn lease_revoke(&self, request: LeaseRevokeRequest) -> Result<LeaseRevokeResponse> {
        self.leases.end(&self.store, request.id).await?;
        Ok(LeaseRevokeResponse { header: self.current_header().await? })
    }

    /// A lease that does not exist has no time left.
    pub async fn lease_keep_alive(&self, request: LeaseKeepAliveRequest) -> Result<LeaseKeepAliveResponse> {
        let ttl = {
            let mut table = self.leases.table.lock();
            match table.leases.get(&request.id).filter(|lease| !lease.ending).map(|lease| lease.seconds) {
                Some(seconds) => {
                    table.renew(request.id, Instant::now() + Duration::from_secs(seconds.unsigned_abs()));
                    seconds
                }
                None => 0,
            }
        };
        Ok(LeaseKeepAliveResponse { header: self.current_header().await?, id: request.id, ttl })
    }

    pub async fn lease_time_to_live(
        &self,
        request: LeaseTimeToLiveRequest,
    ) -> Result<LeaseTimeToLiveResponse> {
        let header = self.current_header().await?;
        let table = self.leases.table.lock();
        let mut response = LeaseTimeToLiveResponse { header, id: request.id, ttl: -1, ..Default::default() };
        if let Some(lease) = table.leases.get(&request.id).filter(|lease| !lease.ending) {
            response.granted_ttl = lease.seconds;
            response.ttl = lease.until.saturating_duration_since(Instant::now()).as_secs() as i64;
            if request.keys {
                let keys = lease.keys.iter();
                response.keys = keys.map(|key| Bytes::copy_from_slice(key.as_bytes())).collect();
            }
        }
        Ok(response)
    }

    pub async fn lease_leases(&self, _: LeaseLeasesRequest) -> Result<LeaseLeasesResponse> {
        let header = self.current_header().await?;
        let table = self.leases.table.lock();
        let mut leases: Vec<_> = table.leases.iter().filter(|(_, lease)| !lease.ending).collect();
        leases.sort_by_key(|(_, lease)| lease.until);
        let leases = leases.into_iter().map(|(id, _)| LeaseStatus { id: *id }).collect();
        Ok(LeaseLeasesResponse { header, leases })
    }
}
