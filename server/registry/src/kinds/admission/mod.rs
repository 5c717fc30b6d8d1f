//! The kinds that say what admission asks of others.

pub mod initializer_configuration;
pub mod rule;
pub mod webhook_configuration;
