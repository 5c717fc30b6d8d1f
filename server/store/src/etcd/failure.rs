//! Maps etcd's errors to the store's.

use tonic::{Code, Status};

use crate::{Error, Revision};

/// etcd tells its errors apart by their text alone; these texts are part of its API.
pub fn translate(what: &str, status: Status) -> Error {
    let message = status.message();
    let says = |text: &str| message.contains(text);
    if says("required revision has been compacted") {
        return Error::Compacted { requested: Revision(0), compacted: Revision(0), current: Revision(0) };
    }
    if says("required revision is a future revision") {
        return Error::FutureRevision { requested: Revision(0), current: Revision(0) };
    }
    if says("database space exceeded") {
        return Error::NoSpace { what: message.to_owned() };
    }
    if says("request is too large") || says("message larger than max") {
        return Error::TooLarge { size: super::TRANSACTION_LIMIT, limit: super::TRANSACTION_LIMIT };
    }
    if says("duplicate key given in txn") || says("too many operations in txn") {
        return Error::InvalidTransaction { what: message.to_owned() };
    }
    Error::unavailable(what, status)
}

/// Nothing will change by asking again.
pub fn is_final(status: &Status) -> bool {
    matches!(status.code(), Code::InvalidArgument | Code::PermissionDenied | Code::Unauthenticated)
}

impl Error {
    /// Says which revision was asked for, in errors that are about it.
    pub(super) fn asked_for(self, revision: Option<Revision>) -> Self {
        let asked = revision.unwrap_or_default();
        match self {
            Error::Compacted { compacted, current, .. } => {
                Error::Compacted { requested: asked, compacted, current }
            }
            Error::FutureRevision { current, .. } => Error::FutureRevision { requested: asked, current },
            other => other,
        }
    }
}
