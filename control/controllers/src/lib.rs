//! ferry-controllers
