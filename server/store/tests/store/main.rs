//! The laws over every engine (`store_contract`), and what each engine promises beyond them.

mod contract;
mod embedded;
mod etcd;
mod etcd_server;
mod model;
mod store_contract;
