//! The kind rows: every resource the API serves, in every version. Routes, discovery, OpenAPI,
//! printing and the contract tests are read off them. A custom resource adds rows at run time.

pub mod priorities;
mod rows;

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::{self, Display};
use std::sync::{Arc, LazyLock};

use crate::codec::Codec;

pub use rows::rows as builtin_rows;

type Text = Cow<'static, str>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionKind {
    pub group: Text,
    pub version: Text,
    pub kind: Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupResource {
    pub group: Text,
    pub resource: Text,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Cluster,
    Namespaced,
}

/// One version of one resource.
#[derive(Debug, Clone)]
pub struct Kind {
    pub group: Text,
    pub version: Text,
    pub kind: Text,
    pub plural: Text,
    pub singular: Text,
    pub list_kind: Text,
    pub scope: Scope,
    pub verbs: Vec<Text>,
    pub short_names: Vec<Text>,
    pub categories: Vec<Text>,
    pub subresources: Vec<Subresource>,
    /// Served by default, without `--runtime-config`.
    pub by_default: bool,
    /// The store prefix below `/registry/`, shared by all versions of the resource.
    pub storage_prefix: Text,
    /// The version in which objects are stored and kept in the watch cache.
    pub storage_version: GroupVersionKind,
    /// The version that discovery's storage hash names, where it differs from the one stored.
    pub hash_version: Option<Text>,
    /// How objects are decoded and encoded.
    pub codec: Codec,
    /// A delete returns the object instead of a Status.
    pub returns_deleted: bool,
    /// Computed for each request from measurements of the nodes; nothing is stored.
    pub is_resource_metrics: bool,
    /// The warning for clients of a deprecated version.
    pub deprecation: Option<Text>,
    /// Names the state of the definition that made the row; a built-in row never changes.
    pub generation: Option<Text>,
    /// Its definition is being deleted: objects can be deleted but not created.
    pub terminating: bool,
}

#[derive(Debug, Clone)]
pub struct Subresource {
    pub name: Text,
    pub kind: GroupVersionKind,
    pub verbs: Vec<Text>,
}

/// The built-in rows, in the order discovery lists them.
pub fn builtin() -> &'static [Arc<Kind>] {
    static BUILTIN: LazyLock<Vec<Arc<Kind>>> =
        LazyLock::new(|| rows::rows().into_iter().map(Arc::new).collect());
    &BUILTIN
}

/// The built-in row of a kind in one version.
pub fn builtin_row(gvk: &GroupVersionKind) -> Option<&'static Arc<Kind>> {
    builtin().iter().find(|row| row.group == gvk.group && row.version == gvk.version && row.kind == gvk.kind)
}

/// Whether the group's kinds are types of the server's own, and not what definitions declare.
pub fn is_builtin_group(group: &str) -> bool {
    static GROUPS: LazyLock<HashSet<&str>> = LazyLock::new(|| {
        let made_for_answers = ["meta.k8s.io"];
        builtin().iter().map(|row| row.group.as_ref()).chain(made_for_answers).collect()
    });
    GROUPS.contains(group)
}

const ALL_VERBS: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

fn texts(words: &[&'static str]) -> Vec<Text> {
    words.iter().map(|word| Text::Borrowed(*word)).collect()
}

/// Starts a row; what most kinds have is the default.
fn kind(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    scope: Scope,
) -> Kind {
    let gvk = GroupVersionKind::new(group, version, kind);
    Kind {
        group: group.into(),
        version: version.into(),
        kind: kind.into(),
        plural: plural.into(),
        singular: kind.to_ascii_lowercase().into(),
        list_kind: format!("{kind}List").into(),
        scope,
        verbs: texts(ALL_VERBS),
        short_names: Vec::new(),
        categories: Vec::new(),
        subresources: Vec::new(),
        by_default: true,
        storage_prefix: plural.into(),
        codec: Codec::builtin(&gvk),
        storage_version: gvk,
        hash_version: None,
        returns_deleted: false,
        is_resource_metrics: false,
        deprecation: None,
        generation: None,
        terminating: false,
    }
}

impl Kind {
    fn verbs(mut self, verbs: &[&'static str]) -> Kind {
        self.verbs = texts(verbs);
        self
    }

    fn short(mut self, names: &[&'static str]) -> Kind {
        self.short_names = texts(names);
        self
    }

    fn categories(mut self, names: &[&'static str]) -> Kind {
        self.categories = texts(names);
        self
    }

    /// A subresource; `version` "" means the parent's own group and version.
    fn sub(
        mut self,
        name: &'static str,
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        verbs: &[&'static str],
    ) -> Kind {
        let kind = match version {
            "" => GroupVersionKind {
                group: self.group.clone(),
                version: self.version.clone(),
                kind: kind.into(),
            },
            _ => GroupVersionKind::new(group, version, kind),
        };
        self.subresources.push(Subresource { name: name.into(), kind, verbs: texts(verbs) });
        self
    }

    fn status(mut self) -> Kind {
        let kind = self.gvk();
        self.subresources.push(Subresource {
            name: "status".into(),
            kind,
            verbs: texts(&["get", "patch", "update"]),
        });
        self
    }

    fn scale(self) -> Kind {
        self.sub("scale", "autoscaling", "v1", "Scale", &["get", "patch", "update"])
    }

    /// Whoever uses it is told since and until when it is served, and what to use instead.
    fn deprecated(mut self, since: &str) -> Kind {
        let version = match &*self.group {
            "" => self.version.to_string(),
            group => format!("{group}/{}", self.version),
        };
        self.deprecation = Some(format!("{version} {} is deprecated in {since}", self.kind).into());
        self
    }

    /// Alpha and beta versions: served when `--runtime-config` asks.
    fn on_request(mut self) -> Kind {
        self.by_default = false;
        self
    }

    fn stored_at(mut self, prefix: &'static str) -> Kind {
        self.storage_prefix = prefix.into();
        self
    }

    fn stored_as(mut self, group: &'static str, version: &'static str) -> Kind {
        self.storage_version =
            GroupVersionKind { group: group.into(), version: version.into(), kind: self.kind.clone() };
        self
    }

    fn hashed_as(mut self, version: &'static str) -> Kind {
        self.hash_version = Some(version.into());
        self
    }

    fn returns_deleted(mut self) -> Kind {
        self.returns_deleted = true;
        self
    }

    fn resource_metrics(mut self) -> Kind {
        self.is_resource_metrics = true;
        self.verbs(&["get", "list"])
    }

    pub fn gvk(&self) -> GroupVersionKind {
        GroupVersionKind { group: self.group.clone(), version: self.version.clone(), kind: self.kind.clone() }
    }

    pub fn group_resource(&self) -> GroupResource {
        GroupResource { group: self.group.clone(), resource: self.plural.clone() }
    }

    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    pub fn is_namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }

    pub fn has_verb(&self, verb: &str) -> bool {
        self.verbs.iter().any(|v| v == verb)
    }

    /// The verbs that discovery lists.
    pub fn discovered_verbs(&self) -> impl Iterator<Item = &Text> {
        let ends = |verb: &&Text| !matches!(verb.as_ref(), "create" | "patch" | "update");
        self.verbs.iter().filter(move |verb| !self.terminating || ends(verb))
    }

    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|sub| sub.name == name)
    }

    pub fn is_storage_version(&self) -> bool {
        self.storage_version.group == self.group && self.storage_version.version == self.version
    }

    /// What nobody can create (resource metrics, component statuses) is made when somebody asks.
    pub fn is_stored(&self) -> bool {
        !self.is_virtual() && self.has_verb("create")
    }

    /// A kind that only answers (reviews, bindings): nothing is stored.
    pub fn is_virtual(&self) -> bool {
        !self.has_verb("get")
    }
}

impl GroupVersionKind {
    pub fn new(group: impl Into<Text>, version: impl Into<Text>, kind: impl Into<Text>) -> GroupVersionKind {
        GroupVersionKind { group: group.into(), version: version.into(), kind: kind.into() }
    }

    /// From `apps/v1` or `v1`.
    pub fn from_api_version(api_version: &str, kind: &str) -> GroupVersionKind {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        GroupVersionKind::new(group.to_string(), version.to_string(), kind.to_string())
    }

    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }
}

pub fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_string() } else { format!("{group}/{version}") }
}

impl GroupResource {
    pub fn new(group: impl Into<Text>, resource: impl Into<Text>) -> GroupResource {
        GroupResource { group: group.into(), resource: resource.into() }
    }
}

impl Display for GroupVersionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, Kind={}", self.api_version(), self.kind)
    }
}

impl Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_field_rows() {
        for row in builtin() {
            assert_eq!(row.codec.typed().map(|schema| schema.root().kinds.contains(&row.gvk())), Some(true));
        }
    }
}
