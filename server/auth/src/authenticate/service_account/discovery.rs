//! The documents with which relying parties outside the cluster verify service account tokens.

use std::collections::BTreeSet;

use serde_json::json;

use crate::jws::{JwkSet, PublicKey};

pub const OPENID_CONFIGURATION_PATH: &str = "/.well-known/openid-configuration";
pub const JWKS_PATH: &str = "/openid/v1/jwks";

pub(super) fn jwks(keys: &[PublicKey]) -> String {
    let set = JwkSet { keys: keys.iter().map(PublicKey::to_jwk).collect() };
    serde_json::to_string(&set).expect("a key set is plain strings")
}

pub(super) fn openid_configuration(issuer: &str, jwks_uri: &str, keys: &[PublicKey]) -> String {
    let algorithms: BTreeSet<String> = keys.iter().map(|key| key.algorithm().to_string()).collect();
    json!({
        "issuer": issuer,
        "jwks_uri": jwks_uri,
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": algorithms,
    })
    .to_string()
}
