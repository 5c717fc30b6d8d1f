//! Typed views of objects: for judging, never for writing back.

use serde::de::DeserializeOwned;
use serde_json::{Error, Map, Value};

/// The object as a `T`. Fails where the JSON does not fit the type. Clients write `null` for a zero time, which
/// no type takes: then it is read again with that time spelt out.
pub fn view<T: DeserializeOwned>(object: &Map<String, Value>) -> Result<T, Error> {
    T::deserialize(object).or_else(|_| T::deserialize(with_zero_times(object)))
}

/// The time of a field that was never set, as Go writes it.
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
        let pod: Pod = view(object.as_object().expect("an object")).expect("a pod");
        assert_eq!(pod.metadata.name.as_deref(), Some("p"));
        assert_eq!(pod.metadata.labels.expect("labels")["a"], "x");
        assert_eq!(pod.spec.expect("a spec").containers[0].name, "c");
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": 3}});
        let error = view::<Pod>(object.as_object().expect("an object")).expect_err("a number is no name");
        assert!(error.to_string().contains("invalid type"), "{error}");
    }
}
