//! Decides the next steps that make a pod run as its spec says, from the spec and the state of the runtime. Pure: the worker
//! acts on it.
//!
//! A pod goes through its containers in this order:
//!
//! ```text
//! sandbox → init containers, one after the other ─→ regular containers
//!             └ sidecars start and keep running       ephemeral at any time
//! ```

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{Container as ContainerSpec, Pod};

use crate::pod::{self, ContainerKind};
use crate::runtime::view::{Container, PodRuntime, State};

/// The result of a running container's probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Success,
    Failure,
    /// Not yet known.
    Unknown,
}

/// The results of probes, by container ID.
pub trait Probed {
    fn liveness(&self, container_id: &str) -> Option<Verdict>;
    fn startup(&self, container_id: &str) -> Option<Verdict>;
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Stop the whole pod: it has finished, or its sandbox is unusable.
    pub kill_pod: bool,
    /// Create a sandbox, with this attempt number.
    pub sandbox: Option<u32>,
    pub kill: Vec<Kill>,
    /// Names of containers to start, in order.
    pub start: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    pub id: String,
    pub name: String,
    pub message: String,
    /// A failed probe can have its own grace period.
    pub because: KillReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillReason {
    LivenessProbe,
    StartupProbe,
    SpecChanged,
    Resize,
    Unknown,
}

/// `resized` are the ids of containers that must start anew to get other
/// resources.
pub fn plan(pod: &Pod, runtime: &PodRuntime, probed: &dyn Probed, resized: &HashSet<String>) -> Plan {
    if let Some(attempt) = next_sandbox(pod, runtime) {
        return plan_with_new_sandbox(pod, runtime, attempt);
    }
    let mut plan = Plan::default();
    for each in pod::containers(pod) {
        if each.kind == ContainerKind::Ephemeral && runtime.current_container(&each.container.name).is_none()
        {
            plan.start.push(each.container.name.clone());
        }
    }
    match initialise(pod, runtime, probed, resized, &mut plan) {
        Initialisation::Going => plan,
        Initialisation::Failed => Plan { kill_pod: true, ..Plan::default() },
        Initialisation::Done => {
            let kept = regular(pod, runtime, probed, resized, &mut plan);
            let ephemeral_alive = pod::spec(pod).ephemeral_containers.iter().flatten().any(|each| {
                runtime.current_container(&each.name).is_some_and(|one| one.state == State::Running)
            });
            let starts_regular =
                plan.start.iter().any(|name| pod::spec(pod).containers.iter().any(|each| &each.name == name));
            if !kept && !starts_regular && !ephemeral_alive {
                // nothing left to run: sidecars have nobody to serve
                return Plan { kill_pod: true, ..Plan::default() };
            }
            plan
        }
    }
}

/// Whether a container that does not run has to be started (again).
pub fn should_restart(pod: &Pod, container: &ContainerSpec, last: Option<&Container>) -> bool {
    let Some(last) = last else { return true };
    match last.state {
        State::Running => false,
        State::Created | State::Unknown => true,
        State::Exited => {
            for rule in container.restart_policy_rules.iter().flatten() {
                if let Some(codes) = &rule.exit_codes {
                    let named = codes.values.iter().flatten().any(|code| *code == last.exit_code);
                    if named == (codes.operator == "In") {
                        return rule.action.starts_with("Restart");
                    }
                }
            }
            match container.restart_policy.as_deref().unwrap_or_else(|| pod::restart_policy(pod)) {
                "Never" => false,
                "OnFailure" => last.exit_code != 0,
                _ => true,
            }
        }
    }
}

/// The attempt of the sandbox to make, or `None` when the present one is good.
fn next_sandbox(pod: &Pod, runtime: &PodRuntime) -> Option<u32> {
    let Some(latest) = runtime.sandbox() else { return Some(0) };
    let ready = runtime.sandboxes.iter().filter(|sandbox| sandbox.ready).count();
    let good = ready == 1
        && latest.ready
        && latest.host_network == pod::uses_host_network(pod)
        && (latest.host_network || !latest.ips.is_empty());
    if good { None } else { Some(latest.attempt + 1) }
}

fn plan_with_new_sandbox(pod: &Pod, runtime: &PodRuntime, attempt: u32) -> Plan {
    let mut plan = Plan { kill_pod: runtime.sandbox().is_some(), sandbox: Some(attempt), ..Plan::default() };
    let may_restart = pod::restart_policy(pod) != "Never"
        || pod::spec(pod).containers.iter().any(|container| container.restart_policy.is_some());
    if !may_restart && attempt != 0 && !runtime.containers.is_empty() {
        // the pod has run; a lost sandbox ends it
        return Plan { kill_pod: true, ..Plan::default() };
    }
    let start: Vec<String> = pod::spec(pod)
        .containers
        .iter()
        .filter(|container| should_restart(pod, container, finished(runtime, &container.name)))
        .map(|container| container.name.clone())
        .collect();
    if start.is_empty() {
        return Plan { kill_pod: true, ..Plan::default() };
    }
    plan.start = match pod::spec(pod).init_containers.iter().flatten().next() {
        Some(first) => vec![first.name.clone()],
        None => start,
    };
    plan
}

/// Containers of a lost sandbox that were running are lost with it.
fn finished<'a>(runtime: &'a PodRuntime, name: &str) -> Option<&'a Container> {
    runtime.container(name).filter(|container| container.state == State::Exited)
}

enum Initialisation {
    Going,
    Done,
    Failed,
}

fn initialise(
    pod: &Pod,
    runtime: &PodRuntime,
    probed: &dyn Probed,
    resized: &HashSet<String>,
    plan: &mut Plan,
) -> Initialisation {
    let Some(containers) = pod::spec(pod).init_containers.as_ref().filter(|all| !all.is_empty()) else {
        return Initialisation::Done;
    };
    // Records of finished init containers may have been collected. If a later
    // container has started, the earlier ones had finished.
    let initialised = pod::spec(pod).containers.iter().any(|container| {
        runtime
            .current_container(&container.name)
            .is_some_and(|record| matches!(record.state, State::Running | State::Exited))
    });
    let furthest =
        containers.iter().rposition(|container| runtime.current_container(&container.name).is_some());

    for (index, container) in containers.iter().enumerate() {
        let record = runtime.current_container(&container.name);
        let passed = initialised || furthest.is_some_and(|furthest| index < furthest);
        if pod::is_sidecar(container) {
            if !sidecar_is_ready(container, record, probed, resized, plan) && !passed {
                return Initialisation::Going;
            }
            continue;
        }
        if initialised {
            continue;
        }
        match record.map(|record| (record.state, record)) {
            None if passed => {}
            Some((State::Exited, record)) if record.exit_code == 0 => {}
            Some((State::Exited, record)) => {
                if !should_restart(pod, container, Some(record)) {
                    return Initialisation::Failed;
                }
                plan.start.push(container.name.clone());
                return Initialisation::Going;
            }
            Some((State::Running, _)) => return Initialisation::Going,
            None | Some((State::Created | State::Unknown, _)) => {
                kill_if_unknown(record, plan);
                plan.start.push(container.name.clone());
                return Initialisation::Going;
            }
        }
    }
    Initialisation::Done
}

/// Plans a sidecar; says whether the next container need not wait for it.
fn sidecar_is_ready(
    container: &k8s_openapi::api::core::v1::Container,
    record: Option<&Container>,
    probed: &dyn Probed,
    resized: &HashSet<String>,
    plan: &mut Plan,
) -> bool {
    let Some(running) = record.filter(|record| record.state == State::Running) else {
        kill_if_unknown(record, plan);
        plan.start.push(container.name.clone());
        return false;
    };
    if let Some(kill) = must_be_killed(container, running, probed, resized) {
        plan.kill.push(kill);
        plan.start.push(container.name.clone());
        return true;
    }
    container.startup_probe.is_none() || probed.startup(&running.id) == Some(Verdict::Success)
}

/// Plans the regular containers; says whether any keeps running.
fn regular(
    pod: &Pod,
    runtime: &PodRuntime,
    probed: &dyn Probed,
    resized: &HashSet<String>,
    plan: &mut Plan,
) -> bool {
    let mut kept = false;
    for container in &pod::spec(pod).containers {
        let record = runtime.container(&container.name);
        match record.filter(|record| record.state == State::Running) {
            None => {
                if should_restart(pod, container, record) {
                    kill_if_unknown(record, plan);
                    plan.start.push(container.name.clone());
                }
            }
            Some(record) => match must_be_killed(container, record, probed, resized) {
                None => kept = true,
                Some(kill) => {
                    let failed = !matches!(kill.because, KillReason::SpecChanged | KillReason::Resize);
                    if failed
                        && container.restart_policy.as_deref().unwrap_or(pod::restart_policy(pod)) == "Never"
                    {
                        // killed for its probe, and that was its only run
                        kept = true;
                    } else {
                        plan.start.push(container.name.clone());
                    }
                    plan.kill.push(kill);
                }
            },
        }
    }
    kept
}

/// A container the runtime lost track of may still run; it is stopped before
/// another takes its place.
fn kill_if_unknown(record: Option<&Container>, plan: &mut Plan) {
    if let Some(record) = record.filter(|record| record.state == State::Unknown) {
        plan.kill.push(Kill {
            id: record.id.clone(),
            name: record.name.clone(),
            message: format!("Container is in unknown state, try killing it before restart: {}", record.name),
            because: KillReason::Unknown,
        });
    }
}

fn must_be_killed(
    container: &ContainerSpec,
    record: &Container,
    probed: &dyn Probed,
    resized: &HashSet<String>,
) -> Option<Kill> {
    let name = &container.name;
    let (because, message) = if record.hash != pod::container_hash(container) {
        (KillReason::SpecChanged, format!("Container {name} definition changed, will be restarted"))
    } else if resized.contains(&record.id) {
        (KillReason::Resize, format!("Container {name} resize requires restart"))
    } else if probed.liveness(&record.id) == Some(Verdict::Failure) {
        (KillReason::LivenessProbe, format!("Container {name} failed liveness probe, will be restarted"))
    } else if probed.startup(&record.id) == Some(Verdict::Failure) {
        (KillReason::StartupProbe, format!("Container {name} failed startup probe, will be restarted"))
    } else {
        return None;
    };
    Some(Kill { id: record.id.clone(), name: name.clone(), message, because })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::view::Sandbox;
    use jiff::Timestamp;
    use serde_json::json;

    /// Verdicts by container id; "x!live" and "x!start" in a case's text.
    #[derive(Default)]
    struct Fixed {
        liveness: Vec<String>,
        startup: Vec<(String, Verdict)>,
    }

    impl Probed for Fixed {
        fn liveness(&self, id: &str) -> Option<Verdict> {
            self.liveness.iter().any(|each| each == id).then_some(Verdict::Failure)
        }
        fn startup(&self, id: &str) -> Option<Verdict> {
            self.startup.iter().find(|(each, _)| each == id).map(|(_, verdict)| *verdict)
        }
    }

    fn pod(policy: &str, init: &[&str], regular: &[&str]) -> Pod {
        let container = |name: &&str| match name.strip_prefix('+') {
            Some(sidecar) => json!({"name": sidecar, "image": "i", "restartPolicy": "Always"}),
            None => json!({"name": name, "image": "i"}),
        };
        serde_json::from_value(json!({
            "spec": {
                "restartPolicy": policy,
                "hostNetwork": true,
                "initContainers": init.iter().map(container).collect::<Vec<_>>(),
                "containers": regular.iter().map(container).collect::<Vec<_>>(),
            }
        }))
        .expect("the pod is well formed")
    }

    fn record(pod: &Pod, name: &str, state: State, exit_code: i32) -> Container {
        let container = pod::find_container(pod, name).expect("the pod has it").container;
        Container {
            id: format!("{name}-id"),
            name: name.into(),
            sandbox: "s".into(),
            restart_count: 0,
            hash: pod::container_hash(&container),
            state,
            created_at: Timestamp::UNIX_EPOCH,
            started_at: None,
            finished_at: None,
            exit_code,
            reason: String::new(),
            message: String::new(),
            image: String::new(),
            image_id: String::new(),
            log_path: Default::default(),
            termination_message_file: None,
            termination_message_policy: String::new(),
        }
    }

    /// Containers as `name=running`, `name=0` (exited), `name=created`.
    fn runtime(pod: &Pod, ready: bool, containers: &str) -> PodRuntime {
        let containers = containers.split_whitespace().map(|text| {
            let (name, state) = text.split_once('=').expect("cases are name=state");
            match state {
                "running" => record(pod, name, State::Running, 0),
                "created" => record(pod, name, State::Created, 0),
                "unknown" => record(pod, name, State::Unknown, 0),
                code => record(pod, name, State::Exited, code.parse().expect("an exit code")),
            }
        });
        PodRuntime {
            sandboxes: vec![Sandbox {
                id: "s".into(),
                attempt: 0,
                ready,
                host_network: true,
                created_at: Timestamp::UNIX_EPOCH,
                ips: vec![],
            }],
            containers: containers.collect(),
        }
    }

    fn shown(plan: &Plan) -> String {
        let mut text = String::new();
        if plan.kill_pod {
            text.push_str("kill-pod ");
        }
        if let Some(attempt) = plan.sandbox {
            text.push_str(&format!("sandbox{attempt} "));
        }
        for kill in &plan.kill {
            text.push_str(&format!("-{} ", kill.name));
        }
        for name in &plan.start {
            text.push_str(&format!("+{name} "));
        }
        text.trim_end().to_string()
    }

    #[track_caller]
    fn check(pod: &Pod, containers: &str, expected: &str) {
        assert_eq!(
            shown(&plan(pod, &runtime(pod, true, containers), &Fixed::default(), &HashSet::new())),
            expected,
            "{containers}"
        );
    }

    #[test]
    fn a_new_pod_gets_a_sandbox_then_init_or_regular_containers() {
        let empty = PodRuntime::default();
        assert_eq!(
            shown(&plan(&pod("Always", &[], &["a", "b"]), &empty, &Fixed::default(), &HashSet::new())),
            "sandbox0 +a +b"
        );
        assert_eq!(
            shown(&plan(&pod("Always", &["i"], &["a"]), &empty, &Fixed::default(), &HashSet::new())),
            "sandbox0 +i"
        );
    }

    #[test]
    fn restart_policy_decides_over_exited_containers() {
        check(&pod("Always", &[], &["a", "b"]), "a=0 b=running", "+a");
        check(&pod("OnFailure", &[], &["a", "b"]), "a=0 b=running", "");
        check(&pod("OnFailure", &[], &["a", "b"]), "a=1 b=running", "+a");
        check(&pod("Never", &[], &["a", "b"]), "a=1 b=running", "");
        check(&pod("Never", &[], &["a", "b"]), "a=1 b=0", "kill-pod");
        check(&pod("OnFailure", &[], &["a"]), "a=0", "kill-pod");
        check(&pod("Always", &[], &["a"]), "a=unknown", "-a +a");
    }

    #[test]
    fn init_containers_run_one_after_the_other() {
        let pod = pod("OnFailure", &["i", "j"], &["a"]);
        check(&pod, "", "+i");
        check(&pod, "i=running", "");
        check(&pod, "i=1", "+i");
        check(&pod, "i=0", "+j");
        check(&pod, "i=0 j=running", "");
        check(&pod, "i=0 j=0", "+a");
        check(&pod, "j=0", "+a");
        check(&pod, "a=running", "");
    }

    #[test]
    fn a_failed_init_container_ends_a_pod_that_never_restarts() {
        check(&pod("Never", &["i"], &["a"]), "i=3", "kill-pod");
    }

    #[test]
    fn sidecars_start_in_turn_and_are_kept_running() {
        let pod = pod("Never", &["+s", "i", "+t"], &["a"]);
        check(&pod, "", "+s");
        check(&pod, "s=running", "+i");
        check(&pod, "s=1 i=running", "+s");
        check(&pod, "s=running i=0", "+t");
        check(&pod, "s=running i=0 t=running", "+a");
        check(&pod, "s=0 t=running a=running", "+s");
        check(&pod, "s=running t=running a=0", "kill-pod");
    }

    #[test]
    fn a_sidecars_startup_probe_holds_the_rest_back() {
        let mut pod = pod("Always", &["+s"], &["a"]);
        let spec = pod.spec.as_mut().expect("has a spec");
        spec.init_containers.as_mut().expect("has one")[0].startup_probe = Some(Default::default());
        let runtime = runtime(&pod, true, "s=running");
        let with = |verdict| Fixed { startup: vec![("s-id".into(), verdict)], ..Fixed::default() };
        assert_eq!(shown(&plan(&pod, &runtime, &with(Verdict::Unknown), &HashSet::new())), "");
        assert_eq!(shown(&plan(&pod, &runtime, &with(Verdict::Success), &HashSet::new())), "+a");
        assert_eq!(shown(&plan(&pod, &runtime, &with(Verdict::Failure), &HashSet::new())), "-s +s +a");
    }

    #[test]
    fn failed_probes_and_changed_images_restart_a_container() {
        let mut pod = pod("Always", &[], &["a", "b"]);
        let running = runtime(&pod, true, "a=running b=running");
        let failed = Fixed { liveness: vec!["a-id".into()], ..Fixed::default() };
        assert_eq!(shown(&plan(&pod, &running, &failed, &HashSet::new())), "-a +a");
        let resized = HashSet::from(["b-id".to_string()]);
        assert_eq!(shown(&plan(&pod, &running, &Fixed::default(), &resized)), "-b +b");
        pod.spec.as_mut().expect("has a spec").containers[1].image = Some("other".into());
        assert_eq!(shown(&plan(&pod, &running, &Fixed::default(), &HashSet::new())), "-b +b");
        pod.spec.as_mut().expect("has a spec").containers[1].image = Some("i".into());
        pod.spec.as_mut().expect("has a spec").restart_policy = Some("Never".into());
        assert_eq!(shown(&plan(&pod, &running, &failed, &HashSet::new())), "-a");
    }

    #[test]
    fn a_lost_sandbox_is_made_again_unless_the_pod_never_restarts() {
        let lost = |policy: &str, containers: &str| {
            let pod = pod(policy, &[], &["a", "b"]);
            shown(&plan(&pod, &runtime(&pod, false, containers), &Fixed::default(), &HashSet::new()))
        };
        assert_eq!(lost("Always", "a=137 b=0"), "kill-pod sandbox1 +a +b");
        assert_eq!(lost("OnFailure", "a=137 b=0"), "kill-pod sandbox1 +a");
        assert_eq!(lost("OnFailure", "a=0 b=0"), "kill-pod");
        assert_eq!(lost("Never", "a=137 b=0"), "kill-pod");
    }

    #[test]
    fn a_containers_own_rules_come_before_the_pods_policy() {
        let mut pod = pod("Never", &[], &["a"]);
        pod.spec.as_mut().expect("has a spec").containers[0] = serde_json::from_value(json!({
            "name": "a", "image": "i", "restartPolicy": "Never",
            "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}],
        }))
        .expect("the container is well formed");
        check(&pod, "a=42", "+a");
        check(&pod, "a=1", "kill-pod");
    }
}
