//! CustomResourceDefinition: its names and versions, what is stored of it, and how it goes.

use ferry_api::{FieldErrors, Object};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::columns::{AGE_ONLY, Column};
use crate::strategy::{Rules, Traits, Typed};

pub struct Definition;

pub static STRATEGY: Typed<IgnoredAny, Definition> = Typed::new(Definition);

const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

impl Rules<IgnoredAny> for Definition {
    fn default(&self, object: &mut Object) {
        let spec = object.section_mut("spec");
        let names = spec.entry("names").or_insert_with(|| json!({}));
        let kind = names["kind"].as_str().unwrap_or("").to_string();
        if let Value::Object(names) = names {
            let mut fill = |field: &str, value: String| {
                let slot = names.entry(field).or_insert(Value::Null);
                if slot.as_str().unwrap_or("").is_empty() && !kind.is_empty() {
                    *slot = value.into();
                }
            };
            fill("singular", kind.to_ascii_lowercase());
            fill("listKind", format!("{kind}List"));
        }
        let conversion = spec.entry("conversion").or_insert_with(|| json!({"strategy": "None"}));
        if let Some(service) = conversion.pointer_mut("/webhook/clientConfig/service")
            && service.get("port").is_none()
        {
            service["port"] = 443.into();
        }
    }

    fn prepare_create(&self, object: &mut Object) {
        object.0.remove("status");
        remember_storage_version(object);
    }

    fn prepare_update(&self, new: &mut Object, _: &Object) {
        remember_storage_version(new);
    }

    fn validate(&self, _: &IgnoredAny, _: &mut FieldErrors) {}

    fn columns(&self) -> &[Column] {
        AGE_ONLY
    }

    fn traits(&self) -> Traits {
        Traits { generation: true, unconditional_update: false, ..Traits::default() }
    }

    /// Its objects go first.
    fn is_retained(&self, object: &Object) -> bool {
        !object.is_deleting()
    }

    fn begin_deletion(&self, object: &mut Object) {
        let mut finalizers: Vec<Value> = object.finalizers().map(Value::from).collect();
        if !finalizers.iter().any(|name| name == FINALIZER) {
            finalizers.push(FINALIZER.into());
            object.set_meta("finalizers", finalizers);
        }
    }
}

/// `status.storedVersions` lists every version that objects may lie in.
fn remember_storage_version(object: &mut Object) {
    let versions = object.get(&["spec", "versions"]).and_then(Value::as_array);
    let storage = versions.into_iter().flatten().find(|version| version["storage"] == true);
    let Some(storage) = storage.map(|version| version["name"].clone()) else { return };
    let status = object.section_mut("status");
    let stored = status.entry("storedVersions").or_insert_with(|| json!([]));
    if let Value::Array(stored) = stored
        && !stored.contains(&storage)
    {
        stored.push(storage);
    }
}
