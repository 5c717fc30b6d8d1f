//! Devices that drivers offer (ResourceSlice), classes of them (DeviceClass), and those that pods ask for and get
//! (ResourceClaim).

mod claim;
mod claim_status;
mod class;
mod device;
mod pool_status;
mod slice;
mod taint;

use std::collections::HashSet;

use ferry_api::{FieldErrors, names};
use serde_json::Value;

use super::field::{self, Field};
use super::format;
use crate::kinds::checks::Path;

pub use claim::claim;
pub use claim_status::claim_status;
pub use class::{class_configs, device_selectors, extended_resource};
pub use pool_status::pool_status;
pub use slice::slice;
pub use taint::{rule_taint, taint_selector};

fn driver(field: Field<'_>, errors: &mut FieldErrors) {
    format::driver(field.text(), field.path, errors);
}

/// A pool's name: domains between slashes.
fn pool_name(name: Field<'_>, errors: &mut FieldErrors) {
    if !name.required("", errors) {
        return;
    }
    if name.text().len() > 253 {
        errors.too_long(name.path, 253);
    }
    for part in name.text().split('/') {
        crate::kinds::checks::named(errors, name.path, part, names::dns1123_subdomain);
    }
}

/// `domain/name` or `name`, as attributes are called.
fn qualified(name: &str, path: Path<'_>, errors: &mut FieldErrors) {
    let identifier = |id: &str, errors: &mut FieldErrors| {
        if id.len() > 32 {
            errors.too_long(path, 32);
        }
        crate::kinds::checks::named(errors, path, id, names::c_identifier);
    };
    match name.split('/').collect::<Vec<_>>().as_slice() {
        [id] => identifier(id, errors),
        [domain, id] => {
            match *domain {
                "" => errors.invalid(path, "", "the domain must not be empty"),
                domain => format::driver(domain, path, errors),
            }
            match *id {
                "" => errors.invalid(path, "", "the name must not be empty"),
                id => identifier(id, errors),
            }
        }
        _ => {}
    }
}

fn fully_qualified(name: Field<'_>, errors: &mut FieldErrors) {
    qualified(name.text(), name.path, errors);
    if !name.text().contains('/') {
        name.invalid("a fully qualified name must be a domain and a name separated by a slash", errors);
    }
}

/// A list without repetition, told at the element.
fn set(list: Field<'_>, key: impl Fn(&Value) -> String, errors: &mut FieldErrors) {
    let mut seen: HashSet<String> = HashSet::new();
    for (index, item) in list.items().iter().enumerate() {
        let key = key(item);
        if seen.contains(&key) {
            errors.duplicate(list.path.index(index), key.as_str());
        }
        seen.insert(key);
    }
}

fn too_many(list: Field<'_>, most: usize, errors: &mut FieldErrors) -> bool {
    let count = list.value.and_then(Value::as_object).map_or(list.items().len(), |map| map.len());
    if count > most {
        errors.too_many(list.path, count, most);
    }
    count > most
}

fn named_by(field: &'static str) -> impl Fn(&Value) -> String {
    move |item| field::text(item, field).to_owned()
}

fn plain(item: &Value) -> String {
    item.as_str().unwrap_or("").to_owned()
}
