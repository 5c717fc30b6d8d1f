//! PriorityClass: its value never changes, and the highest ones are the system's.

use ferry_api::FieldErrors;
use k8s_openapi::api::scheduling::v1::PriorityClass;

use super::checks::{self, Path};
use crate::columns::Column;
use crate::strategy::{Rules, Traits, Typed};

pub static STRATEGY: Typed<PriorityClass, PriorityClassRules> = Typed::new(PriorityClassRules);

pub struct PriorityClassRules;

/// The system's own classes, and their values; both are above what users may ask for.
const SYSTEM: &[(&str, i32)] =
    &[("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];
const HIGHEST: i32 = 1_000_000_000;

impl Rules<PriorityClass> for PriorityClassRules {
    fn validate(&self, class: &PriorityClass, errors: &mut FieldErrors) {
        let name = class.metadata.name.as_deref().unwrap_or("");
        let value = class.value.unwrap_or(0);
        if name.starts_with("system-") {
            if !SYSTEM.contains(&(name, value)) {
                errors.forbidden(
                    "metadata.name",
                    "priority class names with 'system-' prefix are reserved for system use only",
                );
            }
        } else if value > HIGHEST {
            errors.forbidden(
                "value",
                &format!("maximum allowed value of a user defined priority is {HIGHEST}"),
            );
        }
        checks::may_be(
            errors,
            Path::root("preemptionPolicy"),
            class.preemption_policy.as_deref(),
            &["Never", "PreemptLowerPriority"],
        );
    }

    fn validate_update(&self, new: &PriorityClass, old: &PriorityClass, errors: &mut FieldErrors) {
        if new.value.unwrap_or(0) != old.value.unwrap_or(0) {
            errors.forbidden("value", "may not be changed in an update.");
        }
        checks::immutable(
            errors,
            Path::root("preemptionPolicy"),
            &new.preemption_policy,
            &old.preemption_policy,
        );
    }

    fn columns(&self) -> &[Column] {
        super::tables::workloads::PRIORITY_CLASS
    }

    fn traits(&self) -> Traits {
        Traits { generation: true, ..Traits::default() }
    }
}
