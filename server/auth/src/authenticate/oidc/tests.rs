use std::sync::Mutex;

use serde_json::json;

use super::*;
use crate::{
    jws::SigningKey,
    pki::{Pki, PkiConfig},
    test_server::TestServer,
};

/// A provider on loopback with a real certificate, whose keys can be exchanged.
struct Provider {
    _home: tempfile::TempDir,
    server: TestServer,
    authorities: Vec<CertificateDer<'static>>,
    keys: Arc<Mutex<Vec<SigningKey>>>,
    issuer: Arc<Mutex<String>>,
}

fn new_key() -> SigningKey {
    SigningKey::from_pem(&rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap()
}

impl Provider {
    async fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let pki = Pki::open_or_create(home.path(), PkiConfig::new("cluster.local", ["host"])).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let tls = tls.with_no_client_auth().with_cert_resolver(pki.serving());
        let keys = Arc::new(Mutex::new(vec![new_key()]));
        let issuer = Arc::new(Mutex::new(String::new()));
        let server = TestServer::start_tls(Arc::new(tls), {
            let (keys, issuer) = (keys.clone(), issuer.clone());
            move |request| {
                let issuer = issuer.lock().unwrap().clone();
                let keys = keys.lock().unwrap();
                match request.path.as_str() {
                    DISCOVERY_PATH => {
                        (200, json!({"issuer": issuer, "jwks_uri": format!("{issuer}/keys")}).to_string())
                    }
                    "/keys" => {
                        let set = JwkSet { keys: keys.iter().map(|key| key.public.to_jwk()).collect() };
                        (200, serde_json::to_string(&set).unwrap())
                    }
                    other => (404, other.to_owned()),
                }
            }
        })
        .await;
        *issuer.lock().unwrap() = server.url("");
        Provider { authorities: pki.ca_bundle(), _home: home, server, keys, issuer }
    }

    fn config(&self) -> OidcConfig {
        OidcConfig {
            issuer_url: self.server.url(""),
            audiences: vec!["kubernetes".to_owned()],
            username_claim: "sub".to_owned(),
            username_prefix: "oidc:".to_owned(),
            groups_claim: Some("groups".to_owned()),
            groups_prefix: "oidc:".to_owned(),
            required_claims: BTreeMap::new(),
            algorithms: vec![Algorithm::ES256, Algorithm::RS256],
            authorities: Some(self.authorities.clone()),
        }
    }

    fn token(&self, change: Value) -> String {
        let mut claims = json!({
            "iss": self.server.url(""), "sub": "jane", "aud": "kubernetes", "exp": 5_000, "groups": ["dev", "ops"], "jti": "t1",
        });
        claims.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        self.keys.lock().unwrap()[0].sign(&claims).unwrap()
    }
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

async fn ask(oidc: &Oidc, token: &str, seconds: u64) -> Result<Option<User>, String> {
    match oidc.authenticate_token(token, &[], at(seconds)).get().await {
        Ok(AuthenticationResult::Authenticated(identity)) => Ok(Some((*identity.user).clone())),
        Ok(AuthenticationResult::NotMine) => Ok(None),
        Err(error) => Err(error.0),
    }
}

#[tokio::test]
async fn a_token_of_the_provider_names_user_and_groups_with_prefixes() {
    let provider = Provider::start().await;
    let oidc = Oidc::new(provider.config()).unwrap();
    let token = provider.token(json!({}));
    let jane = ask(&oidc, &token, 1_000).await.unwrap().unwrap();
    assert_eq!(jane.name, "oidc:jane");
    assert_eq!(jane.groups, ["oidc:dev", "oidc:ops", "system:authenticated"]);
    assert_eq!(jane.extra[CREDENTIAL_ID], ["JTI=t1"]);
    let requests = provider.server.requests();
    assert_eq!(requests, 2, "discovery and keys");
    assert!(ask(&oidc, &token, 4_999).await.unwrap().is_some());
    assert!(ask(&oidc, &provider.token(json!({"groups": "one"})), 1_000).await.unwrap().is_some());
    assert_eq!(provider.server.requests(), requests, "the keys are known now");
    for foreign in ["opaque", "a.b.c", &provider.token(json!({"iss": "https://elsewhere"}))] {
        assert_eq!(ask(&oidc, foreign, 1_000).await, Ok(None), "{foreign}");
    }
}

#[tokio::test]
async fn tokens_that_are_not_right_are_refused() {
    let provider = Provider::start().await;
    let mut config = provider.config();
    config.required_claims = BTreeMap::from([("hd".to_owned(), "example.com".to_owned())]);
    let oidc = Oidc::new(config).unwrap();
    let good = json!({"hd": "example.com"});
    assert!(ask(&oidc, &provider.token(good), 1_000).await.unwrap().is_some());
    for (change, reason) in [
        (json!({"hd": "example.com", "exp": 999}), "token is expired"),
        (json!({"hd": "example.com", "exp": null}), "no expiry"),
        (json!({"hd": "example.com", "nbf": 1_301}), "not valid yet"),
        (
            json!({"hd": "example.com", "aud": ["vault"]}),
            r#"expected audience in ["kubernetes"] got ["vault"]"#,
        ),
        (json!({"hd": "example.com", "aud": null}), "expected audience"),
        (json!({"hd": "example.com", "sub": null}), "claim not present"),
        (json!({"hd": "example.com", "sub": 7}), "not a string"),
        (json!({"hd": "example.com", "sub": ""}), "empty"),
        (json!({"hd": "example.com", "groups": 7}), "parse groups claim"),
        (json!({}), "required claim hd"),
        (json!({"hd": "elsewhere.com"}), "required claim hd"),
    ] {
        let error = ask(&oidc, &provider.token(change.clone()), 1_000).await.unwrap_err();
        assert!(error.contains(reason), "{change}: {error}");
    }
    let stranger = new_key();
    let forged = stranger
        .sign(&json!({"iss": provider.server.url(""), "sub": "root", "aud": "kubernetes", "exp": 5_000}));
    let error = ask(&oidc, &forged.unwrap(), 1_000).await.unwrap_err();
    assert_eq!(error, "oidc: verify token: failed to verify signature");
}

#[tokio::test]
async fn a_rotated_key_is_found_and_made_up_keys_do_not_hammer_the_provider() {
    let provider = Provider::start().await;
    let oidc = Oidc::new(provider.config()).unwrap();
    let old = provider.token(json!({}));
    assert!(ask(&oidc, &old, 1_000).await.is_ok());
    provider.keys.lock().unwrap().insert(0, new_key());
    let new = provider.token(json!({"jti": "t2"}));
    assert!(ask(&oidc, &new, 1_001).await.is_err(), "the keys were fetched a second ago");
    assert!(ask(&oidc, &new, 1_011).await.unwrap().is_some());
    let before = provider.server.requests();
    for round in 0..20 {
        let forged =
            new_key().sign(&json!({"iss": provider.server.url(""), "sub": "x", "n": round})).unwrap();
        assert!(ask(&oidc, &forged, 1_012).await.is_err());
    }
    assert_eq!(provider.server.requests(), before);
}

#[tokio::test]
async fn a_provider_that_lies_about_its_name_or_is_away_is_not_believed() {
    let provider = Provider::start().await;
    *provider.issuer.lock().unwrap() = "https://elsewhere".to_owned();
    let oidc = Oidc::new(provider.config()).unwrap();
    let error = ask(&oidc, &provider.token(json!({})), 1_000).await.unwrap_err();
    assert!(error.contains("calls itself \"https://elsewhere\""), "{error}");
    let mut untrusting = provider.config();
    untrusting.authorities = Some(Vec::new());
    let oidc = Oidc::new(untrusting).unwrap();
    assert!(
        ask(&oidc, &provider.token(json!({})), 1_000).await.is_err(),
        "its certificate is of no authority we know"
    );
    assert!(Oidc::new(OidcConfig { issuer_url: "http://plain".to_owned(), ..provider.config() }).is_err());
}

#[test]
fn mail_addresses_must_be_verified_and_prefixes_default_to_the_issuer() {
    let user = |claims: Value| {
        let config = OidcConfig {
            issuer_url: "https://i".to_owned(),
            audiences: Vec::new(),
            username_claim: "email".to_owned(),
            username_prefix: OidcConfig::username_prefix(None, "email", "https://i"),
            groups_claim: None,
            groups_prefix: String::new(),
            required_claims: BTreeMap::new(),
            algorithms: Vec::new(),
            authorities: None,
        };
        user_of(&config, claims.as_object().unwrap()).map(|user| user.name).ok()
    };
    assert_eq!(user(json!({"email": "j@x"})).as_deref(), Some("j@x"));
    assert_eq!(user(json!({"email": "j@x", "email_verified": true})).as_deref(), Some("j@x"));
    assert_eq!(user(json!({"email": "j@x", "email_verified": false})), None);
    assert_eq!(user(json!({"email": "j@x", "email_verified": "true"})), None);
    assert_eq!(OidcConfig::username_prefix(None, "sub", "https://i"), "https://i#");
    assert_eq!(OidcConfig::username_prefix(Some("-"), "sub", "https://i"), "");
    assert_eq!(OidcConfig::username_prefix(Some("p:"), "sub", "https://i"), "p:");
}
