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
use std::fmt::Write;
use std::sync::{Arc, OnceLock};

pub use parts::Form;
use parts::{Base, Part};
use serde_json::Value;
use sha2::{Digest, Sha512};
use v3::Subject;

use crate::kinds::{Kind, priorities};

/// The documents of a set of kinds, each made when it is first asked for.
pub struct Documents {
    /// What is built in, of the second version.
    base: Arc<Base>,
    /// By path below `/openapi/v3/`.
    v3: BTreeMap<String, Arc<Slot>>,
}

/// A document of the third version, and what of it was asked for.
struct Slot {
    subject: Subject,
    hash: OnceLock<String>,
    document: OnceLock<Document>,
    /// Of the second version, where definitions made the rows.
    v2: Part,
}

impl Slot {
    fn about(subject: Subject) -> Slot {
        Slot { subject, hash: OnceLock::new(), document: OnceLock::new(), v2: Part::default() }
    }

    /// The rows, where definitions made all of them.
    fn custom_rows(&self) -> Option<&[Arc<Kind>]> {
        match &self.subject {
            Subject::Version(rows) => rows.iter().all(|row| row.generation.is_some()).then_some(rows),
            Subject::Server(_) | Subject::Group(_) => None,
        }
    }

    /// Making the hash does not keep the document: the index is asked for far more often than most of what it lists.
    fn hash(&self) -> &str {
        if let Some(document) = self.document.get() {
            return &document.hash;
        }
        self.hash.get_or_init(|| self.cheap_hash().unwrap_or_else(|| self.made().hash))
    }

    fn needs_document_for_hash(&self) -> bool {
        let is_cheap = self.custom_rows().is_some() || matches!(self.subject, Subject::Group(_));
        !is_cheap && self.hash.get().is_none() && self.document.get().is_none()
    }

    /// A hash that needs no document: that of definitions changes when one of them does, that of a group's document
    /// when its name or what is said of every group does.
    fn cheap_hash(&self) -> Option<String> {
        static OF_ANY_GROUP: OnceLock<String> = OnceLock::new();
        let mut hasher = Sha512::new();
        if let Subject::Group(name) = &self.subject {
            let any =
                OF_ANY_GROUP.get_or_init(|| Document::of(&v3::document(&Subject::Group("any".into()))).hash);
            hasher.update(any);
            hasher.update(name);
            return Some(hex(&hasher.finalize()));
        }
        for row in self.custom_rows()? {
            // Names may be accepted later than asked for: they are no part of the definition's generation.
            for word in [&row.plural, &row.kind, &row.list_kind, row.generation.as_ref()?] {
                hasher.update(word.as_bytes());
                hasher.update([0]);
            }
        }
        Some(hex(&hasher.finalize()))
    }

    fn document(&self) -> &Document {
        self.document.get_or_init(|| {
            let mut document = self.made();
            if let Some(hash) = self.cheap_hash() {
                document.hash = hash;
            }
            document
        })
    }

    fn made(&self) -> Document {
        Document::of(&v3::document(&self.subject))
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
        let slot = |(path, subject): (String, Subject)| {
            let before = previous.and_then(|previous| previous.v3.get(&path));
            let slot = match before.filter(|slot| slot.subject.is_same(&subject)) {
                Some(slot) => slot.clone(),
                None => Arc::new(Slot::about(subject)),
            };
            (path, slot)
        };
        let v3: BTreeMap<String, Arc<Slot>> = v3::subjects(&kinds).into_iter().map(slot).collect();
        let is_part = |kind: &Kind| {
            let slot =
                kind.generation.as_ref().and_then(|_| v3.get(&base_path(&kind.group, &kind.version)[1..]));
            slot.is_some_and(|slot| slot.custom_rows().is_some())
        };
        let rows: Vec<Arc<Kind>> = kinds.into_iter().filter(|kind| !is_part(kind)).collect();
        let base = match previous {
            Some(previous) if previous.base.is_about(&rows, &remotes) => previous.base.clone(),
            _ => Arc::new(Base::new(rows, remotes)),
        };
        Documents { base, v3 }
    }

    /// `/openapi/v2`, as JSON or as `application/com.github.proto-openapi.spec.v2@v1.0+protobuf`. It is long where there
    /// are many definitions, and not kept.
    pub fn v2(&self, form: Form) -> Vec<u8> {
        let parts = self.v3.values().filter_map(|slot| Some((slot.custom_rows()?, &slot.v2)));
        self.base.document(form, &parts.collect::<Vec<_>>())
    }

    /// The hash of that document, without making it.
    pub fn v2_hash(&self, form: Form) -> String {
        let parts = self.v3.values().filter(|slot| slot.custom_rows().is_some());
        self.base.hash(form, &parts.map(|slot| slot.hash()).collect::<Vec<_>>())
    }

    /// `/openapi/v3`: where each document is, with its hash, so that clients can keep it for good. Hashes are kept with
    /// what they are of: one more definition costs its own, and the writing. `elsewhere` has the addresses of documents
    /// that other API servers have, by path.
    pub fn v3_index(&self, elsewhere: &BTreeMap<String, String>) -> Vec<u8> {
        // Read once for all documents whose hashes are not known yet.
        let is_made = self.v3.values().any(|slot| slot.needs_document_for_hash());
        let _kept = is_made.then(descriptions::Descriptions::get);
        let own = self.v3.iter().filter(|(path, _)| !elsewhere.contains_key(*path));
        let own = own.map(|(path, slot)| (path, format!("/openapi/v3/{path}?hash={}", slot.hash())));
        let mut addresses: Vec<(&String, String)> = own.collect();
        addresses.extend(elsewhere.iter().map(|(path, address)| (path, address.clone())));
        addresses.sort();
        let size = addresses.iter().map(|(path, address)| path.len() + address.len() + 32).sum();
        let mut index = String::with_capacity(size);
        index.push_str(r#"{"paths":{"#);
        for (number, (path, address)) in addresses.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            let (path, address) = (Value::from(path.as_str()), Value::from(address.as_str()));
            let _ = write!(index, r#"{comma}{path}:{{"serverRelativeURL":{address}}}"#);
        }
        index.push_str("}}");
        index.into_bytes()
    }

    /// The hash of a document.
    pub fn v3_hash(&self, path: &str) -> Option<&str> {
        Some(self.v3.get(path)?.hash())
    }

    /// `/openapi/v3/PATH`, as in `/openapi/v3/apis/apps/v1`.
    pub fn v3(&self, path: &str) -> Option<&Document> {
        Some(self.v3.get(path)?.document())
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
