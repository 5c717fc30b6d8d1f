//! What a container may say.

use std::collections::HashSet;

use ferry_api::{FieldErrors, Quantity, names};
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EnvVar, LifecycleHandler, Probe, ResourceRequirements, VolumeMount,
};

use super::super::checks::{self, Path};

/// What of the pod a container's fields refer to.
#[derive(Clone, Copy)]
pub struct Scope<'a> {
    pub volumes: &'a HashSet<&'a str>,
    pub host_network: bool,
    pub init: bool,
}

pub fn validate<'a>(
    container: &'a Container,
    scope: &Scope<'_>,
    path: Path<'_>,
    seen: &mut HashSet<&'a str>,
    errors: &mut FieldErrors,
) {
    checks::required_name(errors, path.child("name"), &container.name, names::dns1123_label);
    match container.image.as_deref().unwrap_or("") {
        "" => errors.required(path.child("image"), ""),
        image if image.trim() != image => {
            errors.invalid(path.child("image"), image, "must not have leading or trailing whitespace");
        }
        _ => {}
    }
    checks::one_of(
        errors,
        path.child("terminationMessagePolicy"),
        container.termination_message_policy.as_deref(),
        &["File", "FallbackToLogsOnError"],
    );
    ports(container.ports.as_deref().unwrap_or(&[]), scope.host_network, path.child("ports"), errors);
    let list = path.child("env");
    for (index, variable) in container.env.iter().flatten().enumerate() {
        env(variable, list.index(index), errors);
    }
    let list = path.child("envFrom");
    for (index, source) in container.env_from.iter().flatten().enumerate() {
        let path = list.index(index);
        match (source.config_map_ref.is_some(), source.secret_ref.is_some()) {
            (false, false) => {
                errors.invalid(path, "", "must specify one of: `configMapRef` or `secretRef`");
            }
            (true, true) => {
                errors.invalid(path, "", "may not have more than one field specified at a time");
            }
            _ => {}
        }
    }
    mounts(container.volume_mounts.as_deref().unwrap_or(&[]), scope, path.child("volumeMounts"), errors);
    checks::one_of(
        errors,
        path.child("imagePullPolicy"),
        container.image_pull_policy.as_deref(),
        &["Always", "IfNotPresent", "Never"],
    );
    if let Some(requirements) = &container.resources {
        resources(requirements, path.child("resources"), errors);
    }
    if !container.name.is_empty() && !seen.insert(&container.name) {
        errors.duplicate(path.child("name"), container.name.as_str());
    }
    probes(container, scope, path, errors);
    if let Some(context) = &container.security_context
        && context.privileged == Some(true)
        && context.allow_privilege_escalation == Some(false)
    {
        let context = path.child("securityContext");
        errors.invalid(
            context.child("allowPrivilegeEscalation"),
            false,
            "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
        );
    }
}

fn ports(ports: &[ContainerPort], host_network: bool, path: Path<'_>, errors: &mut FieldErrors) {
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = path.index(index);
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            let faults = names::port_name(name);
            for why in &faults {
                errors.invalid(path.child("name"), name, why);
            }
            if faults.is_empty() && !seen.insert(name) {
                errors.duplicate(path.child("name"), name);
            }
        }
        match port.container_port {
            0 => errors.required(path.child("containerPort"), ""),
            number => checks::port(errors, path.child("containerPort"), number),
        }
        if let Some(number) = port.host_port.filter(|number| *number != 0) {
            checks::port(errors, path.child("hostPort"), number);
            if host_network && number != port.container_port {
                errors.invalid(
                    path.child("hostPort"),
                    number,
                    "must match `containerPort` when `hostNetwork` is true",
                );
            }
        }
        checks::one_of(errors, path.child("protocol"), port.protocol.as_deref(), &["SCTP", "TCP", "UDP"]);
    }
}

/// No two containers of a pod can have the same port of the host.
pub fn validate_host_ports(containers: &[Container], path: Path<'_>, errors: &mut FieldErrors) {
    let mut taken: HashSet<(i32, &str, &str)> = HashSet::new();
    for (index, container) in containers.iter().enumerate() {
        for (port_index, port) in container.ports.iter().flatten().enumerate() {
            let Some(number) = port.host_port.filter(|number| *number != 0) else { continue };
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let address = port.host_ip.as_deref().unwrap_or("");
            if !taken.insert((number, protocol, address)) {
                let container = path.index(index);
                let ports = container.child("ports");
                let port = ports.index(port_index);
                errors.duplicate(port.child("hostPort"), format!("{protocol}/{address}/{number}"));
            }
        }
    }
}

fn env(variable: &EnvVar, path: Path<'_>, errors: &mut FieldErrors) {
    checks::required_name(errors, path.child("name"), &variable.name, names::env_var_name);
    let Some(source) = &variable.value_from else { return };
    let path = path.child("valueFrom");
    let given = [
        source.field_ref.is_some(),
        source.resource_field_ref.is_some(),
        source.config_map_key_ref.is_some(),
        source.secret_key_ref.is_some(),
        source.file_key_ref.is_some(),
    ];
    match given.iter().filter(|given| **given).count() {
        0 => errors.invalid(
            path,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        ),
        1 => {}
        _ => errors.invalid(path, "", "may not have more than one field specified at a time"),
    }
    if variable.value.as_deref().is_some_and(|value| !value.is_empty()) {
        errors.invalid(path, "", "may not be specified when `value` is not empty");
    }
    let keys = [
        ("configMapKeyRef", source.config_map_key_ref.as_ref().map(|key| (&key.name, &key.key))),
        ("secretKeyRef", source.secret_key_ref.as_ref().map(|key| (&key.name, &key.key))),
    ];
    for (field, reference) in keys {
        let Some((name, key)) = reference else { continue };
        let path = path.child(field);
        if name.is_empty() {
            errors.required(path.child("name"), "");
        }
        checks::required_name(errors, path.child("key"), key, names::config_map_key);
    }
    if let Some(field) = &source.field_ref
        && field.field_path.is_empty()
    {
        let reference = path.child("fieldRef");
        errors.required(reference.child("fieldPath"), "");
    }
}

fn mounts(mounts: &[VolumeMount], scope: &Scope<'_>, path: Path<'_>, errors: &mut FieldErrors) {
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, mount) in mounts.iter().enumerate() {
        let path = path.index(index);
        if mount.name.is_empty() {
            errors.required(path.child("name"), "");
        } else if !scope.volumes.contains(mount.name.as_str()) {
            errors.not_found(path.child("name"), mount.name.as_str());
        }
        if mount.mount_path.is_empty() {
            errors.required(path.child("mountPath"), "");
        } else if !seen.insert(&mount.mount_path) {
            errors.invalid(path.child("mountPath"), mount.mount_path.as_str(), "must be unique");
        }
        let filled = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
        if filled(&mount.sub_path) && filled(&mount.sub_path_expr) {
            errors.invalid(
                path.child("subPathExpr"),
                mount.sub_path_expr.clone(),
                "subPathExpr and subPath are mutually exclusive",
            );
        }
        for (field, value) in [("subPath", &mount.sub_path), ("subPathExpr", &mount.sub_path_expr)] {
            let Some(value) = value.as_deref() else { continue };
            if value.starts_with('/') {
                errors.invalid(path.child(field), value, "must be a relative path");
            }
            if value.split('/').any(|part| part == "..") {
                errors.invalid(path.child(field), value, "must not contain '..'");
            }
        }
        checks::may_be(
            errors,
            path.child("mountPropagation"),
            mount.mount_propagation.as_deref(),
            &["Bidirectional", "HostToContainer", "None"],
        );
    }
}

/// Requests and limits; a request stays below its limit.
pub fn resources(requirements: &ResourceRequirements, path: Path<'_>, errors: &mut FieldErrors) {
    let empty = Default::default();
    let limits = requirements.limits.as_ref().unwrap_or(&empty);
    let requests = requirements.requests.as_ref().unwrap_or(&empty);
    for (field, list) in [("limits", limits), ("requests", requests)] {
        let path = path.child(field);
        for (name, quantity) in list {
            checks::named(errors, path.key(name), name, names::qualified_name);
            if Quantity::parse(&quantity.0).is_ok_and(|quantity| quantity.is_negative()) {
                errors.invalid(path.key(name), quantity.0.as_str(), checks::NOT_NEGATIVE);
            }
        }
    }
    for (name, request) in requests {
        let Some(limit) = limits.get(name) else { continue };
        let (Ok(wanted), Ok(most)) = (Quantity::parse(&request.0), Quantity::parse(&limit.0)) else {
            continue;
        };
        // Thousandths tell cpu apart, whole bytes are beyond what thousandths can count.
        let more = match (wanted.milli(), most.milli()) {
            (i64::MAX, _) | (_, i64::MAX) => wanted.value() > most.value(),
            (wanted, most) => wanted > most,
        };
        if more {
            errors.invalid(
                path.child("requests"),
                request.0.as_str(),
                &format!("must be less than or equal to {name} limit of {}", limit.0),
            );
        }
    }
}

fn probes(container: &Container, scope: &Scope<'_>, path: Path<'_>, errors: &mut FieldErrors) {
    let sidecar = container.restart_policy.as_deref() == Some("Always");
    let probes = [
        ("livenessProbe", &container.liveness_probe, true),
        ("readinessProbe", &container.readiness_probe, false),
        ("startupProbe", &container.startup_probe, true),
    ];
    if scope.init && !sidecar {
        let forbidden = "may not be set for init containers without restartPolicy=Always";
        if container.lifecycle.is_some() {
            errors.forbidden(path.child("lifecycle"), forbidden);
        }
        for (field, _, _) in probes.iter().filter(|(_, probe, _)| probe.is_some()) {
            errors.forbidden(path.child(field), forbidden);
        }
        return;
    }
    if let Some(lifecycle) = &container.lifecycle {
        let path = path.child("lifecycle");
        for (field, handler) in [("postStart", &lifecycle.post_start), ("preStop", &lifecycle.pre_stop)] {
            if let Some(handler) = handler {
                hook(handler, path.child(field), errors);
            }
        }
    }
    for (field, probe, once) in probes {
        let Some(probe) = probe else { continue };
        let path = path.child(field);
        validate_probe(probe, path, errors);
        if let Some(times) = probe.success_threshold.filter(|times| once && *times != 1) {
            errors.invalid(path.child("successThreshold"), times, "must be 1");
        }
    }
}

const ONE_HANDLER: &str = "may not specify more than 1 handler type";

fn validate_probe(probe: &Probe, path: Path<'_>, errors: &mut FieldErrors) {
    let handlers = [
        ("exec", probe.exec.is_some()),
        ("httpGet", probe.http_get.is_some()),
        ("tcpSocket", probe.tcp_socket.is_some()),
        ("grpc", probe.grpc.is_some()),
    ];
    one_handler(&handlers, path, errors);
    if let Some(exec) = &probe.exec {
        let path = path.child("exec");
        command(exec.command.as_deref(), path.child("command"), errors);
    }
    if let Some(get) = &probe.http_get {
        let path = path.child("httpGet");
        http_get(get.path.as_deref(), &get.port, get.scheme.as_deref(), path, errors);
    }
    if let Some(socket) = &probe.tcp_socket {
        let path = path.child("tcpSocket");
        checks::port_or_name(errors, path.child("port"), &socket.port);
    }
    if let Some(grpc) = &probe.grpc {
        let path = path.child("grpc");
        checks::port(errors, path.child("port"), grpc.port);
    }
    for (field, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        checks::not_negative(errors, path.child(field), value);
    }
    if let Some(seconds) = probe.termination_grace_period_seconds.filter(|seconds| *seconds <= 0) {
        errors.invalid(path.child("terminationGracePeriodSeconds"), seconds, "must be greater than 0");
    }
}

fn hook(handler: &LifecycleHandler, path: Path<'_>, errors: &mut FieldErrors) {
    let handlers = [
        ("exec", handler.exec.is_some()),
        ("httpGet", handler.http_get.is_some()),
        ("tcpSocket", handler.tcp_socket.is_some()),
        ("sleep", handler.sleep.is_some()),
    ];
    one_handler(&handlers, path, errors);
    if let Some(exec) = &handler.exec {
        let path = path.child("exec");
        command(exec.command.as_deref(), path.child("command"), errors);
    }
    if let Some(get) = &handler.http_get {
        let path = path.child("httpGet");
        http_get(get.path.as_deref(), &get.port, get.scheme.as_deref(), path, errors);
    }
}

fn one_handler(handlers: &[(&str, bool)], path: Path<'_>, errors: &mut FieldErrors) {
    let mut given = handlers.iter().filter(|(_, given)| *given);
    if given.next().is_none() {
        errors.required(path, "must specify a handler type");
    }
    for (field, _) in given {
        errors.forbidden(path.child(field), ONE_HANDLER);
    }
}

fn command(command: Option<&[String]>, path: Path<'_>, errors: &mut FieldErrors) {
    if command.is_none_or(<[String]>::is_empty) {
        errors.required(path, "");
    }
}

fn http_get(
    url_path: Option<&str>,
    port: &k8s_openapi::apimachinery::pkg::util::intstr::IntOrString,
    scheme: Option<&str>,
    path: Path<'_>,
    errors: &mut FieldErrors,
) {
    if url_path.unwrap_or("").is_empty() {
        errors.required(path.child("path"), "");
    }
    checks::port_or_name(errors, path.child("port"), port);
    checks::may_be(errors, path.child("scheme"), scheme, &["HTTP", "HTTPS"]);
}
