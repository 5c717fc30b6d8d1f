//! Service account tokens: JWTs the server signs itself, bound to an account and often to a pod.
//!
//! A token is believed when the signature is ours, the issuer and audience fit, the time is right,
//! and the account and the object it is bound to still exist with the same UID. The signature
//! of a token is checked once and remembered; the rest is asked again for every request, so a
//! deleted pod's token ends with the pod.

mod claims;
mod discovery;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::RwLock;

use super::{AuthenticationError, AuthenticationResult, Identity, TokenAuthenticator, tokens::intersect};
use crate::{
    MaybeReady,
    attributes::quote_list,
    cache::{ExpiringCache, Fingerprint},
    jws::{Algorithm, JwsError, Parsed, PublicKey, SigningKey},
    user::{self, User},
};

pub use claims::{BoundTo, Reference, TokenRequest};
use claims::{Claims, Issuer};
pub(crate) use claims::{NumericDate, one_or_many};
pub use discovery::{JWKS_PATH, OPENID_CONFIGURATION_PATH};

/// The issuer of tokens kept in Secrets.
const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";
/// Clocks differ, and a pod shutting down may still have something to say.
const LEEWAY: Duration = Duration::from_secs(60);
const REMEMBERED: usize = 16_384;
/// What our own keys may be.
const ALGORITHMS: &[Algorithm] = &[Algorithm::RS256, Algorithm::ES256, Algorithm::ES384];

/// The kinds a token can be bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundKind {
    ServiceAccount,
    Pod,
    Secret,
    Node,
}

/// What has to be known of an object a token refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoundObject {
    pub uid: String,
    pub deleted: Option<SystemTime>,
    /// Of a Secret: its `token`.
    pub token: Vec<u8>,
    /// Of a Secret: the label `kubernetes.io/legacy-token-invalid-since` is set.
    pub invalidated: bool,
}

/// Looks up what tokens refer to, in memory first. A miss may be a cache that lags behind, so an
/// implementation should ask the registry before it says `None`.
pub trait BoundObjects: Send + Sync {
    fn find<'a>(
        &'a self,
        kind: BoundKind,
        namespace: &'a str,
        name: &'a str,
    ) -> MaybeReady<'a, Option<BoundObject>>;

    /// A token that a Secret keeps was used. Must not block.
    fn kept_token_used(&self, used: KeptToken<'_>, now: SystemTime);
}

/// A use of a token that a Secret keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptToken<'a> {
    pub namespace: &'a str,
    pub secret: &'a str,
    pub service_account: &'a str,
    /// It was refused, because it is marked invalid.
    pub is_refused: bool,
}

pub struct ServiceAccountConfig {
    /// The first signs; tokens of all are accepted.
    pub issuers: Vec<String>,
    /// Who a token without an audience is for; also the default of TokenRequest.
    pub api_audiences: Vec<String>,
    /// PEM of the key that signs new tokens.
    pub signing_key: String,
    /// PEM of further keys whose tokens are still accepted.
    pub verifying_keys: Vec<String>,
    /// Whether the Secret that keeps a token and its account have to exist still. Tokens of TokenRequest are always
    /// looked up.
    pub lookup: bool,
}

/// Signs and verifies service account tokens.
pub struct ServiceAccounts {
    issuers: Vec<String>,
    api_audiences: Vec<String>,
    keys: RwLock<Arc<Keys>>,
    objects: Arc<dyn BoundObjects>,
    lookup: bool,
    verified: ExpiringCache<Fingerprint, Arc<Verified>>,
}

struct Keys {
    signing: SigningKey,
    /// The signing key's public half first.
    verifying: Vec<PublicKey>,
}

impl Keys {
    fn read(signing_key: &str, verifying_keys: &[String]) -> Result<Self, JwsError> {
        let signing = SigningKey::from_pem(signing_key)?;
        let mut verifying = vec![signing.public.clone()];
        for pem in verifying_keys {
            for key in PublicKey::all_from_pem(pem)? {
                if !verifying.contains(&key) {
                    verifying.push(key);
                }
            }
        }
        Ok(Keys { signing, verifying })
    }
}

/// A token whose signature and issuer are right.
struct Verified {
    claims: Claims,
    identity: Identity,
}

/// A new token, and what TokenRequest reports of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedToken {
    pub token: String,
    pub expires: SystemTime,
    /// What audit and the token's user call it: `JTI=…`.
    pub credential_id: String,
}

impl ServiceAccounts {
    pub fn new(config: ServiceAccountConfig, objects: Arc<dyn BoundObjects>) -> Result<Self, JwsError> {
        if config.issuers.is_empty() {
            return Err(JwsError::Key("service accounts need an issuer".to_owned()));
        }
        let keys = Keys::read(&config.signing_key, &config.verifying_keys)?;
        Ok(ServiceAccounts {
            issuers: config.issuers,
            api_audiences: config.api_audiences,
            keys: RwLock::new(Arc::new(keys)),
            objects,
            lookup: config.lookup,
            verified: ExpiringCache::new(REMEMBERED),
        })
    }

    /// Takes other keys from now on. To rotate, first add the new key to `verifying_keys` of all
    /// servers, then sign with it, and drop the old one when its last token has ended.
    pub fn set_keys(&self, signing_key: &str, verifying_keys: &[String]) -> Result<(), JwsError> {
        *self.keys.write() = Arc::new(Keys::read(signing_key, verifying_keys)?);
        self.verified.clear();
        Ok(())
    }

    pub fn api_audiences(&self) -> &[String] {
        &self.api_audiences
    }

    /// Signs a token for TokenRequest.
    pub fn issue(&self, request: &TokenRequest<'_>, now: SystemTime) -> Result<IssuedToken, JwsError> {
        let mut span = ferry_trace::span("auth.issue_token");
        span.object("serviceaccounts", request.namespace, request.service_account.name);
        let id = uuid::Uuid::new_v4().to_string();
        let claims = Claims::new(&self.issuers[0], request, &self.api_audiences, &id, now);
        let token = self.keys.read().signing.sign(&claims)?;
        Ok(IssuedToken { token, expires: now + request.lifetime, credential_id: format!("JTI={id}") })
    }

    /// Signs a token without an end, to be kept in a Secret.
    pub fn issue_legacy(
        &self,
        namespace: &str,
        account: Reference<'_>,
        secret: &str,
    ) -> Result<String, JwsError> {
        self.keys.read().signing.sign(&Claims::legacy(LEGACY_ISSUER, namespace, account, secret))
    }

    /// The body of `/openid/v1/jwks`.
    pub fn jwks(&self) -> String {
        discovery::jwks(&self.keys.read().verifying)
    }

    /// The body of `/.well-known/openid-configuration`. `jwks_uri` is `--service-account-jwks-uri`
    /// or the server's own address and [`JWKS_PATH`].
    pub fn openid_configuration(&self, jwks_uri: &str) -> String {
        discovery::openid_configuration(&self.issuers[0], jwks_uri, &self.keys.read().verifying)
    }

    fn verify(&self, token: &str, now: SystemTime) -> Result<Option<Arc<Verified>>, AuthenticationError> {
        let fingerprint = Fingerprint::of(token.as_bytes());
        if let Some(known) = self.verified.get(&fingerprint, now) {
            return Ok(Some(known));
        }
        // A token of somebody else's is not ours to object to.
        let Ok(parsed) = Parsed::parse(token) else { return Ok(None) };
        let Ok(issuer) = parsed.unverified::<Issuer>() else { return Ok(None) };
        if !self.is_ours(&issuer.iss) {
            return Ok(None);
        }
        let claims = self.check_signature(&parsed)?;
        if !self.is_ours(&claims.iss) {
            return Err(AuthenticationError(format!("token issuer {:?} is invalid", claims.iss)));
        }
        let kept_in = claims.kept_in().map(|(_, secret)| secret.into());
        let identity = Identity { kept_in, ..Identity::new(user_of(&claims)) };
        let verified = Arc::new(Verified { claims, identity });
        let ends = verified.claims.expires().unwrap_or(now + Duration::from_secs(3600)) + LEEWAY;
        self.verified.insert(fingerprint, verified.clone(), ends, now);
        Ok(Some(verified))
    }

    fn is_ours(&self, issuer: &str) -> bool {
        issuer == LEGACY_ISSUER || self.issuers.iter().any(|ours| ours == issuer)
    }

    fn check_signature(&self, parsed: &Parsed<'_>) -> Result<Claims, AuthenticationError> {
        let keys = self.keys.read().clone();
        let named = |key: &&PublicKey| parsed.key_id.as_ref().is_none_or(|id| *id == key.id);
        let mut error = JwsError::Key("no keys found".to_owned());
        for key in keys.verifying.iter().filter(named) {
            match parsed.verify(key, ALGORITHMS) {
                Ok(claims) => return Ok(claims),
                Err(found) => error = found,
            }
        }
        Err(AuthenticationError(format!("invalid signature, {error}")))
    }

    fn decide<'a>(
        &'a self,
        token: &'a str,
        audiences: &'a [String],
        now: SystemTime,
    ) -> Result<Option<Checks<'a>>, AuthenticationError> {
        let Some(verified) = self.verify(token, now)? else { return Ok(None) };
        let claims = &verified.claims;
        claims.check_time(now, LEEWAY).map_err(|problem| AuthenticationError(problem.to_owned()))?;
        // Tokens from before audiences were for the API server.
        let named = if claims.aud.is_empty() { &self.api_audiences } else { &claims.aud };
        let common = intersect(named, audiences);
        if common.is_empty() {
            let refusal = format!(
                "token audiences {} is invalid for the target audiences {}",
                quote_list(named),
                quote_list(audiences)
            );
            return Err(AuthenticationError(refusal));
        }
        let deleted_before = now.checked_sub(LEEWAY).unwrap_or(SystemTime::UNIX_EPOCH);
        let mut pending = claims.checks(token).map_err(|problem| AuthenticationError(problem.to_owned()))?;
        let is_looked_up = self.lookup || claims.kept_in().is_none();
        if !is_looked_up {
            pending.clear();
        }
        Ok(Some(Checks { verified, audiences: common, pending, is_looked_up, deleted_before, now }))
    }
}

/// The questions left when a token's own contents are in order: do the objects still exist?
struct Checks<'a> {
    verified: Arc<Verified>,
    audiences: Vec<String>,
    pending: Vec<claims::Check<'a>>,
    is_looked_up: bool,
    deleted_before: SystemTime,
    now: SystemTime,
}

impl Checks<'_> {
    fn refuse(self, refusal: claims::Refusal, objects: &dyn BoundObjects) -> AuthenticationError {
        if refusal.counts_as_use {
            self.note_use(objects, true);
        }
        AuthenticationError(refusal.message)
    }

    fn note_use(&self, objects: &dyn BoundObjects, is_refused: bool) {
        if !self.is_looked_up {
            return;
        }
        let claims = &self.verified.claims;
        if let Some((namespace, secret)) = claims.kept_in() {
            let service_account = claims.account().name;
            objects.kept_token_used(KeptToken { namespace, secret, service_account, is_refused }, self.now);
        }
    }

    fn finish(self, objects: &dyn BoundObjects) -> AuthenticationResult {
        self.note_use(objects, false);
        AuthenticationResult::Authenticated(Identity {
            audiences: self.audiences,
            ..self.verified.identity.clone()
        })
    }
}

impl TokenAuthenticator for ServiceAccounts {
    fn authenticate_token<'a>(
        &'a self,
        token: &'a str,
        audiences: &'a [String],
        now: SystemTime,
    ) -> MaybeReady<'a, Result<AuthenticationResult, AuthenticationError>> {
        let mut checks = match self.decide(token, audiences, now) {
            Ok(Some(checks)) => checks,
            Ok(None) => return MaybeReady::Now(Ok(AuthenticationResult::NotMine)),
            Err(error) => return MaybeReady::Now(Err(error)),
        };
        while let Some(check) = checks.pending.first() {
            let in_memory = {
                let verified = checks.verified.clone();
                let (namespace, name) = check.locate(&verified.claims);
                match self.objects.find(check.kind, namespace, name) {
                    MaybeReady::Now(object) => {
                        Some(check.judge(&verified.claims, object, checks.deleted_before))
                    }
                    MaybeReady::Later(_) => None,
                }
            };
            match in_memory {
                Some(Ok(())) => checks.pending.remove(0),
                Some(Err(refusal)) => return MaybeReady::Now(Err(checks.refuse(refusal, &*self.objects))),
                None => return MaybeReady::Later(Box::pin(self.ask(checks))),
            };
        }
        MaybeReady::Now(Ok(checks.finish(&*self.objects)))
    }

    fn knows_audiences(&self) -> bool {
        true
    }
}

impl ServiceAccounts {
    async fn ask(&self, checks: Checks<'_>) -> Result<AuthenticationResult, AuthenticationError> {
        for check in &checks.pending {
            let claims = &checks.verified.claims;
            let (namespace, name) = check.locate(claims);
            let object = self.objects.find(check.kind, namespace, name).get().await;
            if let Err(refusal) = check.judge(claims, object, checks.deleted_before) {
                return Err(checks.refuse(refusal, &*self.objects));
            }
        }
        Ok(checks.finish(&*self.objects))
    }
}

fn user_of(claims: &Claims) -> User {
    let account = claims.account();
    let mut user = User::service_account(account.namespace, account.name, account.uid);
    let mut extra = |key: &str, value: &str| {
        if !value.is_empty() {
            user.extra.insert(key.to_owned(), vec![value.to_owned()]);
        }
    };
    if let Some(kubernetes) = &claims.kubernetes {
        if let Some(pod) = &kubernetes.pod {
            extra(user::POD_NAME, &pod.name);
            extra(user::POD_UID, &pod.uid);
        }
        if let Some(node) = &kubernetes.node {
            extra(user::NODE_NAME, &node.name);
            extra(user::NODE_UID, &node.uid);
        }
    }
    if let Some(id) = claims.jti.as_deref().filter(|id| !id.is_empty()) {
        extra(user::CREDENTIAL_ID, &format!("JTI={id}"));
    }
    user
}

#[cfg(test)]
mod tests;
