//! The phase of a pod, from the states of its containers.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodSpec};

use crate::pod;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl Phase {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

#[derive(Default)]
struct Count {
    waiting: usize,
    running: usize,
    stopped: usize,
    succeeded: usize,
    unknown: usize,
}

/// `terminal` says that nothing of the pod will be started again (it is being
/// stopped), so that "stopped" is final whatever the restart policy says.
pub fn phase(pod: &Pod, init: &[ContainerStatus], regular: &[ContainerStatus], terminal: bool) -> Phase {
    let spec = pod::spec(pod);
    let Initialisation { unfinished, failed } = initialisation(spec, init);
    let count = count(spec, regular);
    let policy = pod::restart_policy(pod);
    if failed > 0 && policy == "Never" {
        return Phase::Failed;
    }
    if terminal && count.running == 0 {
        let all_succeeded = count.succeeded == spec.containers.len() && unfinished == 0;
        return if all_succeeded { Phase::Succeeded } else { Phase::Failed };
    }
    if unfinished > 0 && count.running == 0 && count.stopped == 0 {
        return Phase::Pending;
    }
    if count.waiting > 0 {
        return Phase::Pending;
    }
    if count.running > 0 && count.unknown == 0 {
        return Phase::Running;
    }
    if count.running == 0 && count.stopped > 0 && count.unknown == 0 {
        let will_restart = spec.containers.iter().any(|container| {
            let status = regular.iter().find(|status| status.name == container.name);
            let ended = status.and_then(|status| status.state.as_ref()?.terminated.as_ref());
            match container.restart_policy.as_deref().unwrap_or(policy) {
                "Always" => true,
                "OnFailure" => ended.is_none_or(|ended| ended.exit_code != 0),
                _ => ended.is_none(),
            }
        });
        return match (will_restart, count.stopped == count.succeeded) {
            (true, _) => Phase::Running,
            (false, true) => Phase::Succeeded,
            (false, false) => Phase::Failed,
        };
    }
    Phase::Pending
}

/// Init containers that have not finished, those that failed included, and sidecars that have not started.
#[derive(Default)]
struct Initialisation {
    unfinished: usize,
    failed: usize,
}

fn initialisation(spec: &PodSpec, init: &[ContainerStatus]) -> Initialisation {
    let mut found = Initialisation::default();
    for container in spec.init_containers.iter().flatten() {
        let status = init.iter().find(|status| status.name == container.name);
        let state = status.and_then(|status| status.state.as_ref());
        if pod::is_sidecar(container) {
            let started =
                status.is_some_and(|status| status.started == Some(true) || status.restart_count > 0);
            let ran = state.is_some_and(|state| state.terminated.is_some());
            if !started && !ran {
                found.unfinished += 1;
            }
            continue;
        }
        let ended = state
            .and_then(|state| state.terminated.as_ref())
            .or_else(|| status.and_then(|status| status.last_state.as_ref()?.terminated.as_ref()));
        match ended {
            Some(ended) if ended.exit_code == 0 => {}
            Some(_) => {
                found.failed += 1;
                found.unfinished += 1;
            }
            None => found.unfinished += 1,
        }
    }
    found
}

fn count(spec: &PodSpec, regular: &[ContainerStatus]) -> Count {
    let mut count = Count::default();
    for container in &spec.containers {
        let status = regular.iter().find(|status| status.name == container.name);
        let Some(state) = status.and_then(|status| status.state.as_ref()) else {
            count.unknown += 1;
            continue;
        };
        if state.running.is_some() {
            count.running += 1;
        } else if let Some(ended) = &state.terminated {
            count.stopped += 1;
            count.succeeded += usize::from(ended.exit_code == 0);
        } else if status.and_then(|status| status.last_state.as_ref()?.terminated.as_ref()).is_some() {
            // between two runs
            count.stopped += 1;
        } else {
            count.waiting += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// States as `name=running`, `name=0`, `name=waiting`, `name=crashed`
    /// (waiting after a run) or `name=none`.
    fn parse(text: &str) -> Vec<ContainerStatus> {
        let statuses = text.split_whitespace().filter_map(|each| {
            let (name, state) = each.split_once('=').expect("cases are name=state");
            let running = state == "running";
            let (state, last) = match state {
                "none" => return None,
                "running" => (json!({"running": {}}), json!({})),
                "waiting" => (json!({"waiting": {}}), json!({})),
                "crashed" => (json!({"waiting": {}}), json!({"terminated": {"exitCode": 1}})),
                code => (
                    json!({"terminated": {"exitCode": code.parse::<i32>().expect("an exit code")}}),
                    json!({}),
                ),
            };
            let status = json!({
                "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": state, "lastState": last, "started": running,
            });
            Some(serde_json::from_value(status).expect("the status is well formed"))
        });
        statuses.collect()
    }

    #[track_caller]
    fn check(policy: &str, init: &str, regular: &str, expected: Phase) {
        let named = |text: &str| -> Vec<serde_json::Value> {
            let names = text.split_whitespace().filter_map(|each| each.split_once('='));
            names
                .map(|(name, _)| match name.strip_prefix('+') {
                    Some(_) => json!({"name": name, "restartPolicy": "Always"}),
                    None => json!({"name": name}),
                })
                .collect()
        };
        let pod: Pod = serde_json::from_value(json!({
            "spec": {"restartPolicy": policy, "initContainers": named(init), "containers": named(regular)}
        }))
        .expect("the pod is well formed");
        assert_eq!(
            phase(&pod, &parse(init), &parse(regular), false),
            expected,
            "{policy} {init} / {regular}"
        );
    }

    #[test]
    fn phase_follows_the_containers_and_the_restart_policy() {
        use Phase::*;
        for policy in ["Always", "OnFailure", "Never"] {
            check(policy, "", "a=none b=none", Pending);
            check(policy, "", "a=waiting b=running", Pending);
            check(policy, "", "a=running b=running", Running);
            check(policy, "", "a=running b=0", Running);
            check(policy, "", "a=running b=none", Pending);
        }
        check("Always", "", "a=0 b=0", Running);
        check("Always", "", "a=crashed", Running);
        check("OnFailure", "", "a=0 b=0", Succeeded);
        check("OnFailure", "", "a=0 b=1", Running);
        check("Never", "", "a=0 b=0", Succeeded);
        check("Never", "", "a=0 b=1", Failed);
    }

    #[test]
    fn init_containers_hold_a_pod_pending_or_fail_it() {
        use Phase::*;
        check("Always", "i=running", "a=waiting", Pending);
        check("Always", "i=1", "a=waiting", Pending);
        check("Never", "i=1", "a=waiting", Failed);
        check("Always", "i=0", "a=running", Running);
        check("Always", "+s=none", "a=none", Pending);
        check("Always", "+s=running", "a=running", Running);
        check("Never", "+s=running", "a=0", Succeeded);
    }

    #[test]
    fn a_stopped_pod_is_final_whatever_its_policy() {
        let pod: Pod =
            serde_json::from_value(json!({"spec": {"containers": [{"name": "a"}]}})).expect("well formed");
        assert_eq!(phase(&pod, &[], &parse("a=0"), true), Phase::Succeeded);
        assert_eq!(phase(&pod, &[], &parse("a=137"), true), Phase::Failed);
        assert_eq!(phase(&pod, &[], &parse("a=running"), true), Phase::Running);
        assert_eq!(phase(&pod, &[], &parse("a=waiting"), true), Phase::Failed);
    }
}
