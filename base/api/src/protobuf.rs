//! The protobuf form: messages read off the field rows, and the `k8s\0` envelope around them.
//!
//! ```text
//! k8s\0 | Unknown { 1: TypeMeta { 1: apiVersion, 2: kind }, 2: the object's message, 3: "", 4: "" }
//! ```
//!
//! The codec is one walk over the rows in each direction; no kind has code of its own. What the rows
//! do not know is refused, never skipped: a field that vanished on the way would be a silent loss.

mod read;
mod write;

use std::fmt::{self, Display};

pub(crate) use write::Backward;

use serde_json::{Map, Value};

use crate::depth::MAX_DEPTH;
use crate::kinds::GroupVersionKind;
use crate::object::Object;
use crate::status::Status;
use crate::types::{Schema, Shape, Types};

pub const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";

const PREFIX: &[u8] = b"k8s\0";

/// Why an object has no protobuf form, or bytes are no such object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    why: String,
}

/// The object in its envelope.
pub fn encode(object: &Object, schema: &Schema) -> Result<Vec<u8>, Error> {
    let mut out = write::Backward::default();
    envelope_end(&mut out);
    let end = out.len();
    out.object(object, schema)?;
    let message = out.len() - end;
    envelope_start(&mut out, message, object.api_version(), object.kind());
    Ok(out.into_vec())
}

/// The object's message alone, as lists hold it.
pub fn encode_message(object: &Object, schema: &Schema) -> Result<Vec<u8>, Error> {
    let mut out = write::Backward::default();
    out.object(object, schema)?;
    Ok(out.into_vec())
}

/// What stands before and behind the items of a list, which are encoded already ([`encode_message`]) and stay where they
/// are. `metadata` is the list's own, `items` the length of all items, each with its [`item_head`].
pub fn encode_around_items(
    api_version: &str,
    list_kind: &str,
    metadata: &Map<String, Value>,
    items: usize,
) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let types = Types::builtin();
    let list_meta = types
        .by_name("io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta")
        .expect("the table has ListMeta, and a test reads it");
    let mut before = write::Backward::default();
    before.message(metadata, types.get(list_meta), types)?;
    before.length_since(0, 1);
    let message = before.len() + items;
    envelope_start(&mut before, message, api_version, list_kind);
    let mut behind = write::Backward::default();
    envelope_end(&mut behind);
    Ok((before.into_vec(), behind.into_vec()))
}

/// What stands before an item of a list that is `length` bytes long.
pub fn item_head(length: usize, mut push: impl FnMut(u8)) {
    const ITEMS: u8 = (2 << 3) | 2;
    push(ITEMS);
    let mut left = length;
    while left >= 0x80 {
        push(left as u8 | 0x80);
        left >>= 7;
    }
    push(left as u8);
}

/// One event of a watch: `object` is in its envelope. Frames of a stream hold it without one.
pub fn encode_watch_event(event_type: &str, object: &[u8]) -> Vec<u8> {
    let mut out = write::Backward::with_capacity(object.len() + 32);
    let end = out.len();
    out.bytes(1, object);
    out.length_since(end, 2);
    out.bytes(1, event_type.as_bytes());
    out.into_vec()
}

/// The message inside an envelope, for putting an encoded object into a list.
pub fn message_of(envelope: &[u8]) -> Result<&[u8], Error> {
    Ok(read::envelope(envelope)?.message)
}

/// Whether the bytes are meant to be protobuf.
pub fn is_envelope(bytes: &[u8]) -> bool {
    bytes.starts_with(PREFIX)
}

/// Reads an object of any built-in kind; the envelope names it.
pub fn decode(bytes: &[u8]) -> Result<(GroupVersionKind, Object), Status> {
    decode_within(bytes, MAX_DEPTH)
}

/// An envelope inside of another document has what that one has left of its depth.
fn decode_within(bytes: &[u8], depth: usize) -> Result<(GroupVersionKind, Object), Status> {
    let envelope = read::envelope(bytes)?;
    let gvk = GroupVersionKind::from_api_version(&envelope.api_version, &envelope.kind);
    let schema = schema_of(&gvk).ok_or_else(|| {
        Status::bad_request(format!(
            "no kind {:?} is registered for version {:?}",
            envelope.kind, envelope.api_version
        ))
    })?;
    let object = read_object(envelope.message, &schema, &envelope.api_version, &envelope.kind, depth)?;
    Ok((gvk, object))
}

/// Reads an object of this type. An envelope that does not name a kind means the schema's own.
pub fn decode_as(bytes: &[u8], schema: &Schema) -> Result<Object, Status> {
    let envelope = read::envelope(bytes)?;
    let (mut api_version, mut kind) = (envelope.api_version, envelope.kind);
    if let Some(own) = schema.root().kinds.first() {
        if kind.is_empty() {
            kind = own.kind.to_string();
        }
        if api_version.is_empty() {
            api_version = own.api_version();
        }
    }
    Ok(read_object(envelope.message, schema, &api_version, &kind, MAX_DEPTH)?)
}

/// Reads a message without an envelope.
pub fn decode_message(message: &[u8], schema: &Schema) -> Result<Object, Status> {
    Ok(read_object(message, schema, "", "", MAX_DEPTH)?)
}

fn read_object(
    message: &[u8],
    schema: &Schema,
    api_version: &str,
    kind: &str,
    depth: usize,
) -> Result<Object, Error> {
    let mut object = Object::from_fields(read::message(message, schema.root(), &schema.types, depth)?);
    if !kind.is_empty() && schema.root().has_type_meta {
        object.set_type(api_version, kind);
    }
    Ok(object)
}

/// The options and errors of the API belong to every group; their types are the core group's.
fn schema_of(gvk: &GroupVersionKind) -> Option<Schema> {
    Schema::builtin(gvk).or_else(|| {
        let shared = [
            "CreateOptions",
            "DeleteOptions",
            "GetOptions",
            "ListOptions",
            "PatchOptions",
            "Status",
            "UpdateOptions",
            "WatchEvent",
        ];
        let core = GroupVersionKind::new("", "v1", gvk.kind.clone());
        if shared.contains(&gvk.kind.as_ref()) { Schema::builtin(&core) } else { None }
    })
}

fn envelope_end(out: &mut write::Backward) {
    out.bytes(4, b"");
    out.bytes(3, b"");
}

/// `message` is the length of what the envelope holds.
fn envelope_start(out: &mut write::Backward, message: usize, api_version: &str, kind: &str) {
    out.length(message, 2);
    let end = out.len();
    out.bytes(2, kind.as_bytes());
    out.bytes(1, api_version.as_bytes());
    out.length_since(end, 1);
    out.raw(PREFIX);
}

fn error(why: impl Into<String>) -> Error {
    Error { why: why.into() }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Error {}

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        Status::bad_request(format!("the object provided cannot be read as protobuf: {error}"))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WireType {
    Varint,
    Fixed64,
    Bytes,
}

/// How a value of this shape (of an element, for lists) stands on the wire.
fn wire_type(shape: &Shape) -> WireType {
    match shape {
        Shape::Bool | Shape::Int32 | Shape::Int64 => WireType::Varint,
        Shape::Double => WireType::Fixed64,
        _ => WireType::Bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{self, FieldValidation};
    use serde_json::json;

    fn object(value: Value) -> (Object, Schema) {
        let gvk = GroupVersionKind::from_api_version(
            value["apiVersion"].as_str().expect("apiVersion"),
            value["kind"].as_str().expect("kind"),
        );
        let schema = Schema::builtin(&gvk).expect("a built-in kind");
        let decoded = json::decode_value(value, &schema, FieldValidation::Strict).expect("an object");
        (decoded.object, schema)
    }

    fn check_round_trip(value: Value) {
        let (object, schema) = object(value);
        let bytes = encode(&object, &schema).expect("encodes");
        let (gvk, read) = decode(&bytes).expect("decodes");
        assert_eq!(gvk.kind, object.kind());
        assert_eq!(read, object);
        assert_eq!(encode(&read, &schema).as_ref(), Ok(&bytes));
    }

    #[test]
    fn empty_and_zero_fields_survive_as_the_rows_say() {
        check_round_trip(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
            "spec": {"priority": 0, "containers": [{"name": "a", "resources": {"limits": {"cpu": "0"}}}]}}));
        check_round_trip(json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "spec": {"replicas": 0, "template": {"spec": {"containers": [{"name": "a"}]}}, "selector": {}}}));
        check_round_trip(json!({"apiVersion": "v1", "kind": "Secret", "data": {"a": "", "b": "AAE="}}));
        check_round_trip(json!({"apiVersion": "v1", "kind": "Service",
            "spec": {"ports": [{"port": -1, "targetPort": "http"}, {"port": 2147483647, "targetPort": 80}]}}));
        check_round_trip(json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "spec": {"group": "g", "scope": "Cluster", "names": {"plural": "as", "kind": "A"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "additionalProperties": false, "maximum": 1.5,
                "dependencies": {"a": ["b"], "c": {"type": "object"}},
                "properties": {"a": {"items": {"type": "string", "enum": [null, 1]}, "default": {"x": null}},
                               "b": {"items": [{"type": "integer"}]},
                               "c": {"additionalProperties": {"type": "integer"}},
                               "d": {"additionalProperties": true}}}}}]},
            "status": {"conditions": null, "storedVersions": null}}));
    }

    #[test]
    fn unknown_protobuf_fields_are_refused() {
        let (pod, schema) = object(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}));
        let mut message = encode_message(&pod, &schema).expect("encodes");
        message.extend([0xf8, 0x3f, 0x01]);
        let status = decode_message(&message, &schema).expect_err("field 1023");
        assert_eq!(status.code, 400);
        assert_eq!(
            status.message,
            "the object provided cannot be read as protobuf: io.k8s.api.core.v1.Pod has no field 1023"
        );
        let nobody = GroupVersionKind::new("example.org", "v1", "Nobody");
        let envelope = encode(
            &Object::from_value(json!({"apiVersion": "example.org/v1", "kind": "Nobody"}))
                .expect("an object"),
            &schema,
        )
        .expect("encodes");
        let status = decode(&envelope).expect_err("unknown kind");
        assert_eq!(
            status.message,
            format!(r#"no kind "{}" is registered for version "example.org/v1""#, nobody.kind)
        );
        let table = Types::builtin().by_name("io.k8s.apimachinery.pkg.apis.meta.v1.Table").expect("Table");
        let table = Schema { types: Types::builtin().clone(), root: table };
        assert!(encode(&Object::default(), &table).is_err());
    }

    #[test]
    fn a_list_of_encoded_items_equals_the_list_encoded_at_once() {
        let (list, schema) = object(json!({"apiVersion": "v1", "kind": "ConfigMapList",
            "metadata": {"resourceVersion": "7", "remainingItemCount": 0},
            "items": [{"metadata": {"name": "a"}, "data": {"k": "v"}}, {"metadata": {"name": "b"}}]}));
        let item_schema = Schema::builtin(&GroupVersionKind::new("", "v1", "ConfigMap")).expect("ConfigMap");
        let items: Vec<Vec<u8>> = list
            .get(&["items"])
            .and_then(Value::as_array)
            .expect("items")
            .iter()
            .map(|item| {
                let mut item = Object::from_value(item.clone()).expect("an object");
                item.set_type("v1", "ConfigMap");
                encode(&item, &item_schema).expect("encodes")
            })
            .collect();
        let metadata = list.get(&["metadata"]).and_then(Value::as_object).expect("metadata");
        let messages: Vec<&[u8]> = items.iter().map(|item| message_of(item).expect("an envelope")).collect();
        let at_once = encode(&list, &schema).expect("encodes");
        let mut encoded = Vec::new();
        for message in messages {
            item_head(message.len(), |byte| encoded.push(byte));
            encoded.extend_from_slice(message);
        }
        let around = encode_around_items("v1", "ConfigMapList", metadata, encoded.len());
        let (before, behind) = around.expect("encodes");
        assert_eq!([before, encoded, behind].concat(), at_once);
    }

    #[test]
    fn a_watch_event_holds_the_object_in_its_envelope() {
        let (map, schema) = object(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "v"}}));
        let event = encode_watch_event("ADDED", &encode(&map, &schema).expect("encodes"));
        let watch_event =
            Schema::builtin(&GroupVersionKind::new("", "v1", "WatchEvent")).expect("WatchEvent");
        let read = decode_message(&event, &watch_event).expect("an event");
        assert_eq!(read.into_value(), json!({"type": "ADDED", "object": map.into_value()}));
    }
}
