//! Lease: who holds it, for how long.

use ferry_api::FieldErrors;
use k8s_openapi::api::coordination::v1::Lease;

use super::checks::Path;
use crate::columns::Column;
use crate::strategy::{Rules, Traits, Typed};

pub static STRATEGY: Typed<Lease, LeaseRules> = Typed::new(LeaseRules);

pub struct LeaseRules;

const SPEC: Path<'static> = Path::root("spec");

impl Rules<Lease> for LeaseRules {
    fn validate(&self, lease: &Lease, errors: &mut FieldErrors) {
        let Some(spec) = &lease.spec else { return };
        if let Some(seconds) = spec.lease_duration_seconds.filter(|seconds| *seconds <= 0) {
            errors.invalid(SPEC.child("leaseDurationSeconds"), seconds, "must be greater than 0");
        }
        if let Some(count) = spec.lease_transitions.filter(|count| *count < 0) {
            errors.invalid(SPEC.child("leaseTransitions"), count, "must be greater than or equal to 0");
        }
        if spec.strategy.is_none() && spec.preferred_holder.as_deref().is_some_and(|name| !name.is_empty()) {
            errors.forbidden(SPEC.child("preferredHolder"), "may only be specified if `strategy` is defined");
        }
    }

    fn columns(&self) -> &[Column] {
        super::tables::cluster::LEASE
    }

    fn traits(&self) -> Traits {
        Traits { create_on_update: true, unconditional_update: false, relaxed: true, ..Traits::default() }
    }
}
