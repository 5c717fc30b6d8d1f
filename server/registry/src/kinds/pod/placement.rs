//! Where a pod may go: node selector, tolerations, affinity, spreading.

use ferry_api::FieldErrors;
use k8s_openapi::api::core::v1::{Affinity, PodAffinityTerm, PodSpec, Toleration, WeightedPodAffinityTerm};

use super::super::checks::{self, Path};

const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub fn validate(spec: &PodSpec, path: Path<'_>, errors: &mut FieldErrors) {
    checks::labels(errors, path.child("nodeSelector"), spec.node_selector.as_ref());
    if let Some(affinity) = &spec.affinity {
        validate_affinity(affinity, path.child("affinity"), errors);
    }
    let list = path.child("tolerations");
    for (index, toleration) in spec.tolerations.iter().flatten().enumerate() {
        validate_toleration(toleration, list.index(index), errors);
    }
    let list = path.child("topologySpreadConstraints");
    for (index, constraint) in spec.topology_spread_constraints.iter().flatten().enumerate() {
        let path = list.index(index);
        if constraint.max_skew <= 0 {
            errors.invalid(path.child("maxSkew"), constraint.max_skew, "must be greater than zero");
        }
        required_topology_key(&constraint.topology_key, path, errors);
        checks::one_of(
            errors,
            path.child("whenUnsatisfiable"),
            Some(&constraint.when_unsatisfiable),
            &["DoNotSchedule", "ScheduleAnyway"],
        );
    }
}

fn validate_toleration(toleration: &Toleration, path: Path<'_>, errors: &mut FieldErrors) {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let (key, operator, value) = (text(&toleration.key), text(&toleration.operator), text(&toleration.value));
    let effect = text(&toleration.effect);
    if !key.is_empty() {
        checks::named(errors, path.child("key"), &key, ferry_api::names::qualified_name);
    } else if operator != "Exists" {
        errors.invalid(
            path.child("operator"),
            operator.as_str(),
            "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
        );
    }
    if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
        errors.invalid(
            path.child("effect"),
            effect.as_str(),
            "effect must be 'NoExecute' when `tolerationSeconds` is set",
        );
    }
    match operator.as_str() {
        "" | "Equal" => checks::named(errors, path.child("operator"), &value, ferry_api::names::label_value),
        "Exists" if !value.is_empty() => {
            errors.invalid(path.child("operator"), value, "value must be empty when `operator` is 'Exists'")
        }
        "Exists" => {}
        other => errors.not_supported(path.child("operator"), other, &["Equal", "Exists"]),
    }
    checks::may_be(errors, path.child("effect"), Some(&effect), EFFECTS);
}

fn validate_affinity(affinity: &Affinity, path: Path<'_>, errors: &mut FieldErrors) {
    if let Some(node) = &affinity.node_affinity {
        let path = path.child("nodeAffinity");
        if let Some(required) = &node.required_during_scheduling_ignored_during_execution
            && required.node_selector_terms.is_empty()
        {
            let required = path.child("requiredDuringSchedulingIgnoredDuringExecution");
            errors.required(required.child("nodeSelectorTerms"), "must have at least one node selector term");
        }
        let list = path.child("preferredDuringSchedulingIgnoredDuringExecution");
        let preferred = node.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        for (index, term) in preferred.enumerate() {
            validate_weight(term.weight, list.index(index), errors);
        }
    }
    if let Some(pods) = &affinity.pod_affinity {
        let required = pods.required_during_scheduling_ignored_during_execution.as_deref();
        let preferred = pods.preferred_during_scheduling_ignored_during_execution.as_deref();
        validate_pod_terms(required, preferred, path.child("podAffinity"), errors);
    }
    if let Some(pods) = &affinity.pod_anti_affinity {
        let required = pods.required_during_scheduling_ignored_during_execution.as_deref();
        let preferred = pods.preferred_during_scheduling_ignored_during_execution.as_deref();
        validate_pod_terms(required, preferred, path.child("podAntiAffinity"), errors);
    }
}

fn validate_pod_terms(
    required: Option<&[PodAffinityTerm]>,
    preferred: Option<&[WeightedPodAffinityTerm]>,
    path: Path<'_>,
    errors: &mut FieldErrors,
) {
    let list = path.child("requiredDuringSchedulingIgnoredDuringExecution");
    for (index, term) in required.into_iter().flatten().enumerate() {
        validate_pod_term(term, list.index(index), errors);
    }
    let list = path.child("preferredDuringSchedulingIgnoredDuringExecution");
    for (index, weighted) in preferred.into_iter().flatten().enumerate() {
        let path = list.index(index);
        validate_weight(weighted.weight, path, errors);
        validate_pod_term(&weighted.pod_affinity_term, path.child("podAffinityTerm"), errors);
    }
}

fn validate_pod_term(term: &PodAffinityTerm, path: Path<'_>, errors: &mut FieldErrors) {
    if let Some(selector) = &term.label_selector {
        checks::selector(errors, path.child("labelSelector"), selector);
    }
    required_topology_key(&term.topology_key, path, errors);
}

fn required_topology_key(key: &str, path: Path<'_>, errors: &mut FieldErrors) {
    if key.is_empty() {
        errors.required(path.child("topologyKey"), "can not be empty");
    } else {
        checks::named(errors, path.child("topologyKey"), key, ferry_api::names::qualified_name);
    }
}

fn validate_weight(weight: i32, path: Path<'_>, errors: &mut FieldErrors) {
    if !(1..=100).contains(&weight) {
        errors.invalid(path.child("weight"), weight, "must be in the range 1-100");
    }
}
