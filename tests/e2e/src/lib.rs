//! Support for black-box tests: the program under test, programs that the server calls, and its audit log.

pub mod audited;
pub mod binary;
pub mod responder;
pub mod webdriver;
pub mod webhook_server;
