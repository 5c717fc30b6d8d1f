//! The key of an object within its kind.

use std::fmt;

use kube::Resource;

/// Namespace and name; the namespace is empty for cluster-scoped kinds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespacedName {
    pub namespace: String,
    pub name: String,
}

impl NamespacedName {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        NamespacedName { namespace: namespace.into(), name: name.into() }
    }

    pub fn cluster(name: impl Into<String>) -> Self {
        NamespacedName::new("", name)
    }

    pub fn of<K: Resource>(object: &K) -> Self {
        let meta = object.meta();
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        NamespacedName { namespace: text(&meta.namespace), name: text(&meta.name) }
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// An object's resourceVersion as the store's revision. Ferry and etcd both make it a plain
/// number; a server that does otherwise only loses its causes in the trace.
pub fn revision<K: Resource>(object: &K) -> Option<i64> {
    object.meta().resource_version.as_deref()?.parse().ok()
}
