//! The error of a controller: the attempted operation, and the server's response.

use std::fmt;

/// A request that failed, and what it was for.
#[derive(Debug)]
pub struct Error {
    attempt: String,
    source: Box<kube::Error>,
}

impl Error {
    pub fn new(attempt: impl Into<String>, source: kube::Error) -> Self {
        Error { attempt: attempt.into(), source: Box::new(source) }
    }

    pub fn kube(&self) -> &kube::Error {
        &self.source
    }

    /// Someone wrote the object in between; the informer is about to tell. Nothing is wrong.
    pub fn is_conflict(&self) -> bool {
        is_conflict(&self.source)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.attempt, message(&self.source))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}

/// Says what a request was for: `pods.create(…).await.attempting("create pod")?`.
pub trait Attempt<T> {
    fn attempting(self, attempt: impl Into<String>) -> Result<T, Error>;
}

impl<T> Attempt<T> for Result<T, kube::Error> {
    fn attempting(self, attempt: impl Into<String>) -> Result<T, Error> {
        self.map_err(|source| Error::new(attempt, source))
    }
}

/// What the server said, in its own words, or what kept us from asking it.
pub fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_not_found())
}

/// The answer was not what its type says. The client takes an event that it cannot read for a status that
/// says nothing.
pub fn is_unreadable(error: &kube::Error) -> bool {
    match error {
        kube::Error::SerdeError(_) => true,
        kube::Error::Api(status) => status.code == 0 && status.message.is_empty() && status.reason.is_empty(),
        _ => false,
    }
}

pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_conflict())
}

pub fn is_already_exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_already_exists())
}

/// The namespace is going away, so no retry of a creation in it can ever succeed.
pub fn is_namespace_terminating(error: &kube::Error) -> bool {
    let causes = |status: &kube::core::Status| {
        status
            .details
            .as_ref()
            .is_some_and(|details| details.causes.iter().any(|c| c.reason == "NamespaceTerminating"))
    };
    matches!(error, kube::Error::Api(status) if status.is_forbidden() && causes(status))
}

/// The revision asked for is no longer kept: only a new list helps.
pub fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if is_gone_status(status))
}

pub fn is_gone_status(status: &kube::core::Status) -> bool {
    status.code == 410 || status.reason == "Expired" || status.reason == "Gone"
}

/// For what changes nothing when it is already so: deleting what is gone.
pub fn ignore_not_found<T>(result: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// For writing what was decided on an object as the informer has it: if it is gone or has changed since, its
/// event is on its way and brings another turn, so there is nothing to try again.
pub fn unless_superseded<T>(result: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
