//! `--basic-auth-file`: passwords in a file, `password,user,uid,"group1,group2"`.

use std::{collections::HashMap, path::Path};

use base64::{Engine, engine::general_purpose::STANDARD};

use super::{
    AuthenticationError, AuthenticationResult, Authenticator, CredentialFileError, Credentials, Identity,
};
use crate::{MaybeReady, cache::Fingerprint, csv};

pub struct BasicFile(HashMap<String, (Fingerprint, Identity)>);

impl BasicFile {
    pub fn open(path: &Path) -> Result<Self, CredentialFileError> {
        BasicFile::parse(&super::read_credential_file(path)?).map_err(|error| error.in_file(path))
    }

    pub fn parse(text: &str) -> Result<Self, CredentialFileError> {
        let mut users = HashMap::new();
        for (line, record) in csv::records(text)? {
            let [password, name, uid, groups @ ..] = record.as_slice() else {
                return Err(CredentialFileError::record(line, "expected password, user name and user uid"));
            };
            let identity = Identity::new(super::file_user(name, uid, groups));
            if users.insert(name.clone(), (Fingerprint::of(password.as_bytes()), identity)).is_some() {
                tracing::warn!(line, "a user occurs twice in the basic auth file; the later record applies");
            }
        }
        Ok(BasicFile(users))
    }

    fn decide(&self, authorization: Option<&str>) -> Result<AuthenticationResult, AuthenticationError> {
        let Some(encoded) = authorization.and_then(basic) else { return Ok(AuthenticationResult::NotMine) };
        // One message for all that can be wrong: it must not tell which users exist.
        let refused = || AuthenticationError("invalid username/password combination".to_owned());
        let decoded = STANDARD.decode(encoded).map_err(|_| refused())?;
        let decoded = String::from_utf8(decoded).map_err(|_| refused())?;
        let (name, password) = decoded.split_once(':').ok_or_else(refused)?;
        match self.0.get(name) {
            Some((expected, identity)) if *expected == Fingerprint::of(password.as_bytes()) => {
                Ok(AuthenticationResult::Authenticated(identity.clone()))
            }
            _ => Err(refused()),
        }
    }
}

fn basic(authorization: &str) -> Option<&str> {
    let (scheme, encoded) = authorization.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("basic").then_some(encoded.trim())
}

impl Authenticator for BasicFile {
    fn authenticate<'a>(
        &'a self,
        credentials: &'a Credentials<'a>,
    ) -> MaybeReady<'a, Result<AuthenticationResult, AuthenticationError>> {
        MaybeReady::Now(self.decide(credentials.authorization))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_password_authenticates_and_all_else_is_refused_alike() {
        let file = BasicFile::parse("s3:cret,jane,u1,dev").unwrap();
        let header = |text: &str| format!("Basic {}", STANDARD.encode(text));
        match file.decide(Some(&header("jane:s3:cret"))) {
            Ok(AuthenticationResult::Authenticated(identity)) => {
                assert_eq!(identity.user.groups, ["dev", "system:authenticated"])
            }
            _ => panic!("jane has given her password"),
        }
        for wrong in
            [header("jane:"), header("jane:s3"), header("joe:s3:cret"), header("jane"), "Basic !".to_owned()]
        {
            let error = file.decide(Some(&wrong)).err().map(|error| error.0);
            assert_eq!(error.as_deref(), Some("invalid username/password combination"), "{wrong}");
        }
        assert!(matches!(file.decide(Some("Bearer x")), Ok(AuthenticationResult::NotMine)));
        assert!(matches!(file.decide(None), Ok(AuthenticationResult::NotMine)));
    }
}
