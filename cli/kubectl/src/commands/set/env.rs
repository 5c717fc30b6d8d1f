//! `kubectl set env`.

use serde_json::{Value, json};

use super::{SET_FLAGS, change_all, matches, pod_spec_mut, pod_spec_path, selected};
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::printers;
use crate::selection::{FILE_FLAGS, Info, SELECTOR_FLAGS, Selection};
use crate::write::{DRY_RUN_FLAGS, Writer};

pub const COMMAND: Command = Command {
    name: "env",
    short: "Set environment variables of containers",
    usage: "RESOURCE/NAME KEY_1=VAL_1 ... KEY_N=VAL_N",
    flags: &[
        FILE_FLAGS,
        SELECTOR_FLAGS,
        printers::FLAGS,
        DRY_RUN_FLAGS,
        SET_FLAGS,
        &[
            Flag::text("containers", "Containers to change; * stands for any text").short('c').default("*"),
            Flag::array("env", "Variable to set, as key=value").short('e'),
            Flag::text("from", "Config map or secret to take variables from"),
            Flag::text("prefix", "Prefix of the variables taken with --from"),
            Flag::list("keys", "Keys to take with --from"),
            Flag::bool("list", "Show what is set"),
            Flag::bool("resolve", "With --list, show values taken from elsewhere"),
            Flag::bool("overwrite", "Change variables that are already set").default("true"),
        ],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

#[derive(Default)]
struct Changes {
    set: Vec<Value>,
    remove: Vec<String>,
}

async fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    let is_change = |word: &String| word.contains('=') || word.ends_with('-');
    let first = args.positional.iter().position(is_change).unwrap_or(args.positional.len());
    let (resources, words) = args.positional.split_at(first);
    if resources.is_empty() && !args.has_files() {
        return Err(Error::message(
            "one or more resources must be specified as <resource> <name> or <resource>/<name>",
        ));
    }
    if args.list("filename").contains(&"-") && words.iter().any(|word| word == "-") {
        return Err(Error::message("standard input cannot be used for multiple arguments"));
    }
    let mut changes = Changes::default();
    for word in words.iter().map(String::as_str).chain(args.list("env")) {
        parse(word, &mut changes)?;
    }
    if !args.text("from").is_empty() {
        changes.set.extend(from_object(cli).await?);
    }
    let (infos, errors) = selected(cli, resources).await?;
    if args.bool("list") {
        for info in &infos {
            list(cli, info)?;
        }
        return Error::collect(errors);
    }
    let writer = Writer::new(cli)?;
    change_all(
        &writer,
        infos,
        errors,
        "env updated",
        "failed to patch env update to pod template:",
        |object, info| {
            let spec = pod_spec_mut(object, info)?;
            let mut found = false;
            for list in ["containers", "initContainers"] {
                let Some(containers) = spec.get_mut(list).and_then(Value::as_array_mut) else { continue };
                for container in containers
                    .iter_mut()
                    .filter(|container| matches(args.text("containers"), container.text("name")))
                {
                    found = true;
                    change(container, &changes, args.bool("overwrite"))?;
                }
            }
            if found {
                Ok(())
            } else {
                Err(Error::message(format!(
                    "{} does not have any containers matching {:?}",
                    info.quoted(),
                    args.text("containers")
                )))
            }
        },
    )
    .await
}

fn parse(word: &str, changes: &mut Changes) -> Result<()> {
    if let Some((name, value)) = word.split_once('=') {
        if !ferry_api::names::strict_env_var_name(name).is_empty() {
            return Err(Error::message(format!(
                "{name:?} is not a valid key name: {}",
                ferry_api::names::strict_env_var_name(name).join(";")
            )));
        }
        let mut variable = json!({"name": name});
        if !value.is_empty() {
            variable["value"] = json!(value);
        }
        changes.set.push(variable);
    } else if let Some(name) = word.strip_suffix('-') {
        changes.remove.push(name.to_owned());
    } else {
        return Err(Error::message(format!(
            "environment variables must be of the form key=value and can not be mixed with resources: {word}"
        )));
    }
    Ok(())
}

fn change(container: &mut Value, changes: &Changes, overwrite: bool) -> Result<()> {
    let mut env = container.list("env").to_vec();
    for variable in &changes.set {
        match env.iter_mut().find(|known| known.text("name") == variable.text("name")) {
            Some(known) if overwrite => *known = variable.clone(),
            Some(known) => {
                return Err(Error::message(format!(
                    "'{}' already has a value ({}), and --overwrite is false",
                    known.text("name"),
                    known.text("value")
                )));
            }
            None => env.push(variable.clone()),
        }
    }
    env.retain(|variable| !changes.remove.iter().any(|name| name == variable.text("name")));
    let map = container.as_object_mut().ok_or_else(|| Error::message("the container is no object"))?;
    if env.is_empty() {
        map.remove("env");
    } else {
        map.insert("env".to_owned(), Value::Array(env));
    }
    Ok(())
}

/// A variable for each key of a config map or secret.
async fn from_object(cli: &Cli) -> Result<Vec<Value>> {
    let args = &cli.args;
    let selection = Selection {
        words: vec![args.text("from").to_owned()],
        files: Vec::new(),
        selector: String::new(),
        ..Selection::from_args(cli, &[])
    };
    let infos = selection.fetch(cli).await?.all()?;
    let mut variables = Vec::new();
    for info in infos {
        let reference = match info.resource.kind.as_str() {
            "ConfigMap" => "configMapKeyRef",
            "Secret" => "secretKeyRef",
            _ => {
                return Err(Error::message(format!(
                    "unsupported resource specified in --from: {}",
                    args.text("from")
                )));
            }
        };
        for (key, _) in info.object.entries("data") {
            if !args.list("keys").is_empty() && !args.list("keys").contains(&key) {
                continue;
            }
            let name: String = key
                .chars()
                .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' })
                .collect();
            variables.push(json!({"name": format!("{}{name}", args.text("prefix")), "valueFrom": {reference: {"key": key, "name": info.name}}}));
        }
    }
    Ok(variables)
}

fn list(cli: &Cli, info: &Info) -> Result<()> {
    let path = pod_spec_path(&info.resource.kind)
        .ok_or_else(|| Error::message(format!("{} has no containers", info.quoted())))?;
    let spec = info.object.pointer(path).unwrap_or(&Value::Null);
    for container in spec.list("containers").iter().chain(spec.list("initContainers")) {
        if !matches(cli.args.text("containers"), container.text("name")) {
            continue;
        }
        cli.line(format!("# {} {}, container {}", info.resource.kind, info.name, container.text("name")))?;
        for variable in container.list("env") {
            if !variable.has("valueFrom") {
                cli.line(format!("{}={}", variable.text("name"), variable.text("value")))?;
                continue;
            }
            cli.line(format!("# {} from {}", variable.text("name"), source_of(variable.at("valueFrom"))))?;
        }
    }
    Ok(())
}

fn source_of(from: &Value) -> String {
    if from.has("configMapKeyRef") {
        return format!(
            "configmap {}, key {}",
            from.text("configMapKeyRef.name"),
            from.text("configMapKeyRef.key")
        );
    }
    if from.has("secretKeyRef") {
        return format!("secret {}, key {}", from.text("secretKeyRef.name"), from.text("secretKeyRef.key"));
    }
    if from.has("fieldRef") {
        return format!("field path {}", from.text("fieldRef.fieldPath"));
    }
    format!("resource field {}", from.text("resourceFieldRef.resource"))
}
