//! An answer that is usually there already.

use futures::future::BoxFuture;

/// Certificates, verified tokens and RBAC answer from memory; a webhook has to be waited for.
/// Only the latter pays for a boxed future.
pub enum Answer<'a, T> {
    Now(T),
    Later(BoxFuture<'a, T>),
}

impl<T> Answer<'_, T> {
    pub async fn get(self) -> T {
        match self {
            Answer::Now(value) => value,
            Answer::Later(future) => future.await,
        }
    }
}
