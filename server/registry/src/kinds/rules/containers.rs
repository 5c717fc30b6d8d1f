//! The containers of a pod.

use std::collections::HashSet;

use ferry_api::{FieldErrors, names};
use serde_json::Value;

use super::field::{self, Context, Field};
use super::{format, resources, volumes};

/// What of the pod a container's fields refer to.
pub struct Pod<'a> {
    pub volumes: Vec<&'a Value>,
    pub claims: HashSet<&'a str>,
    pub grace: Option<i64>,
    pub restart_policy: &'a str,
    pub os: Option<&'a str>,
    pub host_users: bool,
}

impl Pod<'_> {
    fn volume(&self, name: &str) -> Option<&Value> {
        self.volumes.iter().copied().find(|volume| field::text(volume, "name") == name)
    }
}

/// Regular, init and ephemeral containers, in upstream's order of errors.
pub fn all(spec: Field<'_>, pod: &Pod<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let mut names: HashSet<&str> = HashSet::new();
    regular(spec.child("containers"), pod, context, &mut names, errors);
    init(spec.child("initContainers"), pod, context, &mut names, errors);
    ephemeral(spec.child("ephemeralContainers"), pod, context, &mut names, errors);
}

fn regular<'a>(
    list: Field<'a>,
    pod: &Pod<'_>,
    context: &Context<'_>,
    names: &mut HashSet<&'a str>,
    errors: &mut FieldErrors,
) {
    if list.items().is_empty() {
        errors.required(list.path, "");
    }
    for (index, value) in list.items().iter().enumerate() {
        let container = list.index(index);
        common(container, pod, context, errors);
        let name = field::text(value, "name");
        if !names.insert(name) {
            errors.duplicate(container.path.child("name"), name);
        }
        lifecycle_and_probes(container, pod, errors);
        restart_rules(container, errors);
    }
    host_ports(list, errors);
}

fn init<'a>(
    list: Field<'a>,
    pod: &Pod<'_>,
    context: &Context<'_>,
    names: &mut HashSet<&'a str>,
    errors: &mut FieldErrors,
) {
    for (index, value) in list.items().iter().enumerate() {
        let container = list.index(index);
        common(container, pod, context, errors);
        restart_rules(container, errors);
        let name = field::text(value, "name");
        if !name.is_empty() && !names.insert(name) {
            errors.duplicate(container.path.child("name"), name);
        }
        own_host_ports(container, list, errors);
        match container.child("restartPolicy").text() {
            "Always" => lifecycle_and_probes(container, pod, errors),
            _ => not_sidecar(container, errors),
        }
    }
}

/// Only an init container that goes on running, a sidecar, has probes.
fn not_sidecar(container: Field<'_>, errors: &mut FieldErrors) {
    for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
        if container.has(field) {
            errors.forbidden(
                container.path.child(field),
                "may not be set for init containers without restartPolicy=Always",
            );
        }
    }
    container.child("resizePolicy").each(|policy| {
        let policy = policy.child("restartPolicy");
        if policy.text() == "RestartContainer" {
            policy.invalid("must not be set to 'RestartContainer' for non-sidecar initContainers", errors);
        }
    });
}

fn ephemeral<'a>(
    list: Field<'a>,
    pod: &Pod<'_>,
    context: &Context<'_>,
    names: &mut HashSet<&'a str>,
    errors: &mut FieldErrors,
) {
    let targets: HashSet<&str> = names.clone();
    for (index, value) in list.items().iter().enumerate() {
        let container = list.index(index);
        common(container, pod, context, errors);
        trimmed_image(container, errors);
        let name = field::text(value, "name");
        if !names.insert(name) {
            errors.duplicate(container.path.child("name"), name);
        }
        let target = container.child("targetContainerName");
        if !target.is_empty() && !targets.contains(target.text()) {
            errors.not_found(target.path, target.text());
        }
        not_ephemeral(container, errors);
    }
}

const NOT_EPHEMERAL: &str = "cannot be set for an Ephemeral Container";

fn not_ephemeral(container: Field<'_>, errors: &mut FieldErrors) {
    for field in [
        "ports",
        "resources",
        "resizePolicy",
        "restartPolicy",
        "restartPolicyRules",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "lifecycle",
    ] {
        if container.has(field) && !container.child(field).is_empty() {
            errors.forbidden(container.path.child(field), NOT_EPHEMERAL);
        }
    }
    container.child("volumeMounts").each(|mount| {
        for field in ["subPath", "subPathExpr"] {
            if !mount.child(field).is_empty() {
                errors.forbidden(mount.path.child(field), NOT_EPHEMERAL);
            }
        }
    });
}

pub fn trimmed_image(container: Field<'_>, errors: &mut FieldErrors) {
    let image = container.child("image");
    if image.text().trim() != image.text() {
        errors.invalid(image.path, image.text(), "must not have leading or trailing whitespace");
    }
}

fn common(container: Field<'_>, pod: &Pod<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    container.child("name").required_name(names::dns1123_label, errors);
    container.child("image").required("", errors);
    container.child("terminationMessagePolicy").required_one_of(&["File", "FallbackToLogsOnError"], errors);
    ports(container.child("ports"), errors);
    container.child("env").each(|variable| {
        variable.child("name").required_name(names::env_var_name, errors);
        value_from(variable, errors);
    });
    env_from(container.child("envFrom"), errors);
    mounts(container, pod, errors);
    devices(container, pod, errors);
    container.child("imagePullPolicy").required_one_of(&["Always", "IfNotPresent", "Never"], errors);
    resources::of_container(container.child("resources"), &pod.claims, errors);
    resize_policies(container.child("resizePolicy"), pod, errors);
    security_context(container.child("securityContext"), pod, context, errors);
}

fn ports(ports: Field<'_>, errors: &mut FieldErrors) {
    let mut seen: HashSet<String> = HashSet::new();
    ports.each(|port| {
        let name = port.child("name");
        if !name.is_empty() {
            let wrong = names::port_name(name.text());
            for why in &wrong {
                errors.invalid(name.path, name.text(), why);
            }
            if wrong.is_empty() && !seen.insert(name.text().to_owned()) {
                errors.duplicate(name.path, name.text());
            }
        }
        let number = port.child("containerPort");
        match number.number() {
            0 => errors.required(number.path, ""),
            _ => number.in_range(1, 65_535, errors),
        }
        let host = port.child("hostPort");
        if host.number() != 0 {
            host.in_range(1, 65_535, errors);
        }
        port.child("protocol").required_one_of(&["SCTP", "TCP", "UDP"], errors);
    });
}

/// No two containers of a pod can have the same port of the host.
fn host_ports(containers: Field<'_>, errors: &mut FieldErrors) {
    let mut taken: HashSet<String> = HashSet::new();
    containers.each(|container| ports_taken(container.child("ports"), &mut taken, errors));
}

/// Those of one init container; upstream tells them as of the first.
fn own_host_ports(container: Field<'_>, list: Field<'_>, errors: &mut FieldErrors) {
    let first = list.path.index(0);
    let ports = Field { value: container.get("ports"), path: first.child("ports") };
    ports_taken(ports, &mut HashSet::new(), errors);
}

fn ports_taken(ports: Field<'_>, taken: &mut HashSet<String>, errors: &mut FieldErrors) {
    ports.each(|port| {
        let host = port.child("hostPort");
        if host.number() == 0 {
            return;
        }
        let name =
            format!("{}/{}/{}", port.child("protocol").text(), port.child("hostIP").text(), host.number());
        if taken.contains(&name) {
            errors.duplicate(host.path, name.as_str());
        }
        taken.insert(name);
    });
}

const ENV_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

fn value_from(variable: Field<'_>, errors: &mut FieldErrors) {
    let source = variable.child("valueFrom");
    if !source.is_given() {
        return;
    }
    let mut given = 0;
    let part = source.child("fieldRef");
    if part.is_given() {
        given += 1;
        volumes::field_ref(part, ENV_FIELDS, errors);
    }
    let part = source.child("resourceFieldRef");
    if part.is_given() {
        given += 1;
        volumes::resource_ref(part, false, errors);
    }
    for field in ["configMapKeyRef", "secretKeyRef"] {
        let part = source.child(field);
        if part.is_given() {
            given += 1;
            part.child("name").named(names::dns1123_subdomain, errors);
            part.child("key").required_name(names::config_map_key, errors);
        }
    }
    let part = source.child("fileKeyRef");
    if part.is_given() {
        given += 1;
        part.child("key").required_name(names::env_var_name, errors);
        part.child("volumeName").required_name(names::dns1123_label, errors);
        part.child("path").required_name(format::no_backsteps, errors);
    }
    if given == 0 {
        errors.invalid(
            source.path,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        );
    } else if !variable.child("value").is_empty() {
        errors.invalid(source.path, "", "may not be specified when `value` is not empty");
    } else if given > 1 {
        errors.invalid(source.path, "", "may not have more than one field specified at a time");
    }
}

fn env_from(list: Field<'_>, errors: &mut FieldErrors) {
    list.each(|source| {
        source.child("prefix").optional_name(names::env_var_name, errors);
        let mut given = 0;
        for field in ["configMapRef", "secretRef"] {
            let reference = source.child(field);
            if reference.is_given() {
                given += 1;
                reference.child("name").required_name(names::dns1123_subdomain_prefix, errors);
            }
        }
        match given {
            0 => errors.invalid(list.path, "", "must specify one of: `configMapRef` or `secretRef`"),
            1 => {}
            _ => errors.invalid(list.path, "", "may not have more than one field specified at a time"),
        }
    });
}

fn mounts(container: Field<'_>, pod: &Pod<'_>, errors: &mut FieldErrors) {
    let (list, devices) = (container.child("volumeMounts"), container.child("volumeDevices"));
    let device =
        |part: &str, wanted: &str| devices.items().iter().any(|device| field::text(device, part) == wanted);
    let mut seen: HashSet<String> = HashSet::new();
    list.each(|mount| {
        let (name, path) = (mount.child("name"), mount.child("mountPath"));
        name.required("", errors);
        if pod.volume(name.text()).is_none() {
            errors.not_found(name.path, name.text());
        }
        path.required("", errors);
        if !seen.insert(path.text().to_owned()) {
            path.invalid("must be unique", errors);
        }
        if device("name", name.text()) {
            name.invalid("must not already exist in volumeDevices", errors);
        }
        if device("devicePath", path.text()) {
            path.invalid("must not already exist as a path in volumeDevices", errors);
        }
        // What is below the directory is told as of the whole list.
        let part = |field| Field { value: mount.get(field), path: list.path.child(field) };
        let (inner, expression) = (part("subPath"), part("subPathExpr"));
        if !inner.is_empty() {
            inner.named(format::descending_path, errors);
        }
        if !expression.is_empty() {
            if !inner.is_empty() {
                mount.child("subPathExpr").invalid("subPathExpr and subPath are mutually exclusive", errors);
            }
            expression.named(format::descending_path, errors);
        }
        let propagation = part("mountPropagation");
        propagation.optional_one_of(&["Bidirectional", "HostToContainer", "None"], errors);
        let privileged = container.child("securityContext").child("privileged").flag();
        if propagation.text() == "Bidirectional" && !privileged {
            errors.forbidden(
                propagation.path,
                "Bidirectional mount propagation is available only to privileged containers",
            );
        }
        let recursive = part("recursiveReadOnly");
        match recursive.text() {
            "Disabled" => {}
            "Enabled" | "IfPossible" => {
                if !mount.child("readOnly").flag() {
                    errors.forbidden(recursive.path, "may only be specified when readOnly is true");
                }
                if propagation.is_given() && propagation.text() != "None" {
                    errors.forbidden(
                        recursive.path,
                        "may only be specified when mountPropagation is None or not specified",
                    );
                }
            }
            _ => recursive.optional_one_of(&["Disabled", "Enabled", "IfPossible"], errors),
        }
    });
}

fn devices(container: Field<'_>, pod: &Pod<'_>, errors: &mut FieldErrors) {
    let mounts = container.child("volumeMounts");
    let mounted =
        |part: &str, wanted: &str| mounts.items().iter().any(|mount| field::text(mount, part) == wanted);
    let (mut names_seen, mut paths): (HashSet<String>, HashSet<String>) = Default::default();
    container.child("volumeDevices").each(|device| {
        let (name, path) = (device.child("name"), device.child("devicePath"));
        let volume = pod.volume(name.text());
        name.required("", errors);
        if names_seen.contains(name.text()) {
            name.invalid("must be unique", errors);
        }
        match volume {
            Some(volume)
                if volume.get("persistentVolumeClaim").is_none() && volume.get("ephemeral").is_none() =>
            {
                name.invalid(
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
                    errors,
                );
            }
            Some(_) => {}
            None => errors.not_found(name.path, name.text()),
        }
        path.required("", errors);
        if paths.contains(path.text()) {
            path.invalid("must be unique", errors);
        }
        if !path.is_empty() && !format::no_backsteps(path.text()).is_empty() {
            path.invalid("can not contain backsteps ('..')", errors);
        } else {
            paths.insert(path.text().to_owned());
        }
        if mounted("name", name.text()) {
            name.invalid("must not already exist in volumeMounts", errors);
        }
        if mounted("mountPath", path.text()) {
            path.invalid("must not already exist as a path in volumeMounts", errors);
        }
        if !name.is_empty() {
            names_seen.insert(name.text().to_owned());
        }
    });
}

fn resize_policies(list: Field<'_>, pod: &Pod<'_>, errors: &mut FieldErrors) {
    let mut seen: HashSet<String> = HashSet::new();
    list.each(|policy| {
        let resource = policy.child("resourceName").text();
        if !seen.insert(resource.to_owned()) {
            errors.duplicate(policy.path, resource);
        }
        let part = |field| Field { value: policy.get(field), path: list.path };
        part("resourceName").required_one_of(&["cpu", "memory"], errors);
        let restart = part("restartPolicy");
        restart.required_one_of(&["NotRequired", "RestartContainer"], errors);
        if pod.restart_policy == "Never" && restart.text() != "NotRequired" {
            restart.invalid("must be 'NotRequired' when pod `restartPolicy` is 'Never'", errors);
        }
    });
}

fn restart_rules(container: Field<'_>, errors: &mut FieldErrors) {
    let (policy, rules) = (container.child("restartPolicy"), container.child("restartPolicyRules"));
    if !policy.is_given() {
        if rules.items().is_empty() {
            return;
        }
        errors.required(policy.path, "must specify restartPolicy when restart rules are used");
    } else {
        policy.one_of(&["Always", "Never", "OnFailure"], errors);
    }
    if rules.items().len() > 20 {
        errors.too_many(rules.path, rules.items().len(), 20);
    }
    rules.each(|rule| {
        rule.child("action").one_of(&["Restart", "RestartAllContainers"], errors);
        let codes = rule.child("exitCodes");
        if !codes.is_given() {
            return errors.required(codes.path, "must be specified");
        }
        codes.child("operator").one_of(&["In", "NotIn"], errors);
        let values = codes.child("values");
        if values.items().len() > 255 {
            errors.too_many(values.path, values.items().len(), 255);
        }
    });
}

fn lifecycle_and_probes(container: Field<'_>, pod: &Pod<'_>, errors: &mut FieldErrors) {
    let lifecycle = container.child("lifecycle");
    if lifecycle.is_given() {
        for hook in ["postStart", "preStop"] {
            let hook = lifecycle.child(hook);
            if hook.is_given() {
                handler(hook, &["exec", "httpGet", "tcpSocket", "sleep"], pod, errors);
            }
        }
        let signal = lifecycle.child("stopSignal");
        if signal.is_given() {
            match pod.os {
                None => {
                    errors.forbidden(signal.path, "may not be set for containers with empty `spec.os.name`");
                }
                Some("windows") => signal.one_of(&["SIGKILL", "SIGTERM"], errors),
                Some("linux") => signal.one_of(&SIGNALS, errors),
                Some(_) => {}
            }
        }
    }
    for field in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = container.child(field);
        if !probe.is_given() {
            continue;
        }
        handler(probe, &["exec", "httpGet", "tcpSocket", "grpc"], pod, errors);
        for number in
            ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
        {
            probe.child(number).not_negative(errors);
        }
        let grace = probe.child("terminationGracePeriodSeconds");
        if grace.is_given() && grace.number() <= 0 {
            grace.invalid("must be greater than 0", errors);
        }
        let success = probe.child("successThreshold");
        if field == "readinessProbe" {
            if grace.is_given() {
                grace.invalid("must not be set for readinessProbes", errors);
            }
        } else if success.number() != 1 {
            errors.invalid(success.path, success.number(), "must be 1");
        }
    }
}

fn handler(holder: Field<'_>, kinds: &[&str], pod: &Pod<'_>, errors: &mut FieldErrors) {
    let mut found = false;
    for kind in kinds {
        let action = holder.child(kind);
        if !action.is_given() {
            continue;
        }
        if std::mem::replace(&mut found, true) {
            errors.forbidden(action.path, "may not specify more than 1 handler type");
            continue;
        }
        match *kind {
            "exec" => {
                action.child("command").required("", errors);
            }
            "httpGet" => {
                action.child("path").required("", errors);
                action.child("port").port(errors);
                action.child("scheme").one_of(&["HTTP", "HTTPS"], errors);
                let headers = action.child("httpHeaders");
                for header in headers.items() {
                    let name = field::text(header, "name");
                    crate::kinds::checks::named(errors, headers.path, name, names::http_header_name);
                }
            }
            "sleep" => {
                let seconds = action.child("seconds").number();
                if let Some(grace) = pod.grace.filter(|grace| seconds < 0 || seconds > *grace) {
                    let why =
                        format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                    errors.invalid(action.path, seconds, &why);
                }
            }
            _ => action.child("port").port(errors),
        }
    }
    if !found {
        errors.required(holder.path, "must specify a handler type");
    }
}

fn security_context(
    context_field: Field<'_>,
    pod: &Pod<'_>,
    context: &Context<'_>,
    errors: &mut FieldErrors,
) {
    if !context_field.is_given() {
        return;
    }
    for field in ["runAsUser", "runAsGroup"] {
        let id = context_field.child(field);
        if id.is_given() {
            id.in_range(0, i64::from(i32::MAX), errors);
        }
    }
    let proc_mount = context_field.child("procMount");
    proc_mount.optional_one_of(&["Default", "Unmasked"], errors);
    if pod.host_users && proc_mount.text() == "Unmasked" {
        proc_mount.invalid("`hostUsers` must be false to use `Unmasked`", errors);
    }
    seccomp(context_field.child("seccompProfile"), context, errors);
    let escalation = context_field.child("allowPrivilegeEscalation");
    if escalation.is_given() && !escalation.flag() {
        let refuse = |why: &str, errors: &mut FieldErrors| {
            let printed = context.printed_as("core.v1.SecurityContext", context_field.value);
            errors.push(
                context_field.path,
                ferry_api::field_error::Reason::Invalid,
                format!("{printed}: {why}"),
            );
        };
        if context_field.child("privileged").flag() {
            refuse("cannot set `allowPrivilegeEscalation` to false and `privileged` to true", errors);
        }
        let added = context_field.child("capabilities");
        for _ in added.child("add").items().iter().filter(|name| *name == "CAP_SYS_ADMIN") {
            refuse(
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
                errors,
            );
        }
    }
    windows_options(context_field.child("windowsOptions"), errors);
    app_armor(context_field.child("appArmorProfile"), errors);
}

pub fn seccomp(profile: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    if !profile.is_given() {
        return;
    }
    let (kind, local) = (profile.child("type"), profile.child("localhostProfile"));
    if kind.required("type is required when seccompProfile is set", errors) {
        kind.one_of(&["Localhost", "RuntimeDefault", "Unconfined"], errors);
    }
    match (kind.text(), local.is_given()) {
        ("Localhost", false) => errors.required(local.path, "must be set when seccomp type is Localhost"),
        ("Localhost", true) => local.named(format::descending_path, errors),
        (_, true) => {
            let printed = context.printed_as("core.v1.SeccompProfile", profile.value);
            errors.push(
                local.path,
                ferry_api::field_error::Reason::Invalid,
                format!("{printed}: can only be set when seccomp type is Localhost"),
            );
        }
        (_, false) => {}
    }
}

pub fn app_armor(profile: Field<'_>, errors: &mut FieldErrors) {
    if !profile.is_given() {
        return;
    }
    let (kind, local) = (profile.child("type"), profile.child("localhostProfile"));
    const MUST: &str = "must be set when AppArmor type is Localhost";
    match kind.text() {
        "Localhost" if !local.is_given() => errors.required(local.path, MUST),
        "Localhost" => {
            if local.text().trim() != local.text() {
                local.invalid("must not be padded with whitespace", errors);
            } else if local.text().is_empty() {
                errors.required(local.path, MUST);
            }
            if local.text().len() > 4095 {
                errors.too_long(local.path, 4095);
            }
        }
        "RuntimeDefault" | "Unconfined" if local.is_given() => {
            local.invalid("can only be set when AppArmor type is Localhost", errors);
        }
        "RuntimeDefault" | "Unconfined" => {}
        "" => errors.required(kind.path, "type is required when appArmorProfile is set"),
        _ => kind.one_of(&["Localhost", "RuntimeDefault", "Unconfined"], errors),
    }
}

pub fn windows_options(options: Field<'_>, errors: &mut FieldErrors) {
    let name = options.child("gmsaCredentialSpecName");
    if name.is_given() {
        name.named(names::dns1123_subdomain, errors);
    }
    let spec = options.child("gmsaCredentialSpec");
    if spec.is_given() && spec.is_empty() {
        spec.invalid("gmsaCredentialSpec cannot be an empty string", errors);
    } else if spec.text().len() > 64 << 10 {
        spec.invalid("gmsaCredentialSpec size must be under 64 KiB", errors);
    }
    let user = options.child("runAsUserName");
    if !user.is_given() {
        return;
    }
    let parts: Vec<&str> = user.text().split('\\').collect();
    if user.is_empty() {
        user.invalid("runAsUserName cannot be an empty string", errors);
    } else if user.text().chars().any(|c| c.is_ascii_control()) {
        user.invalid("runAsUserName cannot contain control characters", errors);
    } else if parts.len() > 2 {
        user.invalid("runAsUserName cannot contain more than one backslash", errors);
    } else {
        windows_user(user, &parts, errors);
    }
}

fn windows_user(user: Field<'_>, parts: &[&str], errors: &mut FieldErrors) {
    let (domain, name) = match parts {
        [domain, name] => (Some(*domain), *name),
        _ => (None, parts[0]),
    };
    if let Some(domain) = domain {
        if domain.len() >= 256 {
            user.invalid("runAsUserName's Domain length must be under 256 characters", errors);
        }
        let in_name = |c: char| !"\\/:*?\"<>|".contains(c);
        let net_bios = (1..=15).contains(&domain.chars().count())
            && domain.chars().all(in_name)
            && !domain.starts_with('.');
        let dns = domain
            .split('.')
            .all(|label| label.len() <= 63 && names::is_dns1123_label(&label.to_ascii_lowercase()));
        if !net_bios && !dns {
            user.invalid("runAsUserName's Domain doesn't match the NetBios nor the DNS format", errors);
        }
    }
    if name.is_empty() {
        user.invalid("runAsUserName's User cannot be empty", errors);
    } else if name.len() > 104 {
        user.invalid("runAsUserName's User length must not be longer than 104 characters", errors);
    }
    if !name.is_empty() && name.chars().all(|c| c == '.' || c == ' ') {
        user.invalid("runAsUserName's User cannot contain only periods or spaces", errors);
    }
    if name.chars().any(|c| "\"/\\:;|=,+*?<>@[]".contains(c)) {
        user.invalid(
            r#"runAsUserName's User cannot contain the following characters: "/\:;|=,+*?<>@[]"#,
            errors,
        );
    }
}

/// Sorted as upstream tells them.
const SIGNALS: [&str; 65] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGRTMAX",
    "SIGRTMAX-1",
    "SIGRTMAX-10",
    "SIGRTMAX-11",
    "SIGRTMAX-12",
    "SIGRTMAX-13",
    "SIGRTMAX-14",
    "SIGRTMAX-2",
    "SIGRTMAX-3",
    "SIGRTMAX-4",
    "SIGRTMAX-5",
    "SIGRTMAX-6",
    "SIGRTMAX-7",
    "SIGRTMAX-8",
    "SIGRTMAX-9",
    "SIGRTMIN",
    "SIGRTMIN+1",
    "SIGRTMIN+10",
    "SIGRTMIN+11",
    "SIGRTMIN+12",
    "SIGRTMIN+13",
    "SIGRTMIN+14",
    "SIGRTMIN+15",
    "SIGRTMIN+2",
    "SIGRTMIN+3",
    "SIGRTMIN+4",
    "SIGRTMIN+5",
    "SIGRTMIN+6",
    "SIGRTMIN+7",
    "SIGRTMIN+8",
    "SIGRTMIN+9",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];
