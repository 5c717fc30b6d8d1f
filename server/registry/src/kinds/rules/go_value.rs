//! How upstream prints a struct in an error: as JSON of its internal type, which has the names of the Go fields, all of
//! them, in the order they are declared.

use std::fmt::Write;

use ferry_api::{Shape, TypeId, Types};
use serde_json::{Map, Value};

pub fn printed(value: Option<&Value>, shape: &Shape, types: &Types) -> String {
    let mut text = String::new();
    print(value, shape, true, types, &mut text);
    text
}

/// The same of a field, which may have a zero value.
pub fn printed_field(value: Option<&Value>, shape: &Shape, pointer: bool, types: &Types) -> String {
    let mut text = String::new();
    print(value, shape, pointer, types, &mut text);
    text
}

/// A struct as clients see it, as upstream prints those of its versioned types.
pub fn printed_versioned(map: &Map<String, Value>, id: TypeId, types: &Types) -> String {
    let mut text = String::new();
    print_versioned(map, id, types, &mut text);
    text
}

fn print_versioned(map: &Map<String, Value>, id: TypeId, types: &Types, text: &mut String) {
    let ty = types.get(id);
    let fields = ty.declared.iter().filter_map(|name| ty.field(name));
    let given = fields.filter_map(|field| {
        let value = map.get(&*field.name).filter(|value| !value.is_null());
        (value.is_some() || (field.keep && field.pointer)).then_some((field, value))
    });
    text.push('{');
    separated(given, text, |(field, value), text| {
        let _ = write!(text, "{:?}:", field.name);
        match (&field.shape, value) {
            (Shape::Struct(id), Some(Value::Object(map))) => print_versioned(map, *id, types, text),
            (_, value) => plain(value, true, "null", text),
        }
    });
    text.push('}');
}

fn print(value: Option<&Value>, shape: &Shape, pointer: bool, types: &Types, text: &mut String) {
    match (shape, value) {
        (Shape::Struct(id), Some(Value::Object(map))) if has_tags(*id, types) => {
            print_tagged(map, *id, types, text);
        }
        (Shape::Struct(id), None) if has_tags(*id, types) => plain(None, pointer, "{}", text),
        (Shape::Struct(_), None) if pointer => text.push_str("null"),
        (Shape::Struct(id), value) => print_untagged(value, *id, types, text),
        (Shape::List(element), Some(Value::Array(items))) => {
            text.push('[');
            separated(items, text, |item, text| print(Some(item), element, false, types, text));
            text.push(']');
        }
        (Shape::Map(element), Some(Value::Object(entries))) => {
            text.push('{');
            separated(entries, text, |(key, item), text| {
                let _ = write!(text, "{key:?}:");
                print(Some(item), element, false, types, text);
            });
            text.push('}');
        }
        (Shape::String, value) => plain(value, pointer, "\"\"", text),
        (Shape::Bool, value) => plain(value, pointer, "false", text),
        (Shape::Int32 | Shape::Int64 | Shape::Double | Shape::IntOrString | Shape::Duration, value) => {
            plain(value, pointer, "0", text);
        }
        (Shape::Quantity, value) => plain(value, pointer, "\"0\"", text),
        (_, value) => plain(value, true, "null", text),
    }
}

/// A struct with JSON tags, as clients see it: without absent fields.
fn print_tagged(map: &Map<String, Value>, id: TypeId, types: &Types, text: &mut String) {
    let ty = types.get(id);
    text.push('{');
    separated(
        ty.declared.iter().filter_map(|name| map.get_key_value(&**name)),
        text,
        |(name, value), text| {
            let _ = write!(text, "{name:?}:");
            let shape = ty.field(name).map_or(&Shape::Json, |field| &field.shape);
            print(Some(value), shape, true, types, text);
        },
    );
    text.push('}');
}

/// A struct without JSON tags: all fields, under their names in Go.
fn print_untagged(value: Option<&Value>, id: TypeId, types: &Types, text: &mut String) {
    let ty = types.get(id);
    text.push('{');
    for field in ty.declared.iter().filter_map(|name| ty.field(name)) {
        let value = value.and_then(|value| value.get(&*field.name)).filter(|value| !value.is_null());
        // Metadata is embedded: its fields stand among the others.
        if &*field.name == "metadata" {
            let mut inner = String::new();
            print(value, &field.shape, false, types, &mut inner);
            let inner = inner.trim_start_matches('{').trim_end_matches('}');
            if !inner.is_empty() {
                text.push_str(inner);
                text.push(',');
            }
            continue;
        }
        let _ = write!(text, "{:?}:", go_name(&field.name));
        print(value, &field.shape, field.pointer, types, text);
        text.push(',');
    }
    if text.ends_with(',') {
        text.pop();
    }
    text.push('}');
}

fn separated<T>(
    items: impl IntoIterator<Item = T>,
    text: &mut String,
    mut print: impl FnMut(T, &mut String),
) {
    for (number, item) in items.into_iter().enumerate() {
        if number > 0 {
            text.push(',');
        }
        print(item, text);
    }
}

fn plain(value: Option<&Value>, pointer: bool, zero: &str, text: &mut String) {
    match value {
        Some(value) => {
            let _ = write!(text, "{value}");
        }
        None => text.push_str(if pointer { "null" } else { zero }),
    }
}

/// Types of the machinery have JSON tags inside the server as well.
fn has_tags(id: TypeId, types: &Types) -> bool {
    types.get(id).name.starts_with("io.k8s.apimachinery.")
}

/// Words that Go writes in capitals at the beginning of a name.
const CAPITALS: &[&str] = &[
    "api", "aws", "cel", "cidr", "csi", "dns", "fc", "fs", "gce", "gid", "grpc", "http", "id", "ip", "iqn",
    "iscsi", "nfs", "os", "pd", "pkix", "qos", "rbd", "se", "tcp", "tls", "ttl", "tty", "uid", "uri", "url",
];

fn go_name(json: &str) -> String {
    match json {
        "cephfs" => return "CephFS".into(),
        "storageos" => return "StorageOS".into(),
        "cidrs" => return "CIDRs".into(),
        "ips" => return "IPs".into(),
        "wwids" => return "WWIDs".into(),
        _ => {}
    }
    let end = json.find(|c: char| c.is_ascii_uppercase()).unwrap_or(json.len());
    let (first, rest) = json.split_at(end);
    if CAPITALS.contains(&first) {
        return format!("{}{rest}", first.to_ascii_uppercase());
    }
    let mut letters = json.chars();
    match letters.next() {
        Some(letter) => format!("{}{}", letter.to_ascii_uppercase(), letters.as_str()),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_struct_is_printed_with_all_fields_of_go() {
        let types = Types::builtin();
        let id = types.by_name("io.k8s.api.networking.v1.ParentReference").expect("a type");
        let value = json!({"resource": "services", "name": "a"});
        assert_eq!(
            printed(Some(&value), &Shape::Struct(id), types),
            r#"{"Group":"","Resource":"services","Namespace":"","Name":"a"}"#
        );
        assert_eq!(go_name("podCIDRs"), "PodCIDRs");
        assert_eq!(go_name("apiGroup"), "APIGroup");
        assert_eq!(go_name("fsType"), "FSType");
    }
}
