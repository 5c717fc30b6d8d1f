//! What a resource is called: group, version, kind, name and namespace.

use std::cmp::Ordering;
use std::fmt::{self, Display};

use serde::Deserialize;

/// The namespace of what lives in none.
const NOT_A_NAMESPACE: &str = "_non_namespaceable_";

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Gvk {
    pub group: String,
    pub version: String,
    pub kind: String,
}

impl Gvk {
    pub fn new(api_version: &str, kind: &str) -> Gvk {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Gvk { group: group.into(), version: version.into(), kind: kind.into() }
    }

    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Whether `selector` selects this; what it leaves empty matches everything.
    pub fn is_selected_by(&self, selector: &Gvk) -> bool {
        let fits = |wanted: &str, own: &str| wanted.is_empty() || wanted == own;
        fits(&selector.group, &self.group)
            && fits(&selector.version, &self.version)
            && fits(&selector.kind, &self.kind)
    }

    /// The order in which field specs are gone through: kinds that others refer to come first.
    pub fn order(&self, other: &Gvk) -> Ordering {
        let rank = |gvk: &Gvk| kind_rank(&gvk.kind, &FIRST, &LAST);
        rank(self).cmp(&rank(other)).then_with(|| self.sort_text().cmp(&other.sort_text()))
    }

    /// Group, version and kind with something in the place of what is missing.
    pub fn sort_text(&self) -> String {
        let or =
            |text: &str, missing: &str| if text.is_empty() { missing.to_owned() } else { text.to_owned() };
        format!("{}_{}_{}", or(&self.group, "~G"), or(&self.version, "~V"), or(&self.kind, "~K"))
    }
}

impl Display for Gvk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or =
            |text: &str, missing: &str| if text.is_empty() { missing.to_owned() } else { text.to_owned() };
        write!(
            f,
            "{}.{}.{}",
            or(&self.kind, "[noKind]"),
            or(&self.version, "[noVer]"),
            or(&self.group, "[noGrp]")
        )
    }
}

/// Kinds that are put first, and kinds that are put last.
pub const FIRST: [&str; 22] = [
    "Namespace",
    "ResourceQuota",
    "StorageClass",
    "CustomResourceDefinition",
    "ServiceAccount",
    "PodSecurityPolicy",
    "Role",
    "ClusterRole",
    "RoleBinding",
    "ClusterRoleBinding",
    "ConfigMap",
    "Secret",
    "Endpoints",
    "Service",
    "LimitRange",
    "PriorityClass",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Deployment",
    "StatefulSet",
    "CronJob",
    "PodDisruptionBudget",
];
pub const LAST: [&str; 2] = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

/// Negative for what stands first, positive for what stands last.
pub fn kind_rank(kind: &str, first: &[impl AsRef<str>], last: &[impl AsRef<str>]) -> i64 {
    if let Some(at) = last.iter().position(|other| other.as_ref() == kind) {
        return 1 + at as i64;
    }
    match first.iter().position(|other| other.as_ref() == kind) {
        Some(at) => at as i64 - first.len() as i64,
        None => 0,
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Id {
    pub gvk: Gvk,
    pub name: String,
    pub namespace: String,
    /// The kind is known to live in no namespace.
    pub cluster: bool,
}

impl Id {
    /// The namespace for comparisons: never empty.
    pub fn effective_namespace(&self) -> &str {
        match self.namespace.as_str() {
            _ if self.cluster => NOT_A_NAMESPACE,
            "" => "default",
            own => own,
        }
    }

    pub fn same_namespace(&self, other: &Id) -> bool {
        self.effective_namespace() == other.effective_namespace()
    }

    pub fn same_name(&self, other: &Id) -> bool {
        self.name == other.name && self.gvk == other.gvk
    }

    /// Same kind, name and namespace.
    pub fn is(&self, other: &Id) -> bool {
        self.same_namespace(other) && self.same_name(other)
    }

    pub fn is_selected_by(&self, selector: &Id) -> bool {
        (selector.name.is_empty() || selector.name == self.name)
            && (selector.namespace.is_empty() || selector.same_namespace(self))
            && self.gvk.is_selected_by(&selector.gvk)
    }
}

impl Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or =
            |text: &str, missing: &str| if text.is_empty() { missing.to_owned() } else { text.to_owned() };
        write!(f, "{}/{}.{}", self.gvk, or(&self.name, "[noName]"), or(&self.namespace, "[noNs]"))
    }
}
