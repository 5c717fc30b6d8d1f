//! The three-way merge, and what to do when the object changed meanwhile.

use serde_json::{Value, json};

use crate::commands::delete::Options;
use crate::commands::recreate::{Replacement, make_room};
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::selection::Info;
use crate::transport::{MERGE_PATCH, STRATEGIC_MERGE_PATCH};
use crate::write::{DryRun, LAST_APPLIED, Writer, save_config, schema_of};

pub enum Outcome {
    /// The live object already is what the file says.
    Unchanged,
    Configured(Value),
}

/// How often a change made meanwhile is taken into account before giving up.
const CONFLICT_RETRIES: usize = 5;

/// The patch from the live object to what `modified` says, as kubectl apply makes it.
pub fn three_way(original: &Value, modified: &Value, live: &Value) -> Result<(Value, &'static str)> {
    let failed = |error: ferry_patch::PatchError| Error::message(error.to_string());
    match schema_of(modified) {
        Some(schema) => Ok((
            ferry_patch::strategic::three_way(original, modified, live, &schema).map_err(failed)?,
            STRATEGIC_MERGE_PATCH,
        )),
        None => Ok((ferry_patch::merge::three_way(original, modified, live).map_err(failed)?, MERGE_PATCH)),
    }
}

/// What was applied last, as the object itself remembers it.
pub fn last_applied(live: &Value) -> Result<Value> {
    match live.keyed("metadata.annotations", LAST_APPLIED) {
        "" => Ok(json!({})),
        text => serde_json::from_str(text).map_err(|error| {
            Error::message(format!(
                "the last applied configuration of {:?} cannot be read: {error}",
                live.name()
            ))
        }),
    }
}

pub async fn patch(writer: &Writer<'_>, info: &Info, live: &Value) -> Result<Outcome> {
    let mut modified = info.object.clone();
    save_config(&mut modified);
    let mut live = live.clone();
    let mut attempt = 0;
    loop {
        attempt += 1;
        let (patch, content_type) = three_way(&last_applied(&live)?, &modified, &live)?;
        if patch == json!({}) {
            return Ok(Outcome::Unchanged);
        }
        if writer.dry_run == DryRun::Client {
            return locally(&live, patch, content_type).map(Outcome::Configured);
        }
        match writer.patch(info.into(), content_type, &patch).await {
            Ok(object) => return Ok(Outcome::Configured(object)),
            Err(error) if error.is_conflict() && attempt <= CONFLICT_RETRIES => {
                live = writer.cli.client()?.get_json(&info.path()).await?;
            }
            Err(error) if writer.cli.args.bool("force") && (error.is_conflict() || error.is_invalid()) => {
                return recreate(writer, info, &modified).await.map(Outcome::Configured);
            }
            Err(error) => {
                let applying = format!("applying patch:\n{patch}\nto:\n{}\nfor:", info.described());
                return Err(error.while_doing("patching", &info.source).while_doing(&applying, &info.source));
            }
        }
    }
}

fn locally(live: &Value, patch: Value, content_type: &str) -> Result<Value> {
    let mut object = live.clone();
    match schema_of(live) {
        Some(schema) if content_type == STRATEGIC_MERGE_PATCH => {
            ferry_patch::strategic::apply(&mut object, patch, &schema)
                .map_err(|error| Error::message(error.to_string()))?;
        }
        _ => ferry_patch::merge::apply(&mut object, &patch),
    }
    Ok(object)
}

/// `--force`: what cannot be changed is deleted and made again.
async fn recreate(writer: &Writer<'_>, info: &Info, modified: &Value) -> Result<Value> {
    let mut options = Options::for_successor(&writer.cli.args)?;
    options.quiet = true;
    let mut info = info.clone();
    info.object = modified.clone();
    let replacement = Replacement::plan(writer, info).await?;
    let mut errors = Vec::new();
    let room = make_room(writer.cli, vec![replacement], &options, &mut errors).await?;
    Error::collect(errors)?;
    match room.first() {
        Some(replacement) => replacement.create(writer).await,
        None => Err(Error::message("the old object is still there")),
    }
}
