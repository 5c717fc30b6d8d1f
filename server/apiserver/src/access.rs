//! Builds authenticators and authorizers from the configuration, in the order in which they are called.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ferry_auth::authenticate::{
    Anonymous, Authenticator, BasicFile, BootstrapTokens, Oidc, RequestHeader, ServiceAccounts,
    TokenAuthenticator, TokenFile, Tokens, WebhookTokenConfig, WebhookTokens, X509,
};
use ferry_auth::authorize::{Abac, NodeAuthorizer, WebhookAuthorizer, WebhookAuthorizerConfig};
use ferry_auth::pki::Pki;
use ferry_auth::{AlwaysAllow, AlwaysDeny, Authentication, Authorization, Authorizer, Rbac, Retry};
use ferry_registry::Registry;

use crate::certificates::CertificateAuthenticators;
use crate::follow::{self, follow};
use crate::run::{Config, StartError};

/// `--authorization-webhook-…`
#[derive(Debug, Clone)]
pub struct AuthorizationWebhook {
    pub kubeconfig: PathBuf,
    pub version: String,
    pub authorized_ttl: Duration,
    pub unauthorized_ttl: Duration,
}

/// `--authentication-token-webhook-…`
#[derive(Debug, Clone)]
pub struct TokenWebhook {
    pub kubeconfig: PathBuf,
    pub version: String,
    pub cache_ttl: Duration,
}

/// Who callers can be.
pub struct Authenticators {
    pub union: Authentication,
    /// All that tokens are asked of, for TokenReview.
    pub tokens: Arc<Tokens>,
    pub certificate_authenticators: CertificateAuthenticators,
}

pub async fn authentication(
    config: &Config,
    pki: &Pki,
    registry: &Registry,
    accounts: Arc<ServiceAccounts>,
) -> Result<Authenticators, StartError> {
    let proxies =
        RequestHeader::new(&config.given.front_proxy_authorities(pki)?, config.given.request_header.clone());
    let front_proxies = Arc::new(proxies.map_err(wrong)?);
    let clients = Arc::new(X509::new(&config.given.client_authorities(pki)?).map_err(wrong)?);
    let mut members: Vec<Arc<dyn Authenticator>> = vec![front_proxies.clone(), clients.clone()];
    if let Some(path) = &config.basic_auth_file {
        members.push(Arc::new(BasicFile::open(path).map_err(wrong)?));
    }

    let audiences = accounts.api_audiences().to_vec();
    let mut tokens: Vec<Arc<dyn TokenAuthenticator>> = Vec::new();
    if let Some(path) = &config.token_auth_file {
        tokens.push(Arc::new(TokenFile::open(path).map_err(wrong)?));
    }
    tokens.push(accounts);
    if config.bootstrap_tokens {
        let bootstrap = Arc::new(BootstrapTokens::new());
        follow(registry, &bootstrap, follow::BOOTSTRAP_TOKENS);
        tokens.push(bootstrap);
    }
    if let Some(oidc) = &config.oidc {
        tokens.push(Arc::new(Oidc::new(oidc.clone()).map_err(wrong)?));
    }
    if let Some(webhook) = &config.token_webhook {
        let settings = WebhookTokenConfig {
            version: webhook.version.clone(),
            cache_ttl: webhook.cache_ttl,
            api_audiences: audiences.clone(),
            retry: Retry::default(),
        };
        tokens.push(Arc::new(WebhookTokens::open(&webhook.kubeconfig, settings).await.map_err(wrong)?));
    }
    let tokens = Arc::new(Tokens::new(audiences, tokens));
    members.push(tokens.clone());
    let anonymous = config.anonymous_auth.then(Anonymous::on_health_and_version);
    let union = Authentication::new(members, anonymous);
    Ok(Authenticators {
        union,
        tokens,
        certificate_authenticators: CertificateAuthenticators { clients, front_proxies },
    })
}

pub async fn authorization(
    config: &Config,
    registry: &Registry,
    rbac: &Arc<Rbac>,
) -> Result<Authorization, StartError> {
    let mut members: Vec<Arc<dyn Authorizer>> = Vec::new();
    for (at, mode) in config.authorization_modes.iter().enumerate() {
        if config.authorization_modes[..at].contains(mode) {
            return Err(StartError::Config(format!("authorization-mode {mode:?} is named more than once")));
        }
        members.push(match mode.as_str() {
            "Node" => {
                let node = Arc::new(NodeAuthorizer::new());
                follow(registry, &node, follow::NODE);
                node
            }
            "RBAC" => rbac.clone(),
            "ABAC" => {
                let path = config.authorization_policy_file.as_ref();
                let path = path.ok_or_else(|| wrong("authorization-mode ABAC needs a policy file"))?;
                Arc::new(Abac::open(path).map_err(wrong)?)
            }
            "Webhook" => {
                let webhook = config.authorization_webhook.as_ref();
                let webhook =
                    webhook.ok_or_else(|| wrong("authorization-mode Webhook needs its config file"))?;
                let settings = WebhookAuthorizerConfig {
                    version: webhook.version.clone(),
                    authorized_ttl: webhook.authorized_ttl,
                    unauthorized_ttl: webhook.unauthorized_ttl,
                    ..WebhookAuthorizerConfig::default()
                };
                Arc::new(WebhookAuthorizer::open(&webhook.kubeconfig, settings).await.map_err(wrong)?)
            }
            "AlwaysAllow" => Arc::new(AlwaysAllow),
            "AlwaysDeny" => Arc::new(AlwaysDeny),
            other => {
                return Err(StartError::Config(format!("authorization-mode {other:?} is not a valid mode")));
            }
        });
    }
    Ok(Authorization::new(members))
}

fn wrong(error: impl std::fmt::Display) -> StartError {
    StartError::Config(error.to_string())
}
