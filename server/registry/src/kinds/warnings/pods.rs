//! Pods, and the templates they are made of.

use std::collections::{HashMap, HashSet};

use ferry_api::Object;
use serde_json::{Map, Value, json};

use super::storage::{GONE, claim_spec, fractional, shown};
use super::{Warnings, node_selector_term, of_address, old_label, old_label_at, paths, section};
use crate::kinds::checks::Path;
use crate::kinds::rules::field::{Field, text};

const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";

const USE_FIELD: &str = r#"deprecated since v1.30; use the "appArmorProfile" field instead"#;
const USE_SECCOMP: &str = r#"non-functional in v1.27+; use the "seccompProfile" field instead"#;
const NO_SELECTOR: &str = "a null labelSelector results in matching no pod";

const OLD_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        r#"non-functional in v1.16+; use the "priorityClassName" field instead"#,
    ),
    ("security.alpha.kubernetes.io/sysctls", r#"non-functional in v1.11+; use the "sysctls" field instead"#),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        r#"non-functional in v1.11+; use the "sysctls" field instead"#,
    ),
];

const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

pub fn pod(pod: &Object, said: &mut Warnings) {
    let metadata = Path::root("metadata");
    let annotations = Field { value: pod.meta("annotations"), path: metadata.child("annotations") };
    judge(annotations, section(pod, "spec"), said);
    // The containers' AppArmor profiles were taken from the annotations before: `replaced_profiles`.
}

pub fn template(template: Field<'_>, said: &mut Warnings) {
    let metadata = template.child("metadata");
    let (annotations, spec) = (metadata.child("annotations"), template.child("spec"));
    judge(annotations, spec, said);
    let security = spec.child("securityContext");
    let of_pod = security.get("appArmorProfile");
    each_container(spec, |container| {
        let security = container.child("securityContext");
        if !security.has("appArmorProfile")
            && let Some((key, annotation)) = profile_annotation(annotations, container)
            && of_pod.is_none_or(|of_pod| profile(annotation).as_ref() != Some(of_pod))
        {
            said.at(annotations.path.key(&key), USE_FIELD);
        }
    });
}

fn profile_annotation<'a>(annotations: Field<'a>, container: Field<'_>) -> Option<(String, &'a str)> {
    let key = format!("{APP_ARMOR}{}", container.child("name").text());
    let annotation = annotations.value?.get(&key)?.as_str()?;
    Some((key, annotation))
}

/// The profile that an annotation of old stands for.
fn profile(annotation: &str) -> Option<Value> {
    match annotation {
        "unconfined" => Some(json!({"type": "Unconfined"})),
        "runtime/default" => Some(json!({"type": "RuntimeDefault"})),
        other => {
            let name = other.strip_prefix("localhost/").filter(|name| !name.is_empty())?;
            Some(json!({"type": "Localhost", "localhostProfile": name}))
        }
    }
}

/// AppArmor profiles in annotations become the fields of their containers, which the kubelet reads. Returns what is said
/// about that.
pub fn replaced_profiles(pod: &mut Object) -> Vec<String> {
    let mut said = Warnings::default();
    let Some(Value::Object(annotations)) = pod.meta("annotations").cloned() else { return said.0 };
    if !annotations.keys().any(|key| key.starts_with(APP_ARMOR)) {
        return said.0;
    }
    let Some(Value::Object(spec)) = pod.0.get_mut("spec") else { return said.0 };
    if spec.get("os").is_some_and(|os| text(os, "name") == "windows") {
        return said.0;
    }
    let of_pod = spec.get("securityContext").and_then(|security| security.get("appArmorProfile")).cloned();
    for list in CONTAINERS {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if replace_profile(container, &annotations, of_pod.as_ref()) {
                let key = format!("{APP_ARMOR}{}", text(container, "name"));
                let metadata = Path::root("metadata");
                said.at(metadata.child("annotations").key(&key), USE_FIELD);
            }
        }
    }
    said.0
}

/// Whether the annotation of a container is worth a warning: it stands for no profile, or for another than the pod's.
fn replace_profile(container: &mut Value, annotations: &Map<String, Value>, of_pod: Option<&Value>) -> bool {
    let key = format!("{APP_ARMOR}{}", text(container, "name"));
    let Some(annotation) = annotations.get(&key).and_then(Value::as_str) else { return false };
    let given = container.get("securityContext").and_then(|security| security.get("appArmorProfile"));
    if given.is_some_and(|given| !given.is_null()) {
        return false;
    }
    let Some(profile) = profile(annotation).filter(is_valid) else { return true };
    if of_pod == Some(&profile) {
        return false;
    }
    let Value::Object(container) = container else { return false };
    let security = container.entry("securityContext").or_insert_with(|| json!({}));
    if security.is_null() {
        *security = json!({});
    }
    if let Value::Object(security) = security {
        security.insert("appArmorProfile".into(), profile);
    }
    true
}

fn is_valid(profile: &Value) -> bool {
    let name = text(profile, "localhostProfile");
    name.trim() == name && name.len() <= 4095
}

fn each_container(spec: Field<'_>, mut visit: impl FnMut(Field<'_>)) {
    for list in CONTAINERS {
        spec.child(list).each(&mut visit);
    }
}

fn judge(annotations: Field<'_>, spec: Field<'_>, said: &mut Warnings) {
    placement(spec, said);
    for (key, message) in OLD_ANNOTATIONS {
        if annotations.has(key) {
            said.at(annotations.path.key(key), message);
        }
    }
    spec.child("volumes").each(|volume| self::volume(volume, said));
    spec.child("volumes").each(|volume| paths::of_volume(volume, said));
    repeated(spec.child("hostAliases"), "ip", said);
    repeated(spec.child("imagePullSecrets"), "name", said);
    spec.child("imagePullSecrets").each(|secret| {
        if secret.child("name").is_empty() {
            said.at(secret.path.child("name"), "invalid empty name \"\"");
        }
    });
    for resource in ["memory", "ephemeral-storage"] {
        fractional(spec.child("overhead"), resource, said);
    }
    if annotations.has(SECCOMP_POD) && !spec.child("securityContext").has("seccompProfile") {
        said.at(annotations.path.key(SECCOMP_POD), USE_SECCOMP);
    }
    each_container(spec, |container| self::container(annotations, container, said));
    ports(spec, said);
    if spec.child("terminationGracePeriodSeconds").number() < 0 {
        said.at(
            spec.path.child("terminationGracePeriodSeconds"),
            "must be >= 0; negative values are invalid and will be treated as 1",
        );
    }
    let affinity = spec.child("affinity");
    for kind in ["podAffinity", "podAntiAffinity"] {
        let affinity = affinity.child(kind);
        affinity.child("requiredDuringSchedulingIgnoredDuringExecution").each(|term| selects(term, said));
        affinity
            .child("preferredDuringSchedulingIgnoredDuringExecution")
            .each(|weighted| selects(weighted.child("podAffinityTerm"), said));
    }
    let dns = spec.child("dnsConfig");
    dns.child("nameservers").each(|server| of_address(server, said));
    spec.child("hostAliases").each(|alias| of_address(alias.child("ip"), said));
}

/// A term without a selector selects nothing.
fn selects(term: Field<'_>, said: &mut Warnings) {
    if !term.has("labelSelector") {
        said.at(term.path.child("labelSelector"), NO_SELECTOR);
    }
}

fn placement(spec: Field<'_>, said: &mut Warnings) {
    let selector = spec.child("nodeSelector");
    for (key, _) in selector.entries() {
        if let Some(message) = old_label(key) {
            said.at(selector.path.key(key), message);
        }
    }
    let affinity = spec.child("affinity");
    let affinity = affinity.child("nodeAffinity");
    let required = affinity.child("requiredDuringSchedulingIgnoredDuringExecution");
    required.child("nodeSelectorTerms").each(|term| node_selector_term(term, false, said));
    affinity
        .child("preferredDuringSchedulingIgnoredDuringExecution")
        .each(|weighted| node_selector_term(weighted.child("preference"), true, said));
    spec.child("topologySpreadConstraints").each(|constraint| {
        old_label_at(constraint.child("topologyKey"), said);
        selects(constraint, said);
    });
}

fn volume(volume: Field<'_>, said: &mut Warnings) {
    for (source, message) in GONE.iter().filter(|(source, _)| volume.has(source)) {
        said.at(volume.path.child(shown(source)), message);
    }
    if volume.has("gitRepo") {
        said.at(volume.path.child("gitRepo"), "deprecated in v1.11, and disabled by default in v1.33+");
    }
    let ephemeral = volume.child("ephemeral");
    let template = ephemeral.child("volumeClaimTemplate");
    claim_spec(template.child("spec"), said);
}

/// Elements of a list that server-side apply tells apart by a field which they share.
fn repeated(list: Field<'_>, key: &str, said: &mut Warnings) {
    let mut seen = HashSet::new();
    list.each(|element| {
        let value = element.get(key).and_then(Value::as_str).unwrap_or("").to_string();
        if seen.contains(&value) {
            said.at(element.path.child(key), &format!("duplicate {key} {value:?}"));
        } else {
            seen.insert(value);
        }
    });
}

fn container(annotations: Field<'_>, container: Field<'_>, said: &mut Warnings) {
    if annotations.is_given() && !container.child("securityContext").has("seccompProfile") {
        let key = format!("{SECCOMP_CONTAINER}{}", container.child("name").text());
        if annotations.has(&key) {
            said.at(annotations.path.key(&key), USE_SECCOMP);
        }
    }
    let resources = container.child("resources");
    for resource in ["memory", "ephemeral-storage"] {
        for list in ["limits", "requests"] {
            fractional(resources.child(list), resource, said);
        }
    }
    let mut seen = HashSet::new();
    container.child("env").each(|variable| {
        let name = variable.get("name").and_then(Value::as_str).unwrap_or("").to_string();
        if !seen.contains(&name) {
            seen.insert(name);
            return;
        }
        let (value, reference) = (variable.child("value").text(), format!("$({name})"));
        // A value that is made of the one before it needs both.
        if variable.has("valueFrom") || value == reference || !value.contains(&reference) {
            let what =
                format!("hides previous definition of {name:?}, which may be dropped when using apply");
            said.at(variable.path, &what);
        }
    });
}

/// A port, with where it stands.
struct Port<'a> {
    place: String,
    host: (&'a str, i64),
}

fn ports(spec: Field<'_>, said: &mut Warnings) {
    let mut names: HashMap<String, String> = HashMap::new();
    let mut told = Warnings::default();
    let mut all: HashMap<(i64, String), Vec<Port<'_>>> = HashMap::new();
    for list in CONTAINERS {
        let list = spec.child(list);
        for (index, container) in list.items().iter().enumerate() {
            let ports = container.get("ports").and_then(Value::as_array).into_iter().flatten();
            for (number, port) in ports.enumerate() {
                let place = format!("{}[{index}].ports[{number}]", list.path);
                compare(&place, port, &mut all, said);
                let name = text(port, "name");
                if name.is_empty() {
                    continue;
                }
                if let Some(other) = names.get(name) {
                    told.say(format!(
                        "{place}: duplicate port name {name:?} with {other}, services and probes that select ports by \
                         name will use {other}"
                    ));
                } else {
                    names.insert(name.into(), place);
                }
            }
        }
    }
    said.0.append(&mut told.0);
}

/// Against the ports of this number before it.
fn compare<'a>(
    place: &str,
    port: &'a Value,
    all: &mut HashMap<(i64, String), Vec<Port<'a>>>,
    said: &mut Warnings,
) {
    let number = |name: &str| port.get(name).and_then(Value::as_i64).unwrap_or(0);
    let (ip, host_port) = (text(port, "hostIP"), number("hostPort"));
    if !ip.is_empty() && host_port == 0 {
        said.say(format!(
            "{place}: hostIP set without hostPort: {{Name:{} HostPort:0 ContainerPort:{} Protocol:{} HostIP:{ip}}}",
            text(port, "name"),
            number("containerPort"),
            text(port, "protocol"),
        ));
    }
    let others = all.entry((number("containerPort"), text(port, "protocol").into())).or_default();
    for other in others.iter() {
        let what = if (ip, host_port) == other.host {
            "duplicate port definition"
        } else if host_port == 0 || other.host.1 == 0 {
            "overlapping port definition"
        } else if host_port == other.host.1 && ip.is_empty() != other.host.0.is_empty() {
            "dangerously ambiguous port definition"
        } else {
            continue;
        };
        said.say(format!("{place}: {what} with {}", other.place));
    }
    others.push(Port { place: place.into(), host: (ip, host_port) });
}
