//! The Common Expression Language with Kubernetes' function libraries, cost limits and error messages, on top of the
//! `cel` crate.
//!
//! An [`Environment`] declares variables and compiles an expression once; the [`Program`] is evaluated over JSON objects
//! any number of times. Match conditions of webhooks, admission policies and the validation rules of custom resources
//! differ only in their declarations.
//!
//! This crate is pure: it reads no cluster state and never waits. Evaluation stops at a call of the authorizer; the caller
//! obtains the decision and evaluates again (see [`access`]).
//!
//! Start reading at [`environment`], then [`program`]; `library/` has a file per library.

pub mod access;
pub mod admission;
mod arguments;
mod check;
mod cost;
pub mod device;
pub mod environment;
mod library;
pub mod literals;
mod nesting;
mod overloads;
pub mod program;
pub mod schema;
pub mod types;
mod values;

pub use access::{Access, AccessReviews, Question};
pub use cost::{Budget, PER_CALL_LIMIT};
pub use environment::{CompileError, Environment};
pub use program::{Bindings, Failure, Outcome, Program};
pub use types::Type;
