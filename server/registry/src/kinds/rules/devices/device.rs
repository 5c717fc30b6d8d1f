//! A device that a driver offers: attributes, capacities, counters, and the nodes that reach it.

use std::collections::HashSet;

use ferry_api::field_error::Reason;
use ferry_api::{FieldErrors, Quantity, names};
use serde_json::Value;

use super::super::field::{Context, Field};
use super::super::{placement, resources};
use super::slice::counter_map;
use super::taint::taint;
use super::{named_by, plain, qualified, set, too_many};

/// One device of a slice; `before` is what it was.
pub(super) fn device(
    device: Field<'_>,
    before: Option<&Value>,
    per_device: bool,
    context: &Context<'_>,
    errors: &mut FieldErrors,
) {
    device.child("name").named(names::dns1123_label, errors);
    let (attributes, capacity) = (device.child("attributes"), device.child("capacity"));
    let count = attributes.entries().count() + capacity.entries().count();
    if count > 32 {
        errors.invalid(
            device.path,
            count,
            "the total number of attributes and capacities must not exceed 32",
        );
    }
    attributes.each_entry(|key, attribute| {
        qualified(key, attributes.path, errors);
        device_attribute(attribute, context, errors);
    });
    capacities(device, errors);
    let taints = device.child("taints");
    if before.is_none_or(|before| before.get("taints") != taints.value) && !too_many(taints, 16, errors) {
        taints.each(|given| taint(given, errors));
    }
    let consumed = device.child("consumesCounters");
    if !too_many(consumed, 2, errors) {
        consumed.each(|given| {
            given.child("counterSet").required_name(names::dns1123_label, errors);
            counter_map(given.child("counters"), errors);
        });
        set(consumed, named_by("counterSet"), errors);
    }
    device_nodes(device, per_device, errors);
    binding_conditions(device, errors);
    node_resources(device, errors);
}

fn capacities(device: Field<'_>, errors: &mut FieldErrors) {
    let capacity = device.child("capacity");
    let shared = device.child("allowMultipleAllocations").flag();
    capacity.each_entry(|key, given| {
        qualified(key, capacity.path, errors);
        let policy = given.child("requestPolicy");
        if !policy.is_given() {
        } else if shared {
            request_policy(policy, given.child("value"), errors);
        } else {
            errors.forbidden(policy.path, "allowMultipleAllocations must be true");
        }
    });
}

/// What of the node's own resources a device takes.
fn node_resources(device: Field<'_>, errors: &mut FieldErrors) {
    let capacity = device.child("capacity");
    let mappings = device.child("nodeAllocatableResourceMappings");
    mappings.each_entry(|name, mapping| {
        if !resources::is_native(name) {
            errors.invalid(mapping.path, name, "must be a node allocatable resource name");
        }
        let (multiplier, key) = (mapping.child("allocationMultiplier"), mapping.child("capacityKey"));
        if !multiplier.is_given() && !key.is_given() {
            errors.invalid(
                mapping.path,
                "",
                "at least one of allocationMultiplier or capacityKey must be set",
            );
        }
        if multiplier.quantity().is_some_and(|amount| amount.is_zero() || amount.is_negative()) {
            multiplier.invalid("must be positive", errors);
        }
        if key.is_given() {
            if key.is_empty() {
                errors.invalid(key.path, "", "capacityKey must not be an empty string");
            } else if !capacity.has(key.text()) {
                errors.not_found(key.path, key.text());
            }
        }
    });
}

fn device_nodes(device: Field<'_>, per_device: bool, errors: &mut FieldErrors) {
    let (name, selector, all) =
        (device.child("nodeName"), device.child("nodeSelector"), device.child("allNodes"));
    if !per_device {
        if name.is_given() || selector.is_given() || all.is_given() {
            errors.invalid(
                device.path,
                Value::Null,
                "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec",
            );
        }
        return;
    }
    let mut given = Vec::new();
    if name.is_given() {
        if name.is_empty() {
            name.invalid("must not be empty", errors);
        } else {
            given.push("`nodeName`");
            name.named(names::dns1123_subdomain, errors);
        }
    }
    if selector.is_given() {
        given.push("`nodeSelector`");
        placement::node_selector_terms(selector, errors);
    }
    if all.flag() {
        given.push("`allNodes`");
    } else if all.is_given() {
        all.invalid("must be either unset or set to true", errors);
    }
    const ONE: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    match given.len() {
        0 => errors.required(device.path, ONE),
        1 => {}
        _ => errors.invalid(device.path, format!("{{{}}}", given.join(", ")), ONE),
    }
}

pub(super) fn binding_conditions(device: Field<'_>, errors: &mut FieldErrors) {
    let (wanted, failed) = (device.child("bindingConditions"), device.child("bindingFailureConditions"));
    for list in [wanted, failed] {
        if !too_many(list, 4, errors) {
            list.each(|name| name.named(names::qualified_name, errors));
        }
    }
    set(wanted, plain, errors);
    let mut seen: HashSet<String> = HashSet::new();
    failed.each(|condition| {
        if !seen.insert(condition.text().to_owned()) {
            errors.duplicate(condition.path, condition.text());
        }
        if wanted.items().iter().any(|other| other == condition.text()) {
            condition.invalid("bindingFailureConditions must not overlap with bindingConditions", errors);
        }
    });
    if wanted.items().is_empty() && !failed.items().is_empty() {
        errors.invalid(
            wanted.path,
            wanted.json(),
            "bindingConditions are required to use bindingFailureConditions",
        );
    }
    if failed.items().is_empty() && !wanted.items().is_empty() {
        errors.invalid(
            failed.path,
            failed.json(),
            "bindingFailureConditions are required to use bindingConditions",
        );
    }
}

fn device_attribute(attribute: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let text = |value: Field<'_>, errors: &mut FieldErrors| {
        if value.text().len() > 64 {
            errors.too_long(value.path, 64);
        }
    };
    let version = |value: Field<'_>, errors: &mut FieldErrors| {
        if !is_semantic_version(value.text()) {
            value.invalid("must be a string compatible with semver.org spec 2.0.0", errors);
        }
        text(value, errors);
    };
    let mut given = 0;
    for field in ["bool", "int", "string", "version", "bools", "ints", "strings", "versions"] {
        let value = attribute.child(field);
        if !value.is_given() {
            continue;
        }
        given += 1;
        match field {
            "string" => text(value, errors),
            "version" => version(value, errors),
            "bools" | "ints" | "strings" | "versions" => {
                if value.items().is_empty() {
                    value.invalid("must not be empty if specified", errors);
                }
                value.each(|item| match field {
                    "strings" => text(item, errors),
                    "versions" => version(item, errors),
                    _ => {}
                });
            }
            _ => {}
        }
    }
    const ONE: &str = "exactly one value must be specified";
    match given {
        0 => errors.invalid(attribute.path, "", ONE),
        1 => {}
        _ => {
            // The internal type has names of its own for these.
            let printed = context.printed_as("resource.v1.DeviceAttribute", attribute.value);
            let printed = ["Int", "Bool", "String", "Version"].iter().fold(printed, |text, name| {
                text.replace(&format!("\"{name}\":"), &format!("\"{name}Value\":"))
                    .replace(&format!("\"{name}s\":"), &format!("\"{name}Values\":"))
            });
            errors.push(attribute.path, Reason::Invalid, format!("{printed}: {ONE}"));
        }
    }
}

/// semver.org, 2.0.0
fn is_semantic_version(text: &str) -> bool {
    let (rest, build) = text.split_once('+').map_or((text, None), |(rest, build)| (rest, Some(build)));
    let (core, pre) = rest.split_once('-').map_or((rest, None), |(core, pre)| (core, Some(pre)));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let number = |part: &str| digits(part) && (part == "0" || !part.starts_with('0'));
    let word = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let core: Vec<&str> = core.split('.').collect();
    core.len() == 3
        && core.iter().all(|part| number(part))
        && pre.is_none_or(|pre| pre.split('.').all(|part| word(part) && (!digits(part) || number(part))))
        && build.is_none_or(|build| build.split('.').all(word))
}

fn request_policy(policy: Field<'_>, capacity: Field<'_>, errors: &mut FieldErrors) {
    let (values, range, default) =
        (policy.child("validValues"), policy.child("validRange"), policy.child("default"));
    let Some(most) = capacity.quantity() else { return };
    match (!values.items().is_empty(), range.is_given()) {
        (true, true) => errors.forbidden(
            policy.path,
            r#"exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time"#,
        ),
        (true, false) => match default.quantity() {
            None => errors.required(default.path, "required when validValues is defined"),
            Some(wanted) => valid_values(values, &wanted, &most, default.text(), capacity.text(), errors),
        },
        (false, true) => match default.quantity() {
            None => errors.required(default.path, "required when validRange is defined"),
            Some(wanted) => valid_range(range, &wanted, &most, default.text(), capacity.text(), errors),
        },
        (false, false) => {}
    }
}

fn valid_values(
    values: Field<'_>,
    wanted: &Quantity,
    most: &Quantity,
    wanted_text: &str,
    most_text: &str,
    errors: &mut FieldErrors,
) {
    let list: Vec<Option<Quantity>> =
        values.items().iter().map(|value| Quantity::parse(value.as_str()?).ok()).collect();
    for (index, pair) in list.windows(2).enumerate() {
        if pair[0] > pair[1] {
            let next = values.index(index + 1);
            next.invalid("values must be sorted in ascending order", errors);
        }
    }
    if too_many(values, 10, errors) {
        return;
    }
    values.each(|value| {
        if value.quantity().is_some_and(|value| value > *most) {
            value.invalid(&format!("option is larger than capacity value: {most_text}"), errors);
        }
    });
    set(
        values,
        |value| {
            let quantity = value.as_str().and_then(|text| Quantity::parse(text).ok());
            quantity.map_or(String::new(), |quantity| quantity.value().to_string())
        },
        errors,
    );
    if !list.iter().flatten().any(|value| value == wanted) {
        errors.invalid(values.path, wanted_text, "default value is not valid according to the requestPolicy");
    }
}

fn valid_range(
    range: Field<'_>,
    wanted: &Quantity,
    most: &Quantity,
    wanted_text: &str,
    most_text: &str,
    errors: &mut FieldErrors,
) {
    let (low, high, step) = (range.child("min"), range.child("max"), range.child("step"));
    let Some(least) = low.quantity() else {
        return errors.required(low.path, "required when validRange is defined");
    };
    if least > *most {
        low.invalid(&format!("min is larger than capacity value: {most_text}"), errors);
    }
    if *wanted < least {
        errors.invalid(low.path, wanted_text, &format!("default is less than min: {}", low.text()));
    }
    if let Some(greatest) = high.quantity() {
        if least > greatest {
            errors.invalid(high.path, low.text(), &format!("min is larger than max: {}", high.text()));
        }
        if greatest > *most {
            high.invalid(&format!("max is larger than capacity value: {most_text}"), errors);
        }
        if *wanted > greatest {
            errors.invalid(high.path, wanted_text, &format!("default is more than max: {}", high.text()));
        }
    }
    let Some(stride) = step.quantity() else { return };
    let added = Quantity::from_milli(least.milli().saturating_add(stride.milli()), least.format());
    if added > *most {
        let why = format!("one step {added} is larger than capacity value: {most_text}");
        step.invalid(&why, errors);
    }
    // A step of nothing leads nowhere.
    let ends = [
        Some((wanted.value(), wanted_text)),
        high.quantity().map(|high_value| (high_value.value(), high.text())),
    ];
    for (value, text) in ends.into_iter().flatten() {
        if stride.value() == 0 || (value - least.value()) % stride.value() != 0 {
            let why =
                format!("value is not a multiple of a given step ({}) from ({})", step.text(), low.text());
            errors.invalid(step.path, text, &why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_semantic_version_has_three_numbers_without_leading_zeros() {
        for good in ["1.2.3", "0.0.0", "1.0.0-alpha.1", "1.0.0-0a+build.01"] {
            assert!(is_semantic_version(good), "{good}");
        }
        for bad in ["", "1.2", "01.2.3", "1.2.3-", "1.2.3-01", "1.2.3+", "v1.2.3"] {
            assert!(!is_semantic_version(bad), "{bad}");
        }
    }
}
