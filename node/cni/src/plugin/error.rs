//! Errors of a plugin call, with the numbers of the CNI specification.

use std::io::Write;

use super::Version;

/// Codes below 100 are the specification's; ours start there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    IncompatibleVersion = 1,
    UnsupportedField = 2,
    UnknownContainer = 3,
    InvalidEnvironment = 4,
    Io = 5,
    Decode = 6,
    InvalidConfig = 7,
    TryAgainLater = 11,
    NotAvailable = 50,
    Kernel = 100,
    RangeExhausted = 101,
    Conflict = 102,
    NotAsExpected = 103,
}

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    pub code: u32,
    pub message: String,
    pub details: String,
}

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code: code as u32, message: message.into(), details: String::new() }
    }

    /// Says it on standard output, where the runtime reads errors too, and returns the exit code.
    pub fn write(&self, version: Version, output: &mut dyn Write) -> u8 {
        let mut answer = serde_json::json!({
            "cniVersion": version.to_string(),
            "code": self.code,
            "msg": self.message,
        });
        if !self.details.is_empty() {
            answer["details"] = self.details.clone().into();
        }
        // When standard output is gone the exit code is all that can be said.
        let _ = write!(output, "{answer}");
        1
    }
}

impl From<ferry_linux::net::Error> for Error {
    fn from(error: ferry_linux::net::Error) -> Self {
        Self::new(Code::Kernel, error.to_string())
    }
}

impl From<ferry_linux::net::ToolError> for Error {
    fn from(error: ferry_linux::net::ToolError) -> Self {
        Self::new(Code::Kernel, error.to_string())
    }
}

/// An I/O error with the file it was about.
pub(super) fn io(attempt: &str, path: &std::path::Path, error: &std::io::Error) -> Error {
    Error::new(Code::Io, format!("{attempt} {}: {error}", path.display()))
}
