//! Create: name it, track who set what, let admission change it, prepare, validate, let admission
//! judge it, write.

use std::borrow::Cow;
use std::sync::Arc;

use ferry_api::{Object, Schema, Status};
use ferry_patch::managed_fields;
use ferry_store::{Committed, Compare, Durability, Error, Operation as StoreOperation, Revision, Txn};

use super::list::Freshness;
use super::{Call, Operation, ResponseObject, initialize, store_failure};
use crate::cache::Entry;
use crate::change;
use crate::conversion::{self, Conversion};
use crate::metadata;
use crate::registry::Registry;
use crate::strategy::{Relaxed, TxnPart};

/// How often a generated name is drawn again when another request took it.
const DRAWS: usize = 8;
/// How often an address, a port or a quota's count that changed in the meantime is asked for again.
const TRIES: usize = 32;

impl Registry {
    /// `object` is in the version that the client speaks, with defaults set; `tracked` when field ownership is settled
    /// already (server-side apply).
    pub async fn create(
        &self,
        call: &Call<'_>,
        mut object: Object,
        tracked: bool,
    ) -> Result<ResponseObject, Status> {
        let generated = object.name().is_empty() && !object.meta_text("generateName").is_empty();
        let mut draws = 0;
        let resource_version = object.resource_version().to_string();
        metadata::begin_create(&mut object, call)?;
        if !self.settings.initializers {
            object.remove_meta("initializers");
        }
        if !tracked {
            object = track(call, None, object).await;
        }
        let (mut object, asked) = stored_form(call, object).await?;
        call.admission.mutate(call, Operation::Create, &mut object, None).await?;
        if generated && object.name().is_empty() {
            metadata::generate_name(&mut object);
        }
        prepare(call, &mut object, asked.as_ref()).await?;
        call.admission.validate(call, Operation::Create, Some(&object), None).await?;
        let mut object = stored_fields(call, object)?;
        metadata::check_is_new(&resource_version, call)?;
        loop {
            draws += 1;
            match self.write_new(call, &mut object).await {
                Ok(answer) => return Ok(answer),
                Err(WriteFailure::TxnPart) if draws < TRIES => continue,
                Err(WriteFailure::Exists) if generated && draws < DRAWS => {
                    metadata::generate_name(&mut object);
                    call.admission.validate(call, Operation::Create, Some(&object), None).await?;
                }
                Err(WriteFailure::Exists) => {
                    return Err(Status::already_exists(&call.group_resource(), object.name()));
                }
                Err(WriteFailure::TxnPart) => {
                    return Err(Status::internal("no address, port or quota could be reserved"));
                }
                Err(WriteFailure::Refused(status)) => return Err(*status),
            }
        }
    }

    async fn write_new(&self, call: &Call<'_>, object: &mut Object) -> Result<ResponseObject, WriteFailure> {
        // The name comes before addresses and ports: what exists must not be refused for holding them.
        let key = call.resource.key(object.namespace(), object.name());
        if call.resource.cache.get(&key).is_some() {
            // Another server may have deleted it.
            self.wait_until_fresh(Freshness::Current).await?;
            if call.resource.cache.get(&key).is_some() {
                return Err(WriteFailure::Exists);
            }
        }
        // What is reserved now is not asked for when another draw is needed.
        let asked = call.resource.strategy.options().reserves.then(|| object.clone());
        let mut txn_parts = call.resource.strategy.txn_parts(self, Some(object), None)?;
        let reservation = call.admission.reserve(call, Operation::Create, object, None).await?;
        txn_parts.extend(reservation.txn_parts);
        let key = call.resource.store_key(object.namespace(), object.name());
        if call.dry_run {
            return Ok(ResponseObject::Object(Box::new(object.clone())));
        }
        let put = self.put(call, &key, object)?;
        let txn = transaction(call, Compare::Absent { key: key.clone() }, put, txn_parts);
        let committed = self.commit(call, object.namespace(), object.name(), txn, None, Some(object)).await;
        drop(reservation.lock);
        match committed {
            Ok(committed) if initialize::pending(object).is_some() && !call.include_uninitialized => {
                let (namespace, name) = (object.namespace(), object.name());
                Ok(self.await_initialized(call, namespace, name, committed.revision).await?)
            }
            Ok(committed) => Ok(self.written(call, std::mem::take(object), committed.revision)),
            Err(Error::Conflict { key: taken, .. }) if taken == key => Err(WriteFailure::Exists),
            Err(Error::Conflict { .. }) => {
                asked.into_iter().for_each(|asked| *object = asked);
                Err(WriteFailure::TxnPart)
            }
            Err(error) => Err(store_failure(error).into()),
        }
    }

    /// Commits, and waits until the caches have it, or what was in its way: whoever reads after the answer sees the write.
    /// `old` is the object as it was, `written` the one that the transaction puts.
    pub(super) async fn commit(
        &self,
        call: &Call<'_>,
        namespace: &str,
        name: &str,
        txn: Txn,
        old: Option<&Object>,
        written: Option<&Object>,
    ) -> Result<Committed, Error> {
        let mut span = ferry_trace::span("store.commit");
        if span.is_recorded() {
            span.object(&call.resource.stored.group_resource().to_string(), namespace, name);
        }
        let is_put = matches!(txn.operations.first(), Some(StoreOperation::Put { .. }));
        let rows = call.resource.stored.codec.typed();
        change::describe(&mut span, old, written.filter(|_| is_put), rows);
        let _pending = match (txn.operations.first(), written) {
            (Some(StoreOperation::Put { value, .. }), Some(object)) => {
                Some(self.log.pending_writes.add(value.clone(), call.resource.cache.paths().of(object)))
            }
            _ => None,
        };
        let committed = span.in_scope(self.store.commit(txn)).await.inspect_err(|error| {
            span.fail(error);
        });
        if let Err(Error::Conflict { .. }) = &committed {
            // Whoever looks again must find what was in the way; another server's write may not have come here yet.
            self.log.fresh().await?;
        }
        let committed = committed?;
        span.committed(committed.revision.0);
        let delivery = span.enter(|| ferry_trace::span("watch.cache"));
        delivery.instrument(self.log.reached(committed.revision)).await;
        Ok(committed)
    }

    /// The answer to a write that was committed at `revision`: the object as it was written, whatever others made of it since.
    pub(super) fn written(&self, call: &Call<'_>, mut object: Object, revision: Revision) -> ResponseObject {
        let key = call.resource.key(object.namespace(), object.name());
        match call.resource.cache.get(&key) {
            Some(entry) if entry.revision == revision => {
                self.keep(call, &entry, object, revision);
                ResponseObject::Entry(entry)
            }
            _ => {
                object.set_meta("resourceVersion", revision.to_string());
                ResponseObject::Object(Box::new(object))
            }
        }
    }
}

impl Registry {
    /// The object of an entry, for whoever is about to write the next one.
    pub(super) async fn object_of(&self, call: &Call<'_>, entry: &Arc<Entry>) -> Result<Object, Status> {
        let Some(object) = self.recent.take(entry) else {
            let object = entry.read_object()?;
            return match &call.resource.conversion {
                Conversion::Local => Ok(object),
                Conversion::Webhook(_) => call.resource.convert(object, &call.resource.stored).await,
            };
        };
        debug_assert_eq!(Some(&object), entry.read_object().ok().as_ref(), "{}", entry.key);
        Ok(object)
    }

    /// Keeps what was just written for its next writer. Leases and events come and go by the thousand and have none.
    pub(super) fn keep(&self, call: &Call<'_>, entry: &Arc<Entry>, written: Object, revision: Revision) {
        if call.resource.strategy.options().relaxed == Relaxed::Never {
            self.recent.keep(entry, written, revision);
        }
    }
}

pub(super) enum WriteFailure {
    Exists,
    /// An address, a port or what is left of a quota was taken by another request in the meantime.
    TxnPart,
    Refused(Box<Status>),
}

impl From<Status> for WriteFailure {
    fn from(status: Status) -> WriteFailure {
        WriteFailure::Refused(Box::new(status))
    }
}

/// An object as the client wrote it, and what a webhook made of it for the store. The object is judged as it was written as long
/// as admission leaves the other alone: on the way back a webhook may lose what only the client's version has.
pub(super) struct Asked {
    written: Object,
    stored: Object,
}

impl Asked {
    /// The object to judge, with the metadata that it has got since.
    fn judged(&self, call: &Call<'_>, object: &Object) -> Option<Object> {
        let drops_status = call.subresource.is_empty() && call.kind.subresource("status").is_some();
        let is_settled = |field: &str| field == "metadata" || (drops_status && field == "status");
        let fields = |object: &'_ Object| -> usize { object.0.keys().filter(|it| !is_settled(it)).count() };
        let is_same =
            |(field, value): (&String, _)| is_settled(field) || self.stored.0.get(field) == Some(value);
        if fields(object) != fields(&self.stored) || !object.0.iter().all(is_same) {
            return None;
        }
        let mut written = self.written.clone();
        if let Some(metadata) = object.0.get("metadata") {
            written.0.insert("metadata".into(), metadata.clone());
        }
        if !object.0.contains_key("status") {
            written.0.remove("status");
        }
        Some(written)
    }
}

/// The object in the version that is stored. A custom one that needs no webhook keeps the fields of the client's version,
/// whose schema judges it, until [`stored_fields`].
pub(super) async fn stored_form(
    call: &Call<'_>,
    mut object: Object,
) -> Result<(Object, Option<Asked>), Status> {
    if call.kind.is_storage_version() {
        return Ok((object, None));
    }
    let stored = &call.resource.stored;
    if loses_fields_when_stored(call) {
        object.set_type(&stored.api_version(), &stored.kind);
        return Ok((object, None));
    }
    let is_remote = matches!(call.resource.conversion, Conversion::Webhook(_));
    let written = is_remote.then(|| object.clone());
    let mut object = call.resource.convert(object, stored).await?;
    stored.codec.set_defaults(&mut object);
    call.resource.strategy.default(&mut object);
    let asked = written.map(|written| Asked { written, stored: object.clone() });
    Ok((object, asked))
}

/// The object with no other fields than the stored version has, and its defaults.
pub(super) fn stored_fields(call: &Call<'_>, object: Object) -> Result<Object, Status> {
    if !loses_fields_when_stored(call) {
        return Ok(object);
    }
    let stored = &call.resource.stored;
    let mut object = conversion::in_form_of(object, stored)?;
    stored.codec.set_defaults(&mut object);
    Ok(object)
}

/// Versions of a custom resource that are converted without a webhook differ in their schemas alone.
fn loses_fields_when_stored(call: &Call<'_>) -> bool {
    let is_local = matches!(call.resource.conversion, Conversion::Local);
    is_local && !call.kind.is_storage_version() && call.kind.codec.typed().is_none()
}

/// The object as its rules judge it: a built-in one as it is stored, a custom one in the client's version.
pub(super) async fn judged<'o>(
    call: &Call<'_>,
    object: &'o Object,
    asked: Option<&Asked>,
) -> Result<Cow<'o, Object>, Status> {
    if let Some(written) = asked.and_then(|asked| asked.judged(call, object)) {
        return Ok(Cow::Owned(written));
    }
    match &call.resource.conversion {
        Conversion::Local if loses_fields_when_stored(call) => {
            conversion::in_form_of(object.clone(), call.kind).map(Cow::Owned)
        }
        Conversion::Local => Ok(Cow::Borrowed(object)),
        Conversion::Webhook(_) => call.resource.seen_in(object, call.kind).await,
    }
}

/// Records who set which fields, of objects in the version that the client speaks. It never fails a request: an object whose fields
/// cannot be tracked is written without.
pub(super) async fn track(call: &Call<'_>, live: Option<&Object>, mut object: Object) -> Object {
    let span = ferry_trace::span("registry.managedFields");
    let api_version = call.kind.api_version();
    let rows = call.kind.codec.field_rows();
    let is_local = matches!(call.resource.conversion, Conversion::Local);
    // Without managers there is nobody who wrote through another version.
    if is_local || live.is_none_or(|live| live.managers().is_empty()) {
        managed_fields::update(live, &mut object, &managed_write(call, &api_version, rows, call.resource));
        return object;
    }
    let tracked = call.resource.decide(|versions| {
        let mut object = object.clone();
        managed_fields::update(live, &mut object, &managed_write(call, &api_version, rows, versions));
        object
    });
    match span.in_scope(tracked).await {
        Ok(object) => object,
        // The webhook is gone or wrong: the fields of all versions count as the same, so that no manager is lost.
        Err(_) => {
            managed_fields::update(
                live,
                &mut object,
                &managed_write(call, &api_version, rows, call.resource),
            );
            object
        }
    }
}

/// A write as field ownership sees it. What a subresource does not write, it does not own.
pub fn managed_write<'a>(
    call: &Call<'a>,
    api_version: &'a str,
    schema: &'a Schema,
    versions: &'a dyn managed_fields::Versions,
) -> managed_fields::Write<'a> {
    let has_status = call.kind.subresource("status").is_some();
    let reset = match call.subresource {
        "" if has_status => managed_fields::Reset::Fields(&[&["status"]]),
        "status" => managed_fields::Reset::Fields(&[&["spec"]]),
        _ => managed_fields::Reset::Nothing,
    };
    managed_fields::Write {
        manager: call.manager,
        subresource: call.subresource,
        api_version,
        now: call.now,
        schema,
        reset,
        versions,
    }
}

pub(super) async fn prepare(
    call: &Call<'_>,
    object: &mut Object,
    asked: Option<&Asked>,
) -> Result<(), Status> {
    let span = ferry_trace::span("registry.validate");
    let strategy = &call.resource.strategy;
    let strategy_options = strategy.options();
    // Admission may change much, but not where the object belongs.
    metadata::match_place(object, call)?;
    metadata::finish_create(object, call, &strategy_options);
    if call.kind.subresource("status").is_some() && !strategy_options.created_with_status {
        object.0.remove("status");
        // Patches of the status find it there, if empty.
        if let Some(schema) = call.resource.stored.codec.typed() {
            ferry_api::zero::fill(&mut object.0, schema.types.get(schema.root), &schema.types);
        }
    }
    call.warn(strategy.modernize(object));
    strategy.prepare_create(object);
    strategy.stamp_requester(object, call.user);
    let mut errors = ferry_api::FieldErrors::default();
    metadata::validate(object, call.resource.stored.is_namespaced(), &strategy_options, &mut errors);
    let shown = judged(call, object, asked).await?;
    let warnings = span.enter(|| strategy.validate(&shown, call.kind, &mut errors))?;
    if !errors.is_empty() {
        return Err(Status::invalid(&call.kind.group, &call.kind.kind, object.name(), &errors));
    }
    call.warn(warnings);
    Ok(())
}

impl Registry {
    pub(super) fn put(
        &self,
        call: &Call<'_>,
        key: &Arc<str>,
        object: &Object,
    ) -> Result<StoreOperation, Status> {
        let ttl = call.resource.strategy.options().expires.then_some(self.settings.event_ttl);
        Ok(StoreOperation::Put { key: key.clone(), value: self.stored_form(object)?, ttl })
    }
}

pub(super) fn transaction(
    call: &Call<'_>,
    compare: Compare,
    operation: StoreOperation,
    txn_parts: Vec<TxnPart>,
) -> Txn {
    let mut txn = Txn {
        compare: vec![compare],
        operations: vec![operation],
        durability: match call.resource.strategy.options().relaxed {
            Relaxed::Always => Durability::Relaxed,
            Relaxed::Never | Relaxed::Renewals => Durability::Sync,
        },
    };
    for part in txn_parts {
        txn.compare.extend(part.compare);
        txn.operations.push(part.operation);
    }
    txn
}
