//! TLS towards the API server, set up only when a connection needs it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ferry_client::tls::{self, TlsError, Trust};
use ferry_client::trusted_certificates::TrustedCertificates;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::error::{Error, Result};

/// A connection, encrypted or not.
pub enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// The connection itself, for its settings.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(stream) => stream,
            Stream::Tls(stream) => stream.get_ref().0,
        }
    }
}

pub fn connector(authority: &[u8], insecure: bool, certificate: &[u8], key: &[u8]) -> Result<TlsConnector> {
    let failed = |error: TlsError| Error::message(error.to_string());
    let trust = match authority {
        _ if insecure => Trust::Anybody,
        [] => Trust::System,
        pem => Trust::Certificates(TrustedCertificates::bundle(pem).map_err(failed)?),
    };
    let config = match certificate {
        [] => tls::trusting(trust).map_err(failed)?.with_no_client_auth(),
        certificate => tls::showing(trust, certificate, key).map_err(failed)?,
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

pub async fn handshake(connector: TlsConnector, name: &str, stream: TcpStream) -> io::Result<Stream> {
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    Ok(Stream::Tls(Box::new(connector.connect(name, stream).await?)))
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, data),
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, data),
        }
    }
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
