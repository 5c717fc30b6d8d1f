//! The Common Expression Language as Kubernetes speaks it: its function libraries, its limits, and its
//! words for what is wrong, on the `cel` crate.
//!
//! An [`Environment`] declares variables and compiles an expression once; the [`Program`] is evaluated
//! over JSON objects as often as needed. Match conditions of webhooks, admission policies and the
//! validation rules of custom resources differ only in what they declare.
//!
//! This room is pure: it reads no cluster and waits for nothing. An expression that asks the authorizer
//! stops at the question; whoever evaluates finds out the answer and evaluates again (see [`access`]).
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
