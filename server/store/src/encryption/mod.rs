//! Encryption at rest: a store over another store that encrypts values on write and decrypts them on read. It works over
//! both engines, in upstream's byte format. Keys, which contain names, are not encrypted.
//!
//! [`Encryption`] selects the providers for each key, since this crate knows no kind.

mod cipher;
mod providers;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use parking_lot::RwLock;

pub use self::cipher::Scheme;
pub use self::providers::{BadKeySize, Providers};
use crate::{
    Committed, Error, EventKind, Found, KeyValue, Operation, Page, Range, Result, Revision, Store, Txn,
    Usage, Watch,
};

/// Says how the value of a key is encrypted; `None` for one that never is.
pub trait Encryption: Send + Sync + 'static {
    fn of(&self, key: &str) -> Option<Arc<Providers>>;
}

pub struct Encrypted {
    below: Arc<dyn Store>,
    encryption: Shared,
}

/// Open watches follow a change too.
type Shared = Arc<RwLock<Arc<dyn Encryption>>>;

impl Encrypted {
    pub fn new(below: Arc<dyn Store>, encryption: Arc<dyn Encryption>) -> Encrypted {
        Encrypted { below, encryption: Arc::new(RwLock::new(encryption)) }
    }

    /// From now on values are read and written in this way.
    pub fn replace(&self, encryption: Arc<dyn Encryption>) {
        *self.encryption.write() = encryption;
    }

    fn seal(&self, mut txn: Txn) -> Txn {
        let encryption = self.encryption.read().clone();
        let _span = ferry_trace::span("store.encrypt");
        for operation in &mut txn.operations {
            if let Operation::Put { key, value, .. } = operation
                && let Some(providers) = encryption.of(key)
            {
                *value = providers.seal(key, std::mem::take(value));
            }
        }
        txn
    }
}

/// One that cannot be read is an error and not left out: an object that seems to be gone would take others with it.
fn open(encryption: &Shared, kv: &mut KeyValue) -> Result<()> {
    let encryption = encryption.read().clone();
    if let Some(providers) = encryption.of(&kv.key) {
        let opened = providers.open(&kv.key, &kv.value).ok_or_else(|| undecipherable(&kv.key))?;
        kv.value = opened.plain;
    }
    Ok(())
}

fn undecipherable(key: &str) -> Error {
    Error::corrupt(format!(
        "{key} cannot be decrypted: no provider of the encryption configuration can read it"
    ))
}

#[async_trait]
impl Store for Encrypted {
    async fn get(&self, key: &str, at: Option<Revision>) -> Result<Found> {
        let mut found = self.below.get(key, at).await?;
        found.kv.iter_mut().try_for_each(|kv| open(&self.encryption, kv))?;
        Ok(found)
    }

    async fn range(&self, range: Range) -> Result<Page> {
        let mut page = self.below.range(range).await?;
        page.kvs.iter_mut().try_for_each(|kv| open(&self.encryption, kv))?;
        Ok(page)
    }

    async fn commit(&self, txn: Txn) -> Result<Committed> {
        let mut committed = self.below.commit(self.seal(txn)).await;
        if let Err(Error::Conflict { current: Some(current), .. }) = &mut committed {
            open(&self.encryption, current)?;
        }
        committed
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch> {
        let watch = self.below.watch(prefix, from).await?;
        let progress = watch.progress();
        let encryption = self.encryption.clone();
        let batches = watch.map(move |batch| {
            let mut batch = batch?;
            for event in batch.events.iter_mut().filter(|event| event.kind == EventKind::Put) {
                open(&encryption, &mut event.kv)?;
            }
            Ok(batch)
        });
        Ok(Watch::new(batches.boxed(), progress))
    }

    async fn is_outdated(&self, key: &str) -> Result<bool> {
        let Some(providers) = self.encryption.read().of(key) else { return Ok(false) };
        match self.below.get(key, None).await?.kv {
            Some(kv) => match providers.open(key, &kv.value) {
                Some(opened) => Ok(opened.outdated),
                None => Err(undecipherable(key)),
            },
            None => Ok(false),
        }
    }

    async fn current_revision(&self) -> Result<Revision> {
        self.below.current_revision().await
    }

    async fn compact(&self, at: Revision) -> Result<()> {
        self.below.compact(at).await
    }

    async fn health(&self) -> Result<()> {
        self.below.health().await
    }

    async fn usage(&self) -> Result<Usage> {
        self.below.usage().await
    }

    /// As it lies on the disk: a copy tells no more than the store itself.
    async fn snapshot(&self) -> Result<BoxStream<'static, Result<Bytes>>> {
        self.below.snapshot().await
    }

    async fn close(&self) -> Result<()> {
        self.below.close().await
    }
}
