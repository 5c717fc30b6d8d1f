//! `kubectl set image`.

use serde_json::{Value, json};

use super::{SET_FLAGS, change_all, pod_spec_mut, selected};
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::printers;
use crate::selection::{FILE_FLAGS, NOTHING_GIVEN, SELECTOR_FLAGS};
use crate::write::{DRY_RUN_FLAGS, RECORD_FLAGS, Writer};

pub const COMMAND: Command = Command {
    name: "image",
    short: "Set the image of containers",
    usage: "(-f FILENAME | TYPE NAME) CONTAINER_NAME_1=CONTAINER_IMAGE_1 ... CONTAINER_NAME_N=CONTAINER_IMAGE_N",
    flags: &[FILE_FLAGS, SELECTOR_FLAGS, printers::FLAGS, DRY_RUN_FLAGS, RECORD_FLAGS, SET_FLAGS],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

async fn run(cli: &Cli) -> Result<()> {
    let words = &cli.args.positional;
    let first = words.iter().position(|word| word.contains('=')).unwrap_or(words.len());
    let (resources, changes) = words.split_at(first);
    if resources.is_empty() && !cli.args.has_files() {
        return Err(Error::message(NOTHING_GIVEN));
    }
    if changes.is_empty() {
        return Err(Error::message("at least one image update is required"));
    }
    let mut images: Vec<(&str, &str)> = Vec::new();
    for change in changes {
        let pair = change.split_once('=').filter(|(name, image)| !name.is_empty() && !image.is_empty());
        images.push(pair.ok_or_else(|| {
            Error::message(format!("all resources must be specified before image changes: {change}"))
        })?);
    }
    if images.len() > 1 && images.iter().any(|(name, _)| *name == "*") {
        return Err(Error::message(
            "all containers are already specified by *, but saw more than one container_name=container_image pairs",
        ));
    }
    let writer = Writer::new(cli)?;
    let (infos, errors) = selected(cli, resources).await?;
    change_all(
        &writer,
        infos,
        errors,
        "image updated",
        "failed to patch image update to pod template:",
        |object, info| set_images(pod_spec_mut(object, info)?, &images),
    )
    .await
}

fn set_images(spec: &mut Value, images: &[(&str, &str)]) -> Result<()> {
    for (name, image) in images {
        let mut found = false;
        for list in ["containers", "initContainers"] {
            for container in spec[list].as_array_mut().into_iter().flatten() {
                if *name == "*" || container.text("name") == *name {
                    container["image"] = json!(image);
                    found = true;
                }
            }
        }
        if !found {
            return Err(Error::message(format!("unable to find container named {name:?}")));
        }
    }
    // indexing a missing list made it null
    if let Some(map) = spec.as_object_mut() {
        map.retain(|_, value| !value.is_null());
    }
    Ok(())
}
