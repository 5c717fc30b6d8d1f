//! Authentication and authorization.
//!
//! This crate turns credentials into a [`User`] and a request's attributes into a [`Decision`]. It also manages the
//! cluster's keys and certificates ([`pki`]) and writes the audit log ([`audit`]).
//!
//! It knows no HTTP: the API server's filters pass plain data and create the 401 or 403 responses. It opens no store:
//! roles, bindings, pods and tokens are passed in as they change, and every decision is made in memory.
//!
//! Start reading at [`authenticate`] (the union of authenticators), then [`authorize`] (the union of authorizers) and
//! [`authorize::rbac`], which decides nearly every request.

pub mod attributes;
pub mod audit;
pub mod authenticate;
pub mod authorize;
pub mod bootstrap_policy;
mod cache;
pub mod certificate;
mod csv;
pub mod impersonate;
pub mod jws;
pub mod kubeconfig;
mod maybe_ready;
mod outbound;
pub mod pki;
pub mod sealed;
#[cfg(test)]
mod test_server;
pub mod tls;

pub use attributes::{Attributes, Forbidden, forbidden_message};
pub use authenticate::{Authentication, AuthenticationResult, Authenticator, Credentials, Identity};
pub use authorize::{AlwaysAllow, AlwaysDeny, Authorization, Authorizer, Decision, Rbac, Reason};
pub use ferry_api::user::{self, User};
pub use maybe_ready::MaybeReady;
pub use outbound::{OutboundError, Retry};

/// `X509` of `ferry_auth::authenticate::x509::X509`: a member's name for people who read a trace.
pub(crate) fn short_type_name<T: ?Sized>() -> &'static str {
    let path = std::any::type_name::<T>();
    let path = path.split('<').next().unwrap_or(path);
    path.rsplit("::").next().unwrap_or(path)
}
