//! Whether the certificate and the key of a TLS secret belong together, in the words of Go's `tls.X509KeyPair`.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use x509_parser::asn1_rs::Class;
use x509_parser::certificate::X509Certificate;
use x509_parser::der_parser::ber::BerObject;
use x509_parser::der_parser::parse_der;
use x509_parser::prelude::FromDer;

use crate::kinds::rules::certificates::key::PublicKey;
use crate::kinds::rules::certificates::pem;

const MISMATCH: &str = "tls: private key does not match public key";
const OTHER_TYPE: &str = "tls: private key type does not match public key type";

/// What a private key says of its public half.
enum PrivateKey {
    Rsa {
        modulus: Vec<u8>,
    },
    /// Without the point where the key does not bring it.
    Ecdsa {
        point: Option<Vec<u8>>,
    },
    Ed25519 {
        seed: Vec<u8>,
    },
}

/// Both as a Secret has them, in base64. `Err` says what is wrong.
pub fn judge(certificate: &str, key: &str) -> Result<(), String> {
    let text = |data: &str| {
        let bytes = BASE64_STANDARD.decode(data).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let certificate = first_certificate(&text(certificate))?;
    let key = first_key(&text(key))?;
    let Ok((_, parsed)) = X509Certificate::from_der(&certificate) else {
        return Err("x509: malformed certificate".into());
    };
    let key = private_key(&key).ok_or("tls: failed to parse private key")?;
    let matches = match (PublicKey::of(parsed.public_key()), key) {
        (Some(PublicKey::Rsa { modulus, .. }), PrivateKey::Rsa { modulus: own }) => modulus == own,
        (Some(PublicKey::Ecdsa { point, .. }), PrivateKey::Ecdsa { point: own }) => {
            own.is_none_or(|own| point == own)
        }
        (Some(PublicKey::Ed25519(point)), PrivateKey::Ed25519 { seed }) => {
            use ring::signature::{Ed25519KeyPair, KeyPair};
            let own = Ed25519KeyPair::from_seed_unchecked(&seed);
            own.is_ok_and(|own| own.public_key().as_ref() == point)
        }
        (Some(PublicKey::Other), _) => return Err("tls: unknown public key algorithm".into()),
        (None, _) => return Err("x509: malformed certificate".into()),
        (Some(_), _) => return Err(OTHER_TYPE.into()),
    };
    if matches { Ok(()) } else { Err(MISMATCH.into()) }
}

fn first_certificate(text: &str) -> Result<Vec<u8>, String> {
    let mut skipped = Vec::new();
    for block in pem::blocks(text) {
        if block.label == "CERTIFICATE" {
            return Ok(block.bytes);
        }
        skipped.push(block.label);
    }
    Err(match skipped.as_slice() {
        [] => "tls: failed to find any PEM data in certificate input".into(),
        [one] if one.ends_with("PRIVATE KEY") => {
            "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may \
             have been switched"
                .into()
        }
        all => format!(
            "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the \
             following types: [{}]",
            all.join(" ")
        ),
    })
}

fn first_key(text: &str) -> Result<Vec<u8>, String> {
    let mut skipped = Vec::new();
    for block in pem::blocks(text) {
        if block.label == "PRIVATE KEY" || block.label.ends_with(" PRIVATE KEY") {
            return Ok(block.bytes);
        }
        skipped.push(block.label);
    }
    Err(match skipped.as_slice() {
        [] => "tls: failed to find any PEM data in key input".into(),
        [one] if one == "CERTIFICATE" => {
            "tls: found a certificate rather than a key in the PEM for the private key".into()
        }
        all => format!(
            "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks \
             of the following types: [{}]",
            all.join(" ")
        ),
    })
}

/// A key by itself (PKCS #1, SEC 1), or with the name of its algorithm (PKCS #8).
fn private_key(der: &[u8]) -> Option<PrivateKey> {
    let (_, object) = parse_der(der).ok()?;
    let parts = object.as_sequence().ok()?;
    if let [_, algorithm, key, ..] = parts.as_slice()
        && let Ok(algorithm) = algorithm.as_sequence()
    {
        let key = key.as_slice().ok()?;
        return match algorithm.first()?.as_oid().ok()?.to_id_string().as_str() {
            "1.2.840.113549.1.1.1" => rsa(parse_der(key).ok()?.1.as_sequence().ok()?),
            "1.2.840.10045.2.1" => ecdsa(parse_der(key).ok()?.1.as_sequence().ok()?),
            "1.3.101.112" => {
                let seed = parse_der(key).ok()?.1.as_slice().ok()?.to_vec();
                Some(PrivateKey::Ed25519 { seed })
            }
            _ => None,
        };
    }
    match parts.first()?.as_u32().ok()? {
        0 => rsa(parts),
        _ => ecdsa(parts),
    }
}

fn rsa(parts: &[BerObject<'_>]) -> Option<PrivateKey> {
    let modulus = parts.get(1)?.as_slice().ok()?;
    let zeros = modulus.iter().take_while(|byte| **byte == 0).count();
    (parts.len() >= 9).then(|| PrivateKey::Rsa { modulus: modulus[zeros..].to_vec() })
}

fn ecdsa(parts: &[BerObject<'_>]) -> Option<PrivateKey> {
    parts.get(1)?.as_slice().ok()?;
    let tagged = parts.iter().find(|part| part.class() == Class::ContextSpecific && part.tag().0 == 1);
    let point = tagged.and_then(|part| {
        let inner = part.as_slice().ok()?;
        Some(parse_der(inner).ok()?.1.as_slice().ok()?.to_vec())
    });
    Some(PrivateKey::Ecdsa { point })
}
