//! Forgetting history, once for the whole cluster.
//!
//! Every API server on an etcd cluster, upstream's too, compacts in turn with the others by the
//! key `compact_rev_key`: who succeeds in writing it compacts to the revision that was current
//! when it was written last. So history is kept for one interval at least and two at most.

use std::time::Duration;

use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnOpResponse};
use tokio_util::sync::CancellationToken;

use super::members::{Members, Repeatable};
use super::revision_of;
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
    let unchanged = Compare::version(KEY, CompareOp::Equal, seen.version);
    let txn = Txn::new()
        .when([unchanged])
        .and_then([TxnOp::put(KEY, seen.revision.to_string(), None)])
        .or_else([TxnOp::get(KEY, None)]);
    let answer = members.ask("compact etcd", Repeatable::No, |mut member| {
        let txn = txn.clone();
        async move { member.kv.txn(txn).await }
    });
    let answer = answer.await?;
    let revision = revision_of(answer.header())?;
    if !answer.succeeded() {
        let mut version = 0;
        for response in answer.op_responses() {
            if let TxnOpResponse::Get(read) = response {
                version = read.kvs().first().map_or(0, |kv| kv.version());
            }
        }
        return Ok(Seen { version, revision });
    }
    if seen.revision > Revision(0) {
        let at = seen.revision.0;
        let compacted = members.ask("compact etcd", Repeatable::No, |mut member| async move {
            member.kv.compact(at, None).await
        });
        match compacted.await {
            // Someone else was faster.
            Ok(_) | Err(Error::Compacted { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Seen { version: seen.version + 1, revision })
}
