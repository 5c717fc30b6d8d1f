//! TLS of the server: a replaceable serving certificate, and optional client certificates.

use std::{fmt, sync::Arc};

use parking_lot::RwLock;
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms},
    server::{
        ClientHello, ResolvesServerCert,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};
use rustls_pki_types::{CertificateDer, UnixTime};

/// The versions and ciphers of every connection that is served: rustls has none that is weak.
pub fn provider() -> CryptoProvider {
    rustls::crypto::ring::default_provider()
}

/// The serving certificate of the moment. Handshakes take whatever is current, so a renewal needs
/// no restart and disturbs no open connection.
pub struct ServingCertificate(RwLock<Arc<CertifiedKey>>);

impl ServingCertificate {
    pub fn new(key: CertifiedKey) -> Self {
        ServingCertificate(RwLock::new(Arc::new(key)))
    }

    pub fn replace(&self, key: CertifiedKey) {
        *self.0.write() = Arc::new(key);
    }

    pub fn current(&self) -> Arc<CertifiedKey> {
        self.0.read().clone()
    }
}

impl fmt::Debug for ServingCertificate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ServingCertificate")
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

/// Requests a client certificate and accepts any, or none. The authenticators verify it later, so that an unknown certificate
/// gets a 401 instead of a broken connection. The handshake still proves that the client holds the certificate's key.
#[derive(Debug)]
pub struct AnyClientCertificate {
    algorithms: WebPkiSupportedAlgorithms,
    hints: Vec<DistinguishedName>,
}

impl AnyClientCertificate {
    /// `authorities` are named to the client, so that it can choose among its certificates.
    pub fn new(authorities: &[CertificateDer<'_>]) -> Self {
        let algorithms = provider().signature_verification_algorithms;
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(authorities.iter().map(|authority| authority.clone().into_owned()));
        AnyClientCertificate { algorithms, hints: roots.subjects() }
    }
}

impl ClientCertVerifier for AnyClientCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
