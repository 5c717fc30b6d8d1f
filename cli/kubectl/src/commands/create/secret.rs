//! `create secret generic|tls|docker-registry`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::config::{DATA_FLAGS, check_key, collect, content_hash};
use super::{create_generated, generator_flags, one_name};
use crate::command::Command;
use crate::error::{Error, Result};
use crate::flags::{Args, Flag};
use crate::kubeconfig::describe;

pub const COMMAND: Command = Command {
    name: "secret",
    short: "Create a secret",
    usage: "(docker-registry | generic | tls)",
    children: &[&DOCKER_REGISTRY, &GENERIC, &TLS],
    ..Command::NONE
};

const GENERIC: Command = Command {
    name: "generic",
    short: "Create a secret from literals, files or directories",
    usage: "NAME [--type=string] [--from-file=[key=]source] [--from-literal=key1=value1]",
    flags: &[
        crate::printers::FLAGS,
        crate::write::DRY_RUN_FLAGS,
        crate::write::VALIDATE_FLAGS,
        crate::write::SAVE_CONFIG_FLAGS,
        crate::write::FIELD_MANAGER_CREATE,
        DATA_FLAGS,
        &[Flag::text("type", "Type of the secret")],
    ],
    run: Some(|cli| {
        Box::pin(async move { create_generated(cli, generic(&cli.args)?, "failed to create secret").await })
    }),
    ..Command::NONE
};

const TLS: Command = Command {
    name: "tls",
    short: "Create a secret with a certificate and its key",
    usage: "NAME --cert=path/to/cert/file --key=path/to/key/file",
    flags: generator_flags!(&[
        Flag::text("cert", "File with the certificate, in PEM"),
        Flag::text("key", "File with the private key, in PEM"),
        Flag::bool("append-hash", "Append a hash of the content to the name"),
    ]),
    run: Some(|cli| {
        Box::pin(async move { create_generated(cli, tls(&cli.args)?, "failed to create secret").await })
    }),
    ..Command::NONE
};

const DOCKER_REGISTRY: Command = Command {
    name: "docker-registry",
    short: "Create a secret for pulling from a registry",
    usage: "NAME --docker-username=user --docker-password=password --docker-email=email",
    flags: generator_flags!(&[
        Flag::text("docker-username", "User of the registry"),
        Flag::text("docker-password", "Password of the registry"),
        Flag::text("docker-email", "Mail address of the user"),
        Flag::text("docker-server", "Address of the registry").default("https://index.docker.io/v1/"),
        Flag::list("from-file", "Configuration file of docker to use instead"),
        Flag::bool("append-hash", "Append a hash of the content to the name"),
    ]),
    run: Some(|cli| {
        Box::pin(async move {
            create_generated(cli, docker_registry(&cli.args)?, "failed to create secret").await
        })
    }),
    ..Command::NONE
};

fn secret(args: &Args, name: &str, kind: &str, data: Map<String, Value>) -> Value {
    let name = if args.bool("append-hash") {
        let content = json!({"kind": "Secret", "type": kind, "name": name, "data": data});
        format!("{name}-{}", content_hash(&content))
    } else {
        name.to_owned()
    };
    let mut object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}});
    if !data.is_empty() {
        object["data"] = Value::Object(data);
    }
    if !kind.is_empty() {
        object["type"] = json!(kind);
    }
    object
}

fn generic(args: &Args) -> Result<Value> {
    let name = one_name(args)?;
    let has_data = ["from-file", "from-literal"].iter().any(|flag| args.changed(flag));
    if args.changed("from-env-file") && has_data {
        return Err(Error::message("from-env-file cannot be combined with from-file or from-literal"));
    }
    let data = collect(
        args,
        &|key| {
            check_key(key).map_err(|reason| format!("{key:?} is not valid key name for a Secret {reason}"))
        },
        &|key| format!("cannot add key {key}, another key by that name already exists"),
    )?;
    let data = data.into_iter().map(|(key, value)| (key, STANDARD.encode(value).into())).collect();
    Ok(secret(args, name, args.text("type"), data))
}

fn tls(args: &Args) -> Result<Value> {
    let name = one_name(args)?;
    if args.text("key").is_empty() || args.text("cert").is_empty() {
        return Err(Error::message("key and cert must be specified"));
    }
    let read = |path: &str| {
        std::fs::read(path).map_err(|error| {
            Error::message(format!("Cannot read file {path}, open {path}: {}", describe(&error)))
        })
    };
    let (certificate, key) = (read(args.text("cert"))?, read(args.text("key"))?);
    for (what, pem) in [("certificate", &certificate), ("key", &key)] {
        if !String::from_utf8_lossy(pem).contains("-----BEGIN") {
            return Err(Error::message(format!("tls: failed to find any PEM data in {what} input")));
        }
    }
    let data = Map::from_iter([
        ("tls.crt".to_owned(), STANDARD.encode(certificate).into()),
        ("tls.key".to_owned(), STANDARD.encode(key).into()),
    ]);
    Ok(secret(args, name, "kubernetes.io/tls", data))
}

fn docker_registry(args: &Args) -> Result<Value> {
    let name = one_name(args)?;
    let mut data = Map::new();
    if !args.list("from-file").is_empty() {
        let files = collect(args, &|_| Ok(()), &|key| {
            format!("cannot add key {key}, another key by that name already exists")
        })?;
        data.extend(files.into_iter().map(|(key, value)| (key, STANDARD.encode(value).into())));
    } else {
        let (username, password, server) =
            (args.text("docker-username"), args.text("docker-password"), args.text("docker-server"));
        if username.is_empty() || password.is_empty() || server.is_empty() {
            return Err(Error::message(
                "either --from-file or the combination of --docker-username, --docker-password and --docker-server is required",
            ));
        }
        // the order of keys is what docker itself writes, and what comparisons of the content see
        let quoted = |text: &str| Value::from(text).to_string();
        let email = match args.text("docker-email") {
            "" => String::new(),
            email => format!(",\"email\":{}", quoted(email)),
        };
        let auth = STANDARD.encode(format!("{username}:{password}"));
        let content = format!(
            "{{\"auths\":{{{}:{{\"username\":{},\"password\":{}{email},\"auth\":{}}}}}}}",
            quoted(server),
            quoted(username),
            quoted(password),
            quoted(&auth)
        );
        data.insert(".dockerconfigjson".to_owned(), STANDARD.encode(content).into());
    }
    Ok(secret(args, name, "kubernetes.io/dockerconfigjson", data))
}
