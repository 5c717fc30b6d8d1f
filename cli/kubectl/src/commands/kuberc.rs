//! `kuberc`: showing and changing the preferences file.

use std::io::Write;
use std::path::PathBuf;

use serde_json::Value;

use super::OTHER;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result, system_words};
use crate::flags::{Args, Flag};
use crate::kuberc::{self, Alias, AllowlistEntry, Defaults, FlagDefault, Preferences};
use crate::printers::{self, Format};

pub const COMMAND: Command = Command {
    name: "kuberc",
    group: OTHER,
    short: "Manage kuberc configuration files",
    usage: "SUBCOMMAND",
    children: &[&VIEW, &SET],
    ..Command::NONE
};

const VIEW: Command = Command {
    name: "view",
    short: "Display the current kuberc configuration",
    usage: "",
    flags: &[printers::FLAGS],
    run: Some(|cli| Box::pin(async move { view(cli) })),
    ..Command::NONE
};

const SET: Command = Command {
    name: "set",
    short: "Set values in the kuberc configuration",
    usage: "--section (defaults|aliases|credentialplugin) --command COMMAND",
    flags: &[&[
        Flag::array("allowlist-entry", "Credential plugin that may run (command=PATH); may be repeated"),
        Flag::array("appendarg", "Argument an alias puts at the end; may be repeated"),
        Flag::text("command", "Command to set defaults of, or that an alias stands for"),
        Flag::text("name", "Name of the alias"),
        Flag::array("option", "Flag and its default (flag=value); may be repeated"),
        Flag::bool("overwrite", "Replace an entry that is there"),
        Flag::text("policy", "Which credential plugins may run: AllowAll, DenyAll or Allowlist"),
        Flag::array("prependarg", "Argument an alias puts first; may be repeated"),
        Flag::text("section", "What to set: defaults, aliases or credentialplugin").required(),
    ]],
    run: Some(|cli| Box::pin(async move { set(cli) })),
    ..Command::NONE
};

fn file(cli: &Cli) -> Result<(PathBuf, bool)> {
    kuberc::file(cli.args.text("kuberc"))?
        .ok_or_else(|| Error::message("KUBERC is disabled via KUBERC=off environment variable"))
}

fn view(cli: &Cli) -> Result<()> {
    let (path, explicit) = file(cli)?;
    let shown = path.display();
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::message(format!(
                "error reading kuberc file: open {shown}: {}",
                system_words(&error)
            )));
        }
        Err(_) if explicit => return Err(Error::message(format!("kuberc file not found at {shown}"))),
        Err(_) => {
            cli.line(format!("kuberc file not found at {shown}"))?;
            cli.print("Would you like to generate a default kuberc file with recommended options? (y/N): ")?;
            cli.flush()?;
            let mut answer = String::new();
            std::io::stdin().read_line(&mut answer)?;
            if answer.trim().eq_ignore_ascii_case("y") {
                return save(cli, &recommended(), &path);
            }
            return Ok(());
        }
    };
    let mut preferences = parse(&text)?;
    preferences.aliases.get_or_insert_default();
    preferences.defaults.get_or_insert_default();
    let value = serde_json::to_value(&preferences)?;
    if cli.args.text("output").is_empty() {
        return cli.print(&ferry_api::yaml::encode_value(&value));
    }
    let format = Format::from_args(&cli.args, printers::OBJECT_FORMATS)?;
    cli.print(&format.print(&value, &cli.args)?)
}

fn parse(text: &str) -> Result<Preferences> {
    let bad = |why: String| Error::message(format!("error parsing kuberc file: {why}"));
    let document = crate::yaml::document(text).map_err(|error| bad(error.to_string()))?;
    if document.is_null() {
        return Ok(Preferences::default());
    }
    serde_json::from_value(document).map_err(|error| bad(error.to_string()))
}

fn recommended() -> Preferences {
    let on = |command: &str, flag: &str| Defaults {
        command: command.into(),
        options: Some(vec![FlagDefault { name: flag.into(), default: "true".into() }]),
    };
    Preferences { defaults: Some(vec![on("apply", "server-side"), on("delete", "interactive")]), ..empty() }
}

fn empty() -> Preferences {
    Preferences {
        api_version: kuberc::API_VERSION.into(),
        kind: "Preference".into(),
        ..Preferences::default()
    }
}

fn save(cli: &Cli, preferences: &Preferences, path: &PathBuf) -> Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(|error| {
            Error::message(format!(
                "failed to create directory {}: {}",
                directory.display(),
                system_words(&error)
            ))
        })?;
    }
    let value: Value = serde_json::to_value(preferences)?;
    let written = std::fs::File::create(path)
        .and_then(|mut file| file.write_all(ferry_api::yaml::encode_value(&value).as_bytes()));
    written
        .map_err(|error| Error::message(format!("failed to write kuberc file: {}", system_words(&error))))?;
    cli.line(format!("Updated {}", path.display()))
}

fn set(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    let (path, _) = file(cli)?;
    check(args)?;
    let mut preferences = match std::fs::read_to_string(&path) {
        Ok(text) if !text.is_empty() => parse(&text)?,
        Ok(_) => empty(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => empty(),
        Err(error) => {
            return Err(Error::message(format!("error reading kuberc file: {}", system_words(&error))));
        }
    };
    let options = options(args)?;
    match args.text("section") {
        "defaults" => set_defaults(&mut preferences, args, options)?,
        "aliases" => set_alias(&mut preferences, args, options)?,
        _ => set_policy(&mut preferences, args)?,
    }
    save(cli, &preferences, &path)
}

fn check(args: &Args) -> Result<()> {
    let refuse = |words: &str| Err(Error::message(words));
    let section = args.text("section");
    if !["defaults", "aliases", "credentialplugin"].contains(&section) {
        return Err(Error::message(format!(
            "--section must be \"defaults\", \"aliases\", or \"credentialplugin\", got: {section}"
        )));
    }
    if section == "aliases" && args.text("name").is_empty() {
        return refuse("--name is required when --section=aliases");
    }
    if section == "defaults" && !args.text("name").is_empty() {
        return refuse("--name should not be specified when --section=defaults");
    }
    if section == "defaults" && (args.changed("prependarg") || args.changed("appendarg")) {
        return refuse("--prependarg and --appendarg are only valid for --section=aliases");
    }
    if section != "credentialplugin" {
        if args.text("command").is_empty() {
            return refuse("--command is required when --section=aliases or --section=defaults");
        }
        return Ok(());
    }
    let listed = args.changed("allowlist-entry");
    match args.text("policy") {
        "" => refuse("--policy is required when --section=credentialplugin"),
        "AllowAll" | "DenyAll" if listed => refuse(
            "--allowlist-entry may only be used when --section=credentialplugin and --policy=Allowlist",
        ),
        "Allowlist" if !listed => {
            refuse("--allowlist-entry is required when --section=credentialplugin and --policy=Allowlist")
        }
        "AllowAll" | "DenyAll" | "Allowlist" => Ok(()),
        other => Err(Error::message(format!(
            " --policy must be  \"AllowAll\", \"DenyAll\", or \"Allowlist\", got: {other}"
        ))),
    }
}

fn options(args: &Args) -> Result<Vec<FlagDefault>> {
    args.list("option")
        .into_iter()
        .map(|option| {
            let (name, default) = option.split_once('=').ok_or_else(|| {
                Error::message(format!("invalid option format {option:?}, expected flag=value"))
            })?;
            Ok(FlagDefault { name: name.trim_start_matches('-').into(), default: default.into() })
        })
        .collect()
}

fn set_defaults(preferences: &mut Preferences, args: &Args, options: Vec<FlagDefault>) -> Result<()> {
    let command = args.text("command");
    let list = preferences.defaults.get_or_insert_default();
    match list.iter_mut().find(|defaults| defaults.command == command) {
        Some(_) if !args.bool("overwrite") => Err(Error::message(format!(
            "defaults for command {command:?} already exist, use --overwrite to replace"
        ))),
        Some(defaults) => {
            if !options.is_empty() {
                defaults.options = Some(options);
            }
            Ok(())
        }
        None => {
            list.push(Defaults { command: command.into(), options: Some(options) });
            Ok(())
        }
    }
}

fn set_alias(preferences: &mut Preferences, args: &Args, options: Vec<FlagDefault>) -> Result<()> {
    let name = args.text("name");
    let words = |flag: &str| args.list(flag).into_iter().map(str::to_owned).collect::<Vec<_>>();
    let mut alias = Alias {
        name: name.into(),
        command: args.text("command").into(),
        prepend_args: words("prependarg"),
        append_args: words("appendarg"),
        options,
    };
    let list = preferences.aliases.get_or_insert_default();
    let Some(old) = list.iter_mut().find(|alias| alias.name == name) else {
        list.push(alias);
        return Ok(());
    };
    if !args.bool("overwrite") {
        return Err(Error::message(format!("alias {name:?} already exists, use --overwrite to replace")));
    }
    if alias.options.is_empty() {
        alias.options = std::mem::take(&mut old.options);
    }
    if alias.prepend_args.is_empty() {
        alias.prepend_args = std::mem::take(&mut old.prepend_args);
    }
    if alias.append_args.is_empty() {
        alias.append_args = std::mem::take(&mut old.append_args);
    }
    *old = alias;
    Ok(())
}

fn set_policy(preferences: &mut Preferences, args: &Args) -> Result<()> {
    let mut errors = Vec::new();
    let mut entries = Vec::new();
    for pair in args.list("allowlist-entry").into_iter().flat_map(|word| word.split(',')) {
        match pair.split_once('=') {
            None => errors.push(format!("improperly formatted allowlist entry: {pair:?}")),
            Some(("name", _)) => errors
                .push("allowlist entry field \"name\" is deprecated, use \"command\" instead".to_owned()),
            Some(("command", value)) if value.trim().is_empty() => {
                errors.push("empty value in allowlist entry for field \"command\"".to_owned());
            }
            Some(("command", value)) => {
                entries.push(AllowlistEntry { command: value.into(), ..AllowlistEntry::default() });
            }
            Some((field, _)) => errors.push(format!("unrecognized allowlist entry field: {field:?}")),
        }
    }
    match errors.as_slice() {
        [] => {}
        [one] => return Err(Error::message(one.clone())),
        many => return Err(Error::message(format!("[{}]", many.join(", ")))),
    }
    if args.text("policy") == "Allowlist" {
        preferences.credential_plugin_allowlist = Some(entries);
    }
    preferences.credential_plugin_policy = args.text("policy").into();
    Ok(())
}
