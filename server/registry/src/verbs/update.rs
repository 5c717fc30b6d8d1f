//! Update: whatever the client sends (a whole object, a patch, an applied configuration) is a function from the current
//! object to the new one. It is retried when another write came first, unless the client named a resourceVersion.

use std::borrow::Cow;
use std::sync::Arc;

use ferry_api::{FieldErrors, Object, Status};
use ferry_patch::managed_fields::Versions;
use ferry_store::{Compare, Error, Operation as StoreOperation};

use super::create::{Asked, judged, stored_fields, stored_form, track, transaction};
use super::{Call, Operation, Reservation, ResponseObject, initialize, store_failure};
use crate::cache::Entry;
use crate::metadata;
use crate::registry::Registry;
use crate::strategy::{Relaxed, UpdateScope};

/// How often an update without a revision is tried again.
const TRIES: usize = 32;

/// What the client wants done with the object as it is, in the version that it speaks; `None` when there is none. Field
/// ownership asks for other versions of the object through [`Versions`]; the transform may be run again when a webhook has made them.
pub type Transform<'a> = dyn Fn(Option<&Object>, &dyn Versions) -> Result<Object, Status> + Send + Sync + 'a;

pub struct Change<'a> {
    pub transform: &'a Transform<'a>,
    /// Field ownership was settled by the transform itself (server-side apply).
    pub tracked: bool,
    /// An absent object is created.
    pub may_create: bool,
    /// Only the object of this uid may be changed.
    pub uid: Option<&'a str>,
}

/// How one try of an update ended.
enum Attempt {
    Written(ResponseObject),
    /// The object is already as it should be, or the request is a dry run.
    NothingToWrite(ResponseObject),
    /// The object changed in the meantime.
    Overtaken,
}

impl Registry {
    /// Answers with the object, and whether it was created.
    pub async fn update(
        &self,
        call: &Call<'_>,
        change: Change<'_>,
    ) -> Result<(ResponseObject, bool), Status> {
        for _ in 0..TRIES {
            let entry = call.current();
            let attempt = match &entry {
                Some(entry) => self.try_update(call, &change, entry).await,
                None => self.try_create(call, &change).await,
            };
            match attempt {
                Ok(Attempt::Written(answer)) => {
                    if entry.is_some() {
                        self.remove_failed(call, &answer).await?;
                    }
                    return Ok((answer, entry.is_none()));
                }
                // Someone was faster: look again.
                Ok(Attempt::Overtaken) => {}
                Ok(Attempt::NothingToWrite(answer)) => {
                    if self.is_newest(call, entry.as_ref()).await? {
                        return Ok((answer, entry.is_none()));
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

    async fn try_create(&self, call: &Call<'_>, change: &Change<'_>) -> Result<Attempt, Status> {
        if !change.may_create {
            return Err(call.not_found());
        }
        let object = (change.transform)(None, call.resource)?;
        if !object.resource_version().is_empty() {
            return Err(call.not_found());
        }
        call.admission.authorize_create(call).await?;
        match self.create(call, object, change.tracked).await {
            // Someone created it in between: then it is to be changed.
            Err(status) if status.is_already_exists() && call.current().is_some() => Ok(Attempt::Overtaken),
            created => Ok(Attempt::Written(created?)),
        }
    }

    async fn try_update(
        &self,
        call: &Call<'_>,
        change: &Change<'_>,
        entry: &Arc<Entry>,
    ) -> Result<Attempt, Status> {
        let old = self.object_of(call, entry).await?;
        // What the client sees of it, and what the client makes of that.
        let live = call.resource.seen_in(&old, call.kind).await?;
        let mut new = call.resource.decide(|versions| (change.transform)(Some(&live), versions)).await??;
        metadata::match_place(&mut new, call)?;
        // "0" is any version, as none is.
        let asked = match new.resource_version() {
            "0" => String::new(),
            version => version.to_string(),
        };
        let insisted = !asked.is_empty() && asked != old.resource_version();
        if insisted && asked.parse::<u64>().is_err() {
            return Err(Status::unexpected(format!("strconv.ParseUint: parsing {asked:?}: invalid syntax")));
        }
        if insisted {
            return Err(Status::modified(&call.group_resource(), call.name));
        }
        if change.uid.is_some_and(|uid| uid != old.uid()) || (!new.uid().is_empty() && new.uid() != old.uid())
        {
            let wanted = change.uid.unwrap_or(new.uid()).to_string();
            return Err(Status::conflict(
                &call.group_resource(),
                call.name,
                format!(
                    "StorageError: invalid object, Code: 4, Key: {}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object meta: {}",
                    shown_key(&call.resource.store_key(call.namespace, call.name), call.dry_run),
                    old.uid()
                ),
            ));
        }
        if asked.is_empty() && !call.resource.strategy.options().unconditional_update {
            let mut errors = FieldErrors::default();
            errors.invalid("metadata.resourceVersion", 0, "must be specified for an update");
            return Err(Status::invalid(&call.kind.group, &call.kind.plural, call.name, &errors));
        }
        let scope = UpdateScope::of(call.subresource);
        metadata::begin_update(&mut new, &live, call)?;
        if !self.settings.initializers {
            metadata::copy(&mut new, &live, "initializers");
        }
        keep_the_other_side(&mut new, &live, call, scope);
        if !change.tracked {
            new = track(call, Some(&live), new).await;
        }
        let (mut new, asked) = stored_form(call, new).await?;
        // What a webhook made of the old object is not asked for again.
        let live = asked.as_ref().map(|_| live.into_owned());
        call.admission.mutate(call, Operation::Update, &mut new, Some(&old)).await?;
        prepare(call, &mut new, &old, live.as_ref(), asked.as_ref(), scope).await?;
        call.admission.validate(call, Operation::Update, Some(&new), Some(&old)).await?;
        let new = stored_fields(call, new)?;
        self.write_changed(call, entry, &old, new).await
    }

    async fn write_changed(
        &self,
        call: &Call<'_>,
        entry: &Arc<Entry>,
        old: &Object,
        mut new: Object,
    ) -> Result<Attempt, Status> {
        let strategy = &call.resource.strategy;
        let gone = new.is_deleting() && metadata::may_vanish(&new) && !strategy.is_retained(&new);
        let mut txn_parts = match gone {
            true => strategy.txn_parts(self, None, Some(old))?,
            false => strategy.txn_parts(self, Some(&mut new), Some(old))?,
        };
        let key = call.resource.store_key(call.namespace, call.name);
        // A write that changes nothing is none, but for a value that lies there in an older way: that is how keys
        // are replaced.
        if new == *old && !gone && !self.store.is_outdated(&key).await.map_err(store_failure)? {
            return Ok(Attempt::NothingToWrite(ResponseObject::Entry(entry.clone())));
        }
        let mut reservation = Reservation::default();
        if !gone {
            reservation = call.admission.reserve(call, Operation::Update, &new, Some(old)).await?;
            txn_parts.append(&mut reservation.txn_parts);
        }
        if call.dry_run {
            return Ok(Attempt::NothingToWrite(ResponseObject::Object(Box::new(new))));
        }
        let compare = Compare::ModRevision { key: key.clone(), revision: entry.revision };
        // The last finalizer of a deleted object is gone: so is the object.
        let operation =
            if gone { StoreOperation::Delete { key: key.clone() } } else { self.put(call, &key, &new)? };
        let mut txn = transaction(call, compare, operation, txn_parts);
        if !gone && strategy.options().relaxed == Relaxed::Renewals && strategy.is_renewal(&new, old) {
            txn = txn.relaxed();
        }
        let committed = self.commit(call, call.namespace, call.name, txn, Some(old), Some(&new)).await;
        drop(reservation.lock);
        match committed {
            Ok(_) if gone => Ok(Attempt::Written(ResponseObject::Object(Box::new(new)))),
            Ok(committed) => Ok(Attempt::Written(self.written(call, new, committed.revision))),
            Err(Error::Conflict { .. }) => Ok(Attempt::Overtaken),
            Err(error) => Err(store_failure(error)),
        }
    }
}

/// A write of the object leaves its status alone, and a write of the status everything else.
fn keep_the_other_side(new: &mut Object, old: &Object, call: &Call<'_>, scope: UpdateScope<'_>) {
    if call.kind.subresource("status").is_none() {
        return;
    }
    match scope {
        UpdateScope::Action(_) => {}
        UpdateScope::Main => match old.0.get("status") {
            // Compared first: as a rule a client sends back what it has read, and a copy costs more.
            Some(status) if new.0.get("status") == Some(status) => {}
            Some(status) => {
                new.0.insert("status".into(), status.clone());
            }
            None => {
                new.0.remove("status");
            }
        },
        UpdateScope::Status => {
            let own = |field: &str| matches!(field, "metadata" | "status");
            new.0.retain(|field, _| own(field) || old.0.contains_key(field));
            // As a rule nothing else was touched.
            for (field, value) in old.0.iter().filter(|(field, _)| !own(field)) {
                if new.0.get(field) != Some(value) {
                    new.0.insert(field.clone(), value.clone());
                }
            }
            if call.resource.strategy.options().status_keeps_metadata {
                let version = new.resource_version().to_string();
                let metadata = old.0.get("metadata").cloned().unwrap_or_default();
                new.0.insert("metadata".into(), metadata);
                new.set_meta("resourceVersion", version);
            }
            if call.resource.strategy.options().status_keeps_labels {
                metadata::copy(new, old, "labels");
            }
            metadata::copy(new, old, "ownerReferences");
        }
    }
}

async fn prepare(
    call: &Call<'_>,
    new: &mut Object,
    old: &Object,
    live: Option<&Object>,
    asked: Option<&Asked>,
    scope: UpdateScope<'_>,
) -> Result<(), Status> {
    let span = ferry_trace::span("registry.validate");
    let strategy = &call.resource.strategy;
    let strategy_options = strategy.options();
    metadata::finish_update(new, old);
    match scope {
        UpdateScope::Main => strategy.prepare_update(new, old),
        UpdateScope::Status => strategy.prepare_status_update(new, old),
        UpdateScope::Action(subresource) => strategy.prepare_action(subresource, new, old),
    }
    // A binding is no change of what the pod should be.
    let counts = !matches!(scope, UpdateScope::Status | UpdateScope::Action("binding"));
    let counted = || strategy_options.counts_metadata.iter().any(|field| new.meta(field) != old.meta(field));
    if strategy_options.generation
        && !strategy_options.counts_nothing
        && counts
        && (spec_changed(new, old) || counted())
    {
        new.set_meta("generation", old.generation() + 1);
    }
    let mut errors = FieldErrors::default();
    metadata::validate_update(new, old, &strategy_options, &mut errors);
    // While others finish it nobody has acted on the object: it is judged as a new one, not by what may
    // change later.
    let unfinished = scope == UpdateScope::Main && initialize::pending(old).is_some();
    let shown = judged(call, new, asked).await?;
    let shown_old = match live {
        Some(live) => Cow::Borrowed(live),
        None => judged(call, old, None).await?,
    };
    let warnings = span.enter(|| match unfinished {
        true => strategy.validate(&shown, call.kind, &mut errors),
        false => strategy.validate_update(&shown, &shown_old, call.kind, scope, &mut errors),
    })?;
    let is_custom = call.kind.generation.is_some();
    if !errors.is_empty() {
        // What rules of a custom resource tolerate is told all the same.
        call.warn(warnings.into_iter().filter(|_| is_custom));
        return Err(Status::invalid(&call.kind.group, &call.kind.kind, new.name(), &errors));
    }
    call.warn(warnings);
    Ok(())
}

/// A key as errors show it: upstream's dry run does not know what all keys begin with.
fn shown_key(key: &str, dry_run: bool) -> &str {
    key.strip_prefix("/registry").filter(|_| dry_run).unwrap_or(key)
}

fn spec_changed(new: &Object, old: &Object) -> bool {
    let counts = |key: &String| !matches!(key.as_str(), "metadata" | "status" | "apiVersion" | "kind");
    new.0.iter().filter(|(key, _)| counts(key)).ne(old.0.iter().filter(|(key, _)| counts(key)))
}
