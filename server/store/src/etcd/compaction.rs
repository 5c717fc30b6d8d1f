//! Compaction of history, coordinated between all API servers of the cluster.
//!
//! Every API server on an etcd cluster, upstream's too, compacts in turn with the others by the
//! key `compact_rev_key`: who succeeds in writing it compacts to the revision that was current
//! when it was written last. So history is kept for one interval at least and two at most.

use std::time::Duration;

use ferry_etcd_api::etcdserverpb::response_op::Response;
use ferry_etcd_api::etcdserverpb::{CompactionRequest, TxnRequest};
use tokio_util::sync::CancellationToken;

use super::members::{Members, Repeatable};
use super::{requests, revision_of};
use crate::{Error, Result, Revision};

pub const KEY: &str = "compact_rev_key";

pub async fn run(members: Members, interval: Duration, closed: CancellationToken) {
    let mut seen = Seen::default();
    loop {
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = closed.cancelled() => return,
        }
        match turn(&members, seen).await {
            Ok(now) => seen = now,
            Err(error) => tracing::warn!(%error, "cannot compact etcd; will try again"),
        }
    }
}

/// The key as it was in the last turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Seen {
    version: i64,
    /// The store's revision at that time.
    revision: Revision,
}

async fn turn(members: &Members, seen: Seen) -> Result<Seen> {
    let txn = TxnRequest {
        compare: vec![requests::version_is(KEY, seen.version)],
        success: vec![requests::put(KEY, seen.revision.to_string().into(), 0)],
        failure: vec![requests::get(KEY)],
    };
    let answer = members.send("compact etcd", Repeatable::No, |mut member| {
        let txn = txn.clone();
        async move { member.kv.txn(txn).await }
    });
    let answer = answer.await?;
    let revision = revision_of(answer.header.as_ref())?;
    if !answer.succeeded {
        let mut version = 0;
        for operation in answer.responses {
            if let Some(Response::ResponseRange(read)) = operation.response {
                version = read.kvs.first().map_or(0, |kv| kv.version);
            }
        }
        return Ok(Seen { version, revision });
    }
    if seen.revision > Revision(0) {
        let request = CompactionRequest { revision: seen.revision.0, physical: false };
        let compacted = members.send("compact etcd", Repeatable::No, |mut member| async move {
            member.kv.compact(request).await
        });
        match compacted.await {
            // Someone else was faster.
            Ok(_) | Err(Error::Compacted { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Seen { version: seen.version + 1, revision })
}
