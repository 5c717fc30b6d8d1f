//! The listener: TLS, HTTP/1.1 and HTTP/2, a graceful stop.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use ferry_auth::authenticate::ClientCertificates;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::Api;
use crate::filters::{self, Connection};
use crate::http2;
use crate::malformed_requests::{self, CountedStream};
use crate::slow_reader::SlowReader;
use ferry_serving::unauthenticated_connections::{
    self, UnauthenticatedConnection, UnauthenticatedConnections,
};

/// A client that does not finish its handshake, or its headers, in this time is not waited for.
pub const HANDSHAKE: Duration = Duration::from_secs(10);
/// Open requests get this long to finish when the server stops.
pub const DRAIN: Duration = Duration::from_secs(5);
/// No client needs more; whoever sends more is told so, with 431.
pub const MAX_HEADERS: usize = 256;

pub async fn serve(
    api: Arc<Api>,
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    stop: CancellationToken,
) {
    let acceptor = TlsAcceptor::from(tls);
    let connections = TaskTracker::new();
    let unauthenticated_connections = UnauthenticatedConnections::new(unauthenticated_connections::MOST);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (api, acceptor, stop) = (api.clone(), acceptor.clone(), stop.clone());
                let unauthenticated = Arc::new(unauthenticated_connections.add());
                connections.spawn(async move {
                    let served = tokio::select! {
                        served = connection(api, acceptor, stream, peer, unauthenticated.clone(), stop) => served,
                        () = unauthenticated.evicted() => Err("nobody known has spoken on it, and others come".into()),
                    };
                    if let Err(error) = served {
                        tracing::debug!(%peer, %error, "a connection ended");
                    }
                });
            }
            // Out of descriptors, most likely: others may be closed in a moment.
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    api.health.stop();
    connections.close();
    if tokio::time::timeout(DRAIN, connections.wait()).await.is_err() {
        tracing::info!("some requests did not finish in time");
    }
}

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn connection(
    api: Arc<Api>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    peer: SocketAddr,
    unauthenticated: Arc<UnauthenticatedConnection>,
    stop: CancellationToken,
) -> Result<(), Failure> {
    stream.set_nodelay(true)?;
    let stream = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await??;
    let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let certificates = shown.iter().map(|certificate| certificate.clone().into_owned()).collect();
    let connection = Connection {
        peer: Some(peer),
        client_certificates: Arc::new(ClientCertificates::new(certificates)),
        unauthenticated: Some(unauthenticated),
        ..Connection::default()
    };
    if stream.get_ref().1.alpn_protocol() != Some(b"h2".as_slice()) {
        let (stream, may_pause) = SlowReader::new(stream);
        let (stream, progress) = CountedStream::new(stream);
        let (audit, heard, may_pause) = (api.audit.clone(), progress.clone(), Arc::new(may_pause));
        let service = service_fn(move |request| {
            let (api, connection) = (api.clone(), connection.clone());
            let (heard, may_pause) = (heard.clone(), may_pause.clone());
            async move {
                let response = filters::handle(api, connection, request).await;
                heard.answered();
                may_pause.answered_with(&response);
                Ok::<_, Infallible>(response)
            }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new()).http1_only();
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HANDSHAKE).max_headers(MAX_HEADERS);
        let mut serving = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
        let served = tokio::select! {
            served = &mut serving => served,
            () = stop.cancelled() => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        if let (Err(error), Some(audit)) = (&served, audit)
            && let Some(refusal) = malformed_requests::refusal(error.as_ref(), &progress)
        {
            malformed_requests::audit(&audit, peer, refusal);
        }
        return served;
    }
    let handle = move |request| filters::handle(api.clone(), connection.clone(), request);
    http2::serve(stream, handle, stop).await
}
