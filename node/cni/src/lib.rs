//! ferry-cni
