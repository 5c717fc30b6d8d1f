//! What a client hears about a write that is accepted: fields that are deprecated or have no effect, and values that may
//! surprise. In upstream's words, on the writes that upstream says them on.

mod addresses;
mod key_pair;
mod paths;
mod pods;
mod storage;

use ferry_api::{Kind, Object, names};
use serde_json::Value;

use self::addresses::{of_address, of_network};
use super::checks::Path;
use super::rules::field::Field;
use crate::strategy::UpdateScope;

pub use pods::replaced_profiles;

/// Sentences for the client, in the order of the fields.
#[derive(Default)]
struct Warnings(Vec<String>);

impl Warnings {
    fn say(&mut self, sentence: impl Into<String>) {
        self.0.push(sentence.into());
    }

    fn at(&mut self, path: Path<'_>, what: &str) {
        self.0.push(format!("{path}: {what}"));
    }
}

/// The warnings of a write of this kind. Without an old object it creates one.
pub fn of(kind: &Kind, new: &Object, old: Option<&Object>, scope: UpdateScope<'_>) -> Vec<String> {
    let mut said = Warnings::default();
    match scope {
        UpdateScope::Main => of_object(kind, new, old, &mut said),
        UpdateScope::Status => of_status(kind, new, &mut said),
        UpdateScope::Action(_) => {}
    }
    said.0
}

fn of_object(kind: &Kind, new: &Object, old: Option<&Object>, said: &mut Warnings) {
    let spec = section(new, "spec");
    let is_new = old.is_none();
    // What controllers write again and again is looked at where somebody changed it.
    let changed = old.is_none_or(|old| old.generation() != new.generation());
    match (&*kind.group, &*kind.kind) {
        ("", "Pod") if is_new => {
            name_of_host(new, "the Pod's hostname", said);
            pods::pod(new, said);
        }
        ("", "PodTemplate") if changed => pods::template(section(new, "template"), said),
        ("", "ReplicationController") | ("apps", "Deployment" | "ReplicaSet") if changed => {
            if is_new {
                name_of_host(new, "Pod names and hostnames", said);
            }
            pods::template(spec.child("template"), said);
        }
        ("apps", "DaemonSet") => {
            let template = spec.child("template");
            if old.is_none_or(|old| section(old, "spec").get("template") != template.value) {
                pods::template(template, said);
            }
        }
        ("apps", "StatefulSet") => stateful_set(spec, changed, is_new, said),
        ("batch", "Job") if changed => {
            if is_new {
                name_of_host(new, "Pod names and hostnames", said);
            }
            job(spec, said);
        }
        ("batch", "CronJob") => {
            if is_new {
                name_of_host(new, "Pod names and hostnames", said);
            }
            if changed {
                let template = spec.child("jobTemplate");
                job(template.child("spec"), said);
            }
            if !is_new && spec.child("schedule").text().contains("TZ") {
                said.say(
                    "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see \
                     https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details",
                );
            }
        }
        ("", "Endpoints") => endpoints(new, said),
        ("discovery.k8s.io", "EndpointSlice") => endpoint_slice(new, is_new, said),
        ("", "Node") => node(spec, said),
        ("", "PersistentVolume") => storage::volume(new, spec, said),
        ("", "PersistentVolumeClaim") => storage::claim(new, spec, said),
        ("storage.k8s.io", "StorageClass") => storage::class(new, said),
        ("storage.k8s.io", "CSIStorageCapacity") => storage::capacity(new, said),
        ("storage.k8s.io", "CSIDriver") => storage::driver(spec, old, said),
        ("", "ResourceQuota") if is_new => quota(spec.child("hard"), said),
        ("", "Secret") => secret(new, said),
        ("", "Service") => service(new, spec, said),
        ("", "ServiceAccount") => service_account(new, old, said),
        ("networking.k8s.io", "Ingress")
            if is_new && new.annotation(INGRESS_CLASS).is_some() && !spec.has("ingressClassName") =>
        {
            said.say(format!(
                "annotation {INGRESS_CLASS:?} is deprecated, please use 'spec.ingressClassName' instead"
            ));
        }
        ("networking.k8s.io", "NetworkPolicy") => network_policy(spec, said),
        ("node.k8s.io", "RuntimeClass") => {
            let scheduling = section(new, "scheduling");
            let selector = scheduling.child("nodeSelector");
            for message in selector.entries().filter_map(|(key, _)| old_label(key)) {
                said.at(selector.path, message);
            }
        }
        ("resource.k8s.io", "ResourceSlice") => {
            let driver = spec.child("driver");
            if driver.text().chars().any(char::is_uppercase) {
                let what = format!(
                    "driver names should be lowercase; {:?} contains uppercase characters",
                    driver.text()
                );
                said.at(driver.path, &what);
            }
        }
        (
            "admissionregistration.k8s.io",
            "MutatingAdmissionPolicy"
            | "MutatingAdmissionPolicyBinding"
            | "MutatingWebhookConfiguration"
            | "ValidatingAdmissionPolicy"
            | "ValidatingAdmissionPolicyBinding"
            | "ValidatingWebhookConfiguration",
        ) if new.name().ends_with(STATIC) => said.say(format!(
            "metadata.name: names ending with {STATIC:?} are reserved for static manifest-based configurations \
             and cannot be managed via the API"
        )),
        _ => {}
    }
}

fn of_status(kind: &Kind, new: &Object, said: &mut Warnings) {
    let status = section(new, "status");
    match (&*kind.group, &*kind.kind) {
        ("", "Pod") => {
            for list in ["podIPs", "hostIPs"] {
                status.child(list).each(|address| of_address(address.child("ip"), said));
            }
        }
        ("", "Service") | ("networking.k8s.io", "Ingress") => {
            let balancer = status.child("loadBalancer");
            balancer.child("ingress").each(|point| {
                // told at the point, not at its address
                of_address(Field { value: point.get("ip"), path: point.path }, said);
            });
        }
        _ => {}
    }
}

const INGRESS_CLASS: &str = "kubernetes.io/ingress.class";
const STATIC: &str = ".static.k8s.io";
const MOUNTABLE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";
const TOPOLOGY_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";

fn section<'a>(object: &'a Object, name: &'a str) -> Field<'a> {
    Field { value: object.0.get(name).filter(|value| !value.is_null()), path: Path::root(name) }
}

/// What to use instead of a label of nodes that had its day.
fn old_label(key: &str) -> Option<&'static str> {
    Some(match key {
        "beta.kubernetes.io/arch" => r#"deprecated since v1.14; use "kubernetes.io/arch" instead"#,
        "beta.kubernetes.io/os" => r#"deprecated since v1.14; use "kubernetes.io/os" instead"#,
        "failure-domain.beta.kubernetes.io/region" => {
            r#"deprecated since v1.17; use "topology.kubernetes.io/region" instead"#
        }
        "failure-domain.beta.kubernetes.io/zone" => {
            r#"deprecated since v1.17; use "topology.kubernetes.io/zone" instead"#
        }
        "beta.kubernetes.io/instance-type" => {
            r#"deprecated since v1.17; use "node.kubernetes.io/instance-type" instead"#
        }
        "app.kubernetes.io/created-by" => "deprecated since v1.9",
        "scheduler.alpha.kubernetes.io/preferAvoidPods" => {
            "deprecated since v1.22; use Taints and Tolerations instead"
        }
        "node-role.kubernetes.io/master" => r#"use "node-role.kubernetes.io/control-plane" instead"#,
        _ => return None,
    })
}

fn old_label_at(key: Field<'_>, said: &mut Warnings) {
    if let Some(message) = old_label(key.text()) {
        said.at(key.path, &format!("{} is {message}", key.text()));
    }
}

/// A term of a node selector; the values of preferred ones are judged by nobody else.
fn node_selector_term(term: Field<'_>, is_preferred: bool, said: &mut Warnings) {
    term.child("matchExpressions").each(|expression| {
        old_label_at(expression.child("key"), said);
        if is_preferred {
            expression.child("values").each(|value| {
                for why in names::label_value(value.text()) {
                    said.at(value.path, &format!("{} is invalid, {why}", value.text()));
                }
            });
        }
    });
}

fn name_of_host(object: &Object, used_in: &str, said: &mut Warnings) {
    let wrong = names::dns1123_label(object.name());
    if !wrong.is_empty() {
        said.say(format!(
            "metadata.name: this is used in {used_in}, which can result in surprising behavior; a DNS label is \
             recommended: [{}]",
            wrong.join(" ")
        ));
    }
}

fn stateful_set(spec: Field<'_>, changed: bool, is_new: bool, said: &mut Warnings) {
    if changed {
        pods::template(spec.child("template"), said);
    }
    spec.child("volumeClaimTemplates").each(|claim| {
        // An update tells of it under another name.
        let path = if is_new { claim.path } else { claim.path.child("Spec") };
        storage::claim_spec(Field { value: claim.get("spec"), path }, said);
    });
    if spec.child("revisionHistoryLimit").number() < 0 {
        said.say(
            "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is \
             recommended",
        );
    }
}

fn job(spec: Field<'_>, said: &mut Warnings) {
    let number = |name: &str| spec.get(name).and_then(Value::as_i64).unwrap_or(0);
    let is_indexed = spec.child("completionMode").text() == "Indexed";
    if is_indexed && number("completions") > 100_000 && number("parallelism") > 10_000 {
        said.at(
            spec.path,
            "In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, \
             Kubernetes might not be able to track completedIndexes when a big number of indexes fail",
        );
    }
    pods::template(spec.child("template"), said);
}

fn node(spec: Field<'_>, said: &mut Warnings) {
    if spec.has("configSource") {
        said.say("spec.configSource: the feature is removed");
    }
    if !spec.child("externalID").is_empty() {
        said.say("spec.externalID: this field is deprecated, and is unused by Kubernetes");
    }
    spec.child("podCIDRs").each(|range| of_network(range, said));
}

/// Upstream's controllers write no address in another form, nor do Ferry's.
fn is_managed(object: &Object, label: &str, by: &[&str]) -> bool {
    object.labels().any(|(key, value)| key == label && by.contains(&value))
}

fn endpoints(object: &Object, said: &mut Warnings) {
    if is_managed(object, "endpoints.kubernetes.io/managed-by", &["endpoint-controller"]) {
        return;
    }
    section(object, "subsets").each(|subset| {
        for list in ["addresses", "notReadyAddresses"] {
            subset.child(list).each(|address| of_address(address.child("ip"), said));
        }
    });
}

fn endpoint_slice(object: &Object, is_new: bool, said: &mut Warnings) {
    if is_new && section(object, "addressType").text() == "FQDN" {
        said.say("spec.addressType: FQDN endpoints are deprecated");
    }
    let controllers = ["endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"];
    if is_managed(object, "endpointslice.kubernetes.io/managed-by", &controllers) {
        return;
    }
    section(object, "endpoints").each(|endpoint| {
        endpoint.child("addresses").each(|address| of_address(address, said));
    });
}

fn quota(hard: Field<'_>, said: &mut Warnings) {
    let amount = |name: &str| hard.child(name).quantity();
    for resource in ["cpu", "memory", "storage", "ephemeral-storage"] {
        let mut name = format!("requests.{resource}");
        let mut request = amount(&name);
        if request.is_none() && matches!(resource, "cpu" | "memory") {
            name = resource.into();
            request = amount(&name);
        }
        let limit_name = format!("limits.{resource}");
        if let (Some(request), Some(limit)) = (request, amount(&limit_name))
            && request > limit
        {
            said.say(format!("ResourceQuota {name} ({request}) should be less than {limit_name} ({limit})"));
        }
    }
}

fn secret(object: &Object, said: &mut Warnings) {
    if section(object, "type").text() == "kubernetes.io/tls" {
        let data = section(object, "data");
        if let Err(why) = key_pair::judge(data.child("tls.crt").text(), data.child("tls.key").text()) {
            said.say(why);
        }
    }
}

fn service(object: &Object, spec: Field<'_>, said: &mut Warnings) {
    if object.annotation(TOPOLOGY_HINTS).is_some() {
        said.say(format!("annotation {TOPOLOGY_HINTS} is deprecated, please use {TOPOLOGY_MODE} instead"));
    }
    let (kind, address) = (spec.child("type").text(), spec.child("clusterIP").text());
    let is_external_name = kind == "ExternalName";
    let is_headless = kind == "ClusterIP" && address == "None";
    if !is_external_name && !["", "None"].contains(&address) {
        spec.child("clusterIPs").each(|address| of_address(address, said));
    }
    let (balancer, externals) = (spec.child("loadBalancerIP"), spec.child("externalIPs"));
    if is_headless {
        if !balancer.is_empty() {
            said.say("spec.loadBalancerIP is ignored for headless services");
        }
        if !externals.is_empty() {
            said.say("spec.externalIPs is ignored for headless services");
        }
        if spec.child("sessionAffinity").text() != "None" {
            said.say("spec.SessionAffinity is ignored for headless services");
        }
    }
    externals.each(|address| of_address(address, said));
    if !externals.is_empty() && !is_headless && !is_external_name {
        said.say("spec.externalIPs is deprecated and may no longer be implemented in some clusters");
    }
    of_address(balancer, said);
    spec.child("loadBalancerSourceRanges").each(|range| of_network(range, said));
    if is_external_name && !externals.is_empty() {
        said.say("spec.externalIPs is ignored when spec.type is \"ExternalName\"");
    }
    if !is_external_name && !spec.child("externalName").is_empty() {
        said.say("spec.externalName is ignored when spec.type is not \"ExternalName\"");
    }
    let distribution = spec.child("trafficDistribution");
    if distribution.text() == "PreferClose" {
        said.at(distribution.path, "\"PreferClose\" is deprecated; use \"PreferSameZone\"");
    }
}

fn service_account(new: &Object, old: Option<&Object>, said: &mut Warnings) {
    let enforces = |account: &Object| account.annotation(MOUNTABLE_SECRETS).is_some();
    if enforces(new) && !old.is_some_and(enforces) {
        said.say(format!(
            "metadata.annotations[{MOUNTABLE_SECRETS}]: deprecated in v1.32+; prefer separate namespaces to isolate \
             access to mounted secrets"
        ));
    }
}

fn network_policy(spec: Field<'_>, said: &mut Warnings) {
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        spec.child(direction).each(|rule| {
            rule.child(peers).each(|peer| {
                let block = peer.child("ipBlock");
                of_network(block.child("cidr"), said);
                block.child("except").each(|except| of_network(except, said));
            });
        });
    }
}

#[cfg(test)]
mod tests;
