//! Typed views of objects: for judging, never for writing back.
//!
//! Every typed object is decoded from JSON text. `serde` compiles a type's decoder once for each source it is read from,
//! and the decoders of a few hundred types are a large part of the program: a second source (`Value`, `&Value`) would
//! double them.

use serde::de::{DeserializeOwned, Error as _};
use serde_json::{Error, Map, Value};

use crate::write;

/// The object as a `T`. Fails where the JSON does not fit the type.
pub fn of_object<T: DeserializeOwned>(object: &Map<String, Value>) -> Result<T, Error> {
    let of = |object: &Map<String, Value>| ferry_typed::read(&written(|json| write::object(json, object)));
    of(object).or_else(|_| of(&with_zero_times(object))).map_err(without_position)
}

/// A part of an object as a `T`.
pub fn of_value<T: DeserializeOwned>(value: &Value) -> Result<T, Error> {
    match value {
        Value::Object(object) => of_object(object),
        value => ferry_typed::read(&written(|json| write::value(json, value))).map_err(without_position),
    }
}

/// A `T` from the JSON of an object.
pub fn of_json<T: DeserializeOwned>(json: &[u8]) -> Result<T, Error> {
    let json = std::str::from_utf8(json).map_err(Error::custom)?;
    ferry_typed::read(json).or_else(|error| match serde_json::from_str(json) {
        Ok(Value::Object(object)) => of_object(&object),
        _ => Err(error),
    })
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut json = Vec::with_capacity(2048);
    write(&mut json);
    String::from_utf8(json).expect("JSON made of strings is UTF-8")
}

/// A position in text that nobody sent would mislead.
fn without_position(error: Error) -> Error {
    let position = format!(" at line {} column {}", error.line(), error.column());
    let message = error.to_string();
    Error::custom(message.strip_suffix(&position).unwrap_or(&message))
}

/// The time of a field that was never set, as Go writes it. Clients write `null` for it, which no type takes.
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

fn with_zero_times(map: &Map<String, Value>) -> Map<String, Value> {
    fn spell_out(value: &Value) -> Value {
        match value {
            Value::Object(map) => Value::Object(with_zero_times(map)),
            Value::Array(items) => Value::Array(items.iter().map(spell_out).collect()),
            other => other.clone(),
        }
    }
    let entries = map.iter().map(|(key, value)| match value {
        Value::Null if key.ends_with("Time") || key.ends_with("Timestamp") => (key.clone(), ZERO_TIME.into()),
        value => (key.clone(), spell_out(value)),
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    #[test]
    fn a_view_is_of_the_whole_object() {
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "labels": {"a": "x"}},
            "spec": {"containers": [{"name": "c"}]},
        });
        let pod: Pod = of_object(object.as_object().expect("an object")).expect("a pod");
        assert_eq!(pod.metadata.name.as_deref(), Some("p"));
        assert_eq!(pod.metadata.labels.expect("labels")["a"], "x");
        assert_eq!(pod.spec.expect("a spec").containers[0].name, "c");
    }

    #[test]
    fn views_report_type_mismatches() {
        let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": 3}});
        let error =
            of_object::<Pod>(object.as_object().expect("an object")).expect_err("a number is no name");
        assert_eq!(error.to_string(), "invalid type: integer `3`, expected a string");
    }

    #[test]
    fn a_null_time_is_the_zero_time() {
        let object =
            json!({"metadata": {"name": "p", "creationTimestamp": null}, "status": {"startTime": null}});
        let pod: Pod = of_object(object.as_object().expect("an object")).expect("a pod");
        assert_eq!(pod.metadata.name.as_deref(), Some("p"));
        let of_text: Pod = of_json(object.to_string().as_bytes()).expect("a pod");
        assert_eq!(of_text, pod);
    }
}
