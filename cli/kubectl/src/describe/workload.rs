//! Workloads: what they want, what they have, and the template in between.

use serde_json::Value;

use super::metadata::{annotations, controller, labels, selector};
use super::pod::pod_template;
use super::{or_none, time, title_bool};
use crate::cli::Cli;
use crate::commands::rollout::revisions;
use crate::error::Result;
use crate::fields::Fields;
use crate::pods;
use crate::printers::duration;
use crate::selection::Info;
use ferry_api::json_path::to_text;

fn names(object: &Value) -> String {
    format!("Name:\t{}\nNamespace:\t{}\n", object.name(), object.namespace())
}

fn count(object: &Value, field: &str) -> i64 {
    object.int(&format!("status.{field}")).unwrap_or(0)
}

pub async fn deployment(cli: &Cli, info: &Info) -> Result<String> {
    let object = &info.object;
    let mut text = names(object);
    text.push_str(&format!("CreationTimestamp:\t{}\n", time(object.text("metadata.creationTimestamp"))));
    text.push_str(&labels("Labels", object, "metadata.labels", ""));
    text.push_str(&annotations(object, ""));
    text.push_str(&format!("Selector:\t{}\n", selector(object.at("spec.selector"))));
    text.push_str(&format!(
        "Replicas:\t{} desired | {} updated | {} total | {} available | {} unavailable\n",
        object.int("spec.replicas").unwrap_or(0),
        count(object, "updatedReplicas"),
        count(object, "replicas"),
        count(object, "availableReplicas"),
        count(object, "unavailableReplicas")
    ));
    text.push_str(&format!(
        "StrategyType:\t{}\nMinReadySeconds:\t{}\n",
        object.text("spec.strategy.type"),
        object.int("spec.minReadySeconds").unwrap_or(0)
    ));
    let rolling = object.at("spec.strategy.rollingUpdate");
    if !rolling.is_null() {
        text.push_str(&format!(
            "RollingUpdateStrategy:\t{} max unavailable, {} max surge\n",
            to_text(rolling.at("maxUnavailable")),
            to_text(rolling.at("maxSurge"))
        ));
    }
    text.push_str(&pod_template(object.at("spec.template"), ""));
    text.push_str(&short_conditions(object));
    let sets = revisions(cli, info).await?;
    if let Some(((_, newest), old)) = sets.split_last() {
        let old = old.iter().map(|(_, set)| replica_set_summary(set)).collect::<Vec<_>>().join(", ");
        let newest = replica_set_summary(newest);
        text.push_str(&format!("OldReplicaSets:\t{}\nNewReplicaSet:\t{newest}\n", or_none(old)));
    }
    Ok(text)
}

fn replica_set_summary(set: &Value) -> String {
    let (created, desired) = (count(set, "replicas"), set.int("spec.replicas").unwrap_or(0));
    format!("{} ({created}/{desired} replicas created)", set.name())
}

/// The number of pods in each phase.
async fn pods_status(cli: &Cli, object: &Value) -> Result<String> {
    let mut counts = [0; 4];
    let pods = match pods::selector_of(object) {
        Ok(selector) => pods::list(cli, object.namespace(), &selector).await?,
        Err(_) => Vec::new(),
    };
    let uid = object.text("metadata.uid");
    for pod in pods
        .iter()
        .filter(|pod| pod.list("metadata.ownerReferences").iter().any(|owner| owner.text("uid") == uid))
    {
        match pod.text("status.phase") {
            "Running" => counts[0] += 1,
            "Pending" => counts[1] += 1,
            "Succeeded" => counts[2] += 1,
            "Failed" => counts[3] += 1,
            _ => {}
        }
    }
    Ok(format!(
        "Pods Status:\t{} Running / {} Waiting / {} Succeeded / {} Failed\n",
        counts[0], counts[1], counts[2], counts[3]
    ))
}

pub async fn replica_set(cli: &Cli, object: &Value) -> Result<String> {
    let mut text = names(object);
    let structured = object.at("spec.selector");
    let chosen = if object.kind() == "ReplicaSet" {
        selector(structured)
    } else {
        or_none(
            object
                .entries("spec.selector")
                .into_iter()
                .map(|(key, value)| format!("{key}={}", to_text(value)))
                .collect::<Vec<_>>()
                .join(","),
        )
    };
    text.push_str(&format!("Selector:\t{chosen}\n"));
    text.push_str(&labels("Labels", object, "metadata.labels", ""));
    text.push_str(&annotations(object, ""));
    text.push_str(&controller(object));
    text.push_str(&format!(
        "Replicas:\t{} current / {} desired\n",
        count(object, "replicas"),
        object.int("spec.replicas").unwrap_or(0)
    ));
    text.push_str(&pods_status(cli, object).await?);
    text.push_str(&pod_template(object.at("spec.template"), ""));
    text.push_str(&short_conditions(object));
    Ok(text)
}

fn short_conditions(object: &Value) -> String {
    let conditions = object.list("status.conditions");
    if conditions.is_empty() {
        return String::new();
    }
    let rows: String = conditions
        .iter()
        .map(|condition| {
            format!(
                "  {} \t{}\t{}\n",
                condition.text("type"),
                condition.text("status"),
                condition.text("reason")
            )
        })
        .collect();
    format!("Conditions:\n  Type\tStatus\tReason\n  ----\t------\t------\n{rows}")
}

pub async fn stateful_set(cli: &Cli, object: &Value) -> Result<String> {
    let mut text = names(object);
    text.push_str(&format!(
        "CreationTimestamp:\t{}\nSelector:\t{}\n",
        time(object.text("metadata.creationTimestamp")),
        selector(object.at("spec.selector"))
    ));
    text.push_str(&labels("Labels", object, "metadata.labels", ""));
    text.push_str(&annotations(object, ""));
    text.push_str(&format!(
        "Replicas:\t{} desired | {} total\n",
        object.int("spec.replicas").unwrap_or(0),
        count(object, "replicas")
    ));
    text.push_str(&format!("Update Strategy:\t{}\n", object.text("spec.updateStrategy.type")));
    if object.has("spec.updateStrategy.rollingUpdate") {
        text.push_str(&format!(
            "  Partition:\t{}\n",
            object.int("spec.updateStrategy.rollingUpdate.partition").unwrap_or(0)
        ));
    }
    text.push_str(&pods_status(cli, object).await?);
    text.push_str(&pod_template(object.at("spec.template"), ""));
    let claims = object.list("spec.volumeClaimTemplates");
    if claims.is_empty() {
        text.push_str("Volume Claims:\t<none>\n");
    } else {
        text.push_str("Volume Claims:\n");
    }
    for claim in claims {
        text.push_str(&format!(
            "  Name:\t{}\n  StorageClass:\t{}\n",
            claim.name(),
            claim.text("spec.storageClassName")
        ));
        text.push_str(&labels("Labels", claim, "metadata.labels", "  "));
        text.push_str(&annotations(claim, "  "));
        let storage = claim
            .map("spec.resources.requests")
            .and_then(|requests| requests.get("storage"))
            .map(to_text)
            .unwrap_or_else(|| "<default>".to_owned());
        let modes: Vec<&str> = claim.list("spec.accessModes").iter().filter_map(Value::as_str).collect();
        text.push_str(&format!("  Capacity:\t{storage}\n  Access Modes:\t[{}]\n", modes.join(" ")));
    }
    Ok(text)
}

pub async fn daemon_set(cli: &Cli, object: &Value) -> Result<String> {
    let mut text = names(object);
    text.push_str(&format!("Selector:\t{}\n", selector(object.at("spec.selector"))));
    let nodes: Vec<String> = object
        .entries("spec.template.spec.nodeSelector")
        .into_iter()
        .map(|(key, value)| format!("{key}={}", to_text(value)))
        .collect();
    text.push_str(&format!("Node-Selector:\t{}\n", or_none(nodes.join(","))));
    text.push_str(&labels("Labels", object, "metadata.labels", ""));
    text.push_str(&annotations(object, ""));
    for (label, field) in [
        ("Desired Number of Nodes Scheduled", "desiredNumberScheduled"),
        ("Current Number of Nodes Scheduled", "currentNumberScheduled"),
        ("Number of Nodes Scheduled with Up-to-date Pods", "updatedNumberScheduled"),
        ("Number of Nodes Scheduled with Available Pods", "numberAvailable"),
        ("Number of Nodes Misscheduled", "numberMisscheduled"),
    ] {
        text.push_str(&format!("{label}: {}\n", count(object, field)));
    }
    text.push_str(&pods_status(cli, object).await?);
    text.push_str(&pod_template(object.at("spec.template"), ""));
    Ok(text)
}

pub fn job(object: &Value) -> String {
    let mut text = names(object);
    text.push_str(&format!("Selector:\t{}\n", selector(object.at("spec.selector"))));
    text.push_str(&labels("Labels", object, "metadata.labels", ""));
    text.push_str(&annotations(object, ""));
    text.push_str(&controller(object));
    let number = |label: &str, path: &str, unset: &str| match object.int(path) {
        Some(number) => format!("{label}:\t{number}\n"),
        None => format!("{label}:\t{unset}\n"),
    };
    text.push_str(&number("Parallelism", "spec.parallelism", "<unset>"));
    text.push_str(&number("Completions", "spec.completions", "<unset>"));
    if object.has("spec.completionMode") {
        text.push_str(&format!("Completion Mode:\t{}\n", object.text("spec.completionMode")));
    }
    if object.has("spec.suspend") {
        text.push_str(&format!("Suspend:\t{}\n", object.flag("spec.suspend")));
    }
    text.push_str(&number("Backoff Limit", "spec.backoffLimit", "<unset>"));
    if let Some(seconds) = object.int("spec.ttlSecondsAfterFinished") {
        text.push_str(&format!("TTL Seconds After Finished:\t{seconds}\n"));
    }
    let (start, end) = (object.text("status.startTime"), object.text("status.completionTime"));
    if !start.is_empty() {
        text.push_str(&format!("Start Time:\t{}\n", time(start)));
    }
    if !end.is_empty() {
        text.push_str(&format!("Completed At:\t{}\n", time(end)));
        if let (Ok(start), Ok(end)) = (start.parse::<jiff::Timestamp>(), end.parse::<jiff::Timestamp>()) {
            text.push_str(&format!("Duration:\t{}\n", duration::human(end.as_second() - start.as_second())));
        }
    }
    if let Some(seconds) = object.int("spec.activeDeadlineSeconds") {
        text.push_str(&format!("Active Deadline Seconds:\t{seconds}s\n"));
    }
    let ready = object.int("status.ready").map(|ready| format!(" ({ready} Ready)")).unwrap_or_default();
    text.push_str(&format!(
        "Pods Statuses:\t{} Active{ready} / {} Succeeded / {} Failed\n",
        count(object, "active"),
        count(object, "succeeded"),
        count(object, "failed")
    ));
    if object.text("spec.completionMode") == "Indexed" {
        text.push_str(&format!(
            "Completed Indexes:\t{}\n",
            or_none(object.text("status.completedIndexes").to_owned())
        ));
    }
    text.push_str(&pod_template(object.at("spec.template"), ""));
    text
}

pub fn cron_job(object: &Value) -> String {
    let mut text = names(object);
    text.push_str(&labels("Labels", object, "metadata.labels", ""));
    text.push_str(&annotations(object, ""));
    text.push_str(&format!(
        "Schedule:\t{}\nConcurrency Policy:\t{}\nSuspend:\t{}\n",
        object.text("spec.schedule"),
        object.text("spec.concurrencyPolicy"),
        title_bool(object.flag("spec.suspend"))
    ));
    text.push_str(&format!("Time Zone:\t{}\n", super::or_unset(object.text("spec.timeZone").to_owned())));
    let number =
        |path: &str| object.int(path).map_or_else(|| "<unset>".to_owned(), |number| number.to_string());
    text.push_str(&format!(
        "Successful Job History Limit:\t{}\nFailed Job History Limit:\t{}\n",
        number("spec.successfulJobsHistoryLimit"),
        number("spec.failedJobsHistoryLimit")
    ));
    let deadline = object
        .int("spec.startingDeadlineSeconds")
        .map_or_else(|| "<unset>".to_owned(), |seconds| format!("{seconds}s"));
    text.push_str(&format!("Starting Deadline Seconds:\t{deadline}\n"));
    let job = object.at("spec.jobTemplate.spec");
    text.push_str(&format!("Selector:\t{}\n", selector(job.at("selector"))));
    text.push_str(&format!(
        "Parallelism:\t{}\nCompletions:\t{}\n",
        number("spec.jobTemplate.spec.parallelism"),
        number("spec.jobTemplate.spec.completions")
    ));
    if let Some(seconds) = job.int("activeDeadlineSeconds") {
        text.push_str(&format!("Active Deadline Seconds:\t{seconds}s\n"));
    }
    text.push_str(&pod_template(job.at("template"), ""));
    let last = object.text("status.lastScheduleTime");
    text.push_str(&format!(
        "Last Schedule Time:\t{}\n",
        if last.is_empty() { "<unset>".to_owned() } else { time(last) }
    ));
    let active: Vec<&str> = object.list("status.active").iter().map(|job| job.text("name")).collect();
    text.push_str(&format!("Active Jobs:\t{}\n", or_none(active.join(", "))));
    text
}
