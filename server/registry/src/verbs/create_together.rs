//! Objects of the server's own, created many at a time: a new cluster has two hundred of them before anybody can use it,
//! and one transaction for each is most of what its store does until then.

use ferry_api::{Object, Status};
use ferry_store::{Compare, Error, Operation as StoreOperation, Txn};
use ferry_trace::Span;
use futures::future::try_join_all;

use super::create::{prepare, stored_fields, stored_form, track, transaction};
use super::{Call, store_failure};
use crate::cache::peek::Peeked;
use crate::change;
use crate::metadata;
use crate::registry::Registry;

/// etcd takes 128 in a transaction unless it is told otherwise.
const MOST_OPERATIONS: usize = 120;

impl Registry {
    /// Says whether all of them were created. Where one exists already, it and those in its transaction are left as they
    /// are, for the caller to look at one by one.
    ///
    /// This is for a store that nobody reads yet: the objects of a transaction have one resourceVersion, and a watch that
    /// broke off between two of them would go on after both. Field ownership, defaults, the strategy's rules and its
    /// reservations are those of [`create`](Registry::create). Admission is not asked: the objects are constants of this
    /// program, no webhook, policy or quota can be there before them, and an object may come before its namespace.
    pub async fn create_together(&self, objects: Vec<(Call<'_>, Object)>) -> Result<bool, Status> {
        let mut batches = Vec::new();
        let mut batch = Batch::default();
        for (call, object) in objects {
            let Some((txn, written)) = self.begin(&call, object).await? else { return Ok(false) };
            if operations(&batch.txn) + operations(&txn) > MOST_OPERATIONS {
                batches.push(std::mem::take(&mut batch));
            }
            batch.add(txn, written);
        }
        batches.push(batch);
        let committed = try_join_all(batches.into_iter().map(|batch| self.commit_batch(batch))).await;
        Ok(committed.map_err(store_failure)?.into_iter().all(|is_created| is_created))
    }

    /// None for an object that another server has created in the meantime, or whose address it has taken for it.
    async fn begin(&self, call: &Call<'_>, mut object: Object) -> Result<Option<(Txn, Written)>, Status> {
        metadata::begin_create(&mut object, call)?;
        let object = track(call, None, object).await;
        let (mut object, asked) = stored_form(call, object).await?;
        prepare(call, &mut object, asked.as_ref()).await?;
        let mut object = stored_fields(call, object)?;
        let Ok(txn_parts) = call.resource.strategy.txn_parts(self, Some(&mut object), None) else {
            return Ok(None);
        };
        let key = call.resource.store_key(object.namespace(), object.name());
        let put = self.put(call, &key, &object)?;
        let mut span = ferry_trace::span("store.commit");
        if span.is_recorded() {
            let resource = call.resource.stored.group_resource().to_string();
            span.object(&resource, object.namespace(), object.name());
        }
        change::describe(&mut span, None, Some(&object), call.resource.stored.codec.typed());
        let written = Written { span, peeked: call.resource.cache.paths().of(&object) };
        Ok(Some((transaction(call, Compare::Absent { key }, put, txn_parts), written)))
    }

    /// Returns when the caches have it. Whether it was committed.
    async fn commit_batch(&self, batch: Batch) -> Result<bool, Error> {
        let Batch { txn, written } = batch;
        let mut spans = Vec::with_capacity(written.len());
        let mut pending = Vec::with_capacity(written.len());
        for (at, Written { span, peeked }) in written {
            if let Some(StoreOperation::Put { value, .. }) = txn.operations.get(at) {
                pending.push(self.log.pending_writes.add(value.clone(), peeked));
            }
            spans.push(span);
        }
        match self.store.commit(txn).await {
            Ok(committed) => {
                for span in &mut spans {
                    span.committed(committed.revision.0);
                }
                self.log.reached(committed.revision).await;
                Ok(true)
            }
            Err(error) => {
                for span in &mut spans {
                    span.fail(&error);
                }
                match error {
                    Error::Conflict { .. } => {
                        // Whoever looks at them one by one has to find what was in the way.
                        self.log.fresh().await?;
                        Ok(false)
                    }
                    error => Err(error),
                }
            }
        }
    }
}

/// As etcd counts them.
fn operations(txn: &Txn) -> usize {
    txn.compare.len().max(txn.operations.len())
}

/// What goes into one transaction.
#[derive(Default)]
struct Batch {
    txn: Txn,
    /// By the place of the object's operation.
    written: Vec<(usize, Written)>,
}

/// What is known of an object that is written.
struct Written {
    span: Span,
    peeked: Peeked,
}

impl Batch {
    fn add(&mut self, txn: Txn, written: Written) {
        self.written.push((self.txn.operations.len(), written));
        self.txn.compare.extend(txn.compare);
        self.txn.operations.extend(txn.operations);
    }
}
