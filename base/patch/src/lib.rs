//! How a request changes an object: JSON patch, merge patch, strategic merge patch, and server-side
//! apply with the record of who manages which field.
//!
//! Everything here is a pure function over JSON values and the field rows of `ferry-api`. This room
//! knows no HTTP, no storage, no defaults and no validation: it answers with a [`PatchError`] or with
//! conflicts, and the caller turns those into a `Status`. A value whose patch failed halfway is not
//! restored; callers patch a copy.
//!
//! Start reading at [`strategic`] for what `kubectl patch` and `kubectl apply` send, and at
//! [`managed_fields`] for server-side apply.

pub mod error;
mod go_words;
pub mod json_patch;
pub mod managed_fields;
pub mod merge;
pub mod strategic;

pub use error::PatchError;
