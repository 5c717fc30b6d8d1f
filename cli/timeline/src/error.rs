//! What can go wrong between asking and showing.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "name what to follow: deployment/NAME, pod/NAME, --last, --id TRACE, --revision N, --user NAME, or -- COMMAND"
    )]
    NothingAsked,
    #[error("nothing is recorded about {0}: it may be older than what the server keeps, or misspelt")]
    NothingRecorded(String),
    #[error("reach the cluster: {0}")]
    Connect(#[from] ferry_client::ConnectError),
    #[error("request the trace: {0}")]
    Ask(#[source] kube::Error),
    #[error("read the trace: this server has no /ferry/v1/trace")]
    NotKept,
    #[error("make the request: {0}")]
    Request(#[from] http::Error),
    #[error("read the trace: {0}")]
    Read(#[from] serde_json::Error),
    #[error("follow the trace: {0}")]
    Follow(#[source] io::Error),
    #[error("read node {0}: {1}")]
    Node(String, #[source] kube::Error),
    #[error("read pod {0}: {1}")]
    Pod(String, #[source] kube::Error),
    #[error("run {}: {source}", program.display())]
    Run { program: PathBuf, source: io::Error },
    #[error("print: {0}")]
    Print(#[source] io::Error),
    #[error("send to {url}: {problem}")]
    Collector { url: String, problem: String },
}
