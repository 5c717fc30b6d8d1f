//! Bearer tokens: one union below the authenticators, so that TokenReview can ask it too.

use std::{sync::Arc, time::SystemTime};

use super::{AuthenticationError, AuthenticationResult, Authenticator, Credentials, Identity};
use crate::MaybeReady;

/// Recognises one kind of token.
pub trait TokenAuthenticator: Send + Sync {
    /// `audiences` are those the caller wants the token to be good for, never empty. An
    /// authenticator that [knows audiences](TokenAuthenticator::knows_audiences) reports those
    /// of them that its token names.
    fn authenticate_token<'a>(
        &'a self,
        token: &'a str,
        audiences: &'a [String],
        now: SystemTime,
    ) -> MaybeReady<'a, Result<AuthenticationResult, AuthenticationError>>;

    /// Tokens that name no audience are good for the API server and nobody else.
    fn knows_audiences(&self) -> bool {
        false
    }
}

/// All token authenticators, in order.
#[derive(Clone)]
pub struct Tokens {
    /// What the API server calls itself.
    api_audiences: Arc<[String]>,
    members: Vec<Arc<dyn TokenAuthenticator>>,
}

impl Tokens {
    pub fn new(api_audiences: Vec<String>, members: Vec<Arc<dyn TokenAuthenticator>>) -> Self {
        Tokens { api_audiences: api_audiences.into(), members }
    }

    /// Whose token this is; for TokenReview. Without `audiences`, the API server's count.
    pub async fn review(
        &self,
        token: &str,
        audiences: &[String],
        now: SystemTime,
    ) -> Result<AuthenticationResult, AuthenticationError> {
        let audiences = if audiences.is_empty() { &self.api_audiences } else { audiences };
        let mut errors = Vec::new();
        for index in 0..self.members.len() {
            match self.ask(index, token, audiences, now).get().await {
                Ok(AuthenticationResult::NotMine) => {}
                Ok(authenticated) => return Ok(authenticated),
                Err(error) => errors.push(error),
            }
        }
        conclude(errors)
    }

    fn ask<'a>(
        &'a self,
        index: usize,
        token: &'a str,
        audiences: &'a [String],
        now: SystemTime,
    ) -> MaybeReady<'a, Result<AuthenticationResult, AuthenticationError>> {
        let member = &self.members[index];
        if member.knows_audiences() {
            return member.authenticate_token(token, audiences, now);
        }
        let common = intersect(&self.api_audiences, audiences);
        if common.is_empty() {
            return MaybeReady::Now(Ok(AuthenticationResult::NotMine));
        }
        let with_audiences = move |outcome| match outcome {
            AuthenticationResult::Authenticated(identity) => {
                AuthenticationResult::Authenticated(Identity { audiences: common, ..identity })
            }
            AuthenticationResult::NotMine => AuthenticationResult::NotMine,
        };
        match member.authenticate_token(token, audiences, now) {
            MaybeReady::Now(result) => MaybeReady::Now(result.map(with_audiences)),
            MaybeReady::Later(future) => {
                MaybeReady::Later(Box::pin(async move { future.await.map(with_audiences) }))
            }
        }
    }
}

fn conclude(errors: Vec<AuthenticationError>) -> Result<AuthenticationResult, AuthenticationError> {
    match errors.as_slice() {
        [] => Ok(AuthenticationResult::NotMine),
        [single] => Err(single.clone()),
        several => {
            let texts: Vec<&str> = several.iter().map(|error| error.0.as_str()).collect();
            Err(AuthenticationError(format!("[{}]", texts.join(", "))))
        }
    }
}

/// The entries of `first` that are in `second` too.
pub(super) fn intersect(first: &[String], second: &[String]) -> Vec<String> {
    first.iter().filter(|item| second.contains(item)).cloned().collect()
}

impl Authenticator for Tokens {
    fn authenticate<'a>(
        &'a self,
        credentials: &'a Credentials<'a>,
    ) -> MaybeReady<'a, Result<AuthenticationResult, AuthenticationError>> {
        let Some(token) = credentials.bearer() else {
            return MaybeReady::Now(Ok(AuthenticationResult::NotMine));
        };
        // Nearly all tokens are recognised from memory; only if a member has to ask elsewhere does
        // the rest of the way become a future.
        let mut errors = Vec::new();
        for index in 0..self.members.len() {
            match self.ask(index, token, &self.api_audiences, credentials.now) {
                MaybeReady::Now(Ok(AuthenticationResult::NotMine)) => {}
                MaybeReady::Now(Ok(authenticated)) => return MaybeReady::Now(Ok(authenticated)),
                MaybeReady::Now(Err(error)) => errors.push(error),
                MaybeReady::Later(pending) => {
                    return MaybeReady::Later(Box::pin(self.rest(
                        pending,
                        index,
                        errors,
                        token,
                        credentials.now,
                    )));
                }
            }
        }
        MaybeReady::Now(refuse_unknown(conclude(errors)))
    }
}

impl Tokens {
    async fn rest<'a>(
        &'a self,
        pending: futures::future::BoxFuture<'a, Result<AuthenticationResult, AuthenticationError>>,
        index: usize,
        mut errors: Vec<AuthenticationError>,
        token: &'a str,
        now: SystemTime,
    ) -> Result<AuthenticationResult, AuthenticationError> {
        match pending.await {
            Ok(AuthenticationResult::NotMine) => {}
            Ok(authenticated) => return Ok(authenticated),
            Err(error) => errors.push(error),
        }
        for index in index + 1..self.members.len() {
            match self.ask(index, token, &self.api_audiences, now).get().await {
                Ok(AuthenticationResult::NotMine) => {}
                Ok(authenticated) => return Ok(authenticated),
                Err(error) => errors.push(error),
            }
        }
        refuse_unknown(conclude(errors))
    }
}

/// A token that nobody knows is an objection: the request must not pass as anonymous.
fn refuse_unknown(
    outcome: Result<AuthenticationResult, AuthenticationError>,
) -> Result<AuthenticationResult, AuthenticationError> {
    match outcome {
        Ok(AuthenticationResult::NotMine) => Err(AuthenticationError("invalid bearer token".to_owned())),
        other => other,
    }
}
