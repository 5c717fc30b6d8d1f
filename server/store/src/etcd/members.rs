//! The members of the cluster: all requests go to one of them, until it cannot be reached.

use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ferry_etcd_api::etcdserverpb::kv_client::KvClient;
use ferry_etcd_api::etcdserverpb::lease_client::LeaseClient;
use ferry_etcd_api::etcdserverpb::maintenance_client::MaintenanceClient;
use ferry_etcd_api::etcdserverpb::watch_client::WatchClient;
use tonic::metadata::MetadataValue;
use tonic::service::interceptor::{InterceptedService, Interceptor};
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Response, Status};

use super::failure::translate;
use crate::{Error, Result};

/// A list of any size is one message.
const MESSAGE_LIMIT: usize = i32::MAX as usize;
/// Before a request is tried once more.
const PAUSE: Duration = Duration::from_millis(20);
/// A connection is probed this often, and given up when the probe is not answered in time.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

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
    pub kv: KvClient<Connection>,
    pub watch: WatchClient<Connection>,
    pub lease: LeaseClient<Connection>,
    pub maintenance: MaintenanceClient<Connection>,
}

type Connection = InterceptedService<Channel, RequireLeader>;

/// A member that has lost its leader refuses a request marked so, instead of answering from its own past.
#[derive(Clone, Copy)]
pub struct RequireLeader;

impl Interceptor for RequireLeader {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        Ok(request)
    }
}

/// Whether a request may be sent again when it is not known whether it was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeatable {
    Yes,
    No,
}

impl Members {
    /// Prepares connections; they are made when first needed.
    pub fn new(endpoints: &[String], tls: Option<&ClientTlsConfig>, timeout: Duration) -> Result<Self> {
        let mut members = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints {
            let channel = channel(endpoint, tls, timeout)
                .map_err(|error| Error::unavailable(format!("use {endpoint}"), error))?;
            let connection = InterceptedService::new(channel, RequireLeader);
            members.push(Member {
                kv: KvClient::new(connection.clone()).max_decoding_message_size(MESSAGE_LIMIT),
                watch: WatchClient::new(connection.clone()).max_decoding_message_size(MESSAGE_LIMIT),
                lease: LeaseClient::new(connection.clone()),
                maintenance: MaintenanceClient::new(connection),
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
    pub fn switch_from(&self, at: usize) {
        let next = (at + 1) % self.0.members.len();
        self.0.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed).ok();
    }

    /// Sends a request; to the next member where one cannot be reached.
    pub async fn send<T, F>(
        &self,
        what: &str,
        repeatable: Repeatable,
        request: impl Fn(Member) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut tries_left = self.0.members.len();
        loop {
            let (at, member) = self.current();
            let error = match tokio::time::timeout(self.0.timeout, request(member)).await {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(error)) => error,
                Err(elapsed) => {
                    self.switch_from(at);
                    return Err(Error::unavailable(what, elapsed));
                }
            };
            if !is_unavailable(&error) {
                return Err(translate(what, error));
            }
            self.switch_from(at);
            let again = repeatable == Repeatable::Yes || was_never_sent(&error);
            if tries_left == 0 || !again {
                return Err(translate(what, error));
            }
            tries_left -= 1;
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn channel(
    endpoint: &str,
    tls: Option<&ClientTlsConfig>,
    timeout: Duration,
) -> Result<Channel, tonic::transport::Error> {
    // As in etcd's own clients, an address without a scheme is as secure as there are means for.
    let address = match (endpoint.contains("://"), tls) {
        (true, _) => endpoint.to_owned(),
        (false, Some(_)) => format!("https://{endpoint}"),
        (false, None) => format!("http://{endpoint}"),
    };
    let (interval, answered_within) = KEEP_ALIVE;
    let mut endpoint = Endpoint::from_shared(address)?
        .connect_timeout(timeout)
        .http2_keep_alive_interval(interval)
        .keep_alive_timeout(answered_within)
        .keep_alive_while_idle(true);
    if let Some(tls) = tls.filter(|_| endpoint.uri().scheme_str() == Some("https")) {
        endpoint = endpoint.tls_config(tls.clone())?;
    }
    Ok(endpoint.connect_lazy())
}

/// The member, or its way to a leader, is gone for now.
fn is_unavailable(status: &Status) -> bool {
    status.code() == Code::Unavailable
}

/// No connection came about, so nothing was carried out.
fn was_never_sent(status: &Status) -> bool {
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
