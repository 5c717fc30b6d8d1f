//! StatefulSet: most of its spec is fixed once it exists, for its pods and volumes carry it.

use ferry_api::{FieldErrors, Object, names};
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use serde_json::json;

use super::checks::{self, Path};
use super::workload;
use crate::columns::Column;
use crate::strategy::{Rules, ScalePaths, Traits, Typed};

pub static STRATEGY: Typed<StatefulSet, StatefulSetRules> = Typed::new(StatefulSetRules);

pub struct StatefulSetRules;

const SPEC: Path<'static> = Path::root("spec");

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

    fn validate(&self, set: &StatefulSet, errors: &mut FieldErrors) {
        let Some(spec) = &set.spec else {
            errors.required("spec.selector", "");
            return;
        };
        validate_policies(spec, errors);
        checks::not_negative(errors, SPEC.child("replicas"), spec.replicas);
        checks::not_negative(errors, SPEC.child("minReadySeconds"), spec.min_ready_seconds);
        let start = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start);
        checks::not_negative(errors, SPEC.child("ordinals.start"), start);
        if let Some(service) = spec.service_name.as_deref().filter(|name| !name.is_empty()) {
            checks::named(errors, SPEC.child("serviceName"), service, names::dns1123_label);
        }
        workload::validate_selector(&spec.selector, &spec.template, errors);
        let mut template = spec.template.clone();
        if let Some(pod) = &mut template.spec {
            // The set gives its pods their names and their claims.
            (pod.subdomain, pod.hostname) = (None, None);
            let claims = spec.volume_claim_templates.iter().flatten();
            for name in claims.filter_map(|claim| claim.metadata.name.clone()) {
                let volumes = pod.volumes.get_or_insert_default();
                volumes.retain(|volume| volume.name != name);
                let claim = k8s_openapi::api::core::v1::PersistentVolumeClaimVolumeSource {
                    claim_name: name.clone(),
                    ..Default::default()
                };
                volumes.push(k8s_openapi::api::core::v1::Volume {
                    name,
                    persistent_volume_claim: Some(claim),
                    ..Default::default()
                });
            }
        }
        workload::validate_lasting_template(&template, "StatefulSet", errors);
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

    fn columns(&self) -> &[Column] {
        super::tables::workloads::STATEFUL_SET
    }

    fn scale(&self) -> Option<&ScalePaths> {
        Some(&workload::SCALE)
    }

    fn traits(&self) -> Traits {
        Traits { generation: true, ..Traits::default() }
    }
}

fn validate_policies(spec: &StatefulSetSpec, errors: &mut FieldErrors) {
    match spec.pod_management_policy.as_deref().unwrap_or("") {
        "" => errors.required(SPEC.child("podManagementPolicy"), ""),
        "OrderedReady" | "Parallel" => {}
        other => {
            errors.invalid(SPEC.child("podManagementPolicy"), other, "must be 'OrderedReady' or 'Parallel'")
        }
    }
    let path = SPEC.child("updateStrategy");
    let Some(strategy) = &spec.update_strategy else {
        errors.required(path, "");
        return;
    };
    let rolling_path = path.child("rollingUpdate");
    match (strategy.type_.as_deref().unwrap_or(""), &strategy.rolling_update) {
        ("", _) => errors.required(path, ""),
        ("OnDelete", Some(rolling)) => {
            errors.invalid(rolling_path, json!(rolling), "only allowed for updateStrategy 'RollingUpdate'");
        }
        ("RollingUpdate", Some(rolling)) => {
            checks::not_negative(errors, rolling_path.child("partition"), rolling.partition);
            if let Some(unavailable) = &rolling.max_unavailable {
                let path = rolling_path.child("maxUnavailable");
                checks::int_or_percent(errors, path, Some(unavailable));
                if checks::is_zero(Some(unavailable)) {
                    errors.invalid(path, json!(unavailable), "cannot be 0");
                }
                checks::at_most_100_percent(errors, path, Some(unavailable));
            }
        }
        ("OnDelete" | "RollingUpdate", None) => {}
        _ => errors.invalid(path, json!(strategy), "must be 'RollingUpdate' or 'OnDelete'"),
    }
    let retention = SPEC.child("persistentVolumeClaimRetentionPolicy");
    if let Some(policy) = &spec.persistent_volume_claim_retention_policy {
        for (field, value) in [("whenDeleted", &policy.when_deleted), ("whenScaled", &policy.when_scaled)] {
            checks::one_of(errors, retention.child(field), value.as_deref(), &["Retain", "Delete"]);
        }
    }
}
