//! Namespace: it stays until its content is gone.

use ferry_api::{FieldErrors, Object};
use k8s_openapi::api::core::v1::Namespace;
use serde_json::{Value, json};

use crate::columns::Column;
use crate::strategy::{NameRule, Rules, Selectable, StrategyOptions, Typed};

pub static STRATEGY: Typed<Namespace, NamespaceRules> = Typed::new(NamespaceRules);

pub struct NamespaceRules;

const FINALIZER: &str = "kubernetes";
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

impl Rules<Namespace> for NamespaceRules {
    /// Every namespace can be selected by its name.
    fn default(&self, object: &mut Object) {
        let name = object.name().to_string();
        if !name.is_empty() {
            ferry_api::object::object_at(object.metadata_mut(), "labels")
                .insert(NAME_LABEL.into(), name.into());
        }
    }

    fn prepare_create(&self, object: &mut Object) {
        self.default(object);
        let finalizers = object.section_mut("spec").entry("finalizers").or_insert_with(|| json!([]));
        if let Value::Array(list) = finalizers
            && !list.iter().any(|name| name == FINALIZER)
        {
            list.push(FINALIZER.into());
        }
        object.0.insert("status".into(), json!({"phase": "Active"}));
    }

    /// The spec is the server's: only `finalize` changes it.
    fn prepare_update(&self, new: &mut Object, old: &Object) {
        keep(new, old, "spec");
    }

    fn prepare_action(&self, subresource: &str, new: &mut Object, old: &Object) {
        if subresource == "finalize" {
            keep(new, old, "status");
        }
    }

    fn judged_by_rows(&self) -> bool {
        true
    }

    fn judges_status(&self) -> bool {
        true
    }

    fn validate_status_update(&self, new: &Namespace, _old: &Namespace, errors: &mut FieldErrors) {
        let phase = new.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("");
        let deleting = new.metadata.deletion_timestamp.is_some();
        let allowed: &[&str] = if deleting { &["Terminating"] } else { &["Active", ""] };
        if !allowed.contains(&phase) {
            errors.invalid(
                "status.Phase",
                phase,
                if deleting {
                    "may only be 'Terminating' if `deletionTimestamp` is not empty"
                } else {
                    "may only be 'Active' if `deletionTimestamp` is empty"
                },
            );
        }
    }

    fn is_retained(&self, object: &Object) -> bool {
        object.get(&["spec", "finalizers"]).and_then(Value::as_array).is_some_and(|list| !list.is_empty())
    }

    fn begin_deletion(&self, object: &mut Object) {
        object.section_mut("status").insert("phase".into(), "Terminating".into());
    }

    fn selectable(&self) -> &[Selectable] {
        static FIELDS: &[Selectable] = &[Selectable::new("status.phase", "status.phase", "")];
        FIELDS
    }

    fn columns(&self) -> &[Column] {
        super::tables::cluster::NAMESPACE
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions { name: NameRule::DnsLabel, ..StrategyOptions::default() }
    }
}

fn keep(new: &mut Object, old: &Object, section: &str) {
    match old.0.get(section) {
        Some(value) => new.0.insert(section.into(), value.clone()),
        None => new.0.remove(section),
    };
}
