//! Asking the runtime's streaming server to turn a request into a connection.

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the runtime's streaming address {0:?} is not usable")]
    Address(String),
    #[error("connecting to the runtime's streaming server: {0}")]
    Connect(#[source] std::io::Error),
    #[error("asking the runtime to stream: {0}")]
    Exchange(#[from] hyper::Error),
    #[error("the runtime refused to stream: {status}: {message}")]
    Refused { status: http::StatusCode, message: String },
}

/// A connection to the runtime, and the stream protocol it chose.
pub struct Connection {
    pub stream: TokioIo<Upgraded>,
    pub protocol: Option<String>,
}

/// Upgrades to SPDY/3.1, offering the stream protocols in order.
pub async fn connect(url: &str, protocols: &[&str]) -> Result<Connection, Error> {
    let bad = || Error::Address(url.to_string());
    let uri: http::Uri = url.parse().map_err(|_| bad())?;
    let host = uri.host().ok_or_else(bad)?;
    let port = uri.port_u16().unwrap_or(80);
    let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await.map_err(Error::Connect)?;
    // a keystroke at a time: waiting to fill a packet would be felt
    stream.set_nodelay(true).map_err(Error::Connect)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "runtime streaming connection ended");
        }
    });
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = http::Request::post(path)
        .header("Host", uri.authority().map_or(host, |authority| authority.as_str()))
        .header("Connection", "Upgrade")
        .header("Upgrade", "SPDY/3.1")
        .header("Content-Length", "0");
    for protocol in protocols {
        request = request.header("X-Stream-Protocol-Version", *protocol);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|_| bad())?;
    let answer = sender.send_request(request).await?;
    if answer.status() != http::StatusCode::SWITCHING_PROTOCOLS {
        let status = answer.status();
        let body = Limited::new(answer.into_body(), 4096).collect().await;
        let message = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).trim().to_string());
        return Err(Error::Refused { status, message: message.unwrap_or_else(|_| String::new()) });
    }
    let protocol = answer.headers().get("x-stream-protocol-version").and_then(|value| value.to_str().ok());
    let protocol = protocol.map(str::to_string);
    Ok(Connection { stream: TokioIo::new(hyper::upgrade::on(answer).await?), protocol })
}
