//! A client of etcd for the tests: the generated stubs over one connection, and the requests that tests make often.

use ferry_etcd_api::etcdserverpb::auth_client::AuthClient;
use ferry_etcd_api::etcdserverpb::cluster_client::ClusterClient;
use ferry_etcd_api::etcdserverpb::kv_client::KvClient;
use ferry_etcd_api::etcdserverpb::lease_client::LeaseClient;
use ferry_etcd_api::etcdserverpb::maintenance_client::MaintenanceClient;
use ferry_etcd_api::etcdserverpb::request_op::Request;
use ferry_etcd_api::etcdserverpb::watch_client::WatchClient;
use ferry_etcd_api::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, LeaseGrantRequest,
    LeaseRevokeRequest, LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse,
};
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

pub struct Client {
    pub kv: KvClient<Channel>,
    pub watch: WatchClient<Channel>,
    pub lease: LeaseClient<Channel>,
    pub maintenance: MaintenanceClient<Channel>,
    pub cluster: ClusterClient<Channel>,
    pub auth: AuthClient<Channel>,
}

impl Client {
    pub async fn connect(endpoint: String) -> Client {
        let channel = Endpoint::from_shared(endpoint).expect("an address");
        let channel = channel.connect().await.expect("a connection");
        Client {
            kv: KvClient::new(channel.clone()),
            watch: WatchClient::new(channel.clone()),
            lease: LeaseClient::new(channel.clone()),
            maintenance: MaintenanceClient::new(channel.clone()),
            cluster: ClusterClient::new(channel.clone()),
            auth: AuthClient::new(channel),
        }
    }

    pub async fn range(&mut self, request: RangeRequest) -> Result<RangeResponse, Status> {
        self.kv.range(request).await.map(Response::into_inner)
    }

    pub async fn put(&mut self, request: PutRequest) -> Result<PutResponse, Status> {
        self.kv.put(request).await.map(Response::into_inner)
    }

    pub async fn delete(&mut self, request: DeleteRangeRequest) -> Result<DeleteRangeResponse, Status> {
        self.kv.delete_range(request).await.map(Response::into_inner)
    }

    pub async fn txn(&mut self, request: TxnRequest) -> Result<TxnResponse, Status> {
        self.kv.txn(request).await.map(Response::into_inner)
    }

    pub async fn compact(&mut self, revision: i64) -> Result<CompactionResponse, Status> {
        let request = CompactionRequest { revision, physical: false };
        self.kv.compact(request).await.map(Response::into_inner)
    }

    /// Puts a key, and says at which revision.
    pub async fn put_value(&mut self, key: &str, value: &str) -> i64 {
        self.put(put(key, value)).await.expect("a put").header.expect("a header").revision
    }

    pub async fn lease_grant(&mut self, ttl: i64) -> i64 {
        self.lease.lease_grant(LeaseGrantRequest { ttl, id: 0 }).await.expect("a lease").into_inner().id
    }

    pub async fn lease_revoke(&mut self, id: i64) -> Result<LeaseRevokeResponse, Status> {
        self.lease.lease_revoke(LeaseRevokeRequest { id }).await.map(Response::into_inner)
    }

    pub async fn time_to_live(&mut self, id: i64, keys: bool) -> LeaseTimeToLiveResponse {
        let request = LeaseTimeToLiveRequest { id, keys };
        self.lease.lease_time_to_live(request).await.expect("an answer").into_inner()
    }
}

pub fn get(key: &str) -> RangeRequest {
    RangeRequest { key: key.to_owned().into(), ..Default::default() }
}

/// Every key that begins so.
pub fn get_prefix(prefix: &str) -> RangeRequest {
    RangeRequest { range_end: prefix_end(prefix).into(), ..get(prefix) }
}

pub fn put(key: &str, value: &str) -> PutRequest {
    PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..Default::default() }
}

pub fn delete(key: &str) -> DeleteRangeRequest {
    DeleteRangeRequest { key: key.to_owned().into(), ..Default::default() }
}

/// The first key after all that begin so; the prefixes of these tests end in ASCII.
pub fn prefix_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// A transaction that always does these.
pub fn always(requests: impl IntoIterator<Item = Request>) -> TxnRequest {
    TxnRequest { success: operations(requests), ..Default::default() }
}

pub fn operations(requests: impl IntoIterator<Item = Request>) -> Vec<RequestOp> {
    requests.into_iter().map(|request| RequestOp { request: Some(request) }).collect()
}
