use std::io;

use ferry_kubelet::cri;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// With what to do about it.
    #[error("{0}")]
    NotInstalled(String),
    #[error("no container runtime answers at {endpoint}")]
    NoAnswer { endpoint: String, source: cri::Error },
    #[error("containerd does not answer; its log is {log}")]
    NotStarted { log: String, source: Box<Error> },
    #[error("{attempt}")]
    System { attempt: String, source: io::Error },
    #[error("understand {what}")]
    Malformed { what: String, source: serde_json::Error },
}

impl Error {
    pub(crate) fn system<E: Into<io::Error>>(attempt: impl Into<String>) -> impl FnOnce(E) -> Error {
        let attempt = attempt.into();
        move |error| Error::System { attempt, source: error.into() }
    }
}
