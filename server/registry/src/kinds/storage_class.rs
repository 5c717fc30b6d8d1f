//! StorageClass: how volumes are made, fixed for as long as it exists.

use ferry_api::FieldErrors;
use k8s_openapi::api::storage::v1::StorageClass;

use super::checks::{self, Path};
use crate::columns::Column;
use crate::strategy::{Rules, Typed};

pub static STRATEGY: Typed<StorageClass, StorageClassRules> = Typed::new(StorageClassRules);

pub struct StorageClassRules;

impl Rules<StorageClass> for StorageClassRules {
    fn validate(&self, class: &StorageClass, errors: &mut FieldErrors) {
        if class.provisioner.is_empty() {
            errors.required("provisioner", "");
        } else {
            let lower = class.provisioner.to_ascii_lowercase();
            checks::named(errors, Path::root("provisioner"), &lower, ferry_api::names::qualified_name);
        }
        checks::may_be(
            errors,
            Path::root("reclaimPolicy"),
            class.reclaim_policy.as_deref(),
            &["Delete", "Retain"],
        );
        checks::one_of(
            errors,
            Path::root("volumeBindingMode"),
            class.volume_binding_mode.as_deref(),
            &["Immediate", "WaitForFirstConsumer"],
        );
    }

    fn validate_update(&self, new: &StorageClass, old: &StorageClass, errors: &mut FieldErrors) {
        if new.parameters != old.parameters {
            errors.forbidden("parameters", "updates to parameters are forbidden.");
        }
        if new.provisioner != old.provisioner {
            errors.forbidden("provisioner", "updates to provisioner are forbidden.");
        }
        if new.reclaim_policy != old.reclaim_policy {
            errors.forbidden("reclaimPolicy", "updates to reclaimPolicy are forbidden.");
        }
        checks::immutable(
            errors,
            Path::root("volumeBindingMode"),
            &new.volume_binding_mode,
            &old.volume_binding_mode,
        );
    }

    fn columns(&self) -> &[Column] {
        super::tables::storage::STORAGE_CLASS
    }
}
