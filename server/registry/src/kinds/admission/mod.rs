//! The kinds that say what admission asks of others.

pub mod initializer_configuration;
pub mod mutating_admission_policy;
pub mod policy_binding;
mod policy_parts;
pub mod rule;
pub mod validating_admission_policy;
pub mod webhook_configuration;
