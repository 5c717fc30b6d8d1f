//! Nodes.

use std::collections::{HashMap, HashSet};

use ferry_api::field_error::Reason;
use ferry_api::{FieldErrors, names};
use serde_json::Value;

use super::field::{Context, Field, Old};
use super::{format, placement, resources};
use crate::kinds::checks::Path;

/// Taints are told as of the metadata, where they once stood.
pub fn taints(taints: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let metadata = Path::root("metadata");
    let taints = Field { value: taints.value, path: metadata.child("taints") };
    let mut seen: HashMap<String, HashSet<String>> = HashMap::new();
    taints.each(|taint| {
        let (key, value, effect) = (taint.child("key"), taint.child("value"), taint.child("effect"));
        key.named(names::qualified_name, errors);
        let wrong = names::label_value(value.text());
        if !wrong.is_empty() {
            errors.invalid(value.path, value.text(), &wrong.join(";"));
        }
        effect.required_one_of(placement::EFFECTS, errors);
        if !seen.entry(effect.text().to_owned()).or_default().insert(key.text().to_owned()) {
            let printed = context.printed_as("core.v1.Taint", taint.value);
            let detail = format!("{printed}: taints must be unique by key and effect pair");
            errors.push(taint.path, Reason::Duplicate, detail);
        }
    });
}

/// The amounts of a node; their names are told as fields.
pub fn amounts(amounts: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    for (name, value) in amounts.entries() {
        resources::amount(name, Field::of(value, amounts.path.child(name)), errors);
    }
}

pub fn pod_cidrs(cidrs: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    cidrs.each(|cidr| cidr.named(format::cidr, errors));
    families(cidrs, errors);
    if let Old::Known(old) = context.old {
        let why = "node updates may not change podCIDR except from \"\" to valid";
        let old = old.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        if old.is_empty() {
        } else if old.len() != cidrs.items().len() {
            errors.forbidden(cidrs.path, why);
        } else {
            for _ in old.iter().zip(cidrs.items()).filter(|(old, new)| old != new) {
                errors.forbidden(cidrs.path, why);
            }
        }
    }
}

fn families(cidrs: Field<'_>, errors: &mut FieldErrors) {
    if cidrs.items().len() < 2 {
        return;
    }
    let families: HashSet<bool> = cidrs
        .items()
        .iter()
        .filter_map(|cidr| format::network(cidr.as_str()?).map(|(address, _)| address.is_ipv4()))
        .collect();
    if families.len() != 2 || cidrs.items().len() > 2 {
        cidrs.invalid("may specify no more than one CIDR for each IP family", errors);
    }
}

pub fn provider(id: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    if let Old::Known(Some(Value::String(old))) = context.old
        && !old.is_empty()
        && old != id.text()
    {
        errors.forbidden(id.path, "node updates may not change providerID except from \"\" to valid");
    }
}

pub fn declared_features(features: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let segment = |segment: &str, first: fn(&char) -> bool| {
        segment.chars().next().is_some_and(|c| first(&c))
            && segment.chars().all(|c| c.is_ascii_alphanumeric())
    };
    let list: Vec<&str> = features.items().iter().filter_map(Value::as_str).collect();
    for (index, name) in list.iter().enumerate() {
        let path = features.path.index(index);
        let mut parts = name.split('/');
        let formed = parts.next().is_some_and(|part| segment(part, char::is_ascii_uppercase))
            && parts.all(|part| segment(part, char::is_ascii_alphabetic));
        if name.len() > 253 {
            let why = format!("invalid feature name {name:?}: must be no more than 253 characters");
            errors.invalid(path, *name, &why);
        } else if !formed {
            let why = format!(
                "invalid feature name {name:?}: must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes"
            );
            errors.invalid(path, *name, &why);
        }
        if let Some(next) = list.get(index + 1) {
            let path = features.path.index(index + 1);
            match name.cmp(next) {
                std::cmp::Ordering::Equal => errors.duplicate(path, *next),
                std::cmp::Ordering::Greater => {
                    errors.invalid(path, *next, "list must be sorted alphabetically");
                }
                std::cmp::Ordering::Less => {}
            }
        }
    }
}

/// The value of a PriorityClass; the highest ones are the system's.
pub fn priority(value: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    const SYSTEM: &[(&str, i64)] =
        &[("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];
    const HIGHEST: i64 = 1_000_000_000;
    let name = context.object.name();
    let default = context.sibling("globalDefault").and_then(Value::as_bool) == Some(true);
    if name.starts_with("system-") {
        let why = match SYSTEM.iter().find(|(system, _)| *system == name) {
            Some((_, own)) if *own != value.number() => {
                format!("value of {name} PriorityClass must be {own}")
            }
            Some(_) if default => format!("globalDefault of {name} PriorityClass must be false"),
            Some(_) => return,
            None => format!("{name} is not a known system priority class"),
        };
        errors.forbidden(
            "metadata.name",
            &format!(
                "priority class names with 'system-' prefix are reserved for system use only. error: {why}"
            ),
        );
    } else if value.number() > HIGHEST {
        let why = format!("maximum allowed value of a user defined priority is {HIGHEST}");
        errors.forbidden(value.path, &why);
    }
}

/// What a certificate may be used for.
pub fn certificate_usages(usages: Field<'_>, errors: &mut FieldErrors) {
    const USAGES: &[&str] = &[
        "any",
        "cert sign",
        "client auth",
        "code signing",
        "content commitment",
        "crl sign",
        "data encipherment",
        "decipher only",
        "digital signature",
        "email protection",
        "encipher only",
        "ipsec end system",
        "ipsec tunnel",
        "ipsec user",
        "key agreement",
        "key encipherment",
        "microsoft sgc",
        "netscape sgc",
        "ocsp signing",
        "s/mime",
        "server auth",
        "signing",
        "timestamping",
    ];
    usages.each(|usage| usage.one_of(USAGES, errors));
    let mut seen: HashSet<String> = HashSet::new();
    usages.each(|usage| {
        if !seen.insert(usage.text().to_owned()) {
            errors.duplicate(usage.path, usage.text());
        }
    });
}

/// How much memory can be swapped out, told as of the metadata.
pub fn swap(capacity: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    if capacity.is_given() && capacity.number() <= 0 {
        errors.invalid("metadata.nodeSwapStatus.capacity", capacity.number(), "must be greater than zero");
    }
}

/// How the holder of a lease is chosen. Upstream tells it one level too deep.
pub fn lease_strategy(strategy: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    if !strategy.is_given() {
        return;
    }
    let told = Field { value: strategy.value, path: strategy.path.child("strategy") };
    if strategy.text().contains('/') {
        told.named(names::qualified_name, errors);
    } else {
        told.one_of(&["OldestEmulationVersion"], errors);
    }
}
