//! Every method of etcd's API by its path, and what all of them share.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ferry_etcd_api::etcdserverpb::{
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, ResponseHeader, SnapshotRequest,
};
use ferry_store::{Embedded, Revision, Store};
use futures::{Stream, StreamExt};
use prost::Message;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;
use tower::service_fn;

use crate::failure::Result;
use crate::lease::Leases;

/// There is one member, which has led since the first term.
pub const RAFT_TERM: u64 = 2;
/// What surrounds a request of the largest size, as etcd allows for.
const OVERHEAD: usize = 512 << 10;

#[derive(Clone)]
pub struct Service {
    pub store: Arc<Embedded>,
    pub leases: Arc<Leases>,
    pub member: Arc<Identity>,
    pub limits: Limits,
    pub stopped: CancellationToken,
}

/// The one member of the cluster.
pub struct Identity {
    pub cluster: u64,
    pub id: u64,
    pub name: String,
    pub peer_urls: Vec<String>,
    pub client_urls: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub request_bytes: usize,
    /// Comparisons, and operations, of one transaction.
    pub operations: usize,
    /// How often a quiet watch that wants to know is told how far the store is.
    pub progress_interval: Duration,
    /// A client that has sent no request for so long, from the connection's beginning, is let go.
    pub first_request: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            request_bytes: 3 << 19,
            operations: 128,
            progress_interval: crate::watch::PROGRESS_INTERVAL,
            first_request: Duration::from_secs(60),
        }
    }
}

type Request = http::Request<hyper::body::Incoming>;
type Response = http::Response<Body>;

impl Service {
    pub async fn call(self, request: Request) -> Response {
        let path = request.uri().path().to_owned();
        // One arm for each method: its name, and the function that answers it.
        macro_rules! methods {
            ($($path:literal => $method:ident,)*) => {
                match path.as_str() {
                    $($path => {
                        let service = self.clone();
                        self.unary(request, move |message| {
                            let service = service.clone();
                            async move { service.$method(message).await }
                        })
                        .await
                    })*
                    "/etcdserverpb.Watch/Watch" => self.watch_stream(request).await,
                    "/etcdserverpb.Lease/LeaseKeepAlive" => self.keep_alive_stream(request).await,
                    "/etcdserverpb.Maintenance/Snapshot" => self.snapshot_stream(request).await,
                    path => refusal(path).into_http(),
                }
            };
        }
        methods! {
            "/etcdserverpb.KV/Range" => range,
            "/etcdserverpb.KV/Put" => put,
            "/etcdserverpb.KV/DeleteRange" => delete_range,
            "/etcdserverpb.KV/Txn" => txn,
            "/etcdserverpb.KV/Compact" => compact,
            "/etcdserverpb.Cluster/MemberList" => member_list,
            "/etcdserverpb.Lease/LeaseGrant" => lease_grant,
            "/etcdserverpb.Lease/LeaseRevoke" => lease_revoke,
            "/etcdserverpb.Lease/LeaseTimeToLive" => lease_time_to_live,
            "/etcdserverpb.Lease/LeaseLeases" => lease_leases,
            "/etcdserverpb.Maintenance/Alarm" => alarm,
            "/etcdserverpb.Maintenance/Status" => status,
            "/etcdserverpb.Maintenance/Defragment" => defragment,
            "/etcdserverpb.Maintenance/Hash" => hash,
            "/etcdserverpb.Maintenance/HashKV" => hash_kv,
            "/etcdserverpb.Auth/AuthStatus" => auth_status,
        }
    }

    async fn unary<Q, A, F>(&self, request: Request, answer: impl Fn(Q) -> F) -> Response
    where
        Q: Message + Default + Send + 'static,
        A: Message + Send + 'static,
        F: Future<Output = Result<A>>,
    {
        let answer = service_fn(|request: tonic::Request<Q>| {
            let answer = answer(request.into_inner());
            async move { answer.await.map(tonic::Response::new).map_err(Status::from) }
        });
        self.grpc::<A, Q>().unary(answer, request.map(Body::new)).await
    }

    async fn watch_stream(&self, request: Request) -> Response {
        let answer = service_fn(|request: tonic::Request<Streaming<_>>| {
            let answers = self.watch(request.into_inner());
            async move { Ok::<_, Status>(tonic::Response::new(answers)) }
        });
        self.grpc().streaming(answer, request.map(Body::new)).await
    }

    async fn keep_alive_stream(&self, request: Request) -> Response {
        let answer = service_fn(|request: tonic::Request<Streaming<LeaseKeepAliveRequest>>| {
            let service = self.clone();
            let stopped = self.stopped.clone().cancelled_owned();
            let answers = request.into_inner().take_until(stopped).then(move |message| {
                let service = service.clone();
                async move { service.lease_keep_alive(message?).await.map_err(Status::from) }
            });
            let answers: Pin<
                Box<dyn Stream<Item = std::result::Result<LeaseKeepAliveResponse, Status>> + Send>,
            > = Box::pin(answers);
            async move { Ok::<_, Status>(tonic::Response::new(answers)) }
        });
        self.grpc().streaming(answer, request.map(Body::new)).await
    }

    async fn snapshot_stream(&self, request: Request) -> Response {
        let answer = service_fn(|_: tonic::Request<SnapshotRequest>| {
            let blobs = self.snapshot().map(tonic::Response::new).map_err(Status::from);
            async move { blobs }
        });
        self.grpc().server_streaming(answer, request.map(Body::new)).await
    }

    fn grpc<A, Q>(&self) -> Grpc<ProstCodec<A, Q>>
    where
        A: Message + Send + 'static,
        Q: Message + Default + Send + 'static,
    {
        Grpc::new(ProstCodec::default()).max_decoding_message_size(self.limits.request_bytes + OVERHEAD)
    }

    pub fn header(&self, revision: Revision) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.member.cluster,
            member_id: self.member.id,
            revision: revision.0,
            raft_term: RAFT_TERM,
        }
    }

    pub async fn current_header(&self) -> Result<Option<ResponseHeader>> {
        Ok(Some(self.header(self.store.current_revision().await?)))
    }
}

/// What this server does not do, said as etcd would or as plainly.
fn refusal(path: &str) -> Status {
    if path.starts_with("/etcdserverpb.Auth/") {
        return Status::failed_precondition("etcdserver: authentication is not enabled");
    }
    if path.starts_with("/etcdserverpb.Cluster/") || path == "/etcdserverpb.Maintenance/MoveLeader" {
        return Status::unimplemented("ferry: this etcd has one member, and no more can join it");
    }
    Status::unimplemented(format!("ferry: {path} is not served"))
}
