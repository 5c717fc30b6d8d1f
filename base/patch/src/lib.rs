//! Patches: JSON patch, merge patch, strategic merge patch, and server-side apply with field ownership.
//!
//! All functions are pure, over JSON values and the field rows of `ferry-api`. This crate knows no HTTP, storage, defaults
//! or validation: it returns a [`PatchError`] or conflicts, and the caller converts them to a `Status`. A failed patch
//! leaves the value partly changed; callers patch a copy.
//!
//! Start reading at [`strategic`] for the patches of `kubectl patch` and `kubectl apply`, and at [`managed_fields`] for
//! server-side apply.

pub mod error;
mod go_words;
pub mod json_patch;
pub mod managed_fields;
pub mod merge;
pub mod strategic;

pub use error::PatchError;
