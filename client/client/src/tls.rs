//! TLS towards a server: whom to trust, and which certificate to show. Components, the API server where it is a client,
//! and kubectl read their PEM files and make their configurations here.

use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::{ClientConfig, ConfigBuilder, InconsistentKeys, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::trusted_certificates::TrustedCertificates;
use crate::unverified_tls::AnyCertificate;

/// Whose certificates a client takes.
#[derive(Debug)]
pub enum Trust {
    /// Servers with one of these, or with one that they signed.
    Certificates(TrustedCertificates),
    /// What the system trusts.
    System,
    /// Everybody who has the key of the certificate that they show.
    Anybody,
}

/// In Go's words, which users of upstream's programs know.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("unable to load root certificates: unable to parse bytes as PEM block")]
    NoAuthority,
    #[error("unable to load root certificates: {0}")]
    Authorities(String),
    #[error("tls: failed to find any PEM data in certificate input")]
    NoCertificate,
    #[error("tls: failed to find any PEM data in key input")]
    NoKey,
    #[error("tls: private key does not match public key")]
    OtherKey,
    #[error("tls: {0}")]
    Refused(rustls::Error),
}

/// A configuration that lacks the client's own certificate.
pub fn trusting(trust: Trust) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Refused)?;
    Ok(match trust {
        Trust::Certificates(trusted) => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(trusted))
        }
        Trust::System => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            builder.with_root_certificates(roots)
        }
        Trust::Anybody => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate::default()))
        }
    })
}

/// The same for a client that shows this certificate.
pub fn showing(trust: Trust, certificate: &[u8], key: &[u8]) -> Result<ClientConfig, TlsError> {
    let (chain, key) = chain_and_key(certificate, key)?;
    trusting(trust)?.with_client_auth_cert(chain, key).map_err(|error| match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => TlsError::OtherKey,
        other => TlsError::Refused(other),
    })
}

/// A certificate with those that vouch for it, and its key, from PEM.
pub fn chain_and_key(
    certificate: &[u8],
    key: &[u8],
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.ok().filter(|chain| !chain.is_empty()).ok_or(TlsError::NoCertificate)?;
    Ok((chain, PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsError::NoKey)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (String, String) {
        let made =
            rcgen::generate_simple_self_signed(vec!["host.example".to_owned()]).expect("a certificate");
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn refusals_name_the_file_that_is_wrong() {
        let (certificate, key) = pair();
        let (_, other_key) = pair();
        let refusal = |authority: &str, certificate: &str, key: &str| {
            let config = TrustedCertificates::bundle(authority.as_bytes()).and_then(|trusted| {
                showing(Trust::Certificates(trusted), certificate.as_bytes(), key.as_bytes())
            });
            config.err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(refusal(&certificate, &certificate, &key), "");
        assert!(refusal("", &certificate, &key).ends_with("unable to parse bytes as PEM block"));
        assert!(refusal(&key, &certificate, &key).ends_with("unable to parse bytes as PEM block"));
        assert!(refusal(&certificate, "x", &key).ends_with("in certificate input"));
        assert!(refusal(&certificate, &certificate, "").ends_with("in key input"));
        assert_eq!(
            refusal(&certificate, &certificate, &other_key),
            "tls: private key does not match public key"
        );
    }
}
