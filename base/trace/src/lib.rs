//! ferry-trace
