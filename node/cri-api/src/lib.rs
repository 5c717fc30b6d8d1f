//! The container runtime interface (`runtime.v1`, of Kubernetes v1.36): its messages, generated from `proto/` by
//! `tests/protocols`. The client that uses them is part of the kubelet.

#[rustfmt::skip]
#[path = "runtime.v1.rs"]
pub mod v1;
