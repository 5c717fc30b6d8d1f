//! The certificates of a caBundle as Go's clients trust them: authorities, and also a server's own certificate.
//!
//! webpki takes a certificate for trusted only if an authority signed it. Go takes one that is in the bundle itself as
//! well, which programs rely on: envtest gives API servers the webhook server's own certificate as its caBundle.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::tls::TlsError;

#[derive(Debug)]
pub struct TrustedCertificates {
    certificates: Vec<CertificateDer<'static>>,
    authorities: Arc<WebPkiServerVerifier>,
}

impl TrustedCertificates {
    /// Those of a bundle in PEM. What follows one that cannot be read does not count.
    pub fn bundle(pem: &[u8]) -> Result<TrustedCertificates, TlsError> {
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem).map_while(Result::ok).collect();
        if certificates.is_empty() {
            return Err(TlsError::NoAuthority);
        }
        TrustedCertificates::new(certificates)
    }

    /// Fails where none of them can be read.
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Result<TrustedCertificates, TlsError> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates.iter().cloned());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let authorities = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| TlsError::Authorities(error.to_string()))?;
        Ok(TrustedCertificates { certificates, authorities })
    }
}

impl ServerCertVerifier for TrustedCertificates {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if !self.certificates.iter().any(|trusted| trusted == end_entity) {
            return self.authorities.verify_server_cert(
                end_entity,
                intermediates,
                server_name,
                ocsp_response,
                now,
            );
        }
        check_validity(end_entity, now)?;
        rustls::client::verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}

fn check_validity(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now < parsed.validity().not_before.timestamp() {
        return Err(CertificateError::NotValidYet.into());
    }
    if now > parsed.validity().not_after.timestamp() {
        return Err(CertificateError::Expired.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn certificates() -> (CertificateDer<'static>, CertificateDer<'static>) {
        let authority_key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("parameters");
        params.distinguished_name.push(rcgen::DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&authority_key).expect("an authority");
        let issuer = Issuer::new(params, authority_key);
        let mut params = CertificateParams::new(vec!["hooks.example".to_string()]).expect("parameters");
        params.distinguished_name.push(rcgen::DnType::CommonName, "hooks");
        params.not_after = rcgen::date_time_ymd(2030, 1, 1);
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let leaf = params.signed_by(&key, &issuer).expect("a certificate");
        (authority.der().clone(), leaf.der().clone())
    }

    fn check(
        trusted: &CertificateDer<'static>,
        shown: &CertificateDer<'static>,
        name: &str,
        now: u64,
    ) -> bool {
        let trusted = TrustedCertificates::new(vec![trusted.clone()]).expect("certificates");
        let name = ServerName::try_from(name.to_string()).expect("a name");
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        trusted.verify_server_cert(shown, &[], &name, &[], now).is_ok()
    }

    #[test]
    fn a_bundle_holds_authorities_or_the_servers_own_certificate() {
        let (authority, leaf) = certificates();
        assert!(check(&authority, &leaf, "hooks.example", NOW), "signed by the authority");
        assert!(check(&leaf, &leaf, "hooks.example", NOW), "the certificate itself");
        assert!(!check(&leaf, &leaf, "other.example", NOW), "for another name");
        assert!(!check(&leaf, &leaf, "hooks.example", 1_000_000_000), "not valid yet");
        assert!(!check(&leaf, &leaf, "hooks.example", 2_000_000_000), "expired");
        let (_, strange) = certificates();
        assert!(!check(&leaf, &strange, "hooks.example", NOW), "another certificate");
    }
}
