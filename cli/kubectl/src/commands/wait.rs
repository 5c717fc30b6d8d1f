//! `kubectl wait`: until a condition holds, a field has a value, an object exists or is gone.

use std::time::Duration;

use serde_json::Value;

use super::ADVANCED;
use super::delete::until_gone;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::printers::{self, Format, OBJECT_FORMATS, named};
use crate::selection::{
    ALL_NAMESPACES_FLAGS, FIELD_SELECTOR_FLAGS, FILE_FLAGS, Info, SELECTOR_FLAGS, Selection, Target,
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
        FILE_FLAGS,
        SELECTOR_FLAGS,
        FIELD_SELECTOR_FLAGS,
        ALL_NAMESPACES_FLAGS,
        printers::FLAGS,
        &[
            Flag::array("for", "create, delete, condition=NAME[=VALUE], or jsonpath='{.field}'[=value]"),
            Flag::duration("timeout", "How long to wait for each resource").default("30s"),
            Flag::bool("all", "All resources of the type"),
            Flag::bool("local", "Accepted for compatibility"),
        ],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

enum Goal {
    Create,
    Delete,
    Condition { kind: String, status: String },
    Field { path: Template, value: Option<String> },
}

impl Goal {
    fn parse(text: &str) -> Result<Self> {
        let lower = text.to_lowercase();
        if lower == "create" {
            return Ok(Goal::Create);
        }
        if lower == "delete" {
            return Ok(Goal::Delete);
        }
        if let Some(condition) = text.strip_prefix("condition=") {
            let (kind, status) = condition.split_once('=').unwrap_or((condition, "true"));
            return Ok(Goal::Condition { kind: kind.to_owned(), status: status.to_owned() });
        }
        if let Some(expression) = text.strip_prefix("jsonpath=") {
            let (path, value) = split_expression(expression)?;
            let path = Template::parse_relaxed(path).map_err(Error::message)?;
            return Ok(Goal::Field { path, value });
        }
        Err(Error::message(format!("unrecognized condition: {text:?}")))
    }

    fn is_met(&self, object: &Value) -> Result<bool> {
        match self {
            Goal::Create => Ok(true),
            Goal::Delete => Ok(false),
            Goal::Condition { kind, status } => {
                // A server that writes none where a list belongs has not looked at the object, and never will.
                if object.pointer("/status/conditions").is_some_and(Value::is_null) {
                    return Err(Error::message(
                        ".status.conditions accessor error: <nil> is of the type <nil>, expected []interface{}",
                    ));
                }
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
            Goal::Field { path, value } => {
                let found = path.evaluate(object, true).map_err(Error::message)?.values();
                match (found.as_slice(), value) {
                    ([], _) => Ok(false),
                    (_, None) => Ok(true),
                    ([Value::Object(_) | Value::Array(_)], Some(_)) => Err(Error::message(
                        "jsonpath leads to a nested object or list which is not supported",
                    )),
                    ([only], Some(wanted)) => Ok(to_text(only) == *wanted),
                    _ => Err(Error::message("given jsonpath expression matches more than one value")),
                }
            }
        }
    }
}

/// `{.a.b}=value`: the value starts behind the closing brace.
fn split_expression(expression: &str) -> Result<(&str, Option<String>)> {
    let trimmed = expression.trim_matches(['\'', '"']);
    let end = match trimmed.rfind('}') {
        Some(brace) => brace + 1,
        None => trimmed.find('=').unwrap_or(trimmed.len()),
    };
    let rest = trimmed[end..].trim_start_matches(['\'', '"']);
    match rest.strip_prefix('=') {
        Some("") => Err(Error::message("jsonpath wait value cannot be empty")),
        Some(value) => Ok((&trimmed[..end], Some(value.trim_matches(['\'', '"']).to_owned()))),
        None if rest.is_empty() => Ok((&trimmed[..end], None)),
        None => Err(Error::message(
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
    let mut parsed = Vec::new();
    for goal in &goals {
        parsed.push(Goal::parse(goal)?);
    }
    let format = Format::from_args(args, OBJECT_FORMATS)?;
    let mut selection = Selection::from_args(cli, &args.positional);
    selection.chunk = 500;
    let timeout = match args.duration("timeout") {
        zero if zero.is_zero() && args.text("timeout").starts_with('-') => Duration::from_secs(7 * 24 * 3600),
        given => given,
    };
    let mut errors = Vec::new();
    let mut visited = 0;
    for target in selection.targets(cli).await? {
        for info in expand(cli, &selection, target, &parsed, timeout).await? {
            visited += 1;
            for goal in &parsed {
                match wait(cli, &info, goal, timeout).await {
                    Ok(object) if format.is_human() => cli.print(&named(&object, "condition met"))?,
                    Ok(object) => cli.print(&format.print(&object, args)?)?,
                    Err(error) => errors.push(error),
                }
            }
            cli.flush()?;
        }
    }
    if visited == 0 && errors.is_empty() && !parsed.iter().any(|goal| matches!(goal, Goal::Delete)) {
        return Err(Error::message("no matching resources found"));
    }
    Error::collect(errors)
}

/// Objects to wait for. What is gone already needs no wait for its deletion; what is not there yet
/// is waited for when creation is the goal.
async fn expand(
    cli: &Cli,
    selection: &Selection,
    target: Target,
    goals: &[Goal],
    timeout: Duration,
) -> Result<Vec<Info>> {
    let named = match &target {
        Target::Named { resource, namespace, name } => Some(Info {
            resource: resource.clone(),
            namespace: namespace.clone(),
            name: name.clone(),
            object: Value::Null,
            source: String::new(),
        }),
        Target::Object(info) => Some(info.clone()),
        _ => None,
    };
    match selection.fetch_one(cli, target).await {
        Ok(infos) => Ok(infos),
        Err(error) if error.is_not_found() => match (named, goals) {
            (Some(_), [Goal::Delete]) => Ok(Vec::new()),
            (Some(info), goals) if goals.iter().any(|goal| matches!(goal, Goal::Create)) => {
                let object = wait(cli, &info, &Goal::Create, timeout).await?;
                Ok(vec![Info { object, ..info }])
            }
            _ => Err(error),
        },
        Err(error) => Err(error),
    }
}

async fn wait(cli: &Cli, info: &Info, goal: &Goal, timeout: Duration) -> Result<Value> {
    let timed_out = || {
        Error::message(format!("timed out waiting for the condition on {}/{}", info.resource.name, info.name))
    };
    if let Goal::Delete = goal {
        let gone = until_gone(cli, info, info.object.text("metadata.uid"));
        tokio::time::timeout(timeout, gone).await.map_err(|_| timed_out())??;
        return Ok(info.object.clone());
    }
    if info.object.is_object() && goal.is_met(&info.object)? {
        return Ok(info.object.clone());
    }
    tokio::time::timeout(timeout, until_met(cli, info, goal)).await.map_err(|_| timed_out())?
}

async fn until_met(cli: &Cli, info: &Info, goal: &Goal) -> Result<Value> {
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
            assert_eq!(Goal::parse(goal).unwrap().is_met(&object).unwrap(), met, "{goal}")
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
        let unseen = json!({"status": {"conditions": null}});
        assert!(Goal::parse("condition=Ready").unwrap().is_met(&unseen).is_err());
        assert!(Goal::parse("nonsense").is_err());
        assert!(Goal::parse("jsonpath={.a}=").is_err());
    }
}
