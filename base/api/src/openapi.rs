//! OpenAPI, both versions, from the kind rows and the field rows, with words of [`descriptions`] for people.
//!
//! [`operations`] turns kind rows into paths and operations, [`schemas`] turns field rows into
//! definitions; [`v2`] and [`v3`] write both down in their own way. [`Documents`] keeps what was asked for.

mod descriptions;
mod gnostic;
pub mod merge;
pub mod operations;
pub mod parts;
pub mod schemas;
pub mod v2;
pub mod v3;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

pub use parts::Form;
use parts::{Base, Part};
use serde_json::{Value, json};
use sha2::{Digest, Sha512};

use crate::kinds::{Kind, priorities};

/// The documents of a set of kinds, each made when it is first asked for.
pub struct Documents {
    kinds: Vec<Arc<Kind>>,
    /// What is built in, of the second version.
    base: Arc<Base>,
    v3: BTreeMap<String, Arc<Slot>>,
}

#[derive(Default)]
struct Slot {
    /// The rows that the document is about.
    rows: Vec<Arc<Kind>>,
    hash: OnceLock<String>,
    document: OnceLock<Document>,
    /// Of the second version, where definitions made the rows.
    v2: Part,
}

impl Slot {
    fn is_hashed(&self) -> bool {
        self.hash.get().is_some() || self.document.get().is_some()
    }

    fn is_about(&self, rows: &[Arc<Kind>]) -> bool {
        self.rows.len() == rows.len() && self.rows.iter().zip(rows).all(|(a, b)| Arc::ptr_eq(a, b))
    }

    /// Whether definitions made all of its rows.
    fn is_custom(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().all(|row| row.generation.is_some())
    }

    /// The hash that definitions give a document: it changes when one of them does, and needs no document.
    fn definitions_hash(&self) -> Option<String> {
        let mut hasher = Sha512::new();
        for row in &self.rows {
            // Names may be accepted later than asked for: they are no part of the definition's generation.
            for word in [&row.plural, &row.kind, &row.list_kind, row.generation.as_ref()?] {
                hasher.update(word.as_bytes());
                hasher.update([0]);
            }
        }
        (!self.rows.is_empty()).then(|| hex(&hasher.finalize()))
    }
}

/// A document as it is served, with the hash that its ETag and its address carry.
#[derive(Debug, Clone)]
pub struct Document {
    pub bytes: Vec<u8>,
    pub hash: String,
}

impl Documents {
    pub fn new(kinds: Vec<Arc<Kind>>) -> Documents {
        Documents::after(None, kinds, Vec::new())
    }

    /// The documents of another set of kinds; what was made for groups and versions that are the same is kept. `remotes` is
    /// the second version of what other API servers answer for, see [`merge::part`].
    pub fn after(previous: Option<&Documents>, kinds: Vec<Arc<Kind>>, remotes: Vec<Arc<Value>>) -> Documents {
        let mut rows: BTreeMap<String, Vec<Arc<Kind>>> = BTreeMap::new();
        for kind in &kinds {
            let path = base_path(&kind.group, &kind.version)[1..].to_string();
            rows.entry(path).or_default().push(kind.clone());
        }
        let slot = |path: String| {
            let rows = rows.get(&path).map_or(&[][..], Vec::as_slice);
            let slot = match previous.and_then(|previous| previous.v3.get(&path)) {
                Some(slot) if slot.is_about(rows) => slot.clone(),
                _ => Arc::new(Slot { rows: rows.to_vec(), ..Slot::default() }),
            };
            (path, slot)
        };
        let slots: BTreeMap<String, Arc<Slot>> = v3::paths(&kinds).into_iter().map(slot).collect();
        let is_part = |kind: &&Arc<Kind>| {
            let path = &base_path(&kind.group, &kind.version)[1..];
            slots.get(path).is_some_and(|slot| slot.is_custom())
        };
        let rows: Vec<Arc<Kind>> = kinds.iter().filter(|kind| !is_part(kind)).cloned().collect();
        let base = match previous {
            Some(previous) if previous.base.is_about(&rows, &remotes) => previous.base.clone(),
            _ => Arc::new(Base::new(rows, remotes)),
        };
        Documents { kinds, base, v3: slots }
    }

    /// `/openapi/v2`, as JSON or as `application/com.github.proto-openapi.spec.v2@v1.0+protobuf`. It is long where there
    /// are many definitions, and not kept.
    pub fn v2(&self, form: Form) -> Vec<u8> {
        let parts = self.v3.values().filter(|slot| slot.is_custom());
        let parts: Vec<_> = parts.map(|slot| (&slot.rows[..], &slot.v2)).collect();
        self.base.document(form, &parts)
    }

    /// The hash of that document, without making it.
    pub fn v2_hash(&self, form: Form) -> String {
        let parts: Vec<String> = self.v3.values().filter_map(|slot| slot.definitions_hash()).collect();
        self.base.hash(form, &parts)
    }

    /// `/openapi/v3`: where each document is, with its hash, so that clients can keep it for good.
    pub fn v3_index(&self) -> Value {
        // Read once for all documents whose hashes are not known yet.
        let _kept = self.v3.values().any(|slot| !slot.is_hashed()).then(descriptions::Descriptions::get);
        let paths: serde_json::Map<String, Value> = self
            .v3
            .keys()
            .filter_map(|path| {
                let hash = self.v3_hash(path)?;
                let url = format!("/openapi/v3/{path}?hash={hash}");
                Some((path.clone(), json!({"serverRelativeURL": url})))
            })
            .collect();
        json!({"paths": paths})
    }

    /// The hash of a document. Making it does not keep the document: the index is asked for far more
    /// often than most of what it lists.
    pub fn v3_hash(&self, path: &str) -> Option<&str> {
        let slot = self.v3.get(path)?;
        if let Some(document) = slot.document.get() {
            return Some(&document.hash);
        }
        if slot.hash.get().is_none() {
            let hash = match slot.definitions_hash() {
                Some(hash) => hash,
                None => Document::of(&self.v3_document(path, slot)?).hash,
            };
            let _ = slot.hash.set(hash);
        }
        slot.hash.get().map(String::as_str)
    }

    /// `/openapi/v3/PATH`, as in `/openapi/v3/apis/apps/v1`.
    pub fn v3(&self, path: &str) -> Option<&Document> {
        let slot = self.v3.get(path)?;
        if slot.document.get().is_none() {
            let mut document = Document::of(&self.v3_document(path, slot)?);
            if let Some(hash) = slot.definitions_hash() {
                document.hash = hash;
            }
            let _ = slot.document.set(document);
        }
        slot.document.get()
    }

    fn v3_document(&self, path: &str, slot: &Slot) -> Option<Value> {
        let kinds = if slot.rows.is_empty() { &self.kinds } else { &slot.rows };
        v3::document(kinds, path)
    }
}

impl Document {
    fn of(value: &Value) -> Document {
        Document::from_bytes(serde_json::to_vec(value).expect("a JSON value writes to memory"))
    }

    fn from_bytes(bytes: Vec<u8>) -> Document {
        let hash = hex(&Sha512::digest(&bytes));
        Document { bytes, hash }
    }
}

fn hex(hash: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let digit = |value: u8| char::from(DIGITS[usize::from(value & 15)]);
    hash.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

/// The groups with their versions, in the order of discovery.
fn group_versions(kinds: &[Arc<Kind>]) -> Vec<(&str, Vec<&str>)> {
    priorities::group_versions(kinds.iter().map(Arc::as_ref))
}

/// `Rbac` + `Authorization` of `rbac.authorization.k8s.io`; `Core` of the core group.
fn group_identifier(group: &str) -> String {
    if group.is_empty() {
        return "Core".into();
    }
    group.strip_suffix(".k8s.io").unwrap_or(group).split(['.', '-']).map(capitalized).collect()
}

fn capitalized(word: &str) -> String {
    let mut chars = word.chars();
    let first = chars.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(chars).collect()
}

/// `rbacAuthorization_v1`
fn tag(group: &str, version: Option<&str>) -> String {
    let identifier = group_identifier(group);
    let mut chars = identifier.chars();
    let first = chars.next().map(|c| c.to_ascii_lowercase());
    let group: String = first.into_iter().chain(chars).collect();
    match version {
        Some(version) => format!("{group}_{version}"),
        None => group,
    }
}

fn base_path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") }
}
