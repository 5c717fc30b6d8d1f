//! Upstream's flags for authentication and authorization beyond files and certificates: OpenID Connect and webhooks.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{ArgAction, Args};
use ferry_apiserver::access::{AuthorizationWebhook, TokenWebhook};
use ferry_auth::authenticate::OidcConfig;
use ferry_auth::jws::Algorithm;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

#[derive(Args, Clone)]
pub struct AccessFlags {
    /// Accept bootstrap tokens (Secrets in kube-system), with which new nodes request a certificate
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_bootstrap_token_auth: bool,

    /// URL of the OpenID Connect provider, https only; it enables OpenID Connect tokens
    #[arg(long, requires = "oidc_client_id")]
    pub oidc_issuer_url: Option<String>,
    /// Client ID: the audience that every OpenID Connect token must contain
    #[arg(long, requires = "oidc_issuer_url")]
    pub oidc_client_id: Option<String>,
    /// Claim that contains the user name
    #[arg(long, default_value = "sub")]
    pub oidc_username_claim: String,
    /// Prefix of user names; "-" for none
    #[arg(long)]
    pub oidc_username_prefix: Option<String>,
    /// Claim that contains the user's groups
    #[arg(long)]
    pub oidc_groups_claim: Option<String>,
    /// Prefix of group names from OpenID Connect, e.g. oidc:
    #[arg(long, default_value = "")]
    pub oidc_groups_prefix: String,
    /// Claim and value that a token must contain: key=value; may be repeated
    #[arg(long, value_delimiter = ',')]
    pub oidc_required_claim: Vec<String>,
    /// Accepted signature algorithms of OpenID Connect tokens
    #[arg(long, value_delimiter = ',', default_value = "RS256")]
    pub oidc_signing_algs: Vec<String>,
    /// CA certificates that verify the provider's certificate [default: the host's]
    #[arg(long)]
    pub oidc_ca_file: Option<PathBuf>,

    /// Kubeconfig of the webhook that authenticates bearer tokens
    #[arg(long)]
    pub authentication_token_webhook_config_file: Option<PathBuf>,
    /// API version of the TokenReviews that are sent to the webhook
    #[arg(long, default_value = "v1beta1")]
    pub authentication_token_webhook_version: String,
    /// How long the server caches the webhook's responses
    #[arg(long, default_value = "2m", value_parser = duration)]
    pub authentication_token_webhook_cache_ttl: Duration,

    /// Kubeconfig of the webhook that authorizes requests; for the mode Webhook
    #[arg(long)]
    pub authorization_webhook_config_file: Option<PathBuf>,
    /// API version of the SubjectAccessReviews that are sent to the webhook
    #[arg(long, default_value = "v1beta1")]
    pub authorization_webhook_version: String,
    /// How long the server caches allowed requests of the webhook
    #[arg(long, default_value = "5m", value_parser = duration)]
    pub authorization_webhook_cache_authorized_ttl: Duration,
    /// How long the server caches denied requests of the webhook
    #[arg(long, default_value = "30s", value_parser = duration)]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,
}

impl AccessFlags {
    pub fn oidc(&self) -> anyhow::Result<Option<OidcConfig>> {
        let (Some(issuer), Some(client)) = (&self.oidc_issuer_url, &self.oidc_client_id) else {
            return Ok(None);
        };
        let mut required_claims = std::collections::BTreeMap::new();
        for claim in &self.oidc_required_claim {
            let Some((key, value)) = claim.split_once('=') else {
                bail!("--oidc-required-claim: {claim:?} is not key=value");
            };
            required_claims.insert(key.to_owned(), value.to_owned());
        }
        let algorithms = self.oidc_signing_algs.iter().map(|name| {
            Algorithm::parse(name).with_context(|| format!("--oidc-signing-algs: {name:?} is not supported"))
        });
        let authorities = match &self.oidc_ca_file {
            None => None,
            Some(path) => {
                let read = || CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
                Some(read().with_context(|| format!("read {}", path.display()))?)
            }
        };
        Ok(Some(OidcConfig {
            issuer_url: issuer.clone(),
            audiences: vec![client.clone()],
            username_prefix: OidcConfig::username_prefix(
                self.oidc_username_prefix.as_deref(),
                &self.oidc_username_claim,
                issuer,
            ),
            username_claim: self.oidc_username_claim.clone(),
            groups_claim: self.oidc_groups_claim.clone(),
            groups_prefix: self.oidc_groups_prefix.clone(),
            required_claims,
            algorithms: algorithms.collect::<Result<_, _>>()?,
            authorities,
        }))
    }

    pub fn token_webhook(&self) -> Option<TokenWebhook> {
        Some(TokenWebhook {
            kubeconfig: self.authentication_token_webhook_config_file.clone()?,
            version: self.authentication_token_webhook_version.clone(),
            cache_ttl: self.authentication_token_webhook_cache_ttl,
        })
    }

    pub fn authorization_webhook(&self) -> Option<AuthorizationWebhook> {
        Some(AuthorizationWebhook {
            kubeconfig: self.authorization_webhook_config_file.clone()?,
            version: self.authorization_webhook_version.clone(),
            authorized_ttl: self.authorization_webhook_cache_authorized_ttl,
            unauthorized_ttl: self.authorization_webhook_cache_unauthorized_ttl,
        })
    }
}

/// As upstream writes durations: `1h30m`, `45s`, `500ms`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is not a duration like 5m or 30s");
    let (mut total, mut rest) = (Duration::ZERO, text);
    if rest.is_empty() {
        return Err(bad());
    }
    while !rest.is_empty() && rest != "0" {
        let digits = rest.find(|sign: char| !sign.is_ascii_digit()).ok_or_else(bad)?;
        let number: u32 = rest[..digits].parse().map_err(|_| bad())?;
        let after = &rest[digits..];
        let unit_end = after.find(|sign: char| sign.is_ascii_digit()).unwrap_or(after.len());
        let unit = match &after[..unit_end] {
            "h" => Duration::from_secs(3600),
            "m" => Duration::from_secs(60),
            "s" => Duration::from_secs(1),
            "ms" => Duration::from_millis(1),
            _ => return Err(bad()),
        };
        total += unit * number;
        rest = &after[unit_end..];
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_upstream_writes_them() {
        let check = |text: &str, expected: Option<u64>| {
            assert_eq!(duration(text).ok().map(|found| found.as_millis() as u64), expected, "{text}");
        };
        check("2m0s", Some(120_000));
        check("1h30m", Some(5_400_000));
        check("500ms", Some(500));
        check("0", Some(0));
        check("5", None);
        check("", None);
        check("m", None);
    }
}
