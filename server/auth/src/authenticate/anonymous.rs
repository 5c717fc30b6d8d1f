//! Requests without credentials.

use std::collections::BTreeSet;

use super::{Credentials, Identity};
use crate::user::User;

/// Where a request without credentials may go at all. What it may do there is for the authorizers
/// to say.
pub struct Anonymous {
    /// `None` is everywhere.
    paths: Option<BTreeSet<String>>,
    identity: Identity,
}

impl Anonymous {
    pub fn everywhere() -> Self {
        Anonymous { paths: None, identity: Identity::new(User::anonymous()) }
    }

    pub fn only_on<S: Into<String>>(paths: impl IntoIterator<Item = S>) -> Self {
        Anonymous { paths: Some(paths.into_iter().map(Into::into).collect()), ..Anonymous::everywhere() }
    }

    /// What load balancers and clients need before they can log in, and nothing else.
    pub fn on_health_and_version() -> Self {
        Anonymous::only_on(["/healthz", "/livez", "/readyz", "/version", "/version/"])
    }

    pub(super) fn admit(&self, credentials: &Credentials<'_>) -> Option<Identity> {
        let allowed = self.paths.as_ref().is_none_or(|paths| paths.contains(credentials.path));
        allowed.then(|| self.identity.clone())
    }
}
