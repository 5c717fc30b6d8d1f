//! What black-box tests need besides a server: programs that the server calls.

pub mod webhook_server;
