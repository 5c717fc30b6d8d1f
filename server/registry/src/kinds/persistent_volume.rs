//! PersistentVolume: where it lies never changes.

use ferry_api::{FieldErrors, Object};
use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::{Map, Value, json};

use super::checks::{self, Path};
use super::persistent_volume_claim::{VOLUME_MODES, validate_access_modes};
use crate::columns::Column;
use crate::strategy::{Rules, Typed};

pub static STRATEGY: Typed<PersistentVolume, VolumeRules> = Typed::new(VolumeRules);

pub struct VolumeRules;

const SPEC: Path<'static> = Path::root("spec");
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
        object.0.insert("status".into(), json!({"phase": "Pending"}));
    }

    fn validate(&self, volume: &PersistentVolume, errors: &mut FieldErrors) {
        let spec = volume.spec.clone().unwrap_or_default();
        validate_access_modes(spec.access_modes.as_deref().unwrap_or(&[]), errors);
        match spec.capacity.as_ref().map(|capacity| capacity.contains_key("storage")) {
            None => errors.required(SPEC.child("capacity"), ""),
            Some(false) => {
                errors.not_supported(SPEC.child("capacity"), json!(spec.capacity), &["storage"]);
            }
            Some(true) => {}
        }
        checks::may_be(
            errors,
            SPEC.child("persistentVolumeReclaimPolicy"),
            spec.persistent_volume_reclaim_policy.as_deref(),
            &["Delete", "Recycle", "Retain"],
        );
        checks::may_be(errors, SPEC.child("volumeMode"), spec.volume_mode.as_deref(), VOLUME_MODES);
        let sources = sources(volume);
        if sources.is_empty() {
            errors.required(SPEC, "must specify a volume type");
        }
        for source in sources.keys().skip(1) {
            errors.forbidden(SPEC.child(source), "may not specify more than 1 volume type");
        }
        if let Some(local) = &spec.local {
            if local.path.is_empty() {
                errors.required("spec.local.path", "");
            }
            if spec.node_affinity.is_none() {
                errors.required(SPEC.child("nodeAffinity"), "Local volume requires node affinity");
            }
        }
    }

    fn validate_update(&self, new: &PersistentVolume, old: &PersistentVolume, errors: &mut FieldErrors) {
        if sources(new) != sources(old) {
            errors.forbidden(
                "spec.persistentvolumesource",
                "spec.persistentvolumesource is immutable after creation",
            );
        }
        let mode = |volume: &PersistentVolume| volume.spec.as_ref().and_then(|spec| spec.volume_mode.clone());
        checks::immutable(errors, SPEC.child("volumeMode"), &mode(new), &mode(old));
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
