pub mod apiserver;
pub mod snapshot;
