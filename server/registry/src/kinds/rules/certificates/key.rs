//! Public keys of pods' certificates, and signatures made with their private halves.

use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use x509_parser::oid_registry::Oid;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey as Parsed;
use x509_parser::x509::{AlgorithmIdentifier, SubjectPublicKeyInfo};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublicKey {
    Ed25519(Vec<u8>),
    Ecdsa {
        curve: Curve,
        point: Vec<u8>,
    },
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// Of a kind that no pod may have.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Curve {
    P224,
    P256,
    P384,
    P521,
}

/// Why a key that can be read may not be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unsuitable {
    Curve(&'static str),
    Modulus(String),
    Kind,
}

impl PublicKey {
    /// A key as PKIX writes it, with nothing behind it.
    pub fn from_der(der: &[u8]) -> Option<PublicKey> {
        let (rest, info) = SubjectPublicKeyInfo::from_der(der).ok()?;
        if rest.is_empty() { PublicKey::of(&info) } else { None }
    }

    /// None for a key that is broken.
    pub fn of(info: &SubjectPublicKeyInfo<'_>) -> Option<PublicKey> {
        let bytes = info.subject_public_key.data.as_ref();
        match info.algorithm.algorithm.to_id_string().as_str() {
            "1.3.101.112" => (bytes.len() == 32).then(|| PublicKey::Ed25519(bytes.to_vec())),
            "1.2.840.10045.2.1" => {
                let curve = curve(&info.algorithm)?;
                let is_point = bytes.len() == curve.point() && bytes.first() == Some(&4);
                is_point.then(|| PublicKey::Ecdsa { curve, point: bytes.to_vec() })
            }
            "1.2.840.113549.1.1.1" => match info.parsed().ok()? {
                Parsed::RSA(key) => Some(PublicKey::Rsa {
                    modulus: unsigned(key.modulus).to_vec(),
                    exponent: unsigned(key.exponent).to_vec(),
                }),
                _ => None,
            },
            _ => Some(PublicKey::Other),
        }
    }

    pub fn suits(&self) -> Result<(), Unsuitable> {
        match self {
            PublicKey::Ed25519(_) => Ok(()),
            PublicKey::Ecdsa { curve: Curve::P224, .. } => Err(Unsuitable::Curve("curve P-224")),
            PublicKey::Ecdsa { .. } => Ok(()),
            PublicKey::Rsa { modulus, .. } => match modulus.len() * 8 {
                3072 | 4096 => Ok(()),
                bits => Err(Unsuitable::Modulus(format!("{bits}-bit modulus"))),
            },
            PublicKey::Other => Err(Unsuitable::Kind),
        }
    }

    /// Whether the key's owner signed the message to prove that it has the private half: with SHA-256, and RSA with PSS.
    pub fn proves(&self, message: &[u8], proof: &[u8]) -> bool {
        self.verify(
            match self {
                PublicKey::Rsa { .. } => Scheme::RsaPss256,
                _ => Scheme::Ecdsa256,
            },
            message,
            proof,
        )
    }

    /// Whether the signature of a certificate request is this key's.
    pub fn signed(&self, algorithm: &AlgorithmIdentifier<'_>, message: &[u8], signed: &[u8]) -> bool {
        let scheme = match algorithm.algorithm.to_id_string().as_str() {
            "1.3.101.112" => Scheme::Ed25519,
            "1.2.840.10045.4.3.2" => Scheme::Ecdsa256,
            "1.2.840.10045.4.3.3" => Scheme::Ecdsa384,
            "1.2.840.113549.1.1.11" => Scheme::Rsa256,
            "1.2.840.113549.1.1.12" => Scheme::Rsa384,
            "1.2.840.113549.1.1.13" => Scheme::Rsa512,
            _ => return false,
        };
        match (self, scheme) {
            (PublicKey::Ed25519(_), Scheme::Ed25519) => self.verify(scheme, message, signed),
            (PublicKey::Ed25519(_), _) => false,
            _ => self.verify(scheme, message, signed),
        }
    }

    fn verify(&self, scheme: Scheme, message: &[u8], signed: &[u8]) -> bool {
        let verify = |algorithm: &'static dyn VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(algorithm, key).verify(message, signed).is_ok()
        };
        match (self, scheme) {
            (PublicKey::Ed25519(key), _) => verify(&signature::ED25519, key),
            (PublicKey::Ecdsa { curve: Curve::P256, point }, Scheme::Ecdsa256) => {
                verify(&signature::ECDSA_P256_SHA256_ASN1, point)
            }
            (PublicKey::Ecdsa { curve: Curve::P256, point }, Scheme::Ecdsa384) => {
                verify(&signature::ECDSA_P256_SHA384_ASN1, point)
            }
            (PublicKey::Ecdsa { curve: Curve::P384, point }, Scheme::Ecdsa256) => {
                verify(&signature::ECDSA_P384_SHA256_ASN1, point)
            }
            (PublicKey::Ecdsa { curve: Curve::P384, point }, Scheme::Ecdsa384) => {
                verify(&signature::ECDSA_P384_SHA384_ASN1, point)
            }
            (PublicKey::Rsa { modulus, exponent }, scheme) => {
                let parameters = match scheme {
                    Scheme::RsaPss256 => &signature::RSA_PSS_2048_8192_SHA256,
                    Scheme::Rsa256 => &signature::RSA_PKCS1_2048_8192_SHA256,
                    Scheme::Rsa384 => &signature::RSA_PKCS1_2048_8192_SHA384,
                    Scheme::Rsa512 => &signature::RSA_PKCS1_2048_8192_SHA512,
                    _ => return false,
                };
                RsaPublicKeyComponents { n: modulus, e: exponent }.verify(parameters, message, signed).is_ok()
            }
            _ => false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Ed25519,
    Ecdsa256,
    Ecdsa384,
    RsaPss256,
    Rsa256,
    Rsa384,
    Rsa512,
}

impl Curve {
    /// The length of a point that is not compressed.
    fn point(self) -> usize {
        let coordinate = match self {
            Curve::P224 => 28,
            Curve::P256 => 32,
            Curve::P384 => 48,
            Curve::P521 => 66,
        };
        2 * coordinate + 1
    }
}

fn curve(algorithm: &AlgorithmIdentifier<'_>) -> Option<Curve> {
    let named: Oid<'_> = algorithm.parameters.as_ref()?.clone().try_into().ok()?;
    match named.to_id_string().as_str() {
        "1.3.132.0.33" => Some(Curve::P224),
        "1.2.840.10045.3.1.7" => Some(Curve::P256),
        "1.3.132.0.34" => Some(Curve::P384),
        "1.3.132.0.35" => Some(Curve::P521),
        _ => None,
    }
}

/// Without the zero byte that keeps a number positive.
fn unsigned(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}
