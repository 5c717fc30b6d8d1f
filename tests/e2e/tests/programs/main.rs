//! Ferry called by the names of upstream's programs, started and used as others do: Debian's etcdctl, and envtest of
//! controller-runtime.

mod authority;
mod callers;
mod envtest;
mod etcd_tls;
mod etcdctl;
mod links;
