//! The spec of a pod, in a pod or in a template.

use std::collections::HashSet;

use ferry_api::field_error::Reason;
use ferry_api::{FieldErrors, names};
use serde_json::Value;

use super::field::{self, Context, Field};
use super::{containers, format, resources, volumes};

/// Volumes, claims and containers, which refer to each other. The field is the list of volumes, the rest stands beside
/// it.
pub fn spec(spec: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let volumes = spec.child("volumes");
    let good = volumes::of_pod(volumes, context, errors);
    let claims = spec.child("resourceClaims");
    let claim_names = claims
        .items()
        .iter()
        .map(|claim| field::text(claim, "name"))
        .filter(|name| !name.is_empty())
        .collect();
    resource_claims(claims, context, errors);
    let os = spec.child("os");
    let pod = containers::Pod {
        volumes: good,
        claims: claim_names,
        grace: spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64),
        restart_policy: spec.child("restartPolicy").text(),
        os: os.is_given().then(|| os.child("name").text()),
        host_users: spec.get("hostUsers").and_then(Value::as_bool) != Some(false),
    };
    containers::all(spec, &pod, context, errors);
    pod_resources(spec, &pod.claims, errors);
    host_network_ports(spec, context, errors);
}

fn resource_claims(claims: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let mut seen: HashSet<String> = HashSet::new();
    claims.each(|claim| {
        let name = claim.child("name");
        if name.is_empty() {
            errors.required(name.path, "");
        } else if !seen.insert(name.text().to_owned()) {
            errors.duplicate(name.path, name.text());
        } else {
            name.named(names::dns1123_label, errors);
        }
        let (own, template) = (claim.child("resourceClaimName"), claim.child("resourceClaimTemplateName"));
        let why = match (own.is_given(), template.is_given()) {
            (true, true) => {
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            }
            (false, false) => "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            _ => "",
        };
        if !why.is_empty() {
            let printed = context.printed_as("core.v1.PodResourceClaim", claim.value);
            errors.push(claim.path, Reason::Invalid, format!("{printed}: {why}"));
        }
        for reference in [own, template] {
            if reference.is_given() {
                reference.named(names::dns1123_subdomain, errors);
            }
        }
    });
}

/// Requests and limits of the whole pod.
fn pod_resources(spec: Field<'_>, claims: &HashSet<&str>, errors: &mut FieldErrors) {
    let own = spec.child("resources");
    if !own.is_given() {
        return;
    }
    if spec.child("os").child("name").text() == "windows" {
        return errors.forbidden(own.path, "may not be set for a windows pod");
    }
    if own.has("claims") {
        errors.forbidden(own.path.child("claims"), "claims may not be set for Resources at pod-level");
    }
    resources::of_pod(own, claims, errors);
    let requests = own.child("requests");
    let mut sums: std::collections::BTreeMap<&str, i64> = Default::default();
    let list = spec.child("containers");
    for container in list.items() {
        let amounts = container.pointer("/resources/requests").and_then(Value::as_object);
        for (name, amount) in amounts.into_iter().flatten() {
            let amount = amount.as_str().and_then(|text| ferry_api::Quantity::parse(text).ok());
            *sums.entry(name).or_default() += amount.map_or(0, |amount| amount.milli());
        }
    }
    for (name, sum) in sums {
        let request = Field { value: requests.get(name), path: requests.path.key(name) };
        if let Some(own) = request.quantity().filter(|own| own.milli() < sum) {
            let sum = ferry_api::Quantity::from_milli(sum, own.format());
            let why = format!("must be greater than or equal to aggregate container requests of {sum}");
            errors.invalid(request.path, request.text(), &why);
        }
    }
    let limits = own.child("limits");
    let told = own.path.child("containers");
    for (index, container) in list.items().iter().enumerate() {
        let amounts = container.pointer("/resources/limits").and_then(Value::as_object);
        for (name, amount) in amounts.into_iter().flatten() {
            let text = amount.as_str().unwrap_or("");
            let all = limits.get(name).and_then(Value::as_str).unwrap_or("");
            let quantities = ferry_api::Quantity::parse(text).ok().zip(ferry_api::Quantity::parse(all).ok());
            if quantities.is_some_and(|(own, all)| own > all) {
                let container = told.index(index);
                let resource = container.key(name);
                let why = format!("must be less than or equal to pod limits of {all}");
                errors.invalid(resource.child("limits"), text, &why);
            }
        }
    }
}

fn host_network_ports(spec: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    if !spec.child("hostNetwork").flag() {
        return;
    }
    let is_pod = context.object.kind() == "Pod";
    spec.child("containers").each(|container| {
        container.child("ports").each(|port| {
            let (host, own) = (port.child("hostPort"), port.child("containerPort"));
            if (is_pod || host.number() != 0) && host.number() != own.number() {
                errors.invalid(
                    host.path,
                    host.number(),
                    "must match `containerPort` when `hostNetwork` is true",
                );
            }
        });
    });
}

/// The security context of the whole pod; some of its fields stand in the spec.
pub fn security_context(_: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let Some(path) = context.holder_path else { return };
    let path = path.child("securityContext");
    let given = context.sibling("securityContext");
    let security = Field { value: given, path };
    let id = |field: Field<'_>, errors: &mut FieldErrors| {
        if field.is_given() {
            field.in_range(0, i64::from(i32::MAX), errors);
        }
    };
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        id(security.child(field), errors);
    }
    security.child("supplementalGroups").each(|group| id(group, errors));
    let flag = |field: &str| context.sibling(field).and_then(Value::as_bool).unwrap_or(false);
    if flag("shareProcessNamespace") && flag("hostPID") {
        errors.invalid(
            path.child("shareProcessNamespace"),
            true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
    sysctls(security.child("sysctls"), flag("hostNetwork"), flag("hostIPC"), errors);
    security.child("fsGroupChangePolicy").optional_one_of(&["Always", "OnRootMismatch"], errors);
    containers::seccomp(security.child("seccompProfile"), context, errors);
    containers::windows_options(security.child("windowsOptions"), errors);
    containers::app_armor(security.child("appArmorProfile"), errors);
    security.child("supplementalGroupsPolicy").optional_one_of(&["Merge", "Strict"], errors);
    security.child("seLinuxChangePolicy").optional_one_of(&["Recursive"], errors);
}

const SYSCTL_MAX: usize = 253;

fn sysctls(list: Field<'_>, host_network: bool, host_ipc: bool, errors: &mut FieldErrors) {
    let mut seen: HashSet<String> = HashSet::new();
    list.each(|sysctl| {
        let name = sysctl.child("name");
        if name.is_empty() {
            errors.required(name.path, "");
        } else if !is_sysctl_name(name.text()) {
            let why = "must have at most 253 characters and match regex \
                       ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
            errors.invalid(name.path, name.text(), why);
        } else if seen.contains(name.text()) {
            errors.duplicate(name.path, name.text());
        }
        let dotted = name.text().replace('/', ".");
        let ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|prefix| dotted.starts_with(prefix))
            || dotted == "kernel.sem";
        if host_network && dotted.starts_with("net.") {
            name.invalid("may not be specified when 'hostNetwork' is true", errors);
        } else if host_ipc && ipc {
            name.invalid("may not be specified when 'hostIPC' is true", errors);
        }
        seen.insert(name.text().to_owned());
    });
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

pub fn dns_config(config: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let servers = config.child("nameservers");
    if context.sibling("dnsPolicy").and_then(Value::as_str) == Some("None") {
        if !config.is_given() {
            return errors.required(config.path, "must provide `dnsConfig` when `dnsPolicy` is None");
        }
        let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        if !servers.required(why, errors) {
            return;
        }
    }
    if servers.items().len() > 3 {
        servers.invalid("must not have more than 3 nameservers", errors);
    }
    servers.each(|server| server.named(format::ip, errors));
    let searches = config.child("searches");
    if searches.items().len() > 32 {
        searches.invalid("must not have more than 32 search paths", errors);
    }
    let lengths = searches.items().iter().filter_map(Value::as_str).map(|search| search.len() + 1);
    if lengths.sum::<usize>() > 2049 {
        searches
            .invalid("must not have more than 2048 characters (including spaces) in the search list", errors);
    }
    searches.each(|search| {
        if search.text() != "." {
            let text = search.text().strip_suffix('.').unwrap_or(search.text());
            crate::kinds::checks::named(errors, search.path, text, names::dns1123_subdomain_with_underscore);
        }
    });
    config.child("options").each(|option| {
        if option.child("name").is_empty() {
            errors.required(option.path, "must not be empty");
        }
    });
}

pub fn scheduling_gates(gates: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let mut seen: HashSet<String> = HashSet::new();
    gates.each(|gate| {
        let name = gate.child("name").text();
        crate::kinds::checks::named(errors, gate.path, name, names::qualified_name);
        if !seen.insert(name.to_owned()) {
            errors.duplicate(gate.path, name);
        }
    });
}

/// Containers that run as processes of a Windows host: all of them or none.
pub fn host_processes(spec: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let of = |holder: &Value| {
        holder.pointer("/securityContext/windowsOptions/hostProcess").and_then(Value::as_bool)
    };
    let pod = spec.value.and_then(of);
    let (mut all, mut hosts) = (0, 0);
    each_container(spec, |container| {
        let own = container.value.and_then(of);
        all += 1;
        if let (Some(pod), Some(own)) = (pod, own)
            && pod != own
        {
            let security = container.path.child("securityContext");
            let options = security.child("windowsOptions");
            let why = format!("pod hostProcess value must be identical if both are specified, was {pod}");
            errors.invalid(options.child("hostProcess"), own, &why);
        }
        hosts += usize::from(own.or(pod) == Some(true));
    });
    if hosts == 0 {
        return;
    }
    if hosts != all {
        errors.invalid(
            spec.path,
            "",
            "If pod contains any hostProcess containers then all containers must be HostProcess containers",
        );
    }
    if !spec.child("hostNetwork").flag() {
        errors.invalid(
            spec.path.child("hostNetwork"),
            false,
            "hostNetwork must be true if pod contains any hostProcess containers",
        );
    }
}

/// Init containers come first.
fn each_container(spec: Field<'_>, mut judge: impl FnMut(Field<'_>)) {
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        spec.child(list).each(&mut judge);
    }
}

/// A pod with users of its own shares nothing with the host.
pub fn own_users(spec: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let users = spec.child("hostUsers");
    if !users.is_given() || users.flag() {
        return;
    }
    const WHY: &str = "when `hostUsers` is false";
    for (field, shown) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if spec.child(field).flag() {
            errors.forbidden(spec.path.child(shown), WHY);
        }
    }
    each_container(spec, |container| {
        if !container.child("volumeDevices").is_empty() {
            errors.forbidden(container.path.child("volumeDevices"), WHY);
        }
    });
}

pub fn hostname_override(name: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    if !name.is_given() {
        return;
    }
    let flag = |field: &str| context.sibling(field).and_then(Value::as_bool).unwrap_or(false);
    if flag("setHostnameAsFQDN") {
        errors.forbidden(name.path, "may not be specified when setHostnameAsFQDN is true");
    }
    if flag("hostNetwork") {
        errors.forbidden(name.path, "may not be specified when hostNetwork is true");
    }
    if name.text().len() > 64 {
        errors.too_long(name.path, 64);
    }
    name.named(names::dns1123_subdomain, errors);
}

/// What the named operating system does not have.
pub fn os(os: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    if !os.is_given() {
        return;
    }
    let name = os.child("name");
    if !name.required("", errors) {
        return;
    }
    let Some(path) = context.holder_path else { return };
    let value = Value::Object(context.holder.clone());
    let spec = Field::of(&value, path);
    match name.text() {
        "linux" => {
            const WHY: &str = "windows options cannot be set for a linux pod";
            let refuse = |holder: Field<'_>, errors: &mut FieldErrors| {
                let security = holder.child("securityContext");
                if security.has("windowsOptions") {
                    errors.forbidden(security.path.child("windowsOptions"), WHY);
                }
            };
            refuse(spec, errors);
            each_container(spec, |container| refuse(container, errors));
        }
        "windows" => windows(spec, errors),
        _ => errors.not_supported(os.path, name.text(), &["linux", "windows"]),
    }
}

fn windows(spec: Field<'_>, errors: &mut FieldErrors) {
    const WHY: &str = "cannot be set for a windows pod";
    let security = spec.child("securityContext");
    let own: &[(&str, bool)] = &[
        ("appArmorProfile", true),
        ("seLinuxOptions", true),
        ("hostUsers", false),
        ("hostPID", false),
        ("hostIPC", false),
        ("seccompProfile", true),
        ("fsGroup", true),
        ("fsGroupChangePolicy", true),
        ("sysctls", true),
        ("shareProcessNamespace", false),
        ("runAsUser", true),
        ("runAsGroup", true),
        ("supplementalGroups", true),
        ("supplementalGroupsPolicy", true),
        ("seLinuxChangePolicy", true),
    ];
    for (field, in_security) in own {
        let holder = if *in_security { security } else { spec };
        let given = match *field {
            "hostPID" | "hostIPC" => holder.child(field).flag(),
            "sysctls" => !holder.child(field).is_empty(),
            _ => holder.has(field),
        };
        if given {
            errors.forbidden(holder.path.child(field), WHY);
        }
    }
    each_container(spec, |container| {
        let security = container.child("securityContext");
        for field in [
            "appArmorProfile",
            "seLinuxOptions",
            "seccompProfile",
            "capabilities",
            "readOnlyRootFilesystem",
            "privileged",
            "allowPrivilegeEscalation",
            "procMount",
            "runAsUser",
            "runAsGroup",
        ] {
            if security.has(field) {
                errors.forbidden(security.path.child(field), WHY);
            }
        }
    });
}

pub fn scheduling_group(group: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    if !group.is_given() {
        return;
    }
    let name = group.child("podGroupName");
    if name.is_given() {
        name.named(names::dns1123_subdomain, errors);
    } else {
        name.invalid("must specify one of: `podGroupName`", errors);
    }
}

/// Variables that are read from a file name a volume of the pod.
pub fn file_keys(spec: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let volumes = spec.child("volumes");
    each_container(spec, |container| {
        container.child("env").each(|variable| {
            let source = variable.child("valueFrom");
            let reference = source.child("fileKeyRef");
            if !reference.is_given() {
                return;
            }
            let name = reference.child("volumeName");
            match volumes.items().iter().rfind(|volume| field::text(volume, "name") == name.text()) {
                None => errors.not_found(name.path, name.text()),
                Some(volume) if volume.get("emptyDir").is_none() => {
                    errors.invalid(name.path, name.text(), "referenced volume must be of type emptyDir");
                }
                Some(_) => {}
            }
        });
    });
}

/// Annotations that say something about the pod.
fn annotations(annotations: Field<'_>, spec: Field<'_>, errors: &mut FieldErrors) {
    if let Some(value) = annotations.get(MIRROR)
        && spec.child("nodeName").is_empty()
    {
        errors.invalid(
            annotations.path.key(MIRROR),
            value.clone(),
            "must set spec.nodeName if mirror pod annotation is set",
        );
    }
    if let Some(cost) = annotations.get(DELETION_COST).and_then(Value::as_str) {
        let plain = cost == "0" || !(cost.starts_with('0') || cost.starts_with('+'));
        if cost.parse::<i32>().is_err() || !plain {
            errors.invalid(annotations.path.key(DELETION_COST), cost, "must be a 32bit integer");
        }
    }
    for (key, value) in annotations.entries() {
        let value = value.as_str().unwrap_or("");
        if key == SECCOMP_POD || key.starts_with(SECCOMP_CONTAINER) {
            let path = annotations.path.child(key);
            match value.strip_prefix("localhost/") {
                Some(profile) => {
                    crate::kinds::checks::named(errors, path, profile, format::descending_path);
                }
                None if ["runtime/default", "docker/default", "unconfined"].contains(&value) => {}
                None => errors.invalid(path, value, "must be a valid seccomp profile"),
            }
        }
        if let Some(name) = key.strip_prefix(APP_ARMOR) {
            let mut known = false;
            each_container(spec, |container| known |= container.child("name").text() == name);
            if !known {
                errors.invalid(annotations.path.key(key), name, "container not found");
            }
            let plain = ["", "runtime/default", "unconfined"].contains(&value);
            if !plain && !value.starts_with("localhost/") {
                let why = format!("invalid AppArmor profile name: {value:?}");
                errors.invalid(annotations.path.key(key), value, &why);
            }
        }
    }
}

const MIRROR: &str = "kubernetes.io/config.mirror";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// A pod: what its annotations say, its spec, and what holds for new pods alone.
pub fn pod(spec: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let metadata = crate::kinds::checks::Path::root("metadata");
    let given = context.object.meta("annotations");
    annotations(Field { value: given, path: metadata.child("annotations") }, spec, errors);
    let empty = Value::Object(Default::default());
    let spec = Field { value: spec.value.or(Some(&empty)), path: spec.path };
    context.judge("core.v1.PodSpec", spec, errors);
    if spec.child("serviceAccountName").is_empty() {
        spec.child("volumes").each(|volume| {
            let projected = volume.child("projected");
            projected.child("sources").each(|source| {
                if source.has("serviceAccountToken") {
                    errors.forbidden(
                        source.path.child("serviceAccountToken"),
                        "must not be specified when serviceAccountName is not set",
                    );
                }
            });
        });
    }
    for list in ["containers", "initContainers"] {
        spec.child(list).each(|container| containers::trimmed_image(container, errors));
    }
    if let Some(old) = context.old_object {
        changed_annotations(old, context.object, errors);
    }
    if let super::field::Old::Unknown = context.old {
        if !spec.child("ephemeralContainers").is_empty() {
            errors.forbidden(spec.path.child("ephemeralContainers"), "cannot be set on create");
        }
        if !spec.child("nodeName").is_empty() && !spec.child("schedulingGates").is_empty() {
            errors.forbidden(
                spec.path.child("nodeName"),
                "cannot be set until all schedulingGates have been cleared",
            );
        }
    }
}

/// Annotations that say what a pod is stay as they are.
fn changed_annotations(old: &ferry_api::Object, new: &ferry_api::Object, errors: &mut FieldErrors) {
    let of = |object: &ferry_api::Object| object.meta("annotations").and_then(Value::as_object).cloned();
    let (old, new) = (of(old).unwrap_or_default(), of(new).unwrap_or_default());
    let mut tell = |key: &str, did: &str| {
        let path = format!("metadata.annotations[{key}]");
        if key.starts_with(APP_ARMOR) {
            errors.forbidden(path.as_str(), &format!("may not {did} AppArmor annotations"));
        }
        if key == MIRROR {
            errors.forbidden(path.as_str(), &format!("may not {did} mirror pod annotation"));
        }
    };
    old.iter()
        .filter(|(key, value)| new.get(*key) != Some(value))
        .for_each(|(key, _)| tell(key, "remove or update"));
    new.keys().filter(|key| !old.contains_key(*key)).for_each(|key| tell(key, "add"));
}

/// The template of a pod.
pub fn template(template: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    judge_template(template, context, errors);
}

/// Labels and annotations of a template, which are told without `metadata`.
pub fn judge_metadata(template: Field<'_>, errors: &mut FieldErrors) {
    let metadata = template.child("metadata");
    let labels = Field { value: metadata.get("labels"), path: template.path.child("labels") };
    super::walk::labels(labels, errors);
    let given = Field { value: metadata.get("annotations"), path: template.path.child("annotations") };
    for (key, _) in given.entries() {
        for why in names::qualified_name(&key.to_lowercase()) {
            errors.invalid(given.path, key, &why);
        }
    }
    annotations(given, template.child("spec"), errors);
}

pub fn judge_template(template: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    judge_metadata(template, errors);
    let empty = Value::Object(Default::default());
    let spec = Field { value: template.get("spec").or(Some(&empty)), path: template.path.child("spec") };
    context.judge("core.v1.PodSpec", spec, errors);
    if !spec.child("ephemeralContainers").is_empty() {
        errors.forbidden(
            spec.path.child("ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
        );
    }
}
