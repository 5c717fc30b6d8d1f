//! `--overrides`: JSON laid over a generated object.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::flags::{Args, Flag};
use crate::write::schema_of;
use crate::yaml;

pub const OVERRIDE_FLAGS: &[Flag] = &[
    Flag::text("overrides", "JSON to lay over the generated object"),
    Flag::text("override-type", "How to lay it over: merge, json or strategic").default("merge"),
];

pub fn apply_overrides(args: &Args, object: &mut Value) -> Result<()> {
    let text = args.text("overrides");
    if text.is_empty() {
        return Ok(());
    }
    let invalid = || Error::message("Invalid JSON Patch");
    let patch = yaml::document(text).map_err(|_| invalid())?;
    match args.text("override-type") {
        "merge" => {
            if !patch.is_object() {
                return Err(invalid());
            }
            ferry_patch::merge::apply(object, &patch);
        }
        "json" => {
            ferry_patch::json_patch::apply(object, patch.to_string().as_bytes())
                .map_err(|error| Error::message(error.to_string()))?;
        }
        "strategic" => {
            let schema = schema_of(object).ok_or_else(invalid)?;
            ferry_patch::strategic::apply(object, patch, &schema)
                .map_err(|error| Error::message(error.to_string()))?;
        }
        other => return Err(Error::message(format!("invalid override type: {other}"))),
    }
    Ok(())
}
