//! CustomResourceDefinition: what it must say ([`spec`], [`version`], [`conversion`]), what is stored of it, and how
//! it goes.
//!
//! Schemas make definitions large, so they are judged as JSON instead of through a typed view. Paths of errors are
//! upstream's: what is the same in all versions is named at the spec (`spec.validation.openAPIV3Schema`).

mod conversion;
mod names;
mod spec;
#[cfg(test)]
mod tests;
mod version;

use ferry_api::{FieldErrors, Kind, Object, Status, User};
use serde_json::{Value, json};

use crate::columns::Column;
use crate::custom_resources::{approval, conditions};
use crate::registry::Registry;
use crate::strategy::{ScalePaths, Selectable, Strategy, StrategyOptions, TxnPart, UpdateScope};

pub struct Definition;

pub static STRATEGY: Definition = Definition;

const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

impl Strategy for Definition {
    fn default(&self, object: &mut Object) {
        let spec = object.section_mut("spec");
        let names = spec.entry("names").or_insert_with(|| json!({}));
        let kind = names["kind"].as_str().unwrap_or("").to_string();
        if let Value::Object(names) = names {
            let mut fill = |field: &str, value: String| {
                let slot = names.entry(field).or_insert(Value::Null);
                if slot.as_str().unwrap_or("").is_empty() {
                    *slot = value.into();
                }
            };
            fill("singular", kind.to_lowercase());
            fill("listKind", if kind.is_empty() { String::new() } else { format!("{kind}List") });
        }
        let conversion = spec.entry("conversion").or_insert(Value::Null);
        if conversion.is_null() {
            *conversion = json!({"strategy": "None"});
        }
        if let Some(Value::Object(service)) = conversion.pointer_mut("/webhook/clientConfig/service") {
            super::checks::set_default(service, "port", 443);
        }
        let nothing_stored = |stored: &Value| stored.as_array().is_none_or(Vec::is_empty);
        if object.get(&["status", "storedVersions"]).is_none_or(nothing_stored) {
            remember_storage_version(object);
        }
    }

    fn prepare_create(&self, object: &mut Object) {
        // Neither is left out where there is nothing to say.
        let status = json!({"acceptedNames": {"plural": "", "kind": ""}, "conditions": null});
        object.0.insert("status".into(), status);
        remember_storage_version(object);
    }

    fn stamp_requester(&self, _: &mut Object, _: &User) {}

    fn prepare_update(&self, new: &mut Object, _: &Object) {
        remember_storage_version(new);
    }

    fn validate(&self, object: &Object, _: &Kind, errors: &mut FieldErrors) -> Result<Vec<String>, Status> {
        let spec = spec::Spec::of(object);
        let name = format!("{}.{}", spec.text("/names/plural"), spec.text("/group"));
        if !object.name().is_empty() && object.name() != name {
            errors.invalid("metadata.name", object.name(), r#"must be spec.names.plural+"."+spec.group"#);
        }
        judge(object, None, errors);
        Ok(spec.unrecognized_formats().map(warning).collect())
    }

    fn prepare_action(&self, _: &str, _: &mut Object, _: &Object) {}

    fn validate_update(
        &self,
        new: &Object,
        old: &Object,
        _: &Kind,
        scope: UpdateScope<'_>,
        errors: &mut FieldErrors,
    ) -> Result<Vec<String>, Status> {
        match scope {
            UpdateScope::Main => {
                judge(new, Some(old), errors);
                let before: Vec<&str> = spec::Spec::of(old).unrecognized_formats().collect();
                let now = spec::Spec::of(new);
                let fresh = now.unrecognized_formats().filter(|format| !before.contains(format));
                Ok(fresh.map(warning).collect())
            }
            UpdateScope::Status => {
                accepted_names(new, errors);
                Ok(Vec::new())
            }
            UpdateScope::Action(_) => Ok(Vec::new()),
        }
    }

    fn selectable(&self) -> &[Selectable] {
        &[]
    }

    fn columns(&self, _: &str) -> &[Column] {
        crate::columns::AGE_ONLY
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions {
            generation: true,
            unconditional_update: false,
            plain_finalizers: true,
            ..StrategyOptions::PLAIN
        }
    }

    fn grace_period(&self, _: &Object, _: Option<i64>) -> Option<i64> {
        None
    }

    /// Its objects go first: a deletion begins with the finalizer that waits for them.
    fn is_retained(&self, object: &Object) -> bool {
        !object.is_deleting()
    }

    fn begin_deletion(&self, object: &mut Object) {
        let mut finalizers: Vec<Value> = object.finalizers().map(Value::from).collect();
        if !finalizers.iter().any(|name| name == FINALIZER) {
            finalizers.push(FINALIZER.into());
            object.set_meta("finalizers", finalizers);
        }
        // It is no change of the definition, and nobody waits.
        object.remove_meta("deletionGracePeriodSeconds");
        object.set_meta("generation", (object.generation() - 1).max(1));
        let now = object.meta_text("deletionTimestamp").to_string();
        let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
        let status = object.0.entry("status").or_insert_with(|| json!({}));
        conditions::set(status, "Terminating", true, "InstanceDeletionPending", message, &now);
    }

    fn scale(&self, _: &str) -> Option<&ScalePaths> {
        None
    }

    fn txn_parts(
        &self,
        _: &Registry,
        _: Option<&mut Object>,
        _: Option<&Object>,
    ) -> Result<Vec<TxnPart>, Status> {
        Ok(Vec::new())
    }
}

/// Everything but the name. An update is not refused for what was accepted before.
fn judge(new: &Object, old: Option<&Object>, errors: &mut FieldErrors) {
    spec::judge(new, old, errors);
    accepted_names(new, errors);
    stored_versions(new, errors);
    approved(new, old, errors);
}

fn accepted_names(object: &Object, errors: &mut FieldErrors) {
    let nothing = |accepted: &&Value| accepted["plural"] == "" && accepted["kind"] == "";
    if let Some(accepted) = object.get(&["status", "acceptedNames"]).filter(|accepted| !nothing(accepted)) {
        names::judge(accepted, "status.acceptedNames", errors);
    }
}

/// A version in which objects may lie stays until somebody wrote them in another one and said so.
fn stored_versions(object: &Object, errors: &mut FieldErrors) {
    const PATH: &str = "status.storedVersions";
    let spec = spec::Spec::of(object);
    let versions = spec.versions();
    let stored = object.get(&["status", "storedVersions"]).unwrap_or(&Value::Null);
    let Some(stored) = stored.as_array().filter(|stored| !stored.is_empty()) else {
        errors.invalid(PATH, Value::Null, "must have at least one stored version");
        return;
    };
    for version in versions.iter().filter(|version| version["storage"] == true) {
        if !stored.contains(&version["name"]) {
            let why = format!("must have the storage version {}", text(&version["name"]));
            errors.invalid(PATH, stored.clone(), &why);
        }
    }
    for (index, name) in stored.iter().enumerate() {
        if !versions.iter().any(|version| version["name"] == *name) {
            let version = text(name);
            let why = format!(
                "missing from spec.versions; {version} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {version} and removes {version} from status.storedVersions"
            );
            errors.invalid(format!("{PATH}[{index}]"), version, &why);
        }
    }
}

/// Groups of the Kubernetes project need an approval; one that is missing since before may stay so.
fn approved(new: &Object, old: Option<&Object>, errors: &mut FieldErrors) {
    use approval::Approval;
    if !approval::is_protected(spec::Spec::of(new).text("/group")) {
        return;
    }
    let annotation = |object: &Object| object.annotation(approval::ANNOTATION).unwrap_or("").to_string();
    let text = annotation(new);
    let (state, why) = approval::approval(&text);
    if old.is_some_and(|old| approval::approval(&annotation(old)).0 == state) {
        return;
    }
    let path = format!("metadata.annotations[{}]", approval::ANNOTATION);
    match state {
        Approval::Missing => errors.required(path, &why),
        Approval::Invalid => errors.invalid(path, text, &why),
        Approval::Approved | Approval::Bypassed => {}
    }
}

fn warning(format: &str) -> String {
    format!("unrecognized format {format:?}")
}

/// `status.storedVersions` lists every version that objects may lie in.
fn remember_storage_version(object: &mut Object) {
    let spec = spec::Spec::of(object);
    let storage = spec.versions().iter().find(|version| version["storage"] == true);
    let Some(storage) = storage.map(|version| version["name"].clone()) else { return };
    let stored = object.section_mut("status").entry("storedVersions").or_insert_with(|| json!([]));
    if !stored.is_array() {
        *stored = json!([]);
    }
    if let Value::Array(stored) = stored
        && !stored.contains(&storage)
    {
        stored.push(storage);
    }
}

/// The words of a field; the table's rows have made sure that it is text where it is there.
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}
