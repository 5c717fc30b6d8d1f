//! The kinds that say what admission asks of others.

pub mod initializer_configuration;
pub mod rule;
pub mod validating_admission_policy;
pub mod webhook_configuration;
