//! What a caller shows of itself before it is known: certificate requests, certificates and keys as PEM, signed tokens,
//! headers that carry them.

use std::sync::LazyLock;

use ferry_api::certificate_request::CertificateRequest;
use ferry_auth::authenticate::websocket_bearer;
use ferry_auth::certificate::read_certificate;
use ferry_auth::jws::{Algorithm, Jwk, JwkSet, Parsed, PublicKey, SigningKey};
use ferry_auth::pki::is_pem_due;
use serde_json::{Value, json};

pub fn certificates(data: &[u8]) {
    if let Ok(request) = CertificateRequest::read(data) {
        // Approver and signer decide on what was read: read as DER it must say the same.
        let _ = request.has_alternative_names();
        assert!(!request.der.is_empty());
    }
    let _ = read_certificate(data);
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(keys) = PublicKey::all_from_pem(text) {
        for key in keys {
            let jwk = key.to_jwk();
            let again = PublicKey::from_jwk(&jwk).expect("a key that was written");
            assert_eq!(again.to_jwk(), jwk);
        }
    }
    let _ = SigningKey::from_pem(text);
    let _ = is_pem_due(text, std::time::UNIX_EPOCH);
}

static KEY: LazyLock<SigningKey> = LazyLock::new(|| {
    let pair = rcgen::KeyPair::generate().expect("a key");
    SigningKey::from_pem(&pair.serialize_pem()).expect("a key that signs")
});

const ACCEPTED: &[Algorithm] = &[Algorithm::RS256, Algorithm::ES256];

pub fn tokens(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(parsed) = Parsed::parse(text) {
        let claims = parsed.verify::<Value>(&KEY.public, ACCEPTED);
        assert!(claims.is_err(), "nobody but the key signs: {claims:?}");
        let _ = parsed.unverified::<Value>();
    }
    let values: Vec<&str> = text.split('\n').collect();
    let _ = websocket_bearer(&values);
    if let Ok(set) = serde_json::from_str::<JwkSet>(text) {
        set.keys.iter().for_each(key);
    }
    if let Ok(jwk) = serde_json::from_str::<Jwk>(text) {
        key(&jwk);
    }
}

fn key(jwk: &Jwk) {
    if let Some(key) = PublicKey::from_jwk(jwk) {
        let _ = key.to_jwk();
        let token = KEY.sign(&json!({"sub": "a"})).expect("the key signs");
        let verified = Parsed::parse(&token).expect("a token").verify::<Value>(&key, ACCEPTED);
        assert!(verified.is_err(), "another key than the one that signed verifies");
    }
}

pub fn certificate_seeds() -> Vec<Vec<u8>> {
    let pair = rcgen::KeyPair::generate().expect("a key");
    let mut parameters =
        rcgen::CertificateParams::new(["a.example".to_string(), "10.0.0.1".to_string()]).expect("names");
    parameters.distinguished_name.push(rcgen::DnType::CommonName, "system:node:a");
    parameters.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    let request = parameters.serialize_request(&pair).and_then(|request| request.pem()).expect("a request");
    let certificate = parameters.self_signed(&pair).expect("a certificate");
    vec![
        request.clone().into_bytes(),
        format!("Certificate Request:\n  Data\n{request}").into_bytes(),
        certificate.pem().into_bytes(),
        certificate.der().to_vec(),
        pair.serialize_pem().into_bytes(),
        pair.public_key_pem().into_bytes(),
    ]
}

pub fn token_seeds() -> Vec<Vec<u8>> {
    // Signed by a key that is gone when this returns.
    let pair = rcgen::KeyPair::generate().expect("a key");
    let key = SigningKey::from_pem(&pair.serialize_pem()).expect("a key that signs");
    let claims = json!({"iss": "https://kubernetes.default.svc", "sub": "system:serviceaccount:a:b", "aud": ["x"],
        "exp": 4_102_444_800_i64, "iat": 0, "kubernetes.io": {"namespace": "a", "serviceaccount": {"name": "b", "uid": "c"}}});
    let token = key.sign(&claims).expect("it signs");
    let jwk = serde_json::to_string(&key.public.to_jwk()).expect("JSON");
    vec![
        token.into_bytes(),
        format!("{{\"keys\":[{jwk}]}}").into_bytes(),
        jwk.into_bytes(),
        br#"{"kty":"RSA","n":"sXchDaQebHnPiGvyDOAT4saGEUetSyo9MKLOoWFsueri23bOdgWp4Dy1Wl","e":"AQAB"}"#
            .to_vec(),
        b"v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.YQ\nbase64.channel.k8s.io".to_vec(),
    ]
}
