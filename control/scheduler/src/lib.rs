//! ferry-scheduler
