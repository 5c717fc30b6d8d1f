//! JSON documents, read through the one [`mod@crate::decode`] pass.

mod syntax;

use serde_json::Value;

use crate::codec::CustomSchema;
use crate::decode::{self, Findings, Form};
use crate::kinds::GroupVersionKind;
use crate::object::Object;
use crate::status::Status;
use crate::types::Schema;

/// What happens to unknown and duplicate fields: the `fieldValidation` parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldValidation {
    Ignore,
    Warn,
    #[default]
    Strict,
}

#[derive(Debug)]
pub struct Decoded {
    pub object: Object,
    /// For the `Warning` header.
    pub warnings: Vec<String>,
}

/// Reads an object of a known type. Unknown fields are dropped, values normalised, and what is
/// written even when empty is filled in.
pub fn decode(bytes: &[u8], schema: &Schema, validation: FieldValidation) -> Result<Decoded, Status> {
    Reading::typed(schema, Form::Whole, validation).json(bytes)
}

/// Reads an apply configuration: checked like any object, but nothing is added or normalised, because
/// every field it has, and no other, is claimed by its manager.
pub fn decode_applied(bytes: &[u8], schema: &Schema, validation: FieldValidation) -> Result<Decoded, Status> {
    Reading::typed(schema, Form::Applied, validation).json(bytes)
}

/// Reads an object of a kind without field rows; only duplicate fields can be found.
pub fn decode_untyped(bytes: &[u8], validation: FieldValidation) -> Result<Decoded, Status> {
    Reading::untyped(validation).json(bytes)
}

/// Brings a value that is in memory already (a patched object, say) into the form of its type.
pub fn decode_value(value: Value, schema: &Schema, validation: FieldValidation) -> Result<Decoded, Status> {
    Reading::typed(schema, Form::Whole, validation).value(value)
}

/// How a document is read, whatever its syntax: by which rows, in which form, and how strictly.
#[derive(Clone, Copy)]
pub(crate) struct Reading<'a> {
    pub rows: Option<&'a Schema>,
    /// Judges the fields that have no rows.
    pub custom: Option<&'a dyn CustomSchema>,
    /// The kind that refusals name.
    pub kind: Option<&'a GroupVersionKind>,
    pub form: Form,
    pub validation: FieldValidation,
}

impl<'a> Reading<'a> {
    pub fn typed(rows: &'a Schema, form: Form, validation: FieldValidation) -> Reading<'a> {
        Reading { rows: Some(rows), custom: None, kind: rows.root().kinds.first(), form, validation }
    }

    pub fn untyped(validation: FieldValidation) -> Reading<'static> {
        Reading { rows: None, custom: None, kind: None, form: Form::Applied, validation }
    }

    pub fn json(&self, bytes: &[u8]) -> Result<Decoded, Status> {
        let (read, findings) = match std::str::from_utf8(bytes) {
            Ok(text) => whole(serde_json::Deserializer::from_str(text), |from| self.pass(from)),
            // It is refused, and where it is wrong the reader finds best.
            Err(_) => whole(serde_json::Deserializer::from_slice(bytes), |from| self.pass(from)),
        };
        self.finish(read, findings, bytes)
    }

    pub fn value(&self, value: Value) -> Result<Decoded, Status> {
        let (read, findings) = self.pass(value);
        self.finish(read, findings, b"{")
    }

    pub fn pass<'de, D: serde::Deserializer<'de>>(&self, from: D) -> (Result<Object, D::Error>, Findings) {
        match self.rows {
            Some(rows) => decode::object(from, rows, self.form),
            None => decode::untyped(from),
        }
    }

    /// Turns the outcome of the pass into an object with warnings or a refusal.
    pub fn finish<E: std::fmt::Display>(
        &self,
        read: Result<Object, E>,
        mut findings: Findings,
        bytes: &[u8],
    ) -> Result<Decoded, Status> {
        let mut object = match read {
            Ok(object) => object,
            Err(error) => {
                return Err(match findings.mismatch {
                    Some(mismatch) if findings.no_object => self.unreadable(&mismatch, bytes),
                    Some(mismatch) => self.unfit(&mismatch),
                    None => self.unreadable(&why_unreadable(bytes, &error), bytes),
                });
            }
        };
        // Of an apply configuration, whoever claims its fields says which of them the schema does not have.
        if let Some(custom) = self.custom.filter(|_| self.form == Form::Whole) {
            // What is there twice is told first; of custom objects the metadata alone was read by rows.
            findings.strict.sort_by_key(|finding| !finding.starts_with("duplicate field"));
            let unknown = custom.prune(&mut object.0);
            let unknown = unknown.into_iter().take(decode::MAX_FINDINGS);
            findings.strict.extend(unknown.map(|path| format!("unknown field {path:?}")));
        }
        match self.validation {
            FieldValidation::Strict if !findings.strict.is_empty() => {
                Err(self.unfit(&format!("strict decoding error: {}", findings.strict.join(", "))))
            }
            FieldValidation::Warn => Ok(Decoded { object, warnings: findings.strict }),
            _ => Ok(Decoded { object, warnings: Vec::new() }),
        }
    }

    /// The document is well formed but no such object.
    fn unfit(&self, why: &str) -> Status {
        match self.kind {
            Some(gvk) => Status::bad_request(format!(
                "{} in version {:?} cannot be handled as a {}: {why}",
                gvk.kind, gvk.version, gvk.kind
            )),
            None => Status::bad_request(why),
        }
    }

    /// The document is not well formed.
    fn unreadable(&self, why: &str, bytes: &[u8]) -> Status {
        self.unrecognized(&format!("couldn't get version/kind; json parse error: {why}"), bytes)
    }

    /// Not even its kind can be told.
    pub fn unrecognized(&self, why: &str, bytes: &[u8]) -> Status {
        let kind = match self.kind {
            Some(gvk) => format!(" (must be of type {})", gvk.kind),
            None => String::new(),
        };
        Status::bad_request(format!("the object provided is unrecognized{kind}: {why} ({})", summary(bytes)))
    }
}

/// An object that has to say its kind does not.
pub fn without_kind(wanted: &str, bytes: &[u8]) -> Status {
    let text = summary(bytes);
    Status::bad_request(format!(
        "the object provided is unrecognized (must be of type {wanted}): Object 'Kind' is missing in '{text}' ({text})"
    ))
}

/// Nothing may follow the object.
fn whole<'de, R: serde_json::de::Read<'de>>(
    mut deserializer: serde_json::Deserializer<R>,
    read: impl FnOnce(&mut serde_json::Deserializer<R>) -> (Result<Object, serde_json::Error>, Findings),
) -> (Result<Object, serde_json::Error>, Findings) {
    let (object, findings) = read(&mut deserializer);
    (object.and_then(|object| deserializer.end().map(|()| object)), findings)
}

/// Why a document cannot be read, in the words clients know; the reader's own where the syntax is right.
pub fn why_unreadable(document: &[u8], error: &impl std::fmt::Display) -> String {
    syntax::fault(document).unwrap_or_else(|| error.to_string())
}

/// The beginning of the document, as text where it looks like JSON.
fn summary(bytes: &[u8]) -> String {
    const LENGTH: usize = 30;
    let shown = &bytes[..bytes.len().min(LENGTH)];
    let more = if bytes.len() > LENGTH { " ..." } else { "" };
    match bytes.first() {
        None => "<empty>".into(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(shown)),
        Some(_) => {
            let hex: String = shown.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{hex}{more}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::GroupVersionKind;
    use serde_json::json;

    fn schema(api_version: &str, kind: &str) -> Schema {
        Schema::builtin(&GroupVersionKind::from_api_version(api_version, kind)).expect("a built-in kind")
    }

    fn pod(text: &str, validation: FieldValidation) -> Result<Decoded, Status> {
        decode(text.as_bytes(), &schema("v1", "Pod"), validation)
    }

    #[test]
    fn unknown_and_duplicate_fields_are_named_with_their_paths() {
        let text = r#"{"spec": {"foo": {"deep": 1}, "hostname": "a", "hostname": "b",
            "containers": [{"name": "a", "bar": null}, {"name": "b", "env": [{"nam": "x"}]}]},
            "metadata": {"labels": {"a": "1", "a": "2"}}, "extra": []}"#;
        let expected = [
            r#"unknown field "spec.foo""#,
            r#"duplicate field "spec.hostname""#,
            r#"unknown field "spec.containers[0].bar""#,
            r#"unknown field "spec.containers[1].env[0].nam""#,
            r#"duplicate field "metadata.labels.a""#,
            r#"unknown field "extra""#,
        ];
        let decoded = pod(text, FieldValidation::Warn).expect("only warnings");
        assert_eq!(decoded.warnings, expected);
        assert_eq!(decoded.object.get(&["spec", "hostname"]), Some(&json!("b")));
        assert_eq!(decoded.object.get(&["spec", "foo"]), None);
        let status = pod(text, FieldValidation::Strict).expect_err("strict");
        assert_eq!(status.code, 400);
        assert_eq!(
            status.message,
            format!(
                r#"Pod in version "v1" cannot be handled as a Pod: strict decoding error: {}"#,
                expected.join(", ")
            )
        );
        assert!(pod(text, FieldValidation::Ignore).expect("ignored").warnings.is_empty());
    }

    #[test]
    fn a_value_of_the_wrong_type_is_refused_in_known_words() {
        let check = |text: &str, expected: &str| {
            let status = pod(text, FieldValidation::Strict).expect_err(text);
            let prefix = r#"Pod in version "v1" cannot be handled as a Pod: "#;
            assert_eq!(status.message.strip_prefix(prefix), Some(expected), "{text}: {}", status.message);
        };
        check(
            r#"{"spec": {"containers": "x"}}"#,
            "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type []v1.Container",
        );
        check(
            r#"{"spec": {"containers": [{"ports": [{"containerPort": "80"}]}]}}"#,
            "json: cannot unmarshal string into Go struct field \
             ContainerPort.spec.containers.ports.containerPort of type int32",
        );
        check(
            r#"{"spec": {"priority": 1.5}}"#,
            "json: cannot unmarshal number 1.5 into Go struct field PodSpec.spec.priority of type int32",
        );
        check(
            r#"{"metadata": {"labels": {"a": 1}}}"#,
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
        );
        check(
            r#"{"spec": {"containers": [{"resources": {"limits": {"cpu": "1mm"}}}]}}"#,
            "unable to parse quantity's suffix",
        );
        check(
            r#"{"spec": {"containers": [{"resources": {"limits": {"cpu": true}}}]}}"#,
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        );
        check(
            r#"{"status": {"startTime": 5}}"#,
            "json: cannot unmarshal number into Go struct field PodStatus.status.startTime of type string",
        );
    }

    #[test]
    fn broken_documents_are_refused_with_their_beginning() {
        for text in
            ["", "[]", "\"a\"", "{", "{\"a\"", "{} {}", "\u{1}", "{\"spec\": {\"nodeName\": \"\\ud800\"}}"]
        {
            let status = pod(text, FieldValidation::Ignore).expect_err(text);
            assert_eq!(status.code, 400);
            assert!(
                status.message.starts_with("the object provided is unrecognized (must be of type Pod): ")
            );
        }
        let deep = "[".repeat(100_000);
        assert_eq!(pod(&deep, FieldValidation::Ignore).expect_err("deep").code, 400);
        let deep = format!("{}1", r#"{"x":"#.repeat(100_000));
        assert_eq!(pod(&deep, FieldValidation::Ignore).expect_err("deep").code, 400);
        assert_eq!(decode_untyped(deep.as_bytes(), FieldValidation::Ignore).expect_err("deep").code, 400);
    }

    #[test]
    fn values_are_normalised_and_what_is_empty_is_left_out_or_kept_as_clients_expect() {
        let text = r#"{"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "labels": {}, "generation": 0, "creationTimestamp": null},
            "spec": {"nodeName": "", "priority": 0, "containers": [{"name": "a",
                "resources": {"requests": {"cpu": "1000m", "memory": 1024}},
                "readinessProbe": {"httpGet": {"port": 80}}}]},
            "status": {"startTime": "2026-01-02T03:04:05.6+01:00", "conditions": [{"type": "Ready"}]}}"#;
        let decoded = pod(text, FieldValidation::Strict).expect("a pod");
        assert_eq!(
            decoded.object.into_value(),
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
                "spec": {"priority": 0, "containers": [{"name": "a",
                    "resources": {"requests": {"cpu": "1", "memory": "1024"}},
                    "readinessProbe": {"httpGet": {"port": 80}}}]},
                "status": {"startTime": "2026-01-02T02:04:05Z", "conditions": [
                    {"type": "Ready", "status": "", "lastProbeTime": null, "lastTransitionTime": null}]}})
        );
    }

    #[test]
    fn an_empty_list_of_managers_says_something() {
        for given in ["[]", "[{}]", "[null]"] {
            let text = format!(r#"{{"metadata": {{"managedFields": {given}}}}}"#);
            let managers = pod(&text, FieldValidation::Strict).expect("a pod").object.take_managers();
            assert_eq!(managers, [crate::ManagedFieldsEntry::default()], "{given}");
        }
        let template =
            r#"{"spec": {"template": {"metadata": {"managedFields": [{"fieldsV1": {"f:a": {}}}]}}}}"#;
        let schema = schema("apps/v1", "Deployment");
        let object = decode(template.as_bytes(), &schema, FieldValidation::Strict).expect("ok").object;
        assert_eq!(object.managers(), []);
        let inside = object.get(&["spec", "template", "metadata", "managedFields"]).expect("as it was given");
        assert_eq!(inside, &json!([{"fieldsV1": {"f:a": {}}}]));
    }

    #[test]
    fn null_is_an_object_of_which_nothing_is_said() {
        assert_eq!(pod("null", FieldValidation::Strict).expect("an empty pod").object.name(), "");
    }

    #[test]
    fn null_elements_stand_for_zero() {
        let text = r#"{"data": {"a": null}, "binaryData": null}"#;
        let decoded =
            decode(text.as_bytes(), &schema("v1", "ConfigMap"), FieldValidation::Strict).expect("ok");
        assert_eq!(decoded.object.into_value(), json!({"data": {"a": ""}, "metadata": {}}));
    }

    #[test]
    fn an_apply_configuration_keeps_exactly_what_it_says() {
        let text =
            r#"{"spec": {"nodeName": "", "containers": [{"resources": {"limits": {"cpu": "1000m"}}}]}}"#;
        let decoded =
            decode_applied(text.as_bytes(), &schema("v1", "Pod"), FieldValidation::Strict).expect("ok");
        assert_eq!(decoded.object.into_value(), serde_json::from_str::<Value>(text).expect("JSON"));
    }

    #[test]
    fn a_schema_may_stand_where_a_bool_or_a_list_could() {
        let text = r#"{"spec": {"group": "g", "scope": "Cluster", "names": {"plural": "as", "kind": "A"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "additionalProperties": false,
                "properties": {"a": {"items": {"type": "string", "enum": [null, 1]}, "default": {"x": null}},
                               "b": {"items": [{"type": "integer"}]},
                               "c": {"additionalProperties": {"type": "integer"}}}}}}]}}"#;
        let crd = schema("apiextensions.k8s.io/v1", "CustomResourceDefinition");
        let decoded = decode(text.as_bytes(), &crd, FieldValidation::Strict).expect("a CRD");
        let read = &decoded.object.get(&["spec", "versions"]).expect("versions")[0]["schema"];
        let given: Value = serde_json::from_str(text).expect("JSON");
        assert_eq!(read, &given["spec"]["versions"][0]["schema"]);
    }
}
