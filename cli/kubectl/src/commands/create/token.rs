//! `create token`: a token for a service account, printed and kept nowhere.

use std::io::IsTerminal;

use http::Method;
use serde_json::{Value, json};

use super::one_name;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::printers::{self, Format, OBJECT_FORMATS};
use crate::transport::{JSON, Request};

pub const COMMAND: Command = Command {
    name: "token",
    short: "Request a token of a service account",
    usage: "SERVICE_ACCOUNT_NAME",
    flags: &[
        printers::FLAGS,
        &[
            Flag::array("audience", "Who the token is for"),
            Flag::duration("duration", "How long the token should be good"),
            Flag::text("bound-object-kind", "Kind of the object the token is bound to"),
            Flag::text("bound-object-name", "Name of the object the token is bound to"),
            Flag::text("bound-object-uid", "UID of the object the token is bound to"),
        ],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

/// The kinds a token may be bound to, and their versions.
const BINDABLE: &[(&str, &str)] = &[("Node", "v1"), ("Pod", "v1"), ("Secret", "v1")];

async fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    let name = one_name(args)?;
    let format = Format::from_args(args, OBJECT_FORMATS)?;
    if args.text("duration").starts_with('-') {
        return Err(Error::message("--duration must be greater than or equal to 0"));
    }
    let duration = args.duration("duration");
    if duration.subsec_nanos() != 0 {
        return Err(Error::message("--duration cannot be expressed in units less than seconds"));
    }
    if args.list("audience").contains(&"") {
        return Err(Error::message("--audience must not be an empty string"));
    }
    let mut spec = json!({"audiences": args.list("audience")});
    if !duration.is_zero() {
        spec["expirationSeconds"] = json!(duration.as_secs());
    }
    if let Some(reference) = bound_object(cli)? {
        spec["boundObjectRef"] = reference;
    }
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {}, "spec": spec});
    let accounts = cli.resource("serviceaccounts").await?;
    let path = format!("{}/token", accounts.object_path(&cli.namespace()?.name, name));
    let answer = cli.client()?.json(Request::with_body(Method::POST, &path, JSON, request.to_string())).await;
    let answer = answer.map_err(|error| match error {
        Error::Status(status) => Error::message(format!("failed to create token: {}", status.message)),
        other => other,
    })?;
    let token = answer.text("status.token");
    if token.is_empty() {
        return Err(Error::message("failed to create token: no token in server response"));
    }
    if !format.is_human() {
        return cli.print(&format.print(&answer, args)?);
    }
    cli.print(token)?;
    if std::io::stdout().is_terminal() { cli.print("\n") } else { Ok(()) }
}

fn bound_object(cli: &Cli) -> Result<Option<Value>> {
    let args = &cli.args;
    let (kind, name, uid) =
        (args.text("bound-object-kind"), args.text("bound-object-name"), args.text("bound-object-uid"));
    if kind.is_empty() {
        if !name.is_empty() {
            return Err(Error::message(
                "--bound-object-name can only be set if --bound-object-kind is provided",
            ));
        }
        if !uid.is_empty() {
            return Err(Error::message(
                "--bound-object-uid can only be set if --bound-object-kind is provided",
            ));
        }
        return Ok(None);
    }
    let Some((_, version)) = BINDABLE.iter().find(|(known, _)| *known == kind) else {
        return Err(Error::message("supported --bound-object-kind values are Node, Pod, Secret"));
    };
    if name.is_empty() {
        return Err(Error::message("--bound-object-name is required if --bound-object-kind is provided"));
    }
    Ok(Some(json!({"kind": kind, "apiVersion": version, "name": name, "uid": uid})))
}
