//! PersistentVolumeClaim: fixed once made, but for its size while it is bound.

use std::collections::BTreeMap;

use ferry_api::{FieldErrors, Object, Quantity, names};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};
use serde_json::json;

use super::checks::{self, Path};
use crate::columns::Column;
use crate::strategy::{Rules, Typed};

pub static STRATEGY: Typed<PersistentVolumeClaim, ClaimRules> = Typed::new(ClaimRules);

pub struct ClaimRules;

const SPEC: Path<'static> = Path::root("spec");
pub const ACCESS_MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
pub const VOLUME_MODES: &[&str] = &["Block", "Filesystem"];

impl Rules<PersistentVolumeClaim> for ClaimRules {
    fn prepare_create(&self, object: &mut Object) {
        object.0.insert("status".into(), json!({"phase": "Pending"}));
    }

    fn validate(&self, claim: &PersistentVolumeClaim, errors: &mut FieldErrors) {
        let empty = PersistentVolumeClaimSpec::default();
        let spec = claim.spec.as_ref().unwrap_or(&empty);
        validate_access_modes(spec.access_modes.as_deref().unwrap_or(&[]), errors);
        if let Some(selector) = &spec.selector {
            checks::selector(errors, SPEC.child("selector"), selector);
        }
        let resources = SPEC.child("resources");
        match requested(spec) {
            None => errors.required(resources.key("storage"), ""),
            Some(size) if size.is_zero() || size.is_negative() => {
                errors.invalid(resources.key("storage"), requested_text(spec), "must be greater than zero");
            }
            Some(_) => {}
        }
        if let Some(class) = spec.storage_class_name.as_deref().filter(|class| !class.is_empty()) {
            checks::named(errors, SPEC.child("storageClassName"), class, names::dns1123_subdomain);
        }
        checks::may_be(errors, SPEC.child("volumeMode"), spec.volume_mode.as_deref(), VOLUME_MODES);
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

    fn columns(&self) -> &[Column] {
        super::tables::storage::PERSISTENT_VOLUME_CLAIM
    }
}

/// The modes of a claim or a volume.
pub fn validate_access_modes(modes: &[String], errors: &mut FieldErrors) {
    let path = SPEC.child("accessModes");
    if modes.is_empty() {
        errors.required(path, "at least 1 access mode is required");
    }
    for mode in modes {
        checks::may_be(errors, path, Some(mode), ACCESS_MODES);
    }
    if modes.len() > 1 && modes.iter().any(|mode| mode == "ReadWriteOncePod") {
        errors.forbidden(path, "may not use ReadWriteOncePod with other access modes");
    }
}

type Quantities = BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>;

fn storage(list: &Quantities) -> Option<Quantity> {
    Quantity::parse(&list.get("storage")?.0).ok()
}

fn requested(spec: &PersistentVolumeClaimSpec) -> Option<Quantity> {
    storage(spec.resources.as_ref()?.requests.as_ref()?)
}

fn requested_text(spec: &PersistentVolumeClaimSpec) -> Option<String> {
    Some(spec.resources.as_ref()?.requests.as_ref()?.get("storage")?.0.clone())
}
