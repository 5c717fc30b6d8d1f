//! ConfigMap: keys that can be file names, a size limit, and immutability on request.

use ferry_api::{FieldErrors, names};
use k8s_openapi::api::core::v1::ConfigMap;

use crate::columns::Column;
use crate::strategy::{Rules, Typed};

pub static STRATEGY: Typed<ConfigMap, ConfigMapRules> = Typed::new(ConfigMapRules);

/// The largest data of a ConfigMap or Secret, in bytes.
pub const MAX_DATA: usize = 1 << 20;

pub struct ConfigMapRules;

impl Rules<ConfigMap> for ConfigMapRules {
    fn validate(&self, map: &ConfigMap, errors: &mut FieldErrors) {
        let mut size = 0;
        for (key, value) in map.data.iter().flatten() {
            validate_key("data", key, errors);
            if map.binary_data.as_ref().is_some_and(|binary| binary.contains_key(key)) {
                errors.invalid(
                    format!("data[{key}]"),
                    key.as_str(),
                    "duplicate of key present in binaryData",
                );
            }
            size += value.len();
        }
        for (key, value) in map.binary_data.iter().flatten() {
            validate_key("binaryData", key, errors);
            size += value.0.len();
        }
        if size > MAX_DATA {
            errors.too_long("", MAX_DATA);
        }
    }

    fn validate_update(&self, new: &ConfigMap, old: &ConfigMap, errors: &mut FieldErrors) {
        if old.immutable != Some(true) {
            return;
        }
        if new.immutable != Some(true) {
            errors.forbidden("immutable", "field is immutable when `immutable` is set");
        }
        if new.data != old.data {
            errors.forbidden("data", "field is immutable when `immutable` is set");
        }
        if new.binary_data != old.binary_data {
            errors.forbidden("binaryData", "field is immutable when `immutable` is set");
        }
    }

    fn columns(&self) -> &[Column] {
        super::tables::cluster::CONFIG_MAP
    }
}

/// Keys of ConfigMaps and Secrets become file names.
pub fn validate_key(field: &str, key: &str, errors: &mut FieldErrors) {
    for why in names::config_map_key(key) {
        errors.invalid(format!("{field}[{key}]"), key, &why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_immutable_map_keeps_its_data() {
        let map = |value: &str, immutable| ConfigMap {
            data: Some([("k".to_string(), value.to_string())].into()),
            immutable,
            ..ConfigMap::default()
        };
        let mut errors = FieldErrors::default();
        ConfigMapRules.validate_update(&map("new", None), &map("old", Some(true)), &mut errors);
        let paths: Vec<&str> = errors.0.iter().map(|error| error.path.as_str()).collect();
        assert_eq!(paths, ["immutable", "data"]);
    }
}
