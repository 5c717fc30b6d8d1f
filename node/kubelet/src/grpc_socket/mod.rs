//! Services that the kubelet serves on sockets of its own machine.

mod authority;

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::time::Duration;

use ferry_client::CancellationToken;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use authority::AuthorityFix;

/// A socket at a path, in the place of one that an ended process left.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => UnixListener::bind(path),
    }
}

/// Serves a gRPC service until stopped, when calls that are not answered are dropped and the socket is removed.
pub async fn serve<S>(listener: UnixListener, service: S, stop: CancellationToken)
where
    S: tower::Service<
            http::Request<Incoming>,
            Response = http::Response<tonic::body::Body>,
            Error = Infallible,
        > + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(converse(stream, service.clone()));
                }
                Err(error) => {
                    // No descriptor is left, as a rule; one that is closed helps.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
    if let Ok(address) = listener.local_addr()
        && let Some(path) = address.as_pathname()
        && let Err(error) = std::fs::remove_file(path)
    {
        tracing::debug!(path = %path.display(), %error, "socket not removed");
    }
    connections.shutdown().await;
}

async fn converse<S>(stream: UnixStream, service: S)
where
    S: tower::Service<
            http::Request<Incoming>,
            Response = http::Response<tonic::body::Body>,
            Error = Infallible,
        > + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
{
    let io = TokioIo::new(AuthorityFix::new(stream));
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new());
    if let Err(error) = builder.serve_connection(io, TowerToHyperService::new(service)).await {
        tracing::debug!(%error, "a connection ended");
    }
}
