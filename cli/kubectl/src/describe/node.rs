//! Nodes: conditions, capacity, and what of it the pods on them have asked for.

use ferry_api::quantity::Quantity;
use serde_json::Value;

use super::metadata::{annotations, labels, taints};
use super::{or_none, time};
use crate::cli::Cli;
use crate::error::Result;
use crate::fields::Fields;
use crate::printers::duration;
use crate::selection::list_all;
use crate::transport::Query;
use ferry_api::json_path::to_text;

pub async fn page(cli: &Cli, node: &Value) -> Result<String> {
    let mut text = format!("Name:\t{}\nRoles:\t{}\n", node.name(), or_none(roles(node)));
    text.push_str(&labels("Labels", node, "metadata.labels", ""));
    text.push_str(&annotations(node, ""));
    text.push_str(&format!("CreationTimestamp:\t{}\n", time(node.text("metadata.creationTimestamp"))));
    text.push_str(&taints(node.list("spec.taints")));
    text.push_str(&format!("Unschedulable:\t{}\n", node.flag("spec.unschedulable")));
    text.push_str(&lease(cli, node).await?);
    let conditions = node.list("status.conditions");
    if !conditions.is_empty() {
        text.push_str("Conditions:\n  Type\tStatus\tLastHeartbeatTime\tLastTransitionTime\tReason\tMessage\n  ----\t------\t-----------------\t------------------\t------\t-------\n");
        for condition in conditions {
            text.push_str(&format!(
                "  {} \t{} \t{} \t{} \t{} \t{}\n",
                condition.text("type"),
                condition.text("status"),
                time(condition.text("lastHeartbeatTime")),
                time(condition.text("lastTransitionTime")),
                condition.text("reason"),
                condition.text("message")
            ));
        }
    }
    text.push_str("Addresses:\n");
    node.list("status.addresses").iter().for_each(|address| {
        text.push_str(&format!("  {}:\t{}\n", address.text("type"), address.text("address")))
    });
    for (title, field) in [("Capacity", "status.capacity"), ("Allocatable", "status.allocatable")] {
        if node.has(field) {
            text.push_str(&format!("{title}:\n"));
            node.entries(field)
                .into_iter()
                .for_each(|(name, quantity)| text.push_str(&format!("  {name}:\t{}\n", to_text(quantity))));
        }
    }
    text.push_str(&system_info(node));
    for (label, value) in [
        ("PodCIDR", node.text("spec.podCIDR").to_owned()),
        ("PodCIDRs", joined(node.list("spec.podCIDRs"))),
        ("ProviderID", node.text("spec.providerID").to_owned()),
    ] {
        if !value.is_empty() {
            text.push_str(&format!("{label}:\t{value}\n"));
        }
    }
    text.push_str(&pods(cli, node).await?);
    Ok(text)
}

fn roles(node: &Value) -> String {
    let mut roles: Vec<String> = Vec::new();
    for (key, value) in node.entries("metadata.labels") {
        if let Some(role) = key.strip_prefix("node-role.kubernetes.io/").filter(|role| !role.is_empty()) {
            roles.push(role.to_owned());
        } else if key == "kubernetes.io/role" {
            roles.push(to_text(value));
        }
    }
    roles.sort();
    roles.join(",")
}

fn joined(values: &[Value]) -> String {
    values.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",")
}

async fn lease(cli: &Cli, node: &Value) -> Result<String> {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}", node.name());
    match cli.client()?.get_json(&path).await {
        Ok(lease) => {
            let known = |field: &str| {
                if lease.has(field) { lease.text(field).to_owned() } else { "<unset>".to_owned() }
            };
            let instant =
                |field: &str| if lease.has(field) { time(lease.text(field)) } else { "<unset>".to_owned() };
            Ok(format!(
                "Lease:\n  HolderIdentity:\t{}\n  AcquireTime:\t{}\n  RenewTime:\t{}\n",
                known("spec.holderIdentity"),
                instant("spec.acquireTime"),
                instant("spec.renewTime")
            ))
        }
        Err(error) if error.status_code().is_some() => Ok(format!("Lease:\tFailed to get lease: {error}\n")),
        Err(error) => Err(error),
    }
}

fn system_info(node: &Value) -> String {
    let mut text = "System Info:\n".to_owned();
    for (label, field) in [
        ("Machine ID", "machineID"),
        ("System UUID", "systemUUID"),
        ("Boot ID", "bootID"),
        ("Kernel Version", "kernelVersion"),
        ("OS Image", "osImage"),
        ("Operating System", "operatingSystem"),
        ("Architecture", "architecture"),
        ("Container Runtime Version", "containerRuntimeVersion"),
        ("Kubelet Version", "kubeletVersion"),
    ] {
        text.push_str(&format!("  {label}:\t{}\n", node.text(&format!("status.nodeInfo.{field}"))));
    }
    text
}

/// What is requested and limited, of one resource.
#[derive(Clone, Copy)]
struct Share {
    request: Quantity,
    limit: Quantity,
}

async fn pods(cli: &Cli, node: &Value) -> Result<String> {
    let query = Query::new().with(
        "fieldSelector",
        &format!("spec.nodeName={},status.phase!=Succeeded,status.phase!=Failed", node.name()),
    );
    let pods = match list_all(cli, "/api/v1/pods", &query).await {
        Ok(pods) => pods,
        Err(error) if error.status_code() == Some(403) => return Ok("Pods:\tnot authorized\n".to_owned()),
        Err(error) => return Err(error),
    };
    let mut text = format!(
        "Non-terminated Pods:\t({} in total)\n  Namespace\tName\t\tCPU Requests\tCPU Limits\tMemory Requests\tMemory Limits\tAge\n  ---------\t----\t\t------------\t----------\t---------------\t-------------\t---\n",
        pods.len()
    );
    let totals = |resource: &str| node_amount(node, resource);
    let now = jiff::Timestamp::now();
    for pod in &pods {
        let (cpu, memory) = (share(pod, "cpu"), share(pod, "memory"));
        text.push_str(&format!(
            "  {}\t{}\t\t{}\t{}\t{}\t{}\t{}\n",
            pod.namespace(),
            pod.name(),
            percent(cpu.request, totals("cpu")),
            percent(cpu.limit, totals("cpu")),
            percent(memory.request, totals("memory")),
            percent(memory.limit, totals("memory")),
            duration::age(pod.text("metadata.creationTimestamp"), now)
        ));
    }
    text.push_str("Allocated resources:\n  (Total limits may be over 100 percent, i.e., overcommitted.)\n  Resource\tRequests\tLimits\n  --------\t--------\t------\n");
    let mut resources = vec!["cpu".to_owned(), "memory".to_owned(), "ephemeral-storage".to_owned()];
    let further = node.entries("status.allocatable").into_iter().map(|(name, _)| name.to_owned());
    resources.extend(further.filter(|name| name.contains('/') || name.starts_with("hugepages-")));
    for resource in &resources {
        let sum = pods.iter().map(|pod| share(pod, resource)).fold(
            Share { request: Quantity::ZERO, limit: Quantity::ZERO },
            |sum, share| Share { request: sum.request + share.request, limit: sum.limit + share.limit },
        );
        let total = totals(resource);
        if resource.contains('/') {
            text.push_str(&format!("  {resource}\t{}\t{}\n", sum.request, sum.limit));
        } else {
            text.push_str(&format!(
                "  {resource}\t{}\t{}\n",
                percent(sum.request, total),
                percent(sum.limit, total)
            ));
        }
    }
    Ok(text)
}

fn node_amount(node: &Value, resource: &str) -> Quantity {
    let list = if node.has("status.allocatable") { "status.allocatable" } else { "status.capacity" };
    let text = node.map(list).and_then(|amounts| amounts.get(resource)).map(to_text).unwrap_or_default();
    Quantity::parse(&text).unwrap_or(Quantity::ZERO)
}

fn percent(amount: Quantity, total: Quantity) -> String {
    let share =
        if total.milli() == 0 { 0 } else { i128::from(amount.milli()) * 100 / i128::from(total.milli()) };
    format!("{amount} ({share}%)")
}

/// All containers together, or the largest init container if that is more.
fn share(pod: &Value, resource: &str) -> Share {
    let amount = |container: &Value, list: &str| {
        let text = container
            .map(&format!("resources.{list}"))
            .and_then(|amounts| amounts.get(resource))
            .map(to_text)
            .unwrap_or_default();
        Quantity::parse(&text).unwrap_or(Quantity::ZERO)
    };
    let total = |list: &str| {
        let restartable = |container: &&Value| container.text("restartPolicy") == "Always";
        let steady = pod
            .list("spec.containers")
            .iter()
            .chain(pod.list("spec.initContainers").iter().filter(restartable))
            .map(|container| amount(container, list))
            .fold(Quantity::ZERO, |sum, quantity| sum + quantity);
        let init = pod
            .list("spec.initContainers")
            .iter()
            .filter(|container| !restartable(container))
            .map(|container| amount(container, list))
            .max()
            .unwrap_or(Quantity::ZERO);
        let overhead = pod
            .map("spec.overhead")
            .and_then(|amounts| amounts.get(resource))
            .map(to_text)
            .and_then(|text| Quantity::parse(&text).ok())
            .unwrap_or(Quantity::ZERO);
        steady.max(init) + overhead
    };
    Share { request: total("requests"), limit: total("limits") }
}
