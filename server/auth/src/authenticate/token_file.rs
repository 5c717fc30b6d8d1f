//! `--token-auth-file`: tokens in a file, `token,user,uid,"group1,group2"`.

use std::{collections::HashMap, path::Path, time::SystemTime};

use super::{AuthenticationError, AuthenticationResult, CredentialFileError, Identity, TokenAuthenticator};
use crate::{MaybeReady, cache::Fingerprint, csv, user::User};

/// Tokens are kept as fingerprints: a lookup takes as long for a near miss as for any other, and
/// memory holds no secret.
pub struct TokenFile(HashMap<Fingerprint, Identity>);

impl TokenFile {
    pub fn open(path: &Path) -> Result<Self, CredentialFileError> {
        TokenFile::parse(&super::read_credential_file(path)?).map_err(|error| error.in_file(path))
    }

    pub fn parse(text: &str) -> Result<Self, CredentialFileError> {
        let mut tokens = HashMap::new();
        for (line, record) in csv::records(text)? {
            let [token, name, uid, groups @ ..] = record.as_slice() else {
                return Err(CredentialFileError::record(line, "expected token, user name and user uid"));
            };
            if token.is_empty() {
                tracing::warn!(line, "a record of the token file has no token and is skipped");
                continue;
            }
            let user = super::file_user(name, uid, groups);
            if tokens.insert(Fingerprint::of(token.as_bytes()), Identity::new(user)).is_some() {
                tracing::warn!(line, "a token occurs twice in the token file; the later record applies");
            }
        }
        Ok(TokenFile(tokens))
    }

    /// A file with one token, as for the client inside the server's own process.
    pub fn single(token: &str, user: User) -> Self {
        TokenFile(HashMap::from([(Fingerprint::of(token.as_bytes()), Identity::new(user))]))
    }
}

impl TokenAuthenticator for TokenFile {
    fn authenticate_token<'a>(
        &'a self,
        token: &'a str,
        _: &'a [String],
        _: SystemTime,
    ) -> MaybeReady<'a, Result<AuthenticationResult, AuthenticationError>> {
        let identity = self.0.get(&Fingerprint::of(token.as_bytes()));
        MaybeReady::Now(Ok(identity
            .cloned()
            .map_or(AuthenticationResult::NotMine, AuthenticationResult::Authenticated)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user_of(file: &TokenFile, token: &str) -> Option<User> {
        match file.authenticate_token(token, &[], SystemTime::UNIX_EPOCH) {
            MaybeReady::Now(Ok(AuthenticationResult::Authenticated(identity))) => {
                Some((*identity.user).clone())
            }
            _ => None,
        }
    }

    #[test]
    fn a_token_names_its_user_and_groups() {
        let file = TokenFile::parse("secret,jane,u1,\"dev,ops\"\nother,joe,u2\n,nobody,u3\n").unwrap();
        let jane = user_of(&file, "secret").unwrap();
        assert_eq!((jane.name.as_str(), jane.uid.as_str()), ("jane", "u1"));
        assert_eq!(jane.groups, ["dev", "ops", "system:authenticated"]);
        assert_eq!(user_of(&file, "other").unwrap().groups, ["system:authenticated"]);
        for unknown in ["", "secre", "secret ", "Secret"] {
            assert_eq!(user_of(&file, unknown), None, "{unknown:?}");
        }
        assert!(TokenFile::parse("token,user").is_err());
    }
}
