//! Admission webhooks: external programs that can change or refuse a write.
//!
//! ```text
//!   configurations ──► hooks ──► which of them want this request? ──► review ──► call ──► verdict
//!   (the caches)      hooks.rs   rules.rs, conditions               review.rs  call.rs
//! ```
//!
//! Mutating hooks are called one after the other and see what those before them changed; validating
//! hooks are called all at once. Start reading at [`mutating`].

mod call;
pub mod conversion;
mod hooks;
pub mod mutating;
mod review;
pub mod rules;
pub mod validating;
