//! Signed tokens (RFC 7515, compact form) and the keys that sign and verify them.
//!
//! Written on `ring` alone: the server already carries it for TLS, and what service account and
//! OIDC tokens need of JOSE is small. The algorithm is chosen by the *key*; the token's header
//! only has to agree. So neither `none` nor a public key misused as an HMAC secret can verify.

use std::fmt;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    digest::{SHA256, digest},
    signature::{self, RsaPublicKeyComponents, UnparsedPublicKey},
};
use rustls::{SignatureScheme, sign::SigningKey as TlsSigningKey};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer, pem::PemObject};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use x509_parser::prelude::{FromDer, SubjectPublicKeyInfo, X509Certificate};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JwsError {
    #[error("the token is not a signed JWT")]
    Malformed,
    #[error("the signature algorithm {0:?} is not accepted")]
    Algorithm(String),
    #[error("the token's signature is invalid")]
    Signature,
    #[error("reading a key: {0}")]
    Key(String),
}

/// An algorithm a token may be signed with. HMAC and `none` are not among them on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    RS256,
    RS384,
    RS512,
    PS256,
    PS384,
    PS512,
    ES256,
    ES384,
}

impl Algorithm {
    pub fn parse(name: &str) -> Option<Self> {
        serde_json::from_value(serde_json::Value::from(name)).ok()
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}

/// A token taken apart. Nothing in it is to be believed before [`Parsed::verify`].
pub struct Parsed<'a> {
    signed: &'a str,
    payload: Vec<u8>,
    signature: Vec<u8>,
    algorithm: String,
    pub key_id: Option<String>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that must be understood; none are.
    crit: Option<serde_json::Value>,
}

impl<'a> Parsed<'a> {
    pub fn parse(token: &'a str) -> Result<Self, JwsError> {
        let (signed, signature) = token.rsplit_once('.').ok_or(JwsError::Malformed)?;
        let (header, payload) = signed.split_once('.').ok_or(JwsError::Malformed)?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| JwsError::Malformed);
        let header: Header = serde_json::from_slice(&decode(header)?).map_err(|_| JwsError::Malformed)?;
        if header.crit.is_some() {
            return Err(JwsError::Malformed);
        }
        Ok(Parsed {
            signed,
            payload: decode(payload)?,
            signature: decode(signature)?,
            algorithm: header.alg,
            key_id: header.kid,
        })
    }

    /// The payload before its signature was looked at: only good for finding out whose it is.
    pub fn unverified<T: DeserializeOwned>(&self) -> Result<T, JwsError> {
        serde_json::from_slice(&self.payload).map_err(|_| JwsError::Malformed)
    }

    /// The payload, if `key` signed it with one of the `accepted` algorithms.
    pub fn verify<T: DeserializeOwned>(
        &self,
        key: &PublicKey,
        accepted: &[Algorithm],
    ) -> Result<T, JwsError> {
        let refused = || JwsError::Algorithm(self.algorithm.clone());
        let algorithm = Algorithm::parse(&self.algorithm).ok_or_else(refused)?;
        if !accepted.contains(&algorithm) {
            return Err(refused());
        }
        key.material.verify(algorithm, self.signed.as_bytes(), &self.signature)?;
        self.unverified()
    }
}

/// A key that verifies, with the name tokens refer to it by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    pub id: String,
    material: Material,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Material {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    P256 { point: Vec<u8> },
    P384 { point: Vec<u8> },
}

impl Material {
    fn verify(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> Result<(), JwsError> {
        let verified = match (self, algorithm) {
            (Material::Rsa { modulus, exponent }, algorithm) => {
                let parameters = match algorithm {
                    Algorithm::RS256 => &signature::RSA_PKCS1_2048_8192_SHA256,
                    Algorithm::RS384 => &signature::RSA_PKCS1_2048_8192_SHA384,
                    Algorithm::RS512 => &signature::RSA_PKCS1_2048_8192_SHA512,
                    Algorithm::PS256 => &signature::RSA_PSS_2048_8192_SHA256,
                    Algorithm::PS384 => &signature::RSA_PSS_2048_8192_SHA384,
                    Algorithm::PS512 => &signature::RSA_PSS_2048_8192_SHA512,
                    Algorithm::ES256 | Algorithm::ES384 => {
                        return Err(JwsError::Algorithm(algorithm.to_string()));
                    }
                };
                RsaPublicKeyComponents { n: modulus, e: exponent }.verify(parameters, message, signature)
            }
            (Material::P256 { point }, Algorithm::ES256) => {
                UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            (Material::P384 { point }, Algorithm::ES384) => {
                UnparsedPublicKey::new(&signature::ECDSA_P384_SHA384_FIXED, point).verify(message, signature)
            }
            _ => return Err(JwsError::Algorithm(algorithm.to_string())),
        };
        verified.map_err(|_| JwsError::Signature)
    }
}

impl PublicKey {
    /// All keys of a PEM file: public keys, certificates, and private keys for their public half.
    pub fn all_from_pem(pem: &str) -> Result<Vec<Self>, JwsError> {
        let failed = |error: &dyn fmt::Display| JwsError::Key(error.to_string());
        let mut keys = Vec::new();
        for spki in SubjectPublicKeyInfoDer::pem_slice_iter(pem.as_bytes()) {
            keys.push(PublicKey::from_spki(&spki.map_err(|error| failed(&error))?)?);
        }
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            let der = certificate.map_err(|error| failed(&error))?;
            let (_, certificate) = X509Certificate::from_der(&der).map_err(|error| failed(&error))?;
            keys.push(PublicKey::from_spki(certificate.public_key().raw)?);
        }
        for private in PrivateKeyDer::pem_slice_iter(pem.as_bytes()) {
            let private = private.map_err(|error| failed(&error))?;
            keys.push(SigningKey::from_der(&private)?.public);
        }
        if keys.is_empty() {
            return Err(JwsError::Key("the file holds no key".to_owned()));
        }
        Ok(keys)
    }

    fn from_spki(der: &[u8]) -> Result<Self, JwsError> {
        use x509_parser::public_key::PublicKey as Spki;
        let (_, info) =
            SubjectPublicKeyInfo::from_der(der).map_err(|error| JwsError::Key(error.to_string()))?;
        let material = match info.parsed().map_err(|error| JwsError::Key(error.to_string()))? {
            Spki::RSA(key) => {
                Material::Rsa { modulus: unsigned(key.modulus), exponent: unsigned(key.exponent) }
            }
            Spki::EC(point) if point.data().len() == 65 => Material::P256 { point: point.data().to_vec() },
            Spki::EC(point) if point.data().len() == 97 => Material::P384 { point: point.data().to_vec() },
            _ => return Err(JwsError::Key("only RSA, P-256 and P-384 keys are supported".to_owned())),
        };
        // The name does not give the key away and needs no registry: anyone derives the same.
        Ok(PublicKey { id: URL_SAFE_NO_PAD.encode(digest(&SHA256, der)), material })
    }

    /// The algorithm this key's own signer uses.
    pub fn algorithm(&self) -> Algorithm {
        match self.material {
            Material::Rsa { .. } => Algorithm::RS256,
            Material::P256 { .. } => Algorithm::ES256,
            Material::P384 { .. } => Algorithm::ES384,
        }
    }

    pub fn to_jwk(&self) -> Jwk {
        let encode = |bytes: &[u8]| Some(URL_SAFE_NO_PAD.encode(bytes));
        let blank = Jwk {
            usage: Some("sig".to_owned()),
            kid: Some(self.id.clone()),
            alg: Some(self.algorithm().to_string()),
            ..Jwk::default()
        };
        let elliptic = |curve: &str, point: &[u8]| {
            // An uncompressed point is 4, then both coordinates.
            let (x, y) = point[1..].split_at((point.len() - 1) / 2);
            Jwk {
                kty: "EC".to_owned(),
                crv: Some(curve.to_owned()),
                x: encode(x),
                y: encode(y),
                ..blank.clone()
            }
        };
        match &self.material {
            Material::P256 { point } => elliptic("P-256", point),
            Material::P384 { point } => elliptic("P-384", point),
            Material::Rsa { modulus, exponent } => {
                Jwk { kty: "RSA".to_owned(), n: encode(modulus), e: encode(exponent), ..blank }
            }
        }
    }

    /// `None` for a key that cannot verify signatures here; a key set may hold such.
    pub fn from_jwk(jwk: &Jwk) -> Option<Self> {
        if jwk.usage.as_deref().is_some_and(|usage| usage != "sig") {
            return None;
        }
        let decode = |text: &Option<String>| URL_SAFE_NO_PAD.decode(text.as_deref()?).ok();
        let point = |size: usize| {
            let (x, y) = (decode(&jwk.x)?, decode(&jwk.y)?);
            let sized = x.len() == size && y.len() == size;
            sized.then(|| [&[4][..], &x, &y].concat())
        };
        let material = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("RSA", _) => {
                Material::Rsa { modulus: unsigned(&decode(&jwk.n)?), exponent: unsigned(&decode(&jwk.e)?) }
            }
            ("EC", Some("P-256")) => Material::P256 { point: point(32)? },
            ("EC", Some("P-384")) => Material::P384 { point: point(48)? },
            _ => return None,
        };
        Some(PublicKey { id: jwk.kid.clone().unwrap_or_default(), material })
    }
}

/// DER pads positive integers with a zero; `ring` and JWK want them bare.
fn unsigned(bytes: &[u8]) -> Vec<u8> {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes[zeros..].to_vec()
}

/// A JSON Web Key (RFC 7517), its public members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jwk {
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    pub usage: Option<String>,
    pub kty: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crv: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alg: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub e: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub x: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub y: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JwkSet {
    pub keys: Vec<Jwk>,
}

/// A key that signs.
pub struct SigningKey {
    key: std::sync::Arc<dyn TlsSigningKey>,
    pub public: PublicKey,
}

impl SigningKey {
    /// PKCS#8, PKCS#1 or SEC1.
    pub fn from_pem(pem: &str) -> Result<Self, JwsError> {
        let der = PrivateKeyDer::from_pem_slice(pem.as_bytes());
        SigningKey::from_der(&der.map_err(|error| JwsError::Key(error.to_string()))?)
    }

    fn from_der(der: &PrivateKeyDer<'_>) -> Result<Self, JwsError> {
        let failed = |error: rustls::Error| JwsError::Key(error.to_string());
        let key = rustls::crypto::ring::sign::any_supported_type(der).map_err(failed)?;
        let spki = key.public_key().ok_or_else(|| JwsError::Key("the key has no public half".to_owned()))?;
        let public = PublicKey::from_spki(&spki)?;
        Ok(SigningKey { key, public })
    }

    pub fn sign(&self, claims: &impl Serialize) -> Result<String, JwsError> {
        let failed = |error: &dyn fmt::Display| JwsError::Key(error.to_string());
        let algorithm = self.public.algorithm();
        let header = serde_json::json!({"alg": algorithm, "kid": self.public.id});
        let payload = serde_json::to_vec(claims).map_err(|error| failed(&error))?;
        let message =
            format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(payload));
        let (scheme, coordinate) = match self.public.material {
            Material::Rsa { .. } => (SignatureScheme::RSA_PKCS1_SHA256, None),
            Material::P256 { .. } => (SignatureScheme::ECDSA_NISTP256_SHA256, Some(32)),
            Material::P384 { .. } => (SignatureScheme::ECDSA_NISTP384_SHA384, Some(48)),
        };
        let signer = self.key.choose_scheme(&[scheme]).ok_or_else(|| failed(&"the key does not sign"))?;
        let signature = signer.sign(message.as_bytes()).map_err(|error| failed(&error))?;
        let signature = match coordinate {
            None => signature,
            Some(size) => {
                fixed_ecdsa(&signature, size).ok_or_else(|| failed(&"malformed ECDSA signature"))?
            }
        };
        Ok(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// TLS writes an ECDSA signature as a DER sequence of two integers; JWS as two numbers of fixed
/// size, one after the other.
fn fixed_ecdsa(der: &[u8], size: usize) -> Option<Vec<u8>> {
    fn integer(der: &[u8]) -> Option<(&[u8], &[u8])> {
        let [2, length, rest @ ..] = der else { return None };
        rest.split_at_checked(usize::from(*length))
    }
    // At most 104 bytes of content: the length always fits in one byte.
    let [0x30, length, content @ ..] = der else { return None };
    if usize::from(*length) != content.len() {
        return None;
    }
    let (r, rest) = integer(content)?;
    let (s, rest) = integer(rest)?;
    let mut fixed = vec![0; 2 * size];
    for (number, end) in [(unsigned(r), size), (unsigned(s), 2 * size)] {
        let start = end.checked_sub(number.len()).filter(|start| *start >= end - size)?;
        fixed[start..end].copy_from_slice(&number);
    }
    rest.is_empty().then_some(fixed)
}

#[cfg(test)]
mod tests;
