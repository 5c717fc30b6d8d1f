//! PersistentVolume: where it lies never changes.

use ferry_api::{FieldErrors, Object};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::{Map, Value, json};

use super::checks::{self, Path};
use crate::columns::Column;
use crate::metadata::timestamp;
use crate::strategy::{Rules, Typed};

pub static STRATEGY: Typed<PersistentVolume, VolumeRules> = Typed::new(VolumeRules);

pub struct VolumeRules;

/// The fields of the spec that are no volume source.
const OTHERS: &[&str] = &[
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];

impl Rules<PersistentVolume> for VolumeRules {
    fn prepare_create(&self, object: &mut Object) {
        let now = timestamp(Timestamp::now().as_second());
        object.0.insert("status".into(), json!({"phase": "Pending", "lastPhaseTransitionTime": now}));
    }

    fn validate_update(&self, new: &PersistentVolume, old: &PersistentVolume, errors: &mut FieldErrors) {
        if sources(new) != sources(old) {
            errors.forbidden(
                "spec.persistentvolumesource",
                "spec.persistentvolumesource is immutable after creation",
            );
        }
        let mode = |volume: &PersistentVolume| volume.spec.as_ref().and_then(|spec| spec.volume_mode.clone());
        checks::immutable(errors, Path::root("volumeMode"), &mode(new), &mode(old));
    }

    fn judged_by_rows(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        super::tables::storage::PERSISTENT_VOLUME
    }
}

/// The part of the spec that says what the volume is.
fn sources(volume: &PersistentVolume) -> Map<String, Value> {
    match json!(volume.spec) {
        Value::Object(mut spec) => {
            spec.retain(|field, _| !OTHERS.contains(&field.as_str()));
            spec
        }
        _ => Map::new(),
    }
}
