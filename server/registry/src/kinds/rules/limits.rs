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

/// Every amount lies between the smallest and the largest.
fn compare(limit: Field<'_>, key: &str, errors: &mut FieldErrors) {
    let of =
        |part: &str| limit.get(part).and_then(|amounts| amounts.get(key)).and_then(|value| value.as_str());
    let quantity = |text: Option<&str>| text.and_then(|text| Quantity::parse(text).ok());
    let more = |a: Option<&str>, b: Option<&str>| quantity(a).zip(quantity(b)).is_some_and(|(a, b)| a > b);
    let tell = |part: &str, value: Option<&str>, why: String, errors: &mut FieldErrors| {
        let amounts = limit.path.child(part);
        errors.invalid(amounts.key(key), value.unwrap_or(""), &why);
    };
    let pod = limit.child("type").text() == "Pod";
    let (min, max, ratio) = (of("min"), of("max"), of("maxLimitRequestRatio"));
    let (default, request) = if pod { (None, None) } else { (of("default"), of("defaultRequest")) };
    let words = |a: Option<&str>| a.unwrap_or("").to_owned();
    if more(min, max) {
        tell(
            "min",
            min,
            format!("min value {} is greater than max value {}", words(min), words(max)),
            errors,
        );
    }
    if more(min, request) {
        let why =
            format!("min value {} is greater than default request value {}", words(min), words(request));
        tell("defaultRequest", request, why, errors);
    }
    if more(request, max) {
        let why =
            format!("default request value {} is greater than max value {}", words(request), words(max));
        tell("defaultRequest", request, why, errors);
    }
    if more(request, default) {
        let why = format!(
            "default request value {} is greater than default limit value {}",
            words(request),
            words(default)
        );
        tell("defaultRequest", request, why, errors);
    }
    if more(min, default) {
        let why = format!("min value {} is greater than default value {}", words(min), words(default));
        tell("default", min, why, errors);
    }
    if more(default, max) {
        let why = format!("default value {} is greater than max value {}", words(default), words(max));
        tell("default", max, why, errors);
    }
    if quantity(ratio).is_some_and(|ratio| ratio.milli() < 1000) {
        tell("maxLimitRequestRatio", ratio, format!("ratio {} is less than 1", words(ratio)), errors);
    }
    if let (Some(wanted), Some(low), Some(high)) = (quantity(ratio), quantity(min), quantity(max)) {
        let bound = high.milli() as f64 / low.milli() as f64;
        if wanted.milli() as f64 / 1000.0 > bound {
            let why = format!("ratio {} is greater than max/min = {bound:.6}", words(ratio));
            tell("maxLimitRequestRatio", ratio, why, errors);
        }
    }
    let differ = quantity(default).zip(quantity(request)).is_some_and(|(a, b)| a != b);
    if differ && !resources::may_overcommit(key) {
        let why = format!(
            "default value {} must equal to defaultRequest value {} in {key}",
            words(default),
            words(request)
        );
        tell("defaultRequest", request, why, errors);
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
