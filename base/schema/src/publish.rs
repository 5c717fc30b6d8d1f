//! The schema as OpenAPI publishes it.

use ferry_api::GroupVersionKind;
use serde_json::Value;

/// The definition for OpenAPI v3; without a schema any object.
pub fn v3(_open_api_v3_schema: Option<&Value>, _gvk: &GroupVersionKind, _namespaced: bool) -> Value {
    Value::Null
}

/// The definition for OpenAPI v2: only what v2 can say.
pub fn v2(_open_api_v3_schema: Option<&Value>, _gvk: &GroupVersionKind, _namespaced: bool) -> Value {
    Value::Null
}

/// The list kind's definition. `refers` is where definitions stand: `#/components/schemas/` in v3,
/// `#/definitions/` in v2.
pub fn list(_gvk: &GroupVersionKind, _list_kind: &str, _plural: &str, _refers: &str) -> Value {
    Value::Null
}
