//! Images: pulled for containers, made by Ferry itself, imported, collected.

pub mod containerd;
pub mod credentials;
pub mod distribution;
pub mod mirror;
pub mod oci;
pub mod pause;
pub mod pull;
pub mod records;
