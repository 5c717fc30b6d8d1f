//! The token webhook: posts a TokenReview for each token.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewStatus};
use serde_json::json;

use super::{AuthenticationError, AuthenticationResult, Identity, TokenAuthenticator, tokens::intersect};
use crate::{
    MaybeReady,
    cache::{ExpiringCache, Fingerprint},
    outbound::{Endpoint, OutboundError, Retry},
    user::User,
};

#[derive(Clone, Debug)]
pub struct WebhookTokenConfig {
    /// `v1` or `v1beta1`.
    pub version: String,
    pub cache_ttl: Duration,
    /// Who a token is for if the webhook does not say.
    pub api_audiences: Vec<String>,
    pub retry: Retry,
}

pub struct WebhookTokens {
    endpoint: Endpoint,
    config: WebhookTokenConfig,
    answers: ExpiringCache<Fingerprint, Arc<TokenReviewStatus>>,
}

impl WebhookTokens {
    pub async fn open(kubeconfig: &Path, config: WebhookTokenConfig) -> Result<Self, OutboundError> {
        Ok(WebhookTokens::new(Endpoint::from_kubeconfig(kubeconfig).await?, config))
    }

    pub(crate) fn new(endpoint: Endpoint, config: WebhookTokenConfig) -> Self {
        WebhookTokens { endpoint, config, answers: ExpiringCache::new(8192) }
    }

    async fn ask(
        &self,
        token: &str,
        audiences: &[String],
        question: Fingerprint,
    ) -> Result<AuthenticationResult, AuthenticationError> {
        let span = ferry_trace::span("auth.webhook_token");
        let review = json!({
            "apiVersion": format!("authentication.k8s.io/{}", self.config.version),
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": audiences},
        });
        let answer = span.in_scope(self.endpoint.post::<TokenReview>(&review, self.config.retry)).await;
        let status = answer.map_err(|error| {
            tracing::warn!(%error, "the token webhook failed");
            AuthenticationError(error.to_string())
        })?;
        let status = Arc::new(status.status.unwrap_or_default());
        let now = SystemTime::now();
        self.answers.insert(question, status.clone(), now + self.config.cache_ttl, now);
        self.judge(&status, audiences)
    }

    fn judge(
        &self,
        status: &TokenReviewStatus,
        wanted: &[String],
    ) -> Result<AuthenticationResult, AuthenticationError> {
        let named = status
            .audiences
            .as_deref()
            .filter(|named| !named.is_empty())
            .unwrap_or(&self.config.api_audiences);
        let audiences = intersect(wanted, named);
        if audiences.is_empty() {
            return Ok(AuthenticationResult::NotMine);
        }
        if !status.authenticated.unwrap_or(false) {
            return match status.error.as_deref().filter(|error| !error.is_empty()) {
                Some(error) => Err(AuthenticationError(error.to_owned())),
                None => Ok(AuthenticationResult::NotMine),
            };
        }
        let info = status.user.clone().unwrap_or_default();
        let user = User {
            name: info.username.unwrap_or_default(),
            uid: info.uid.unwrap_or_default(),
            groups: info.groups.unwrap_or_default(),
            extra: info.extra.unwrap_or_default(),
        };
        if user.name.is_empty() {
            return Err(AuthenticationError("the token webhook named no user".to_owned()));
        }
        Ok(AuthenticationResult::Authenticated(Identity { audiences, ..Identity::new(user) }))
    }
}

impl TokenAuthenticator for WebhookTokens {
    fn authenticate_token<'a>(
        &'a self,
        token: &'a str,
        audiences: &'a [String],
        now: SystemTime,
    ) -> MaybeReady<'a, Result<AuthenticationResult, AuthenticationError>> {
        let question = Fingerprint::of(format!("{}\0{token}", audiences.join("\0")).as_bytes());
        match self.answers.get(&question, now) {
            Some(status) => MaybeReady::Now(self.judge(&status, audiences)),
            None => MaybeReady::Later(Box::pin(self.ask(token, audiences, question))),
        }
    }

    fn knows_audiences(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_server::TestServer;

    #[tokio::test]
    async fn a_reviewed_token_is_its_user_and_is_asked_for_once() {
        let server = TestServer::start(|request| {
            let review = request.json();
            assert_eq!(review["kind"], "TokenReview");
            let status = match review["spec"]["token"].as_str().unwrap() {
                "good" => json!({"authenticated": true, "user": {"username": "jane", "uid": "u1", "groups": ["dev"], "extra": {"k": ["v"]}}}),
                "elsewhere" => json!({"authenticated": true, "user": {"username": "jane"}, "audiences": ["vault"]}),
                "nameless" => json!({"authenticated": true, "user": {}}),
                "bad" => json!({"authenticated": false, "error": "revoked"}),
                _ => json!({"authenticated": false}),
            };
            (200, json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {}, "spec": {}, "status": status}).to_string())
        })
        .await;
        let config = WebhookTokenConfig {
            version: "v1".to_owned(),
            cache_ttl: Duration::from_secs(120),
            api_audiences: vec!["api".to_owned()],
            retry: Retry { attempts: 1, first_delay: Duration::ZERO },
        };
        let tokens = WebhookTokens::new(Endpoint::from_url(&server.url("/"), None).unwrap(), config);
        let audiences = ["api".to_owned()];
        let ask =
            async |token: &str| tokens.authenticate_token(token, &audiences, SystemTime::now()).get().await;
        for _ in 0..3 {
            let Ok(AuthenticationResult::Authenticated(jane)) = ask("good").await else {
                panic!("the token is good")
            };
            assert_eq!((jane.user.name.as_str(), jane.audiences.as_slice()), ("jane", &audiences[..]));
            assert_eq!(jane.user.groups, ["dev", "system:authenticated"]);
            assert!(matches!(ask("unknown").await, Ok(AuthenticationResult::NotMine)));
            assert_eq!(ask("bad").await.err().map(|error| error.0).as_deref(), Some("revoked"));
            assert!(
                matches!(ask("elsewhere").await, Ok(AuthenticationResult::NotMine)),
                "a token for somebody else"
            );
            assert!(ask("nameless").await.is_err());
        }
        assert_eq!(server.requests(), 5);
        drop(server);
        assert!(ask("new").await.is_err(), "nobody is there to ask");
    }
}
