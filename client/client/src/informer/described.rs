//! Objects by their metadata, whatever their kind, for loops that work on every kind there is. What the process
//! keeps of a kind anyway serves them too: nothing is watched or held twice.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kube::Resource;
use kube::api::ObjectMeta;

use super::{Informer, Object};

/// Something with metadata.
pub trait Described: Send + Sync {
    fn described(&self) -> &ObjectMeta;
}

impl<K: Resource + Send + Sync> Described for K {
    fn described(&self) -> &ObjectMeta {
        self.meta()
    }
}

/// What happened to an object of some kind.
#[derive(Clone)]
pub struct Changed {
    /// As it is now, or last was.
    pub object: Arc<dyn Described>,
    pub deleted: bool,
    /// The revision that made this event.
    pub revision: Option<i64>,
}

/// An informer of a kind that its user does not know.
pub trait Followed: Send + Sync {
    /// As [`Informer::handle`].
    fn handle_changes(&self, handler: Box<dyn Fn(Changed) + Send + Sync>);

    /// As [`Informer::synced`].
    fn has_all(&self) -> BoxFuture<'static, ()>;
}

impl<K: Object> Followed for Informer<K> {
    fn handle_changes(&self, handler: Box<dyn Fn(Changed) + Send + Sync>) {
        self.handle(move |event| {
            handler(Changed {
                object: event.object().clone(),
                deleted: event.is_deleted(),
                revision: event.revision(),
            });
        });
    }

    fn has_all(&self) -> BoxFuture<'static, ()> {
        let informer = self.clone();
        async move { informer.synced().await }.boxed()
    }
}
