//! Devices that drivers offer (ResourceSlice) and those that pods ask for (ResourceClaim).

use std::collections::{BTreeMap, BTreeSet, HashSet};

use ferry_api::field_error::Reason;
use ferry_api::{FieldErrors, Quantity, names};
use serde_json::Value;

use super::field::{self, Context, Field, Old};
use super::{format, placement, resources};
use crate::kinds::checks::{IMMUTABLE, Path};
use crate::kinds::device_claim;

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

/// The claim inside a ResourceClaim or a template of one.
pub fn claim(devices: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let requests = devices.child("requests");
    let known = request_names(requests);
    if !too_many(requests, 32, errors) {
        requests.each(|request| device_request(request, errors));
        set(requests, named_by("name"), errors);
    }
    let constraints = devices.child("constraints");
    if !too_many(constraints, 32, errors) {
        constraints.each(|constraint| {
            request_references(constraint.child("requests"), &known, errors);
            let (matching, distinct) = (constraint.child("matchAttribute"), constraint.child("distinctAttribute"));
            if matching.is_given() {
                fully_qualified(matching, errors);
            } else if distinct.is_given() {
                fully_qualified(distinct, errors);
            } else {
                errors.required(
                    constraint.path,
                    r#"exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set"#,
                );
            }
        });
    }
    let configs = devices.child("config");
    if !too_many(configs, 32, errors) {
        configs.each(|config| {
            request_references(config.child("requests"), &known, errors);
            configuration(config, context, errors);
        });
    }
}

/// The names of a claim's requests, with those of their alternatives.
fn request_names(requests: Field<'_>) -> BTreeMap<String, BTreeSet<String>> {
    let named = |request: &Value| {
        let alternatives = request.get("firstAvailable").and_then(Value::as_array).into_iter().flatten();
        let names = alternatives.map(|alternative| field::text(alternative, "name").to_owned()).collect();
        (field::text(request, "name").to_owned(), names)
    };
    requests.items().iter().map(named).collect()
}

/// What the scheduler gave to a claim, who uses it, and what drivers tell of the devices.
pub fn claim_status(status: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let before = match context.old {
        Old::Known(before) => before,
        Old::Unknown => None,
    };
    let users = status.child("reservedFor");
    if !too_many(users, 256, errors) {
        users.each(|user| {
            for name in ["resource", "name", "uid"] {
                user.child(name).required("", errors);
            }
        });
        set(users, named_by("uid"), errors);
    }
    let allocation = status.child("allocation");
    let results = allocation.child("devices");
    let results = results.child("results");
    let allocated: HashSet<[String; 4]> = results.items().iter().map(device_claim::identity).collect();
    let devices = status.child("devices");
    devices.each(|device| device_status(device, &allocated, errors));
    set(devices, |device| shown_identity(&device_claim::identity(device)), errors);
    if !users.items().is_empty() {
        let used = before.and_then(|before| before.get("reservedFor")).and_then(Value::as_array);
        let is_new = |user: &Value| used.is_none_or(|used| !used.contains(user));
        if !allocation.is_given() {
            errors.forbidden(users.path, "may not be specified when `allocated` is not set");
        } else if context.object.is_deleting() && users.items().iter().any(is_new) {
            errors.forbidden(
                users.path,
                "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set",
            );
        }
    }
    let given = before.and_then(|before| before.get("allocation")).filter(|given| !given.is_null());
    match (given, allocation.value) {
        (_, None) => {}
        (Some(given), Some(now)) if given == now => {}
        (Some(_), now) => {
            let value = context.printed_as("resource.v1.AllocationResult", now);
            errors.push(allocation.path, Reason::Invalid, format!("{value}: {IMMUTABLE}"));
        }
        (None, Some(_)) => new_allocation(allocation, context, errors),
    }
}

fn new_allocation(allocation: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let requests = context.object.get(&["spec", "devices", "requests"]);
    let known = request_names(Field { value: requests, path: Path::root("spec") });
    let devices = allocation.child("devices");
    let results = devices.child("results");
    if !too_many(results, 32, errors) {
        results.each(|result| {
            request_reference(result.child("request"), &known, errors);
            driver(result.child("driver"), errors);
            pool_name(result.child("pool"), errors);
            result.child("device").named(names::dns1123_label, errors);
            binding_conditions(result, errors);
            share(result.child("shareID"), errors);
        });
    }
    let configs = devices.child("config");
    if !too_many(configs, 64, errors) {
        configs.each(|config| {
            config.child("source").required_one_of(&["FromClaim", "FromClass"], errors);
            request_references(config.child("requests"), &known, errors);
            configuration(config, context, errors);
        });
    }
    let selector = allocation.child("nodeSelector");
    if selector.is_given() {
        placement::node_selector_terms(selector, errors);
    }
}

/// What a driver tells of a device that the claim has.
fn device_status(device: Field<'_>, allocated: &HashSet<[String; 4]>, errors: &mut FieldErrors) {
    driver(device.child("driver"), errors);
    pool_name(device.child("pool"), errors);
    device.child("device").named(names::dns1123_label, errors);
    share(device.child("shareID"), errors);
    let identity = device.value.map(device_claim::identity).unwrap_or_default();
    if !allocated.contains(&identity) {
        let shown = shown_identity(&identity);
        let why = "must be an allocated device in the claim";
        errors.push(device.path, Reason::Invalid, format!("{shown}: {why}"));
    }
    too_many(device.child("conditions"), 8, errors);
    let data = device.child("data");
    if data.is_given() {
        raw(data, errors);
    }
    let network = device.child("networkData");
    for (name, most) in [("interfaceName", 256), ("hardwareAddress", 128)] {
        let text = network.child(name);
        if text.text().len() > most {
            errors.too_long(text.path, most);
        }
    }
    let addresses = network.child("ips");
    if !too_many(addresses, 16, errors) {
        addresses.each(|address| interface_address(address, errors));
        set(addresses, plain, errors);
    }
}

/// As upstream prints its internal struct.
fn shown_identity([driver, pool, device, share]: &[String; 4]) -> String {
    format!(r#"{{"Driver":{driver:?},"Pool":{pool:?},"Device":{device:?},"ShareID":{share:?}}}"#)
}

/// Which share of a device it is, where several have one.
fn share(id: Field<'_>, errors: &mut FieldErrors) {
    const FORM: &str = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters";
    if !id.is_given() {
        return;
    }
    let text = id.text();
    // Braces, a prefix or no dashes are forms too, but not the normal one.
    if ![32, 36, 38, 45].contains(&text.len()) {
        id.invalid(&format!("error validating uid: invalid UUID length: {}", text.len()), errors);
    } else if uuid::Uuid::try_parse(text).is_err() {
        id.invalid("error validating uid: invalid UUID format", errors);
    } else if text.len() != 36 || text.chars().any(|letter| letter.is_ascii_uppercase()) {
        id.invalid(FORM, errors);
    }
}

/// An address with the size of its network, as an interface has it.
fn interface_address(address: Field<'_>, errors: &mut FieldErrors) {
    let text = address.text();
    let parsed = text.split_once('/').and_then(|(ip, bits)| {
        let (ip, bits): (std::net::IpAddr, u8) = (ip.parse().ok()?, bits.parse().ok()?);
        (bits <= if ip.is_ipv4() { 32 } else { 128 }).then_some((ip, bits))
    });
    let Some((ip, bits)) = parsed else {
        return address
            .invalid("must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)", errors);
    };
    let canonical = match ip.to_canonical() {
        v4 if v4.is_ipv4() && !ip.is_ipv4() => format!("{v4}/{}", bits.saturating_sub(96)),
        ip => format!("{ip}/{bits}"),
    };
    if text != canonical {
        address.invalid(&format!("must be in canonical form ({canonical:?})"), errors);
    }
}

fn request_reference(name: Field<'_>, known: &BTreeMap<String, BTreeSet<String>>, errors: &mut FieldErrors) {
    const NONE: &str = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
    let parts: Vec<&str> = name.text().split('/').collect();
    if parts.len() > 2 {
        return name.invalid(NONE, errors);
    }
    for part in &parts {
        crate::kinds::checks::named(errors, name.path, part, names::dns1123_label);
    }
    let found =
        known.get(parts[0]).is_some_and(|inner| parts.get(1).is_none_or(|part| inner.contains(*part)));
    if !found {
        name.invalid(NONE, errors);
    }
}

fn request_references(list: Field<'_>, known: &BTreeMap<String, BTreeSet<String>>, errors: &mut FieldErrors) {
    if too_many(list, 32, errors) {
        return;
    }
    list.each(|name| request_reference(name, known, errors));
    set(list, plain, errors);
}

fn device_request(request: Field<'_>, errors: &mut FieldErrors) {
    request.child("name").named(names::dns1123_label, errors);
    let (exactly, alternatives) = (request.child("exactly"), request.child("firstAvailable"));
    match (exactly.is_given(), !alternatives.items().is_empty()) {
        (false, false) => {
            errors.required(request.path, "exactly one of `exactly` or `firstAvailable` is required");
        }
        (true, true) => errors.invalid(
            request.path,
            Value::Null,
            "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
        ),
        (true, false) => exact_request(exactly, errors),
        (false, true) => {
            if !too_many(alternatives, 8, errors) {
                alternatives.each(|alternative| {
                    alternative.child("name").named(names::dns1123_label, errors);
                    exact_request(alternative, errors);
                });
                set(alternatives, named_by("name"), errors);
            }
        }
    }
}

fn exact_request(request: Field<'_>, errors: &mut FieldErrors) {
    request.child("deviceClassName").required_name(names::dns1123_subdomain, errors);
    selectors(request.child("selectors"), errors);
    let (mode, count) = (request.child("allocationMode"), request.child("count"));
    match mode.text() {
        "All" if count.number() != 0 => {
            count.invalid("must not be specified when allocationMode is 'All'", errors);
        }
        "All" => {}
        "ExactCount" if count.number() <= 0 => {
            errors.invalid(count.path, count.number(), "must be greater than zero");
        }
        "ExactCount" => {}
        _ => mode.one_of(&["All", "ExactCount"], errors),
    }
    request.child("tolerations").each(|toleration| {
        let (key, operator) = (toleration.child("key"), toleration.child("operator"));
        let (value, effect) = (toleration.child("value"), toleration.child("effect"));
        key.optional_name(names::qualified_name, errors);
        match operator.text() {
            "Exists" if !value.is_empty() => value.invalid("must be empty for operator `Exists`", errors),
            "Exists" => {}
            "Equal" => value.named(names::label_value, errors),
            "" => errors.required(operator.path, ""),
            _ => operator.one_of(&["Equal", "Exists"], errors),
        }
        if !effect.is_empty() {
            effect.one_of(EFFECTS, errors);
        }
    });
}

const EFFECTS: &[&str] = &["NoExecute", "NoSchedule", "None"];

pub fn device_selectors(list: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    selectors(list, errors);
}

fn selectors(list: Field<'_>, errors: &mut FieldErrors) {
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
fn configuration(config: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let opaque = config.child("opaque");
    if !opaque.is_given() {
        return errors.required(opaque.path, "");
    }
    driver(opaque.child("driver"), errors);
    raw(opaque.child("parameters"), errors);
}

fn raw(value: Field<'_>, errors: &mut FieldErrors) {
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

/// What a driver offers.
pub fn slice(spec: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    driver(spec.child("driver"), errors);
    let pool = spec.child("pool");
    pool_name(pool.child("name"), errors);
    let (slices, generation) = (pool.child("resourceSliceCount"), pool.child("generation"));
    if slices.number() <= 0 {
        errors.invalid(slices.path, slices.number(), "must be greater than zero");
    }
    if generation.number() < 0 {
        generation.invalid("must be greater than or equal to zero", errors);
    }
    let old = match context.old {
        Old::Known(Some(old)) => Some(Field::of(old, spec.path)),
        _ => None,
    };
    if let Some(old) = old {
        if old.child("pool").child("name").text() != pool.child("name").text() {
            pool.child("name").invalid(IMMUTABLE, errors);
        }
        for field in ["driver", "nodeName"] {
            if old.get(field) != spec.get(field) {
                errors.invalid(spec.path.child(field), spec.child(field).json(), IMMUTABLE);
            }
        }
    }
    slice_nodes(spec, errors);
    let (devices, counters) = (spec.child("devices"), spec.child("sharedCounters"));
    if devices.is_given() && counters.is_given() {
        errors.invalid(spec.path, "", "only one of `sharedCounters` or `devices` is allowed");
    }
    let advanced = devices.items().iter().any(|device| {
        let given = |field: &str| !field::is_empty(device.get(field));
        let attributes = device.get("attributes").and_then(Value::as_object);
        let lists = ["bools", "ints", "strings", "versions"];
        given("taints")
            || given("consumesCounters")
            || attributes
                .into_iter()
                .flatten()
                .any(|(_, value)| lists.iter().any(|list| value.get(list).is_some()))
    });
    let per_device = spec.child("perDeviceNodeSelection").flag();
    if !too_many(devices, if advanced { 64 } else { 128 }, errors) {
        devices.each(|given| {
            let name = given.child("name").text();
            let before = old.and_then(|old| {
                let list = old.get("devices")?.as_array()?;
                list.iter().find(|device| field::text(device, "name") == name)
            });
            device(given, before, per_device, context, errors);
        });
        set(devices, named_by("name"), errors);
    }
    if !too_many(counters, 8, errors) {
        counters.each(|set| {
            set.child("name").required_name(names::dns1123_label, errors);
            counter_map(set.child("counters"), errors);
        });
        set(counters, named_by("name"), errors);
    }
}

fn slice_nodes(spec: Field<'_>, errors: &mut FieldErrors) {
    let mut given = Vec::new();
    let name = spec.child("nodeName");
    if name.is_given() {
        if name.is_empty() {
            name.invalid("must be either unset or set to a non-empty string", errors);
        } else {
            given.push("`nodeName`");
            name.named(names::dns1123_subdomain, errors);
        }
    }
    let selector = spec.child("nodeSelector");
    if selector.is_given() {
        given.push("`nodeSelector`");
        placement::node_selector_terms(selector, errors);
        let terms = selector.child("nodeSelectorTerms");
        if terms.items().len() != 1 {
            terms.invalid("must have exactly one node selector term", errors);
        }
    }
    for (field, word) in [("allNodes", "`allNodes`"), ("perDeviceNodeSelection", "`perDeviceNodeSelection`")]
    {
        let flag = spec.child(field);
        if flag.flag() {
            given.push(word);
        } else if flag.is_given() {
            flag.invalid("must be either unset or set to true", errors);
        }
    }
    const ONE: &str =
        "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match given.len() {
        0 => errors.required(spec.path, ONE),
        1 => {}
        _ => errors.invalid(
            spec.path,
            format!("{{{}}}", given.join(", ")),
            &format!("{ONE}, but multiple fields are set"),
        ),
    }
}

fn counter_map(counters: Field<'_>, errors: &mut FieldErrors) {
    if counters.required("", errors) && !too_many(counters, 32, errors) {
        for (key, _) in counters.entries() {
            crate::kinds::checks::named(errors, counters.path, key, names::dns1123_label);
        }
    }
}

fn device(
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

pub fn taint(taint: Field<'_>, errors: &mut FieldErrors) {
    taint.child("key").named(names::qualified_name, errors);
    taint.child("value").optional_name(names::label_value, errors);
    let effect = taint.child("effect");
    if effect.required("", errors) {
        effect.one_of(EFFECTS, errors);
    }
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

fn binding_conditions(device: Field<'_>, errors: &mut FieldErrors) {
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

/// Devices that a rule taints.
pub fn taint_selector(selector: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let (driver_name, pool, name) =
        (selector.child("driver"), selector.child("pool"), selector.child("device"));
    if driver_name.is_given() {
        driver(driver_name, errors);
    }
    if pool.is_given() {
        pool_name(pool, errors);
    }
    if name.is_given() {
        name.named(names::dns1123_label, errors);
    }
}

pub fn rule_taint(given: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    taint(given, errors);
}

#[cfg(test)]
mod tests {
    use ferry_api::Object;
    use serde_json::json;

    use super::*;
    use crate::kinds::rules::validate_update;
    use crate::strategy::UpdateScope;

    #[test]
    fn semantic_versions() {
        for good in ["1.2.3", "0.0.0", "1.0.0-alpha.1", "1.0.0-0a+build.01"] {
            assert!(is_semantic_version(good), "{good}");
        }
        for bad in ["", "1.2", "01.2.3", "1.2.3-", "1.2.3-01", "1.2.3+", "v1.2.3"] {
            assert!(!is_semantic_version(bad), "{bad}");
        }
    }

    fn claim(status: Value) -> Object {
        let requests = json!([{"name": "a", "exactly": {"deviceClassName": "c"}},
            {"name": "b", "firstAvailable": [{"name": "c", "deviceClassName": "c"}]}]);
        let object = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "x"},
            "spec": {"devices": {"requests": requests}}, "status": status});
        Object::from_value(object).expect("an object")
    }

    fn allocation(change: Value) -> Value {
        let mut result = json!({"request": "a", "driver": "d.example", "pool": "p", "device": "dev"});
        for (name, value) in change.as_object().expect("a map") {
            result[name] = value.clone();
        }
        json!({"devices": {"results": [result]}})
    }

    fn told(new: Value, old: Value) -> Vec<String> {
        let mut errors = FieldErrors::default();
        validate_update(&claim(new), &claim(old), "resource.k8s.io", UpdateScope::Status, &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }

    /// As upstream's server answered the same.
    #[test]
    fn an_allocation_is_judged_when_it_is_new_and_stays_as_it_is() {
        let check = |change: Value, expected: &[&str]| {
            assert_eq!(
                told(json!({"allocation": allocation(change.clone())}), json!({})),
                expected,
                "{change}"
            );
        };
        check(json!({}), &[]);
        check(json!({"request": "b/c"}), &[]);
        check(
            json!({"request": "none"}),
            &[
                "status.allocation.devices.results[0].request: Invalid value: \"none\": must be the name of a request in the \
               claim or the name of a request and a subrequest separated by '/'",
            ],
        );
        check(json!({"pool": ""}), &["status.allocation.devices.results[0].pool: Required value"]);
        check(
            json!({"shareID": "x"}),
            &[
                "status.allocation.devices.results[0].shareID: Invalid value: \"x\": error validating uid: invalid UUID \
               length: 1",
            ],
        );
        let given = || json!({"allocation": allocation(json!({}))});
        assert!(told(given(), given()).is_empty());
        assert!(told(json!({}), given()).is_empty());
        let other = told(json!({"allocation": allocation(json!({"pool": "other"}))}), given());
        assert!(other.len() == 1 && other[0].ends_with(": field is immutable"), "{other:?}");
    }

    #[test]
    fn users_need_an_allocation_and_drivers_tell_of_allocated_devices() {
        let user = || json!([{"resource": "pods", "name": "p", "uid": "u"}]);
        assert_eq!(
            told(json!({"reservedFor": user()}), json!({})),
            ["status.reservedFor: Forbidden: may not be specified when `allocated` is not set"]
        );
        let with = |devices: Value| json!({"allocation": allocation(json!({})), "devices": devices, "reservedFor": user()});
        let given = || json!({"allocation": allocation(json!({}))});
        let device = |name: &str| json!({"driver": "d.example", "pool": "p", "device": name});
        assert!(told(with(json!([device("dev")])), given()).is_empty());
        assert_eq!(
            told(with(json!([device("other")])), given()),
            [
                r#"status.devices[0]: Invalid value: {"Driver":"d.example","Pool":"p","Device":"other","ShareID":""}: must be an allocated device in the claim"#
            ]
        );
        let mut network = device("dev");
        network["networkData"] = json!({"ips": ["bad", "10.0.0.1/24", "2001:DB8::1/64"]});
        assert_eq!(
            told(with(json!([network])), given()),
            [
                r#"status.devices[0].networkData.ips[0]: Invalid value: "bad": must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)"#,
                r#"status.devices[0].networkData.ips[2]: Invalid value: "2001:DB8::1/64": must be in canonical form ("2001:db8::1/64")"#,
            ]
        );
    }
}
