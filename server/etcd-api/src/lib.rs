//! etcd's v3 API (of etcd 3.6): its messages and client stubs, generated from `proto/` by `tests/protocols`. The modules
//! have the names of etcd's protocol packages.

#[rustfmt::skip]
pub mod authpb;
#[rustfmt::skip]
pub mod etcdserverpb;
#[rustfmt::skip]
pub mod mvccpb;
