//! ferry-registry
