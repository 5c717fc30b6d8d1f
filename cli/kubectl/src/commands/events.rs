//! `kubectl events`.

use serde_json::{Value, json};

use super::TROUBLESHOOT;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::printers::columns::{TABLE, align_remembering};
use crate::printers::duration::age;
use crate::printers::{self, Format, OBJECT_FORMATS, inert};
use crate::selection::{ALL_NAMESPACES_FLAGS, CHUNK_FLAGS, list_all};
use crate::transport::{JSON, Query};
use crate::watch::Events;

pub const COMMAND: Command = Command {
    name: "events",
    group: TROUBLESHOOT,
    short: "List events",
    usage: "[(-o|--output=)json|yaml] [--for TYPE/NAME] [--watch] [--types=Normal,Warning]",
    flags: &[
        ALL_NAMESPACES_FLAGS,
        CHUNK_FLAGS,
        printers::FLAGS,
        &[
            Flag::text("for", "Only events of this object, as type/name"),
            Flag::list("types", "Only these types: Normal, Warning"),
            Flag::bool("watch", "Go on showing new ones").short('w'),
            Flag::bool("no-headers", "Leave out the headers"),
        ],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

async fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    if args
        .list("types")
        .iter()
        .any(|kind| !kind.eq_ignore_ascii_case("Normal") && !kind.eq_ignore_ascii_case("Warning"))
    {
        return Err(Error::message("valid --types are Normal or Warning"));
    }
    let format = Format::from_args(args, OBJECT_FORMATS)?;
    let namespace = if args.bool("all-namespaces") { String::new() } else { cli.namespace()?.name };
    let query = Query::new().with("fieldSelector", &selector(cli).await?);
    let path = if namespace.is_empty() {
        "/api/v1/events".to_owned()
    } else {
        format!("/api/v1/namespaces/{namespace}/events")
    };
    if args.bool("watch") {
        return watch(cli, &path, query, &namespace, &format).await;
    }
    let mut events = list_all(cli, &path, &query).await?;
    events.retain(|event| wanted(cli, event));
    events.sort_by_key(|event| last_seen(event).to_owned());
    if events.is_empty() {
        if namespace.is_empty() {
            eprintln!("No events found.");
        } else {
            eprintln!("No events found in {namespace} namespace.");
        }
        return Ok(());
    }
    if !format.is_human() {
        for event in &mut events {
            event["kind"] = json!("Event");
            event["apiVersion"] = json!("v1");
        }
        let list =
            json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": events});
        return cli.print(&format.print(&list, args)?);
    }
    let text: String = events.iter().map(|event| row(event, namespace.is_empty())).collect();
    cli.print(&align_remembering(&(header(cli, &namespace) + &text), TABLE, &mut Vec::new()))
}

/// Every event that there is and that comes, the header with the first.
async fn watch(cli: &Cli, path: &str, query: Query, namespace: &str, format: &Format) -> Result<()> {
    let mut stream = Events::start(cli.client()?, path, query, JSON).await?;
    let mut widths = Vec::new();
    let mut is_first = true;
    while let Some(mut event) = stream.next().await? {
        if !matches!(event.kind.as_str(), "ADDED" | "MODIFIED") || !wanted(cli, &event.object) {
            continue;
        }
        let text = if format.is_human() {
            let header = if is_first { header(cli, namespace) } else { String::new() };
            align_remembering(&(header + &row(&event.object, namespace.is_empty())), TABLE, &mut widths)
        } else {
            event.object["kind"] = json!("Event");
            event.object["apiVersion"] = json!("v1");
            let separator = if *format == Format::Yaml && !is_first { "---\n" } else { "" };
            format!("{separator}{}", format.print(&event.object, &cli.args)?)
        };
        cli.print(&text)?;
        cli.flush()?;
        is_first = false;
    }
    Ok(())
}

fn header(cli: &Cli, namespace: &str) -> String {
    if cli.args.bool("no-headers") {
        return String::new();
    }
    let place = if namespace.is_empty() { "NAMESPACE\t" } else { "" };
    format!("{place}LAST SEEN\tTYPE\tREASON\tOBJECT\tMESSAGE\n")
}

fn wanted(cli: &Cli, event: &Value) -> bool {
    let types = cli.args.list("types");
    types.is_empty() || types.iter().any(|kind| kind.eq_ignore_ascii_case(event.text("type")))
}

async fn selector(cli: &Cli) -> Result<String> {
    let target = cli.args.text("for");
    if target.is_empty() {
        return Ok(String::new());
    }
    let Some((kind, name)) = target.split_once('/') else {
        return Err(Error::message("--for must be in resource/name form"));
    };
    if name.contains('/') {
        return Err(Error::message("arguments in resource/name form may not have more than one slash"));
    }
    let resource = cli.resource(kind).await?;
    Ok(format!(
        "involvedObject.kind={},involvedObject.apiVersion={},involvedObject.name={name}",
        resource.kind,
        resource.group_version()
    ))
}

/// When an event was seen last, wherever it says so.
pub fn last_seen(event: &Value) -> &str {
    ["series.lastObservedTime", "lastTimestamp", "eventTime", "firstTimestamp", "metadata.creationTimestamp"]
        .into_iter()
        .map(|field| event.text(field))
        .find(|time| !time.is_empty())
        .unwrap_or("")
}

/// `5m`, or `5m (x3 over 1h)` when it happened more than once.
pub fn interval(event: &Value) -> String {
    let now = jiff::Timestamp::now();
    let last = age(last_seen(event), now);
    let first = ["firstTimestamp", "eventTime"]
        .into_iter()
        .map(|field| event.text(field))
        .find(|time| !time.is_empty())
        .unwrap_or(last_seen(event));
    let count = event.int("series.count").or(event.int("count")).unwrap_or(1);
    if count > 1 { format!("{last} (x{count} over {})", age(first, now)) } else { age(first, now) }
}

fn row(event: &Value, with_namespace: bool) -> String {
    let place = if with_namespace { format!("{}\t", event.namespace()) } else { String::new() };
    let row = format!(
        "{place}{}\t{}\t{}\t{}/{}\t{}\n",
        interval(event),
        event.text("type"),
        event.text("reason"),
        event.text("involvedObject.kind"),
        event.text("involvedObject.name"),
        event.text("message").trim()
    );
    inert(&row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_cannot_send_terminal_sequences() {
        let event = json!({"type": "Normal", "reason": "R\u{1b}[1m", "message": "a\u{1b}]0;b\u{7}\rc",
            "involvedObject": {"kind": "Pod", "name": "p"}, "lastTimestamp": "2026-01-01T00:00:00Z"});
        let row = row(&event, false);
        assert!(row.ends_with("\tNormal\tR^[[1m\tPod/p\ta^[]0;b\u{7}\\rc\n"), "{row:?}");
    }
}
