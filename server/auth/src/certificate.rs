//! Parses the fields of X.509 certificates that authentication needs.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::RwLock;
use rustls::{
    RootCertStore,
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    pub common_name: String,
    pub organizations: Vec<String>,
    /// Values of Kubernetes' own subject attribute for a user's UID.
    pub uids: Vec<String>,
    /// DNS names and addresses, addresses in their text form.
    pub subject_alternative_names: BTreeSet<String>,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
    /// Serial number and key identifiers, to find the certificate an error speaks of.
    pub identifier: String,
}

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("reading a certificate: {0}")]
    Malformed(String),
    #[error("making a trust store: {0}")]
    TrustStore(String),
    #[error("verifying certificate {identifier} failed: {reason}")]
    Untrusted { identifier: String, reason: String },
}

/// 1.3.6.1.4.1.57683.2
const UID_ATTRIBUTE: &str = "1.3.6.1.4.1.57683.2";
const SUBJECT_KEY_ID: &str = "2.5.29.14";

pub fn read_certificate(der: &[u8]) -> Result<CertificateFacts, CertificateError> {
    let (_, certificate) =
        X509Certificate::from_der(der).map_err(|error| CertificateError::Malformed(error.to_string()))?;
    let subject = certificate.subject();
    let text =
        |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| attribute.as_str().ok().map(str::to_owned);
    let names = certificate
        .subject_alternative_name()
        .map_err(|error| CertificateError::Malformed(error.to_string()))?;
    let names = names.map_or(&[][..], |extension| &extension.value.general_names);
    Ok(CertificateFacts {
        common_name: subject.iter_common_name().last().and_then(text).unwrap_or_default(),
        organizations: subject.iter_organization().filter_map(text).collect(),
        uids: subject
            .iter_attributes()
            .filter(|attribute| attribute.attr_type().to_id_string() == UID_ATTRIBUTE)
            .filter_map(text)
            .collect(),
        subject_alternative_names: names.iter().filter_map(name_text).collect(),
        not_before: system_time(certificate.validity().not_before.timestamp()),
        not_after: system_time(certificate.validity().not_after.timestamp()),
        identifier: identifier(&certificate),
    })
}

fn name_text(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let address = match bytes.len() {
                4 => IpAddr::from(<[u8; 4]>::try_from(*bytes).ok()?),
                16 => IpAddr::from(<[u8; 16]>::try_from(*bytes).ok()?),
                _ => return None,
            };
            Some(address.to_string())
        }
        _ => None,
    }
}

fn system_time(timestamp: i64) -> SystemTime {
    let seconds = Duration::from_secs(timestamp.unsigned_abs());
    let moved = if timestamp < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(seconds)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(seconds)
    };
    // Out of range can only be a date long past or far ahead; either way it is not valid now.
    moved.unwrap_or(SystemTime::UNIX_EPOCH)
}

fn identifier(certificate: &X509Certificate<'_>) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":");
    let (mut subject_key, mut authority_key) = (String::new(), String::new());
    for extension in certificate.extensions() {
        use x509_parser::extensions::ParsedExtension;
        match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) if extension.oid.to_id_string() == SUBJECT_KEY_ID => {
                subject_key = hex(id.0);
            }
            ParsedExtension::AuthorityKeyIdentifier(id) => {
                authority_key = id.key_identifier.as_ref().map_or(String::new(), |id| hex(id.0));
            }
            _ => {}
        }
    }
    format!("SN={}, SKID={subject_key}, AKID={authority_key}", certificate.serial)
}

/// The authorities whose client certificates are believed. They can change while it is in use.
pub struct ClientTrust(RwLock<Arc<dyn ClientCertVerifier>>);

impl ClientTrust {
    pub fn new(authorities: &[CertificateDer<'_>]) -> Result<Self, CertificateError> {
        Ok(ClientTrust(RwLock::new(verifier(authorities)?)))
    }

    /// Believes these from now on, and nobody else.
    pub fn replace(&self, authorities: &[CertificateDer<'_>]) -> Result<(), CertificateError> {
        let verifier = verifier(authorities)?;
        *self.0.write() = verifier;
        Ok(())
    }

    /// Whether `chain`, leaf first, leads to one of the authorities, is made for clients, and is
    /// valid at `now`.
    pub fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<CertificateFacts, CertificateError> {
        let Some((leaf, intermediates)) = chain.split_first() else {
            return Err(CertificateError::Malformed("no certificate given".to_owned()));
        };
        let facts = read_certificate(leaf)?;
        let since_epoch = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let verifier = self.0.read().clone();
        match verifier.verify_client_cert(leaf, intermediates, UnixTime::since_unix_epoch(since_epoch)) {
            Ok(_) => Ok(facts),
            Err(error) => {
                Err(CertificateError::Untrusted { identifier: facts.identifier, reason: error.to_string() })
            }
        }
    }
}

fn verifier(authorities: &[CertificateDer<'_>]) -> Result<Arc<dyn ClientCertVerifier>, CertificateError> {
    let failed = |error: &dyn std::fmt::Display| CertificateError::TrustStore(error.to_string());
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone().into_owned()).map_err(|error| failed(&error))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
    verifier.map_err(|error| failed(&error))
}
