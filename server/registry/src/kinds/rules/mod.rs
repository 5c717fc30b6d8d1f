//! The rules of fields, read from `rules.txt` and walked over an object in one pass: formats, bounds, words out of a
//! few, sizes, what must be there and what may not change. Rows stand in the order in which upstream reports. What a
//! row cannot say is a function in one of the files here, and a row names it.

mod autoscaling;
mod code;
mod containers;
mod devices;
mod events;
mod field;
mod flow_control;
mod format;
mod gates;
mod go_value;
mod jobs;
mod limits;
mod network;
mod nodes;
mod placement;
mod pods;
mod resources;
mod services;
mod storage;
mod table;
mod volumes;
mod walk;
mod workloads;

use std::sync::LazyLock;

use ferry_api::{FieldErrors, Object, Types};
use field::Field;
use serde_json::Value;
use table::Table;

use super::checks::Path;
use crate::strategy::UpdateScope;

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    table::parse(include_str!("rules.txt"), Types::builtin())
        .expect("the table is part of the program and a test reads it")
});

pub use gates::close as close_gates;

/// What the rows of its kind find wrong with a new object.
pub fn validate(object: &Object, errors: &mut FieldErrors) {
    walk::judge(&TABLE, object, None, UpdateScope::Main, errors);
}

/// What a certificate may be used for.
pub fn certificate_usages(usages: &Value, errors: &mut FieldErrors) {
    let spec = Path::root("spec");
    nodes::certificate_usages(Field::of(usages, spec.child("usages")), errors);
}

/// Who is to sign a certificate.
pub fn signer_name(name: &str, errors: &mut FieldErrors) {
    let spec = Path::root("spec");
    format::signer(name, spec.child("signerName"), errors);
}

/// What they find wrong with a changed one.
pub fn validate_update(new: &Object, old: &Object, scope: UpdateScope<'_>, errors: &mut FieldErrors) {
    walk::judge(&TABLE, new, Some(old), scope, errors);
}
