//! Who is calling? A union of authenticators: the first that recognises the credentials wins.
//!
//! Credentials that are wrong are never taken for absent ones: if any authenticator objected and
//! none recognised the caller, the request is refused, not treated as anonymous.

mod x509;

use std::{fmt, net::SocketAddr, sync::Arc, time::SystemTime};

use rustls_pki_types::CertificateDer;

use crate::{Answer, user::User};

pub use x509::X509;

/// What a request shows to prove who sent it, as plain data.
pub struct Credentials<'a> {
    /// The `Authorization` header.
    pub authorization: Option<&'a str>,
    /// The token a WebSocket client hides in its subprotocol list, already decoded.
    pub websocket_bearer: Option<&'a str>,
    /// The chain presented in the TLS handshake, leaf first. The handshake has proven that the
    /// peer holds the key; nobody has yet checked who signed the certificate.
    pub client_certificates: &'a [CertificateDer<'static>],
    /// The request's other headers; the front proxy speaks through them.
    pub headers: &'a dyn Headers,
    pub path: &'a str,
    pub peer: Option<SocketAddr>,
    pub now: SystemTime,
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

/// A caller that was recognised.
#[derive(Clone, Debug)]
pub struct Identity {
    pub user: Arc<User>,
    /// The audiences the credentials are good for, as far as they name any; for TokenReview.
    pub audiences: Vec<String>,
}

impl Identity {
    pub fn new(user: User) -> Self {
        Identity { user: Arc::new(user), audiences: Vec::new() }
    }
}

pub enum Outcome {
    Authenticated(Identity),
    /// These are not the credentials this authenticator deals with.
    NotMine,
}

/// One authenticator's objection, or all of them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AuthenticationError(pub String);

pub trait Authenticator: Send + Sync {
    fn authenticate<'a>(
        &'a self,
        credentials: &'a Credentials<'a>,
    ) -> Answer<'a, Result<Outcome, AuthenticationError>>;
}

/// The configured authenticators, in order.
#[derive(Clone, Default)]
pub struct Authentication {
    members: Vec<Arc<dyn Authenticator>>,
}

/// Nobody recognised the caller: a 401. Empty if no credentials were shown.
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
    pub fn new(members: Vec<Arc<dyn Authenticator>>) -> Self {
        Authentication { members }
    }

    pub async fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Identity, Unauthorized> {
        let mut errors = Vec::new();
        for member in &self.members {
            match member.authenticate(credentials).get().await {
                Ok(Outcome::Authenticated(identity)) => return Ok(identity),
                Ok(Outcome::NotMine) => {}
                Err(error) => errors.push(error),
            }
        }
        Err(Unauthorized { errors })
    }
}
