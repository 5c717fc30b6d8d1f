//! Service account tokens for pods: asked for, kept, and renewed in time.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::Api;
use kube::api::PostParams;
use parking_lot::Mutex;

use crate::pod;

const DEFAULT_LIFETIME: i64 = 3600;
/// However long a token lives, it is renewed within a day.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(24);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    uid: String,
    audience: String,
    expiration: i64,
}

#[derive(Clone)]
struct Token {
    text: String,
    ends: Timestamp,
    renew_at: Timestamp,
}

pub struct Tokens {
    client: Option<kube::Client>,
    known: Mutex<HashMap<Key, Token>>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to fetch token: {0}")]
    Request(#[from] kube::Error),
    #[error("failed to fetch token: the answer has no status")]
    Empty,
    #[error("failed to fetch token: no API server")]
    NoServer,
}

impl Tokens {
    pub fn new(client: Option<kube::Client>) -> Self {
        Self { client, known: Mutex::default() }
    }

    pub async fn get(&self, pod: &Pod, audience: &str, expiration: Option<i64>) -> Result<String, Error> {
        self.get_with_end(pod, audience, expiration).await.map(|(text, _)| text)
    }

    /// A token, and when it ends.
    pub async fn get_with_end(
        &self,
        pod: &Pod,
        audience: &str,
        expiration: Option<i64>,
    ) -> Result<(String, Timestamp), Error> {
        let expiration = expiration.unwrap_or(DEFAULT_LIFETIME);
        let key = Key { uid: pod::uid(pod).into(), audience: audience.into(), expiration };
        let now = Timestamp::now();
        let known = self.known.lock().get(&key).cloned();
        if let Some(token) = known.as_ref().filter(|token| now < token.renew_at) {
            return Ok((token.text.clone(), token.ends));
        }
        match self.request(pod, audience, expiration, now).await {
            Ok(token) => {
                self.known.lock().insert(key, token.clone());
                Ok((token.text, token.ends))
            }
            // an old token that still works is better than none
            Err(error) => match known {
                Some(token) => {
                    tracing::warn!(pod = %pod::key(pod), %error, "token not renewed yet");
                    Ok((token.text, token.ends))
                }
                None => Err(error),
            },
        }
    }

    pub fn forget(&self, uid: &str) {
        self.known.lock().retain(|key, _| key.uid != uid);
    }

    async fn request(
        &self,
        pod: &Pod,
        audience: &str,
        expiration: i64,
        now: Timestamp,
    ) -> Result<Token, Error> {
        let client = self.client.clone().ok_or(Error::NoServer)?;
        let api: Api<ServiceAccount> = Api::namespaced(client, pod::namespace(pod));
        let account = pod::spec(pod)
            .service_account_name
            .as_deref()
            .filter(|name| !name.is_empty())
            .unwrap_or("default");
        let audiences = (!audience.is_empty()).then(|| vec![audience.to_string()]);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences,
                expiration_seconds: Some(expiration),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: pod.metadata.name.clone(),
                    uid: pod.metadata.uid.clone(),
                }),
            }),
            ..TokenRequest::default()
        };
        let answer = api.create_token_request(account, &PostParams::default(), &request).await?;
        let status = answer.status.ok_or(Error::Empty)?;
        let (Some(text), Some(expires)) = (status.token, status.expiration_timestamp) else {
            return Err(Error::Empty);
        };
        Ok(Token { text, ends: expires.0, renew_at: renewal(now, expires.0) })
    }
}

/// After four fifths of its life, and at the latest after a day.
fn renewal(now: Timestamp, expires: Timestamp) -> Timestamp {
    let life = expires.duration_since(now);
    now + (life * 4 / 5).min(MAX_AGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_renewed_in_time() {
        let now = Timestamp::UNIX_EPOCH;
        let after = |seconds| Timestamp::from_second(seconds).expect("a time");
        assert_eq!(renewal(now, after(3600)), after(2880));
        assert_eq!(renewal(now, after(365 * 86400)), after(86400));
        assert_eq!(renewal(now, after(0)), now);
    }
}
