//! What a version says beside its schema: that it is deprecated, its subresources, printer columns and selectable
//! fields.

use ferry_api::FieldErrors;
use ferry_schema::Structural;
use serde_json::Value;

use super::text;

const COLUMN_TYPES: &[&str] = &["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: &[&str] =
    &["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
const MOST_SELECTABLE: usize = 8;
const LONGEST_WARNING: usize = 256;

pub fn deprecation(version: &Value, path: &str, errors: &mut FieldErrors) {
    let Some(warning) = version["deprecationWarning"].as_str() else { return };
    let mut invalid = |why: &str| errors.invalid(format!("{path}.deprecationWarning"), warning, why);
    if version["deprecated"] != true {
        invalid("can only be set for deprecated versions");
        return;
    }
    if warning.len() > LONGEST_WARNING {
        invalid(&format!("must be <= {LONGEST_WARNING} characters long"));
    }
    if warning.is_empty() {
        invalid("must not be an empty string");
    }
    if let Some((index, _)) = warning.char_indices().find(|(_, character)| !is_printable(*character)) {
        invalid(&format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {index}"
        ));
    }
}

/// As Go has it: of all white space only the space itself.
fn is_printable(character: char) -> bool {
    let invisible = matches!(character,
        '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}');
    character == ' ' || !(character.is_control() || character.is_whitespace() || invisible)
}

pub fn subresources(subresources: &Value, path: &str, errors: &mut FieldErrors) {
    let Some(scale) = subresources.get("scale").filter(|scale| scale.is_object()) else { return };
    let mut check = |field: &str, under: &[&str], why: &str, required: bool| {
        let at = format!("{path}.scale.{field}");
        match text(&scale[field]) {
            "" if required => errors.required(at, ""),
            "" => {}
            given if !given.starts_with('.') => {
                errors.invalid(at, given, "must be a simple json path starting with .");
            }
            given if !under.iter().any(|root| given.starts_with(root)) => errors.invalid(at, given, why),
            _ => {}
        }
    };
    check("specReplicasPath", &[".spec."], "should be a json path under .spec", true);
    check("statusReplicasPath", &[".status."], "should be a json path under .status", true);
    let why = "should be a json path under either .spec or .status";
    check("labelSelectorPath", &[".spec.", ".status."], why, false);
}

pub fn columns(columns: &Value, path: &str, errors: &mut FieldErrors) {
    for (index, column) in columns.as_array().into_iter().flatten().enumerate() {
        let at = |field: &str| format!("{path}[{index}].{field}");
        if text(&column["name"]).is_empty() {
            errors.required(at("name"), "");
        }
        let types = format!("must be one of {}", COLUMN_TYPES.join(","));
        match text(&column["type"]) {
            "" => errors.required(at("type"), &types),
            other if !COLUMN_TYPES.contains(&other) => errors.invalid(at("type"), other, &types),
            _ => {}
        }
        let format = text(&column["format"]);
        if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
            let formats = format!("must be one of {}", COLUMN_FORMATS.join(","));
            errors.invalid(at("format"), format, &formats);
        }
        match text(&column["jsonPath"]) {
            "" => errors.required(at("JSONPath"), ""),
            given if !given.starts_with('.') => {
                errors.invalid(at("JSONPath"), given, "must be a simple json path starting with .");
            }
            _ => {}
        }
    }
}

/// `before`: what the version selected before an update. Too many fields may stay as they are.
pub fn selectable(
    fields: &Value,
    schema: Option<&Value>,
    before: Option<&Value>,
    path: &str,
    errors: &mut FieldErrors,
) {
    let entries = fields.as_array().map_or(&[][..], Vec::as_slice);
    if entries.is_empty() {
        return;
    }
    let Some(schema) = schema.filter(|schema| schema.is_object()) else {
        errors.invalid(path, "", "may only be set when validations.schema is included");
        return;
    };
    // A schema that cannot be read is told of where it stands.
    let Ok(schema) = Structural::parse(schema) else { return };
    let mut unique: Vec<String> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let at = format!("{path}[{index}].jsonPath");
        let json_path = text(&entry["jsonPath"]);
        if json_path.is_empty() {
            errors.required(at, "");
            continue;
        }
        let (field, kind) = match schema.field_at(json_path) {
            Ok(found) => found,
            Err(why) => {
                errors.invalid(at, json_path, &format!("is an invalid path: {why}"));
                continue;
            }
        };
        if field == "metadata" || field.starts_with("metadata.") {
            errors.invalid(at.as_str(), json_path, "must not point to fields in metadata");
        }
        if !["string", "boolean", "integer"].contains(&kind) {
            let why = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.invalid(at.as_str(), json_path, why);
        }
        if unique.contains(&field) {
            errors.duplicate(at, json_path);
        } else {
            unique.push(field);
        }
    }
    let was_too_many = before == Some(fields);
    if unique.len() > MOST_SELECTABLE && !was_too_many {
        errors.too_many(path, unique.len(), MOST_SELECTABLE);
    }
}
