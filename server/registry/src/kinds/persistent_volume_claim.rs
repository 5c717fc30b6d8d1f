//! PersistentVolumeClaim: fixed once made, but for its size while it is bound.

use std::collections::BTreeMap;

use ferry_api::{FieldErrors, Object, Quantity};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};
use serde_json::{Map, Value, json};

use super::checks::Path;
use crate::columns::Column;
use crate::strategy::{Rules, Typed};

pub static STRATEGY: Typed<PersistentVolumeClaim, ClaimRules> = Typed::new(ClaimRules);

pub struct ClaimRules;

const SPEC: Path<'static> = Path::root("spec");

impl Rules<PersistentVolumeClaim> for ClaimRules {
    fn prepare_create(&self, object: &mut Object) {
        data_sources(object.section_mut("spec"));
        object.0.insert("status".into(), json!({"phase": "Pending"}));
    }

    fn validate_update(
        &self,
        new: &PersistentVolumeClaim,
        old: &PersistentVolumeClaim,
        errors: &mut FieldErrors,
    ) {
        let (Some(spec), Some(before)) = (&new.spec, &old.spec) else { return };
        let mut frozen = spec.clone();
        if before.volume_name.as_deref().unwrap_or("").is_empty() {
            frozen.volume_name.clone_from(&before.volume_name);
        }
        // A claim without a class may be given the default one later.
        if before.storage_class_name.is_none() {
            frozen.storage_class_name.clone_from(&before.storage_class_name);
        }
        if new.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound") {
            frozen.resources.clone_from(&before.resources);
            frozen.volume_attributes_class_name.clone_from(&before.volume_attributes_class_name);
        }
        if frozen != *before {
            errors.forbidden(
                SPEC,
                "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
            );
        }
        if spec.volume_mode != before.volume_mode {
            errors.invalid("volumeMode", spec.volume_mode.clone(), super::checks::IMMUTABLE);
        }
        if let (Some(wanted), Some(had)) = (requested(spec), requested(before))
            && wanted.value() < had.value()
        {
            let capacity = old.status.as_ref().and_then(|status| status.capacity.as_ref());
            let have = capacity.and_then(storage).map_or(0, |have| have.value());
            if wanted.value() <= have {
                errors.forbidden(
                    "spec.resources.requests.storage",
                    "field can not be less than status.capacity",
                );
            }
        }
    }

    fn judged_by_rows(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        super::tables::storage::PERSISTENT_VOLUME_CLAIM
    }
}

/// Where the data comes from is said in two ways. Other namespaces are not served, and the old way names claims and
/// snapshots alone.
fn data_sources(spec: &mut Map<String, Value>) {
    let text =
        |source: &Value, field: &str| source.get(field).and_then(Value::as_str).unwrap_or("").to_owned();
    if spec.get("dataSourceRef").is_some_and(|source| !text(source, "namespace").is_empty()) {
        spec.remove("dataSourceRef");
    }
    let served = |source: &Value| {
        let kind = (text(source, "kind"), text(source, "apiGroup"));
        let kind = (kind.0.as_str(), kind.1.as_str());
        [("PersistentVolumeClaim", ""), ("VolumeSnapshot", "snapshot.storage.k8s.io")].contains(&kind)
    };
    if !spec.contains_key("dataSourceRef") && spec.get("dataSource").is_some_and(|source| !served(source)) {
        spec.remove("dataSource");
    }
    for (from, to) in [("dataSource", "dataSourceRef"), ("dataSourceRef", "dataSource")] {
        if !spec.contains_key(to)
            && let Some(source) = spec.get(from).cloned()
        {
            spec.insert(to.into(), source);
        }
    }
}

type Quantities = BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>;

fn storage(list: &Quantities) -> Option<Quantity> {
    Quantity::parse(&list.get("storage")?.0).ok()
}

fn requested(spec: &PersistentVolumeClaimSpec) -> Option<Quantity> {
    storage(spec.resources.as_ref()?.requests.as_ref()?)
}
