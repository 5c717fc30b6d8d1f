//! `kubectl set subject`: adds users, groups and service accounts to a binding.

use serde_json::Value;

use super::SET_FLAGS;
use crate::cli::Cli;
use crate::command::Command;
use crate::commands::create::identity::subjects;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::printers;
use crate::selection::{FILE_FLAGS, SELECTOR_FLAGS};
use crate::write::{DRY_RUN_FLAGS, Writer};

pub const COMMAND: Command = Command {
    name: "subject",
    short: "Add users, groups or service accounts to a binding",
    usage: "(-f FILENAME | TYPE NAME) [--user=username] [--group=groupname] [--serviceaccount=namespace:serviceaccountname]",
    flags: &[
        FILE_FLAGS,
        SELECTOR_FLAGS,
        printers::FLAGS,
        DRY_RUN_FLAGS,
        SET_FLAGS,
        &[
            Flag::list("user", "User to add"),
            Flag::list("group", "Group to add"),
            Flag::list("serviceaccount", "Service account to add, as namespace:name"),
        ],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

async fn run(cli: &Cli) -> Result<()> {
    let wanted = subjects(&cli.args)?;
    if wanted.is_empty() {
        return Err(Error::message("you must specify at least one value of user, group or serviceaccount"));
    }
    let writer = Writer::new(cli)?;
    let (infos, errors) = super::selected(cli, &cli.args.positional).await?;
    super::change_all(
        &writer,
        infos,
        errors,
        "subjects updated",
        "failed to patch subjects to rolebinding:",
        |object, info| {
            if !matches!(info.resource.kind.as_str(), "RoleBinding" | "ClusterRoleBinding") {
                return Err(Error::message(
                    "setting subjects is only supported for RoleBinding/ClusterRoleBinding",
                ));
            }
            let mut subjects = object.list("subjects").to_vec();
            for subject in &wanted {
                let same = |known: &Value| {
                    known.text("kind") == subject.text("kind")
                        && known.text("name") == subject.text("name")
                        && known.text("namespace") == subject.text("namespace")
                };
                if !subjects.iter().any(same) {
                    subjects.push(subject.clone());
                }
            }
            object["subjects"] = Value::Array(subjects);
            Ok(())
        },
    )
    .await
}
