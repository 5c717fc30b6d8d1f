//! StatefulSet: most of its spec is fixed once it exists, for its pods and volumes carry it.

use ferry_api::{FieldErrors, Object};
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use serde_json::json;

use super::checks;
use super::workload;
use crate::columns::Column;
use crate::strategy::{NameRule, Rules, ScalePaths, StrategyOptions, Typed};

pub static STRATEGY: Typed<StatefulSet, StatefulSetRules> = Typed::new(StatefulSetRules);

pub struct StatefulSetRules;

impl Rules<StatefulSet> for StatefulSetRules {
    fn default(&self, object: &mut Object) {
        workload::default_template(object);
        let spec = object.section_mut("spec");
        checks::set_default(spec, "podManagementPolicy", "OrderedReady");
        checks::set_default(spec, "replicas", 1);
        checks::set_default(spec, "revisionHistoryLimit", 10);
        let retention = ferry_api::object::object_at(spec, "persistentVolumeClaimRetentionPolicy");
        checks::set_default(retention, "whenDeleted", "Retain");
        checks::set_default(retention, "whenScaled", "Retain");
        let strategy = ferry_api::object::object_at(spec, "updateStrategy");
        checks::set_default(strategy, "type", "RollingUpdate");
        if strategy.get("type").is_some_and(|kind| kind == "RollingUpdate") {
            let rolling = ferry_api::object::object_at(strategy, "rollingUpdate");
            checks::set_default(rolling, "partition", 0);
        }
    }

    fn prepare_create(&self, object: &mut Object) {
        object.0.insert("status".into(), json!({"replicas": 0, "availableReplicas": 0}));
    }

    fn validate_update(&self, new: &StatefulSet, old: &StatefulSet, errors: &mut FieldErrors) {
        let (Some(new), Some(old)) = (&new.spec, &old.spec) else { return };
        let frozen = StatefulSetSpec {
            replicas: old.replicas,
            template: old.template.clone(),
            update_strategy: old.update_strategy.clone(),
            min_ready_seconds: old.min_ready_seconds,
            ordinals: old.ordinals.clone(),
            revision_history_limit: old.revision_history_limit,
            persistent_volume_claim_retention_policy: old.persistent_volume_claim_retention_policy.clone(),
            ..new.clone()
        };
        if frozen != *old {
            errors.forbidden(
                "spec",
                "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
            );
        }
    }

    fn judged_by_rows(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        super::tables::workloads::STATEFUL_SET
    }

    fn scale(&self) -> Option<&ScalePaths> {
        Some(&workload::SCALE)
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions { generation: true, name: NameRule::DnsLabel, ..StrategyOptions::default() }
    }
}
