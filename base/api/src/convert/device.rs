//! Dynamic resources: v1beta1 has what a request asks for beside its name, later versions have it in
//! `exactly`; v1beta1 has what a device is in `basic`, later versions beside its name.

use serde_json::{Map, Value};

use crate::object::Object;

pub fn from_v1beta1(kind: &str, object: &mut Object) {
    for request in requests(kind, object) {
        let exactly = take_all_but(request, &["name", "firstAvailable"]);
        if !exactly.is_empty() {
            request.insert("exactly".into(), Value::Object(exactly));
        }
    }
    for device in devices(kind, object) {
        if let Some(Value::Object(basic)) = device.remove("basic") {
            device.extend(basic);
        }
    }
}

pub fn to_v1beta1(kind: &str, object: &mut Object) {
    for request in requests(kind, object) {
        if let Some(Value::Object(exactly)) = request.remove("exactly") {
            request.extend(exactly);
        }
    }
    for device in devices(kind, object) {
        let basic = take_all_but(device, &["name"]);
        device.insert("basic".into(), Value::Object(basic));
    }
}

fn take_all_but(map: &mut Map<String, Value>, kept: &[&str]) -> Map<String, Value> {
    let names: Vec<String> = map.keys().filter(|name| !kept.contains(&name.as_str())).cloned().collect();
    // what is empty was not given
    let taken = names.into_iter().filter_map(|name| map.remove_entry(&name));
    taken.filter(|(_, value)| !value.is_null() && value != "").collect()
}

fn requests<'o>(kind: &str, object: &'o mut Object) -> impl Iterator<Item = &'o mut Map<String, Value>> {
    let path: &[&str] = match kind {
        "ResourceClaim" => &["spec", "devices", "requests"],
        "ResourceClaimTemplate" => &["spec", "spec", "devices", "requests"],
        _ => &[],
    };
    items(object, path)
}

fn devices<'o>(kind: &str, object: &'o mut Object) -> impl Iterator<Item = &'o mut Map<String, Value>> {
    let path: &[&str] = if kind == "ResourceSlice" { &["spec", "devices"] } else { &[] };
    items(object, path)
}

fn items<'o>(object: &'o mut Object, path: &[&str]) -> impl Iterator<Item = &'o mut Map<String, Value>> {
    let list = path.split_first().and_then(|(first, rest)| {
        rest.iter().try_fold(object.0.get_mut(*first)?, |value, name| value.get_mut(name))
    });
    list.and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}
