//! OpenAPI v2 is one document about everything; with a thousand definitions it is a hundred megabytes. So it is kept in
//! parts, written and packed: what is built in, and each group and version that definitions made. A change makes one part
//! anew; a document is put together when somebody asks for it.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::sync::{Arc, OnceLock};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde_json::Value;
use sha2::{Digest, Sha512};

use super::descriptions::Descriptions;
use super::{Document, gnostic, hex, merge, v2};
use crate::kinds::Kind;

/// What the parts of a document are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Section {
    Paths,
    Definitions,
    Parameters,
}

const SECTIONS: [(Section, &str); 3] =
    [(Section::Paths, "paths"), (Section::Definitions, "definitions"), (Section::Parameters, "parameters")];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Json,
    Protobuf,
}

/// What no definition made, and what other API servers answer for.
pub struct Base {
    rows: Vec<Arc<Kind>>,
    remotes: Vec<Arc<Value>>,
    forms: [OnceLock<BaseForm>; 2],
}

struct BaseForm {
    sections: [Vec<u8>; 3],
    names: HashSet<(Section, String)>,
    /// As it is without parts.
    document: Document,
}

/// A group and version that definitions made.
#[derive(Default)]
pub struct Part {
    forms: [OnceLock<PartForm>; 2],
}

struct PartForm {
    /// What no other part has; packed, since few ask for it.
    paths: Vec<u8>,
    definitions: Vec<u8>,
    /// What other parts may have too: the group's document, a shared type that nothing built in refers to.
    shared: Vec<(Section, String, Vec<u8>)>,
}

impl Base {
    pub fn new(rows: Vec<Arc<Kind>>, remotes: Vec<Arc<Value>>) -> Base {
        Base { rows, remotes, forms: Default::default() }
    }

    pub fn is_about(&self, rows: &[Arc<Kind>], remotes: &[Arc<Value>]) -> bool {
        fn same<T>(a: &[Arc<T>], b: &[Arc<T>]) -> bool {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
        }
        same(&self.rows, rows) && same(&self.remotes, remotes)
    }

    fn form(&self, form: Form) -> &BaseForm {
        self.forms[form as usize].get_or_init(|| {
            let mut document = v2::document(&self.rows);
            for remote in &self.remotes {
                merge::merge(&mut document, remote);
            }
            let mut names = HashSet::new();
            let sections = SECTIONS.map(|(section, name)| {
                let mut text = Vec::new();
                for (name, value) in entries(&document, name) {
                    append(&mut text, form, &entry(form, section, name, value));
                    names.insert((section, name.clone()));
                }
                text
            });
            let document = Document::from_bytes(join(form, &sections));
            BaseForm { sections, names, document }
        })
    }

    /// The hash of the document with these parts; it needs none of them.
    pub fn hash(&self, form: Form, definitions: &[&str]) -> String {
        let base = &self.form(form).document.hash;
        if definitions.is_empty() {
            return base.clone();
        }
        let mut hasher = Sha512::new();
        hasher.update(base);
        definitions.iter().for_each(|hash| hasher.update(hash));
        hex(&hasher.finalize())
    }

    /// The document with these parts: rows of a group and version, and where their part is kept.
    pub fn document(&self, form: Form, parts: &[(&[Arc<Kind>], &Part)]) -> Vec<u8> {
        let base = self.form(form);
        if parts.is_empty() {
            return base.document.bytes.clone();
        }
        // Read once for all parts that are not made yet: reading it takes longer than making one of them.
        let _kept = parts.iter().any(|(_, part)| !part.is_made(form)).then(Descriptions::get);
        let mut sections = base.sections.clone();
        let mut seen: HashSet<(Section, &str)> = HashSet::new();
        for (rows, part) in parts {
            let part = part.form(form, rows, base);
            for (section, packed) in
                [(Section::Paths, &part.paths), (Section::Definitions, &part.definitions)]
            {
                append(&mut sections[section as usize], form, &unpacked(packed));
            }
            for (section, name, text) in &part.shared {
                if seen.insert((*section, name)) {
                    append(&mut sections[*section as usize], form, text);
                }
            }
        }
        join(form, &sections)
    }
}

impl Part {
    fn is_made(&self, form: Form) -> bool {
        self.forms[form as usize].get().is_some()
    }

    fn form(&self, form: Form, rows: &[Arc<Kind>], base: &BaseForm) -> &PartForm {
        self.forms[form as usize].get_or_init(|| {
            let document = v2::part(rows);
            let own: HashSet<String> = rows
                .iter()
                .flat_map(|row| [row.definition_name().into_owned(), row.list_definition_name()])
                .collect();
            let group = rows.first().map(|row| format!("/apis/{}/", row.group)).unwrap_or_default();
            let (mut paths, mut definitions, mut shared) = (Vec::new(), Vec::new(), Vec::new());
            for (section, section_name) in SECTIONS {
                for (name, value) in entries(&document, section_name) {
                    let text = || entry(form, section, name, value);
                    match section {
                        Section::Paths if *name != group => append(&mut paths, form, &text()),
                        Section::Definitions if own.contains(name) => append(&mut definitions, form, &text()),
                        _ if base.names.contains(&(section, name.clone())) => {}
                        _ => shared.push((section, name.clone(), text())),
                    }
                }
            }
            PartForm { paths: packed(&paths), definitions: packed(&definitions), shared }
        })
    }
}

fn entries<'v>(document: &'v Value, section: &str) -> impl Iterator<Item = (&'v String, &'v Value)> {
    document.get(section).and_then(Value::as_object).into_iter().flatten()
}

fn entry(form: Form, section: Section, name: &str, value: &Value) -> Vec<u8> {
    match form {
        Form::Json => format!("{}:{value}", Value::from(name)).into_bytes(),
        Form::Protobuf => gnostic::entry(section, name, value),
    }
}

fn append(section: &mut Vec<u8>, form: Form, more: &[u8]) {
    if form == Form::Json && !section.is_empty() && !more.is_empty() {
        section.push(b',');
    }
    section.extend_from_slice(more);
}

fn join(form: Form, sections: &[Vec<u8>; 3]) -> Vec<u8> {
    let frame = v2::frame();
    let [paths, definitions, parameters] = sections;
    if form == Form::Protobuf {
        return gnostic::join(&frame, paths, definitions, parameters);
    }
    let frame = frame.to_string();
    let size = frame.len() + paths.len() + definitions.len() + parameters.len() + 64;
    let mut out = Vec::with_capacity(size);
    out.extend_from_slice(&frame.as_bytes()[..frame.len() - 1]);
    for ((_, name), section) in SECTIONS.iter().zip(sections) {
        out.extend_from_slice(format!(",\"{name}\":{{").as_bytes());
        out.extend_from_slice(section);
        out.push(b'}');
    }
    out.push(b'}');
    out
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    let packed = encoder.write_all(bytes).and_then(|()| encoder.finish());
    packed.expect("bytes are written to memory")
}

fn unpacked(packed: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    ZlibDecoder::new(packed).read_to_end(&mut bytes).expect("what was packed here can be unpacked");
    bytes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::{Map, json};

    use super::super::Documents;
    use super::super::descriptions::READINGS;
    use super::super::schemas::Version;
    use super::*;
    use crate::codec::{Codec, CustomSchema};
    use crate::kinds;
    use crate::types::Schema;

    /// Counts how often its definition is published.
    #[derive(Debug)]
    struct Counted {
        published: Arc<AtomicUsize>,
        rows: Schema,
    }

    impl CustomSchema for Counted {
        fn prune(&self, _: &mut Map<String, Value>) -> Vec<String> {
            Vec::new()
        }

        fn set_defaults(&self, _: &mut Map<String, Value>) {}

        fn field_rows(&self) -> &Schema {
            &self.rows
        }

        fn open_api(&self, _: Version) -> Value {
            self.published.fetch_add(1, Ordering::Relaxed);
            json!({"type": "object"})
        }

        fn open_api_list(&self, _: Version) -> Value {
            json!({"type": "object"})
        }
    }

    fn row(number: usize, published: &Arc<AtomicUsize>) -> Arc<Kind> {
        let config_map =
            kinds::builtin().iter().find(|kind| kind.kind == "ConfigMap").expect("a built-in kind");
        let mut row = Kind::clone(config_map);
        row.group = format!("g{number}.example.com").into();
        row.generation = Some("uid/1".into());
        row.codec =
            Codec::custom(Arc::new(Counted { published: published.clone(), rows: Schema::custom_object() }));
        Arc::new(row)
    }

    #[test]
    fn one_more_definition_makes_one_part_and_the_table_is_read_once_for_all() {
        for count in [10, 200] {
            let published = Arc::new(AtomicUsize::new(0));
            let mut rows: Vec<Arc<Kind>> = (0..count).map(|number| row(number, &published)).collect();
            let first = Documents::new(rows.clone());
            // What is built in has its own reading.
            first.v2_hash(Form::Json);
            let readings = READINGS.get();
            let document = first.v2(Form::Json);
            assert_eq!(published.load(Ordering::Relaxed), count);
            assert!(READINGS.get() - readings <= 1, "{} readings", READINGS.get() - readings);
            let document: Value = serde_json::from_slice(&document).expect("JSON");
            assert!(document["paths"].get("/apis/g7.example.com/v1/configmaps").is_some());

            rows.push(row(count, &published));
            let next = Documents::after(Some(&first), rows, Vec::new());
            let readings = READINGS.get();
            next.v2(Form::Json);
            assert_eq!(published.load(Ordering::Relaxed), count + 1);
            assert!(READINGS.get() - readings <= 1, "{} readings", READINGS.get() - readings);
        }
    }

    #[test]
    fn the_index_of_many_definitions_needs_none_of_their_documents() {
        let published = Arc::new(AtomicUsize::new(0));
        let mut rows: Vec<Arc<Kind>> = (0..200).map(|number| row(number, &published)).collect();
        let first = Documents::new(rows.clone());
        // What is said of every group is read once.
        first.v3_index(&BTreeMap::new());
        rows.push(row(200, &published));
        let next = Documents::after(Some(&first), rows, Vec::new());
        let readings = READINGS.get();
        let index: Value = serde_json::from_slice(&next.v3_index(&BTreeMap::new())).expect("JSON");
        assert_eq!((READINGS.get() - readings, published.load(Ordering::Relaxed)), (0, 0));
        for path in ["apis/g200.example.com", "apis/g200.example.com/v1"] {
            let address = index["paths"][path]["serverRelativeURL"].as_str().expect(path);
            let document = next.v3(path).expect(path);
            assert!(address.ends_with(&document.hash), "{address} leads to the document");
        }
    }
}
