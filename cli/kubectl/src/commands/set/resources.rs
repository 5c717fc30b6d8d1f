//! `kubectl set resources`.

use serde_json::{Value, json};

use super::{SET_FLAGS, change_all, matches, pod_spec_mut, selected, set_in};
use crate::cli::Cli;
use crate::command::Command;
use crate::commands::create::policy::resource_list;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::printers;
use crate::selection::{FILE_FLAGS, SELECTOR_FLAGS};
use crate::write::{DRY_RUN_FLAGS, RECORD_FLAGS, Writer};

pub const COMMAND: Command = Command {
    name: "resources",
    short: "Set requests and limits of containers",
    usage: "(-f FILENAME | TYPE NAME) ([--limits=LIMITS & --requests=REQUESTS])",
    flags: &[
        FILE_FLAGS,
        SELECTOR_FLAGS,
        printers::FLAGS,
        DRY_RUN_FLAGS,
        RECORD_FLAGS,
        SET_FLAGS,
        &[
            Flag::text("containers", "Containers to change; * stands for any text").short('c').default("*"),
            Flag::text("limits", "Limits, as cpu=200m,memory=512Mi"),
            Flag::text("requests", "Requests, as cpu=100m,memory=256Mi"),
        ],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

async fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    if args.text("limits").is_empty() && args.text("requests").is_empty() {
        return Err(Error::message(
            "you must specify an update to requests or limits (in the form of --requests/--limits)",
        ));
    }
    let lists = [
        ("limits", resource_list(args.text("limits"))?),
        ("requests", resource_list(args.text("requests"))?),
    ];
    let writer = Writer::new(cli)?;
    let (infos, errors) = selected(cli, &args.positional).await?;
    change_all(
        &writer,
        infos,
        errors,
        "resource requirements updated",
        "failed to patch resources update to pod template",
        |object, info| {
            let spec = pod_spec_mut(object, info)?;
            let mut found = false;
            for container in spec.get_mut("containers").and_then(Value::as_array_mut).into_iter().flatten() {
                if !matches(args.text("containers"), container.text("name")) {
                    continue;
                }
                found = true;
                for (field, list) in &lists {
                    if list.is_empty() {
                        continue;
                    }
                    let mut resources = container.at("resources").clone();
                    let mut merged = resources.map(field).cloned().unwrap_or_default();
                    merged.extend(list.clone());
                    // a quantity of zero takes the limit away
                    merged.retain(|_, quantity| quantity != "0");
                    set_in(&mut resources, field, json!(merged));
                    set_in(container, "resources", resources);
                }
            }
            if found {
                Ok(())
            } else {
                Err(Error::message(format!("unable to find container named {}", args.text("containers"))))
            }
        },
    )
    .await
}
