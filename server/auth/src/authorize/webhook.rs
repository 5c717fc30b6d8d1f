//! The authorization webhook: posts a SubjectAccessReview for each request.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use k8s_openapi::{
    api::authorization::v1::{
        FieldSelectorAttributes, LabelSelectorAttributes, NonResourceAttributes, ResourceAttributes,
        SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
    },
    apimachinery::pkg::apis::meta::v1::{FieldSelectorRequirement, LabelSelectorRequirement},
};
use serde_json::json;

use super::{Authorizer, Decision, Reason, Rules};
use crate::{
    MaybeReady,
    attributes::Attributes,
    cache::{ExpiringCache, Fingerprint},
    outbound::{Endpoint, OutboundError, Retry},
    user::User,
};

/// Longer questions are asked each time: their parts are chosen by the caller, who could fill the
/// cache with them.
const MAX_CACHED_QUESTION: usize = 10_000;

#[derive(Clone, Debug)]
pub struct WebhookAuthorizerConfig {
    /// `v1` or `v1beta1`.
    pub version: String,
    pub authorized_ttl: Duration,
    pub unauthorized_ttl: Duration,
    /// Refuse when the webhook cannot be reached, instead of leaving it to the other authorizers.
    pub deny_on_error: bool,
    pub retry: Retry,
}

impl Default for WebhookAuthorizerConfig {
    fn default() -> Self {
        WebhookAuthorizerConfig {
            version: "v1".to_owned(),
            authorized_ttl: Duration::from_secs(300),
            unauthorized_ttl: Duration::from_secs(30),
            deny_on_error: false,
            retry: Retry::default(),
        }
    }
}

pub struct WebhookAuthorizer {
    endpoint: Endpoint,
    config: WebhookAuthorizerConfig,
    answers: ExpiringCache<Fingerprint, Arc<SubjectAccessReviewStatus>>,
}

impl WebhookAuthorizer {
    pub async fn open(kubeconfig: &Path, config: WebhookAuthorizerConfig) -> Result<Self, OutboundError> {
        Ok(WebhookAuthorizer::new(Endpoint::from_kubeconfig(kubeconfig).await?, config))
    }

    pub(crate) fn new(endpoint: Endpoint, config: WebhookAuthorizerConfig) -> Self {
        WebhookAuthorizer { endpoint, config, answers: ExpiringCache::new(8192) }
    }

    async fn ask(&self, spec: SubjectAccessReviewSpec, question: Fingerprint, cacheable: bool) -> Decision {
        let span = ferry_trace::span("auth.webhook_authorize");
        let review = json!({
            "apiVersion": format!("authorization.k8s.io/{}", self.config.version),
            "kind": "SubjectAccessReview",
            "spec": spec,
        });
        let answer =
            span.in_scope(self.endpoint.post::<SubjectAccessReview>(&review, self.config.retry)).await;
        let status = match answer {
            Ok(review) => Arc::new(review.status.unwrap_or_default()),
            Err(error) if self.config.deny_on_error => {
                tracing::warn!(%error, "the authorization webhook failed; the request is refused");
                return Decision::Deny { reason: error.to_string().into() };
            }
            Err(error) => {
                tracing::warn!(%error, "the authorization webhook failed");
                return Decision::Failed { error: error.to_string() };
            }
        };
        if cacheable {
            let now = SystemTime::now();
            let ttl = if status.allowed { self.config.authorized_ttl } else { self.config.unauthorized_ttl };
            self.answers.insert(question, status.clone(), now + ttl, now);
        }
        decision_of(&status)
    }
}

fn decision_of(status: &SubjectAccessReviewStatus) -> Decision {
    let reason: Reason = status.reason.clone().unwrap_or_default().into();
    match (status.denied.unwrap_or(false), status.allowed) {
        (true, true) => Decision::Deny {
            reason: Reason::Static("webhook subject access review returned both allow and deny response"),
        },
        (true, false) => Decision::Deny { reason },
        (false, true) => Decision::Allow { reason },
        (false, false) => Decision::NoOpinion { reason },
    }
}

fn spec_of(attributes: &Attributes<'_>) -> SubjectAccessReviewSpec {
    let text = |value: &str| Some(value.to_owned()).filter(|value| !value.is_empty());
    let user = attributes.user;
    let mut spec = SubjectAccessReviewSpec {
        user: text(&user.name),
        uid: text(&user.uid),
        groups: Some(user.groups.clone()).filter(|groups| !groups.is_empty()),
        extra: Some(user.extra.clone()).filter(|extra| !extra.is_empty()),
        ..SubjectAccessReviewSpec::default()
    };
    if !attributes.is_resource_request {
        spec.non_resource_attributes =
            Some(NonResourceAttributes { path: text(attributes.path), verb: text(attributes.verb) });
        return spec;
    }
    let fields = attributes.field_selector.iter().map(|requirement| FieldSelectorRequirement {
        key: requirement.key.clone(),
        operator: requirement.operator.as_str().to_owned(),
        values: Some(requirement.values.clone()),
    });
    let labels = attributes.label_selector.iter().map(|requirement| LabelSelectorRequirement {
        key: requirement.key.clone(),
        operator: requirement.operator.as_str().to_owned(),
        values: Some(requirement.values.clone()),
    });
    let (fields, labels): (Vec<_>, Vec<_>) = (fields.collect(), labels.collect());
    spec.resource_attributes = Some(ResourceAttributes {
        namespace: text(attributes.namespace),
        verb: text(attributes.verb),
        group: text(attributes.api_group),
        version: text(attributes.api_version),
        resource: text(attributes.resource),
        subresource: text(attributes.subresource),
        name: text(attributes.name),
        field_selector: (!fields.is_empty())
            .then_some(FieldSelectorAttributes { requirements: Some(fields), raw_selector: None }),
        label_selector: (!labels.is_empty())
            .then_some(LabelSelectorAttributes { requirements: Some(labels), raw_selector: None }),
    });
    spec
}

impl Authorizer for WebhookAuthorizer {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeReady<'a, Decision> {
        let spec = spec_of(attributes);
        let text = match serde_json::to_vec(&spec) {
            Ok(text) => text,
            Err(error) => return MaybeReady::Now(Decision::Failed { error: error.to_string() }),
        };
        let question = Fingerprint::of(&text);
        if let Some(status) = self.answers.get(&question, SystemTime::now()) {
            return MaybeReady::Now(decision_of(&status));
        }
        MaybeReady::Later(Box::pin(self.ask(spec, question, text.len() <= MAX_CACHED_QUESTION)))
    }

    fn rules_for(&self, _: &User, _: &str) -> Rules {
        Rules::unknown("webhook authorizer does not support user rule resolution")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_server::TestServer;

    fn quick() -> WebhookAuthorizerConfig {
        let retry = Retry { attempts: 3, first_delay: Duration::from_millis(1) };
        WebhookAuthorizerConfig { retry, ..WebhookAuthorizerConfig::default() }
    }

    async fn ask(authorizer: &WebhookAuthorizer, verb: &str) -> Decision {
        let user = User::new("jane").with_groups(["dev"]);
        let attributes =
            Attributes { namespace: "ns", ..Attributes::resource(&user, verb, "apps", "deployments") };
        authorizer.authorize(&attributes).get().await
    }

    #[tokio::test]
    async fn the_answer_of_the_webhook_decides_and_is_remembered() {
        let server = TestServer::start(|request| {
            let spec = &request.json()["spec"];
            assert_eq!(spec["user"], "jane");
            assert_eq!(request.path, "/authorize");
            let status = match spec["resourceAttributes"]["verb"].as_str().unwrap() {
                "get" => json!({"allowed": true, "reason": "friend"}),
                "delete" => json!({"allowed": false, "denied": true, "reason": "never"}),
                _ => json!({"allowed": false}),
            };
            (200, json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {}, "spec": spec, "status": status}).to_string())
        })
        .await;
        let endpoint = Endpoint::from_url(&server.url("/authorize"), None).unwrap();
        let authorizer = WebhookAuthorizer::new(endpoint, quick());
        for _ in 0..3 {
            assert_eq!(ask(&authorizer, "get").await, Decision::Allow { reason: "friend".into() });
            assert_eq!(ask(&authorizer, "delete").await, Decision::Deny { reason: "never".into() });
            assert_eq!(ask(&authorizer, "list").await, Decision::NoOpinion { reason: "".into() });
        }
        assert_eq!(server.requests(), 3, "each question is asked once");
    }

    #[tokio::test]
    async fn a_broken_webhook_fails_or_denies_as_configured() {
        let server = TestServer::start(|_| (500, "oops".to_owned())).await;
        let endpoint = Endpoint::from_url(&server.url("/"), None).unwrap();
        let authorizer = WebhookAuthorizer::new(endpoint.clone(), quick());
        assert!(matches!(ask(&authorizer, "get").await, Decision::Failed { .. }));
        assert_eq!(server.requests(), 3, "it was tried again");
        let strict =
            WebhookAuthorizer::new(endpoint, WebhookAuthorizerConfig { deny_on_error: true, ..quick() });
        assert!(matches!(ask(&strict, "get").await, Decision::Deny { .. }));
        let garbage = TestServer::start(|_| (200, "<html>".to_owned())).await;
        let endpoint = Endpoint::from_url(&garbage.url("/"), None).unwrap();
        assert!(matches!(
            ask(&WebhookAuthorizer::new(endpoint, quick()), "get").await,
            Decision::Failed { .. }
        ));
    }
}
