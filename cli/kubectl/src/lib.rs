//! ferry-kubectl
