//! Private keys as OpenSSL and upstream's tools write them: `RSA PRIVATE KEY` (PKCS #1) and `EC PRIVATE KEY` (SEC 1) beside
//! `PRIVATE KEY` (PKCS #8). The signing library takes PKCS #8 only, which holds the other two as they are.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// 1.2.840.113549.1.1.1, rsaEncryption
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
/// 1.2.840.10045.2.1, id-ecPublicKey
const ELLIPTIC_CURVE: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];

const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const NULL: u8 = 0x05;
const IDENTIFIER: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
/// `parameters [0]` of an `ECPrivateKey`.
const PARAMETERS: u8 = 0xa0;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    #[error("there is no private key in PEM in it")]
    NotPem,
    #[error("the elliptic curve key does not name its curve")]
    NoCurve,
    #[error("unknown form of a private key")]
    UnknownForm,
}

/// The first private key of a PEM text, as PKCS #8. Whether it is a usable key, its user finds out.
pub fn pkcs8(pem: &[u8]) -> Result<PrivatePkcs8KeyDer<'static>, BadKey> {
    Ok(match PrivateKeyDer::from_pem_slice(pem).map_err(|_| BadKey::NotPem)? {
        PrivateKeyDer::Pkcs8(key) => key,
        PrivateKeyDer::Pkcs1(key) => {
            let parameters = value(NULL, &[]);
            wrap(RSA, &parameters, key.secret_pkcs1_der()).into()
        }
        PrivateKeyDer::Sec1(key) => {
            let der = key.secret_sec1_der();
            let curve = value(IDENTIFIER, curve(der).ok_or(BadKey::NoCurve)?);
            wrap(ELLIPTIC_CURVE, &curve, der).into()
        }
        _ => return Err(BadKey::UnknownForm),
    })
}

/// An elliptic curve key as `EC PRIVATE KEY`, which says in its first line what it is. Java's fabric8 client takes every
/// `PRIVATE KEY` for one of RSA. `None` for every other key.
pub fn sec1_pem(pem: &str) -> Option<String> {
    let PrivateKeyDer::Pkcs8(key) = PrivateKeyDer::from_pem_slice(pem.as_bytes()).ok()? else { return None };
    let (SEQUENCE, fields, _) = read(key.secret_pkcs8_der())? else { return None };
    let (INTEGER, _, fields) = read(fields)? else { return None };
    let (SEQUENCE, algorithm, fields) = read(fields)? else { return None };
    let (IDENTIFIER, ELLIPTIC_CURVE, curve) = read(algorithm)? else { return None };
    let (OCTETS, inner, _) = read(fields)? else { return None };
    let (SEQUENCE, inner, _) = read(inner)? else { return None };
    // The version and the key; then the curve, which PKCS #8 says outside, and what else may follow.
    let (INTEGER, _, rest) = read(inner)? else { return None };
    let (OCTETS, _, rest) = read(rest)? else { return None };
    let (start, rest) = inner.split_at(inner.len() - rest.len());
    let public = match read(rest) {
        Some((PARAMETERS, _, public)) => public,
        _ => rest,
    };
    let der = value(SEQUENCE, &[start, &value(PARAMETERS, curve), public].concat());
    let mut out = String::from("-----BEGIN EC PRIVATE KEY-----\n");
    for line in der.chunks(48) {
        out.push_str(&STANDARD.encode(line));
        out.push('\n');
    }
    out.push_str("-----END EC PRIVATE KEY-----\n");
    Some(out)
}

/// RFC 5208: version 0, the algorithm with its parameters, the key.
fn wrap(algorithm: &[u8], parameters: &[u8], key: &[u8]) -> Vec<u8> {
    let algorithm = [value(IDENTIFIER, algorithm), parameters.to_vec()].concat();
    let parts = [value(INTEGER, &[0]), value(SEQUENCE, &algorithm), value(OCTETS, key)];
    value(SEQUENCE, &parts.concat())
}

fn value(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    if content.len() < 0x80 {
        out.push(content.len() as u8);
    } else {
        let length = content.len().to_be_bytes();
        let length = &length[length.iter().take_while(|byte| **byte == 0).count()..];
        out.push(0x80 | length.len() as u8);
        out.extend_from_slice(length);
    }
    out.extend_from_slice(content);
    out
}

/// RFC 5915: version, key, and the curve among what may follow.
fn curve(der: &[u8]) -> Option<&[u8]> {
    let (SEQUENCE, mut fields, _) = read(der)? else { return None };
    while let Some((tag, content, rest)) = read(fields) {
        if tag == PARAMETERS {
            let (IDENTIFIER, curve, _) = read(content)? else { return None };
            return Some(curve);
        }
        fields = rest;
    }
    None
}

/// The tag and content of the first value, and what follows it.
fn read(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = der.split_first_chunk::<2>()?;
    let (length, rest) = match first {
        _ if first < 0x80 => (usize::from(first), rest),
        // Keys are shorter than 64 KB.
        0x81 | 0x82 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `openssl ecparam -name prime256v1 -genkey`
    const EC: &str = "-----BEGIN EC PARAMETERS-----
BggqhkjOPQMBBw==
-----END EC PARAMETERS-----
-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIEn7ccrl6NBtWw9IV7xY5H9dBoJFRx6nvNjuwa8pBawHoAoGCCqGSM49
AwEHoUQDQgAEVfr7Elcndef05c4FZ/eod9GGQ0dAZldJZ1mHXw8w3pLmJR11WAhT
0zQxA/tCtcbovfk5QnNPpTax12nWk+TRgw==
-----END EC PRIVATE KEY-----
";
    /// The same by `openssl pkcs8 -topk8 -nocrypt`
    const EC_PKCS8: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgSftxyuXo0G1bD0hX
vFjkf10GgkVHHqe82O7BrykFrAehRANCAARV+vsSVyd15/TlzgVn96h30YZDR0Bm
V0lnWYdfDzDekuYlHXVYCFPTNDED+0K1xui9+TlCc0+lNrHXadaT5NGD
-----END PRIVATE KEY-----
";

    #[test]
    fn other_forms_become_what_openssl_makes_of_them() {
        let key = pkcs8(EC.as_bytes()).expect("a key");
        let by_openssl = pkcs8(EC_PKCS8.as_bytes()).expect("a key");
        // OpenSSL leaves the curve off inside, since it stands outside.
        let inner = |der: &[u8]| {
            let (_, fields, _) = read(der).expect("a sequence");
            let (_, _, rest) = read(fields).expect("a version");
            let (_, algorithm, rest) = read(rest).expect("an algorithm");
            let (_, key, _) = read(rest).expect("a key");
            (algorithm.to_vec(), read(read(key).expect("a key").1).expect("a version").2[..34].to_vec())
        };
        assert_eq!(inner(key.secret_pkcs8_der()), inner(by_openssl.secret_pkcs8_der()));
    }

    #[test]
    fn an_elliptic_curve_key_is_written_as_openssl_writes_it() {
        let (_, by_openssl) = EC.split_once("-----END EC PARAMETERS-----\n").expect("two parts");
        assert_eq!(sec1_pem(EC_PKCS8).as_deref(), Some(by_openssl));
    }

    #[test]
    fn only_elliptic_curve_keys_have_that_form() {
        let rsa = STANDARD.encode(wrap(RSA, &value(NULL, &[]), &value(SEQUENCE, &[])));
        for other in ["", "MA==", "MIL//w==", "MAMCAQA=", &rsa] {
            let pem = format!("-----BEGIN PRIVATE KEY-----\n{other}\n-----END PRIVATE KEY-----\n");
            assert_eq!(sec1_pem(&pem), None, "{other}");
        }
        assert_eq!(sec1_pem(EC), None, "it has it already");
    }

    #[test]
    fn malformed_private_keys_are_refused() {
        for bad in ["", "x", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert_eq!(pkcs8(bad.as_bytes()), Err(BadKey::NotPem));
        }
        for cut in ["MA==", "MIL//w==", "AAAA", "MAOgAQY="] {
            let pem = format!("-----BEGIN EC PRIVATE KEY-----\n{cut}\n-----END EC PRIVATE KEY-----\n");
            assert_eq!(pkcs8(pem.as_bytes()), Err(BadKey::NoCurve), "{cut}");
        }
    }
}
