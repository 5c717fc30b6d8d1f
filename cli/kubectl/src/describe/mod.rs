//! Long descriptions. Pods, nodes, services, workloads and a few more have a page of their own;
//! every other kind gets the generic one, made from its fields alone.

mod autoscaler;
mod certificate_request;
mod class;
mod config;
mod container;
mod generic;
mod metadata;
mod namespace;
mod network;
mod node;
mod pod;
pub mod rbac;
mod service;
mod volume;
mod workload;

pub use pod::pod_template;

use serde_json::Value;

use crate::cli::Cli;
use crate::commands::events::{interval, last_seen};
use crate::error::Result;
use crate::fields::Fields;
use crate::printers::columns::{DESCRIBE, align};
use crate::selection::{Info, list_all};
use crate::transport::Query;

/// The page of one object.
pub async fn describe(cli: &Cli, info: &Info, show_events: bool) -> Result<String> {
    let _span = ferry_trace::span("kubectl.describe");
    let object = &info.object;
    let mut text = match (info.resource.group.as_str(), info.resource.kind.as_str()) {
        ("", "Pod") => pod::page(object),
        ("", "Node") => node::page(cli, object).await?,
        ("", "Namespace") => return Ok(align(&namespace::page(cli, object).await?, DESCRIBE)),
        ("", "ResourceQuota") => return Ok(align(&namespace::quota(object), DESCRIBE)),
        ("", "LimitRange") => return Ok(align(&namespace::limit_range(object), DESCRIBE)),
        ("", "Service") => service::page(cli, object).await?,
        ("apps", "Deployment") => workload::deployment(cli, info).await?,
        ("apps", "ReplicaSet") | ("", "ReplicationController") => workload::replica_set(cli, object).await?,
        ("apps", "StatefulSet") => workload::stateful_set(cli, object).await?,
        ("apps", "DaemonSet") => workload::daemon_set(cli, object).await?,
        ("batch", "Job") => workload::job(object),
        ("batch", "CronJob") => workload::cron_job(object),
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaler::page(cli, object).await?,
        ("networking.k8s.io", "Ingress") => network::ingress(cli, object).await?,
        ("networking.k8s.io", "IngressClass") => network::ingress_class(object),
        ("networking.k8s.io", "ServiceCIDR") => network::service_cidr(object),
        ("networking.k8s.io", "IPAddress") => network::ip_address(object),
        ("networking.k8s.io", "NetworkPolicy") => {
            return Ok(align(&network::network_policy(object), DESCRIBE));
        }
        ("", "Endpoints") => network::endpoints(object),
        ("discovery.k8s.io", "EndpointSlice") => network::endpoint_slice(object),
        ("", "PersistentVolume") => class::persistent_volume(object),
        ("storage.k8s.io", "StorageClass") => class::storage_class(object),
        ("storage.k8s.io", "VolumeAttributesClass") => class::volume_attributes_class(object),
        ("storage.k8s.io", "CSINode") => class::csi_node(object),
        ("certificates.k8s.io", "CertificateSigningRequest") => certificate_request::page(object)?,
        ("scheduling.k8s.io", "PriorityClass") => class::priority_class(object),
        ("policy", "PodDisruptionBudget") => class::disruption_budget(object),
        ("", "ConfigMap") => config::config_map(object),
        ("", "Secret") => return Ok(align(&config::secret(object), DESCRIBE)),
        ("", "ServiceAccount") => config::service_account(object),
        ("", "PersistentVolumeClaim") => config::claim(cli, object).await?,
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => {
            return Ok(align(&rbac::role(object), DESCRIBE));
        }
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            return Ok(align(&rbac::binding(object), DESCRIBE));
        }
        _ => generic::page(object),
    };
    if show_events {
        text.push_str(&events(cli, object).await?);
    }
    Ok(align(&text, DESCRIBE))
}

/// What happened to the object, oldest first.
async fn events(cli: &Cli, object: &Value) -> Result<String> {
    let mut selector =
        format!("involvedObject.name={},involvedObject.namespace={}", object.name(), object.namespace());
    // the events of a node name it, not its UID
    let uid = if object.kind() == "Node" { object.name() } else { object.text("metadata.uid") };
    if !uid.is_empty() {
        selector.push_str(&format!(",involvedObject.uid={uid}"));
    }
    let query = Query::new().with("fieldSelector", &selector);
    let path = if object.namespace().is_empty() {
        "/api/v1/events".to_owned()
    } else {
        format!("/api/v1/namespaces/{}/events", object.namespace())
    };
    let mut events = match list_all(cli, &path, &query).await {
        Ok(events) => events,
        // whoever may read an object need not be allowed to read its events
        Err(error) if error.status_code().is_some() => return Ok(String::new()),
        Err(error) => return Err(error),
    };
    if events.is_empty() {
        return Ok("Events:\t<none>\n".to_owned());
    }
    events.sort_by_key(|event| last_seen(event).to_owned());
    let mut text =
        "Events:\n  Type\tReason\tAge\tFrom\tMessage\n  ----\t------\t----\t----\t-------\n".to_owned();
    for event in &events {
        let source = match event.text("source.component") {
            "" => event.text("reportingComponent"),
            component => component,
        };
        text.push_str(&format!(
            "  {}\t{}\t{}\t{source}\t{}\n",
            event.text("type"),
            event.text("reason"),
            interval(event),
            event.text("message").trim()
        ));
    }
    Ok(text)
}

/// A time as pages show it: `Mon, 01 Jan 2024 00:00:00 +0000`.
pub fn time(timestamp: &str) -> String {
    match timestamp.parse::<jiff::Timestamp>() {
        Ok(parsed) => {
            parsed.to_zoned(jiff::tz::TimeZone::system()).strftime("%a, %d %b %Y %H:%M:%S %z").to_string()
        }
        Err(_) => timestamp.to_owned(),
    }
}

/// `True` and `False`, as Go's title case writes a bool.
pub fn title_bool(flag: bool) -> &'static str {
    if flag { "True" } else { "False" }
}

/// A line for each field that is set.
fn given(object: &Value, fields: &[(&str, &str)]) -> String {
    let set = fields.iter().filter(|(_, field)| !object.text(field).is_empty());
    set.map(|(label, field)| format!("{label}:\t{}\n", object.text(field))).collect()
}

pub fn or_none(text: String) -> String {
    if text.is_empty() { "<none>".to_owned() } else { text }
}

pub fn or_unset(text: String) -> String {
    if text.is_empty() { "<unset>".to_owned() } else { text }
}
