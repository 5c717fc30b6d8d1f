//! ferry-testkit
