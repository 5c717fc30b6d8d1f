//! The kinds that say what admission asks of others.

pub mod rule;
pub mod webhook_configuration;
