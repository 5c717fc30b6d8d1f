//! `kubectl wait`: until a condition holds, a field has a value, an object exists or is gone.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::ADVANCED;
use super::delete::until_gone;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::printers::{self, Format, OBJECT_FORMATS, named};
use crate::selection::{
    ALL_NAMESPACES_FLAGS, FIELD_SELECTOR_FLAGS, Info, RECURSIVE_FILE_FLAGS, SELECTOR_FLAGS, Selection, Target,
};
use crate::transport::{JSON, Query};
use crate::watch::Events;
use ferry_api::json_path::{Template, to_text};

pub const COMMAND: Command = Command {
    name: "wait",
    group: ADVANCED,
    short: "Wait for a condition on resources",
    usage: "([-f FILENAME] | resource.group/resource.name | resource.group [(-l label | --all)]) [--for=create|--for=delete|--for condition=available|--for=jsonpath='{}'[=value]]",
    flags: &[
        RECURSIVE_FILE_FLAGS,
        SELECTOR_FLAGS,
        FIELD_SELECTOR_FLAGS,
        ALL_NAMESPACES_FLAGS,
        printers::FLAGS,
        &[
            Flag::array("for", "create, delete, condition=NAME[=VALUE], or jsonpath='{.field}'[=value]"),
            Flag::duration("timeout", "How long to wait for all of it; 0 looks once, negative is a week")
                .default("30s"),
            Flag::bool("all", "All resources of the type"),
            Flag::bool("local", "Accepted for compatibility"),
        ],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

/// How often objects that are not there yet are looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

enum WaitFor {
    Create,
    Delete,
    Condition { kind: String, status: String },
    Field { path: Template, value: Option<String> },
}

impl WaitFor {
    fn parse(text: &str) -> Result<Self> {
        let lower = text.to_lowercase();
        if lower == "create" {
            return Ok(WaitFor::Create);
        }
        if lower == "delete" {
            return Ok(WaitFor::Delete);
        }
        if let Some(condition) = text.strip_prefix("condition=") {
            let (kind, status) = condition.split_once('=').unwrap_or((condition, "true"));
            return Ok(WaitFor::Condition { kind: kind.to_owned(), status: status.to_owned() });
        }
        if let Some(expression) = text.strip_prefix("jsonpath=") {
            let (path, value) = split_expression(expression)?;
            let path = Template::parse_relaxed(path.trim_matches(['\'', '"'])).map_err(Error::message)?;
            return Ok(WaitFor::Field { path, value });
        }
        Err(Error::message(format!("unrecognized condition: {text:?}")))
    }

    fn is_met(&self, object: &Value) -> Result<bool> {
        match self {
            WaitFor::Create => Ok(true),
            WaitFor::Delete => Ok(false),
            WaitFor::Condition { kind, status } => {
                // Of a definition that nobody has looked at the server writes `conditions: null`. Upstream's kubectl ends with an
                // accessor error then, so that `apply` and `wait` in turn fail now and then; null is "not yet" here.
                let condition = object
                    .list("status.conditions")
                    .iter()
                    .find(|condition| condition.text("type").eq_ignore_ascii_case(kind));
                let Some(condition) = condition else { return Ok(false) };
                // a condition about an older generation says nothing about this one
                let observed =
                    condition.int("observedGeneration").or(object.int("status.observedGeneration"));
                if let (Some(observed), Some(generation)) = (observed, object.int("metadata.generation"))
                    && observed < generation
                {
                    return Ok(false);
                }
                Ok(condition.text("status").eq_ignore_ascii_case(status))
            }
            WaitFor::Field { path, value } => {
                let found = path.evaluate(object, true).map_err(Error::message)?.values();
                match (found.as_slice(), value) {
                    ([], _) => Ok(false),
                    (_, None) => Ok(true),
                    ([Value::Object(_) | Value::Array(_)], Some(_)) => Err(Error::message(
                        "jsonpath leads to a nested object or list which is not supported",
                    )),
                    ([only], Some(wanted)) => Ok(to_text(only).trim() == wanted.trim()),
                    _ => Err(Error::message("given jsonpath expression matches more than one value")),
                }
            }
        }
    }
}

/// `{.a.b}=value`. Two equal signs belong to the path: a filter compares with them.
fn split_expression(expression: &str) -> Result<(&str, Option<String>)> {
    let mut singles = Vec::new();
    let mut position = 0;
    let bytes = expression.as_bytes();
    while position < bytes.len() {
        if bytes[position] == b'=' {
            if bytes.get(position + 1) == Some(&b'=') {
                position += 1;
            } else {
                singles.push(position);
            }
        }
        position += 1;
    }
    match singles.as_slice() {
        [] => Ok((expression, None)),
        [at] => match expression[at + 1..].trim_matches(['\'', '"']) {
            "" => Err(Error::message(
                "jsonpath wait has to have a value after equal sign, like --for=jsonpath='{.status.readyReplicas}'=3",
            )),
            value => Ok((&expression[..*at], Some(value.to_owned()))),
        },
        _ => Err(Error::message(
            "jsonpath wait format must be --for=jsonpath='{.status.readyReplicas}'=3 or --for=jsonpath='{.status.readyReplicas}'",
        )),
    }
}

async fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    let goals = args.list("for");
    if goals.is_empty() {
        return Err(Error::message("unrecognized condition: []"));
    }
    let parsed = goals.iter().map(|goal| WaitFor::parse(goal)).collect::<Result<Vec<_>>>()?;
    let for_deletion = parsed.iter().any(|goal| matches!(goal, WaitFor::Delete));
    let format = Format::from_args(args, OBJECT_FORMATS)?;
    let mut selection = Selection::from_args(cli, &args.positional);
    selection.chunk = 500;
    let timeout = match args.duration("timeout") {
        zero if zero.is_zero() && args.text("timeout").starts_with('-') => Duration::from_secs(7 * 24 * 3600),
        given => given,
    };
    // one time for all of them
    let deadline = Instant::now() + timeout;
    let targets = selection.targets(cli).await?;
    if parsed.iter().any(|goal| matches!(goal, WaitFor::Create)) {
        until_created(cli, &selection, &targets, deadline).await?;
    }
    let mut errors = Vec::new();
    let mut visited = 0;
    for target in targets {
        let infos = match selection.fetch_one(cli, target).await {
            Ok(infos) => infos,
            Err(error) if error.is_not_found() && for_deletion => continue,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        for info in infos {
            visited += 1;
            for goal in &parsed {
                match wait(cli, &info, goal, timeout, deadline).await {
                    Ok(object) if format.is_human() => cli.print(&named(&object, "condition met"))?,
                    Ok(object) => cli.print(&format.print(&object, args)?)?,
                    Err(error) => {
                        errors.push(error);
                        break;
                    }
                }
            }
            cli.flush()?;
        }
    }
    if visited == 0 && errors.is_empty() && !for_deletion {
        return Err(Error::message("no matching resources found"));
    }
    Error::collect(errors)
}

/// Looks for the objects again and again: a selector has nothing yet that could be watched by name.
async fn until_created(
    cli: &Cli,
    selection: &Selection,
    targets: &[Target],
    deadline: Instant,
) -> Result<()> {
    let mut tick = tokio::time::interval(LOOK_AGAIN);
    loop {
        tick.tick().await;
        let mut found = 0;
        let mut missing = Vec::new();
        for target in targets {
            match selection.fetch_one(cli, target.clone()).await {
                Ok(infos) => found += infos.len(),
                Err(error) if error.is_not_found() => missing.push(error),
                Err(error) => return Err(error),
            }
        }
        if found > 0 && missing.is_empty() {
            return Ok(());
        }
        // upstream waits for one at a time
        if missing.len() > 1 {
            return Error::collect(missing);
        }
        if Instant::now() + LOOK_AGAIN > deadline {
            return Err(Error::message("timed out waiting for the condition"));
        }
    }
}

async fn wait(cli: &Cli, info: &Info, goal: &WaitFor, timeout: Duration, deadline: Instant) -> Result<Value> {
    let what = format!("{}/{}", info.resource.name, info.name);
    let timed_out = || Error::message(format!("timed out waiting for the condition on {what}"));
    let once = || Error::message(format!("condition not met for {what}"));
    // Upstream's one deadline is for all: what comes after it is not looked at.
    if !timeout.is_zero() && Instant::now() >= deadline {
        return Err(timed_out());
    }
    if let WaitFor::Delete = goal {
        if timeout.is_zero() {
            return match cli.client()?.get_json(&info.path()).await {
                Err(error) if error.is_not_found() => Ok(info.object.clone()),
                outcome => outcome.and(Err(once())),
            };
        }
        let gone = until_gone(cli, info, info.object.text("metadata.uid"));
        tokio::time::timeout_at(deadline, gone).await.map_err(|_| timed_out())??;
        return Ok(info.object.clone());
    }
    if info.object.is_object() && goal.is_met(&info.object)? {
        return Ok(info.object.clone());
    }
    if timeout.is_zero() {
        return Err(once());
    }
    tokio::time::timeout_at(deadline, until_met(cli, info, goal)).await.map_err(|_| timed_out())?
}

async fn until_met(cli: &Cli, info: &Info, goal: &WaitFor) -> Result<Value> {
    let path = info.resource.path(&info.namespace);
    let query = Query::new().with("fieldSelector", &format!("metadata.name={}", info.name));
    loop {
        let mut events = Events::start(cli.client()?, &path, query.clone(), JSON).await?;
        while let Some(event) = events.next().await? {
            match event.kind.as_str() {
                "DELETED" => {
                    return Err(Error::message(format!("{} was deleted while waiting", info.quoted())));
                }
                "ADDED" | "MODIFIED" if goal.is_met(&event.object)? => return Ok(event.object),
                "ERROR" => break,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn goals_are_met_or_not() {
        let object = json!({"metadata": {"generation": 2}, "status": {"observedGeneration": 2, "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "Old", "status": "True", "observedGeneration": 1}]}});
        let check = |goal: &str, met: bool| {
            assert_eq!(WaitFor::parse(goal).unwrap().is_met(&object).unwrap(), met, "{goal}")
        };
        check("condition=Ready", true);
        check("condition=ready=True", true);
        check("condition=Ready=false", false);
        check("condition=Old", false);
        check("condition=Missing", false);
        check("jsonpath={.status.phase}=Running", true);
        check("jsonpath='{.status.phase}'=Pending", false);
        check("jsonpath={.status.phase}", true);
        check("jsonpath={.status.nothing}", false);
        check("jsonpath=status.conditions[?(@.type==\"Ready\")].status=True", true);
        check("jsonpath='{.status.conditions[?(@.type==\"Ready\")].status}'=False", false);
        let unseen = json!({"status": {"conditions": null}});
        assert!(!WaitFor::parse("condition=Ready").unwrap().is_met(&unseen).unwrap());
        assert!(WaitFor::parse("nonsense").is_err());
        assert!(WaitFor::parse("jsonpath={.a}=").is_err());
    }
}
