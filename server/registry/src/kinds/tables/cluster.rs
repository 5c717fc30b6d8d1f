//! The columns of what the cluster is made of and governed by: nodes, accounts, roles, policies, leases.

use ferry_api::Object;
use serde_json::Value;

use crate::columns::{
    AGE, Column, age, at, condition, field, human_duration, labels, list_at, number_at, selector, text_at,
};
use crate::metadata::seconds_of;

pub static NAMESPACE: &[Column] = &[Column::at("Status", "status.phase"), AGE];

pub static CONFIG_MAP: &[Column] = &[
    Column::text("Data", |object, _| (entries(object, "data") + entries(object, "binaryData")).into()),
    AGE,
];

pub static SECRET: &[Column] =
    &[Column::at("Type", "type"), Column::text("Data", |object, _| entries(object, "data").into()), AGE];

pub static AGED: &[Column] = &[AGE];

pub static NODE: &[Column] = &[
    Column::text("Status", |node, _| node_status(node).into()),
    Column::text("Roles", |node, _| roles(node).into()),
    AGE,
    Column::at("Version", "status.nodeInfo.kubeletVersion"),
    Column::text("Internal-IP", |node, _| address(node, "InternalIP")).wide(),
    Column::text("External-IP", |node, _| address(node, "ExternalIP")).wide(),
    Column::at_or("OS-Image", "status.nodeInfo.osImage", "<unknown>").wide(),
    Column::text("Kernel-Version", |node, _| {
        let kernel = match text_at(node, "status.nodeInfo.kernelVersion") {
            "" => "<unknown>",
            kernel => kernel,
        };
        match text_at(node, "status.nodeInfo.architecture") {
            "" => kernel.into(),
            architecture => format!("{kernel} ({architecture})").into(),
        }
    })
    .wide(),
    Column::at_or("Container-Runtime", "status.nodeInfo.containerRuntimeVersion", "<unknown>").wide(),
];

pub static NODE_METRICS: &[Column] =
    &[Column::at("CPU", "usage.cpu"), Column::at("Memory", "usage.memory"), Column::at("Window", "window")];

pub static ROLE_BINDING: &[Column] = &[
    Column::text("Role", |binding, _| {
        format!("{}/{}", text_at(binding, "roleRef.kind"), text_at(binding, "roleRef.name")).into()
    }),
    AGE,
    Column::text("Users", |binding, _| subjects(binding, "User").into()).wide(),
    Column::text("Groups", |binding, _| subjects(binding, "Group").into()).wide(),
    Column::text("ServiceAccounts", |binding, _| subjects(binding, "ServiceAccount").into()).wide(),
];

pub static CERTIFICATE_SIGNING_REQUEST: &[Column] = &[
    AGE,
    Column::at_or("SignerName", "spec.signerName", "<none>"),
    Column::at("Requestor", "spec.username"),
    Column::text("RequestedDuration", |object, _| {
        match at(object, "spec.expirationSeconds").and_then(Value::as_i64) {
            Some(seconds) => human_duration(seconds).into(),
            None => "<none>".into(),
        }
    }),
    Column::text("Condition", |object, _| request_condition(object).into()),
];

pub static CLUSTER_TRUST_BUNDLE: &[Column] = &[Column::at_or("SignerName", "spec.signerName", "<none>")];

pub static POD_CERTIFICATE_REQUEST: &[Column] = &[
    Column::at("PodName", "spec.podName"),
    Column::at("ServiceAccountName", "spec.serviceAccountName"),
    Column::at("NodeName", "spec.nodeName"),
    Column::at("SignerName", "spec.signerName"),
    Column::text("State", |object, _| {
        let states = ["Issued", "Denied", "Failed"];
        states.into_iter().find(|state| condition(object, state).is_some()).unwrap_or("Pending").into()
    }),
    Column::text("UnverifiedUserAnnotations", |object, _| {
        labels(at(object, "spec.unverifiedUserAnnotations"))
    }),
];

pub static LEASE: &[Column] = &[Column::at("Holder", "spec.holderIdentity"), AGE];

pub static LEASE_CANDIDATE: &[Column] = &[
    Column::at("LeaseName", "spec.leaseName"),
    Column::at("BinaryVersion", "spec.binaryVersion"),
    Column::at("EmulationVersion", "spec.emulationVersion"),
    AGE,
];

pub static RESOURCE_QUOTA: &[Column] = &[
    Column::text("Request", |quota, _| used(quota, false).into()),
    Column::text("Limit", |quota, _| used(quota, true).into()),
    AGE,
];

pub static RUNTIME_CLASS: &[Column] = &[Column::at("Handler", "handler"), AGE];

pub static COMPONENT_STATUS: &[Column] = &[
    Column::text("Status", |object, _| match component(object, "status") {
        "True" => "Healthy".into(),
        "" => "Unknown".into(),
        _ => "Unhealthy".into(),
    }),
    Column::text("Message", |object, _| component(object, "message").into()),
    Column::text("Error", |object, _| component(object, "error").into()),
];

pub static WEBHOOKS: &[Column] = &[Column::length("Webhooks", "webhooks"), AGE];

pub static VALIDATING_POLICY: &[Column] =
    &[Column::length("Validations", "spec.validations"), PARAM_KIND, AGE];

pub static MUTATING_POLICY: &[Column] = &[Column::length("Mutations", "spec.mutations"), PARAM_KIND, AGE];

pub static POLICY_BINDING: &[Column] =
    &[Column::at("PolicyName", "spec.policyName"), Column::text("ParamRef", |object, _| param(object)), AGE];

const PARAM_KIND: Column = Column::text("ParamKind", |object, _| match at(object, "spec.paramKind") {
    None => "<unset>".into(),
    Some(kind) => format!("{}/{}", field(kind, "apiVersion"), field(kind, "kind")).into(),
});

pub static FLOW_SCHEMA: &[Column] = &[
    Column::at("PriorityLevel", "spec.priorityLevelConfiguration.name"),
    Column::number("MatchingPrecedence", "spec.matchingPrecedence").typed("string"),
    Column::at_or("DistinguisherMethod", "spec.distinguisherMethod.type", "<none>"),
    AGE,
    Column::text("MissingPL", |object, _| {
        condition(object, "Dangling").map_or("?", |dangling| field(dangling, "status")).into()
    }),
];

pub static PRIORITY_LEVEL: &[Column] = &[
    Column::at("Type", "spec.type"),
    Column::at_or("NominalConcurrencyShares", "spec.limited.nominalConcurrencyShares", "<none>"),
    Column::at_or("Queues", "spec.limited.limitResponse.queuing.queues", "<none>"),
    Column::at_or("HandSize", "spec.limited.limitResponse.queuing.handSize", "<none>"),
    Column::at_or("QueueLengthLimit", "spec.limited.limitResponse.queuing.queueLengthLimit", "<none>"),
    AGE,
];

pub static STORAGE_VERSION: &[Column] = &[
    Column::at_or("CommonEncodingVersion", "status.commonEncodingVersion", "<unset>"),
    Column::text("StorageVersions", |object, _| {
        let list: Vec<String> = list_at(object, "status.storageVersions")
            .iter()
            .map(|version| format!("{}={}", field(version, "apiServerID"), field(version, "encodingVersion")))
            .collect();
        crate::columns::with_more(&list, 3)
    }),
    AGE,
];

pub static STORAGE_MIGRATION: &[Column] = &[
    Column::text("Name", |object, _| object.name().into()),
    Column::text("Resource", |object, _| {
        let (group, resource) =
            (text_at(object, "spec.resource.group"), text_at(object, "spec.resource.resource"));
        if group.is_empty() { resource.into() } else { format!("{resource}.{group}").into() }
    }),
    Column::text("Status", |object, _| {
        let states = ["Running", "Failed", "Succeeded"];
        let held = states.into_iter().rfind(|state| crate::columns::has_condition(object, state));
        held.unwrap_or("Unknown").into()
    }),
];

pub static API_SERVICE: &[Column] = &[
    Column::text("Service", |object, _| match at(object, "spec.service") {
        None => "Local".into(),
        Some(service) => format!("{}/{}", field(service, "namespace"), field(service, "name")).into(),
    }),
    Column::text("Available", |object, _| match condition(object, "Available") {
        None => "Unknown".into(),
        Some(available) => match (field(available, "status"), field(available, "reason")) {
            (status, "") | (status @ "True", _) => status.into(),
            (status, reason) => format!("{status} ({reason})").into(),
        },
    }),
    AGE,
];

pub static RESOURCE_CLAIM: &[Column] = &[
    Column::text("State", |claim, _| {
        let mut states = Vec::new();
        if claim.is_deleting() {
            states.push("deleted");
        }
        match at(claim, "status.allocation") {
            None if claim.is_deleting() => {}
            None => states.push("pending"),
            Some(_) => {
                states.push("allocated");
                if !list_at(claim, "status.reservedFor").is_empty() {
                    states.push("reserved");
                }
            }
        }
        states.join(",").into()
    }),
    AGE,
];

pub static RESOURCE_SLICE: &[Column] = &[
    Column::at("Node", "spec.nodeName"),
    Column::at("Driver", "spec.driver"),
    Column::at("Pool", "spec.pool.name"),
    AGE,
];

pub static DEVICE_TAINT_RULE: &[Column] = &[
    Column::at("Key", "spec.taint.key"),
    Column::at("Value", "spec.taint.value"),
    Column::at("Effect", "spec.taint.effect"),
    Column::text("TimeAdded", |object, now| match text_at(object, "spec.taint.timeAdded") {
        "" => "".into(),
        added => age(added, now).into(),
    }),
    AGE,
];

pub static POOL_STATUS_REQUEST: &[Column] = &[
    Column::at("Driver", "spec.driver"),
    Column::text("Total", |object, _| pool_sum(object, "totalDevices")),
    Column::text("Available", |object, _| pool_sum(object, "availableDevices")),
    Column::text("Allocated", |object, _| pool_sum(object, "allocatedDevices")),
    Column::text("Unavailable", |object, _| pool_sum(object, "unavailableDevices")),
    Column::text("Errors", |object, _| match pool_failed(object) {
        true => "-".into(),
        false => {
            let pools = list_at(object, "status.pools").iter();
            pools.filter(|pool| pool.get("validationError").is_some()).count().to_string().into()
        }
    }),
    Column::number("Pools", "status.poolCount"),
    Column::text("Status", |object, _| {
        let (shown, all) = (list_at(object, "status.pools").len(), number_at(object, "status.poolCount"));
        match () {
            () if crate::columns::has_condition(object, "Failed") => "Failed".into(),
            () if !crate::columns::has_condition(object, "Complete") => "Pending".into(),
            () if all > shown as i64 => format!("Complete ({shown}/{all} pools)").into(),
            () => "Complete".into(),
        }
    }),
    Column::text("Completed", |object, now| match condition(object, "Complete") {
        Some(complete) if field(complete, "status") == "True" => {
            match seconds_of(field(complete, "lastTransitionTime")) {
                Some(then) => human_duration(now.as_second() - then).into(),
                None => "<unknown>".into(),
            }
        }
        _ => "<none>".into(),
    }),
];

fn pool_failed(object: &Object) -> bool {
    at(object, "status").is_none() || crate::columns::has_condition(object, "Failed")
}

fn pool_sum(object: &Object, name: &str) -> Value {
    if pool_failed(object) {
        return "-".into();
    }
    let pools = list_at(object, "status.pools").iter();
    pools.filter_map(|pool| pool.get(name)?.as_i64()).sum::<i64>().to_string().into()
}

fn entries(object: &Object, name: &str) -> usize {
    at(object, name).and_then(Value::as_object).map_or(0, serde_json::Map::len)
}

fn node_status(node: &Object) -> String {
    let ready = match condition(node, "Ready").map(|ready| field(ready, "status")) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    match at(node, "spec.unschedulable").and_then(Value::as_bool) {
        Some(true) => format!("{ready},SchedulingDisabled"),
        _ => ready.into(),
    }
}

fn roles(node: &Object) -> String {
    let mut roles: Vec<&str> = node
        .labels()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None => (key == "kubernetes.io/role").then_some(value),
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() { "<none>".into() } else { roles.join(",") }
}

fn address(node: &Object, kind: &str) -> Value {
    let found = list_at(node, "status.addresses").iter().find(|address| field(address, "type") == kind);
    found.map_or("<none>", |address| field(address, "address")).into()
}

fn subjects(binding: &Object, kind: &str) -> String {
    let of_kind = list_at(binding, "subjects").iter().filter(|subject| field(subject, "kind") == kind);
    of_kind
        .map(|subject| match (kind, field(subject, "namespace")) {
            ("ServiceAccount", namespace) if !namespace.is_empty() => {
                format!("{namespace}/{}", field(subject, "name"))
            }
            _ => field(subject, "name").to_string(),
        })
        .collect::<Vec<_>>()
        .join(", ")
}

fn request_condition(request: &Object) -> String {
    let has = |kind: &str| condition(request, kind).is_some();
    let mut words = vec![match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (false, true) => "Approved",
        (false, false) => "Pending",
    }];
    if has("Failed") {
        words.push("Failed");
    }
    if !text_at(request, "status.certificate").is_empty() {
        words.push("Issued");
    }
    words.join(",")
}

/// `cpu: 1/2, memory: 0/1Gi`; limits stand in a column of their own.
fn used(quota: &Object, limits: bool) -> String {
    let hard = at(quota, "status.hard").and_then(Value::as_object).into_iter().flatten();
    let used = at(quota, "status.used");
    hard.filter(|(resource, _)| resource.starts_with("limits.") == limits)
        .map(|(resource, hard)| {
            let now = used.map_or("", |used| field(used, resource));
            let now = if now.is_empty() { "0" } else { now };
            format!("{resource}: {now}/{}", hard.as_str().unwrap_or(""))
        })
        .collect::<Vec<_>>()
        .join(", ")
}

fn component<'a>(object: &'a Object, name: &str) -> &'a str {
    let healthy = list_at(object, "conditions").iter().find(|found| field(found, "type") == "Healthy");
    healthy.map_or("", |found| field(found, name))
}

fn param(object: &Object) -> Value {
    let Some(reference) = at(object, "spec.paramRef") else { return "<unset>".into() };
    match (field(reference, "namespace"), field(reference, "name")) {
        (_, "") if reference.get("selector").is_some() => selector(reference.get("selector")),
        (_, "") => "<unset>".into(),
        ("", name) => format!("*/{name}").into(),
        (namespace, name) => format!("{namespace}/{name}").into(),
    }
}
