//! The verbs. Each is written once: `Call` contains the facts of the request, the strategy the rules of the kind, and the
//! admission hook the plugins.

pub mod create;
mod create_together;
pub mod delete;
pub mod initialize;
pub mod list;
pub mod update;
pub mod watch;

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{GroupResource, GroupVersionKind, Kind, Object, Status, User};
use ferry_store as store;
use ferry_store::Revision;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;

use crate::cache::Entry;
use crate::registry::{Registry, Resource};
use crate::strategy::TxnPart;

/// The facts of one request. The verbs and admission read them here; nothing copies them.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    pub resource: &'a Resource,
    /// The version the client speaks.
    pub kind: &'a Kind,
    pub namespace: &'a str,
    pub name: &'a str,
    pub subresource: &'a str,
    /// The kind of the object that admission sees, where the subresource has its own: Scale, Binding, Eviction.
    pub object_kind: Option<&'a GroupVersionKind>,
    pub user: &'a User,
    /// The field manager.
    pub manager: &'a str,
    pub dry_run: bool,
    /// The CreateOptions, UpdateOptions, PatchOptions or DeleteOptions, for admission.
    pub options: &'a Value,
    /// Whether the client wants uninitialized objects.
    pub include_uninitialized: bool,
    /// How long a create waits until initializers have completed the object.
    pub patience: std::time::Duration,
    pub now: Timestamp,
    pub admission: &'a dyn Admission,
    /// Sent to the client as `Warning` headers.
    pub warnings: &'a Mutex<Vec<String>>,
    /// Written to the audit log with the request.
    pub annotations: &'a Mutex<Vec<Annotation>>,
}

/// An annotation of an audit event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotation {
    pub key: String,
    pub value: String,
    /// Quotes the object: written only where the audit policy logs bodies.
    pub is_content: bool,
}

/// Admission as the verbs call it: plugins, webhooks and policies.
#[async_trait]
pub trait Admission: Send + Sync {
    async fn mutate(
        &self,
        call: &Call<'_>,
        operation: Operation,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<(), Status>;

    /// `object` is absent when it is being deleted.
    async fn validate(
        &self,
        call: &Call<'_>,
        operation: Operation,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status>;

    /// Authorizes the create that an update of an absent object becomes: the request was authorized as an update.
    async fn authorize_create(&self, call: &Call<'_>) -> Result<(), Status>;

    /// Reserves quota for the write. Called last, right before the commit; a conflict on one of the reservation's keys
    /// makes the verb reserve again.
    async fn reserve(
        &self,
        _call: &Call<'_>,
        _operation: Operation,
        _object: &Object,
        _old: Option<&Object>,
    ) -> Result<Reservation, Status> {
        Ok(Reservation::default())
    }
}

/// Quota reserved for one write.
#[derive(Default)]
pub struct Reservation {
    /// The new usage of each quota, committed in one transaction with the object.
    pub txn_parts: Vec<TxnPart>,
    /// Held until the transaction is done, so that the next reservation sees this one.
    pub lock: Option<Box<dyn std::any::Any + Send>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    /// A connection to what the object stands for: exec, attach, port-forward, proxy.
    Connect,
}

/// The object of a response: an entry of the cache, or an object that is not stored (dry-run).
#[derive(Clone)]
pub enum ResponseObject {
    Entry(Arc<Entry>),
    Object(Box<Object>),
}

impl Call<'_> {
    pub fn group_resource(&self) -> GroupResource {
        self.kind.group_resource()
    }

    pub fn not_found(&self) -> Status {
        Status::not_found(&self.group_resource(), self.name)
    }

    pub fn warn(&self, warnings: impl IntoIterator<Item = String>) {
        warn(self.warnings, warnings);
    }

    fn current(&self) -> Option<Arc<Entry>> {
        self.resource.cache.get(&self.resource.key(self.namespace, self.name))
    }
}

impl Registry {
    /// Whether a decision that was made by `entry`, the object as this server knew it, still stands. A commit says so
    /// itself; a refusal, or a write that changes nothing, has to ask: another server's write may not have come here yet.
    async fn is_newest(&self, call: &Call<'_>, entry: Option<&Arc<Entry>>) -> Result<bool, Status> {
        self.wait_until_fresh(list::Freshness::Current).await?;
        Ok(call.current().map(|now| now.revision) == entry.map(|known| known.revision))
    }
}

/// Maximum number of warnings in a response.
const MAX_WARNINGS: usize = 256;

/// Adds warnings to those of a request, without repetitions.
pub fn warn(said: &Mutex<Vec<String>>, warnings: impl IntoIterator<Item = String>) {
    let mut said = said.lock();
    for warning in warnings {
        if said.len() < MAX_WARNINGS && !said.contains(&warning) {
            said.push(warning);
        }
    }
}

/// Errors of the store as a `Status`. Callers handle conflicts themselves.
pub fn store_failure(error: store::Error) -> Status {
    match error {
        store::Error::Compacted { .. } => {
            Status::expired("The resourceVersion for the provided list is too old.")
        }
        store::Error::FutureRevision { requested, current } => too_large_revision(requested, current),
        store::Error::NoSpace { what } => {
            Status::new(507, "InsufficientStorage", format!("the store is full: {what}"))
        }
        store::Error::TooLarge { limit, .. } => Status::too_large(limit),
        store::Error::Unavailable { .. } => Status::unavailable(error.to_string()),
        store::Error::Conflict { .. }
        | store::Error::InvalidTransaction { .. }
        | store::Error::Corrupt { .. } => Status::internal(error),
    }
}

/// A revision in the future: the client is ahead of this server, or the revision is invalid.
pub fn too_large_revision(requested: Revision, current: Revision) -> Status {
    let mut status = Status::timeout(format!("Too large resource version: {requested}, current: {current}"));
    status.details = Some(ferry_api::status::Details {
        causes: vec![ferry_api::status::Cause {
            reason: "ResourceVersionTooLarge".into(),
            message: "Too large resource version".into(),
            field: String::new(),
        }],
        retry_after_seconds: 1,
        ..Default::default()
    });
    status
}
