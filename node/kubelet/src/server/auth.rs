//! Who is calling, and may they: certificates are checked here, tokens and
//! permissions by the API server.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use http::{HeaderMap, Method};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Api;
use kube::api::PostParams;
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
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

/// The identity a certificate stands for: its common name and organisations.
pub fn user_of_certificate(certificate: &CertificateDer<'_>) -> Option<User> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let subject = parsed.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_string();
    let groups = subject.iter_organization().filter_map(|each| each.as_str().ok()).map(str::to_string);
    let groups = groups.chain(["system:authenticated".to_string()]).collect();
    Some(User { name, groups, ..User::default() })
}

type Access = (User, &'static str, &'static str);

pub struct Guard {
    client: Option<kube::Client>,
    node_name: String,
    anonymous: bool,
    tokens: Mutex<HashMap<String, (User, Instant)>>,
    answers: Mutex<HashMap<Access, (bool, Instant)>>,
}

impl Guard {
    pub fn new(client: Option<kube::Client>, node_name: String, anonymous: bool) -> Self {
        Self { client, node_name, anonymous, tokens: Mutex::default(), answers: Mutex::default() }
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
        let key = crate::pod::short_hash(token.as_bytes())
            + &crate::pod::short_hash(format!("{token}\u{0}").as_bytes());
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

    /// One of the subresources that cover the path must be allowed.
    pub async fn authorize(&self, user: &User, method: &Method, path: &str) -> Result<bool, String> {
        let verb = verb(method);
        for subresource in subresources(path) {
            if self.ask(user, verb, subresource).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn ask(&self, user: &User, verb: &'static str, subresource: &'static str) -> Result<bool, String> {
        let key = (user.clone(), verb, subresource);
        let now = Instant::now();
        if let Some((allowed, until)) = self.answers.lock().get(&key)
            && now < *until
        {
            return Ok(*allowed);
        }
        let Some(client) = self.client.clone() else {
            // nobody to ask: the group that may do everything still may
            return Ok(user.groups.iter().any(|group| group == MASTERS));
        };
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                uid: user.uid.clone(),
                groups: Some(user.groups.clone()),
                extra: Some(user.extra.clone()).filter(|extra| !extra.is_empty()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(verb.into()),
                    version: Some("v1".into()),
                    resource: Some("nodes".into()),
                    subresource: Some(subresource.into()),
                    name: Some(self.node_name.clone()),
                    ..ResourceAttributes::default()
                }),
                non_resource_attributes: None,
            },
            ..SubjectAccessReview::default()
        };
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

fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    }
}

/// The subresources of the node that cover a path, the narrowest first;
/// `proxy` covers everything.
fn subresources(path: &str) -> &'static [&'static str] {
    let within =
        |root: &str| path == root || path.strip_prefix(root).is_some_and(|rest| rest.starts_with('/'));
    if within("/stats") {
        &["stats"]
    } else if within("/metrics") {
        &["metrics"]
    } else if within("/logs") {
        &["log"]
    } else if within("/healthz") {
        &["healthz", "proxy"]
    } else if within("/configz") {
        &["configz", "proxy"]
    } else if within("/pods") || within("/runningpods") {
        &["pods", "proxy"]
    } else {
        &["proxy"]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_covered_by_subresources() {
        for (path, expected) in [
            ("/stats/summary", ["stats"].as_slice()),
            ("/metrics", &["metrics"]),
            ("/metrics/resource", &["metrics"]),
            ("/metricsx", &["proxy"]),
            ("/pods", &["pods", "proxy"]),
            ("/healthz", &["healthz", "proxy"]),
            ("/configz", &["configz", "proxy"]),
            ("/exec/ns/pod/c", &["proxy"]),
            ("/containerLogs/ns/pod/c", &["proxy"]),
        ] {
            assert_eq!(subresources(path), expected, "{path}");
        }
    }

    #[tokio::test]
    async fn without_credentials_nobody_enters_unless_allowed() {
        let headers = HeaderMap::new();
        let closed = Guard::new(None, "n".into(), false);
        assert!(closed.authenticate(None, &headers).await.is_err());
        let open = Guard::new(None, "n".into(), true);
        let user = open.authenticate(None, &headers).await.expect("anonymous is allowed");
        assert_eq!(user.name, "system:anonymous");
        assert_eq!(open.authorize(&user, &Method::GET, "/pods").await, Ok(false));
        let master = User { name: "admin".into(), groups: vec![MASTERS.into()], ..User::default() };
        assert_eq!(open.authorize(&master, &Method::GET, "/pods").await, Ok(true));
    }
}
