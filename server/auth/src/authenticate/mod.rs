//! Authentication: a union of authenticators, of which the first that recognises the credentials wins.
//!
//! Wrong credentials are not treated as absent: if an authenticator fails and none recognises the caller, the request is
//! refused instead of being anonymous.

mod anonymous;
mod basic_file;
pub mod bootstrap_token;
pub mod oidc;
mod request_header;
pub mod service_account;
mod token_file;
mod tokens;
mod webhook_token;
mod websocket;
mod x509;

use std::{
    fmt, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use rustls_pki_types::CertificateDer;

use crate::{MaybeReady, cache::Fingerprint, csv::CsvError, user::User};

pub use anonymous::Anonymous;
pub use basic_file::BasicFile;
pub use bootstrap_token::BootstrapTokens;
pub use oidc::{Oidc, OidcConfig};
pub use request_header::{RequestHeader, RequestHeaderConfig, unescape_key};
pub use service_account::ServiceAccounts;
pub use token_file::TokenFile;
pub use tokens::{TokenAuthenticator, Tokens};
pub use webhook_token::{WebhookTokenConfig, WebhookTokens};
pub use websocket::{WebSocketBearer, websocket_bearer};
pub use x509::X509;

/// The credentials of a request, as plain data.
pub struct Credentials<'a> {
    /// The `Authorization` header.
    pub authorization: Option<&'a str>,
    /// The token a WebSocket client hides in its subprotocol list, already decoded.
    pub websocket_bearer: Option<&'a str>,
    /// The chain presented in the TLS handshake, leaf first. The handshake has proven that the
    /// peer holds the key; nobody has yet checked who signed the certificate.
    pub client_certificates: &'a ClientCertificates,
    /// The request's other headers; the front proxy speaks through them.
    pub headers: &'a dyn Headers,
    pub path: &'a str,
    pub peer: Option<SocketAddr>,
    pub now: SystemTime,
}

/// The chain of a connection, leaf first, with the leaf's fingerprint: taken once, asked for by every request.
#[derive(Clone, Default)]
pub struct ClientCertificates {
    chain: Vec<CertificateDer<'static>>,
    fingerprint: Option<Fingerprint>,
}

impl ClientCertificates {
    pub fn new(chain: Vec<CertificateDer<'static>>) -> Self {
        let fingerprint = chain.first().map(|leaf| Fingerprint::of(leaf));
        ClientCertificates { chain, fingerprint }
    }

    /// Empty where the client showed none.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }
}

/// Headers without the HTTP library's types.
pub trait Headers: Sync {
    /// All values of a header whose name is compared without regard to case.
    fn values(&self, name: &str) -> Vec<&str>;
    /// Names of all headers.
    fn names(&self) -> Vec<&str>;
}

/// A request that shows no headers, as one from inside the process.
pub struct NoHeaders;

impl Headers for NoHeaders {
    fn values(&self, _: &str) -> Vec<&str> {
        Vec::new()
    }

    fn names(&self) -> Vec<&str> {
        Vec::new()
    }
}

impl<'a> Credentials<'a> {
    /// The bearer token, from the header or from a WebSocket's subprotocols.
    pub fn bearer(&self) -> Option<&'a str> {
        let from_header = self.authorization.and_then(|value| {
            let mut parts = value.trim().splitn(3, ' ');
            let scheme = parts.next().filter(|scheme| scheme.eq_ignore_ascii_case("bearer"));
            scheme.and_then(|_| parts.next())
        });
        from_header.or(self.websocket_bearer).filter(|token| !token.is_empty())
    }
}

/// An authenticated caller.
#[derive(Clone, Debug)]
pub struct Identity {
    pub user: Arc<User>,
    /// The audiences the credentials are good for, as far as they name any; for TokenReview.
    pub audiences: Vec<String>,
    /// The Secret that keeps the token, in the service account's namespace.
    pub kept_in: Option<Arc<str>>,
}

impl Identity {
    /// Puts the user into `system:authenticated`, where everyone belongs who was recognised.
    pub fn new(mut user: User) -> Self {
        user.mark_authenticated();
        Identity { user: Arc::new(user), audiences: Vec::new(), kept_in: None }
    }
}

pub enum AuthenticationResult {
    Authenticated(Identity),
    /// These are not the credentials this authenticator deals with.
    NotMine,
}

/// The error of one authenticator, or of all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AuthenticationError(pub String);

pub trait Authenticator: Send + Sync {
    /// Its name in the trace: what it is called here.
    fn name(&self) -> &'static str {
        crate::short_type_name::<Self>()
    }

    fn authenticate<'a>(
        &'a self,
        credentials: &'a Credentials<'a>,
    ) -> MaybeReady<'a, Result<AuthenticationResult, AuthenticationError>>;
}

/// The configured authenticators, in order.
#[derive(Default)]
pub struct Authentication {
    members: Vec<Arc<dyn Authenticator>>,
    anonymous: Option<Anonymous>,
}

/// No authenticator accepted the credentials: a 401. Empty if there were none.
#[derive(Debug, PartialEq, Eq)]
pub struct Unauthorized {
    pub errors: Vec<AuthenticationError>,
}

impl fmt::Display for Unauthorized {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors: Vec<&str> = self.errors.iter().map(|error| error.0.as_str()).collect();
        match errors.as_slice() {
            [] => formatter.write_str("no credentials provided"),
            [single] => formatter.write_str(single),
            several => write!(formatter, "[{}]", several.join(", ")),
        }
    }
}

impl std::error::Error for Unauthorized {}

impl Authentication {
    /// The usual order: request header, x509, basic file, tokens.
    pub fn new(members: Vec<Arc<dyn Authenticator>>, anonymous: Option<Anonymous>) -> Self {
        Authentication { members, anonymous }
    }

    pub async fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Identity, Unauthorized> {
        let mut errors = Vec::new();
        for member in &self.members {
            let mut span = ferry_trace::span("auth.authenticator");
            span.set("name", member.name());
            match span.in_scope(member.authenticate(credentials).get()).await {
                Ok(AuthenticationResult::Authenticated(identity)) => {
                    span.set("verdict", "authenticated");
                    return Ok(identity);
                }
                Ok(AuthenticationResult::NotMine) => {
                    span.set("verdict", "not mine");
                }
                Err(error) => {
                    // What it objects to may quote what was shown.
                    span.set("verdict", "refused");
                    errors.push(error);
                }
            }
        }
        let anonymous = self.anonymous.as_ref().filter(|_| errors.is_empty());
        anonymous.and_then(|anonymous| anonymous.admit(credentials)).ok_or(Unauthorized { errors })
    }
}

/// Why a file of tokens or passwords cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialFileError {
    #[error("reading {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Csv(#[from] CsvError),
    #[error("line {line}: {problem}")]
    Record { line: usize, problem: &'static str },
    #[error("{}: {source}", path.display())]
    InFile { path: PathBuf, source: Box<CredentialFileError> },
}

impl CredentialFileError {
    fn record(line: usize, problem: &'static str) -> Self {
        CredentialFileError::Record { line, problem }
    }

    fn in_file(self, path: &Path) -> Self {
        CredentialFileError::InFile { path: path.to_owned(), source: Box::new(self) }
    }
}

fn read_credential_file(path: &Path) -> Result<String, CredentialFileError> {
    std::fs::read_to_string(path)
        .map_err(|source| CredentialFileError::Read { path: path.to_owned(), source })
}

/// The user of a record; the fourth column, if any, lists groups.
fn file_user(name: &str, uid: &str, more: &[String]) -> User {
    let groups = more.first().map_or("", String::as_str).split(',').filter(|group| !group.is_empty());
    User { uid: uid.to_owned(), ..User::new(name).with_groups(groups) }
}

#[cfg(test)]
mod tests;
