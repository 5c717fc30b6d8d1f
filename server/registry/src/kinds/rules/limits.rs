//! LimitRange.

use std::collections::{BTreeSet, HashSet};

use ferry_api::{FieldErrors, Quantity, names};

use super::field::{Context, Field};
use super::resources;

const TYPES: &[&str] = &["Pod", "Container", "PersistentVolumeClaim"];

pub fn limits(list: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let mut seen: HashSet<String> = HashSet::new();
    list.each(|limit| {
        let kind = limit.child("type");
        let wrong = names::qualified_name(kind.text());
        for why in &wrong {
            kind.invalid(why, errors);
        }
        if wrong.is_empty() && !kind.text().contains('/') && !TYPES.contains(&kind.text()) {
            kind.invalid("must be a standard limit type or fully qualified", errors);
        }
        if !seen.insert(kind.text().to_owned()) {
            errors.duplicate(kind.path, kind.text());
        }
        let of_pods = ["Pod", "Container"].contains(&kind.text());
        let mut keys: BTreeSet<String> = BTreeSet::new();
        for part in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
            let amounts = limit.child(part);
            if kind.text() == "Pod" && ["default", "defaultRequest"].contains(&part) {
                if !amounts.is_empty() {
                    errors.forbidden(amounts.path, "may not be specified when `type` is 'Pod'");
                }
                continue;
            }
            if part == "maxLimitRequestRatio"
                && kind.text() == "PersistentVolumeClaim"
                && !limit.child("min").has("storage")
                && !limit.child("max").has("storage")
            {
                errors.required(
                    limit.path.child("limits"),
                    "either minimum or maximum storage value is required, but neither was provided",
                );
            }
            amounts.each_entry(|name, amount| {
                match of_pods {
                    true => resources::container_name(name, amount.path, errors),
                    false => {
                        resources::any_name(name, amount.path, errors);
                    }
                }
                keys.insert(name.to_owned());
            });
        }
        keys.iter().for_each(|key| compare(limit, key, errors));
    });
}

/// The amounts of one resource: each lies between the minimum and the maximum.
fn compare(limit: Field<'_>, key: &str, errors: &mut FieldErrors) {
    let of =
        |part: &str| limit.get(part).and_then(|amounts| amounts.get(key)).and_then(|value| value.as_str());
    let (min, max) = (of("min"), of("max"));
    let is_pod = limit.child("type").text() == "Pod";
    let (default, request) = if is_pod { (None, None) } else { (of("default"), of("defaultRequest")) };
    // The field the error is about, the amount that it quotes, the smaller amount, the larger one, and their names in the
    // error. Upstream quotes the minimum at `default`.
    let ordered = [
        ("min", min, (min, "min value"), (max, "max value")),
        ("defaultRequest", request, (min, "min value"), (request, "default request value")),
        ("defaultRequest", request, (request, "default request value"), (max, "max value")),
        ("defaultRequest", request, (request, "default request value"), (default, "default limit value")),
        ("default", min, (min, "min value"), (default, "default value")),
        ("default", default, (default, "default value"), (max, "max value")),
    ];
    for (part, quoted, (low, low_name), (high, high_name)) in ordered {
        if let (Some(low), Some(high)) = (low, high)
            && quantity(Some(low)).zip(quantity(Some(high))).is_some_and(|(low, high)| low > high)
        {
            let why = format!("{low_name} {low} is greater than {high_name} {high}");
            errors.invalid(limit.path.child(part).key(key), quoted.unwrap_or(""), &why);
        }
    }
    compare_ratio(limit.child("maxLimitRequestRatio"), key, (min, max), errors);
    if let (Some(default), Some(request)) = (default, request)
        && quantity(Some(default)).zip(quantity(Some(request))).is_some_and(|(a, b)| a != b)
        && !resources::may_overcommit(key)
    {
        let why = format!("default value {default} must equal to defaultRequest value {request} in {key}");
        errors.invalid(limit.path.child("defaultRequest").key(key), request, &why);
    }
}

fn quantity(text: Option<&str>) -> Option<Quantity> {
    text.and_then(|text| Quantity::parse(text).ok())
}

/// `maxLimitRequestRatio` is at least 1, and at most the maximum divided by the minimum.
fn compare_ratio(
    ratios: Field<'_>,
    key: &str,
    (min, max): (Option<&str>, Option<&str>),
    errors: &mut FieldErrors,
) {
    let Some(text) = ratios.get(key).and_then(|value| value.as_str()) else { return };
    let Some(ratio) = quantity(Some(text)) else { return };
    let path = ratios.path.key(key);
    if ratio.milli() < 1000 {
        errors.invalid(path, text, &format!("ratio {text} is less than 1"));
    }
    if let (Some(low), Some(high)) = (quantity(min), quantity(max)) {
        let bound = high.milli() as f64 / low.milli() as f64;
        if ratio.milli() as f64 / 1000.0 > bound {
            errors.invalid(path, text, &format!("ratio {text} is greater than max/min = {bound:.6}"));
        }
    }
}

/// Finalizers of a namespace's spec.
pub fn namespace_finalizers(list: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    for name in list.items().iter().filter_map(|name| name.as_str()) {
        crate::kinds::checks::named(errors, list.path, name, names::qualified_name);
        if !name.contains('/') && !["kubernetes", "orphan", "foregroundDeletion"].contains(&name) {
            errors.invalid(
                list.path,
                name,
                "name is neither a standard finalizer name nor is it fully qualified",
            );
        }
    }
}
