//! `kubectl version`.

use serde_json::{Value, json};

use super::OTHER;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::version;

pub const COMMAND: Command = Command {
    name: "version",
    group: OTHER,
    short: "Print the client and server version",
    flags: &[&[
        Flag::bool("client", "Only the client's version; no server is asked"),
        Flag::text("output", "json or yaml").short('o'),
    ]],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

/// The version of kustomize whose output `-k` users may expect; none is built in.
const KUSTOMIZE: &str = "v5.8.1";

async fn run(cli: &Cli) -> Result<()> {
    let output = cli.args.text("output");
    if !matches!(output, "" | "json" | "yaml") {
        return Err(Error::message("--output must be 'yaml' or 'json'"));
    }
    if !cli.args.positional.is_empty() {
        return Err(Error::message(format!("extra arguments: [{}]", cli.args.positional.join(" "))));
    }
    let client = version::of_client();
    let (server, failure) = if cli.args.bool("client") { (None, None) } else { server_version(cli).await };
    match output {
        "" => {
            cli.line(format!("Client Version: {}", client.text("gitVersion")))?;
            cli.line(format!("Kustomize Version: {KUSTOMIZE}"))?;
            if let Some(server) = &server {
                cli.line(format!("Server Version: {}", server.text("gitVersion")))?;
            }
        }
        _ => {
            let mut versions = json!({"clientVersion": client, "kustomizeVersion": KUSTOMIZE});
            if let Some(server) = &server {
                versions["serverVersion"] = server.clone();
            }
            if output == "yaml" {
                cli.print(&ferry_api::yaml::encode_value(&versions))?;
            } else {
                let pretty = serde_json::to_string_pretty(&versions)?;
                cli.line(pretty)?;
            }
        }
    }
    if let Some(server) = &server {
        warn_about_skew(&client, server);
    }
    match failure {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

async fn server_version(cli: &Cli) -> (Option<Value>, Option<Error>) {
    let asked = async { cli.client()?.get_json("/version?timeout=32s").await };
    match asked.await {
        Ok(version) => (Some(version), None),
        Err(error) => (None, Some(error)),
    }
}

/// Client and server may be one minor version apart.
fn warn_about_skew(client: &Value, server: &Value) {
    let minor = |version: &Value| version.text("minor").trim_end_matches('+').parse::<i64>().ok();
    if let (Some(ours), Some(theirs)) = (minor(client), minor(server))
        && (ours - theirs).abs() > 1
    {
        eprintln!(
            "Warning: version difference between client (1.{ours}) and server (1.{theirs}) exceeds the supported minor version skew of +/-1"
        );
    }
}
