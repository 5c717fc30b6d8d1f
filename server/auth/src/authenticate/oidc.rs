//! Tokens of an OpenID Connect provider.
//!
//! The provider's keys are found by discovery, kept, and fetched again when a token names a key
//! that is not among them: so providers rotate keys as they like, and a flood of made-up tokens
//! causes one fetch per [`REFETCH_AFTER`] and no more.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::RwLock;
use rustls_pki_types::CertificateDer;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    AuthenticationError, AuthenticationResult, Identity, TokenAuthenticator,
    service_account::{NumericDate, one_or_many},
    tokens::intersect,
};
use crate::{
    MaybeReady,
    attributes::{quote, quote_list},
    cache::{ExpiringCache, Fingerprint},
    jws::{Algorithm, JwkSet, JwsError, Parsed, PublicKey},
    outbound::Endpoint,
    user::{CREDENTIAL_ID, User},
};

const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";
const REFETCH_AFTER: Duration = Duration::from_secs(10);
/// Providers and clusters keep slightly different time.
const NOT_BEFORE_LEEWAY: Duration = Duration::from_secs(300);

#[derive(Clone, Debug)]
pub struct OidcConfig {
    /// `https://`, without a trailing `/.well-known/…`; must be the `iss` of its tokens.
    pub issuer_url: String,
    /// A token must name one of these in `aud`.
    pub audiences: Vec<String>,
    pub username_claim: String,
    /// Goes before every user name, so that the provider cannot name `system:` users.
    pub username_prefix: String,
    pub groups_claim: Option<String>,
    pub groups_prefix: String,
    pub required_claims: BTreeMap<String, String>,
    pub algorithms: Vec<Algorithm>,
    /// Trusted instead of the system's authorities.
    pub authorities: Option<Vec<CertificateDer<'static>>>,
}

impl OidcConfig {
    /// `prefix` is the flag `--oidc-username-prefix`: without it names get the issuer as prefix,
    /// unless they are mail addresses; `-` means none.
    pub fn username_prefix(prefix: Option<&str>, claim: &str, issuer: &str) -> String {
        match prefix {
            Some("-") => String::new(),
            Some(prefix) => prefix.to_owned(),
            None if claim == "email" => String::new(),
            None => format!("{issuer}#"),
        }
    }
}

pub struct Oidc {
    config: OidcConfig,
    keys: RwLock<Keys>,
    /// Held while fetching, so that concurrent requests wait for one fetch.
    fetching: tokio::sync::Mutex<()>,
    verified: ExpiringCache<Fingerprint, Identity>,
}

#[derive(Clone, Default)]
struct Keys {
    set: Arc<Vec<PublicKey>>,
    tried: Option<SystemTime>,
    problem: Option<String>,
}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

#[derive(Deserialize)]
struct Claims {
    #[serde(default)]
    iss: String,
    #[serde(default, deserialize_with = "one_or_many")]
    aud: Vec<String>,
    exp: Option<NumericDate>,
    nbf: Option<NumericDate>,
    #[serde(flatten)]
    all: Map<String, Value>,
}

impl Oidc {
    /// Does not contact the provider: a cluster starts also while its provider is away.
    pub fn new(config: OidcConfig) -> Result<Self, AuthenticationError> {
        if !config.issuer_url.starts_with("https://") {
            return Err(AuthenticationError(format!(
                "the issuer URL {} is not https",
                quote(&config.issuer_url)
            )));
        }
        Ok(Oidc {
            config,
            keys: RwLock::default(),
            fetching: tokio::sync::Mutex::new(()),
            verified: ExpiringCache::new(8192),
        })
    }

    /// `Ok(None)`: none of the keys at hand signed it, though another may have.
    fn verify(&self, parsed: &Parsed<'_>) -> Result<Option<Claims>, AuthenticationError> {
        let keys = self.keys.read().set.clone();
        let named = |key: &&PublicKey| parsed.key_id.as_ref().is_none_or(|id| *id == key.id);
        for key in keys.iter().filter(named) {
            match parsed.verify(key, &self.config.algorithms) {
                Ok(claims) => return Ok(Some(claims)),
                Err(JwsError::Signature) => {}
                Err(error) => return Err(refuse(&error)),
            }
        }
        Ok(None)
    }

    async fn verify_with_fresh_keys(
        &self,
        token: &str,
        now: SystemTime,
    ) -> Result<AuthenticationResult, AuthenticationError> {
        self.refetch(now).await;
        let parsed = Parsed::parse(token).map_err(|error| refuse(&error))?;
        match self.verify(&parsed)? {
            Some(claims) => self.accept(token, claims, now),
            None => {
                let problem = self.keys.read().problem.clone();
                let problem = problem.unwrap_or_else(|| "failed to verify signature".to_owned());
                Err(refuse(&problem))
            }
        }
    }

    async fn refetch(&self, now: SystemTime) {
        let _alone = self.fetching.lock().await;
        // Somebody else fetched while this request waited, or just before it came.
        let is_recent =
            |tried: SystemTime| now.duration_since(tried).unwrap_or(Duration::ZERO) < REFETCH_AFTER;
        if self.keys.read().tried.is_some_and(is_recent) {
            return;
        }
        let mut span = ferry_trace::span("auth.oidc_keys");
        let fetched = span.in_scope(self.fetch()).await;
        let mut keys = self.keys.write();
        keys.tried = Some(now);
        match fetched {
            Ok(set) => {
                keys.set = Arc::new(set);
                keys.problem = None;
            }
            // The keys of before stay good: a provider that is away breaks nobody's session.
            Err(problem) => {
                span.fail(&problem);
                tracing::warn!(
                    issuer = self.config.issuer_url,
                    problem,
                    "the OpenID provider's keys cannot be fetched"
                );
                keys.problem = Some(problem);
            }
        }
    }

    async fn fetch(&self) -> Result<Vec<PublicKey>, String> {
        let authorities = self.config.authorities.as_deref();
        let get_from = |url: &str| Endpoint::from_url(url, authorities).map_err(|error| error.to_string());
        let issuer = self.config.issuer_url.trim_end_matches('/');
        let discovery: Discovery =
            get_from(&format!("{issuer}{DISCOVERY_PATH}"))?.get().await.map_err(|error| error.to_string())?;
        if discovery.issuer != self.config.issuer_url {
            return Err(format!(
                "the issuer at {} calls itself {}",
                quote(&self.config.issuer_url),
                quote(&discovery.issuer)
            ));
        }
        let set: JwkSet = get_from(&discovery.jwks_uri)?.get().await.map_err(|error| error.to_string())?;
        Ok(set.keys.iter().filter_map(PublicKey::from_jwk).collect())
    }

    fn accept(
        &self,
        token: &str,
        claims: Claims,
        now: SystemTime,
    ) -> Result<AuthenticationResult, AuthenticationError> {
        let expires = claims.exp.ok_or_else(|| refuse(&"the token has no expiry"))?.time();
        if expires <= now {
            return Err(refuse(&"token is expired"));
        }
        if claims.nbf.is_some_and(|start| now + NOT_BEFORE_LEEWAY < start.time()) {
            return Err(refuse(&"token is not valid yet"));
        }
        if claims.iss != self.config.issuer_url {
            return Err(refuse(&"token was issued by somebody else"));
        }
        if intersect(&self.config.audiences, &claims.aud).is_empty() {
            return Err(refuse(&format!(
                "expected audience in {} got {}",
                quote_list(&self.config.audiences),
                quote_list(&claims.aud)
            )));
        }
        let identity = Identity::new(user_of(&self.config, &claims.all)?);
        self.verified.insert(Fingerprint::of(token.as_bytes()), identity.clone(), expires, now);
        Ok(AuthenticationResult::Authenticated(identity))
    }
}

fn refuse(reason: &dyn std::fmt::Display) -> AuthenticationError {
    AuthenticationError(format!("oidc: verify token: {reason}"))
}

fn user_of(config: &OidcConfig, claims: &Map<String, Value>) -> Result<User, AuthenticationError> {
    let error = |text: String| AuthenticationError(format!("oidc: {text}"));
    let claim = &config.username_claim;
    let name = match claims.get(claim) {
        Some(Value::String(name)) => name,
        Some(_) => return Err(error(format!("parse username claims {}: it is not a string", quote(claim)))),
        None => return Err(error(format!("parse username claims {}: claim not present", quote(claim)))),
    };
    // Whoever lets users type in their address must have checked it.
    if claim == "email" && claims.get("email_verified").is_some_and(|verified| *verified != Value::Bool(true))
    {
        return Err(error("email not verified".to_owned()));
    }
    if name.is_empty() {
        return Err(error("the user name is empty".to_owned()));
    }
    for (claim, value) in &config.required_claims {
        if claims.get(claim).and_then(Value::as_str) != Some(value) {
            return Err(error(format!("required claim {claim} has not the value {}", quote(value))));
        }
    }
    let mut user = User::new(format!("{}{name}", config.username_prefix));
    if let Some(claim) = &config.groups_claim {
        let groups = groups_of(claims.get(claim))
            .ok_or_else(|| error(format!("parse groups claim {}", quote(claim))))?;
        user.groups = groups.into_iter().map(|group| format!("{}{group}", config.groups_prefix)).collect();
    }
    if let Some(id) = claims.get("jti").and_then(Value::as_str).filter(|id| !id.is_empty()) {
        user.extra.insert(CREDENTIAL_ID.to_owned(), vec![format!("JTI={id}")]);
    }
    Ok(user)
}

/// One group, several, or none; `None` if the claim is something else.
fn groups_of(claim: Option<&Value>) -> Option<Vec<String>> {
    match claim {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::String(group)) => Some(vec![group.clone()]),
        Some(Value::Array(groups)) => groups.iter().map(|group| group.as_str().map(str::to_owned)).collect(),
        Some(_) => None,
    }
}

impl TokenAuthenticator for Oidc {
    fn authenticate_token<'a>(
        &'a self,
        token: &'a str,
        _: &'a [String],
        now: SystemTime,
    ) -> MaybeReady<'a, Result<AuthenticationResult, AuthenticationError>> {
        if let Some(identity) = self.verified.get(&Fingerprint::of(token.as_bytes()), now) {
            return MaybeReady::Now(Ok(AuthenticationResult::Authenticated(identity)));
        }
        let Ok(parsed) = Parsed::parse(token) else {
            return MaybeReady::Now(Ok(AuthenticationResult::NotMine));
        };
        let ours = parsed.unverified::<Claims>().is_ok_and(|claims| claims.iss == self.config.issuer_url);
        if !ours {
            return MaybeReady::Now(Ok(AuthenticationResult::NotMine));
        }
        match self.verify(&parsed) {
            Ok(Some(claims)) => MaybeReady::Now(self.accept(token, claims, now)),
            Ok(None) => MaybeReady::Later(Box::pin(self.verify_with_fresh_keys(token, now))),
            Err(error) => MaybeReady::Now(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests;
