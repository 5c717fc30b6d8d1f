//! `kubectl top`: what nodes and pods use, as the metrics API tells.

use ferry_api::quantity::Quantity;
use serde_json::Value;

use super::CLUSTER;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::printers::columns::{TABLE, align};
use crate::selection::{ALL_NAMESPACES_FLAGS, FIELD_SELECTOR_FLAGS, SELECTOR_FLAGS};
use crate::transport::{Query, Request};

pub const COMMAND: Command = Command {
    name: "top",
    suggested_for: &["stats"],
    group: CLUSTER,
    short: "Show what nodes or pods use",
    usage: "(node | pod)",
    children: &[&NODE, &POD],
    ..Command::NONE
};

const COMMON: &[Flag] = &[
    Flag::text("sort-by", "cpu or memory"),
    Flag::bool("no-headers", "Leave out the headers"),
    Flag::bool("use-protocol-buffers", "Accepted for compatibility").default("true"),
    Flag::bool("show-swap", "Show swap too"),
];

const NODE: Command = Command {
    name: "node",
    aliases: &["nodes", "no"],
    short: "Show what nodes use",
    usage: "[NAME | -l label]",
    flags: &[
        SELECTOR_FLAGS,
        COMMON,
        &[Flag::bool("show-capacity", "In percent of the capacity, not of what is allocatable")],
    ],
    run: Some(|cli| Box::pin(nodes(cli))),
    ..Command::NONE
};

const POD: Command = Command {
    name: "pod",
    aliases: &["pods", "po"],
    short: "Show what pods use",
    usage: "[NAME | -l label]",
    flags: &[
        SELECTOR_FLAGS,
        FIELD_SELECTOR_FLAGS,
        ALL_NAMESPACES_FLAGS,
        COMMON,
        &[Flag::bool("containers", "Show each container"), Flag::bool("sum", "Show the sum")],
    ],
    run: Some(|cli| Box::pin(pods(cli))),
    ..Command::NONE
};

const METRICS: &str = "/apis/metrics.k8s.io/v1beta1";

async fn check(cli: &Cli) -> Result<()> {
    if !matches!(cli.args.text("sort-by"), "" | "cpu" | "memory") {
        return Err(Error::message("--sort-by accepts only cpu or memory"));
    }
    if cli.args.positional.len() > 1 {
        return Err(cli.args.usage_error(
            cli.args.command.rsplit(' ').next().unwrap_or_default().to_owned() + " [NAME | -l label]",
        ));
    }
    let served = cli.discovery().await?.groups.iter().any(|group| group.name == "metrics.k8s.io");
    if served { Ok(()) } else { Err(Error::message("Metrics API not available")) }
}

async fn metrics(cli: &Cli, path: &str) -> Result<Vec<Value>> {
    let query = match cli.args.first() {
        Some(_) => Query::new(),
        None => Query::new()
            .with("fieldSelector", cli.args.text("field-selector"))
            .with("labelSelector", cli.args.text("selector")),
    };
    let path = match cli.args.first() {
        Some(name) => format!("{path}/{name}"),
        None => format!("{path}{query}"),
    };
    let answer = cli.client()?.json(Request::get(&path)).await?;
    Ok(if answer.at("items").is_array() { answer.list("items").to_vec() } else { vec![answer] })
}

fn usage(metric: &Value, resource: &str) -> Quantity {
    Quantity::parse(metric.text(&format!("usage.{resource}"))).unwrap_or(Quantity::ZERO)
}

fn cpu_text(quantity: Quantity) -> String {
    format!("{}m", quantity.milli())
}

fn memory_text(quantity: Quantity) -> String {
    format!("{}Mi", quantity.value() / (1024 * 1024))
}

/// A pod that has been there for longer than this should have been measured.
const FIRST_MEASURED: i64 = 120;

/// Why there are no figures of pods: there are no pods, they are too new, or something is wrong.
fn why_unmeasured(pods: &[Value], now: jiff::Timestamp) -> std::result::Result<(), String> {
    for pod in pods {
        let made = pod.text("metadata.creationTimestamp").parse::<jiff::Timestamp>();
        let age =
            made.map_or(0, |made| i64::try_from(now.duration_since(made).as_nanos()).unwrap_or(i64::MAX));
        if age > FIRST_MEASURED * 1_000_000_000 {
            let (namespace, name, age) = (pod.namespace(), pod.name(), ferry_api::duration::format(age));
            return Err(format!("Metrics not available for pod {namespace}/{name}, age: {age}"));
        }
    }
    if pods.is_empty() { Ok(()) } else { Err("metrics not available yet".into()) }
}

/// The heaviest first when sorted by a resource, else by name.
fn order(cli: &Cli, a: (Quantity, Quantity, &str), b: (Quantity, Quantity, &str)) -> std::cmp::Ordering {
    match cli.args.text("sort-by") {
        "cpu" => b.0.cmp(&a.0),
        "memory" => b.1.cmp(&a.1),
        _ => a.2.cmp(b.2),
    }
}

async fn nodes(cli: &Cli) -> Result<()> {
    check(cli).await?;
    let mut used = metrics(cli, &format!("{METRICS}/nodes")).await?;
    if used.is_empty() {
        return Err(Error::message("metrics not available yet"));
    }
    used.sort_by(|a, b| {
        order(
            cli,
            (usage(a, "cpu"), usage(a, "memory"), a.name()),
            (usage(b, "cpu"), usage(b, "memory"), b.name()),
        )
    });
    let known = cli.client()?.get_json("/api/v1/nodes").await?;
    let field = if cli.args.bool("show-capacity") { "status.capacity" } else { "status.allocatable" };
    let mut text = String::new();
    if !cli.args.bool("no-headers") {
        text.push_str("NAME\tCPU(cores)\tCPU(%)\tMEMORY(bytes)\tMEMORY(%)\t\n");
    }
    for metric in &used {
        let node = known.list("items").iter().find(|node| node.name() == metric.name());
        let share = |resource: &str, amount: Quantity| {
            let total = node.and_then(|node| Quantity::parse(node.text(&format!("{field}.{resource}"))).ok());
            match total {
                Some(total) if total.milli() > 0 => {
                    format!("{}%", amount.milli() as i128 * 100 / total.milli() as i128)
                }
                _ => "<unknown>".to_owned(),
            }
        };
        let (cpu, memory) = (usage(metric, "cpu"), usage(metric, "memory"));
        text.push_str(&format!(
            "{}\t{}\t{}\t{}\t{}\t\n",
            metric.name(),
            cpu_text(cpu),
            share("cpu", cpu),
            memory_text(memory),
            share("memory", memory)
        ));
    }
    cli.print(&align(&text, TABLE))
}

async fn pods(cli: &Cli) -> Result<()> {
    check(cli).await?;
    let all = cli.args.bool("all-namespaces");
    let namespace = cli.namespace()?.name;
    let path = if all { format!("{METRICS}/pods") } else { format!("{METRICS}/namespaces/{namespace}/pods") };
    let mut used = metrics(cli, &path).await?;
    if used.is_empty() {
        return nothing_measured(cli, &namespace, all).await;
    }
    used.sort_by(|a, b| {
        let key = |pod: &Value| format!("{}/{}", pod.namespace(), pod.name());
        order(
            cli,
            (total(a, "cpu"), total(a, "memory"), &key(a)),
            (total(b, "cpu"), total(b, "memory"), &key(b)),
        )
    });
    let containers = cli.args.bool("containers");
    let mut text = String::new();
    if !cli.args.bool("no-headers") {
        text.push_str(if all { "NAMESPACE\t" } else { "" });
        text.push_str(if containers { "POD\tNAME\t" } else { "NAME\t" });
        text.push_str("CPU(cores)\tMEMORY(bytes)\t\n");
    }
    for pod in &used {
        let place = if all { format!("{}\t", pod.namespace()) } else { String::new() };
        text.push_str(&pod_rows(pod, &place, containers));
    }
    if cli.args.bool("sum") {
        let sum = |resource: &str| used.iter().fold(Quantity::ZERO, |sum, pod| sum + total(pod, resource));
        let blank = format!("{}{}", if all { "\t" } else { "" }, if containers { "\t" } else { "" });
        text.push_str(&format!(
            "{blank}\t________\t________\t\n{blank}\t{}\t{}\t\n",
            cpu_text(sum("cpu")),
            memory_text(sum("memory"))
        ));
    }
    cli.print(&align(&text, TABLE))
}

/// The usage of all containers of a pod.
fn total(pod: &Value, resource: &str) -> Quantity {
    let containers = pod.list("containers").iter();
    containers.fold(Quantity::ZERO, |sum, container| sum + usage(container, resource))
}

/// One row, or one for each container.
fn pod_rows(pod: &Value, place: &str, containers: bool) -> String {
    let name = pod.name();
    if !containers {
        let (cpu, memory) = (cpu_text(total(pod, "cpu")), memory_text(total(pod, "memory")));
        return format!("{place}{name}\t{cpu}\t{memory}\t\n");
    }
    let rows = pod.list("containers").iter().map(|container| {
        let (cpu, memory) = (cpu_text(usage(container, "cpu")), memory_text(usage(container, "memory")));
        format!("{place}{name}\t{}\t{cpu}\t{memory}\t\n", container.text("name"))
    });
    rows.collect()
}

/// Fails where pods should have metrics by now; otherwise there are no pods.
async fn nothing_measured(cli: &Cli, namespace: &str, all: bool) -> Result<()> {
    let query = Query::new()
        .with("fieldSelector", cli.args.text("field-selector"))
        .with("labelSelector", cli.args.text("selector"));
    let path = format!("/api/v1/namespaces/{namespace}/pods{query}");
    let pods = cli.client()?.get_json(&path).await?;
    why_unmeasured(pods.list("items"), jiff::Timestamp::now()).map_err(Error::message)?;
    if all {
        eprintln!("No resources found");
    } else {
        eprintln!("No resources found in {namespace} namespace.");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_without_figures_are_new_or_something_is_wrong() {
        let now: jiff::Timestamp = "2026-01-01T00:10:00Z".parse().expect("a time");
        let check = |made: &[&str], expected: std::result::Result<(), &str>| {
            let pod = |made: &&str| serde_json::json!({"metadata": {"namespace": "ns", "name": "p", "creationTimestamp": made}});
            let pods: Vec<Value> = made.iter().map(pod).collect();
            assert_eq!(why_unmeasured(&pods, now), expected.map_err(str::to_owned));
        };
        check(&[], Ok(()));
        check(&["2026-01-01T00:09:30Z"], Err("metrics not available yet"));
        check(
            &["2026-01-01T00:09:30Z", "2026-01-01T00:07:30Z"],
            Err("Metrics not available for pod ns/p, age: 2m30s"),
        );
    }
}
