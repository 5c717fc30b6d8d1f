//! The compiled `x-kubernetes-validations` of a schema.

use ferry_api::FieldErrors;
use serde_json::{Map, Value};

use crate::Structural;

#[derive(Debug, Default)]
pub struct Rules {}

impl Rules {
    pub fn compile(_schema: &Structural) -> Result<Rules, String> {
        Ok(Rules {})
    }

    pub fn none() -> Rules {
        Rules::default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        true
    }

    pub(crate) fn judge(
        &self,
        _new: &Map<String, Value>,
        _old: Option<&Map<String, Value>>,
        _schema: &Structural,
        _errors: &mut FieldErrors,
    ) {
    }
}
