//! Actions on subresources, and the kinds that are such actions themselves (Binding, the reviews).

pub mod eviction;
pub mod pod_binding;
pub mod reviews;

pub use reviews::{texts, user_info};
