//! Turning an approved request into a certificate.

use std::time::Duration;

use ferry_api::certificate_request::CertificateRequest;
use ferry_api::private_key;
use rcgen::{
    CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::config::SigningCa;

/// Certificates begin a little in the past: clocks differ.
const BACKDATE: Duration = Duration::from_secs(5 * 60);
const SHORTEST: Duration = Duration::from_secs(10 * 60);

/// How long the certificate lasts: what was asked for, within what is allowed.
pub fn lifetime(asked_seconds: Option<i32>, longest: Duration) -> Duration {
    let asked = asked_seconds.map(|seconds| Duration::from_secs(seconds.max(0) as u64));
    asked.map_or(longest, |asked| asked.clamp(SHORTEST.min(longest), longest))
}

/// Signs a request for these usages; the result is PEM. The certificate holds the names that `request` was judged by;
/// only the key, and the proof that its holder asks, is read from the request's bytes.
pub fn sign(
    ca: &SigningCa,
    request: &CertificateRequest,
    usages: &[String],
    lifetime: Duration,
) -> Result<String, rcgen::Error> {
    // As the API server reads them: the first certificate of the bundle.
    let authority = CertificateDer::from_pem_slice(&ca.certificate).map_err(unreadable)?;
    let issuer = Issuer::from_ca_cert_der(&authority, key_pair(ca)?)?;
    let public_key = CertificateSigningRequestParams::from_der(&request.der.as_slice().into())?.public_key;
    let mut params = CertificateParams::default();
    params.distinguished_name = subject(request);
    params.subject_alt_names = alternative_names(request)?;
    let now = time::OffsetDateTime::now_utc();
    params.not_before = now - BACKDATE;
    params.not_after = now + lifetime;
    params.is_ca = rcgen::IsCa::ExplicitNoCa;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = usages.iter().filter_map(|usage| key_usage(usage)).collect();
    params.extended_key_usages = usages.iter().filter_map(|usage| extended_usage(usage)).collect();
    Ok(CertificateSigningRequestParams { params, public_key }.signed_by(&issuer)?.pem())
}

/// Whether requests can be signed with it: both can be read, and belong together.
pub fn check(ca: &SigningCa) -> Result<(), String> {
    let authority = CertificateDer::from_pem_slice(&ca.certificate).map_err(|error| error.to_string())?;
    let key = key_pair(ca).map_err(|error| format!("private key: {error}"))?;
    let (_, certificate) =
        x509_parser::parse_x509_certificate(&authority).map_err(|error| format!("certificate: {error}"))?;
    if certificate.public_key().raw != key.subject_public_key_info() {
        return Err("the private key is not the certificate's".to_string());
    }
    Ok(())
}

fn key_pair(ca: &SigningCa) -> Result<KeyPair, rcgen::Error> {
    let key = private_key::pkcs8(&ca.key).map_err(|error| rcgen::Error::PemError(error.to_string()))?;
    KeyPair::try_from(&key)
}

fn subject(request: &CertificateRequest) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    for organization in &request.organizations {
        name.push(DnType::OrganizationName, organization.as_str());
    }
    if !request.common_name.is_empty() {
        name.push(DnType::CommonName, request.common_name.as_str());
    }
    name
}

fn alternative_names(request: &CertificateRequest) -> Result<Vec<SanType>, rcgen::Error> {
    let mut names: Vec<SanType> = request.addresses.iter().copied().map(SanType::IpAddress).collect();
    for name in &request.dns_names {
        names.push(SanType::DnsName(name.as_str().try_into()?));
    }
    for name in &request.emails {
        names.push(SanType::Rfc822Name(name.as_str().try_into()?));
    }
    for name in &request.uris {
        names.push(SanType::URI(name.as_str().try_into()?));
    }
    Ok(names)
}

fn unreadable(error: rustls_pki_types::pem::Error) -> rcgen::Error {
    rcgen::Error::PemError(error.to_string())
}

fn key_usage(usage: &str) -> Option<KeyUsagePurpose> {
    Some(match usage {
        "signing" | "digital signature" => KeyUsagePurpose::DigitalSignature,
        "content commitment" => KeyUsagePurpose::ContentCommitment,
        "key encipherment" => KeyUsagePurpose::KeyEncipherment,
        "data encipherment" => KeyUsagePurpose::DataEncipherment,
        "key agreement" => KeyUsagePurpose::KeyAgreement,
        "encipher only" => KeyUsagePurpose::EncipherOnly,
        "decipher only" => KeyUsagePurpose::DecipherOnly,
        _ => return None,
    })
}

fn extended_usage(usage: &str) -> Option<ExtendedKeyUsagePurpose> {
    Some(match usage {
        "any" => ExtendedKeyUsagePurpose::Any,
        "server auth" => ExtendedKeyUsagePurpose::ServerAuth,
        "client auth" => ExtendedKeyUsagePurpose::ClientAuth,
        "code signing" => ExtendedKeyUsagePurpose::CodeSigning,
        "email protection" => ExtendedKeyUsagePurpose::EmailProtection,
        "timestamping" => ExtendedKeyUsagePurpose::TimeStamping,
        "ocsp signing" => ExtendedKeyUsagePurpose::OcspSigning,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, IsCa};
    use x509_parser::pem::Pem;

    use super::*;

    fn authority() -> SigningCa {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        SigningCa {
            certificate: params.self_signed(&key).unwrap().pem().into_bytes(),
            key: key.serialize_pem().into_bytes(),
        }
    }

    /// As `openssl genrsa -traditional` and `openssl ecparam -genkey` write them.
    const TRADITIONAL_KEYS: [&str; 2] =
        [include_str!("testdata/pkcs1.key"), include_str!("testdata/sec1.key")];

    #[test]
    fn keys_in_the_forms_of_openssl_sign() {
        for pem in TRADITIONAL_KEYS {
            let text = format!("# text before the key\n{pem}");
            let key = KeyPair::try_from(&private_key::pkcs8(text.as_bytes()).unwrap()).unwrap();
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let ca = SigningCa {
                certificate: params.self_signed(&key).unwrap().pem().into_bytes(),
                key: text.into_bytes(),
            };
            assert_eq!(check(&ca), Ok(()));
            let request = CertificateParams::default().serialize_request(&KeyPair::generate().unwrap());
            let request = CertificateRequest::read(request.unwrap().pem().unwrap().as_bytes()).unwrap();
            let usages = ["client auth".to_string()];
            assert!(sign(&ca, &request, &usages, Duration::from_secs(3600)).is_ok());
        }
    }

    #[test]
    fn an_authority_that_cannot_sign_is_found_before_it_has_to() {
        let good = authority();
        assert_eq!(check(&good), Ok(()));
        for key in [&b""[..], b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
            assert!(check(&SigningCa { key: key.to_vec(), ..good.clone() }).is_err());
        }
        assert!(check(&SigningCa { key: authority().key, ..good.clone() }).is_err());
        assert!(check(&SigningCa { certificate: b"x".to_vec(), ..good }).is_err());
    }

    #[test]
    fn an_approved_request_becomes_a_certificate_of_its_subject() {
        let mut params = CertificateParams::new(vec!["n1.example".to_string()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:n1");
        let request = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        let request = CertificateRequest::read(request.as_bytes()).unwrap();
        let usages = ["digital signature".to_string(), "client auth".to_string()];
        let signed = sign(&authority(), &request, &usages, Duration::from_secs(3600)).unwrap();
        let (pem, _) = Pem::read(std::io::Cursor::new(signed.as_bytes())).unwrap();
        let certificate = pem.parse_x509().unwrap();
        assert!(certificate.subject().to_string().contains("system:node:n1"));
        let names = certificate.subject_alternative_name().unwrap().unwrap();
        assert!(names.value.general_names.iter().any(|name| name.to_string().contains("n1.example")));
        assert!(!certificate.is_ca());
        let usage = certificate.extended_key_usage().unwrap().unwrap();
        assert!(usage.value.client_auth && !usage.value.server_auth);
        let validity = certificate.validity();
        assert_eq!(validity.not_after.timestamp() - validity.not_before.timestamp(), 3600 + 300);
    }

    #[test]
    fn a_lifetime_is_what_was_asked_within_bounds() {
        let year = Duration::from_secs(365 * 86400);
        let check = |asked, expected| assert_eq!(lifetime(asked, year), Duration::from_secs(expected));
        check(None, 365 * 86400);
        check(Some(3600), 3600);
        check(Some(1), 600);
        check(Some(-5), 600);
        check(Some(i32::MAX), 365 * 86400);
    }
}
