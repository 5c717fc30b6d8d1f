//! The second version of OpenAPI as protobuf, in the messages of gnostic's `openapi.v2` package, which
//! client-go asks for. It is the JSON document in other clothes, so it is written from that.
//!
//! The buffer fills from its end, so within a message the fields with the highest tags come first here.

use serde_json::{Map, Value};

use super::parts::Section;
use crate::protobuf::Backward;
use crate::yaml;

/// The document without its parts: `frame` has the rest, the parts are entries of [`entry`] one after the other.
pub fn join(frame: &Value, paths: &[u8], definitions: &[u8], parameters: &[u8]) -> Vec<u8> {
    let mut out = Writer(Backward::with_capacity(paths.len() + definitions.len() + parameters.len() + 1024));
    out.message(13, |out| {
        for (name, item) in entries(frame, "securityDefinitions").rev() {
            out.named(1, name, |out| out.message(2, |out| out.api_key(item)));
        }
    });
    for requirement in items(frame, "security").rev() {
        out.message(12, |out| {
            for (name, scopes) in requirement.as_object().into_iter().flatten().rev() {
                out.named(1, name, |out| out.strings(1, scopes.as_array()));
            }
        });
    }
    out.0.bytes(10, parameters);
    out.0.bytes(9, definitions);
    out.0.bytes(8, paths);
    out.message(2, |out| {
        out.text(2, frame["info"].get("version"));
        out.text(1, frame["info"].get("title"));
    });
    out.text(1, frame.get("swagger"));
    out.0.into_vec()
}

/// One entry of a section of the document.
pub fn entry(section: Section, name: &str, value: &Value) -> Vec<u8> {
    let mut out = Writer(Backward::default());
    match section {
        Section::Paths => out.named(2, name, |out| out.path(value)),
        Section::Definitions => out.named(1, name, |out| out.schema(value)),
        Section::Parameters => out.named(1, name, |out| out.parameter(value)),
    }
    out.0.into_vec()
}

fn entries<'v>(value: &'v Value, field: &str) -> impl DoubleEndedIterator<Item = (&'v String, &'v Value)> {
    value.get(field).and_then(Value::as_object).into_iter().flatten()
}

fn items<'v>(value: &'v Value, field: &str) -> impl DoubleEndedIterator<Item = &'v Value> {
    value.get(field).and_then(Value::as_array).into_iter().flatten()
}

struct Writer(Backward);

impl Writer {
    fn message(&mut self, tag: u32, write: impl FnOnce(&mut Writer)) {
        let end = self.0.len();
        write(self);
        self.0.length_since(end, tag);
    }

    /// A pair of a name and a value, which is how this package writes maps.
    fn named(&mut self, tag: u32, name: &str, write: impl FnOnce(&mut Writer)) {
        self.message(tag, |out| {
            out.message(2, write);
            out.0.bytes(1, name.as_bytes());
        });
    }

    fn text(&mut self, tag: u32, value: Option<&Value>) {
        if let Some(text) = value.and_then(Value::as_str).filter(|text| !text.is_empty()) {
            self.0.bytes(tag, text.as_bytes());
        }
    }

    fn flag(&mut self, tag: u32, value: Option<&Value>) {
        if value == Some(&Value::Bool(true)) {
            self.0.number(tag, 1);
        }
    }

    fn number(&mut self, tag: u32, value: Option<&Value>) {
        if let Some(number) = value.and_then(Value::as_i64).filter(|number| *number != 0) {
            self.0.number(tag, number);
        }
    }

    fn double(&mut self, tag: u32, value: Option<&Value>) {
        if let Some(number) = value.and_then(Value::as_f64).filter(|number| *number != 0.0) {
            self.0.double(tag, number);
        }
    }

    fn strings(&mut self, tag: u32, values: Option<&Vec<Value>>) {
        for text in values.into_iter().flatten().rev().filter_map(Value::as_str) {
            self.0.bytes(tag, text.as_bytes());
        }
    }

    /// A value of any kind, as YAML.
    fn any(&mut self, tag: u32, value: &Value) {
        self.message(tag, |out| out.0.bytes(2, yaml::encode_value(value).as_bytes()));
    }

    fn extensions(&mut self, tag: u32, of: &Map<String, Value>) {
        for (name, value) in of.iter().rev().filter(|(name, _)| name.starts_with("x-")) {
            self.message(tag, |out| {
                out.any(2, value);
                out.0.bytes(1, name.as_bytes());
            });
        }
    }

    fn api_key(&mut self, item: &Value) {
        self.text(4, item.get("description"));
        self.text(3, item.get("in"));
        self.text(2, item.get("name"));
        self.text(1, item.get("type"));
    }

    fn path(&mut self, path: &Value) {
        for parameter in items(path, "parameters").rev() {
            self.message(9, |out| out.parameters_item(parameter));
        }
        let methods = ["get", "put", "post", "delete", "options", "head", "patch"];
        for (tag, method) in (2..).zip(methods).collect::<Vec<_>>().into_iter().rev() {
            if let Some(operation) = path.get(method) {
                self.message(tag, |out| out.operation(operation));
            }
        }
    }

    fn operation(&mut self, operation: &Value) {
        if let Some(map) = operation.as_object() {
            self.extensions(13, map);
        }
        self.strings(10, operation["schemes"].as_array());
        self.message(9, |out| {
            for (code, response) in entries(operation, "responses").rev() {
                out.named(1, code, |out| {
                    out.message(1, |out| {
                        if let Some(schema) = response.get("schema") {
                            out.message(2, |out| out.message(1, |out| out.schema(schema)));
                        }
                        out.text(1, response.get("description"));
                    });
                });
            }
        });
        for parameter in items(operation, "parameters").rev() {
            self.message(8, |out| out.parameters_item(parameter));
        }
        self.strings(7, operation["consumes"].as_array());
        self.strings(6, operation["produces"].as_array());
        self.text(5, operation.get("operationId"));
        self.text(3, operation.get("description"));
        self.strings(1, operation["tags"].as_array());
    }

    fn parameters_item(&mut self, parameter: &Value) {
        match parameter.get("$ref") {
            Some(reference) => self.message(2, |out| out.text(1, Some(reference))),
            None => self.message(1, |out| out.parameter(parameter)),
        }
    }

    fn parameter(&mut self, parameter: &Value) {
        let place = parameter["in"].as_str().unwrap_or("");
        if place == "body" {
            self.message(1, |out| {
                if let Some(schema) = parameter.get("schema") {
                    out.message(5, |out| out.schema(schema));
                }
                out.flag(4, parameter.get("required"));
                out.text(3, parameter.get("in"));
                out.text(2, parameter.get("name"));
                out.text(1, parameter.get("description"));
            });
            return;
        }
        // query parameters have one field more, which moves what follows it
        let (tag, shift) = if place == "path" { (4, 0) } else { (3, 1) };
        self.message(2, |out| {
            out.message(tag, |out| {
                out.flag(19 + shift, parameter.get("uniqueItems"));
                out.text(5 + shift, parameter.get("type"));
                out.text(4, parameter.get("name"));
                out.text(3, parameter.get("description"));
                out.text(2, parameter.get("in"));
                out.flag(1, parameter.get("required"));
            });
        });
    }

    fn schema(&mut self, schema: &Value) {
        let Some(map) = schema.as_object() else { return };
        let get = |name: &str| map.get(name);
        self.extensions(31, map);
        if let Some(example) = get("example") {
            self.any(30, example);
        }
        if map.contains_key("properties") {
            self.message(25, |out| {
                for (name, property) in entries(schema, "properties").rev() {
                    out.named(1, name, |out| out.schema(property));
                }
            });
        }
        for part in items(schema, "allOf").rev() {
            self.message(24, |out| out.schema(part));
        }
        if let Some(item) = get("items") {
            self.message(23, |out| out.message(1, |out| out.schema(item)));
        }
        if get("type").is_some() {
            self.message(22, |out| out.text(1, get("type")));
        }
        match get("additionalProperties") {
            Some(Value::Bool(allowed)) => self.message(21, |out| out.0.number(2, (*allowed).into())),
            Some(value) => self.message(21, |out| out.message(1, |out| out.schema(value))),
            None => {}
        }
        for value in items(schema, "enum").rev() {
            self.any(20, value);
        }
        self.strings(19, get("required").and_then(Value::as_array));
        self.number(18, get("minProperties"));
        self.number(17, get("maxProperties"));
        self.flag(16, get("uniqueItems"));
        self.number(15, get("minItems"));
        self.number(14, get("maxItems"));
        self.text(13, get("pattern"));
        self.number(12, get("minLength"));
        self.number(11, get("maxLength"));
        self.flag(10, get("exclusiveMinimum"));
        self.double(9, get("minimum"));
        self.flag(8, get("exclusiveMaximum"));
        self.double(7, get("maximum"));
        self.double(6, get("multipleOf"));
        if let Some(default) = get("default") {
            self.any(5, default);
        }
        self.text(4, get("description"));
        self.text(3, get("title"));
        self.text(2, get("format"));
        self.text(1, get("$ref"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Fields of a message in order, as (tag, payload); all of them are text or messages here.
    fn fields(mut bytes: &[u8]) -> Vec<(u32, &[u8])> {
        let mut out = Vec::new();
        while let [key, rest @ ..] = bytes {
            let (length, rest) = match rest {
                [low, rest @ ..] if *low < 0x80 => (usize::from(*low), rest),
                [low, high, rest @ ..] => (usize::from(low & 0x7f) | usize::from(*high) << 7, rest),
                _ => panic!("a length is missing"),
            };
            assert_eq!(key & 7, 2, "a length-delimited field");
            out.push((u32::from(key >> 3), &rest[..length]));
            bytes = &rest[length..];
        }
        out
    }

    #[test]
    fn a_document_is_written_in_gnostics_messages() {
        let mut definitions = entry(Section::Definitions, "A", &json!({"type": "object"}));
        definitions.extend(entry(Section::Definitions, "B", &json!({"$ref": "#/definitions/A"})));
        let frame = json!({"swagger": "2.0", "info": {"title": "T", "version": "1"}});
        let bytes = join(&frame, &[], &definitions, &[]);
        let document = fields(&bytes);
        let tags: Vec<u32> = document.iter().map(|(tag, _)| *tag).collect();
        assert_eq!(tags, [1, 2, 8, 9, 10, 13]);
        assert_eq!(document[0].1, b"2.0");
        assert_eq!(fields(document[1].1), [(1, b"T".as_slice()), (2, b"1")]);
        let definitions = fields(document[3].1);
        assert_eq!(definitions.len(), 2);
        let (name, reference) = (fields(definitions[1].1)[0], fields(definitions[1].1)[1]);
        assert_eq!(name, (1, b"B".as_slice()));
        assert_eq!(fields(reference.1), [(1, b"#/definitions/A".as_slice())]);
    }
}
