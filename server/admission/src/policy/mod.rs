//! Admission by expression: policies say what must hold of a request, bindings say where and with which
//! parameters, and what happens when it does not.
//!
//! Start reading at [`validating`].

mod params;
mod policies;
pub mod validating;
