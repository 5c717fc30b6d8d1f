//! What a Job's pod failure policy says about a failed pod.

use k8s_openapi::api::batch::v1::{Job, PodFailurePolicyRule};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;

use crate::pods::{condition, is_deleting, is_finished};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Counts towards the back-off limit.
    Count,
    /// Is replaced and counts for nothing.
    Ignore,
    FailIndex,
    /// Ends the whole Job; the text says why.
    FailJob(String),
}

/// The first rule that matches decides; without one the failure counts.
pub fn judge(job: &Job, pod: &Pod) -> Action {
    let policy = job.spec.as_ref().and_then(|spec| spec.pod_failure_policy.as_ref());
    for (index, rule) in policy.iter().flat_map(|policy| &policy.rules).enumerate() {
        if let Some(why) = matches(rule, pod) {
            return match rule.action.as_str() {
                "Ignore" => Action::Ignore,
                "FailIndex" => Action::FailIndex,
                "FailJob" => Action::FailJob(format!("{why} matching FailJob rule at index {index}")),
                _ => Action::Count,
            };
        }
    }
    Action::Count
}

/// In which words the pod matches the rule.
fn matches(rule: &PodFailurePolicyRule, pod: &Pod) -> Option<String> {
    let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    if let Some(codes) = &rule.on_exit_codes {
        let containers = statuses(pod)
            .filter(|status| codes.container_name.as_ref().is_none_or(|name| *name == status.name));
        for status in containers {
            let Some(ended) = status.state.as_ref().and_then(|state| state.terminated.as_ref()) else {
                continue;
            };
            let listed = codes.values.contains(&ended.exit_code);
            let hit = ended.exit_code != 0 && if codes.operator == "In" { listed } else { !listed };
            if hit {
                return Some(format!(
                    "Container {} for pod {name} failed with exit code {}",
                    status.name, ended.exit_code
                ));
            }
        }
    }
    for pattern in rule.on_pod_conditions.iter().flatten() {
        let wanted = pattern.status.as_deref().unwrap_or("True");
        if condition(pod, &pattern.type_).is_some_and(|found| found.status == wanted) {
            return Some(format!("Pod {name} has condition {}", pattern.type_));
        }
    }
    None
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_ref()).into_iter().flatten();
    init.chain(status.and_then(|status| status.container_statuses.as_ref()).into_iter().flatten())
}

/// Has the pod failed for this Job? A pod that is being deleted counts at once, unless the
/// Job wants it replaced only when it has really ended.
pub fn has_failed(job: &Job, pod: &Pod) -> bool {
    let phase = crate::pods::phase(pod);
    phase == "Failed" || (!replaces_only_failed(job) && is_deleting(pod) && !is_finished(pod))
}

pub fn replaces_only_failed(job: &Job) -> bool {
    let spec = job.spec.as_ref();
    match spec.and_then(|spec| spec.pod_replacement_policy.as_deref()) {
        Some(policy) => policy == "Failed",
        None => spec.is_some_and(|spec| spec.pod_failure_policy.is_some()),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::batch::v1::{
        PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
    };
    use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, PodCondition};

    use super::*;
    use crate::testing::{named, pod};

    fn failed_with(code: i32) -> Pod {
        let mut pod = pod("a", "n", "Failed", None);
        let terminated = ContainerStateTerminated { exit_code: code, ..Default::default() };
        let state = ContainerState { terminated: Some(terminated), ..Default::default() };
        pod.status.as_mut().unwrap().container_statuses =
            Some(vec![ContainerStatus { name: "main".into(), state: Some(state), ..Default::default() }]);
        pod
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let codes = |operator: &str, values: &[i32]| {
            Some(PodFailurePolicyOnExitCodesRequirement {
                operator: operator.into(),
                values: values.to_vec(),
                container_name: None,
            })
        };
        let rule = |action: &str, on_exit_codes, on_pod_conditions| PodFailurePolicyRule {
            action: action.into(),
            on_exit_codes,
            on_pod_conditions,
        };
        let disrupted = PodFailurePolicyOnPodConditionsPattern {
            type_: "DisruptionTarget".into(),
            status: Some("True".into()),
        };
        let mut job: Job = named("job");
        job.spec.get_or_insert_default().pod_failure_policy = Some(PodFailurePolicy {
            rules: vec![
                rule("Ignore", None, Some(vec![disrupted])),
                rule("FailJob", codes("In", &[42]), None),
                rule("FailIndex", codes("NotIn", &[1, 2]), None),
            ],
        });
        let message =
            "Container main for pod default/a failed with exit code 42 matching FailJob rule at index 1";
        assert_eq!(judge(&job, &failed_with(42)), Action::FailJob(message.into()));
        assert_eq!(judge(&job, &failed_with(3)), Action::FailIndex);
        assert_eq!(judge(&job, &failed_with(1)), Action::Count);
        let mut evicted = failed_with(42);
        evicted.status.as_mut().unwrap().conditions = Some(vec![PodCondition {
            type_: "DisruptionTarget".into(),
            status: "True".into(),
            ..Default::default()
        }]);
        assert_eq!(judge(&job, &evicted), Action::Ignore);
        assert_eq!(judge(&named("plain"), &failed_with(42)), Action::Count);
    }
}
