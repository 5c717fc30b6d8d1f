//! Structural schemas of custom resources, as `apiextensions.k8s.io/v1` defines them: which schemas a
//! definition may bring ([`check`]), what a request's object loses and gains by them ([`prune`],
//! [`default`]), what is wrong with it ([`validate`], [`rules`]) and what OpenAPI tells of it ([`publish`]).
//!
//! This room works on JSON values. It knows no HTTP, no store and no registry; who keeps a schema for how
//! long is the caller's choice.
//!
//! Start reading at [`structural`].

pub mod check;
mod decl;
pub mod default;
mod embedded;
mod field_path;
mod format;
mod path;
mod pattern;
pub mod prune;
pub mod publish;
pub mod rules;
pub mod structural;
pub mod validate;
mod words;

pub use rules::Rules;
pub use structural::Structural;
