//! What black-box tests need besides a server: the program under test, and programs that the server calls.

pub mod binary;
pub mod responder;
pub mod webhook_server;
