//! Objects by their metadata, whatever their kind, for loops that work on every kind there is. What the process
//! keeps of a kind anyway serves them too: nothing is watched or held twice.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kube::Resource;
use kube::api::ObjectMeta;

use super::{Informer, Object};

/// Something with metadata.
pub trait HasMetadata: Send + Sync {
    fn metadata(&self) -> &ObjectMeta;
}

impl<K: Resource + Send + Sync> HasMetadata for K {
    fn metadata(&self) -> &ObjectMeta {
        self.meta()
    }
}

/// What happened to an object of some kind.
#[derive(Clone)]
pub struct MetadataEvent {
    /// As it is now, or last was.
    pub object: Arc<dyn HasMetadata>,
    pub deleted: bool,
    /// The revision that made this event.
    pub revision: Option<i64>,
}

/// An informer of a kind that its user does not know.
pub trait AnyInformer: Send + Sync {
    /// As [`Informer::handle`].
    fn handle_metadata(&self, handler: Box<dyn Fn(MetadataEvent) + Send + Sync>);

    /// As [`Informer::synced`].
    fn synced(&self) -> BoxFuture<'static, ()>;
}

impl<K: Object> AnyInformer for Informer<K> {
    fn handle_metadata(&self, handler: Box<dyn Fn(MetadataEvent) + Send + Sync>) {
        self.handle(move |event| {
            handler(MetadataEvent {
                object: event.object().clone(),
                deleted: event.is_deleted(),
                revision: event.revision(),
            });
        });
    }

    fn synced(&self) -> BoxFuture<'static, ()> {
        let informer = self.clone();
        async move { informer.synced().await }.boxed()
    }
}
