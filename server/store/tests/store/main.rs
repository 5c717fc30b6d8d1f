//! The laws over every engine (`store_contract`), and what each engine promises beyond them.

mod contract;
mod crash;
mod damage;
mod embedded;
mod encryption;
mod etcd;
mod etcd_server;
mod faults;
mod faulty;
mod full_disk;
mod large;
mod linearizable;
mod model;
mod snapshot;
mod store_contract;
mod transactions;
