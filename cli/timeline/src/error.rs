//! What can go wrong between asking and showing.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "name an object or a selection: deployment/NAME, pod/NAME, --last, --id TRACE, --revision N, --user NAME, or -- COMMAND"
    )]
    NothingAsked,
    #[error("nothing is recorded about {0}: it may be older than what the server keeps, or misspelt")]
    NothingRecorded(String),
    #[error("cannot reach the cluster")]
    Connect(#[from] ferry_client::ConnectError),
    /// In the server's own words.
    #[error("{0}")]
    Refused(String),
    #[error("cannot ask for the trace")]
    Ask(#[source] kube::Error),
    #[error("this server keeps no trace (it has no /ferry/v1/trace)")]
    NotKept,
    #[error("cannot make the request")]
    Request(#[from] http::Error),
    #[error("cannot read the trace")]
    Read(#[from] serde_json::Error),
    #[error("cannot follow the trace")]
    Follow(#[source] io::Error),
    #[error("cannot read node {0}: {1}")]
    Node(String, String),
    #[error("cannot read pod {0}: {1}")]
    Pod(String, String),
    #[error("cannot run {}", program.display())]
    Run { program: PathBuf, source: io::Error },
    #[error("cannot print")]
    Print(#[source] io::Error),
    #[error("cannot send to {url}: {problem}")]
    Collector { url: String, problem: String },
}
