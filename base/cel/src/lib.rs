//! ferry-cel
