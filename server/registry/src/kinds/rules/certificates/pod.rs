//! What a kubelet asks for a pod: a certificate for a key that it proves to have.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ferry_api::field_error::Reason;
use ferry_api::{FieldErrors, names};
use serde_json::Value;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use super::super::field::{Context, Field};
use super::key::{PublicKey, Unsuitable};
use crate::kinds::checks::Path;

const SHORTEST: i64 = 60 * 60;
const LONGEST: i64 = 91 * 24 * 60 * 60;
/// Of signers of Kubernetes itself.
const LONGEST_OWN: i64 = 24 * 60 * 60;
const LARGEST_KEY: usize = 10 << 10;
const LARGEST_ANNOTATIONS: usize = 256 << 10;

/// How long the certificate is to hold, and for which key.
pub fn pod_certificate(spec: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let seconds = spec.child("maxExpirationSeconds");
    if !seconds.is_given() {
        return errors.required(seconds.path, "must be set");
    }
    let host = spec.child("signerName").text().split('/').next().unwrap_or("");
    let is_own = host == "kubernetes.io" || host.ends_with(".kubernetes.io");
    let longest = if is_own { LONGEST_OWN } else { LONGEST };
    if !(SHORTEST..=longest).contains(&seconds.number()) {
        seconds.invalid(&format!("must be in the range [{SHORTEST}, {longest}]"), errors);
    }
    let fields = ["stubPKCS10Request", "pkixPublicKey", "proofOfPossession"].map(|name| spec.child(name));
    let [request, key, proof] = fields;
    match [request, key, proof].map(|field| !field.is_empty()) {
        [true, false, false] => stub_request(request, errors),
        [false, true, true] => bare_key(key, proof, spec.child("podUID"), errors),
        _ => omitted(
            spec.path,
            "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set",
            errors,
        ),
    }
}

fn omitted(path: Path<'_>, why: &str, errors: &mut FieldErrors) {
    errors.push(path, Reason::Invalid, why.to_owned());
}

/// What the field holds, which is base64 in JSON.
fn bytes(field: Field<'_>) -> Vec<u8> {
    BASE64_STANDARD.decode(field.text()).unwrap_or_default()
}

fn stub_request(request: Field<'_>, errors: &mut FieldErrors) {
    let der = bytes(request);
    if der.len() > LARGEST_KEY {
        return errors.too_long(request.path, LARGEST_KEY);
    }
    let Some((key, is_signed)) = read_request(&der) else {
        return omitted(request.path, "must be a valid PKCS#10 CSR", errors);
    };
    match key.suits() {
        Err(Unsuitable::Kind) => {
            omitted(
                request.path,
                "unknown public key type; supported types are Ed25519, ECDSA, and RSA",
                errors,
            );
        }
        Err(unsuitable) => unsuitable_key(request, &unsuitable, "P256, P384, or P521", errors),
        Ok(()) if !is_signed => omitted(request.path, "invalid signature", errors),
        Ok(()) => {}
    }
}

/// The key of a request, and whether its private half signed it.
fn read_request(der: &[u8]) -> Option<(PublicKey, bool)> {
    let (rest, request) = X509CertificationRequest::from_der(der).ok()?;
    if !rest.is_empty() {
        return None;
    }
    let info = &request.certification_request_info;
    let key = PublicKey::of(&info.subject_pki)?;
    let is_signed = key.signed(&request.signature_algorithm, info.raw, &request.signature_value.data);
    Some((key, is_signed))
}

fn bare_key(key: Field<'_>, proof: Field<'_>, pod: Field<'_>, errors: &mut FieldErrors) {
    let (der, signed) = (bytes(key), bytes(proof));
    for (field, bytes) in [(key, &der), (proof, &signed)] {
        if bytes.len() > LARGEST_KEY {
            return errors.too_long(field.path, LARGEST_KEY);
        }
    }
    let Some(public) = PublicKey::from_der(&der) else {
        return key.invalid("must be a valid PKIX-serialized public key", errors);
    };
    match public.suits() {
        Err(Unsuitable::Kind) => {
            key.invalid("unknown public key type; supported types are Ed25519, ECDSA, and RSA", errors);
        }
        Err(unsuitable) => unsuitable_key(key, &unsuitable, "P256 or P384", errors),
        Ok(()) if !public.proves(pod.text().as_bytes(), &signed) => {
            omitted(proof.path, "could not verify proof-of-possession signature", errors);
        }
        Ok(()) => {}
    }
}

fn unsuitable_key(field: Field<'_>, why: &Unsuitable, curves: &str, errors: &mut FieldErrors) {
    match why {
        Unsuitable::Curve(curve) => {
            errors.invalid(field.path, *curve, &format!("elliptic public keys must use curve {curves}"));
        }
        Unsuitable::Modulus(bits) => {
            errors.invalid(field.path, bits.as_str(), "RSA keys must have modulus size 3072 or 4096");
        }
        Unsuitable::Kind => {}
    }
}

/// The key that a request was accepted with.
pub(super) fn requested_key(spec: Field<'_>) -> Option<PublicKey> {
    let request = spec.child("stubPKCS10Request");
    match request.is_empty() {
        true => PublicKey::from_der(&bytes(spec.child("pkixPublicKey"))),
        false => read_request(&bytes(request)).map(|(key, _)| key),
    }
}

/// What a pod's author wants the signer to know: keys have a domain.
pub fn user_annotations(annotations: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let mut size = 0;
    for (key, value) in annotations.entries() {
        size += key.len() + value.as_str().map_or(0, str::len);
        let lower = key.to_ascii_lowercase();
        if key.is_empty() {
            errors.required(annotations.path, "");
            continue;
        }
        let wrong = names::qualified_name(&lower);
        if wrong.is_empty() && !lower.contains('/') {
            let why = "must be a domain-prefixed key (such as \"acme.io/foo\")";
            errors.invalid(annotations.path, Value::from(lower.as_str()), why);
        }
        for why in wrong {
            errors.invalid(annotations.path, Value::from(lower.as_str()), &why);
        }
    }
    if size > LARGEST_ANNOTATIONS {
        errors.too_long(annotations.path, LARGEST_ANNOTATIONS);
    }
}
