//! A configuration laid over an object without anyone coming to own its fields: what admission policies do.

use std::fmt::{self, Display};

use ferry_api::{Object, Schema};
use serde_json::Value;

use super::rows::{Owned, Rows};
use super::{claims, merge};

/// Why a configuration cannot be laid over an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OverlayError {
    /// It says what the kind does not have.
    Untyped(String),
    /// It names parts of values that are replaced in one piece: whatever it does not mention of them would be lost.
    Atomic(Vec<String>),
    /// Elements of a list cannot be told apart.
    Indistinct,
}

impl Display for OverlayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OverlayError::Untyped(why) => {
                write!(f, "failed to convert patch object to typed object: {why}")
            }
            OverlayError::Atomic(paths) => write!(
                f,
                "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {}",
                paths.join(", ")
            ),
            OverlayError::Indistinct => f.write_str("failed to merge patch: elements cannot be told apart"),
        }
    }
}

impl std::error::Error for OverlayError {}

/// Every field of `configuration` wins; what it does not mention stays as it is.
pub fn overlay(object: &mut Object, configuration: &Object, schema: &Schema) -> Result<(), OverlayError> {
    claims::check(&configuration.0, schema).map_err(OverlayError::Untyped)?;
    let (rows, root) = Rows::of(schema);
    let mut atomics = Vec::new();
    for (name, value) in &configuration.0 {
        rows.find_atomics(rows.at(root, name), value, &format!(".{name}"), &mut atomics);
    }
    if !atomics.is_empty() {
        return Err(OverlayError::Atomic(atomics));
    }
    merge::onto(&mut object.0, &configuration.0, schema).map_err(|merge::NoElement| OverlayError::Indistinct)
}

impl<'s> Rows<'s> {
    fn find_atomics(self, owned: Owned<'s>, value: &Value, path: &str, found: &mut Vec<String>) {
        match (owned, value) {
            (Owned::Whole(_), Value::Object(_) | Value::Array(_)) => found.push(path.to_string()),
            (_, Value::Object(fields)) => {
                for (name, value) in fields {
                    self.find_atomics(self.at(owned, name), value, &format!("{path}.{name}"), found);
                }
            }
            (_, Value::Array(items)) => {
                for (index, item) in items.iter().enumerate() {
                    self.find_atomics(self.items(owned), item, &format!("{path}[{index}]"), found);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use ferry_api::GroupVersionKind;
    use serde_json::json;

    use super::*;

    #[test]
    fn elements_are_merged_and_what_is_in_one_piece_is_left_alone() {
        let schema =
            Schema::builtin(&GroupVersionKind::new("apps", "v1", "Deployment")).expect("in the table");
        let object = |value: Value| Object::from_value(value).expect("an object");
        let spec = |spec: Value| object(json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec}));
        let containers = |containers: Value| json!({"template": {"spec": {"containers": containers}}});
        let mut live = spec(containers(json!([{"name": "a", "image": "i"}, {"name": "b", "image": "j"}])));
        overlay(&mut live, &spec(containers(json!([{"name": "b", "tty": true}]))), &schema).expect("it fits");
        assert_eq!(
            live,
            spec(containers(json!([{"name": "a", "image": "i"}, {"name": "b", "image": "j", "tty": true}])))
        );
        let command = spec(containers(json!([{"name": "a", "command": ["x"]}])));
        assert_eq!(
            overlay(&mut live, &command, &schema),
            Err(OverlayError::Atomic(vec![".spec.template.spec.containers[0].command".into()]))
        );
        let unknown =
            overlay(&mut live, &spec(json!({"nonsense": 1})), &schema).expect_err("not of the kind");
        assert_eq!(
            unknown.to_string(),
            "failed to convert patch object to typed object: .spec.nonsense: field not declared in schema"
        );
    }
}
