//! The custom resource: a page and how many pods serve it. Version v1alpha1 called the page's text otherwise.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::crd::{MergeError, merge_crds};
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub const GROUP: &str = "example.dev";
/// More than this the validating webhook refuses.
pub const MOST_REPLICAS: i32 = 3;

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "example.dev", version = "v1", kind = "Site", namespaced, status = "SiteStatus")]
#[kube(printcolumn = r#"{"name":"Ready","type":"integer","jsonPath":".status.readyReplicas"}"#)]
pub struct SiteSpec {
    /// What the page says.
    pub message: String,
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub replicas: i32,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SiteStatus {
    pub observed_generation: i64,
    pub ready_replicas: i32,
    /// The operator's pod that wrote this.
    pub reconciled_by: String,
}

/// As it was first published.
pub mod v1alpha1 {
    use super::{CustomResource, Deserialize, JsonSchema, Serialize, SiteStatus, one};

    #[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
    #[kube(group = "example.dev", version = "v1alpha1", kind = "Site", namespaced, status = "SiteStatus")]
    pub struct SiteSpec {
        /// What the page says.
        pub text: String,
        #[serde(default = "one")]
        #[schemars(range(min = 0))]
        pub replicas: i32,
    }
}

fn one() -> i32 {
    1
}

/// Both versions, of which v1 is stored.
pub fn definition() -> Result<CustomResourceDefinition, MergeError> {
    merge_crds(vec![Site::crd(), v1alpha1::Site::crd()], "v1")
}

/// Why the validating webhook refuses a site.
pub fn objection(site: &Site) -> Option<String> {
    if site.spec.replicas > MOST_REPLICAS {
        return Some(format!("a site has at most {MOST_REPLICAS} replicas"));
    }
    site.spec.message.trim().is_empty().then(|| "a site has something to say".into())
}

/// The object in another version: the page's text moves from one field to the other.
pub fn convert(mut object: Value, version: &str) -> Result<Value, String> {
    let (from, to) = match version.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix('/')) {
        Some("v1") => ("text", "message"),
        Some("v1alpha1") => ("message", "text"),
        _ => return Err(format!("there is no version {version}")),
    };
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
        && let Some(words) = spec.remove(from)
    {
        spec.insert(to.into(), words);
    }
    object["apiVersion"] = version.into();
    Ok(object)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_conversion_there_and_back_changes_nothing() {
        let site = json!({
            "apiVersion": "example.dev/v1", "kind": "Site",
            "metadata": {"name": "a"}, "spec": {"message": "hello", "replicas": 2},
        });
        let older = convert(site.clone(), "example.dev/v1alpha1").unwrap();
        assert_eq!(older["spec"], json!({"text": "hello", "replicas": 2}));
        assert_eq!(convert(older, "example.dev/v1").unwrap(), site);
        assert!(convert(site, "example.dev/v2").is_err());
    }

    #[test]
    fn large_and_silent_sites_are_refused() {
        let site = |message: &str, replicas| Site::new("a", SiteSpec { message: message.into(), replicas });
        assert_eq!(objection(&site("hello", MOST_REPLICAS)), None);
        assert!(objection(&site("hello", MOST_REPLICAS + 1)).is_some());
        assert!(objection(&site(" ", 1)).is_some());
    }

    #[test]
    fn the_definition_serves_two_versions_and_stores_one() {
        let versions = definition().unwrap().spec.versions;
        let mut stored: Vec<_> = versions.iter().map(|version| (&*version.name, version.storage)).collect();
        stored.sort_unstable();
        assert_eq!(stored, [("v1", true), ("v1alpha1", false)]);
    }
}
