//! Why a patch was refused. The caller maps each variant to one HTTP status.

use std::fmt::{self, Display};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatchError {
    /// The patch is no patch of its format: 400.
    Malformed(String),
    /// The patch asks for more work than one request may: 413.
    TooLarge(String),
    /// The format does not exist for this kind: 415.
    UnsupportedMediaType,
    /// The patch is well formed but does not fit this object: 422. Upstream keeps the reason to
    /// itself here and answers [`PatchError::UNPROCESSABLE`]; the text is for the log.
    DoesNotApply(String),
    /// The object is not as the patch demands: 422 like the one before, but some take it for a word of its own.
    TestFailed(String),
    /// The patch contradicts the kind's fields or itself, which upstream answers with 500 and this
    /// text.
    Contradicts(String),
    /// What the patch made is no object of the kind: 422, with the patch as the value that is wrong.
    DoesNotRestore { patch: String, why: String },
}

impl PatchError {
    /// What clients read for a patch that does not apply.
    pub const UNPROCESSABLE: &str = "the server rejected our request due to an error in our request";

    pub(crate) fn malformed(why: impl Into<String>) -> PatchError {
        PatchError::Malformed(why.into())
    }

    pub(crate) fn does_not_apply(why: impl Into<String>) -> PatchError {
        PatchError::DoesNotApply(why.into())
    }

    pub(crate) fn contradicts(why: impl Into<String>) -> PatchError {
        PatchError::Contradicts(why.into())
    }
}

impl Display for PatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PatchError::Malformed(why)
            | PatchError::TooLarge(why)
            | PatchError::DoesNotApply(why)
            | PatchError::TestFailed(why)
            | PatchError::Contradicts(why)
            | PatchError::DoesNotRestore { why, .. } => f.write_str(why),
            PatchError::UnsupportedMediaType => f.write_str("strategic merge patch format is not supported"),
        }
    }
}

impl std::error::Error for PatchError {}
