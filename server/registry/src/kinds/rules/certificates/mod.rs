//! Certificates: those that are trusted (ClusterTrustBundle) and those of pods (PodCertificateRequest).

pub mod key;
pub mod pem;
mod pod;
mod status;

use std::collections::HashMap;

use ferry_api::FieldErrors;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer;

use super::field::{Context, Field, Old};

pub use pod::{pod_certificate, user_annotations};
pub use status::pod_certificate_status;

const LARGEST_BUNDLE: usize = 1 << 20;

/// Certificates of authorities, each once. Others stay as they are where the text does: they were accepted once.
pub fn trust_bundle(bundle: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    if matches!(context.old, Old::Known(old) if old == bundle.value) {
        return;
    }
    if bundle.text().len() > LARGEST_BUNDLE {
        return errors.too_long(bundle.path, LARGEST_BUNDLE);
    }
    let mut wrong = Vec::new();
    let mut anchors: HashMap<Vec<u8>, Vec<usize>> = HashMap::new();
    for (index, block) in pem::blocks(bundle.text()).enumerate() {
        match anchor(&block) {
            Ok(()) => anchors.entry(block.bytes).or_default().push(index),
            Err(why) => wrong.push(format!("entry {index} {why}")),
        }
    }
    if wrong.is_empty() && anchors.is_empty() {
        wrong.push("at least one trust anchor must be provided".into());
    } else if wrong.is_empty() {
        for indices in anchors.values().filter(|indices| indices.len() > 1) {
            let indices: Vec<String> = indices.iter().map(usize::to_string).collect();
            wrong.push(format!("duplicate trust anchor (indices [{}])", indices.join(" ")));
        }
    }
    for why in wrong {
        errors.invalid(bundle.path, "<value omitted>", &why);
    }
}

fn anchor(block: &pem::Block) -> Result<(), String> {
    if block.label != "CERTIFICATE" {
        return Err(format!("has bad block type: {}", block.label));
    }
    if block.has_headers {
        return Err("has PEM block headers".into());
    }
    let certificate = certificate(&block.bytes).ok_or("does not parse as X.509")?;
    match certificate.is_ca() {
        true => Ok(()),
        false => Err("does not have the CA bit set".into()),
    }
}

/// A certificate whose extensions can be read, with nothing behind it.
fn certificate(der: &[u8]) -> Option<X509Certificate<'_>> {
    let (rest, certificate) = X509Certificate::from_der(der).ok()?;
    let is_broken = |parsed: &ParsedExtension<'_>| matches!(parsed, ParsedExtension::ParseError { .. });
    let readable = !certificate.extensions().iter().any(|own| is_broken(own.parsed_extension()));
    (rest.is_empty() && readable).then_some(certificate)
}
