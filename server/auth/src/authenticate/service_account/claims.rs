//! The claims of a service account token, and their validation.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::{BoundKind, BoundObject};
use crate::user::{service_account_username, split_service_account_username};

/// A name and the UID it must still have.
#[derive(Clone, Copy, Debug)]
pub struct Reference<'a> {
    pub name: &'a str,
    pub uid: &'a str,
}

/// The object whose life bounds the token's.
#[derive(Clone, Copy, Debug)]
pub enum BoundTo<'a> {
    Nothing,
    /// The node is told along, where the pod has one.
    Pod {
        pod: Reference<'a>,
        node: Option<Reference<'a>>,
    },
    Secret(Reference<'a>),
    Node(Reference<'a>),
}

/// A token to be signed.
#[derive(Clone, Copy, Debug)]
pub struct TokenRequest<'a> {
    pub namespace: &'a str,
    pub service_account: Reference<'a>,
    pub bound_to: BoundTo<'a>,
    /// Empty for the API server's own.
    pub audiences: &'a [String],
    pub lifetime: Duration,
    /// When use of the token becomes noteworthy: it outlives what its holder asked for.
    pub warn_after: Option<Duration>,
}

#[derive(Deserialize)]
pub(super) struct Issuer {
    pub(super) iss: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Claims {
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub(super) aud: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exp: Option<NumericDate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) iat: Option<NumericDate>,
    pub(super) iss: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) jti: Option<String>,
    #[serde(rename = "kubernetes.io", skip_serializing_if = "Option::is_none")]
    pub(super) kubernetes: Option<Kubernetes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) nbf: Option<NumericDate>,
    #[serde(default)]
    pub(super) sub: String,
    #[serde(flatten)]
    pub(super) legacy: Legacy,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Kubernetes {
    #[serde(default)]
    pub(super) namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<Named>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pod: Option<Named>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) secret: Option<Named>,
    #[serde(default)]
    pub(super) serviceaccount: Named,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) warnafter: Option<NumericDate>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Named {
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) uid: String,
}

/// The claims of tokens kept in Secrets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Legacy {
    #[serde(rename = "kubernetes.io/serviceaccount/namespace", skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name", skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    #[serde(
        rename = "kubernetes.io/serviceaccount/service-account.name",
        skip_serializing_if = "Option::is_none"
    )]
    account: Option<String>,
    #[serde(
        rename = "kubernetes.io/serviceaccount/service-account.uid",
        skip_serializing_if = "Option::is_none"
    )]
    uid: Option<String>,
}

/// Seconds since 1970, possibly with a fraction (RFC 7519).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "f64", into = "i64")]
pub(crate) struct NumericDate(i64);

impl From<f64> for NumericDate {
    fn from(seconds: f64) -> Self {
        // Out of range saturates: such a date is long past or never comes, as intended.
        NumericDate(seconds.floor() as i64)
    }
}

impl From<NumericDate> for i64 {
    fn from(date: NumericDate) -> i64 {
        date.0
    }
}

impl NumericDate {
    pub(crate) fn of(time: SystemTime) -> Self {
        let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        NumericDate(i64::try_from(seconds).unwrap_or(i64::MAX))
    }

    pub(crate) fn time(self) -> SystemTime {
        let seconds = Duration::from_secs(u64::try_from(self.0).unwrap_or(0));
        // A date no clock can show will not come in the life of this process.
        let far = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40);
        SystemTime::UNIX_EPOCH.checked_add(seconds).unwrap_or(far).min(far)
    }
}

pub(crate) fn one_or_many<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Option::<OneOrMany>::deserialize(deserializer)? {
        None => Vec::new(),
        Some(OneOrMany::One(one)) => vec![one],
        Some(OneOrMany::Many(many)) => many,
    })
}

/// Whose token it is, whichever way it is written.
pub(super) struct Account<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) uid: &'a str,
}

impl Claims {
    pub(super) fn new(
        issuer: &str,
        request: &TokenRequest<'_>,
        api_audiences: &[String],
        id: &str,
        now: SystemTime,
    ) -> Self {
        let named = |reference: Reference<'_>| Named {
            name: reference.name.to_owned(),
            uid: reference.uid.to_owned(),
        };
        let mut kubernetes = Kubernetes {
            namespace: request.namespace.to_owned(),
            serviceaccount: named(request.service_account),
            warnafter: request.warn_after.map(|after| NumericDate::of(now + after)),
            ..Kubernetes::default()
        };
        match request.bound_to {
            BoundTo::Nothing => {}
            BoundTo::Secret(secret) => kubernetes.secret = Some(named(secret)),
            BoundTo::Node(node) => kubernetes.node = Some(named(node)),
            BoundTo::Pod { pod, node } => {
                kubernetes.pod = Some(named(pod));
                kubernetes.node = node.map(named);
            }
        }
        let audiences = if request.audiences.is_empty() { api_audiences } else { request.audiences };
        Claims {
            iss: issuer.to_owned(),
            sub: service_account_username(request.namespace, request.service_account.name),
            aud: audiences.to_vec(),
            jti: Some(id.to_owned()),
            iat: Some(NumericDate::of(now)),
            nbf: Some(NumericDate::of(now)),
            exp: Some(NumericDate::of(now + request.lifetime)),
            kubernetes: Some(kubernetes),
            legacy: Legacy::default(),
        }
    }

    pub(super) fn legacy(issuer: &str, namespace: &str, account: Reference<'_>, secret: &str) -> Self {
        Claims {
            iss: issuer.to_owned(),
            sub: service_account_username(namespace, account.name),
            legacy: Legacy {
                namespace: Some(namespace.to_owned()),
                secret: Some(secret.to_owned()),
                account: Some(account.name.to_owned()),
                uid: Some(account.uid.to_owned()),
            },
            ..Claims::default()
        }
    }

    pub(super) fn expires(&self) -> Option<SystemTime> {
        self.exp.map(NumericDate::time)
    }

    pub(super) fn check_time(&self, now: SystemTime, leeway: Duration) -> Result<(), &'static str> {
        let is_future = |date: Option<NumericDate>| date.is_some_and(|date| now + leeway < date.time());
        if is_future(self.nbf) {
            return Err("service account token is not valid yet");
        }
        if self.expires().is_some_and(|end| end + leeway < now) {
            return Err("service account token has expired");
        }
        if is_future(self.iat) {
            return Err("service account token is issued in the future");
        }
        Ok(())
    }

    pub(super) fn account(&self) -> Account<'_> {
        match &self.kubernetes {
            Some(claims) => Account {
                namespace: &claims.namespace,
                name: &claims.serviceaccount.name,
                uid: &claims.serviceaccount.uid,
            },
            None => Account {
                namespace: self.legacy.namespace.as_deref().unwrap_or(""),
                name: self.legacy.account.as_deref().unwrap_or(""),
                uid: self.legacy.uid.as_deref().unwrap_or(""),
            },
        }
    }

    /// What must still exist. `token` is the token itself: a Secret has to hold the same.
    pub(super) fn checks<'a>(&self, token: &'a str) -> Result<Vec<Check<'a>>, &'static str> {
        let account = Check { kind: BoundKind::ServiceAccount, token: None };
        let Some(kubernetes) = &self.kubernetes else {
            self.check_legacy()?;
            return Ok(vec![Check { kind: BoundKind::Secret, token: Some(token) }, account]);
        };
        let mut checks = vec![account];
        let mut bound = |kind| checks.push(Check { kind, token: None });
        if kubernetes.secret.is_some() {
            bound(BoundKind::Secret);
        }
        // The node of a pod's token is for information; the pod is what it is bound to.
        match (&kubernetes.pod, &kubernetes.node) {
            (Some(_), _) => bound(BoundKind::Pod),
            (None, Some(_)) => bound(BoundKind::Node),
            (None, None) => {}
        }
        Ok(checks)
    }

    /// Namespace and name of the Secret that keeps this token.
    pub(super) fn kept_in(&self) -> Option<(&str, &str)> {
        match &self.kubernetes {
            Some(_) => None,
            None => Some((self.account().namespace, self.legacy.secret.as_deref()?)),
        }
    }

    fn check_legacy(&self) -> Result<(), &'static str> {
        let missing = |claim: &Option<String>| claim.as_deref().is_none_or(str::is_empty);
        if self.sub.is_empty() {
            return Err("sub claim is missing");
        }
        if missing(&self.legacy.namespace) {
            return Err("namespace claim is missing");
        }
        if missing(&self.legacy.secret) {
            return Err("secretName claim is missing");
        }
        if missing(&self.legacy.account) {
            return Err("serviceAccountName claim is missing");
        }
        if missing(&self.legacy.uid) {
            return Err("serviceAccountUID claim is missing");
        }
        let account = self.account();
        if split_service_account_username(&self.sub) != Some((account.namespace, account.name)) {
            return Err("sub claim is invalid");
        }
        Ok(())
    }
}

/// Why a token is not believed.
pub(super) struct Refusal {
    pub(super) message: String,
    /// Somebody still uses the token, though it is marked invalid.
    pub(super) counts_as_use: bool,
}

impl From<String> for Refusal {
    fn from(message: String) -> Self {
        Refusal { message, counts_as_use: false }
    }
}

/// One object a token depends on.
pub(super) struct Check<'a> {
    pub(super) kind: BoundKind,
    /// The token, if it is one that a Secret keeps.
    token: Option<&'a str>,
}

impl Check<'_> {
    fn reference<'c>(&self, claims: &'c Claims) -> (&'c str, &'c str) {
        let bound =
            |named: &'c Option<Named>| named.as_ref().map_or(("", ""), |named| (&*named.name, &*named.uid));
        match (self.kind, &claims.kubernetes) {
            (BoundKind::ServiceAccount, _) => (claims.account().name, claims.account().uid),
            (BoundKind::Pod, Some(kubernetes)) => bound(&kubernetes.pod),
            (BoundKind::Node, Some(kubernetes)) => bound(&kubernetes.node),
            (BoundKind::Secret, Some(kubernetes)) => bound(&kubernetes.secret),
            (BoundKind::Secret, None) => (claims.legacy.secret.as_deref().unwrap_or(""), ""),
            (BoundKind::Pod | BoundKind::Node, None) => ("", ""),
        }
    }

    /// Namespace and name to look for.
    pub(super) fn locate<'c>(&self, claims: &'c Claims) -> (&'c str, &'c str) {
        let (name, _) = self.reference(claims);
        let namespace = if self.kind == BoundKind::Node { "" } else { claims.account().namespace };
        (namespace, name)
    }

    pub(super) fn judge(
        &self,
        claims: &Claims,
        object: Option<BoundObject>,
        deleted_before: SystemTime,
    ) -> Result<(), Refusal> {
        let (namespace, name) = self.locate(claims);
        let invalidated = || Err(Refusal::from("service account token has been invalidated".to_owned()));
        let Some(object) = object else {
            return match self.kind {
                BoundKind::ServiceAccount => Err(format!("serviceaccounts {name:?} not found").into()),
                _ => invalidated(),
            };
        };
        if let Some(token) = self.token {
            return judge_kept_token(token, &object, namespace, name, claims.account().name);
        }
        let (_, uid) = self.reference(claims);
        if object.uid != uid {
            let (what, claim) = match self.kind {
                BoundKind::ServiceAccount => ("service account", ""),
                BoundKind::Pod => ("pod", "service account pod ref "),
                BoundKind::Secret => ("secret", "service account secret ref "),
                BoundKind::Node => ("node", "service account node ref "),
            };
            return Err(format!("{what} UID ({}) does not match {claim}claim ({uid})", object.uid).into());
        }
        match (object.deleted, self.kind) {
            (Some(time), BoundKind::ServiceAccount) if time < deleted_before => {
                Err(format!("service account {namespace}/{name} has been deleted").into())
            }
            (Some(time), _) if time < deleted_before => invalidated(),
            _ => Ok(()),
        }
    }
}

fn judge_kept_token(
    token: &str,
    secret: &BoundObject,
    namespace: &str,
    name: &str,
    account: &str,
) -> Result<(), Refusal> {
    if secret.deleted.is_some() {
        return Err("Token has been invalidated".to_owned().into());
    }
    // The signature already proved the token: comparing tells nobody anything about it.
    if secret.token != token.as_bytes() {
        return Err("Token does not match server's copy".to_owned().into());
    }
    if secret.invalidated {
        let message = format!(
            "the token in secret {namespace}/{name} for service account {namespace}/{account} has been marked invalid. \
             Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the \
             'kubernetes.io/legacy-token-invalid-since' label from the secret to temporarily allow use of this token"
        );
        return Err(Refusal { message, counts_as_use: true });
    }
    Ok(())
}
