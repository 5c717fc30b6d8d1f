//! Strategic merge patches as the API server of Kubernetes v1.36 answers them. Every case of
//! `golden/strategic.json` was recorded: an object, a patch, and the object or refusal that came back.

use ferry_api::{GroupVersionKind, Schema};
use ferry_patch::{PatchError, strategic};
use serde_json::Value;

#[test]
fn patches_end_as_recorded() {
    let golden: Value = serde_json::from_str(include_str!("golden/strategic.json")).expect("golden data");
    let cases = golden["cases"].as_array().expect("cases");
    assert!(cases.len() >= 90, "cases are missing");
    let failures: Vec<String> =
        cases.iter().filter_map(|case| replay(&golden["objects"], case).err()).collect();
    assert!(failures.is_empty(), "{} of {} differ:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

fn replay(objects: &Value, case: &Value) -> Result<(), String> {
    let name = case["name"].as_str().expect("name");
    let mut value = objects[case["object"].as_str().expect("object")].clone();
    let schema = schema(&value);
    let outcome = strategic::apply(&mut value, case["patch"].clone(), &schema);
    match (outcome, &case["refused"]) {
        (Ok(()), Value::Null) => {
            forget_empty(&mut value);
            let mut expected = case["after"].clone();
            forget_empty(&mut expected);
            if value == expected {
                return Ok(());
            }
            Err(format!("{name}:\n  expected {expected}\n  got      {value}"))
        }
        (Ok(()), refused) => Err(format!("{name}: applied, but was refused: {refused}")),
        (Err(error), refused) => {
            let code = match &error {
                PatchError::Malformed(_) => 400,
                PatchError::TooLarge(_) => 413,
                PatchError::UnsupportedMediaType => 415,
                PatchError::DoesNotApply(_) | PatchError::TestFailed(_) => 422,
                PatchError::Contradicts(_) => 500,
                PatchError::DoesNotRestore { .. } => 422,
            };
            if refused["code"] == code && refused["message"] == error.to_string() {
                return Ok(());
            }
            Err(format!("{name}:\n  expected {refused}\n  got      {code} {error}"))
        }
    }
}

fn schema(object: &Value) -> Schema {
    let text = |field: &str| object[field].as_str().expect("type").to_string();
    Schema::builtin(&GroupVersionKind::from_api_version(&text("apiVersion"), &text("kind")))
        .expect("built in")
}

/// The server decodes after it patches, and decoding forgets nulls, empty lists, empty maps and what
/// is no field, such as a directive where none is understood.
fn forget_empty(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(forget_empty);
            fields.retain(|key, _| !key.starts_with('$'));
            fields.retain(|key, value| {
                let meant = matches!(key.as_str(), "emptyDir" | "resources");
                meant
                    || !(value.is_null()
                        || value.as_object().is_some_and(|map| map.is_empty())
                        || value.as_array().is_some_and(|list| list.is_empty()))
            });
        }
        Value::Array(list) => list.iter_mut().for_each(forget_empty),
        _ => {}
    }
}
