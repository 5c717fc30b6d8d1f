//! Builds etcd's request messages.

use bytes::Bytes;
use ferry_etcd_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use ferry_etcd_api::etcdserverpb::request_op::Request;
use ferry_etcd_api::etcdserverpb::{Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp};

pub fn get(key: &str) -> RequestOp {
    operation(Request::RequestRange(RangeRequest { key: bytes(key), ..Default::default() }))
}

/// A put; `lease` is zero for a key that stays.
pub fn put(key: &str, value: Bytes, lease: i64) -> RequestOp {
    operation(Request::RequestPut(PutRequest { key: bytes(key), value, lease, ..Default::default() }))
}

pub fn delete(key: &str) -> RequestOp {
    operation(Request::RequestDeleteRange(DeleteRangeRequest { key: bytes(key), ..Default::default() }))
}

pub fn version_is(key: &str, version: i64) -> Compare {
    equal(key, CompareTarget::Version, TargetUnion::Version(version))
}

pub fn mod_revision_is(key: &str, revision: i64) -> Compare {
    equal(key, CompareTarget::Mod, TargetUnion::ModRevision(revision))
}

pub fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn operation(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn equal(key: &str, target: CompareTarget, value: TargetUnion) -> Compare {
    Compare {
        result: CompareResult::Equal as i32,
        target: target as i32,
        key: bytes(key),
        range_end: Bytes::new(),
        target_union: Some(value),
    }
}
