//! Reasons for a person, in a few lines each.

use super::change::Change;
use super::decide::{Cause, Reason, What, Writer};
use crate::terminal::{inert, inert_lines};
use crate::waterfall::time;

pub fn tell(reasons: &[Reason], now: Option<&str>) -> String {
    let mut lines: Vec<String> = Vec::new();
    for reason in reasons {
        lines.push(headline(reason));
        lines.extend(by(&reason.writer).map(|by| format!("  by {by}")));
        lines.extend(reason.because.iter().map(|cause| format!("  because {}", because(cause))));
    }
    let mut lines: Vec<String> = lines.iter().map(|line| inert(line).into_owned()).collect();
    lines.extend(now.map(|now| format!("now: {}", inert_lines(now))));
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
    format!("{}{what} {at}{until}{revision}{detail}", reason.object)
}

fn because(cause: &Cause) -> String {
    let by = by(&cause.writer).map(|by| format!(", by {by}")).unwrap_or_default();
    format!("{}{} (r{}){by}", cause.object, what(cause.what, &cause.changes, false), cause.revision)
}

fn what(what: What, changes: &[Change], is_headline: bool) -> String {
    let changes: Vec<String> = changes.iter().map(Change::to_string).collect();
    let changed = if changes.is_empty() { String::new() } else { format!(": {}", changes.join(", ")) };
    let word = match what {
        What::Deleted => " was deleted",
        What::Evicted => " was evicted",
        What::Preempted => " was preempted",
        What::Pending => " is pending",
        What::Restarted => " was restarted",
        What::NotReady => " became not ready",
        What::Unreachable => " became unreachable",
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
