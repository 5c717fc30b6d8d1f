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
mod go_value;
mod jobs;
mod network;
mod nodes;
mod placement;
mod pods;
mod resources;
mod storage;
mod table;
mod volumes;
mod walk;
mod workloads;

use std::sync::LazyLock;

use ferry_api::{FieldErrors, Object, Types};
use table::Table;

use crate::strategy::UpdateScope;

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    table::parse(include_str!("rules.txt"), Types::builtin())
        .expect("the table is part of the program and a test reads it")
});

/// What the rows of its kind find wrong with a new object.
pub fn validate(object: &Object, errors: &mut FieldErrors) {
    walk::judge(&TABLE, object, None, UpdateScope::Main, errors);
}

/// What they find wrong with a changed one.
pub fn validate_update(new: &Object, old: &Object, scope: UpdateScope<'_>, errors: &mut FieldErrors) {
    walk::judge(&TABLE, new, Some(old), scope, errors);
}
