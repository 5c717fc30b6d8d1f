//! One object at one revision: the JSON that clients receive, with the labels and fields for selectors.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use ferry_api::{Object, Status, read};
use ferry_store::Revision;
use parking_lot::Mutex;

use super::peek;

pub struct Entry {
    /// `namespace/name`, or the name alone for cluster-scoped kinds.
    pub key: Arc<str>,
    pub revision: Revision,
    /// In the storage version, resourceVersion included.
    pub json: Bytes,
    /// Someone has still to act on it before it is shown to all.
    pub uninitialized: bool,
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// The values of the kind's selectable fields, in the strategy's order.
    pub fields: Box<[Box<str>]>,
    /// The object in other forms (protobuf, another version), made on first demand and kept.
    forms: Mutex<Vec<(Form, Bytes)>>,
    /// The object itself, for those who ask again and again.
    object: OnceLock<Arc<Object>>,
}

/// A form other than the storage version's JSON: the version asked for, and how it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Form {
    pub version: Arc<str>,
    pub encoding: Encoding,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Json,
    /// The bare message, without the envelope.
    Protobuf,
}

impl Entry {
    /// From the stored JSON, which has no resourceVersion.
    pub fn from_stored(
        key: Arc<str>,
        stored: &Bytes,
        revision: Revision,
        paths: &peek::Paths,
    ) -> Result<Entry, serde_json::Error> {
        Ok(Entry::of_peeked(key, stored, revision, paths.read(stored)?))
    }

    /// The same where labels and fields are known.
    pub fn of_peeked(key: Arc<str>, stored: &Bytes, revision: Revision, peeked: peek::Peeked) -> Entry {
        Entry {
            key,
            revision,
            json: with_revision(stored, revision),
            uninitialized: peeked.uninitialized,
            labels: peeked.labels,
            fields: peeked.fields,
            forms: Mutex::default(),
            object: OnceLock::new(),
        }
    }

    /// The same object as its deletion shows it: with the revision of the deletion.
    pub fn deleted_at(&self, revision: Revision) -> Entry {
        let mark = format!("\"resourceVersion\":\"{}\"", self.revision);
        let new = format!("\"resourceVersion\":\"{revision}\"");
        let at = find(&self.json, mark.as_bytes()).expect("an entry's JSON carries its revision");
        let mut json = Vec::with_capacity(self.json.len() + 4);
        json.extend_from_slice(&self.json[..at]);
        json.extend_from_slice(new.as_bytes());
        json.extend_from_slice(&self.json[at + mark.len()..]);
        Entry {
            key: self.key.clone(),
            revision,
            json: json.into(),
            uninitialized: self.uninitialized,
            labels: self.labels.clone(),
            fields: self.fields.clone(),
            forms: Mutex::default(),
            object: OnceLock::new(),
        }
    }

    pub fn namespace(&self) -> &str {
        self.key.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    pub fn name(&self) -> &str {
        self.key.split_once('/').map_or(&*self.key, |(_, name)| name)
    }

    /// Whether this is its namespace; asked of every event for every watcher, so the key is not searched for its parts.
    pub fn is_in(&self, namespace: &str) -> bool {
        match self.key.strip_prefix(namespace) {
            Some(_) if namespace.is_empty() => self.namespace().is_empty(),
            Some(rest) => rest.starts_with('/'),
            None => false,
        }
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(name, _)| &**name == key).map(|(_, value)| &**value)
    }

    /// The object in `form`, made by `make` when nobody asked for it before.
    pub fn form(&self, form: &Form, make: impl FnOnce() -> Result<Bytes, Status>) -> Result<Bytes, Status> {
        if let Some((_, bytes)) = self.forms.lock().iter().find(|(have, _)| have == form) {
            return Ok(bytes.clone());
        }
        // Two readers may make it at once; the result is the same and one copy is kept.
        let bytes = make()?;
        let mut forms = self.forms.lock();
        if !forms.iter().any(|(have, _)| have == form) {
            forms.push((form.clone(), bytes.clone()));
        }
        Ok(bytes)
    }

    pub fn has_form(&self, form: &Form) -> bool {
        self.forms.lock().iter().any(|(have, _)| have == form)
    }

    /// Whether the JSON is of this version.
    pub fn is_in_version(&self, api_version: &str) -> bool {
        let Some([Some(written)]) = read::members(&self.json, ["apiVersion"]) else { return false };
        written.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")) == Some(api_version.as_bytes())
    }

    /// The object, read once and kept. For what every other write looks at (namespaces, accounts, classes, ranges):
    /// such objects are few, and reading them anew for each pod costs more than the memory.
    pub fn shared_object(&self) -> Result<Arc<Object>, Status> {
        if let Some(object) = self.object.get() {
            return Ok(object.clone());
        }
        let object = Arc::new(self.read_object()?);
        Ok(self.object.get_or_init(|| object).clone())
    }

    /// The object, to work on.
    pub fn read_object(&self) -> Result<Object, Status> {
        Object::read(&self.json)
            .map_err(|error| Status::internal(format!("a stored object cannot be read: {error}")))
    }

    pub fn size(&self) -> usize {
        self.json.len()
    }
}

const METADATA: &[u8] = b"\"metadata\":{";

/// Makes what goes out of stored JSON: puts the resourceVersion in, and the kind first where `Object::to_json` has it so.
/// Stored JSON is written by `Object::to_stored_json`: metadata follows apiVersion and kind, whose values hold no quotes, so
/// the first match is the object's own.
pub fn with_revision(stored: &[u8], revision: Revision) -> Bytes {
    let Some(at) = find(stored, METADATA).map(|at| at + METADATA.len()) else {
        return Bytes::copy_from_slice(stored);
    };
    let empty = stored.get(at) == Some(&b'}');
    let mut json = Vec::with_capacity(stored.len() + 32);
    match builtin_type(&stored[..at]) {
        Some((api_version, kind)) => {
            let head: [&[u8]; 6] =
                [br#"{"kind":""#, kind, br#"","apiVersion":""#, api_version, br#"","#, METADATA];
            head.iter().for_each(|part| json.extend_from_slice(part));
        }
        None => json.extend_from_slice(&stored[..at]),
    }
    json.extend_from_slice(b"\"resourceVersion\":\"");
    json.extend_from_slice(revision.to_string().as_bytes());
    json.extend_from_slice(if empty { b"\"" } else { b"\"," });
    json.extend_from_slice(&stored[at..]);
    json.into()
}

/// apiVersion and kind of `{"apiVersion":"V","kind":"K","metadata":{`, if they are a built-in type's.
fn builtin_type(head: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = head.strip_prefix(br#"{"apiVersion":""#)?.strip_suffix(METADATA)?.strip_suffix(br#"","#)?;
    let between = br#"","kind":""#;
    let at = find(rest, between)?;
    let (api_version, kind) = (&rest[..at], &rest[at + between.len()..]);
    let text = std::str::from_utf8(api_version).ok()?;
    let group = text.rsplit_once('/').map_or("", |(group, _)| group);
    ferry_api::kinds::is_builtin_group(group).then_some((api_version, kind))
}

pub(crate) fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(stored: &str, revision: i64) -> Entry {
        Entry::from_stored(
            "ns/a".into(),
            &Bytes::copy_from_slice(stored.as_bytes()),
            Revision(revision),
            &peek::Paths::new(&[]),
        )
        .expect("valid JSON")
    }

    #[test]
    fn the_revision_is_inserted_without_decoding() {
        let stored =
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"app":"x"},"name":"a"},"spec":{}}"#;
        let entry = entry(stored, 7);
        assert_eq!(
            &entry.json[..],
            br#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"7","labels":{"app":"x"},"name":"a"},"spec":{}}"#
        );
        assert_eq!(entry.label("app"), Some("x"));
        let gone = entry.deleted_at(Revision(19));
        assert!(find(&gone.json, b"\"resourceVersion\":\"19\"").is_some());
        assert_eq!(gone.json.len(), entry.json.len() + 1);
    }

    #[test]
    fn kind_is_first_where_it_is_a_built_in_one() {
        let check = |stored: &str, expected: &str, version: &str| {
            let entry = entry(stored, 7);
            assert_eq!(String::from_utf8_lossy(&entry.json), expected);
            assert!(entry.is_in_version(version) && !entry.is_in_version("v2"), "{expected}");
        };
        check(
            r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{}}"#,
            r#"{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"resourceVersion":"7"}}"#,
            "apps/v1",
        );
        check(
            r#"{"apiVersion":"example.org/v1","kind":"Widget","metadata":{"name":"a"}}"#,
            r#"{"apiVersion":"example.org/v1","kind":"Widget","metadata":{"resourceVersion":"7","name":"a"}}"#,
            "example.org/v1",
        );
    }

    #[test]
    fn an_entry_knows_its_namespace() {
        let check = |key: &str, namespace: &str, expected: bool| {
            let mut entry = entry("{}", 1);
            entry.key = key.into();
            assert_eq!(entry.is_in(namespace), expected, "{key} in {namespace:?}");
            assert_eq!(entry.namespace() == namespace, expected, "{key} in {namespace:?}");
        };
        check("ns/a", "ns", true);
        check("ns/a", "n", false);
        check("ns/a", "ns/a", false);
        check("ns/a", "", false);
        check("a", "", true);
        check("a", "a", false);
    }

    #[test]
    fn an_encoding_is_computed_once() {
        let entry = entry(r#"{"apiVersion":"v1","kind":"Pod","metadata":{}}"#, 1);
        let form = Form { version: "v1".into(), encoding: Encoding::Protobuf };
        let made = entry.form(&form, || Ok(Bytes::from_static(b"x"))).expect("made");
        let kept = entry.form(&form, || panic!("made twice")).expect("kept");
        assert_eq!(made, kept);
    }
}
