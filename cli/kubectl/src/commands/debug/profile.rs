//! What a debugging container may do: the built-in profiles, as changes to the pod that holds it.

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::fields::{self, Fields};

/// How a container comes to its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Added to a running pod.
    Ephemeral,
    /// In a copy of the pod.
    Copy,
    /// In a pod of its own on the node.
    Node,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    Legacy,
    General,
    Baseline,
    Restricted,
    Netadmin,
    Sysadmin,
}

/// The parts of the pod that a copy keeps.
#[derive(Debug, Clone, Copy, Default)]
pub struct KeepOptions {
    pub labels: bool,
    pub annotations: bool,
    pub liveness: bool,
    pub readiness: bool,
    pub startup: bool,
    pub init_containers: bool,
}

impl Profile {
    pub fn named(name: &str) -> Result<Profile> {
        Ok(match name {
            "legacy" => Profile::Legacy,
            "general" => Profile::General,
            "baseline" => Profile::Baseline,
            "restricted" => Profile::Restricted,
            "netadmin" => Profile::Netadmin,
            "sysadmin" => Profile::Sysadmin,
            other => return Err(Error::message(format!("unknown profile: {other}"))),
        })
    }

    /// Changes the pod so that its container `name` is what the profile says.
    pub fn apply(self, pod: &mut Value, name: &str, style: Style, keep: KeepOptions) {
        match self {
            Profile::Legacy => {}
            Profile::General if style == Style::Node => clear(pod, name),
            Profile::General => allow(pod, name, &["SYS_PTRACE"]),
            Profile::Baseline => clear(pod, name),
            Profile::Restricted => {
                clear(pod, name);
                set(pod, name, "runAsNonRoot", true.into());
                set(pod, name, "capabilities", json!({"drop": ["ALL"]}));
                set(pod, name, "allowPrivilegeEscalation", false.into());
                set(pod, name, "seccompProfile", json!({"type": "RuntimeDefault"}));
            }
            Profile::Netadmin => allow(pod, name, &["NET_ADMIN", "NET_RAW"]),
            Profile::Sysadmin => set(pod, name, "privileged", true.into()),
        }
        match style {
            Style::Node => {
                if matches!(self, Profile::Legacy | Profile::General | Profile::Sysadmin) {
                    mount_root(pod, name);
                }
                if !matches!(self, Profile::Baseline | Profile::Restricted) {
                    for field in ["hostNetwork", "hostPID", "hostIPC"] {
                        fields::set(pod, &format!("spec.{field}"), true.into());
                    }
                }
            }
            Style::Copy if self == Profile::Legacy => fields::remove(pod, "metadata.labels"),
            Style::Copy => {
                strip(pod, keep);
                if !pod.has("spec.shareProcessNamespace") {
                    fields::set(pod, "spec.shareProcessNamespace", true.into());
                }
            }
            Style::Ephemeral => {}
        }
    }
}

/// Takes away what would make others treat the copy as the original.
fn strip(pod: &mut Value, keep: KeepOptions) {
    for (kept, field) in [
        (keep.labels, "metadata.labels"),
        (keep.annotations, "metadata.annotations"),
        (keep.init_containers, "spec.initContainers"),
    ] {
        if !kept {
            fields::remove(pod, field);
        }
    }
    let containers = pod.pointer_mut("/spec/containers").and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten() {
        for (kept, field) in [
            (keep.liveness, "livenessProbe"),
            (keep.readiness, "readinessProbe"),
            (keep.startup, "startupProbe"),
        ] {
            if !kept {
                fields::remove(container, field);
            }
        }
    }
}

const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// The container of that name, whichever list holds it.
pub fn container_mut<'p>(pod: &'p mut Value, name: &str) -> Option<&'p mut Value> {
    let list = LISTS.into_iter().find(|list| {
        pod.list(&format!("spec.{list}")).iter().any(|container| container.text("name") == name)
    })?;
    let containers = pod.pointer_mut(&format!("/spec/{list}"))?.as_array_mut()?;
    containers.iter_mut().find(|container| container.text("name") == name)
}

fn clear(pod: &mut Value, name: &str) {
    if let Some(container) = container_mut(pod, name) {
        fields::remove(container, "securityContext");
    }
}

fn set(pod: &mut Value, name: &str, field: &str, value: Value) {
    if let Some(container) = container_mut(pod, name) {
        fields::set(container, &format!("securityContext.{field}"), value);
    }
}

fn allow(pod: &mut Value, name: &str, capabilities: &[&str]) {
    let Some(container) = container_mut(pod, name) else { return };
    let mut added = container.list("securityContext.capabilities.add").to_vec();
    added.extend(capabilities.iter().map(|capability| Value::from(*capability)));
    fields::set(container, "securityContext.capabilities.add", added.into());
}

fn mount_root(pod: &mut Value, name: &str) {
    let mut volumes = pod.list("spec.volumes").to_vec();
    volumes.push(json!({"name": "host-root", "hostPath": {"path": "/"}}));
    fields::set(pod, "spec.volumes", volumes.into());
    if let Some(container) = container_mut(pod, name) {
        let mut mounts = container.list("volumeMounts").to_vec();
        mounts.push(json!({"mountPath": "/host", "name": "host-root"}));
        fields::set(container, "volumeMounts", mounts.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Value {
        json!({
            "metadata": {"name": "p", "labels": {"a": "b"}, "annotations": {"c": "d"}},
            "spec": {
                "initContainers": [{"name": "i"}],
                "containers": [{"name": "app", "livenessProbe": {}, "readinessProbe": {}},
                    {"name": "debugger", "securityContext": {"runAsUser": 5}}],
            },
        })
    }

    #[test]
    fn profiles_grant_what_their_names_say() {
        let check = |profile: Profile, style: Style, expected: Value| {
            let mut pod = pod();
            profile.apply(&mut pod, "debugger", style, KeepOptions::default());
            let container = container_mut(&mut pod, "debugger").expect("it stays");
            assert_eq!(container["securityContext"], expected, "{profile:?} {style:?}");
        };
        let traced = json!({"runAsUser": 5, "capabilities": {"add": ["SYS_PTRACE"]}});
        check(Profile::Legacy, Style::Ephemeral, json!({"runAsUser": 5}));
        check(Profile::General, Style::Ephemeral, traced.clone());
        check(Profile::General, Style::Copy, traced);
        check(Profile::General, Style::Node, Value::Null);
        check(Profile::Baseline, Style::Copy, Value::Null);
        let restricted = json!({"runAsNonRoot": true, "capabilities": {"drop": ["ALL"]},
            "allowPrivilegeEscalation": false, "seccompProfile": {"type": "RuntimeDefault"}});
        check(Profile::Restricted, Style::Node, restricted);
        let net = json!({"runAsUser": 5, "capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}});
        check(Profile::Netadmin, Style::Copy, net);
        check(Profile::Sysadmin, Style::Node, json!({"runAsUser": 5, "privileged": true}));
    }

    #[test]
    fn a_copy_keeps_what_is_asked_for() {
        let mut copy = pod();
        Profile::General.apply(&mut copy, "debugger", Style::Copy, KeepOptions::default());
        assert!(!copy.has("metadata.labels") && !copy.has("metadata.annotations"));
        assert!(!copy.has("spec.initContainers") && copy["spec"]["shareProcessNamespace"] == true);
        assert_eq!(copy["spec"]["containers"][0], json!({"name": "app"}));
        let keep =
            KeepOptions { labels: true, readiness: true, init_containers: true, ..KeepOptions::default() };
        let mut copy = pod();
        Profile::Baseline.apply(&mut copy, "debugger", Style::Copy, keep);
        assert!(copy.has("metadata.labels") && copy.has("spec.initContainers"));
        assert_eq!(copy["spec"]["containers"][0], json!({"name": "app", "readinessProbe": {}}));
    }

    #[test]
    fn node_pods_see_the_host_unless_the_profile_forbids_it() {
        let check = |profile: Profile, namespaces: bool, mounted: bool| {
            let mut pod = pod();
            profile.apply(&mut pod, "debugger", Style::Node, KeepOptions::default());
            assert_eq!(pod["spec"]["hostPID"] == true, namespaces, "{profile:?}");
            assert_eq!(pod.has("spec.volumes"), mounted, "{profile:?}");
        };
        check(Profile::Legacy, true, true);
        check(Profile::General, true, true);
        check(Profile::Baseline, false, false);
        check(Profile::Restricted, false, false);
        check(Profile::Netadmin, true, false);
        check(Profile::Sysadmin, true, true);
    }
}
