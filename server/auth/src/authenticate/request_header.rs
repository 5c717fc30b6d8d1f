//! Users that a front proxy asserts in headers.
//!
//! The headers are valid only on a connection with a client certificate that the front proxy's authority signed. From
//! other clients the API server drops them.

use std::time::SystemTime;

use rustls_pki_types::CertificateDer;

use super::{AuthenticationError, AuthenticationResult, Authenticator, Credentials, Headers, Identity};
use crate::{
    MaybeReady,
    cache::{ExpiringCache, Fingerprint},
    certificate::{CertificateError, ClientTrust},
    user::User,
};

#[derive(Clone, Debug)]
pub struct RequestHeaderConfig {
    /// Common names a proxy may have; any if empty.
    pub allowed_names: Vec<String>,
    pub username_headers: Vec<String>,
    pub uid_headers: Vec<String>,
    pub group_headers: Vec<String>,
    pub extra_header_prefixes: Vec<String>,
}

impl Default for RequestHeaderConfig {
    fn default() -> Self {
        let one = |name: &str| vec![name.to_owned()];
        RequestHeaderConfig {
            allowed_names: one("front-proxy-client"),
            username_headers: one("X-Remote-User"),
            uid_headers: one("X-Remote-Uid"),
            group_headers: one("X-Remote-Group"),
            extra_header_prefixes: one("X-Remote-Extra-"),
        }
    }
}

pub struct RequestHeader {
    trust: ClientTrust,
    config: RequestHeaderConfig,
    verified: ExpiringCache<Fingerprint, ()>,
}

impl RequestHeader {
    pub fn new(
        authorities: &[CertificateDer<'_>],
        config: RequestHeaderConfig,
    ) -> Result<Self, CertificateError> {
        // A handful of proxies at most.
        Ok(RequestHeader { trust: ClientTrust::new(authorities)?, config, verified: ExpiringCache::new(64) })
    }

    /// Takes other authorities from now on, as when the front proxy's was renewed.
    pub fn set_authorities(&self, authorities: &[CertificateDer<'_>]) -> Result<(), CertificateError> {
        self.trust.replace(authorities)?;
        self.verified.clear();
        Ok(())
    }

    fn decide(&self, credentials: &Credentials<'_>) -> Result<AuthenticationResult, AuthenticationError> {
        let headers = credentials.headers;
        let Some(name) = first_value(headers, &self.config.username_headers) else {
            return Ok(AuthenticationResult::NotMine);
        };
        if credentials.client_certificates.chain().is_empty() {
            return Ok(AuthenticationResult::NotMine);
        }
        self.check_proxy(credentials.client_certificates.chain(), credentials.now)?;
        let groups = self.config.group_headers.iter().flat_map(|header| headers.values(header));
        let mut user = User::new(name).with_groups(groups.filter(|group| !group.is_empty()));
        user.uid = first_value(headers, &self.config.uid_headers).unwrap_or_default().to_owned();
        for prefix in &self.config.extra_header_prefixes {
            for header in headers.names() {
                if let Some(key) = strip_prefix_ignoring_case(header, prefix) {
                    let values = headers.values(header).into_iter().map(str::to_owned);
                    user.extra.entry(unescape_key(key)).or_default().extend(values);
                }
            }
        }
        Ok(AuthenticationResult::Authenticated(Identity::new(user)))
    }

    fn check_proxy(&self, chain: &[CertificateDer<'_>], now: SystemTime) -> Result<(), AuthenticationError> {
        let fingerprint = Fingerprint::of(&chain[0]);
        if self.verified.get(&fingerprint, now).is_some() {
            return Ok(());
        }
        let facts = self.trust.verify(chain, now).map_err(|error| AuthenticationError(error.to_string()))?;
        let allowed = &self.config.allowed_names;
        if !allowed.is_empty() && !allowed.contains(&facts.common_name) {
            let refusal = format!("x509: subject with cn={} is not in the allowed list", facts.common_name);
            return Err(AuthenticationError(refusal));
        }
        self.verified.insert(fingerprint, (), facts.not_after, now);
        Ok(())
    }
}

fn first_value<'a>(headers: &'a dyn Headers, names: &[String]) -> Option<&'a str> {
    names.iter().find_map(|name| headers.values(name).into_iter().next().filter(|value| !value.is_empty()))
}

fn strip_prefix_ignoring_case<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let (start, rest) = text.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// Keys of extra fields come percent-encoded and, being header names, without case. A key that
/// does not decode is taken as it is.
pub fn unescape_key(encoded: &str) -> String {
    let lower = encoded.to_ascii_lowercase();
    let mut decoded = Vec::with_capacity(lower.len());
    let mut rest = lower.as_bytes();
    loop {
        match rest {
            [] => break,
            [b'%', high, low, tail @ ..] => {
                let digit = |byte: u8| (byte as char).to_digit(16);
                let (Some(high), Some(low)) = (digit(*high), digit(*low)) else { return lower };
                decoded.push((high * 16 + low) as u8);
                rest = tail;
            }
            [b'%', ..] => return lower,
            [byte, tail @ ..] => {
                decoded.push(*byte);
                rest = tail;
            }
        }
    }
    String::from_utf8(decoded).unwrap_or(lower)
}

impl Authenticator for RequestHeader {
    fn authenticate<'a>(
        &'a self,
        credentials: &'a Credentials<'a>,
    ) -> MaybeReady<'a, Result<AuthenticationResult, AuthenticationError>> {
        MaybeReady::Now(self.decide(credentials))
    }
}
