//! Admission policies in CEL: policies contain the validations or mutations, bindings select the requests, the parameters
//! and the actions on failure.
//!
//! Start reading at [`validating`] or [`mutating`].

mod evaluation;
mod invocations;
pub mod mutating;
mod params;
mod policies;
pub mod validating;
