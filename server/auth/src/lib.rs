//! ferry-auth
