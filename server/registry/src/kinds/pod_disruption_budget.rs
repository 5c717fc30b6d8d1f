//! PodDisruptionBudget.

use ferry_api::FieldErrors;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::json;

use super::checks::{self, Path};
use crate::columns::Column;
use crate::strategy::{Rules, Traits, Typed};

pub static STRATEGY: Typed<PodDisruptionBudget, BudgetRules> = Typed::new(BudgetRules);

pub struct BudgetRules;

const SPEC: Path<'static> = Path::root("spec");

impl Rules<PodDisruptionBudget> for BudgetRules {
    fn validate(&self, budget: &PodDisruptionBudget, errors: &mut FieldErrors) {
        let Some(spec) = &budget.spec else { return };
        if spec.min_available.is_some() && spec.max_unavailable.is_some() {
            errors.invalid(SPEC, json!(spec), "minAvailable and maxUnavailable cannot be both set");
        }
        for (field, value) in
            [("minAvailable", &spec.min_available), ("maxUnavailable", &spec.max_unavailable)]
        {
            checks::int_or_percent(errors, SPEC.child(field), value.as_ref());
            checks::at_most_100_percent(errors, SPEC.child(field), value.as_ref());
        }
        if let Some(selector) = &spec.selector {
            checks::selector(errors, SPEC.child("selector"), selector);
        }
        checks::may_be(
            errors,
            SPEC.child("unhealthyPodEvictionPolicy"),
            spec.unhealthy_pod_eviction_policy.as_deref(),
            &["AlwaysAllow", "IfHealthyBudget"],
        );
    }

    fn columns(&self) -> &[Column] {
        super::tables::workloads::POD_DISRUPTION_BUDGET
    }

    fn traits(&self) -> Traits {
        Traits { generation: true, unconditional_update: false, ..Traits::default() }
    }
}
