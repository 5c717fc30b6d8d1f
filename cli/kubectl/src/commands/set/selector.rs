//! `kubectl set selector`: of a service.

use serde_json::json;

use super::SET_FLAGS;
use crate::cli::Cli;
use crate::command::Command;
use crate::commands::expose::pairs;
use crate::error::{Error, Result};
use crate::fields;
use crate::flags::Flag;
use crate::printers;
use crate::selection::RECURSIVE_FILE_FLAGS;
use crate::write::{DRY_RUN_FLAGS, RECORD_FLAGS, Writer};

pub const COMMAND: Command = Command {
    name: "selector",
    short: "Set the selector of a service",
    usage: "(-f FILENAME | TYPE NAME) EXPRESSIONS [--resource-version=version]",
    flags: &[
        RECURSIVE_FILE_FLAGS,
        printers::FLAGS,
        DRY_RUN_FLAGS,
        RECORD_FLAGS,
        SET_FLAGS,
        &[Flag::text("resource-version", "Only change an object of this version")],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

async fn run(cli: &Cli) -> Result<()> {
    let Some((expression, resources)) = cli.args.positional.split_last() else {
        return Err(Error::message(
            "one or more resources must be specified as <resource> <name> or <resource>/<name>",
        ));
    };
    let selector = pairs(expression).map_err(|_| Error::message("a selector is required"))?;
    if selector.is_empty() {
        return Err(Error::message("a selector is required"));
    }
    let writer = Writer::new(cli)?;
    let (mut infos, errors) = super::selected(cli, resources).await?;
    let revision = cli.args.text("resource-version");
    if !revision.is_empty() {
        // so that the patch always says which version it is for
        infos.iter_mut().for_each(|info| fields::remove(&mut info.object, "metadata.resourceVersion"));
    }
    super::change_all(&writer, infos, errors, "selector updated", "", |object, info| {
        if info.resource.kind != "Service" {
            return Err(Error::message("setting a selector is only supported for Services"));
        }
        fields::set(object, "spec.selector", json!(selector));
        if !revision.is_empty() {
            fields::set(object, "metadata.resourceVersion", json!(revision));
        }
        Ok(())
    })
    .await
}
