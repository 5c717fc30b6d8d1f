//! `config set-cluster`, `set-credentials`, `set-context`, `use-context`, `rename-context` and the
//! deletions. Each changes the file its entry stands in, and leaves the rest of it alone.

use base64::Engine as _;
use serde_json::{Value, json};

use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::{Args, Flag};
use crate::kubeconfig::{Kubeconfig, change_file, describe, entry_mut};

pub const SET_CLUSTER: Command = Command {
    name: "set-cluster",
    short: "Set a cluster",
    usage: "NAME [--server=server] [--certificate-authority=path/to/certificate/authority] [--insecure-skip-tls-verify=true] [--tls-server-name=example.com]",
    flags: &[&[
        Flag::text("server", "Address of the API server"),
        Flag::text("tls-server-name", "Name to expect in the server's certificate"),
        Flag::bool("insecure-skip-tls-verify", "Do not check the server's certificate"),
        Flag::text("certificate-authority", "File with the certificate authority"),
        Flag::bool("embed-certs", "Put the content of the file into the kubeconfig"),
        Flag::text("proxy-url", "Proxy to use"),
    ]],
    run: Some(|cli| Box::pin(async move { set_cluster(cli) })),
    ..Command::NONE
};

pub const SET_CREDENTIALS: Command = Command {
    name: "set-credentials",
    short: "Set a user",
    usage: "NAME [--client-certificate=path/to/certfile] [--client-key=path/to/keyfile] [--token=bearer_token] [--username=basic_user] [--password=basic_password] [--auth-provider=provider_name] [--exec-command=exec_command]",
    flags: &[&[
        Flag::text("client-certificate", "File with the client certificate"),
        Flag::text("client-key", "File with the client's key"),
        Flag::text("token", "Bearer token"),
        Flag::text("username", "User name for basic authentication"),
        Flag::text("password", "Password for basic authentication"),
        Flag::bool("embed-certs", "Put the content of the files into the kubeconfig"),
        Flag::text("auth-provider", "Authentication provider: oidc"),
        Flag::list("auth-provider-arg", "Argument of the provider, as key=value"),
        Flag::text("exec-command", "Program that prints the credential"),
        Flag::text("exec-api-version", "API version of the program's answer"),
        Flag::list("exec-arg", "Argument of the program"),
        Flag::array("exec-env", "Environment variable of the program, as key=value"),
        Flag::text("exec-interactive-mode", "Never, IfAvailable or Always").default("IfAvailable"),
        Flag::bool("exec-provide-cluster-info", "Tell the program about the cluster"),
    ]],
    run: Some(|cli| Box::pin(async move { set_credentials(cli) })),
    ..Command::NONE
};

pub const SET_CONTEXT: Command = Command {
    name: "set-context",
    short: "Set a context",
    usage: "[NAME | --current] [--cluster=cluster_nickname] [--user=user_nickname] [--namespace=namespace]",
    flags: &[&[
        Flag::bool("current", "Change the current context"),
        Flag::text("cluster", "Cluster of the context"),
        Flag::text("user", "User of the context"),
        Flag::text("namespace", "Namespace of the context").short('n'),
    ]],
    run: Some(|cli| Box::pin(async move { set_context(cli) })),
    ..Command::NONE
};

pub const USE_CONTEXT: Command = Command {
    name: "use-context",
    aliases: &["use"],
    short: "Set the current context",
    usage: "CONTEXT_NAME",
    run: Some(|cli| Box::pin(async move { use_context(cli) })),
    ..Command::NONE
};

pub const RENAME_CONTEXT: Command = Command {
    name: "rename-context",
    short: "Rename a context",
    usage: "CONTEXT_NAME NEW_NAME",
    run: Some(|cli| Box::pin(async move { rename_context(cli) })),
    ..Command::NONE
};

pub const DELETE_CLUSTER: Command = Command {
    name: "delete-cluster",
    short: "Delete a cluster",
    usage: "NAME",
    run: Some(|cli| Box::pin(async move { delete(cli, "clusters", "cluster") })),
    ..Command::NONE
};

pub const DELETE_CONTEXT: Command = Command {
    name: "delete-context",
    short: "Delete a context",
    usage: "NAME",
    run: Some(|cli| Box::pin(async move { delete(cli, "contexts", "context") })),
    ..Command::NONE
};

pub const DELETE_USER: Command = Command {
    name: "delete-user",
    short: "Delete a user",
    usage: "NAME",
    run: Some(|cli| Box::pin(async move { delete(cli, "users", "user") })),
    ..Command::NONE
};

fn config(cli: &Cli) -> Result<Kubeconfig> {
    Kubeconfig::load_for_change(cli.args.text("kubeconfig"))
}

fn one_name(args: &Args) -> Result<&str> {
    match args.positional.as_slice() {
        [name] => Ok(name),
        words => Err(args.usage_error(format!("Unexpected args: [{}]", words.join(" ")))),
    }
}

/// Sets a text field, or takes it out when the flag is there but empty.
fn set_text(content: &mut Value, key: &str, value: &str) {
    if value.is_empty() {
        if let Some(map) = content.as_object_mut() {
            map.remove(key);
        }
    } else {
        content[key] = json!(value);
    }
}

/// A file's path, or with `--embed-certs` its content.
fn set_file(args: &Args, content: &mut Value, key: &str) -> Result<()> {
    let path = args.text(key);
    let data_key = format!("{key}-data");
    if args.bool("embed-certs") && !path.is_empty() {
        let data = std::fs::read(path).map_err(|error| {
            Error::message(format!("could not stat {key} file {path}: stat {path}: {}", describe(&error)))
        })?;
        content[&data_key] = json!(base64::engine::general_purpose::STANDARD.encode(data));
        set_text(content, key, "");
    } else {
        let absolute =
            if path.is_empty() { String::new() } else { std::path::absolute(path)?.display().to_string() };
        set_text(content, key, &absolute);
        set_text(content, &data_key, "");
    }
    Ok(())
}

fn set_cluster(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    let name = one_name(args)?;
    if args.bool("insecure-skip-tls-verify") && !args.text("certificate-authority").is_empty() {
        return Err(Error::message(
            "you cannot specify a certificate authority and insecure mode at the same time",
        ));
    }
    if args.bool("embed-certs") && args.text("certificate-authority").is_empty() {
        return Err(Error::message("you must specify a --certificate-authority to embed"));
    }
    change_file(&config(cli)?.file_of("clusters", name), |document| {
        let cluster = entry_mut(document, "clusters", name);
        for key in ["server", "tls-server-name", "proxy-url"] {
            if args.changed(key) {
                set_text(cluster, key, args.text(key));
            }
        }
        if args.changed("insecure-skip-tls-verify") {
            if args.bool("insecure-skip-tls-verify") {
                cluster["insecure-skip-tls-verify"] = json!(true);
                set_text(cluster, "certificate-authority", "");
                set_text(cluster, "certificate-authority-data", "");
            } else {
                set_text(cluster, "insecure-skip-tls-verify", "");
            }
        }
        if args.changed("certificate-authority") {
            set_file(args, cluster, "certificate-authority")?;
            set_text(cluster, "insecure-skip-tls-verify", "");
        }
        if cluster.text("server").is_empty() {
            cluster["server"] = json!("");
        }
        Ok(())
    })?;
    cli.line(format!("Cluster {name:?} set."))
}

fn set_credentials(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    let name = match args.positional.as_slice() {
        [name] => name,
        words => return Err(Error::message(format!("unexpected args: [{}]", words.join(" ")))),
    };
    let methods: Vec<&str> = [("token", "--token"), ("username", "--username/--password")]
        .iter()
        .filter(|(flag, _)| !args.text(flag).is_empty())
        .map(|(_, method)| *method)
        .collect();
    if methods.len() > 1 {
        return Err(Error::message(format!(
            "you cannot specify more than one authentication method at the same time: {}",
            methods.join(", ")
        )));
    }
    if args.bool("embed-certs")
        && args.text("client-certificate").is_empty()
        && args.text("client-key").is_empty()
    {
        return Err(Error::message("you must specify a --client-certificate or --client-key to embed"));
    }
    change_file(&config(cli)?.file_of("users", name), |document| {
        let user = entry_mut(document, "users", name);
        for key in ["client-certificate", "client-key"] {
            if args.changed(key) {
                set_file(args, user, key)?;
            }
        }
        for key in ["token", "username", "password"] {
            if args.changed(key) {
                set_text(user, key, args.text(key));
            }
        }
        // one way to log in replaces the other
        if !args.text("token").is_empty() {
            set_text(user, "username", "");
            set_text(user, "password", "");
        } else if !args.text("username").is_empty() {
            set_text(user, "token", "");
        }
        set_provider(args, user)?;
        set_exec(args, user)
    })?;
    cli.line(format!("User {name:?} set."))
}

fn set_provider(args: &Args, user: &mut Value) -> Result<()> {
    if args.changed("auth-provider") {
        user["auth-provider"]["name"] = json!(args.text("auth-provider"));
        if !user["auth-provider"]["config"].is_object() {
            user["auth-provider"]["config"] = json!({});
        }
    }
    for pair in args.list("auth-provider-arg") {
        match pair.split_once('=') {
            Some((key, value)) => user["auth-provider"]["config"][key] = json!(value),
            None => match pair.strip_suffix('-') {
                Some(key) => set_text(&mut user["auth-provider"]["config"], key, ""),
                None => return Err(Error::message(format!("invalid provider argument: {pair}"))),
            },
        }
    }
    Ok(())
}

fn set_exec(args: &Args, user: &mut Value) -> Result<()> {
    if !args.changed("exec-command") && user.at("exec").is_null() {
        return Ok(());
    }
    if args.changed("exec-command") {
        user["exec"]["command"] = json!(args.text("exec-command"));
        user["exec"]["interactiveMode"] = json!(args.text("exec-interactive-mode"));
        user["exec"]["provideClusterInfo"] = json!(args.bool("exec-provide-cluster-info"));
    }
    if args.changed("exec-api-version") {
        user["exec"]["apiVersion"] = json!(args.text("exec-api-version"));
    }
    if args.changed("exec-arg") {
        user["exec"]["args"] = json!(args.list("exec-arg"));
    }
    if args.changed("exec-env") {
        let mut env = Vec::new();
        for pair in args.list("exec-env") {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| Error::message(format!("invalid environment variable: {pair}")))?;
            env.push(json!({"name": key, "value": value}));
        }
        user["exec"]["env"] = json!(env);
    }
    Ok(())
}

fn set_context(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    let config = config(cli)?;
    let name = if args.bool("current") {
        match config.current_context() {
            "" => return Err(Error::message("no current context is set")),
            current => current.to_owned(),
        }
    } else {
        match args.positional.as_slice() {
            [] => return Err(Error::message("you must specify a non-empty context name or --current")),
            _ => one_name(args)?.to_owned(),
        }
    };
    let existed = config.entry("contexts", &name).is_some();
    change_file(&config.file_of("contexts", &name), |document| {
        let context = entry_mut(document, "contexts", &name);
        for key in ["cluster", "user", "namespace"] {
            if args.changed(key) {
                set_text(context, key, args.text(key));
            }
        }
        for key in ["cluster", "user"] {
            if context.text(key).is_empty() {
                context[key] = json!("");
            }
        }
        Ok(())
    })?;
    cli.line(format!("Context {name:?} {}.", if existed { "modified" } else { "created" }))
}

fn use_context(cli: &Cli) -> Result<()> {
    let name = one_name(&cli.args)?;
    let config = config(cli)?;
    if config.entry("contexts", name).is_none() {
        return Err(Error::message(format!("no context exists with the name: {name:?}")));
    }
    change_file(&config.current_context_file(), |document| {
        document["current-context"] = json!(name);
        Ok(())
    })?;
    cli.line(format!("Switched to context {name:?}."))
}

fn rename_context(cli: &Cli) -> Result<()> {
    let [old, new] = cli.args.positional.as_slice() else {
        return Err(cli.args.usage_error(format!("Unexpected args: [{}]", cli.args.positional.join(" "))));
    };
    let config = config(cli)?;
    let file = config.file_of("contexts", old);
    if config.entry("contexts", old).is_none() {
        return Err(Error::message(format!(
            "cannot rename the context {old:?}, it's not in {}",
            file.display()
        )));
    }
    if config.entry("contexts", new).is_some() {
        return Err(Error::message(format!(
            "cannot rename the context {old:?}, the context {new:?} already exists in {}",
            file.display()
        )));
    }
    let was_current = config.current_context() == old;
    change_file(&file, |document| {
        for entry in document["contexts"].as_array_mut().into_iter().flatten() {
            if entry.text("name") == old {
                entry["name"] = json!(new);
            }
        }
        Ok(())
    })?;
    if was_current {
        change_file(&config.current_context_file(), |document| {
            document["current-context"] = json!(new);
            Ok(())
        })?;
    }
    cli.line(format!("Context {old:?} renamed to {new:?}."))
}

fn delete(cli: &Cli, section: &str, noun: &str) -> Result<()> {
    let name = match cli.args.positional.as_slice() {
        [name] => name,
        words if section == "users" => {
            return Err(cli.args.usage_error(if words.is_empty() {
                "user to delete is required".to_owned()
            } else {
                format!("Unexpected args: [{}]", words.join(" "))
            }));
        }
        _ => return Err(Error::exit(1)),
    };
    let config = config(cli)?;
    let file = config.file_of(section, name);
    if config.entry(section, name).is_none() {
        return Err(Error::message(format!("cannot delete {noun} {name}, not in {}", file.display())));
    }
    if section == "contexts" && config.current_context() == name {
        eprintln!(
            "warning: this removed your active context, use \"kubectl config use-context\" to select a different one"
        );
    }
    change_file(&file, |document| {
        if let Some(list) = document[section].as_array_mut() {
            list.retain(|entry| entry.text("name") != name);
            if list.is_empty() {
                document[section] = Value::Null;
            }
        }
        Ok(())
    })?;
    cli.line(format!("deleted {noun} {name} from {}", file.display()))
}
