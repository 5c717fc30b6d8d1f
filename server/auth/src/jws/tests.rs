use serde_json::{Value, json};

use super::*;

const ALL: &[Algorithm] = &[Algorithm::RS256, Algorithm::ES256, Algorithm::ES384];

fn key(algorithm: &'static rcgen::SignatureAlgorithm) -> SigningKey {
    SigningKey::from_pem(&rcgen::KeyPair::generate_for(algorithm).unwrap().serialize_pem()).unwrap()
}

/// 2048 bits, made for this test and used nowhere else: `ring` cannot make RSA keys.
const RSA_KEY: &str = include_str!("rsa_for_tests.pem");

fn verify(token: &str, key: &PublicKey) -> Result<Value, JwsError> {
    Parsed::parse(token)?.verify(key, ALL)
}

fn swap_header(token: &str, header: Value) -> String {
    let (_, rest) = token.split_once('.').unwrap();
    format!("{}.{rest}", URL_SAFE_NO_PAD.encode(header.to_string()))
}

#[test]
fn signatures_verify_with_the_public_key_and_its_jwk() {
    let keys = [
        key(&rcgen::PKCS_ECDSA_P256_SHA256),
        key(&rcgen::PKCS_ECDSA_P384_SHA384),
        SigningKey::from_pem(RSA_KEY).unwrap(),
    ];
    for key in &keys {
        // Signatures differ each time, and one in 128 has a short number in it.
        for round in 0..20 {
            let token = key.sign(&json!({"round": round})).unwrap();
            assert_eq!(verify(&token, &key.public), Ok(json!({"round": round})));
            let through_json: Jwk =
                serde_json::from_str(&serde_json::to_string(&key.public.to_jwk()).unwrap()).unwrap();
            assert_eq!(PublicKey::from_jwk(&through_json), Some(key.public.clone()));
        }
    }
    let token = keys[0].sign(&json!({})).unwrap();
    for other in &keys[1..] {
        assert!(verify(&token, &other.public).is_err(), "another key verifies nothing");
    }
}

#[test]
fn a_tampered_token_does_not_verify() {
    let key = key(&rcgen::PKCS_ECDSA_P256_SHA256);
    let token = key.sign(&json!({"sub": "jane"})).unwrap();
    let [header, _, signature] = *token.split('.').collect::<Vec<_>>().as_slice() else { panic!() };
    let forged = format!("{header}.{}.{signature}", URL_SAFE_NO_PAD.encode(r#"{"sub":"root"}"#));
    assert_eq!(verify(&forged, &key.public), Err(JwsError::Signature));
    let truncated = &token[..token.len() - 4];
    assert!(verify(truncated, &key.public).is_err());
}

#[test]
fn the_header_cannot_choose_a_weaker_algorithm() {
    let key = key(&rcgen::PKCS_ECDSA_P256_SHA256);
    let token = key.sign(&json!({"sub": "jane"})).unwrap();
    for algorithm in ["none", "None", "NONE", "HS256", "ES384", "RS256", "", "EdDSA"] {
        let forged = swap_header(&token, json!({"alg": algorithm}));
        assert_eq!(verify(&forged, &key.public), Err(JwsError::Algorithm(algorithm.to_owned())));
        let (unsigned, _) = forged.rsplit_once('.').unwrap();
        assert!(verify(&format!("{unsigned}."), &key.public).is_err());
    }
    assert_eq!(
        Parsed::parse(&token).unwrap().verify::<Value>(&key.public, &[Algorithm::RS256]),
        Err(JwsError::Algorithm("ES256".to_owned())),
        "an algorithm that was not asked for"
    );
    let critical = swap_header(&token, json!({"alg": "ES256", "crit": ["b64"]}));
    assert_eq!(verify(&critical, &key.public), Err(JwsError::Malformed));
}

#[test]
fn nonsense_is_malformed_and_nothing_panics() {
    let key = key(&rcgen::PKCS_ECDSA_P256_SHA256);
    for nonsense in
        ["", ".", "..", "...", "a.b.c", "e30.e30.", "eyJhbGciOjF9.e30.AA", "\u{1F980}.x.y", "bm8.bm8.bm8"]
    {
        assert!(verify(nonsense, &key.public).is_err(), "{nonsense:?}");
    }
    for der in [&[][..], &[0x30], &[0x30, 5, 2, 9, 1], &[0x30, 4, 2, 1, 1, 2], &[0x30, 6, 2, 1, 1, 3, 1, 1]] {
        assert_eq!(fixed_ecdsa(der, 32), None);
    }
}

#[test]
fn a_pem_file_may_hold_public_keys_private_keys_and_certificates() {
    let pair = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::default().self_signed(&pair).unwrap();
    let pem = format!("{}{}{}", pair.public_key_pem(), pair.serialize_pem(), certificate.pem());
    let keys = PublicKey::all_from_pem(&pem).unwrap();
    assert_eq!(keys.len(), 3);
    assert!(keys.iter().all(|key| *key == keys[0]));
    assert!(PublicKey::all_from_pem("nothing here").is_err());
}
