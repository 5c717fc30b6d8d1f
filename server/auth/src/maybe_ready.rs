//! A result that is usually ready.

use futures::future::BoxFuture;

/// Certificates, verified tokens and RBAC answer from memory; a webhook has to be waited for.
/// Only the latter pays for a boxed future.
pub enum MaybeReady<'a, T> {
    Now(T),
    Later(BoxFuture<'a, T>),
}

impl<T> MaybeReady<'_, T> {
    pub async fn get(self) -> T {
        match self {
            MaybeReady::Now(value) => value,
            MaybeReady::Later(future) => future.await,
        }
    }
}
