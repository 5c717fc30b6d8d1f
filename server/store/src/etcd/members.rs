//! The members of the cluster: all requests go to one of them, until it cannot be reached.

use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, KvClient, LeaseClient, MaintenanceClient, WatchClient};

use super::failure::translate;
use crate::{Error, Result};

/// A list of any size is one message.
const MESSAGE_LIMIT: usize = i32::MAX as usize;
/// Before a request is tried once more.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Clone)]
pub struct Members(Arc<Inner>);

struct Inner {
    members: Vec<Member>,
    /// The one that is asked.
    current: AtomicUsize,
    timeout: Duration,
}

/// The clients of one member; clones share its connection.
#[derive(Clone)]
pub struct Member {
    pub kv: KvClient,
    pub watch: WatchClient,
    pub lease: LeaseClient,
    pub maintenance: MaintenanceClient,
}

/// Whether a request may be sent again when it is not known whether it was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeatable {
    Yes,
    No,
}

impl Members {
    /// Prepares connections; they are made when first needed.
    pub async fn new(endpoints: &[String], options: &ConnectOptions, timeout: Duration) -> Result<Self> {
        let mut members = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints {
            let client = Client::connect([endpoint], Some(options.clone()))
                .await
                .map_err(|error| translate(&format!("use {endpoint}"), error))?;
            members.push(Member {
                kv: client.kv_client().max_decoding_message_size(MESSAGE_LIMIT),
                watch: client.watch_client().max_decoding_message_size(MESSAGE_LIMIT),
                lease: client.lease_client(),
                maintenance: client.maintenance_client(),
            });
        }
        if members.is_empty() {
            let nothing = io::Error::new(io::ErrorKind::InvalidInput, "no endpoint was given");
            return Err(Error::unavailable("connect to etcd", nothing));
        }
        Ok(Members(Arc::new(Inner { members, current: AtomicUsize::new(0), timeout })))
    }

    pub fn current(&self) -> (usize, Member) {
        let at = self.0.current.load(Ordering::Relaxed);
        (at, self.0.members[at].clone())
    }

    /// Turns to another member, unless someone else did already.
    pub fn leave(&self, at: usize) {
        let next = (at + 1) % self.0.members.len();
        self.0.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed).ok();
    }

    /// Sends a request; to the next member where one cannot be reached.
    pub async fn ask<T, F>(
        &self,
        what: &str,
        repeatable: Repeatable,
        request: impl Fn(Member) -> F,
    ) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, etcd_client::Error>>,
    {
        let mut tries_left = self.0.members.len();
        loop {
            let (at, member) = self.current();
            let error = match tokio::time::timeout(self.0.timeout, request(member)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => error,
                Err(elapsed) => {
                    self.leave(at);
                    return Err(Error::unavailable(what, elapsed));
                }
            };
            if !is_unavailable(&error) {
                return Err(translate(what, error));
            }
            self.leave(at);
            let again = repeatable == Repeatable::Yes || was_never_sent(&error);
            if tries_left == 0 || !again {
                return Err(translate(what, error));
            }
            tries_left -= 1;
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// gRPC's code 14: the member, or its way to a leader, is gone for now.
pub fn is_unavailable(error: &etcd_client::Error) -> bool {
    match error {
        etcd_client::Error::GRpcStatus(status) => status.code() as i32 == 14,
        etcd_client::Error::TransportError(_) => true,
        _ => false,
    }
}

/// No connection came about, so nothing was carried out.
fn was_never_sent(error: &etcd_client::Error) -> bool {
    let etcd_client::Error::GRpcStatus(status) = error else {
        return false;
    };
    let mut cause = status.source();
    while let Some(error) = cause {
        let refused = error
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if refused || error.to_string().starts_with("tcp connect error") {
            return true;
        }
        cause = error.source();
    }
    false
}
