//! Authentication and authorization of requests: TLS verifies certificates, the API server reviews tokens and permissions.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use http::{HeaderMap, Method};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

const TOKEN_TTL: Duration = Duration::from_secs(120);
const ALLOWED_TTL: Duration = Duration::from_secs(300);
const DENIED_TTL: Duration = Duration::from_secs(30);
/// Answers kept; when full, all are asked for again.
const MAX_KEPT: usize = 4096;
const MASTERS: &str = "system:masters";

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct User {
    pub name: String,
    pub uid: Option<String>,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// The identity a certificate stands for: its common name and organisations. Of several names the last, as the API
    /// server has it: nobody shall be another here than there.
    pub fn of_certificate(certificate: &CertificateDer<'_>) -> Option<User> {
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
        let subject = parsed.subject();
        let name = subject.iter_common_name().last()?.as_str().ok()?.to_string();
        let groups = subject.iter_organization().filter_map(|each| each.as_str().ok()).map(str::to_string);
        let groups = groups.chain(["system:authenticated".to_string()]).collect();
        Some(User { name, groups, ..User::default() })
    }
}

/// What a caller wants to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    Path { verb: &'static str, path: &'static str },
    Node { verb: &'static str, name: String, subresource: &'static str },
}

/// The verb that a method stands for.
pub fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    }
}

pub struct Guard {
    client: Option<kube::Client>,
    anonymous: bool,
    tokens: Mutex<HashMap<[u8; 32], (User, Instant)>>,
    answers: Mutex<HashMap<(User, Access), (bool, Instant)>>,
}

impl Guard {
    /// Without a client nobody can be asked: no token is known, and only `system:masters` may do anything.
    pub fn new(client: Option<kube::Client>, anonymous: bool) -> Self {
        Self { client, anonymous, tokens: Mutex::default(), answers: Mutex::default() }
    }

    pub async fn authenticate(&self, certificate: Option<User>, headers: &HeaderMap) -> Result<User, String> {
        if let Some(user) = certificate {
            return Ok(user);
        }
        let header = headers.get("authorization").and_then(|value| value.to_str().ok());
        if let Some(token) = header.and_then(|header| header.strip_prefix("Bearer ")) {
            return self.review(token.trim()).await;
        }
        if self.anonymous {
            let groups = vec!["system:unauthenticated".into()];
            return Ok(User { name: "system:anonymous".into(), groups, ..User::default() });
        }
        Err("Unauthorized".into())
    }

    async fn review(&self, token: &str) -> Result<User, String> {
        // the table holds digests: a token does not lie around in memory
        let key: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let now = Instant::now();
        if let Some((user, until)) = self.tokens.lock().get(&key)
            && now < *until
        {
            return Ok(user.clone());
        }
        let client = self.client.clone().ok_or("Unauthorized")?;
        let spec = TokenReviewSpec { token: token.into(), audiences: None };
        let review = TokenReview { spec, ..TokenReview::default() };
        let answer = Api::<TokenReview>::all(client)
            .create(&PostParams::default(), &review)
            .await
            .map_err(|error| format!("Unauthorized: {error}"))?;
        let status =
            answer.status.filter(|status| status.authenticated == Some(true)).ok_or("Unauthorized")?;
        let info = status.user.unwrap_or_default();
        let user = User {
            name: info.username.unwrap_or_default(),
            uid: info.uid,
            groups: info.groups.unwrap_or_default(),
            extra: info.extra.unwrap_or_default(),
        };
        let mut tokens = self.tokens.lock();
        if tokens.len() >= MAX_KEPT {
            tokens.clear();
        }
        tokens.insert(key, (user.clone(), now + TOKEN_TTL));
        Ok(user)
    }

    pub async fn may(&self, user: &User, access: Access) -> Result<bool, String> {
        let now = Instant::now();
        let key = (user.clone(), access);
        if let Some((allowed, until)) = self.answers.lock().get(&key)
            && now < *until
        {
            return Ok(*allowed);
        }
        let Some(client) = self.client.clone() else {
            // nobody to ask: the group that may do everything still may
            return Ok(user.groups.iter().any(|group| group == MASTERS));
        };
        let review = SubjectAccessReview { spec: spec(user, &key.1), ..SubjectAccessReview::default() };
        let answer = Api::<SubjectAccessReview>::all(client)
            .create(&PostParams::default(), &review)
            .await
            .map_err(|error| error.to_string())?;
        let allowed = answer.status.is_some_and(|status| status.allowed);
        let mut answers = self.answers.lock();
        if answers.len() >= MAX_KEPT {
            answers.clear();
        }
        answers.insert(key, (allowed, now + if allowed { ALLOWED_TTL } else { DENIED_TTL }));
        Ok(allowed)
    }
}

fn spec(user: &User, access: &Access) -> SubjectAccessReviewSpec {
    let mut spec = SubjectAccessReviewSpec {
        user: Some(user.name.clone()),
        uid: user.uid.clone(),
        groups: Some(user.groups.clone()),
        extra: Some(user.extra.clone()).filter(|extra| !extra.is_empty()),
        ..SubjectAccessReviewSpec::default()
    };
    match access {
        Access::Path { verb, path } => {
            let attributes = NonResourceAttributes { verb: Some((*verb).into()), path: Some((*path).into()) };
            spec.non_resource_attributes = Some(attributes);
        }
        Access::Node { verb, name, subresource } => {
            spec.resource_attributes = Some(ResourceAttributes {
                verb: Some((*verb).into()),
                version: Some("v1".into()),
                resource: Some("nodes".into()),
                subresource: Some((*subresource).into()),
                name: Some(name.clone()),
                ..ResourceAttributes::default()
            });
        }
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kubelet_refuses_anonymous_requests_unless_configured() {
        let headers = HeaderMap::new();
        let closed = Guard::new(None, false);
        assert!(closed.authenticate(None, &headers).await.is_err());
        let open = Guard::new(None, true);
        let user = open.authenticate(None, &headers).await.expect("anonymous is allowed");
        assert_eq!(user.name, "system:anonymous");
        let access = Access::Path { verb: "get", path: "/metrics" };
        assert_eq!(open.may(&user, access.clone()).await, Ok(false));
        let master = User { name: "admin".into(), groups: vec![MASTERS.into()], ..User::default() };
        assert_eq!(open.may(&master, access).await, Ok(true));
    }

    #[test]
    fn the_last_common_name_is_the_user() {
        let mut parameters = rcgen::CertificateParams::default();
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        parameters.distinguished_name.push(rcgen::DnType::CommonName, "system:kube-scheduler");
        parameters.distinguished_name.push(rcgen::DnType::CustomDnType(vec![2, 5, 4, 3]), "jane");
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = parameters.self_signed(&key).expect("a certificate");
        let user = User::of_certificate(certificate.der()).expect("a user");
        assert_eq!(user.name, "jane");
    }
}
