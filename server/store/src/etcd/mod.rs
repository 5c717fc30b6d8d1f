//! The engine over etcd v3. The store's semantics are etcd's, so this mostly translates messages.
//!
//! `watch.rs` keeps a watch alive through lost connections, `lease.rs` turns times to live into
//! leases, `compaction.rs` forgets history in turn with every other server of the cluster,
//! `members.rs` finds one that answers, `requests.rs` has the messages, `failure.rs` says what
//! etcd's errors mean.

mod compaction;
mod failure;
mod lease;
mod members;
mod requests;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use ferry_etcd_api::etcdserverpb::response_op::Response;
use ferry_etcd_api::etcdserverpb::{
    CompactionRequest, RangeRequest, RangeResponse, ResponseHeader, ResponseOp, SnapshotRequest,
    StatusRequest, StatusResponse, TxnRequest,
};
use ferry_etcd_api::mvccpb;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use self::failure::translate;
use self::lease::Leases;
use self::members::{Members, Repeatable};
use crate::{
    Committed, Error, Found, KeyValue, Operation, Page, Range, Result, Revision, Store, Txn, Usage, Watch,
};

/// etcd's own limit of a request, less what surrounds the values.
const TRANSACTION_LIMIT: usize = (3 << 19) - (16 << 10);

/// Between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct Config {
    /// `http://` or `https://` addresses of the cluster's members.
    pub endpoints: Vec<String>,
    pub tls: Tls,
    /// How long one request may take.
    pub timeout: Duration,
    /// How long an etcd that does not answer yet is waited for.
    pub patience: Duration,
    /// How often history is compacted, and thus how long it is kept at least; never, if `None`.
    pub compaction: Option<Duration>,
}

/// Files in PEM format.
#[derive(Debug, Clone, Default)]
pub struct Tls {
    /// Whom to trust; the system's roots if `None`.
    pub ca: Option<PathBuf>,
    /// Who we are: certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl Config {
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Config {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            tls: Tls::default(),
            timeout: Duration::from_secs(10),
            patience: Duration::ZERO,
            compaction: Some(Duration::from_secs(5 * 60)),
        }
    }
}

pub struct Etcd {
    members: Members,
    leases: Leases,
    /// Progress of a watch is told in order with its events.
    ordered_progress: bool,
    closed: CancellationToken,
    compactor: parking_lot::Mutex<Option<JoinHandle<()>>>,
}

impl Etcd {
    /// Connects, and makes sure that the cluster answers.
    pub async fn connect(config: Config) -> Result<Self> {
        let tls = match config.endpoints.iter().any(|at| at.starts_with("https://")) {
            true => Some(tls_config(&config.tls).await?),
            false => None,
        };
        let members = Members::new(&config.endpoints, tls.as_ref(), config.timeout)?;
        let status = first_status(&members, config.patience).await?;
        let ordered_progress = watch::has_ordered_progress(&status.version);
        if !ordered_progress {
            tracing::warn!(
                version = status.version,
                "this etcd does not order progress with events (fixed in 3.4.25 and 3.5.8)"
            );
        }
        let closed = CancellationToken::new();
        let compactor = config
            .compaction
            .map(|interval| tokio::spawn(compaction::run(members.clone(), interval, closed.clone())));
        Ok(Etcd {
            leases: Leases::new(members.clone()),
            members,
            ordered_progress,
            closed,
            compactor: parking_lot::Mutex::new(compactor),
        })
    }

    async fn read(&self, request: RangeRequest) -> Result<RangeResponse> {
        self.check_open()?;
        self.members
            .send("read from etcd", Repeatable::Yes, |mut member| {
                let request = request.clone();
                async move { member.kv.range(request).await }
            })
            .await
    }

    fn check_open(&self) -> Result<()> {
        match self.closed.is_cancelled() {
            true => Err(closed()),
            false => Ok(()),
        }
    }

    /// What etcd does not say along with the error: how far it is.
    async fn complete(&self, error: Error) -> Error {
        match error {
            Error::Compacted { requested, .. } => match self.current_revision().await {
                Ok(current) => Error::Compacted { requested, compacted: requested.next(), current },
                Err(error) => error,
            },
            Error::FutureRevision { requested, .. } => match self.current_revision().await {
                Ok(current) => Error::FutureRevision { requested, current },
                Err(error) => error,
            },
            other => other,
        }
    }
}

#[async_trait]
impl Store for Etcd {
    async fn get(&self, key: &str, at: Option<Revision>) -> Result<Found> {
        let request = RangeRequest {
            key: requests::bytes(key),
            revision: at.unwrap_or_default().0,
            ..Default::default()
        };
        let mut response = match self.read(request).await {
            Ok(response) => response,
            Err(error) => return Err(self.complete(error.asked_for(at)).await),
        };
        let revision = revision_of(response.header.as_ref())?;
        let kv = response.kvs.pop().map(key_value).transpose()?;
        Ok(Found { kv, revision })
    }

    async fn range(&self, range: Range) -> Result<Page> {
        let (start, end) = bounds(&range.prefix, range.after.as_deref());
        let request = RangeRequest {
            key: start.into(),
            range_end: end.into(),
            revision: range.at.unwrap_or_default().0,
            limit: range.limit.unwrap_or(0) as i64,
            ..Default::default()
        };
        let response = match self.read(request).await {
            Ok(response) => response,
            Err(error) => return Err(self.complete(error.asked_for(range.at)).await),
        };
        let current = revision_of(response.header.as_ref())?;
        let count = response.count as usize;
        let kvs = response.kvs.into_iter().map(key_value).collect::<Result<Vec<_>>>()?;
        Ok(Page { remaining: count.saturating_sub(kvs.len()), kvs, revision: range.at.unwrap_or(current) })
    }

    async fn commit(&self, txn: Txn) -> Result<Committed> {
        let mut span = ferry_trace::span("store.write");
        span.set("bytes", txn.size());
        self.check_open()?;
        txn.check(TRANSACTION_LIMIT)?;
        let request = self.request(&txn).await?;
        let response = self.members.send("commit to etcd", Repeatable::No, |mut member| {
            let request = request.clone();
            async move { member.kv.txn(request).await }
        });
        let response = match response.await {
            Ok(response) => response,
            Err(error) => {
                span.fail(&error);
                return Err(error);
            }
        };
        let revision = revision_of(response.header.as_ref())?;
        if !response.succeeded {
            return Err(conflict(&txn, response.responses)?);
        }
        let deleted = response.responses.iter().map(|operation| match &operation.response {
            Some(Response::ResponseDeleteRange(deletion)) => deletion.deleted as usize,
            _ => 0,
        });
        span.committed(revision.0);
        Ok(Committed { revision, deleted: deleted.sum() })
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch> {
        self.check_open()?;
        let follower = watch::Follower {
            members: self.members.clone(),
            prefix: prefix.into(),
            next: from,
            ordered_progress: self.ordered_progress,
            closed: self.closed.clone(),
        };
        Ok(follower.follow())
    }

    async fn current_revision(&self) -> Result<Revision> {
        let request =
            RangeRequest { key: requests::bytes(compaction::KEY), count_only: true, ..Default::default() };
        let response = self.read(request).await?;
        revision_of(response.header.as_ref())
    }

    async fn compact(&self, at: Revision) -> Result<()> {
        let _span = ferry_trace::span("store.compact");
        self.check_open()?;
        let compacted = self.members.send("compact etcd", Repeatable::No, |mut member| async move {
            member.kv.compact(CompactionRequest { revision: at.0, physical: false }).await
        });
        match compacted.await {
            Ok(_) => Ok(()),
            Err(error) => Err(self.complete(error.asked_for(Some(at))).await),
        }
    }

    async fn usage(&self) -> Result<Usage> {
        self.check_open()?;
        let status = self.members.send("ask etcd for its size", Repeatable::Yes, |mut member| async move {
            member.maintenance.status(StatusRequest {}).await
        });
        let status = status.await?;
        Ok(Usage { size: status.db_size as u64, in_use: status.db_size_in_use as u64, ..Usage::default() })
    }

    async fn snapshot(&self) -> Result<BoxStream<'static, Result<Bytes>>> {
        self.check_open()?;
        let what = "take a snapshot of etcd";
        let parts = self.members.send(what, Repeatable::Yes, |mut member| async move {
            member.maintenance.snapshot(SnapshotRequest {}).await
        });
        let parts = parts.await?;
        let parts = futures::stream::unfold(Some(parts), move |parts| async move {
            let mut parts = parts?;
            match parts.message().await {
                Ok(Some(part)) => Some((Ok(part.blob), Some(parts))),
                Ok(None) => None,
                Err(error) => Some((Err(translate(what, error)), None)),
            }
        });
        Ok(parts.boxed())
    }

    async fn close(&self) -> Result<()> {
        self.check_open()?;
        self.closed.cancel();
        let compactor = self.compactor.lock().take();
        if let Some(compactor) = compactor {
            compactor.await.ok();
        }
        Ok(())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

impl Etcd {
    async fn request(&self, txn: &Txn) -> Result<TxnRequest> {
        let mut compare = Vec::with_capacity(txn.compare.len());
        let mut failure = Vec::with_capacity(txn.compare.len());
        for comparison in &txn.compare {
            let (key, revision) = comparison.expectation();
            compare.push(requests::mod_revision_is(key, revision.0));
            failure.push(requests::get(key));
        }
        let mut success = Vec::with_capacity(txn.operations.len());
        for operation in &txn.operations {
            success.push(match operation {
                Operation::Put { key, value, ttl } => {
                    let lease = match ttl {
                        Some(ttl) => self.leases.lease(*ttl).await?,
                        None => 0,
                    };
                    requests::put(key, value.clone(), lease)
                }
                Operation::Delete { key } => requests::delete(key),
            });
        }
        Ok(TxnRequest { compare, success, failure })
    }
}

/// Asks again until etcd answers, or for so long.
async fn first_status(members: &Members, patience: Duration) -> Result<StatusResponse> {
    let give_up = Instant::now() + patience;
    let mut pause = Duration::from_millis(10);
    loop {
        let status = members.send("connect to etcd", Repeatable::Yes, |mut member| async move {
            member.maintenance.status(StatusRequest {}).await
        });
        match status.await {
            Err(error) if is_passing(&error) && Instant::now() + pause <= give_up => {
                tracing::debug!(%error, "etcd does not answer yet");
            }
            answered => return answered,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Whether asking again may find something else.
fn is_passing(error: &Error) -> bool {
    match error {
        Error::Unavailable { source, .. } => {
            !source.downcast_ref::<tonic::Status>().is_some_and(failure::is_final)
        }
        _ => false,
    }
}

/// The first comparison that does not hold, with what was read in its place.
fn conflict(txn: &Txn, reads: Vec<ResponseOp>) -> Result<Error> {
    for (compare, read) in txn.compare.iter().zip(reads) {
        let Some(Response::ResponseRange(mut read)) = read.response else {
            continue;
        };
        let current = read.kvs.pop().map(key_value).transpose()?;
        let (key, expected) = compare.expectation();
        let modified = current.as_ref().map_or(Revision(0), |kv| kv.mod_revision);
        if modified != expected {
            let key = key.clone();
            return Ok(Error::Conflict { key, current });
        }
    }
    Err(Error::corrupt("etcd refused a transaction all of whose comparisons hold"))
}

fn key_value(kv: mvccpb::KeyValue) -> Result<KeyValue> {
    let key = std::str::from_utf8(&kv.key)
        .map_err(|error| Error::corrupt(format!("a key in etcd is not text: {error}")))?;
    Ok(KeyValue {
        key: key.into(),
        // A copy: the message it came in, a page of a list perhaps, would stay in memory as long as it.
        value: Bytes::copy_from_slice(&kv.value),
        create_revision: Revision(kv.create_revision),
        mod_revision: Revision(kv.mod_revision),
        version: kv.version,
        lease: kv.lease,
    })
}

fn revision_of(header: Option<&ResponseHeader>) -> Result<Revision> {
    match header {
        Some(header) => Ok(Revision(header.revision)),
        None => Err(Error::corrupt("an answer of etcd has no header")),
    }
}

/// First key and end of a range, as etcd takes them: a zero byte means no end.
fn bounds(prefix: &str, after: Option<&str>) -> (Vec<u8>, Vec<u8>) {
    let start = match after {
        Some(after) if after >= prefix => [after.as_bytes(), &[0]].concat(),
        _ if prefix.is_empty() => vec![0],
        _ => prefix.into(),
    };
    // UTF-8 has no byte of 255, so the last byte of a prefix can always be counted up.
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        Some(last) => *last += 1,
        None => end.push(0),
    }
    (start, end)
}

async fn tls_config(tls: &Tls) -> Result<ClientTlsConfig> {
    let read = async |path: &PathBuf| {
        tokio::fs::read(path)
            .await
            .map_err(|error| Error::unavailable(format!("read {}", path.display()), error))
    };
    let mut config = ClientTlsConfig::new();
    config = match &tls.ca {
        Some(ca) => config.ca_certificate(Certificate::from_pem(read(ca).await?)),
        None => config.with_native_roots(),
    };
    if let Some((certificate, key)) = &tls.identity {
        config = config.identity(Identity::from_pem(read(certificate).await?, read(key).await?));
    }
    Ok(config)
}

fn closed() -> Error {
    Error::unavailable("use the store", std::io::Error::other("it has been closed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_cover_a_prefix_and_no_more() {
        let check = |prefix, after, start: &[u8], end: &[u8]| {
            assert_eq!(bounds(prefix, after), (start.to_vec(), end.to_vec()));
        };
        check("/a/", None, b"/a/", b"/a0");
        check("/a/", Some("/a/x"), b"/a/x\0", b"/a0");
        check("/a/", Some("/"), b"/a/", b"/a0");
        check("", None, b"\0", b"\0");
        check("", Some("k"), b"k\0", b"\0");
        let (start, end) = bounds("ÿ", None);
        assert!(start < end);
    }
}
