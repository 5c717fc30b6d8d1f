//! Bytes to the server's port as they are, and whatever comes back: for requests that no client would send.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::TestServer;

/// No answer is waited for longer than this.
const PATIENCE: Duration = Duration::from_secs(20);

/// The administrator's TLS connections to one server.
pub struct Raw {
    connector: TlsConnector,
    address: std::net::SocketAddr,
}

impl Raw {
    pub fn new(server: &TestServer) -> Raw {
        let kubeconfig = std::fs::read_to_string(server.kubeconfig()).expect("the server wrote it");
        let data = |field: &str| {
            let line = kubeconfig.lines().find_map(|line| line.trim().strip_prefix(field));
            let text = line.unwrap_or_else(|| panic!("no {field}")).trim().trim_matches('"');
            BASE64_STANDARD.decode(text).expect("base64")
        };
        let authority = data("certificate-authority-data:");
        let certificate = data("client-certificate-data:");
        let key = data("client-key-data:");
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&authority) {
            roots.add(certificate.expect("PEM")).expect("a certificate");
        }
        let chain = CertificateDer::pem_slice_iter(&certificate).collect::<Result<_, _>>().expect("PEM");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("TLS versions")
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(&key).expect("PEM"))
            .expect("a pair");
        Raw { connector: TlsConnector::from(Arc::new(config)), address: server.running().address }
    }

    /// Sends `bytes`, says that nothing follows, and reads until the server has no more to say.
    pub async fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
        let exchange = async {
            let stream = TcpStream::connect(self.address).await.expect("the server listens");
            let name = ServerName::from(self.address.ip());
            let mut stream = self.connector.connect(name, stream).await.expect("a handshake");
            // A server that has heard enough may hang up before the end.
            let _ = stream.write_all(bytes).await;
            let _ = stream.shutdown().await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            answer
        };
        tokio::time::timeout(PATIENCE, exchange).await.expect("the server answers or hangs up")
    }
}
