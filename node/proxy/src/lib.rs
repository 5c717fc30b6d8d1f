//! ferry-proxy
