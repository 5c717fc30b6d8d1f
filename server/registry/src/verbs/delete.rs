//! Delete: at once, or gracefully, or when the last finalizer is gone.
//!
//! ```text
//!            grace or finalizers                 grace over, last finalizer removed
//!   alive ───────────────────────► terminating ───────────────────────────────────► gone
//!     └───────────────── neither ──────────────────────────────────────────────────►
//! ```

use std::sync::Arc;

use ferry_api::{FieldErrors, GroupResource, Object, Status};
use ferry_store::{Compare, Error, Operation as StoreOperation};
use serde::Deserialize;
use serde_json::{Value, json};

use super::create::transaction;
use super::{Call, Operation, ResponseObject, store_failure};
use crate::cache::{Entry, Filter};
use crate::metadata;
use crate::registry::Registry;

/// The DeleteOptions of a request, from its body or its query.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeleteOptions {
    pub grace_period_seconds: Option<i64>,
    pub preconditions: Option<Preconditions>,
    pub orphan_dependents: Option<bool>,
    pub propagation_policy: Option<String>,
    pub dry_run: Vec<String>,
    /// Told in the status of what is marked, in the same write.
    #[serde(skip)]
    pub disruption: Option<Disruption>,
}

/// Why somebody else ends the object: its owner tells a disruption from a failure by it.
#[derive(Debug, Clone, Copy)]
pub struct Disruption {
    pub reason: &'static str,
    pub message: &'static str,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Preconditions {
    pub uid: Option<String>,
    pub resource_version: Option<String>,
}

pub enum Deleted {
    /// The object is gone; this is how it was.
    Gone(ResponseObject),
    /// It is marked and will go later.
    Terminating(ResponseObject),
}

/// How one try of a delete ended.
enum Attempt {
    Done(Deleted),
    /// It is terminating already, or the request is a dry run.
    NothingToWrite(Deleted),
    /// The object changed in the meantime.
    Overtaken,
}

const TRIES: usize = 32;
const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

impl Registry {
    pub async fn delete(&self, call: &Call<'_>, options: &DeleteOptions) -> Result<Deleted, Status> {
        validate_options(options)?;
        if options.propagation_policy.is_none() && options.orphan_dependents.is_none() {
            call.warn(call.resource.strategy.options().orphans_warning.map(str::to_owned));
        }
        for _ in 0..TRIES {
            let entry = call.current();
            let attempt = match &entry {
                Some(entry) => self.try_delete(call, options, entry).await,
                None => Err(call.not_found()),
            };
            match attempt {
                Ok(Attempt::Done(deleted)) => return Ok(deleted),
                // Someone was faster: look again.
                Ok(Attempt::Overtaken) => {}
                Ok(Attempt::NothingToWrite(deleted)) => {
                    if self.is_newest(call, entry.as_ref()).await? {
                        return Ok(deleted);
                    }
                }
                // A webhook that is late or gone is so for the newer object too.
                Err(status) if status.code >= 500 => return Err(status),
                Err(status) => {
                    if self.is_newest(call, entry.as_ref()).await? {
                        return Err(status);
                    }
                }
            }
        }
        Err(Status::modified(&call.group_resource(), call.name))
    }

    /// Deletes everything that `filter` lets through; objects that go in the meantime are no error.
    pub async fn delete_collection(
        &self,
        call: &Call<'_>,
        filter: &Filter,
        options: &DeleteOptions,
    ) -> Result<Vec<Arc<Entry>>, Status> {
        validate_options(options)?;
        // What is not finished goes as well: a namespace could not be emptied otherwise.
        let mut filter = filter.clone();
        filter.include_uninitialized = true;
        let entries = self.select(call.resource, &filter).await?;
        for entry in &entries {
            let one = Call { namespace: entry.namespace(), name: entry.name(), ..*call };
            match self.delete(&one, options).await {
                Ok(_) => {}
                Err(status) if status.code == 404 => {}
                Err(status) => return Err(status),
            }
        }
        Ok(entries)
    }

    async fn try_delete(
        &self,
        call: &Call<'_>,
        options: &DeleteOptions,
        entry: &Arc<Entry>,
    ) -> Result<Attempt, Status> {
        let old = self.object_of(call, entry).await?;
        check_preconditions(call, options, &old)?;
        call.admission.validate(call, Operation::Delete, None, Some(&old)).await?;
        let strategy = &call.resource.strategy;
        match plan(&old, options, call, |object| strategy.grace_period(object, options.grace_period_seconds))
        {
            Plan::Pending => {
                Ok(Attempt::NothingToWrite(Deleted::Terminating(ResponseObject::Entry(entry.clone()))))
            }
            Plan::Mark(mut marked) => {
                strategy.begin_deletion(&mut marked);
                if let Some(disruption) = options.disruption {
                    disruption.tell(&mut marked, &metadata::timestamp(call.now.as_second()));
                }
                if call.dry_run {
                    return Ok(Attempt::NothingToWrite(Deleted::Terminating(ResponseObject::Object(marked))));
                }
                let key = call.resource.store_key(call.namespace, call.name);
                let compare = Compare::ModRevision { key: key.clone(), revision: entry.revision };
                let txn = transaction(call, compare, self.put(call, &key, &marked)?, Vec::new());
                match self.commit(call, call.namespace, call.name, txn, Some(&old), Some(&marked)).await {
                    Ok(committed) => {
                        let answer = self.written(call, *marked, committed.revision);
                        Ok(Attempt::Done(Deleted::Terminating(answer)))
                    }
                    Err(Error::Conflict { .. }) => Ok(Attempt::Overtaken),
                    Err(error) => Err(store_failure(error)),
                }
            }
            Plan::Remove => {
                if call.dry_run {
                    return Ok(Attempt::NothingToWrite(Deleted::Gone(ResponseObject::Entry(entry.clone()))));
                }
                let txn_parts = strategy.txn_parts(self, None, Some(&old))?;
                let key = call.resource.store_key(call.namespace, call.name);
                let compare = Compare::ModRevision { key: key.clone(), revision: entry.revision };
                let txn = transaction(call, compare, StoreOperation::Delete { key }, txn_parts);
                match self.commit(call, call.namespace, call.name, txn, Some(&old), None).await {
                    Ok(committed) => {
                        let gone = Arc::new(entry.deleted_at(committed.revision));
                        Ok(Attempt::Done(Deleted::Gone(ResponseObject::Entry(gone))))
                    }
                    Err(Error::Conflict { .. }) => Ok(Attempt::Overtaken),
                    Err(error) => Err(store_failure(error)),
                }
            }
        }
    }
}

enum Plan {
    /// Nothing to do: it is terminating already.
    Pending,
    /// Write this, and wait for others to let go.
    Mark(Box<Object>),
    Remove,
}

/// What a delete does to the object as it is. Pure.
fn plan(
    old: &Object,
    options: &DeleteOptions,
    call: &Call<'_>,
    grace_of: impl Fn(&Object) -> Option<i64>,
) -> Plan {
    let mut object = old.clone();
    set_dependents_finalizer(&mut object, options, call.resource.strategy.options().orphans_by_default);
    let held = object.finalizers().next().is_some() || call.resource.strategy.is_retained(&object);
    let asked = options.grace_period_seconds.map(|seconds| if seconds < 0 { 1 } else { seconds });
    let now = call.now.as_second();

    if old.is_deleting() {
        let left = old.meta("deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
        return match asked {
            // Only a shorter time may be asked for.
            Some(period) if left > 0 && period < left => {
                let begun = metadata::seconds_of(old.meta_text("deletionTimestamp")).unwrap_or(now) - left;
                let end = (begun + period).max(now);
                let period = if begun + period < now && period != 0 { 1 } else { period };
                if period == 0 && !held {
                    return Plan::Remove;
                }
                object.set_meta("deletionTimestamp", metadata::timestamp(end));
                object.set_meta("deletionGracePeriodSeconds", period);
                Plan::Mark(Box::new(object))
            }
            _ if left > 0 => Plan::Pending,
            _ if held && object == *old => Plan::Pending,
            _ if held => Plan::Mark(Box::new(object)),
            _ => Plan::Remove,
        };
    }

    let grace = grace_of(&object).unwrap_or(0);
    if grace == 0 && !held {
        return Plan::Remove;
    }
    object.set_meta("deletionTimestamp", metadata::timestamp(now + grace));
    object.set_meta("deletionGracePeriodSeconds", grace);
    if object.generation() > 0 {
        object.set_meta("generation", object.generation() + 1);
    }
    Plan::Mark(Box::new(object))
}

/// The garbage collector works on finalizers: they say what is to happen to dependents.
fn set_dependents_finalizer(object: &mut Object, options: &DeleteOptions, orphans_by_default: bool) {
    let policy = options.propagation_policy.as_deref();
    let wanted = match (policy, options.orphan_dependents) {
        (Some("Orphan"), _) | (None, Some(true)) => Some(ORPHAN),
        (Some("Foreground"), _) => Some(FOREGROUND),
        (Some(_), _) | (None, Some(false)) => None,
        // Nothing asked: what the object has stays, else the kind's own rule.
        (None, None) => match object.finalizers().find(|name| [ORPHAN, FOREGROUND].contains(name)) {
            Some(ORPHAN) => Some(ORPHAN),
            Some(_) => Some(FOREGROUND),
            None if orphans_by_default => Some(ORPHAN),
            None => None,
        },
    };
    let mut finalizers: Vec<Value> =
        object.finalizers().filter(|name| ![ORPHAN, FOREGROUND].contains(name)).map(Value::from).collect();
    finalizers.extend(wanted.map(Value::from));
    if finalizers.is_empty() {
        object.remove_meta("finalizers");
    } else {
        object.set_meta("finalizers", finalizers);
    }
}

fn validate_options(options: &DeleteOptions) -> Result<(), Status> {
    let mut errors = FieldErrors::default();
    if options.orphan_dependents.is_some() && options.propagation_policy.is_some() {
        errors.invalid(
            "propagationPolicy",
            options.propagation_policy.clone(),
            "orphanDependents and deletionPropagation cannot be both set",
        );
    }
    if let Some(policy) = options.propagation_policy.as_deref()
        && !["Foreground", "Background", "Orphan"].contains(&policy)
    {
        errors.not_supported("propagationPolicy", policy, &["Foreground", "Background", "Orphan", "nil"]);
    }
    if options.dry_run.iter().any(|value| value != "All") {
        errors.not_supported("dryRun", options.dry_run.clone(), &["All"]);
    }
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid("meta.k8s.io", "DeleteOptions", "", &errors)) }
}

impl Disruption {
    fn tell(self, object: &mut Object, now: &str) {
        let condition = json!({
            "type": "DisruptionTarget", "status": "True",
            "reason": self.reason, "message": self.message, "lastTransitionTime": now,
        });
        let conditions = object.section_mut("status").entry("conditions").or_insert_with(|| json!([]));
        let Some(conditions) = conditions.as_array_mut() else { return };
        conditions.retain(|known| known.get("type").and_then(Value::as_str) != Some("DisruptionTarget"));
        conditions.push(condition);
    }
}

fn check_preconditions(call: &Call<'_>, options: &DeleteOptions, old: &Object) -> Result<(), Status> {
    let Some(preconditions) = &options.preconditions else { return Ok(()) };
    // Named by its kind, where every other conflict names the resource.
    let kind = GroupResource::new(call.kind.group.clone(), call.kind.kind.clone());
    let refuse = |why: String| Err(Status::conflict(&kind, call.name, why));
    if let Some(uid) = preconditions.uid.as_deref().filter(|uid| *uid != old.uid()) {
        return refuse(format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
            old.uid()
        ));
    }
    if let Some(version) = preconditions.resource_version.as_deref().filter(|v| *v != old.resource_version())
    {
        return refuse(format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({}). The object might have been modified",
            old.resource_version()
        ));
    }
    Ok(())
}
