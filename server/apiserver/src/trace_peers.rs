//! Exchange of spans between servers: each sends the spans that ended here to the others, half a second later.
//!
//! ```text
//!   agents, kubectl, components                      other servers
//!        │ POST, JSON                                 ▲ POST, packets of spans that nobody else has told
//!        ▼                                            │
//!      ring ────────────── follower, one per server ──┘
//! ```
//!
//! A server that dies has told what it had, but for that half second, and whoever is asked can tell all of it. Who the
//! others are is in the store, where each keeps its address under a lease. A server shows the client certificate that it
//! shows to kubelets; nobody else is believed about which span wrote a revision. What a server was away for it is told when
//! it is back, from what the others have in memory, and it asks one of them for what is older.
//!
//! Nothing is added to a request: followers read the ring. One that is too slow loses what the ring lets go of.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferry_auth::pki::Pki;
use ferry_store::Store;
use ferry_trace::packet::{self, MAX_RECORDS};
use ferry_trace::{History, Record, SpanId, handoff, ring};
use futures::StreamExt;
use kube::Client;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::run::{Config, StartError, config_error};
use crate::server_addresses;
use crate::trace::PATH;

/// Spans end in bursts; one request takes a burst along.
const GATHER: Duration = Duration::from_millis(500);
const RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(10);
/// What a server was told this short before it died may not have been on its disk.
const MAY_BE_LOST: Duration = Duration::from_secs(2);
/// How long a server that stops waits for another one to hear it out.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// More servers than a cluster has.
const MAX_PEERS: usize = 64;

/// Names a run of a server: another one has another memory.
static INSTANCE: LazyLock<SpanId> = LazyLock::new(SpanId::generate);

/// What a server answers to spans.
#[derive(Serialize, Deserialize)]
pub struct Taken {
    pub taken: usize,
    instance: SpanId,
}

impl Taken {
    pub fn new(taken: usize) -> Taken {
        Taken { taken, instance: *INSTANCE }
    }
}

/// How a record says that a server sent it.
pub fn name_of(server: &str) -> String {
    format!("server {server}")
}

/// This server among the others.
pub struct TracePeers {
    pub own: SocketAddr,
    pub config: Config,
    pub pki: Arc<Pki>,
    pub store: Arc<dyn Store>,
    pub history: Option<Arc<History>>,
}

impl TracePeers {
    /// Works until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let peers = Arc::new(self);
        let (alive, others) = watch::channel(BTreeSet::new());
        let mut followers: BTreeMap<SocketAddr, tokio::task::JoinHandle<()>> = BTreeMap::new();
        let catching_up = tokio::spawn(peers.clone().catch_up(others.clone()));
        let follow = async {
            loop {
                if let Err(error) = peers.clone().watch(&alive, &others, &mut followers, &stop).await {
                    tracing::debug!(%error, "cannot watch the other servers, trying again");
                }
                tokio::time::sleep(RETRY).await;
            }
        };
        stop.run_until_cancelled(follow).await;
        catching_up.abort();
        // The last of what ended here is told before this server goes.
        let last = futures::future::join_all(followers.values_mut());
        if tokio::time::timeout(LAST_WORDS, last).await.is_err() {
            followers.values().for_each(|follower| follower.abort());
        }
    }

    /// Follows the leases of the servers.
    async fn watch(
        self: Arc<Self>,
        alive: &watch::Sender<BTreeSet<SocketAddr>>,
        others: &watch::Receiver<BTreeSet<SocketAddr>>,
        followers: &mut BTreeMap<SocketAddr, tokio::task::JoinHandle<()>>,
        stop: &CancellationToken,
    ) -> Result<(), ferry_store::Error> {
        loop {
            let (mut found, revision) = server_addresses::servers(&*self.store).await?;
            found.remove(&self.own);
            for peer in &found {
                if followers.len() < MAX_PEERS && !followers.contains_key(peer) {
                    let tell = self.clone().send_to(*peer, others.clone(), stop.clone());
                    followers.insert(*peer, tokio::spawn(tell));
                }
            }
            alive.send_if_modified(|known| std::mem::replace(known, found.clone()) != found);
            let mut changes = server_addresses::changes(&*self.store, revision).await?;
            // A lease that is renewed changes nothing; which is which, the next look says.
            if let Some(Err(error)) = changes.next().await {
                return Err(error);
            }
        }
    }

    /// Sends spans to one server until this server stops: an unreachable server may come back.
    async fn send_to(
        self: Arc<Self>,
        peer: SocketAddr,
        mut others: watch::Receiver<BTreeSet<SocketAddr>>,
        stop: CancellationToken,
    ) {
        // What is sent here is part of no story.
        let silent = ferry_trace::span("spans").unsampled();
        let mut told = PeerProgress::default();
        let mut client = None;
        let mut pause = RETRY;
        while !stop.is_cancelled() {
            let more = async {
                others.wait_for(|alive| alive.contains(&peer)).await.is_ok() && {
                    ring().ended_after(told.until).await;
                    tokio::time::sleep(GATHER).await;
                    true
                }
            };
            if stop.run_until_cancelled(more).await == Some(false) {
                return;
            }
            match silent.in_scope(self.send_all(peer, &mut client, &mut told)).await {
                Ok(()) => pause = RETRY,
                Err(error) => {
                    tracing::debug!(%peer, %error, "cannot send spans to another server, trying again");
                    // Its address may be another's now, or our certificate renewed.
                    client = None;
                    stop.run_until_cancelled(tokio::time::sleep(pause)).await;
                    pause = (pause * 2).min(MAX_RETRY);
                }
            }
        }
    }

    async fn send_all(
        &self,
        peer: SocketAddr,
        client: &mut Option<Client>,
        told: &mut PeerProgress,
    ) -> Result<(), Error> {
        let ended = ring().after(told.until);
        let Some(last) = ended.last().map(|record| record.sequence) else { return Ok(()) };
        let news: Vec<Record> =
            ended.into_iter().filter(|record| !record.is_relayed).map(of_this_host).collect();
        for batch in news.chunks(MAX_RECORDS) {
            let client = match client {
                Some(client) => &*client,
                None => client.insert(self.client(peer)?),
            };
            let until = batch.last().map_or(told.until, |record| record.sequence);
            if told.by_instance(self.send(client, batch).await?, until) {
                // It has forgotten what we told its former run last.
                return Ok(());
            }
        }
        told.until = told.until.max(last);
        Ok(())
    }

    async fn send(&self, client: &Client, batch: &[Record]) -> Result<SpanId, Error> {
        let body = packet::pack(batch).map_err(Error::Pack)?;
        let request = http::Request::post(format!("{PATH}?server={}", self.own))
            .header(http::header::CONTENT_TYPE, packet::CONTENT_TYPE)
            .body(body)
            .map_err(kube::Error::HttpError)?;
        let answer = tokio::time::timeout(PATIENCE, client.request::<Taken>(request)).await;
        Ok(answer.map_err(|_| Error::Silent)??.instance)
    }

    /// Asks one of the others for what happened while this server was away.
    async fn catch_up(self: Arc<Self>, mut others: watch::Receiver<BTreeSet<SocketAddr>>) {
        let Some(history) = self.history.clone() else { return };
        let from = history.written_until();
        let silent = ferry_trace::span("spans").unsampled();
        loop {
            let Ok(alive) = others.wait_for(|alive| !alive.is_empty()).await.map(|alive| alive.clone())
            else {
                return;
            };
            for peer in alive {
                match silent.in_scope(self.missed(peer, from)).await {
                    Ok(missed) => return self.take_over(missed, peer).await,
                    Err(error) => {
                        tracing::debug!(%peer, %error, "cannot send missed spans to another server")
                    }
                }
            }
            tokio::time::sleep(MAX_RETRY).await;
        }
    }

    async fn missed(&self, peer: SocketAddr, from: u64) -> Result<Vec<Record>, Error> {
        #[derive(Deserialize)]
        struct MissedRecords {
            records: Vec<Record>,
        }
        let from = from.saturating_sub(MAY_BE_LOST.as_nanos() as u64);
        let request = http::Request::get(format!("{PATH}?from={from}")).body(Vec::new());
        let request = request.map_err(kube::Error::HttpError)?;
        let client = self.client(peer)?;
        let answer = tokio::time::timeout(PATIENCE * 3, client.request::<MissedRecords>(request)).await;
        Ok(answer.map_err(|_| Error::Silent)??.records)
    }

    /// In portions that the history writes before the next comes: the ring would let go of some otherwise.
    async fn take_over(&self, missed: Vec<Record>, peer: SocketAddr) {
        let own = name_of(&self.own.to_string());
        let others: Vec<Record> =
            missed.into_iter().filter(|record| record.source.as_deref() != Some(own.as_str())).collect();
        for portion in others.chunks(MAX_RECORDS) {
            ring().take_over(portion.to_vec(), &name_of(&peer.to_string()));
            tokio::time::sleep(GATHER * 2).await;
        }
    }

    fn client(&self, peer: SocketAddr) -> Result<Client, StartError> {
        let url = format!("https://{peer}").parse().map_err(config_error)?;
        let mut config = kube::Config::new(url);
        let authorities = self.config.given.client_authorities(&self.pki)?;
        config.root_cert = Some(authorities.into_iter().map(|authority| authority.to_vec()).collect());
        let pair = self.config.given.kubelet_client(&self.pki)?;
        config.auth_info.client_certificate_data = Some(STANDARD.encode(&pair.certificate));
        config.auth_info.client_key_data = Some(STANDARD.encode(&pair.key).into());
        ferry_client::connect::connect_with(config).map_err(config_error)
    }
}

/// A plugin's spans are of the host that the server is on; elsewhere nobody would know which.
fn of_this_host(mut record: Record) -> Record {
    record.source = record.source.filter(|source| **source != *handoff::PLUGIN);
    record
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Client(#[from] StartError),
    #[error("pack the spans: {0}")]
    Pack(std::io::Error),
    #[error(transparent)]
    Ask(#[from] kube::Error),
    #[error("it did not respond in time")]
    Silent,
}

/// How far the spans were sent to another server.
#[derive(Default)]
struct PeerProgress {
    /// The last sequence.
    until: u64,
    instance: Option<SpanId>,
    /// The sequence that it has certainly written by now, and the time and sequence of what was sent since.
    safe: u64,
    since: Option<(Instant, u64)>,
}

impl PeerProgress {
    /// `until` was taken by `instance`. Whether that is another run of the server, which has to be told again what the former
    /// one may have lost.
    fn by_instance(&mut self, instance: SpanId, until: u64) -> bool {
        let is_another = self.instance.replace(instance).is_some_and(|known| known != instance);
        if is_another {
            (self.until, self.since) = (self.safe, None);
            return true;
        }
        self.until = until;
        match self.since {
            Some((when, sequence)) if when.elapsed() >= MAY_BE_LOST => {
                self.safe = sequence;
                self.since = Some((Instant::now(), until));
            }
            Some(_) => {}
            None => self.since = Some((Instant::now(), until)),
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_died_is_told_again_what_it_may_have_lost() {
        let (first, second) = (SpanId::generate(), SpanId::generate());
        let mut told = PeerProgress::default();
        assert!(!told.by_instance(first, 10));
        told.since = told.since.map(|(when, sequence)| (when - MAY_BE_LOST, sequence));
        assert!(!told.by_instance(first, 20));
        assert!(!told.by_instance(first, 30));
        assert_eq!((told.until, told.safe), (30, 10));
        assert!(told.by_instance(second, 40));
        assert_eq!(told.until, 10);
        assert!(!told.by_instance(second, 40));
        assert_eq!(told.until, 40);
    }
}
