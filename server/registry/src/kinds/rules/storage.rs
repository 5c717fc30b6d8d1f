//! Storage: attachments, drivers and the classes of volumes.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use ferry_api::{FieldErrors, names};
use serde_json::Value;

use super::field::{self, Context, Field};
use super::persistent_volumes;
use crate::kinds::checks::{self, NOT_NEGATIVE};

const LARGEST_PARAMETERS: usize = 256 << 10;
const MOST_PARAMETERS: usize = 512;

/// Parameters of a class, which may be none.
pub fn parameters(field: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    judge_parameters(field, errors);
}

/// Parameters of which there is at least one.
pub fn some_parameters(field: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    judge_parameters(field, errors);
    field.required("must contain at least one key/value pair", errors);
}

fn judge_parameters(field: Field<'_>, errors: &mut FieldErrors) {
    if field.entries().count() > MOST_PARAMETERS {
        return errors.too_long(field.path, MOST_PARAMETERS);
    }
    let mut size = 0;
    for (key, value) in field.entries() {
        if key.is_empty() {
            errors.invalid(field.path, key, "field can not be empty.");
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > LARGEST_PARAMETERS {
        errors.too_long(field.path, LARGEST_PARAMETERS);
    }
}

/// Topologies of a class; no two are alike.
pub fn topologies(field: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    // Upstream compares with as many terms that say nothing as there are terms.
    let mut seen: Vec<BTreeMap<String, BTreeSet<String>>> = vec![BTreeMap::new(); field.items().len()];
    field.each(|term| {
        let mut own: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let list = term.child("matchLabelExpressions");
        list.each(|requirement| {
            let (values, key) = (requirement.child("values"), requirement.child("key"));
            let mut set = BTreeSet::new();
            values.required("", errors);
            values.each(|value| {
                if !set.insert(value.text().to_owned()) {
                    errors.duplicate(value.path, value.text());
                }
            });
            key.named(names::qualified_name, errors);
            if own.insert(key.text().to_owned(), set).is_some() {
                errors.duplicate(key.path, key.text());
            }
        });
        for _ in seen.iter().filter(|other| **other == own) {
            errors.duplicate(list.path, "");
        }
        seen.push(own);
    });
}

pub fn attachment_source(source: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    const ONE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    let (inline, name) = (source.child("inlineVolumeSpec"), source.child("persistentVolumeName"));
    match (inline.is_given(), name.is_given()) {
        (false, false) => errors.required(source.path, ONE),
        (true, true) => errors.forbidden(source.path, ONE),
        (false, true) => {
            name.required("must specify non empty persistentVolumeName", errors);
        }
        (true, false) => persistent_volumes::persistent_spec(inline, context, true, errors),
    }
}

pub fn attachment_volume(name: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    if name.is_given() {
        name.named(names::dns1123_subdomain, errors);
    }
}

pub fn attachment_status(status: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let metadata = status.child("attachmentMetadata");
    let size: usize =
        metadata.entries().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > LARGEST_PARAMETERS {
        errors.too_long(metadata.path, LARGEST_PARAMETERS);
    }
    for field in ["attachError", "detachError"] {
        let error = status.child(field);
        let (message, code) = (error.child("message"), error.child("errorCode"));
        if message.text().len() > 1024 {
            errors.too_long(message.path, LARGEST_PARAMETERS);
        }
        if code.number() < 0 {
            code.invalid("must be between 0 and 2147483647, inclusive", errors);
        }
    }
}

/// The drivers of a node.
pub fn node_drivers(drivers: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let mut seen: HashSet<String> = HashSet::new();
    drivers.each(|driver| {
        let name = driver.child("name");
        super::format::driver(name.text(), name.path, errors);
        let id = driver.child("nodeID");
        id.required("", errors);
        if id.text().len() > 256 {
            id.invalid("must be 256 characters or less", errors);
        }
        let allocatable = driver.child("allocatable");
        let count = allocatable.child("count");
        if count.number() < 0 {
            count.invalid(NOT_NEGATIVE, errors);
        }
        if !seen.insert(name.text().to_owned()) {
            errors.duplicate(name.path, name.text());
        }
        let mut keys: HashSet<&str> = HashSet::new();
        for key in driver.child("topologyKeys").items().iter().filter_map(Value::as_str) {
            if key.is_empty() {
                errors.required(driver.path, key);
            }
            if !keys.insert(key) {
                errors.duplicate(driver.path, key);
            }
            checks::named(errors, driver.path, key, names::qualified_name);
        }
    });
    let field::Old::Known(old) = context.old else { return };
    let without_count = |driver: &Value| {
        let mut driver = driver.clone();
        driver.as_object_mut().and_then(|driver| driver.remove("allocatable"));
        driver
    };
    for old in old.and_then(Value::as_array).into_iter().flatten() {
        for new in drivers.items().iter().filter(|new| field::text(new, "name") == field::text(old, "name")) {
            if without_count(new) != without_count(old) {
                let printed = context.printed_as("storage.v1.CSINodeDriver", Some(&without_count(new)));
                let detail = format!("{printed}: {}", checks::IMMUTABLE);
                errors.push(drivers.path, ferry_api::field_error::Reason::Invalid, detail);
            }
        }
    }
}

/// The tokens that a driver asks for.
pub fn token_requests(requests: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let mut seen: HashSet<String> = HashSet::new();
    requests.each(|request| {
        let (audience, seconds) = (request.child("audience"), request.child("expirationSeconds"));
        if !seen.insert(audience.text().to_owned()) {
            return errors.duplicate(audience.path, audience.text());
        }
        if seconds.is_given() && seconds.number() < 600 {
            seconds.invalid("may not specify a duration less than 10 minutes", errors);
        }
        if seconds.number() > 1 << 32 {
            seconds.invalid("may not specify a duration larger than 2^32 seconds", errors);
        }
    });
}

pub fn lifecycle_modes(modes: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    for mode in modes.items().iter().filter_map(Value::as_str) {
        if !["Persistent", "Ephemeral"].contains(&mode) {
            errors.not_supported(modes.path, mode, &["Persistent", "Ephemeral"]);
        }
    }
}

pub fn token_in_secrets(flag: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    if flag.is_given() && field::is_empty(context.sibling("tokenRequests")) {
        flag.invalid("serviceAccountTokenInSecrets is set but no tokenRequests are specified", errors);
    }
}
