//! `config view`, `current-context`, `get-contexts`, `get-clusters`, `get-users`.

use base64::Engine as _;
use serde_json::{Value, json};

use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::kubeconfig::{Kubeconfig, relative_to};
use crate::printers::columns::{TABLE, align};
use crate::printers::{Format, OBJECT_FORMATS};

pub const VIEW: Command = Command {
    name: "view",
    short: "Show the merged kubeconfig",
    usage: "[flags]",
    flags: &[&[
        Flag::text("output", "Output format").short('o').default("yaml"),
        Flag::text("template", "Template of the jsonpath output formats"),
        Flag::bool("show-managed-fields", "Accepted for compatibility"),
        Flag::bool("allow-missing-template-keys", "Leave out missing fields in templates").default("true"),
        Flag::bool("raw", "Show certificates and secrets as they are"),
        Flag::bool("flatten", "Put the content of files into the output"),
        Flag::bool("minify", "Only what the current context uses"),
        Flag::bool("merge", "Merge all files").default("true").bare("true"),
    ]],
    run: Some(|cli| Box::pin(async move { view(cli) })),
    ..Command::NONE
};

pub const CURRENT_CONTEXT: Command = Command {
    name: "current-context",
    short: "Show the current context",
    usage: "",
    run: Some(|cli| {
        Box::pin(async move {
            match Kubeconfig::load_for_change(cli.args.text("kubeconfig"))?.current_context() {
                "" => Err(Error::message("current-context is not set")),
                name => cli.line(name),
            }
        })
    }),
    ..Command::NONE
};

pub const GET_CONTEXTS: Command = Command {
    name: "get-contexts",
    short: "List contexts",
    usage: "[(-o|--output=)name]",
    flags: &[&[Flag::text("output", "name").short('o'), Flag::bool("no-headers", "Leave out the headers")]],
    run: Some(|cli| Box::pin(async move { contexts(cli) })),
    ..Command::NONE
};

pub const GET_CLUSTERS: Command = Command {
    name: "get-clusters",
    short: "List clusters",
    usage: "",
    run: Some(|cli| Box::pin(async move { names(cli, "clusters") })),
    ..Command::NONE
};

pub const GET_USERS: Command = Command {
    name: "get-users",
    short: "List users",
    usage: "",
    run: Some(|cli| Box::pin(async move { names(cli, "users") })),
    ..Command::NONE
};

fn names(cli: &Cli, section: &str) -> Result<()> {
    cli.line("NAME")?;
    cli.kubeconfig()?.names(section).into_iter().try_for_each(|name| cli.line(name))
}

fn contexts(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    if !matches!(args.text("output"), "" | "name") {
        return Err(Error::message(format!("output must be one of '' or 'name': {}", args.text("output"))));
    }
    let config = cli.kubeconfig()?;
    let (mut wanted, mut errors) = (config.names("contexts"), Vec::new());
    if !args.positional.is_empty() {
        for name in &args.positional {
            if !wanted.contains(&name.as_str()) {
                errors.push(Error::message(format!("context {name} not found")));
            }
        }
        wanted.retain(|name| args.positional.iter().any(|word| word == name));
    }
    if args.text("output") == "name" {
        wanted.iter().try_for_each(|name| cli.line(name))?;
        return Error::collect(errors);
    }
    let mut text = String::new();
    if !args.bool("no-headers") {
        text.push_str("CURRENT\tNAME\tCLUSTER\tAUTHINFO\tNAMESPACE\n");
    }
    for name in wanted {
        let context = config.entry("contexts", name).map_or(&Value::Null, |entry| entry.content);
        let mark = if name == config.current_context() { "*" } else { "" };
        text.push_str(&format!(
            "{mark}\t{name}\t{}\t{}\t{}\n",
            context.text("cluster"),
            context.text("user"),
            context.text("namespace")
        ));
    }
    cli.print(&align(&text, TABLE))?;
    cli.flush()?;
    Error::collect(errors)
}

fn view(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    if !args.positional.is_empty() {
        return Err(args.usage_error(format!("unexpected arguments: [{}]", args.positional.join(" "))));
    }
    let config = cli.kubeconfig()?;
    let mut document = config.merged();
    if args.bool("minify") {
        let name = config.context_name(args);
        let context = config.entry("contexts", name).ok_or_else(|| {
            Error::message(if name.is_empty() {
                "current-context must exist in order to minify".to_owned()
            } else {
                format!("cannot locate context {name}")
            })
        })?;
        let (cluster, user) =
            (context.content.text("cluster").to_owned(), context.content.text("user").to_owned());
        document["current-context"] = json!(name);
        for (section, kept) in [("contexts", name), ("clusters", cluster.as_str()), ("users", user.as_str())]
        {
            if let Some(list) = document[section].as_array_mut() {
                list.retain(|entry| entry.text("name") == kept);
            }
        }
    }
    for (section, inner) in crate::kubeconfig::SECTIONS {
        for entry in document[section].as_array_mut().into_iter().flatten() {
            let file = config.file_of(section, entry.text("name"));
            let content = &mut entry[inner];
            absolute_paths(content, &file);
            if args.bool("flatten") {
                flatten(content)?;
            }
            if !args.bool("raw") {
                redact(content);
            }
        }
    }
    let format = Format::from_args(args, OBJECT_FORMATS)?;
    cli.print(&format.print(&document, args)?)
}

const FILES: &[&str] = &["certificate-authority", "client-certificate", "client-key", "tokenFile"];

fn absolute_paths(content: &mut Value, file: &std::path::Path) {
    for key in FILES {
        let path = content.text(key).to_owned();
        if !path.is_empty() {
            content[*key] = json!(relative_to(file, &path).display().to_string());
        }
    }
}

fn flatten(content: &mut Value) -> Result<()> {
    for key in &FILES[..3] {
        let path = content.text(key).to_owned();
        if path.is_empty() {
            continue;
        }
        let data = std::fs::read(&path).map_err(|error| Error::message(format!("open {path}: {error}")))?;
        if let Some(map) = content.as_object_mut() {
            map.remove(*key);
            map.insert(format!("{key}-data"), base64::engine::general_purpose::STANDARD.encode(data).into());
        }
    }
    Ok(())
}

fn redact(content: &mut Value) {
    for (key, mark) in [
        ("client-key-data", "DATA+OMITTED"),
        ("client-certificate-data", "DATA+OMITTED"),
        ("certificate-authority-data", "DATA+OMITTED"),
        ("token", "REDACTED"),
        ("password", "REDACTED"),
    ] {
        if content.has(key) {
            content[key] = json!(mark);
        }
    }
    if let Some(Value::Object(config)) = content.pointer_mut("/auth-provider/config") {
        for key in ["client-secret", "id-token", "refresh-token", "access-token"] {
            if let Some(value) = config.get_mut(key) {
                *value = json!("REDACTED");
            }
        }
    }
}
