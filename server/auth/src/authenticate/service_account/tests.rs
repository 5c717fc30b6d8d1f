use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;

const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Objects by kind, namespace and name; answers at once or, like a live lookup, later.
#[derive(Default)]
struct Objects {
    found: Mutex<BTreeMap<(u8, String, String), BoundObject>>,
    later: bool,
    /// Secrets whose tokens were used.
    used: Mutex<Vec<String>>,
}

impl Objects {
    fn set(&self, kind: BoundKind, namespace: &str, name: &str, object: Option<BoundObject>) {
        let key = (kind as u8, namespace.to_owned(), name.to_owned());
        match object {
            Some(object) => self.found.lock().insert(key, object),
            None => self.found.lock().remove(&key),
        };
    }
}

impl BoundObjects for Objects {
    fn find<'a>(
        &'a self,
        kind: BoundKind,
        namespace: &'a str,
        name: &'a str,
    ) -> MaybeReady<'a, Option<BoundObject>> {
        let found = self.found.lock().get(&(kind as u8, namespace.to_owned(), name.to_owned())).cloned();
        if self.later { MaybeReady::Later(Box::pin(async move { found })) } else { MaybeReady::Now(found) }
    }

    fn kept_token_used(&self, KeptToken { namespace, secret, .. }: KeptToken<'_>, _now: SystemTime) {
        self.used.lock().push(format!("{namespace}/{secret}"));
    }
}

fn object(uid: &str) -> Option<BoundObject> {
    Some(BoundObject { uid: uid.to_owned(), ..BoundObject::default() })
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

fn new_key() -> String {
    rcgen::KeyPair::generate().unwrap().serialize_pem()
}

struct Case {
    accounts: ServiceAccounts,
    objects: Arc<Objects>,
    key: String,
}

fn case_answering(later: bool) -> Case {
    case_with(later, true)
}

fn case_with(later: bool, lookup: bool) -> Case {
    let objects = Arc::new(Objects { later, ..Objects::default() });
    objects.set(BoundKind::ServiceAccount, "ns", "robot", object("sa-uid"));
    objects.set(BoundKind::Pod, "ns", "web", object("pod-uid"));
    objects.set(BoundKind::Secret, "ns", "keep", object("secret-uid"));
    objects.set(BoundKind::Node, "", "n1", object("node-uid"));
    let key = new_key();
    let config = ServiceAccountConfig {
        issuers: vec![ISSUER.to_owned(), "https://old".to_owned()],
        api_audiences: vec!["api".to_owned()],
        signing_key: key.clone(),
        verifying_keys: Vec::new(),
        lookup,
    };
    Case { accounts: ServiceAccounts::new(config, objects.clone()).unwrap(), objects, key }
}

fn case() -> Case {
    case_answering(false)
}

fn request<'a>(bound_to: BoundTo<'a>, audiences: &'a [String]) -> TokenRequest<'a> {
    TokenRequest {
        namespace: "ns",
        service_account: Reference { name: "robot", uid: "sa-uid" },
        bound_to,
        audiences,
        lifetime: Duration::from_secs(3600),
        warn_after: None,
    }
}

const POD: BoundTo<'_> = BoundTo::Pod {
    pod: Reference { name: "web", uid: "pod-uid" },
    node: Some(Reference { name: "n1", uid: "node-uid" }),
};

impl Case {
    fn issue(&self, bound_to: BoundTo<'_>) -> String {
        self.accounts.issue(&request(bound_to, &[]), at(0)).unwrap().token
    }

    async fn ask_for(&self, token: &str, audience: &str, seconds: u64) -> Result<Option<Identity>, String> {
        let audiences = [audience.to_owned()];
        match self.accounts.authenticate_token(token, &audiences, at(seconds)).get().await {
            Ok(AuthenticationResult::Authenticated(identity)) => Ok(Some(identity)),
            Ok(AuthenticationResult::NotMine) => Ok(None),
            Err(error) => Err(error.0),
        }
    }

    async fn ask(&self, token: &str, seconds: u64) -> Result<Option<Identity>, String> {
        self.ask_for(token, "api", seconds).await
    }

    /// A token with claims of our choosing, signed by the server's own key.
    fn sign(&self, change: Value) -> String {
        let mut claims = json!({
            "iss": ISSUER, "sub": "system:serviceaccount:ns:robot", "aud": ["api"], "exp": 1_003_600, "nbf": 1_000_000,
            "kubernetes.io": {"namespace": "ns", "serviceaccount": {"name": "robot", "uid": "sa-uid"}},
        });
        claims.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        SigningKey::from_pem(&self.key).unwrap().sign(&claims).unwrap()
    }
}

#[tokio::test]
async fn a_token_comes_back_as_its_account_pod_and_node() {
    for later in [false, true] {
        let case = case_answering(later);
        let issued = case.accounts.issue(&request(POD, &[]), at(0)).unwrap();
        assert_eq!(issued.expires, at(3600));
        let identity = case.ask(&issued.token, 10).await.unwrap().unwrap();
        let user = &identity.user;
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("system:serviceaccount:ns:robot", "sa-uid"));
        assert_eq!(
            user.groups,
            ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"]
        );
        let extra = |key: &str| user.extra[key][0].as_str();
        assert_eq!((extra(user::POD_NAME), extra(user::POD_UID)), ("web", "pod-uid"));
        assert_eq!((extra(user::NODE_NAME), extra(user::NODE_UID)), ("n1", "node-uid"));
        assert_eq!(extra(user::CREDENTIAL_ID), issued.credential_id);
        assert_eq!(identity.audiences, ["api"]);
    }
}

#[tokio::test]
async fn time_bounds_a_token_on_both_sides() {
    let case = case();
    let token = case.issue(BoundTo::Nothing);
    assert!(case.ask(&token, 3659).await.is_ok(), "clocks may differ by a minute");
    assert_eq!(case.ask(&token, 3661).await.unwrap_err(), "service account token has expired");
    let early = case.sign(json!({"nbf": 1_000_100}));
    assert_eq!(case.ask(&early, 39).await.unwrap_err(), "service account token is not valid yet");
    assert!(case.ask(&early, 40).await.is_ok());
    let future = case.sign(json!({"iat": 1_000_100.5}));
    assert_eq!(case.ask(&future, 0).await.unwrap_err(), "service account token is issued in the future");
}

#[tokio::test]
async fn a_token_is_for_its_audience_only() {
    let case = case();
    let vault = ["vault".to_owned()];
    let token = case.accounts.issue(&request(BoundTo::Nothing, &vault), at(0)).unwrap().token;
    assert_eq!(
        case.ask(&token, 1).await.unwrap_err(),
        r#"token audiences ["vault"] is invalid for the target audiences ["api"]"#
    );
    assert_eq!(case.ask_for(&token, "vault", 1).await.unwrap().unwrap().audiences, ["vault"]);
    let single = case.sign(json!({"aud": "api"}));
    assert!(case.ask(&single, 1).await.unwrap().is_some(), "an audience may be a plain string");
}

#[tokio::test]
async fn a_token_ends_with_what_it_is_bound_to() {
    let bound: &[(BoundTo<'_>, BoundKind, &str, &str)] = &[
        (POD, BoundKind::Pod, "ns", "web"),
        (BoundTo::Secret(Reference { name: "keep", uid: "secret-uid" }), BoundKind::Secret, "ns", "keep"),
        (BoundTo::Node(Reference { name: "n1", uid: "node-uid" }), BoundKind::Node, "", "n1"),
        (BoundTo::Nothing, BoundKind::ServiceAccount, "ns", "robot"),
    ];
    for (bound_to, kind, namespace, name) in bound {
        let case = case();
        let token = case.issue(*bound_to);
        let before = case.ask(&token, 1).await.unwrap();
        assert!(before.is_some());
        let uid = case.objects.find(*kind, namespace, name).get().await.unwrap().uid;
        let leaving = |seconds| {
            Some(BoundObject { uid: uid.clone(), deleted: Some(at(seconds)), ..BoundObject::default() })
        };
        case.objects.set(*kind, namespace, name, leaving(10));
        assert!(case.ask(&token, 60).await.is_ok(), "{kind:?}: it may finish its work");
        assert!(case.ask(&token, 71).await.is_err(), "{kind:?}: deleted for more than a minute");
        case.objects.set(*kind, namespace, name, object("another"));
        assert!(
            case.ask(&token, 2).await.unwrap_err().contains("UID (another) does not match"),
            "{kind:?}: replaced"
        );
        case.objects.set(*kind, namespace, name, None);
        assert!(case.ask(&token, 3).await.is_err(), "{kind:?}: gone");
    }
}

#[tokio::test]
async fn forged_tokens_are_refused_and_foreign_ones_left_to_others() {
    let case = case();
    let token = case.issue(BoundTo::Nothing);
    let stranger = SigningKey::from_pem(&new_key()).unwrap();
    let claims: Value = Parsed::parse(&token).unwrap().unverified().unwrap();
    let forged = stranger.sign(&claims).unwrap();
    assert_eq!(case.ask(&forged, 1).await.unwrap_err(), "invalid signature, reading a key: no keys found");
    // The same without a key id, so that every key is tried.
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
    let rest = forged.split_once('.').unwrap().1;
    let nameless = format!("{}.{rest}", URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256"}"#));
    assert_eq!(
        case.ask(&nameless, 1).await.unwrap_err(),
        "invalid signature, the token's signature is invalid"
    );
    let (unsigned, _) = rest.split_once('.').unwrap();
    let none = format!("{}.{unsigned}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#));
    assert!(case.ask(&none, 1).await.unwrap_err().contains("\"none\" is not accepted"));

    let foreign = stranger.sign(&json!({"iss": "https://elsewhere"})).unwrap();
    for not_ours in [foreign.as_str(), "abcdef.0123456789abcdef", "opaque", "a.b.c", ""] {
        assert!(case.ask(not_ours, 1).await.unwrap().is_none(), "{not_ours}");
    }
    assert!(
        case.ask(&case.sign(json!({"iss": "https://old"})), 1).await.unwrap().is_some(),
        "an issuer of before"
    );
}

#[tokio::test]
async fn keys_rotate_without_breaking_tokens_that_are_out() {
    let case = case();
    let old = case.issue(BoundTo::Nothing);
    let fresh_key = new_key();
    case.accounts.set_keys(&fresh_key, std::slice::from_ref(&case.key)).unwrap();
    let new = case.issue(BoundTo::Nothing);
    assert!(case.ask(&old, 1).await.unwrap().is_some() && case.ask(&new, 1).await.unwrap().is_some());
    let set: crate::jws::JwkSet = serde_json::from_str(&case.accounts.jwks()).unwrap();
    assert_eq!(set.keys.len(), 2);
    case.accounts.set_keys(&fresh_key, &[]).unwrap();
    assert!(case.ask(&old, 1).await.is_err(), "a withdrawn key's tokens end at once, remembered or not");
    assert!(case.ask(&new, 1).await.unwrap().is_some());
}

#[tokio::test]
async fn a_token_kept_in_a_secret_lives_and_ends_with_it() {
    let case = case();
    let account = Reference { name: "robot", uid: "sa-uid" };
    let token = case.accounts.issue_legacy("ns", account, "keep").unwrap();
    let kept = BoundObject { token: token.clone().into_bytes(), ..BoundObject::default() };
    case.objects.set(BoundKind::Secret, "ns", "keep", Some(kept.clone()));
    let identity = case.ask(&token, 0).await.unwrap().unwrap();
    assert_eq!(identity.user.name, "system:serviceaccount:ns:robot");
    assert_eq!(identity.audiences, ["api"], "such a token is for the API server");
    assert!(case.ask_for(&token, "vault", 0).await.is_err());
    assert!(case.ask(&token, 1_000_000_000).await.unwrap().is_some(), "it has no end of its own");

    case.objects.used.lock().clear();
    case.objects.set(
        BoundKind::Secret,
        "ns",
        "keep",
        Some(BoundObject { invalidated: true, ..kept.clone() }),
    );
    assert!(case.ask(&token, 0).await.unwrap_err().contains("has been marked invalid"));
    assert_eq!(*case.objects.used.lock(), ["ns/keep"], "somebody still uses it");
    case.objects.set(BoundKind::Secret, "ns", "keep", object("x"));
    assert_eq!(case.ask(&token, 0).await.unwrap_err(), "Token does not match server's copy");
    assert_eq!(case.objects.used.lock().len(), 1, "it is another token by now");
    case.objects.set(BoundKind::Secret, "ns", "keep", None);
    assert!(case.ask(&token, 0).await.is_err());
}

#[tokio::test]
async fn without_lookup_a_kept_token_needs_neither_its_secret_nor_its_account() {
    let case = case_with(false, false);
    let token = case.accounts.issue_legacy("ns", Reference { name: "gone", uid: "old" }, "gone").unwrap();
    let identity = case.ask(&token, 0).await.unwrap().unwrap();
    assert_eq!(identity.user.name, "system:serviceaccount:ns:gone");
    assert!(case.objects.used.lock().is_empty(), "nobody looked whether the Secret is there");
    let requested = case.issue(POD);
    case.objects.set(BoundKind::Pod, "ns", "web", None);
    assert!(case.ask(&requested, 1).await.is_err(), "a token of TokenRequest is looked up all the same");
}

#[test]
fn the_discovery_documents_are_what_relying_parties_read() {
    let case = case();
    let configuration: Value =
        serde_json::from_str(&case.accounts.openid_configuration("https://10.0.0.1:6443/openid/v1/jwks"))
            .unwrap();
    assert_eq!(
        configuration,
        json!({
            "issuer": ISSUER,
            "jwks_uri": "https://10.0.0.1:6443/openid/v1/jwks",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        })
    );
    let set: crate::jws::JwkSet = serde_json::from_str(&case.accounts.jwks()).unwrap();
    let key = PublicKey::from_jwk(&set.keys[0]).unwrap();
    let token = case.issue(POD);
    let claims: Value = Parsed::parse(&token).unwrap().verify(&key, ALGORITHMS).unwrap();
    assert_eq!(
        claims["kubernetes.io"],
        json!({
            "namespace": "ns",
            "serviceaccount": {"name": "robot", "uid": "sa-uid"},
            "pod": {"name": "web", "uid": "pod-uid"},
            "node": {"name": "n1", "uid": "node-uid"},
        })
    );
    assert_eq!((&claims["exp"], &claims["nbf"]), (&json!(1_003_600), &json!(1_000_000)));
}
