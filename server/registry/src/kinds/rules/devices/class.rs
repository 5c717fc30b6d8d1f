//! What a DeviceClass says: which devices it has and what drivers are told; requests of a claim say the same.

use ferry_api::FieldErrors;
use serde_json::Value;

use super::super::field::{Context, Field};
use super::super::resources;
use super::{driver, too_many};

pub fn device_selectors(list: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    selectors(list, errors);
}

pub(super) fn selectors(list: Field<'_>, errors: &mut FieldErrors) {
    if too_many(list, 32, errors) {
        return;
    }
    list.each(|selector| {
        let cel = selector.child("cel");
        if !cel.is_given() {
            return errors.required(cel.path, "");
        }
        let expression = cel.child("expression");
        if expression.text().len() > 10 << 10 {
            return errors.too_long(expression.path, 10 << 10);
        }
        if let Err(why) = device_expression(expression.text()) {
            errors.invalid(expression.path, expression.text(), &why);
        }
    });
}

/// Whether an expression over `device` can be compiled.
fn device_expression(expression: &str) -> Result<(), String> {
    ferry_cel::device::compile(expression).map(drop).map_err(|error| error.to_string())
}

/// What a driver is told besides; only it understands that.
pub(super) fn configuration(config: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let opaque = config.child("opaque");
    if !opaque.is_given() {
        return errors.required(opaque.path, "");
    }
    driver(opaque.child("driver"), errors);
    raw(opaque.child("parameters"), errors);
}

pub(super) fn raw(value: Field<'_>, errors: &mut FieldErrors) {
    match value.value {
        None => errors.required(value.path, ""),
        Some(Value::Object(_)) => {}
        Some(_) => errors.invalid(value.path, "<value omitted>", "must be a valid JSON object"),
    }
}

pub fn class_configs(list: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    if !too_many(list, 32, errors) {
        list.each(|config| configuration(config, context, errors));
    }
}

pub fn extended_resource(name: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    if name.is_given() && !resources::is_extended(name.text()) {
        name.invalid("must be a valid extended resource name", errors);
    }
}
