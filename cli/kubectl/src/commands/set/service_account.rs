//! `kubectl set serviceaccount`.

use serde_json::json;

use super::{SET_FLAGS, change_all, pod_spec_mut, selected, set_in};
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::printers;
use crate::selection::FILE_FLAGS;
use crate::write::{DRY_RUN_FLAGS, RECORD_FLAGS, Writer};

pub const COMMAND: Command = Command {
    name: "serviceaccount",
    aliases: &["sa"],
    short: "Set the service account of a workload's pods",
    usage: "(-f FILENAME | TYPE NAME) SERVICE_ACCOUNT",
    flags: &[FILE_FLAGS, printers::FLAGS, DRY_RUN_FLAGS, RECORD_FLAGS, SET_FLAGS],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

async fn run(cli: &Cli) -> Result<()> {
    let Some((account, resources)) = cli.args.positional.split_last() else {
        return Err(Error::message("serviceaccount is required"));
    };
    let writer = Writer::new(cli)?;
    let (infos, errors) = selected(cli, resources).await?;
    change_all(
        &writer,
        infos,
        errors,
        "serviceaccount updated",
        "failed to patch ServiceAccountName",
        |object, info| {
            let spec = pod_spec_mut(object, info)?;
            set_in(spec, "serviceAccountName", json!(account));
            // the old name of the same field would contradict it
            if spec.get("serviceAccount").is_some() {
                set_in(spec, "serviceAccount", json!(account));
            }
            Ok(())
        },
    )
    .await
}
