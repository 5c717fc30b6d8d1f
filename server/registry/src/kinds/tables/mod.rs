//! What `kubectl get` shows of each kind, in upstream's columns and words. Kinds of one group of the API
//! stand together; cells that need more than a path are small functions beside them.

pub mod cluster;
pub mod network;
pub mod pods;
pub mod storage;
pub mod workloads;
