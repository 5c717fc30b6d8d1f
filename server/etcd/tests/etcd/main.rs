//! A served store as clients of etcd see it: through the stubs of its published API, and through the laws that every engine of
//! `ferry-store` keeps.

mod api;
mod client;
#[path = "../../../store/tests/store/contract.rs"]
mod contract;
mod hostile;
mod leases;
mod nested;
mod server;
mod store_contract;
mod watches;
