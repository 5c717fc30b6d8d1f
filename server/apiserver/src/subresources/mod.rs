//! Actions: subresources, and kinds that are never stored (Binding, the reviews).

pub mod eviction;
pub mod pod_binding;
pub mod reviews;

pub use reviews::{texts, user_info};
