//! What a pod's spec may say, in a pod or in a template.

use std::collections::HashSet;

use ferry_api::{FieldErrors, names};
use k8s_openapi::api::core::v1::{EphemeralContainer, PodSpec};

use super::super::checks::{self, Path};
use super::{containers, placement, volumes};

const LONGEST_DEADLINE: i64 = i32::MAX as i64;

pub fn spec(spec: &PodSpec, path: Path<'_>, errors: &mut FieldErrors) {
    let volume_names =
        volumes::validate(spec.volumes.as_deref().unwrap_or(&[]), path.child("volumes"), errors);
    let mut seen: HashSet<&str> = HashSet::new();
    let scope = containers::Scope {
        volumes: &volume_names,
        host_network: spec.host_network == Some(true),
        init: false,
    };
    let list = path.child("containers");
    if spec.containers.is_empty() {
        errors.required(list, "");
    }
    for (index, container) in spec.containers.iter().enumerate() {
        containers::validate(container, &scope, list.index(index), &mut seen, errors);
    }
    let init = containers::Scope { init: true, ..scope };
    let list = path.child("initContainers");
    for (index, container) in spec.init_containers.iter().flatten().enumerate() {
        containers::validate(container, &init, list.index(index), &mut seen, errors);
    }
    containers::validate_host_ports(&spec.containers, path.child("containers"), errors);
    ephemeral(spec.ephemeral_containers.as_deref().unwrap_or(&[]), spec, path, &mut seen, errors);
    policies(spec, path, errors);
    sysctls(spec, path.child("securityContext").child("sysctls"), errors);
    names_of(spec, path, errors);
    placement::validate(spec, path, errors);
}

fn policies(spec: &PodSpec, path: Path<'_>, errors: &mut FieldErrors) {
    checks::one_of(
        errors,
        path.child("restartPolicy"),
        spec.restart_policy.as_deref(),
        &["Always", "OnFailure", "Never"],
    );
    checks::one_of(
        errors,
        path.child("dnsPolicy"),
        spec.dns_policy.as_deref(),
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
    );
    if let Some(deadline) = spec.active_deadline_seconds {
        for why in names::in_range(deadline, 1, LONGEST_DEADLINE) {
            errors.invalid(path.child("activeDeadlineSeconds"), deadline, &why);
        }
    }
    if spec.dns_policy.as_deref() == Some("None") {
        let servers = spec.dns_config.as_ref().and_then(|config| config.nameservers.as_ref());
        if servers.is_none_or(Vec::is_empty) {
            let config = path.child("dnsConfig");
            errors.required(
                config.child("nameservers"),
                "must provide at least one DNS nameserver when `dnsPolicy` is None",
            );
        }
    }
    checks::may_be(
        errors,
        path.child("preemptionPolicy"),
        spec.preemption_policy.as_deref(),
        &["PreemptLowerPriority", "Never"],
    );
    if spec.host_pid == Some(true) && spec.share_process_namespace == Some(true) {
        errors.invalid(
            path.child("shareProcessNamespace"),
            true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
}

const SYSCTL_MAX: usize = 253;

fn sysctls(spec: &PodSpec, list: Path<'_>, errors: &mut FieldErrors) {
    let sysctls = spec.security_context.iter().flat_map(|context| context.sysctls.iter().flatten());
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, sysctl) in sysctls.enumerate() {
        let entry = list.index(index);
        let name = entry.child("name");
        if sysctl.name.is_empty() {
            errors.required(name, "");
        } else if !is_sysctl_name(&sysctl.name) {
            let why = "must have at most 253 characters and match regex \
                       ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
            errors.invalid(name, sysctl.name.as_str(), why);
        } else if !seen.insert(&sysctl.name) {
            errors.duplicate(name, sysctl.name.as_str());
        }
    }
}

/// Segments between dots or slashes, each beginning and ending with a letter or digit.
fn is_sysctl_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= SYSCTL_MAX
        && name.split(['.', '/']).all(|segment| {
            segment.starts_with(inner)
                && segment.ends_with(inner)
                && segment.chars().all(|c| inner(c) || c == '-' || c == '_')
        })
}

fn names_of(spec: &PodSpec, path: Path<'_>, errors: &mut FieldErrors) {
    type Rule = fn(&str) -> Vec<String>;
    let rules: [(&str, &Option<String>, Rule); 6] = [
        ("serviceAccountName", &spec.service_account_name, names::dns1123_subdomain),
        ("nodeName", &spec.node_name, names::dns1123_subdomain),
        ("hostname", &spec.hostname, names::dns1123_label),
        ("subdomain", &spec.subdomain, names::dns1123_label),
        ("priorityClassName", &spec.priority_class_name, names::dns1123_subdomain),
        ("runtimeClassName", &spec.runtime_class_name, names::dns1123_subdomain),
    ];
    for (field, value, rule) in rules {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
            checks::named(errors, path.child(field), value, rule);
        }
    }
}

/// Containers that are put into a running pod.
pub fn ephemeral<'a>(
    list: &'a [EphemeralContainer],
    spec: &PodSpec,
    path: Path<'_>,
    seen: &mut HashSet<&'a str>,
    errors: &mut FieldErrors,
) {
    let list_path = path.child("ephemeralContainers");
    let others = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let others: HashSet<&str> = others.map(|container| container.name.as_str()).collect();
    for (index, container) in list.iter().enumerate() {
        let path = list_path.index(index);
        checks::required_name(errors, path.child("name"), &container.name, names::dns1123_label);
        if !container.name.is_empty() && !seen.insert(&container.name) {
            errors.duplicate(path.child("name"), container.name.as_str());
        }
        if container.image.as_deref().unwrap_or("").is_empty() {
            errors.required(path.child("image"), "");
        }
        if let Some(target) = container.target_container_name.as_deref().filter(|name| !name.is_empty())
            && !others.contains(target)
        {
            errors.not_found(path.child("targetContainerName"), target);
        }
        for (field, set) in [
            ("lifecycle", container.lifecycle.is_some()),
            ("livenessProbe", container.liveness_probe.is_some()),
            ("ports", container.ports.as_ref().is_some_and(|ports| !ports.is_empty())),
            ("readinessProbe", container.readiness_probe.is_some()),
            ("startupProbe", container.startup_probe.is_some()),
        ] {
            if set {
                errors.forbidden(path.child(field), "cannot be set for an Ephemeral Container");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn faults(value: Value) -> Vec<String> {
        let pod: PodSpec = serde_json::from_value(value).expect("a PodSpec");
        let mut errors = FieldErrors::default();
        spec(&pod, Path::root("spec"), &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_pod_is_told_everything_that_is_wrong_with_it() {
        let found = faults(json!({
            "restartPolicy": "Sometimes", "dnsPolicy": "ClusterFirst",
            "containers": [
                {"name": "a", "imagePullPolicy": "Always", "terminationMessagePolicy": "File",
                 "ports": [{"containerPort": 70000, "protocol": "TCP"}],
                 "volumeMounts": [{"name": "none", "mountPath": "/x"}],
                 "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}},
                {"name": "a", "image": "i", "imagePullPolicy": "Always", "terminationMessagePolicy": "File"},
            ],
            "tolerations": [{"operator": "Exists", "value": "v"}],
            "volumes": [{"name": "V"}],
        }));
        assert_eq!(
            found,
            [
                "spec.volumes[0]: Required value: must specify a volume type",
                "spec.volumes[0].name: Invalid value: \"V\": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
                "spec.containers[0].image: Required value",
                "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
                "spec.containers[0].volumeMounts[0].name: Not found: \"none\"",
                "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
                "spec.containers[1].name: Duplicate value: \"a\"",
                "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
                "spec.tolerations[0].operator: Invalid value: \"v\": value must be empty when `operator` is 'Exists'",
            ]
        );
    }
}
