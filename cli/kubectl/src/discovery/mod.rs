//! Which kinds the server has. There is no table of kinds in this crate: everything that names a
//! resource is looked up in what discovery returned.

mod cache;
mod fetch;
mod mapper;

pub use cache::Cache;
pub use fetch::fetch;

use serde::{Deserialize, Serialize};

/// One resource of one version, as discovery describes it.
#[derive(Default, Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Resource {
    pub group: String,
    pub version: String,
    /// The plural name, as it stands in paths.
    pub name: String,
    pub singular: String,
    pub kind: String,
    pub namespaced: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verbs: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub short_names: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subresources: Vec<String>,
}

/// A group with its versions, the preferred one first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    pub name: String,
    pub versions: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Discovery {
    pub groups: Vec<Group>,
    /// In the server's order: by group, then by version.
    pub resources: Vec<Resource>,
}

impl Resource {
    pub fn group_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `deployments.apps`, or `pods` for the core group.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.name.clone() } else { format!("{}.{}", self.name, self.group) }
    }

    /// `deployment.apps`, as messages and `-o name` have it.
    pub fn kind_name(&self) -> String {
        let kind = self.kind.to_lowercase();
        if self.group.is_empty() { kind } else { format!("{kind}.{}", self.group) }
    }

    /// The path of the collection, in a namespace or across all.
    pub fn path(&self, namespace: &str) -> String {
        let root = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        if self.namespaced && !namespace.is_empty() {
            format!("{root}/namespaces/{namespace}/{}", self.name)
        } else {
            format!("{root}/{}", self.name)
        }
    }

    pub fn object_path(&self, namespace: &str, name: &str) -> String {
        format!("{}/{name}", self.path(namespace))
    }

    pub fn supports(&self, verb: &str) -> bool {
        self.verbs.iter().any(|known| known == verb)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_group_and_scope() {
        let mut resource = Resource {
            group: String::new(),
            version: "v1".to_owned(),
            name: "pods".to_owned(),
            singular: "pod".to_owned(),
            kind: "Pod".to_owned(),
            namespaced: true,
            verbs: Vec::new(),
            short_names: Vec::new(),
            categories: Vec::new(),
            subresources: Vec::new(),
        };
        assert_eq!(resource.object_path("default", "web"), "/api/v1/namespaces/default/pods/web");
        assert_eq!(resource.path(""), "/api/v1/pods");
        resource.group = "apps".to_owned();
        assert_eq!(resource.path("x"), "/apis/apps/v1/namespaces/x/pods");
        assert_eq!(resource.kind_name(), "pod.apps");
    }
}
