//! YAML as Kubernetes' users write it: plain scalars mean what they mean to upstream's tools (`0644` is
//! octal, `yes` is true), and documents are written the way `kubectl -o yaml` prints them.

mod read;
mod scalar;
mod write;

use std::fmt::{self, Display};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::decode::{Findings, Form};
use crate::json::{Decoded, FieldValidation, Reading};
use crate::object::Object;
use crate::status::Status;
use crate::types::Schema;
use crate::view;

/// Reads one document as an object of a known type. Duplicate keys are found like unknown fields.
pub fn decode(bytes: &[u8], schema: &Schema, validation: FieldValidation) -> Result<Decoded, Status> {
    Reading::typed(schema, Form::Whole, validation).yaml(bytes)
}

/// Reads an apply configuration; see [`json::decode_applied`](crate::json::decode_applied). What is JSON is read as JSON.
pub fn decode_applied(bytes: &[u8], schema: &Schema, validation: FieldValidation) -> Result<Decoded, Status> {
    Reading::typed(schema, Form::Applied, validation).yaml(bytes)
}

/// Reads one document as an object of a kind without field rows.
pub fn decode_untyped(bytes: &[u8], validation: FieldValidation) -> Result<Decoded, Status> {
    Reading::untyped(validation).yaml(bytes)
}

/// All documents of a file, empty ones left out.
pub fn documents(text: &str) -> Result<Vec<Value>, BadYaml> {
    let read = read::documents(text, usize::MAX, Scalars::Kubernetes)?;
    Ok(read.documents.into_iter().filter(|document| !document.is_null()).collect())
}

/// The only document of a configuration file, as a `T`.
pub fn one<T: DeserializeOwned>(text: &str) -> Result<T, BadDocument> {
    match documents(text).map_err(BadDocument::Yaml)?.as_slice() {
        [document] => view::of_value(document).map_err(BadDocument::Type),
        documents => Err(BadDocument::Count(documents.len())),
    }
}

/// Why a file is not the one document that was expected.
#[derive(Debug, thiserror::Error)]
pub enum BadDocument {
    #[error(transparent)]
    Yaml(BadYaml),
    #[error("expected one document, found {0}")]
    Count(usize),
    #[error(transparent)]
    Type(serde_json::Error),
}

/// What plain scalars are read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalars {
    /// As Kubernetes' own tools read them: `yes` is true.
    Kubernetes,
    /// As YAML 1.2 and kustomize do: of the words only `true` and `false` are booleans.
    Core,
    /// The text as it stands.
    Text,
}

/// All documents of a file, empty ones left out; a key that stands twice in a mapping is refused.
pub fn unique_documents(text: &str, scalars: Scalars) -> Result<Vec<Value>, BadYaml> {
    let read = read::documents(text, usize::MAX, scalars)?;
    if let Some((line, key)) = read.duplicates.into_iter().next() {
        return Err(BadYaml { line, why: format!("mapping key {key:?} already defined") });
    }
    Ok(read.documents.into_iter().filter(|document| !document.is_null()).collect())
}

/// What a plain scalar means in YAML 1.2.
pub fn core_scalar(text: &str) -> Value {
    scalar::resolve_core(text)
}

/// The object as `kubectl -o yaml` prints it.
pub fn encode(object: &Object) -> String {
    match object.managers() {
        [] => write::mapping_document(&object.0),
        _ => write::document(&object.clone().into_value()),
    }
}

/// A list in pieces: what stands before and behind its items, which are written by [`encode_item`]. `items` is their field.
/// Where there are none, ` []` stands between.
pub fn around_items(list: &serde_json::Map<String, Value>, items: &str) -> (String, String) {
    write::around_items(list, items)
}

pub fn encode_item(item: &serde_json::Map<String, Value>) -> String {
    write::item(item)
}

pub fn encode_value(value: &Value) -> String {
    write::document(value)
}

/// Text that is no YAML, with the place where it stops being so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadYaml {
    line: usize,
    why: String,
}

impl Display for BadYaml {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "yaml: line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for BadYaml {}

impl Reading<'_> {
    pub(crate) fn yaml(&self, bytes: &[u8]) -> Result<Decoded, Status> {
        // Most YAML that reaches a server is JSON, and JSON names its duplicates by their paths.
        if bytes.first() == Some(&b'{') && serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok() {
            return self.json(bytes);
        }
        let unreadable = |why: String| match self.form {
            Form::Applied if self.rows.is_some() => {
                Status::bad_request(format!("error decoding YAML: error converting YAML to JSON: {why}"))
            }
            _ => self.unrecognized(&why, bytes),
        };
        let text =
            std::str::from_utf8(bytes).map_err(|_| unreadable("yaml: invalid leading UTF-8 octet".into()))?;
        let read =
            read::documents(text, 1, Scalars::Kubernetes).map_err(|error| unreadable(error.to_string()))?;
        let value = read.documents.into_iter().next().unwrap_or(Value::Null);
        let (object, mut findings) = self.pass(value);
        note_duplicates(&mut findings, &read.duplicates);
        self.finish(object, findings, bytes)
    }
}

/// All duplicate keys are one finding, as the YAML reader of other tools reports them.
fn note_duplicates(findings: &mut Findings, duplicates: &[(usize, String)]) {
    if duplicates.is_empty() {
        return;
    }
    let lines: String = duplicates
        .iter()
        .map(|(line, key)| format!("\n  line {line}: key {key:?} already set in map"))
        .collect();
    findings.strict.insert(0, format!("yaml: unmarshal errors:{lines}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::GroupVersionKind;
    use serde_json::json;

    fn check(text: &str, expected: Value) {
        assert_eq!(documents(text).expect(text), [expected], "{text}");
    }

    #[test]
    fn plain_scalars_mean_what_users_expect() {
        check(
            "{a: 0644, b: 0x1F, c: 1_000, d: yes, e: Off, f: ~, g: 1.5, h: 1e3, i: '1', j: 2026-01-02, k: 0o17, l: 08}",
            json!({"a": 420, "b": 31, "c": 1000, "d": true, "e": false, "f": null, "g": 1.5, "h": 1000.0,
                "i": "1", "j": "2026-01-02", "k": 15, "l": 8.0}),
        );
        check(
            "a: !!str 5\nb: !!int '7'\nc: .5\nd: -0b11\ne: 1:30",
            json!({"a": "5", "b": 7, "c": 0.5, "d": -3, "e": "1:30"}),
        );
        check("1: a\ntrue: b\n2.5: c", json!({"1": "a", "true": "b", "2.5": "c"}));
    }

    #[test]
    fn scalars_are_read_as_asked() {
        let text = "{a: yes, b: true, c: 1.10, d: 'x', e: ~}";
        let read = |scalars| unique_documents(text, scalars).expect(text);
        assert_eq!(read(Scalars::Core), [json!({"a": "yes", "b": true, "c": 1.1, "d": "x", "e": null})]);
        assert_eq!(read(Scalars::Text), [json!({"a": "yes", "b": "true", "c": "1.10", "d": "x", "e": "~"})]);
        let twice = unique_documents("a: 1\nb: 2\na: 3\n", Scalars::Core).expect_err("twice");
        assert_eq!(twice.to_string(), "yaml: line 3: mapping key \"a\" already defined");
    }

    #[test]
    fn anchors_and_merge_keys_are_resolved() {
        check(
            "base: &base {a: 1, b: 2}\nother:\n  <<: *base\n  b: 3\nlist: [*base, *base]",
            json!({"base": {"a": 1, "b": 2}, "other": {"a": 1, "b": 3}, "list": [{"a": 1, "b": 2}, {"a": 1, "b": 2}]}),
        );
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let before = format!("*a{}, ", level - 1).repeat(10);
            bomb.push_str(&format!("a{level}: &a{level} [{before}]\n"));
        }
        let error = documents(&bomb).expect_err("too much");
        assert!(error.to_string().ends_with("document contains excessive aliasing"), "{error}");
        assert!(documents("a: &a [*a]").is_err());
    }

    #[test]
    fn documents_of_a_file_are_separate_and_empty_ones_left_out() {
        let text = "---\n# only a comment\n---\na: 1\n---\nb: 2\n...\n";
        assert_eq!(documents(text), Ok(vec![json!({"a": 1}), json!({"b": 2})]));
        assert_eq!(documents("a: [1").map_err(|error| error.line > 0), Err(true));
        assert!(documents("a: b: c").is_err());
    }

    #[test]
    fn duplicate_keys_and_unknown_fields_are_both_found() {
        let schema = Schema::builtin(&GroupVersionKind::new("", "v1", "ConfigMap")).expect("ConfigMap");
        let text = b"kind: ConfigMap\nmetadata:\n  name: a\n  name: b\ndaat: {}\ndata:\n  k: v\n";
        let decoded = decode(text, &schema, FieldValidation::Warn).expect("warnings only");
        assert_eq!(
            decoded.warnings,
            ["yaml: unmarshal errors:\n  line 4: key \"name\" already set in map", r#"unknown field "daat""#]
        );
        assert_eq!(decoded.object.name(), "b");
        let status = decode(text, &schema, FieldValidation::Strict).expect_err("strict");
        assert!(status.message.contains("strict decoding error: yaml: unmarshal errors:"), "{status}");
        assert!(decode(b"\xff", &schema, FieldValidation::Strict).is_err());
        assert!(decode(b"", &schema, FieldValidation::Strict).is_ok(), "nothing is null");
        assert!(decode(b"- a", &schema, FieldValidation::Strict).is_err());
        assert!(decode(b"{\"data\": {\"a\": \"b\"}, }", &schema, FieldValidation::Strict).is_ok());
    }

    #[test]
    fn documents_are_written_as_kubectl_prints_them() {
        let long = "a sentence that goes on and on until it is longer than what fits into a line of eighty characters";
        let value = json!({"kind": "X", "a10": [], "a2": {}, "list": [{"b": 1, "a": [1, 2]}, [3], "x"], "none": null,
            "quoted": ["true", "1", "", "a: b", "- a", "it's", " a", "null", "1:30", "tab\there", "é", "😀", "2026-01-02"],
            "lines": "first\nsecond\n", "chomped": "first\nsecond", "kept": "first\n\n", "indented": " a\nb",
            "trailing": "a \nb", "long": long});
        let expected = "a2: {}\na10: []\nchomped: |-\n  first\n  second\nindented: |2-\n   a\n  b\nkept: |+\n  first\n\nkind: X\nlines: |\n  first\n  second\nlist:\n- a:\n  - 1\n  - 2\n  b: 1\n- - 3\n- x\nlong: a sentence that goes on and on until it is longer than what fits into a line\n  of eighty characters\nnone: null\nquoted:\n- \"true\"\n- \"1\"\n- \"\"\n- 'a: b'\n- '- a'\n- it's\n- ' a'\n- \"null\"\n- \"1:30\"\n- \"tab\\there\"\n- é\n- \"\\U0001F600\"\n- \"2026-01-02\"\ntrailing: \"a \\nb\"\n";
        let written = encode_value(&value);
        assert_eq!(written, expected);
        assert_eq!(documents(&written), Ok(vec![value]));
    }

    /// Each value beside what kubectl v1.36 prints for it.
    #[test]
    fn text_is_quoted_only_where_it_must_be() {
        for (value, printed) in [
            ("a #b", "'a #b'"),
            ("y", "\"y\""),
            ("12e3", "\"12e3\""),
            ("0x", "0x"),
            ("1_0", "\"1_0\""),
            ("=", "="),
            ("a\tb", "\"a\\tb\""),
            ("-1", "\"-1\""),
            ("- ", "'- '"),
            ("?x", "?x"),
            ("2006-1-2 15:4:5", "\"2006-1-2 15:4:5\""),
            ("2006-1-2T15", "2006-1-2T15"),
            ("\n", "|2+"),
            ("a\r\nb", "\"a\\r\\nb\""),
            (".5e", ".5e"),
            ("0b12", "0b12"),
            ("+", "+"),
            ("--- a", "'--- a'"),
            ("09", "\"09\""),
            ("a\nb ", "\"a\\nb \""),
        ] {
            let written = encode_value(&json!({"k": value}));
            assert_eq!(written.trim_end(), format!("k: {printed}"), "{value:?}");
            assert_eq!(documents(&written), Ok(vec![json!({"k": value})]), "{written}");
        }
    }
}
