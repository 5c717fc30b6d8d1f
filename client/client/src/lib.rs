//! ferry-client
