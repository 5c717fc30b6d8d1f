//! ferry-store
