//! The rules of a kind. The pipeline (`verbs/`) is written once over `Object` and calls them; no strategy can skip
//! authorization, admission, dry-run or finalizers, because none of these are part of it.
//!
//! A kind implements [`Rules`] over its typed view; [`Strategy`] is the object-safe form that the pipeline holds. Rules
//! change the `Object`, so that fields unknown to the view are preserved, and validate the view.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use ferry_api::{FieldErrors, Kind, Object, Status, User};
use ferry_store::{Compare, Operation};
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::columns::Column;
use crate::kinds::{rules, warnings};
use crate::registry::Registry;

/// The rules of one kind over its typed view. The default of every method suits a kind without special rules.
pub trait Rules<T: DeserializeOwned>: Send + Sync {
    /// Defaults that depend on other fields; the plain ones are in the table.
    fn default(&self, _object: &mut Object) {}

    /// Sets what only the server may set on a new object. Status was dropped already.
    fn prepare_create(&self, _object: &mut Object) {}

    /// Puts what is written today for what was written once, before the object is prepared. Returns what the client should
    /// hear about that.
    fn modernize(&self, _object: &mut Object) -> Vec<String> {
        Vec::new()
    }

    /// Records who created the object, for kinds that store it.
    fn stamp_requester(&self, _object: &mut Object, _user: &User) {}

    fn prepare_update(&self, _new: &mut Object, _old: &Object) {}

    fn prepare_status_update(&self, _new: &mut Object, _old: &Object) {}

    fn validate(&self, _object: &T, _errors: &mut FieldErrors) {}

    /// Runs after `validate` has run on the new object.
    fn validate_update(&self, _new: &T, _old: &T, _errors: &mut FieldErrors) {}

    /// Whether the rows of `kinds/rules/rules.txt` validate the kind, before the methods here do.
    fn judged_by_rows(&self) -> bool {
        false
    }

    /// Whether `validate` needs a typed view of a new object. Views are expensive.
    fn looks_at_new(&self) -> bool {
        true
    }

    /// Both look at nothing but `spec` and annotations: where those stayed as they were there is nothing to judge. For kinds that are written
    /// often for other reasons than their spec.
    fn judges_spec_alone(&self) -> bool {
        false
    }

    /// Called where `judges_status` says so: most statuses are their writers' own matter, and are
    /// written too often for views that nobody looks at.
    fn validate_status_update(&self, _new: &T, _old: &T, _errors: &mut FieldErrors) {}

    fn judges_status(&self) -> bool {
        false
    }

    /// A write through another subresource (binding, approval, finalize, resize): takes from `new` only
    /// what that subresource may change.
    fn prepare_action(&self, _subresource: &str, _new: &mut Object, _old: &Object) {}

    /// Called for the subresources that `judged_actions` names.
    fn validate_action(&self, _subresource: &str, _new: &T, _old: &T, _errors: &mut FieldErrors) {}

    fn judged_actions(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether `validate` needs a typed view of a new object. Views are expensive.
    /// Values for field selectors beyond metadata.name and metadata.namespace.
    fn selectable(&self) -> &[Selectable] {
        &[]
    }

    /// Columns of `kubectl get` after the name.
    fn columns(&self) -> &[Column] {
        crate::columns::AGE_ONLY
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions::default()
    }

    /// The grace period of a deletion; with `None` the object is removed immediately.
    fn grace_period(&self, _object: &Object, _asked: Option<i64>) -> Option<i64> {
        None
    }

    /// Whether the write only renews the object (a Lease), so that losing it does little harm.
    fn is_renewal(&self, _new: &Object, _old: &Object) -> bool {
        false
    }

    /// Whether a deleted object without finalizers remains (a namespace with content).
    fn is_retained(&self, _object: &Object) -> bool {
        false
    }

    /// Further changes when a deletion begins (a namespace becomes Terminating).
    fn begin_deletion(&self, _object: &mut Object) {}

    /// Where the scale subresource finds its numbers.
    fn scale(&self) -> Option<&ScalePaths> {
        None
    }

    /// Writes in the same transaction as the object's (allocated addresses and ports). May complete `new`, which is
    /// about to be written; a conflict on one of the keys makes the verb call this again.
    fn txn_parts(
        &self,
        _registry: &Registry,
        _new: Option<&mut Object>,
        _old: Option<&Object>,
    ) -> Result<Vec<TxnPart>, Status> {
        Ok(Vec::new())
    }
}

/// A write in the same transaction as the object's.
#[derive(Debug)]
pub struct TxnPart {
    /// The condition on the key's state; `None` for any state.
    pub compare: Option<Compare>,
    pub operation: Operation,
}

/// A field that selectors may name, and where its value stands. One that is listed twice has the
/// value of the first of its paths that leads somewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selectable {
    pub field: Cow<'static, str>,
    /// Field names joined by dots.
    pub path: Cow<'static, str>,
    /// The value of an absent field: "false" for a boolean, "" for a phase.
    pub absent: &'static str,
}

impl Selectable {
    pub const fn new(field: &'static str, path: &'static str, absent: &'static str) -> Selectable {
        Selectable { field: Cow::Borrowed(field), path: Cow::Borrowed(path), absent }
    }
}

/// Where a Scale finds its numbers: field names joined by dots.
#[derive(Debug)]
pub struct ScalePaths {
    pub replicas: Cow<'static, str>,
    pub status_replicas: Cow<'static, str>,
    /// A LabelSelector, a plain map (ReplicationController), or a selector as text (custom resources).
    pub selector: Option<Cow<'static, str>>,
}

/// Switches of the pipeline that a kind may set.
#[derive(Debug, Clone, Copy)]
pub struct StrategyOptions {
    /// PUT on a name that does not exist creates the object.
    pub create_on_update: bool,
    /// PUT without a resourceVersion is an unconditional update.
    pub unconditional_update: bool,
    /// A status write does not change labels.
    pub status_keeps_labels: bool,
    /// A status write does not change metadata.
    pub status_keeps_metadata: bool,
    /// Names may be any path segment (roles), not only DNS subdomains.
    pub name: NameRule,
    /// metadata.generation counts changes of everything but metadata and status.
    pub generation: bool,
    /// The generation counts from the first change on: a new object has none.
    pub counts_from_zero: bool,
    /// Fields of metadata whose change counts too.
    pub counts_metadata: &'static [&'static str],
    /// The generation is 1 from the beginning, and only a deletion with finalizers increases it.
    pub counts_nothing: bool,
    /// A new object keeps the status it came with (nodes register with theirs).
    pub created_with_status: bool,
    /// Addresses or ports are reserved together with the object: it has [`TxnPart`]s.
    pub reserves: bool,
    pub relaxed: Relaxed,
    /// Objects expire after `Settings::event_ttl`.
    pub expires: bool,
    /// Finalizers need no domain before a slash (definitions and custom resources).
    pub plain_finalizers: bool,
    /// Finalizers every new object gets.
    pub first_finalizer: Option<&'static str>,
    /// What a delete does to dependents when the request does not say.
    pub orphans_by_default: bool,
    /// The warning for deletions that set no propagation policy.
    pub orphans_warning: Option<&'static str>,
}

/// Which writes are acknowledged before they are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relaxed {
    Never,
    /// Renewals, see [`Rules::is_renewal`].
    Renewals,
    /// All writes: no component depends on the object (Events).
    Always,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    DnsSubdomain,
    DnsLabel,
    Dns1035Label,
    PathSegment,
    /// An address in its canonical form.
    IpAddress,
    /// As keys of ConfigMaps (lease candidates).
    ConfigMapKey,
    /// `GROUP.RESOURCE` (storage versions).
    GroupResource,
    /// After the name of the signer in the spec, if it has one (trust bundles).
    AfterSigner,
}

impl StrategyOptions {
    /// The switches of a kind that sets none.
    pub const PLAIN: StrategyOptions = StrategyOptions {
        create_on_update: false,
        unconditional_update: true,
        status_keeps_labels: false,
        status_keeps_metadata: false,
        name: NameRule::DnsSubdomain,
        generation: false,
        counts_from_zero: false,
        counts_metadata: &[],
        counts_nothing: false,
        created_with_status: false,
        reserves: false,
        relaxed: Relaxed::Never,
        expires: false,
        plain_finalizers: false,
        first_finalizer: None,
        orphans_by_default: false,
        orphans_warning: None,
    };
}

impl Default for StrategyOptions {
    fn default() -> StrategyOptions {
        StrategyOptions::PLAIN
    }
}

/// [`Rules`] without the type, as the pipeline holds it.
pub trait Strategy: Send + Sync {
    fn default(&self, object: &mut Object);
    fn prepare_create(&self, object: &mut Object);
    fn modernize(&self, _object: &mut Object) -> Vec<String> {
        Vec::new()
    }
    fn stamp_requester(&self, object: &mut Object, user: &User);
    fn prepare_update(&self, new: &mut Object, old: &Object);
    fn prepare_status_update(&self, _new: &mut Object, _old: &Object) {}
    /// Returns what the client should hear though the object is accepted. `asked` is the version that the client
    /// speaks.
    fn validate(
        &self,
        object: &Object,
        asked: &Kind,
        errors: &mut FieldErrors,
    ) -> Result<Vec<String>, Status>;
    fn prepare_action(&self, subresource: &str, new: &mut Object, old: &Object);
    fn validate_update(
        &self,
        new: &Object,
        old: &Object,
        asked: &Kind,
        scope: UpdateScope<'_>,
        errors: &mut FieldErrors,
    ) -> Result<Vec<String>, Status>;
    /// The fields that selectors of any version may name.
    fn selectable(&self) -> &[Selectable];
    /// Whether selectors of this version may name the field.
    fn may_select(&self, _field: &str, _version: &str) -> bool {
        true
    }
    fn columns(&self, version: &str) -> &[Column];
    fn options(&self) -> StrategyOptions;
    fn grace_period(&self, object: &Object, asked: Option<i64>) -> Option<i64>;
    fn is_renewal(&self, _new: &Object, _old: &Object) -> bool {
        false
    }
    fn is_retained(&self, object: &Object) -> bool;
    fn begin_deletion(&self, object: &mut Object);
    fn scale(&self, version: &str) -> Option<&ScalePaths>;
    fn txn_parts(
        &self,
        registry: &Registry,
        new: Option<&mut Object>,
        old: Option<&Object>,
    ) -> Result<Vec<TxnPart>, Status>;
}

/// A strategy of the table, or one that a definition made.
#[derive(Clone)]
pub enum StrategyRef {
    Builtin(&'static dyn Strategy),
    Custom(Arc<dyn Strategy>),
}

impl Deref for StrategyRef {
    type Target = dyn Strategy;

    fn deref(&self) -> &(dyn Strategy + 'static) {
        match self {
            StrategyRef::Builtin(strategy) => *strategy,
            StrategyRef::Custom(strategy) => strategy.as_ref(),
        }
    }
}

/// Which part of the object an update is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateScope<'a> {
    Main,
    Status,
    /// Another subresource; its rules are the kind's own.
    Action(&'a str),
}

impl UpdateScope<'_> {
    pub fn of(subresource: &str) -> UpdateScope<'_> {
        match subresource {
            // A scale is a write of the object's own replicas.
            "" | "scale" => UpdateScope::Main,
            "status" => UpdateScope::Status,
            other => UpdateScope::Action(other),
        }
    }
}

/// Passes [`Rules`] a typed view, which is decoded only if a rule needs it.
pub struct Typed<T, R> {
    rules: R,
    view: PhantomData<fn() -> T>,
}

impl<T, R> Typed<T, R> {
    pub const fn new(rules: R) -> Typed<T, R> {
        Typed { rules, view: PhantomData }
    }
}

fn view<T: DeserializeOwned>(object: &Object) -> Result<T, Status> {
    object.view().map_err(|error| {
        Status::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: {error}",
            object.kind(),
            object.api_version(),
            object.kind()
        ))
    })
}

impl<T: DeserializeOwned, R: Rules<T>> Strategy for Typed<T, R> {
    fn default(&self, object: &mut Object) {
        self.rules.default(object);
    }

    fn prepare_create(&self, object: &mut Object) {
        if self.rules.judged_by_rows() {
            rules::close_gates(object);
        }
        self.rules.prepare_create(object);
    }

    fn modernize(&self, object: &mut Object) -> Vec<String> {
        self.rules.modernize(object)
    }

    fn stamp_requester(&self, object: &mut Object, user: &User) {
        self.rules.stamp_requester(object, user);
    }

    fn prepare_update(&self, new: &mut Object, old: &Object) {
        if self.rules.judged_by_rows() {
            rules::close_gates(new);
        }
        self.rules.prepare_update(new, old);
    }

    fn prepare_status_update(&self, new: &mut Object, old: &Object) {
        self.rules.prepare_status_update(new, old);
    }

    fn prepare_action(&self, subresource: &str, new: &mut Object, old: &Object) {
        self.rules.prepare_action(subresource, new, old);
    }

    fn validate(
        &self,
        object: &Object,
        asked: &Kind,
        errors: &mut FieldErrors,
    ) -> Result<Vec<String>, Status> {
        if self.rules.judged_by_rows() {
            rules::validate(object, &asked.group, errors);
        }
        if self.rules.looks_at_new() {
            self.rules.validate(&view(object)?, errors);
        }
        Ok(warnings::of(asked, object, None, UpdateScope::Main))
    }

    fn validate_update(
        &self,
        new: &Object,
        old: &Object,
        asked: &Kind,
        scope: UpdateScope<'_>,
        errors: &mut FieldErrors,
    ) -> Result<Vec<String>, Status> {
        let same_spec = || {
            self.rules.judges_spec_alone()
                && new.0.get("spec") == old.0.get("spec")
                && new.meta("annotations") == old.meta("annotations")
        };
        let by_rows = match scope {
            UpdateScope::Main => !same_spec(),
            UpdateScope::Status => true,
            UpdateScope::Action(subresource) => self.rules.judged_actions().contains(&subresource),
        };
        if by_rows && self.rules.judged_by_rows() {
            rules::validate_update(new, old, &asked.group, scope, errors);
        }
        // No view is made that nobody looks at.
        let judged = match scope {
            UpdateScope::Main => !same_spec(),
            UpdateScope::Status => self.rules.judges_status(),
            UpdateScope::Action(subresource) => self.rules.judged_actions().contains(&subresource),
        };
        let said = warnings::of(asked, new, Some(old), scope);
        if !judged {
            return Ok(said);
        }
        let (new, old) = (view(new)?, view(old)?);
        match scope {
            UpdateScope::Main => {
                self.rules.validate(&new, errors);
                self.rules.validate_update(&new, &old, errors);
            }
            UpdateScope::Status => self.rules.validate_status_update(&new, &old, errors),
            UpdateScope::Action(subresource) => self.rules.validate_action(subresource, &new, &old, errors),
        }
        Ok(said)
    }

    fn selectable(&self) -> &[Selectable] {
        self.rules.selectable()
    }

    fn columns(&self, _: &str) -> &[Column] {
        self.rules.columns()
    }

    fn options(&self) -> StrategyOptions {
        self.rules.options()
    }

    fn grace_period(&self, object: &Object, asked: Option<i64>) -> Option<i64> {
        self.rules.grace_period(object, asked)
    }

    fn is_renewal(&self, new: &Object, old: &Object) -> bool {
        self.rules.is_renewal(new, old)
    }

    fn is_retained(&self, object: &Object) -> bool {
        self.rules.is_retained(object)
    }

    fn begin_deletion(&self, object: &mut Object) {
        self.rules.begin_deletion(object);
    }

    fn scale(&self, _: &str) -> Option<&ScalePaths> {
        self.rules.scale()
    }

    fn txn_parts(
        &self,
        registry: &Registry,
        new: Option<&mut Object>,
        old: Option<&Object>,
    ) -> Result<Vec<TxnPart>, Status> {
        self.rules.txn_parts(registry, new, old)
    }
}

/// The strategy of a kind that needs none: its fields are checked by their rows alone.
pub struct Plain;

impl Rules<IgnoredAny> for Plain {}

pub static PLAIN: Typed<IgnoredAny, Plain> = Typed::new(Plain);
