//! Client certificates: the common name is the user, the organizations are its groups.

use std::time::{Duration, SystemTime};

use rustls_pki_types::CertificateDer;

use super::{
    AuthenticationError, AuthenticationResult, Authenticator, ClientCertificates, Credentials, Identity,
};
use crate::{
    MaybeReady,
    cache::{ExpiringCache, Fingerprint},
    certificate::{CertificateError, CertificateFacts, ClientTrust},
    user::{CREDENTIAL_ID, User},
};

/// A chain costs a signature check per link, and a client sends it once but asks many times.
const REMEMBERED: usize = 4096;
const REMEMBER_FOR: Duration = Duration::from_secs(600);

pub struct X509 {
    trust: ClientTrust,
    verified: ExpiringCache<Fingerprint, Identity>,
}

impl X509 {
    pub fn new(authorities: &[CertificateDer<'_>]) -> Result<Self, CertificateError> {
        Ok(X509 { trust: ClientTrust::new(authorities)?, verified: ExpiringCache::new(REMEMBERED) })
    }

    /// Takes other authorities from now on, as when the CA file changed.
    pub fn set_authorities(&self, authorities: &[CertificateDer<'_>]) -> Result<(), CertificateError> {
        self.trust.replace(authorities)?;
        self.verified.clear();
        Ok(())
    }

    fn decide(
        &self,
        shown: &ClientCertificates,
        now: SystemTime,
    ) -> Result<AuthenticationResult, AuthenticationError> {
        let Some(fingerprint) = shown.fingerprint else { return Ok(AuthenticationResult::NotMine) };
        if let Some(identity) = self.verified.get(&fingerprint, now) {
            return Ok(AuthenticationResult::Authenticated(identity));
        }
        let facts =
            self.trust.verify(&shown.chain, now).map_err(|error| AuthenticationError(error.to_string()))?;
        let ends = facts.not_after.min(now + REMEMBER_FOR);
        match user_of(facts, fingerprint)? {
            Some(user) => {
                let identity = Identity::new(user);
                self.verified.insert(fingerprint, identity.clone(), ends, now);
                Ok(AuthenticationResult::Authenticated(identity))
            }
            None => Ok(AuthenticationResult::NotMine),
        }
    }
}

fn user_of(facts: CertificateFacts, fingerprint: Fingerprint) -> Result<Option<User>, AuthenticationError> {
    if facts.common_name.is_empty() {
        return Ok(None);
    }
    let uid = match facts.uids.as_slice() {
        [] => String::new(),
        [uid] if uid.is_empty() => {
            return Err(AuthenticationError("UID cannot be an empty string".to_owned()));
        }
        [uid] => uid.clone(),
        several => {
            return Err(AuthenticationError(format!(
                "expected 1 UID, but found multiple: [{}]",
                several.join(" ")
            )));
        }
    };
    let mut user = User { name: facts.common_name, uid, groups: facts.organizations, ..User::default() };
    user.extra.insert(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={}", fingerprint.to_hex())]);
    Ok(Some(user))
}

impl Authenticator for X509 {
    fn authenticate<'a>(
        &'a self,
        credentials: &'a Credentials<'a>,
    ) -> MaybeReady<'a, Result<AuthenticationResult, AuthenticationError>> {
        MaybeReady::Now(self.decide(credentials.client_certificates, credentials.now))
    }
}
