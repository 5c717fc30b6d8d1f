//! Admission by expression: policies say what must hold of a request, or what is made of it; bindings say where and
//! with which parameters, and what happens when it does not hold.
//!
//! Start reading at [`validating`] or [`mutating`].

mod evaluation;
mod invocations;
pub mod mutating;
mod params;
mod policies;
pub mod validating;
