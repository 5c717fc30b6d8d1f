//! `config set` and `config unset`: one value by its dotted path, as `contexts.dev.namespace`.

use base64::Engine as _;
use serde_json::{Value, json};

use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::flags::Flag;
use crate::kubeconfig::{Kubeconfig, SECTIONS, change_file, entry_mut};

pub const SET: Command = Command {
    name: "set",
    short: "Set one value",
    usage: "PROPERTY_NAME PROPERTY_VALUE",
    flags: &[&[Flag::bool(
        "set-raw-bytes",
        "The value of a -data field is not base64, but what base64 is made of",
    )]],
    run: Some(|cli| Box::pin(async move { set(cli) })),
    ..Command::NONE
};

pub const UNSET: Command = Command {
    name: "unset",
    short: "Take one value out",
    usage: "PROPERTY_NAME",
    run: Some(|cli| Box::pin(async move { unset(cli) })),
    ..Command::NONE
};

/// `contexts.dev.namespace` as section, name and field; names may hold dots.
fn parse<'a>(config: &Kubeconfig, path: &'a str) -> Result<(&'a str, String, &'a str)> {
    let (section, rest) = path.split_once('.').unwrap_or((path, ""));
    if !SECTIONS.iter().any(|(known, _)| *known == section) {
        return Ok((section, String::new(), rest));
    }
    // programs and providers are set as a whole, by set-credentials
    if rest.contains(".exec.") || rest.contains(".auth-provider.") {
        return Err(Error::message(format!("unable to parse one or more field values of {path}")));
    }
    if let Some(name) = config
        .names(section)
        .into_iter()
        .filter(|name| rest == *name || rest.starts_with(&format!("{name}.")))
        .max_by_key(|name| name.len())
    {
        return Ok((section, name.to_owned(), rest[name.len()..].trim_start_matches('.')));
    }
    match rest.rsplit_once('.') {
        Some((name, field)) => Ok((section, name.to_owned(), field)),
        None => Ok((section, rest.to_owned(), "")),
    }
}

const BOOLEANS: &[&str] = &["insecure-skip-tls-verify", "disable-compression"];

fn set(cli: &Cli) -> Result<()> {
    let [path, value] = cli.args.positional.as_slice() else {
        return Err(cli.args.usage_error(format!("Unexpected args: [{}]", cli.args.positional.join(" "))));
    };
    if value.is_empty() {
        return Err(Error::message("you cannot use set to unset a property"));
    }
    let config = Kubeconfig::load_for_change(cli.args.text("kubeconfig"))?;
    let (section, name, field) = parse(&config, path)?;
    let typed = |field: &str| -> Result<Value> {
        if BOOLEANS.contains(&field) {
            let flag = crate::flags::parse_bool(value)
                .ok_or_else(|| Error::message(format!("can't set {field}: {value:?} is no boolean")))?;
            return Ok(json!(flag));
        }
        if field.ends_with("-data") {
            return bytes(value, cli.args.bool("set-raw-bytes")).map(Value::String);
        }
        Ok(json!(value))
    };
    if name.is_empty() {
        if section != "current-context" && section != "preferences" {
            return Err(Error::message(format!("unable to parse {path} after [] at api.Config")));
        }
        change_file(&config.current_context_file(), |document| {
            document[section] = json!(value);
            Ok(())
        })?;
    } else {
        if field.is_empty() {
            return Err(Error::message(format!("can't set a map to a value: {path}")));
        }
        let value = typed(field)?;
        change_file(&config.file_of(section, &name), |document| {
            crate::fields::set(entry_mut(document, section, &name), field, value);
            Ok(())
        })?;
    }
    cli.line(format!("Property {path:?} set."))
}

/// The content of a `-data` field, as the file keeps it.
fn bytes(value: &str, raw: bool) -> Result<String> {
    let base64 = base64::engine::general_purpose::STANDARD;
    if raw {
        return Ok(base64.encode(value));
    }
    // as written it is base64, and stays it; what is not would break every later read of the file
    let compact: String = value.split_whitespace().collect();
    let decoded = base64
        .decode(compact)
        .map_err(|error| Error::message(format!("error decoding input value: {error}")))?;
    Ok(base64.encode(decoded))
}

fn unset(cli: &Cli) -> Result<()> {
    let [path] = cli.args.positional.as_slice() else {
        return Err(cli.args.usage_error(format!("Unexpected args: [{}]", cli.args.positional.join(" "))));
    };
    let config = Kubeconfig::load_for_change(cli.args.text("kubeconfig"))?;
    let (section, name, field) = parse(&config, path)?;
    let file = if name.is_empty() { config.current_context_file() } else { config.file_of(section, &name) };
    if !name.is_empty() && config.entry(section, &name).is_none() {
        return Err(Error::message(format!("current map key `{name}` is invalid")));
    }
    change_file(&file, |document| {
        if name.is_empty() {
            if let Some(map) = document.as_object_mut() {
                map.remove(section);
            }
        } else if field.is_empty() {
            if let Some(list) = document[section].as_array_mut() {
                list.retain(|entry| entry["name"] != name.as_str());
            }
        } else {
            crate::fields::remove(entry_mut(document, section, &name), field);
        }
        Ok(())
    })?;
    cli.line(format!("Property {path:?} unset."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_of_a_data_field_is_base64_unless_it_is_raw() {
        assert_eq!(bytes("aGVsbG8=", false).unwrap(), "aGVsbG8=");
        assert_eq!(bytes("hello", true).unwrap(), "aGVsbG8=");
        assert!(bytes("not base64!", false).is_err());
    }
}
