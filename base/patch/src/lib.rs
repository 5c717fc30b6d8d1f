//! ferry-patch
