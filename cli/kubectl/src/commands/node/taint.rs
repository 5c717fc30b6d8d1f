//! `kubectl taint`: `key=value:Effect` adds, `key:Effect-` or `key-` removes.

use serde_json::{Value, json};

use crate::cli::Cli;
use crate::command::Command;
use crate::commands::CLUSTER;
use crate::error::{Error, Result};
use crate::fields::{self, Fields};
use crate::flags::Flag;
use crate::printers;
use crate::selection::{Info, SELECTOR_FLAGS, Selection};
use crate::write::{DRY_RUN_FLAGS, DryRun, VALIDATE_FLAGS, Writer, difference};

pub const COMMAND: Command = Command {
    name: "taint",
    group: CLUSTER,
    short: "Change the taints of nodes",
    usage: "NODE NAME KEY_1=VAL_1:TAINT_EFFECT_1 ... KEY_N=VAL_N:TAINT_EFFECT_N",
    flags: &[
        SELECTOR_FLAGS,
        printers::FLAGS,
        DRY_RUN_FLAGS,
        VALIDATE_FLAGS,
        &[
            Flag::bool("all", "All nodes"),
            Flag::bool("overwrite", "Change taints that are already set"),
            Flag::text("field-manager", "Name of the field manager").default("kubectl-taint"),
        ],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

#[derive(Debug, PartialEq)]
struct Taint {
    key: String,
    value: String,
    effect: String,
}

#[derive(Debug, Default, PartialEq)]
struct Changes {
    add: Vec<Taint>,
    remove: Vec<Taint>,
}

async fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    let is_change = |word: &String| word.contains([':', '=']) || word.ends_with('-');
    let first = args.positional.iter().position(is_change).unwrap_or(args.positional.len());
    let (resources, specs) = args.positional.split_at(first);
    if resources.is_empty() {
        return Err(Error::message("one or more resources must be specified as <resource> <name>"));
    }
    if specs.is_empty() {
        return Err(Error::message("at least one taint update is required"));
    }
    let changes = parse(specs).map_err(|error| args.usage_error(error.to_string()))?;
    if resources.len() < 2
        && !resources[0].contains('/')
        && !args.bool("all")
        && args.text("selector").is_empty()
    {
        return Err(Error::message(
            "at least one resource name must be specified since 'all' parameter is not set",
        ));
    }
    let writer = Writer::new(cli)?;
    let mut selection = Selection::from_args(cli, resources);
    selection.chunk = 500;
    let selected = selection.fetch(cli).await?;
    let mut errors = selected.errors;
    for info in &selected.infos {
        if info.resource.kind != "Node" {
            return Err(Error::message(format!(
                "invalid resource type {}, only node types are supported",
                info.resource.name
            )));
        }
        if let Err(error) = apply(&writer, info, &changes).await {
            errors.push(error);
        }
    }
    cli.flush()?;
    Error::collect(errors)
}

fn parse(specs: &[String]) -> Result<Changes> {
    let mut changes = Changes::default();
    for spec in specs {
        if let Some(removed) = spec.strip_suffix('-') {
            let (key, effect) = removed.split_once(':').unwrap_or((removed, ""));
            let key = key.split('=').next().unwrap_or(key);
            check_effect(spec, effect, true)?;
            changes.remove.push(Taint {
                key: key.to_owned(),
                value: String::new(),
                effect: effect.to_owned(),
            });
            continue;
        }
        let (pair, effect) =
            spec.split_once(':').ok_or_else(|| Error::message(format!("invalid taint spec: {spec}")))?;
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        check_effect(spec, effect, false)?;
        let wrong = ferry_api::names::qualified_name(key);
        if !wrong.is_empty() {
            return Err(Error::message(format!("invalid taint spec: {spec}, {}", wrong.join("; "))));
        }
        if changes.add.iter().any(|known| known.key == key && known.effect == effect) {
            return Err(Error::message(format!("duplicated taints with the same key and effect: {spec}")));
        }
        changes.add.push(Taint { key: key.to_owned(), value: value.to_owned(), effect: effect.to_owned() });
    }
    Ok(changes)
}

fn check_effect(spec: &str, effect: &str, may_be_empty: bool) -> Result<()> {
    if matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute")
        || (may_be_empty && effect.is_empty())
    {
        return Ok(());
    }
    if effect.is_empty() || effect.contains(':') {
        return Err(Error::message(format!("invalid taint spec: {spec}")));
    }
    Err(Error::message(format!("invalid taint effect: {effect}, unsupported taint effect")))
}

async fn apply(writer: &Writer<'_>, info: &Info, changes: &Changes) -> Result<()> {
    let mut taints = info.object.list("spec.taints").to_vec();
    let matches = |known: &Value, taint: &Taint| {
        known.text("key") == taint.key && (taint.effect.is_empty() || known.text("effect") == taint.effect)
    };
    if !writer.cli.args.bool("overwrite") {
        let taken: Vec<&str> = changes
            .add
            .iter()
            .filter(|taint| taints.iter().any(|known| matches(known, taint)))
            .map(|taint| taint.key.as_str())
            .collect();
        if !taken.is_empty() {
            return Err(Error::message(format!(
                "node {} already has {} taint(s) with same effect(s) and --overwrite is false",
                info.name,
                taken.join(", ")
            )));
        }
    }
    for taint in &changes.remove {
        let before = taints.len();
        taints.retain(|known| !matches(known, taint));
        if taints.len() == before {
            let effect = if taint.effect.is_empty() { String::new() } else { format!(":{}", taint.effect) };
            return Err(Error::message(format!("taint {:?} not found", format!("{}{effect}", taint.key))));
        }
    }
    for taint in &changes.add {
        taints.retain(|known| !matches(known, taint));
        let mut entry = json!({"key": taint.key, "effect": taint.effect});
        if !taint.value.is_empty() {
            entry["value"] = json!(taint.value);
        }
        taints.insert(0, entry);
    }
    let replaced = changes
        .add
        .iter()
        .any(|taint| info.object.list("spec.taints").iter().any(|known| matches(known, taint)));
    let operation = match (changes.add.is_empty(), changes.remove.is_empty()) {
        (true, _) => "untainted",
        (false, true) if !replaced => "tainted",
        _ => "modified",
    };
    let mut object = info.object.clone();
    if taints.is_empty() {
        fields::remove(&mut object, "spec.taints");
    } else {
        fields::set(&mut object, "spec.taints", Value::Array(taints));
    }
    if writer.dry_run != DryRun::Client {
        let (patch, content_type) = difference(&info.object, &object)?;
        object = writer.patch(info.into(), content_type, &patch).await?;
    }
    writer.report(&object, operation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_add_and_remove() {
        let parsed = |specs: &[&str]| parse(&specs.iter().map(|spec| (*spec).to_owned()).collect::<Vec<_>>());
        let taint = |key: &str, value: &str, effect: &str| Taint {
            key: key.to_owned(),
            value: value.to_owned(),
            effect: effect.to_owned(),
        };
        assert_eq!(
            parsed(&["a=b:NoSchedule", "c:NoExecute-", "d-"]).unwrap(),
            Changes {
                add: vec![taint("a", "b", "NoSchedule")],
                remove: vec![taint("c", "", "NoExecute"), taint("d", "", "")]
            }
        );
        assert!(parsed(&["a=b"]).is_err());
        assert!(parsed(&["a=b:Foo"]).is_err());
        assert!(parsed(&["a=b:NoSchedule", "a=c:NoSchedule"]).is_err());
    }
}
