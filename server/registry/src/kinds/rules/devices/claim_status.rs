//! What a claim got, who uses it, and what drivers tell of its devices.

use std::collections::HashSet;

use ferry_api::field_error::Reason;
use ferry_api::{FieldErrors, names};
use serde_json::Value;

use super::super::field::{Context, Field, Old};
use super::super::{conditions, placement};
use super::claim::{request_names, request_reference, request_references};
use super::class::{configuration, raw};
use super::device::binding_conditions;
use super::{driver, named_by, plain, pool_name, set, too_many};
use crate::kinds::checks::{IMMUTABLE, Path};
use crate::kinds::device_claim;

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
    conditions::judge(device.child("conditions"), errors);
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

#[cfg(test)]
mod tests {
    use ferry_api::Object;
    use serde_json::json;

    use super::*;
    use crate::kinds::rules::validate_update;
    use crate::strategy::UpdateScope;

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
        let mut odd = device("dev");
        odd["conditions"] = json!([{"type": "Ready", "status": "Perhaps", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        assert_eq!(
            told(with(json!([odd])), given()),
            [
                r#"status.devices[0].conditions[0].status: Unsupported value: "Perhaps": supported values: "False", "True", "Unknown""#
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
