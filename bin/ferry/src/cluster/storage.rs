//! The StorageClass that a cluster starts with, so that a claim gets a volume: directories of the node its pod runs on.
//!
//! It is made once in a cluster's life. Whoever changes or deletes it is not contradicted by the next start; that it
//! was made is written down beside the cluster's facts.

use anyhow::Context;
use ferry_api::local_volume::{CLASS, DRIVER};
use ferry_client::{Api, Client, error};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

use super::facts;

const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";
/// In the ConfigMap of the cluster's facts: the class that was made.
const MADE: &str = "storage-class";

/// Makes the class and tells of its driver, unless that was done before.
pub async fn provide(client: &Client) -> anyhow::Result<()> {
    let span = ferry_trace::span("cluster.storage");
    span.in_scope(async {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), facts::NAMESPACE);
        let map = maps.get(facts::NAME).await.context("read what was made for the cluster")?;
        if map.data.is_some_and(|data| data.contains_key(MADE)) {
            return Ok(());
        }
        let drivers: Api<CSIDriver> = Api::all(client.clone());
        created(drivers.create(&PostParams::default(), &driver()?).await)
            .context("tell of the driver of local volumes")?;
        let classes: Api<StorageClass> = Api::all(client.clone());
        let known = classes.list(&ListParams::default()).await.context("look for a default StorageClass")?;
        created(classes.create(&PostParams::default(), &class(&known.items)?).await)
            .context("make the default StorageClass")?;
        let made = Patch::Merge(json!({"data": {MADE: CLASS}}));
        let parameters = PatchParams { field_manager: Some("ferry-storage".into()), ..Default::default() };
        maps.patch(facts::NAME, &parameters, &made).await.context("write down what was made")?;
        Ok(())
    })
    .await
}

fn created<T>(result: kube::Result<T>) -> kube::Result<()> {
    match result {
        // by another server of the cluster, or by a user
        Err(error) if error::is_already_exists(&error) => Ok(()),
        result => result.map(|_| ()),
    }
}

/// The class; the default one unless the cluster has a default already, as one of an earlier version may.
fn class(known: &[StorageClass]) -> anyhow::Result<StorageClass> {
    let is_default =
        |class: &StorageClass| class.annotations().get(DEFAULT).is_some_and(|mark| mark == "true");
    let mark = if known.iter().any(is_default) { "false" } else { "true" };
    let class = json!({
        "metadata": { "name": CLASS, "annotations": { DEFAULT: mark } },
        "provisioner": DRIVER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": true,
    });
    serde_json::from_value(class).context("write the StorageClass")
}

/// Directories need no attaching, and belong to the pod's group where it has one.
fn driver() -> anyhow::Result<CSIDriver> {
    let driver = json!({
        "metadata": { "name": DRIVER },
        "spec": { "attachRequired": false, "fsGroupPolicy": "File", "volumeLifecycleModes": ["Persistent"] },
    });
    serde_json::from_value(driver).context("write the CSIDriver")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_with_a_default_class_keeps_it() {
        let first = class(&[]).unwrap();
        assert_eq!(first.annotations()[DEFAULT], "true");
        assert_eq!(first.volume_binding_mode.as_deref(), Some("WaitForFirstConsumer"));
        let mut users = first.clone();
        users.metadata.name = Some("fast".into());
        assert_eq!(class(std::slice::from_ref(&users)).unwrap().annotations()[DEFAULT], "false");
        users.annotations_mut().clear();
        assert_eq!(class(&[users]).unwrap().annotations()[DEFAULT], "true");
    }
}
