//! Reading untyped objects. kubectl handles kinds it has never heard of, so objects stay JSON
//! here; a missing field reads as empty, never as a panic.

use serde_json::{Map, Value};

static NULL: Value = Value::Null;

pub trait Fields {
    /// The value at a dotted path, or null.
    fn at(&self, path: &str) -> &Value;
    fn text(&self, path: &str) -> &str;
    fn int(&self, path: &str) -> Option<i64>;
    fn flag(&self, path: &str) -> bool;
    fn list(&self, path: &str) -> &[Value];
    fn map(&self, path: &str) -> Option<&Map<String, Value>>;
    /// The entries of a map, sorted by key.
    fn entries(&self, path: &str) -> Vec<(&str, &Value)>;
    fn has(&self, path: &str) -> bool;

    fn name(&self) -> &str {
        self.text("metadata.name")
    }
    fn namespace(&self) -> &str {
        self.text("metadata.namespace")
    }
    fn kind(&self) -> &str {
        self.text("kind")
    }
    fn group(&self) -> &str {
        match self.text("apiVersion").split_once('/') {
            Some((group, _)) => group,
            None => "",
        }
    }
    /// An annotation or label, whose key may hold dots.
    fn keyed(&self, map: &str, key: &str) -> &str {
        self.map(map).and_then(|map| map.get(key)).and_then(Value::as_str).unwrap_or("")
    }
    fn is_list(&self) -> bool {
        self.kind().ends_with("List") && self.at("items").is_array()
    }
}

impl Fields for Value {
    fn at(&self, path: &str) -> &Value {
        let mut value = self;
        for key in path.split('.') {
            match value.get(key) {
                Some(inner) => value = inner,
                None => return &NULL,
            }
        }
        value
    }
    fn text(&self, path: &str) -> &str {
        self.at(path).as_str().unwrap_or("")
    }
    fn int(&self, path: &str) -> Option<i64> {
        self.at(path).as_i64()
    }
    fn flag(&self, path: &str) -> bool {
        self.at(path).as_bool().unwrap_or(false)
    }
    fn list(&self, path: &str) -> &[Value] {
        self.at(path).as_array().map_or(&[], Vec::as_slice)
    }
    fn map(&self, path: &str) -> Option<&Map<String, Value>> {
        self.at(path).as_object()
    }
    fn entries(&self, path: &str) -> Vec<(&str, &Value)> {
        let mut entries: Vec<(&str, &Value)> = match self.map(path) {
            Some(map) => map.iter().map(|(key, value)| (key.as_str(), value)).collect(),
            None => Vec::new(),
        };
        entries.sort_by_key(|(key, _)| *key);
        entries
    }
    fn has(&self, path: &str) -> bool {
        !self.at(path).is_null()
    }
}

/// Sets the value at a dotted path, making the maps on the way.
pub fn set(object: &mut Value, path: &str, value: Value) {
    let mut target = object;
    for key in path.split('.') {
        if !target.is_object() {
            *target = Value::Object(Map::new());
        }
        target = target.as_object_mut().expect("made an object above").entry(key).or_insert(Value::Null);
    }
    *target = value;
}

/// Sets one key of a map whose keys may hold dots: labels, annotations.
pub fn set_keyed(object: &mut Value, map: &str, key: &str, value: impl Into<Value>) {
    let mut entries = object.map(map).cloned().unwrap_or_default();
    entries.insert(key.to_owned(), value.into());
    set(object, map, Value::Object(entries));
}

/// Removes what stands at a dotted path.
pub fn remove(object: &mut Value, path: &str) {
    match path.rsplit_once('.') {
        Some((parent, key)) => {
            let pointer = format!("/{}", parent.replace('.', "/"));
            if let Some(Value::Object(map)) = object.pointer_mut(&pointer) {
                map.remove(key);
            }
        }
        None => {
            if let Value::Object(map) = object {
                map.remove(path);
            }
        }
    }
}

/// Takes out every field that is null; elements of lists stay.
pub fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, inner| !inner.is_null());
            map.values_mut().for_each(remove_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_missing_field_reads_as_empty() {
        let pod = json!({"metadata": {"name": "web", "labels": {"app.io/name": "x"}}, "spec": {"containers": [{}]}});
        assert_eq!(pod.name(), "web");
        assert_eq!(pod.text("spec.nodeName"), "");
        assert_eq!(pod.list("spec.containers").len(), 1);
        assert!(pod.list("spec.volumes").is_empty());
        assert_eq!(pod.keyed("metadata.labels", "app.io/name"), "x");
    }

    #[test]
    fn fields_without_a_value_are_taken_out_at_every_level() {
        let mut object = json!({"a": null, "b": {"c": null, "d": [{"e": null, "f": 1}, null]}});
        remove_nulls(&mut object);
        assert_eq!(object, json!({"b": {"d": [{"f": 1}, null]}}));
    }

    #[test]
    fn set_and_remove_walk_the_path() {
        let mut object = json!({});
        set(&mut object, "spec.replicas", json!(3));
        set_keyed(&mut object, "metadata.annotations", "a.b/c", "d");
        assert_eq!(object, json!({"spec": {"replicas": 3}, "metadata": {"annotations": {"a.b/c": "d"}}}));
        remove(&mut object, "spec.replicas");
        remove(&mut object, "metadata");
        assert_eq!(object, json!({"spec": {}}));
    }
}
