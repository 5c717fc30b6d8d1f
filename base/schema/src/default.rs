//! Defaulting: fills absent fields in, and replaces or removes nulls that the schema does not allow.

use serde_json::{Map, Value};

use crate::Structural;

pub fn apply(_object: &mut Map<String, Value>, _schema: &Structural) {}
