//! ferry-linux
