//! Reasons for a person, in a few lines each.

use super::change::Change;
use super::decide::{Cause, Reason, What, Writer, container_of};
use crate::terminal::{inert, inert_lines};
use crate::waterfall::time;

pub fn tell(reasons: &[Reason], now: Option<&str>) -> String {
    let mut lines: Vec<String> = now.map(|now| format!("now: {}", inert_lines(now))).into_iter().collect();
    for reason in reasons {
        let mut told = vec![headline(reason)];
        told.extend(reason.nodes.iter().map(|node| format!("  node {node}")));
        told.extend(by(&reason.writer).map(|by| format!("  by {by}")));
        told.extend(reason.because.iter().map(|cause| format!("  because {}", because(cause))));
        lines.extend(told.iter().map(|line| inert(line).into_owned()));
    }
    lines.join("\n")
}

fn headline(reason: &Reason) -> String {
    let at = time(reason.time).unwrap_or_default();
    let revision = reason.revision.map(|revision| format!(" (r{revision})")).unwrap_or_default();
    let detail = reason.detail.as_deref().map(|detail| format!(": {detail}")).unwrap_or_default();
    let until = reason.until.and_then(time).map(|until| format!(" until {until}")).unwrap_or_default();
    let what = match until.is_empty() {
        true => what(reason.what, &reason.changes, true),
        false => what(reason.what, &reason.changes, true).replacen(" is ", " was ", 1),
    };
    let earlier = if reason.is_earlier { " (an earlier object of this name)" } else { "" };
    format!("{}{earlier}{what} {at}{until}{revision}{detail}", reason.object)
}

fn because(cause: &Cause) -> String {
    let by = by(&cause.writer).map(|by| format!(", by {by}")).unwrap_or_default();
    format!("{}{} (r{}){by}", cause.object, what(cause.what, &cause.changes, false), cause.revision)
}

fn what(what: What, changes: &[Change], is_headline: bool) -> String {
    if let (What::Scheduled, [Change { to: Some(node), .. }]) = (what, changes) {
        return format!(" was scheduled to node {node}");
    }
    let changes: Vec<String> = changes.iter().map(|change| short(what, change)).collect();
    let changed = if changes.is_empty() { String::new() } else { format!(": {}", changes.join(", ")) };
    let word = match what {
        What::Deleted => " was deleted",
        What::Evicted => " was evicted",
        What::Preempted => " was preempted",
        What::Pending => " is pending",
        What::Restarted => " was restarted",
        What::NotReady => " became not ready",
        What::Unreachable => " became unreachable",
        What::Ready => " became ready",
        What::Scheduled => " was scheduled",
        What::Created => " was created",
        // A field that was asked for speaks for itself, and so does a cause.
        What::Changed if changes.is_empty() => " was changed",
        What::Scaled | What::Changed if !is_headline => "",
        What::Changed if changes.len() == 1 && !changes[0].ends_with(" changed") => "",
        What::Scaled => " was scaled",
        What::Changed => " was changed",
    };
    format!("{word}{changed}")
}

/// A change in the words of what happened, where that says all of it.
fn short(what: What, change: &Change) -> String {
    let values = [&change.from, &change.to].map(|value| value.as_deref().unwrap_or("none"));
    let [from, to] = values;
    match (what, container_of(&change.field)) {
        (What::Restarted, Some(container)) => format!("container {container}, restartCount {from}→{to}"),
        (What::NotReady | What::Unreachable | What::Ready, _) => format!("Ready {from}→{to}"),
        _ => change.to_string(),
    }
}

fn by(writer: &Writer) -> Option<String> {
    let name = match (&writer.component, &writer.user) {
        (Some(component), Some(user)) => format!("the {component} ({user})"),
        (Some(component), None) => format!("the {component}"),
        (None, Some(user)) => user.clone(),
        (None, None) => return None,
    };
    Some(match &writer.command {
        Some(command) => format!("{name} with {command}"),
        None => name,
    })
}
