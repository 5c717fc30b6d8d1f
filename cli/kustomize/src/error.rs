//! What is wrong with a kustomization, as a sentence.

use std::fmt::{self, Display};

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(String);

impl Error {
    pub fn new(message: impl Into<String>) -> Error {
        Error(message.into())
    }

    /// Says first what was attempted.
    pub fn within(self, context: impl Display) -> Error {
        Error(format!("{context}: {}", self.0))
    }

    /// The text is no YAML, so that the path is a file and not a directory.
    pub fn is_malformed(&self) -> bool {
        self.0.contains("MalformedYAMLError")
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// `?` with the words for what was attempted.
pub trait Within<T> {
    fn within(self, context: impl Display) -> Result<T>;
}

impl<T> Within<T> for Result<T> {
    fn within(self, context: impl Display) -> Result<T> {
        self.map_err(|error| error.within(context))
    }
}
