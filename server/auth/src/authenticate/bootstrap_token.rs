//! Tokens with which a new node asks for its first certificate: `abcdef.0123456789abcdef`, kept
//! as Secrets of type `bootstrap.kubernetes.io/token` in kube-system.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::SystemTime,
};

use k8s_openapi::api::core::v1::Secret;
use parking_lot::RwLock;

use super::{AuthenticationError, AuthenticationResult, Identity, TokenAuthenticator};
use crate::{MaybeReady, cache::Fingerprint, user::User};

pub const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
pub const SECRET_NAMESPACE: &str = "kube-system";
pub const SECRET_NAME_PREFIX: &str = "bootstrap-token-";
const DEFAULT_GROUP: &str = "system:bootstrappers";
const USER_PREFIX: &str = "system:bootstrap:";

/// The tokens that exist now. Fed with the Secrets of kube-system.
#[derive(Default)]
pub struct BootstrapTokens {
    by_id: RwLock<HashMap<String, Token>>,
}

struct Token {
    secret: Fingerprint,
    expires: Option<SystemTime>,
    identity: Identity,
}

impl BootstrapTokens {
    pub fn new() -> Self {
        BootstrapTokens::default()
    }

    /// A Secret of kube-system came or changed. One that is no usable token is as good as gone.
    pub fn set(&self, secret: &Secret) {
        let Some(id) = secret.metadata.name.as_deref().and_then(|name| name.strip_prefix(SECRET_NAME_PREFIX))
        else {
            return;
        };
        match read_token(id, secret) {
            Ok(token) => self.by_id.write().insert(id.to_owned(), token),
            Err(reason) => {
                tracing::debug!(token = id, reason, "a bootstrap token cannot be used");
                self.by_id.write().remove(id)
            }
        };
    }

    pub fn remove(&self, secret_name: &str) {
        if let Some(id) = secret_name.strip_prefix(SECRET_NAME_PREFIX) {
            self.by_id.write().remove(id);
        }
    }

    fn find(&self, token: &str, now: SystemTime) -> Option<Identity> {
        let (id, secret) = split_token(token)?;
        let tokens = self.by_id.read();
        let known = tokens.get(id)?;
        let valid =
            known.secret == Fingerprint::of(secret.as_bytes()) && known.expires.is_none_or(|end| now < end);
        valid.then(|| known.identity.clone())
    }
}

/// Six, a dot, and sixteen lower-case letters and digits.
fn split_token(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    (id.len() == 6 && secret.len() == 16 && plain(id) && plain(secret)).then_some((id, secret))
}

fn read_token(id: &str, secret: &Secret) -> Result<Token, &'static str> {
    if secret.metadata.deletion_timestamp.is_some() {
        return Err("it is being deleted");
    }
    if secret.type_.as_deref() != Some(SECRET_TYPE) {
        return Err("the Secret is of another type");
    }
    let empty = BTreeMap::new();
    let data = secret.data.as_ref().unwrap_or(&empty);
    let text = |key: &str| data.get(key).and_then(|value| std::str::from_utf8(&value.0).ok()).unwrap_or("");
    if text("token-id") != id {
        return Err("token-id does not match the name");
    }
    if text("token-secret").is_empty() {
        return Err("it has no token-secret");
    }
    if text("usage-bootstrap-authentication") != "true" {
        return Err("it is not meant for authentication");
    }
    let expires = match text("expiration") {
        "" => None,
        written => {
            let time: jiff::Timestamp = written.parse().map_err(|_| "its expiration cannot be read")?;
            Some(SystemTime::from(time))
        }
    };
    let mut groups = BTreeSet::from([DEFAULT_GROUP.to_owned()]);
    for group in text("auth-extra-groups").split(',').filter(|group| !group.is_empty()) {
        if !is_bootstrap_group(group) {
            return Err("an extra group is not below system:bootstrappers:");
        }
        groups.insert(group.to_owned());
    }
    let user = User::new(format!("{USER_PREFIX}{id}")).with_groups(groups);
    Ok(Token {
        secret: Fingerprint::of(text("token-secret").as_bytes()),
        expires,
        identity: Identity::new(user),
    })
}

/// A token must not be a way into any other group.
fn is_bootstrap_group(group: &str) -> bool {
    let Some(rest) = group.strip_prefix("system:bootstrappers:") else { return false };
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b':' | b'-');
    let ends_well =
        rest.bytes().last().is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    rest.len() <= 256 && ends_well && rest.bytes().all(allowed)
}

impl TokenAuthenticator for BootstrapTokens {
    fn authenticate_token<'a>(
        &'a self,
        token: &'a str,
        _: &'a [String],
        now: SystemTime,
    ) -> MaybeReady<'a, Result<AuthenticationResult, AuthenticationError>> {
        MaybeReady::Now(Ok(self
            .find(token, now)
            .map_or(AuthenticationResult::NotMine, AuthenticationResult::Authenticated)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::ByteString;

    use super::*;

    const TOKEN: &str = "abcdef.0123456789abcdef";

    fn secret(change: &[(&str, &str)]) -> Secret {
        let mut data: BTreeMap<&str, &str> = BTreeMap::from([
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-authentication", "true"),
            ("auth-extra-groups", "system:bootstrappers:worker"),
        ]);
        data.extend(change.iter().copied());
        let mut secret = Secret { type_: Some(SECRET_TYPE.to_owned()), ..Secret::default() };
        secret.metadata.name = Some("bootstrap-token-abcdef".to_owned());
        secret.data =
            Some(data.into_iter().map(|(key, value)| (key.to_owned(), ByteString(value.into()))).collect());
        secret
    }

    fn find(secret: &Secret, token: &str, seconds: u64) -> Option<User> {
        let tokens = BootstrapTokens::new();
        tokens.set(secret);
        tokens
            .find(token, SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
            .map(|found| (*found.user).clone())
    }

    #[test]
    fn a_good_token_is_a_bootstrapper() {
        let user = find(&secret(&[]), TOKEN, 0).unwrap();
        assert_eq!(user.name, "system:bootstrap:abcdef");
        assert_eq!(
            user.groups,
            ["system:bootstrappers", "system:bootstrappers:worker", "system:authenticated"]
        );
        for wrong in
            ["abcdef.0123456789abcdeg", "abcdeg.0123456789abcdef", "abcdef", "ABCDEF.0123456789abcdef", ""]
        {
            assert_eq!(find(&secret(&[]), wrong, 0), None, "{wrong}");
        }
    }

    #[test]
    fn a_token_ends_by_the_clock_and_with_its_secret() {
        let ending = secret(&[("expiration", "1970-01-01T00:01:00Z")]);
        assert!(find(&ending, TOKEN, 59).is_some());
        assert!(find(&ending, TOKEN, 60).is_none());
        let tokens = BootstrapTokens::new();
        tokens.set(&secret(&[]));
        tokens.remove("bootstrap-token-abcdef");
        assert!(tokens.find(TOKEN, SystemTime::UNIX_EPOCH).is_none());
    }

    #[test]
    fn a_secret_that_is_not_quite_a_token_is_none() {
        for change in [
            ("token-id", "ghijkl"),
            ("token-secret", ""),
            ("usage-bootstrap-authentication", "yes"),
            ("expiration", "tomorrow"),
            ("auth-extra-groups", "system:masters"),
            ("auth-extra-groups", "system:bootstrappers:"),
            ("auth-extra-groups", "system:bootstrappers:a,system:masters"),
        ] {
            assert_eq!(find(&secret(&[change]), TOKEN, 0), None, "{change:?}");
        }
        let mut other_type = secret(&[]);
        other_type.type_ = Some("Opaque".to_owned());
        assert_eq!(find(&other_type, TOKEN, 0), None);
        let mut leaving = secret(&[]);
        leaving.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(find(&leaving, TOKEN, 0), None);
    }
}
