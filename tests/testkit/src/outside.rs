//! A client outside of the process that says what no well-behaved client would: bytes over TLS.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// No answer is waited for any longer.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Outside {
    address: SocketAddr,
    tls: Arc<rustls::ClientConfig>,
}

/// Code, head and body; code 0 when the server closed the connection without an answer.
#[derive(Debug)]
pub struct Said {
    pub code: u16,
    /// The status line and the headers, as they came.
    pub head: String,
    pub body: String,
}

impl Said {
    /// A header of the answer, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Outside {
    /// Believes `ca_pem`, and shows `certificate` (chain and key, in PEM) where there is one.
    pub fn new(address: SocketAddr, ca_pem: &str, certificate: Option<(&str, &str)>) -> Outside {
        let mut roots = rustls::RootCertStore::empty();
        let authorities = CertificateDer::pem_slice_iter(ca_pem.as_bytes()).map(|one| one.expect("PEM"));
        roots.add_parsable_certificates(authorities);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("known protocols")
            .with_root_certificates(roots);
        let tls = match certificate {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).map(|one| one.expect("PEM"));
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
                builder.with_client_auth_cert(chain.collect(), key).expect("a pair")
            }
        };
        Outside { address, tls: Arc::new(tls) }
    }

    pub async fn connect(&self) -> TlsStream<TcpStream> {
        self.connect_with(self.tls.clone()).await
    }

    /// A connection that speaks HTTP/2.
    pub async fn connect_http2(&self) -> TlsStream<TcpStream> {
        let mut tls = (*self.tls).clone();
        tls.alpn_protocols = vec![b"h2".to_vec()];
        self.connect_with(Arc::new(tls)).await
    }

    async fn connect_with(&self, tls: Arc<rustls::ClientConfig>) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(self.address).await.expect("the server listens");
        let name = ServerName::from(self.address.ip());
        TlsConnector::from(tls).connect(name, stream).await.expect("the server's own certificate")
    }

    /// Sends these bytes as they are, and reads until the server closes.
    pub async fn send(&self, request: &[u8]) -> Said {
        let mut stream = self.connect().await;
        // The server may refuse, and close, before it has read everything.
        let _ = stream.write_all(request).await;
        let _ = stream.flush().await;
        read(&mut stream).await
    }

    /// A request of one connection: `GET /path`, with headers `name: value`.
    pub async fn ask(&self, line: &str, headers: &[String], body: &str) -> Said {
        let mut request = format!("{line} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n", self.address);
        for header in headers {
            request.push_str(header);
            request.push_str("\r\n");
        }
        if !body.is_empty() {
            request
                .push_str(&format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()));
        }
        self.send(format!("{request}\r\n{body}").as_bytes()).await
    }
}

pub async fn read(stream: &mut TlsStream<TcpStream>) -> Said {
    let mut bytes = Vec::new();
    let read = async {
        let mut part = [0; 16 * 1024];
        // An end without a farewell is an end.
        while let Ok(count @ 1..) = stream.read(&mut part).await {
            bytes.extend_from_slice(&part[..count]);
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("the server answers or closes");
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    let body = if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        unchunk(body)
    } else {
        body.into()
    };
    Said { code, head: head.to_owned(), body }
}

fn unchunk(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        if size == 0 || rest.len() < size {
            break;
        }
        whole.push_str(&rest[..size]);
        body = rest[size..].trim_start_matches("\r\n");
    }
    whole
}
