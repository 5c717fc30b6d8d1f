//! The container runtime interface (`runtime.v1`, of Kubernetes v1.36): its messages, generated from `proto/` by
//! `tests/protocols`. The client that calls a runtime with them is the kubelet's.

#[rustfmt::skip]
#[path = "runtime.v1.rs"]
pub mod v1;
