//! ferry-admission
