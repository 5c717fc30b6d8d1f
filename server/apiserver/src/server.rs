//! The listener: TLS, HTTP/1.1 and HTTP/2, a graceful stop.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ferry_auth::authenticate::ClientCertificates;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::api::Api;
use crate::filters::{self, Connection};
use crate::gathered::Gathered;
use crate::unheard::{self, Heard};

/// A client that does not finish its handshake, or its headers, in this time is not waited for.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Open requests get this long to finish when the server stops.
const DRAIN: Duration = Duration::from_secs(5);
/// No client needs more; whoever sends more is told so, with 431.
pub const MAX_HEADERS: usize = 256;
/// Half of what upstream takes. Beyond this the protocol itself refuses, and nothing is known of the request.
const MAX_HEADER_BYTES: u32 = 512 * 1024;

pub async fn serve(
    api: Arc<Api>,
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    stop: CancellationToken,
) {
    let acceptor = TlsAcceptor::from(tls);
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (api, acceptor, watcher) = (api.clone(), acceptor.clone(), graceful.watcher());
                tokio::spawn(async move {
                    if let Err(error) = connection(api, acceptor, stream, peer, watcher).await {
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
    if tokio::time::timeout(DRAIN, graceful.shutdown()).await.is_err() {
        tracing::info!("some requests did not finish in time");
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn connection(
    api: Arc<Api>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    peer: SocketAddr,
    watcher: hyper_util::server::graceful::Watcher,
) -> Result<(), Failure> {
    stream.set_nodelay(true)?;
    let stream = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await??;
    let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let certificates = shown.iter().map(|certificate| certificate.clone().into_owned()).collect();
    let connection = Connection {
        peer: Some(peer),
        client_certificates: Arc::new(ClientCertificates::new(certificates)),
        identity: None,
    };
    if stream.get_ref().1.alpn_protocol() != Some(b"h2".as_slice()) {
        let (stream, progress) = Heard::new(stream);
        let (audit, heard) = (api.audit.clone(), progress.clone());
        let service = service_fn(move |request| {
            let (api, connection, heard) = (api.clone(), connection.clone(), heard.clone());
            async move {
                let response = filters::handle(api, connection, request).await;
                heard.answered();
                Ok::<_, Infallible>(response)
            }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new()).http1_only();
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HANDSHAKE).max_headers(MAX_HEADERS);
        let serving = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
        let served = watcher.watch(serving).await;
        if let (Err(error), Some(audit)) = (&served, audit)
            && let Some(refusal) = unheard::refusal(error.as_ref(), &progress)
        {
            unheard::audit(&audit, peer, refusal);
        }
        return served;
    }
    let service = service_fn(move |request| {
        let (api, connection) = (api.clone(), connection.clone());
        // On its way into a task of its own it is moved nine times, and it is 13 KB.
        Box::pin(async move { Ok::<_, Infallible>(filters::handle(api, connection, request).await) })
    });
    let mut http2 = http2::Builder::new(TokioExecutor::new());
    http2
        .timer(TokioTimer::new())
        .max_concurrent_streams(250)
        .max_header_list_size(MAX_HEADER_BYTES)
        .keep_alive_interval(Some(Duration::from_secs(30)))
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(2 << 20);
    let stream = Gathered::new(stream);
    let writer = stream.writer();
    let serving = watcher.watch(http2.serve_connection(TokioIo::new(stream), service));
    writer.drive(serving).await?;
    Ok(())
}
