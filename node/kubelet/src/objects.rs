//! Objects a pod refers to: ConfigMaps and Secrets, each watched while some
//! pod on this node uses it, so that a change reaches running pods at once and
//! an unchanged object costs nothing.
//!
//! The node may read only what its pods name, so each object has a watch of
//! its own.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferry_client::informer::Object;
use ferry_client::{CancellationToken, Informer, Informers, NamespacedName, Selection};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use parking_lot::Mutex;

use crate::pod;

/// A pod whose object does not come within this is told so, and tries again.
const FIRST_READ: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to sync {kind} cache for {key}: timed out waiting for the condition")]
    Timeout { kind: &'static str, key: NamespacedName },
    #[error("{kind} {key} is not known to this pod")]
    NotReferenced { kind: &'static str, key: NamespacedName },
}

/// Called with the uids of pods whose object changed.
pub type Wake = Arc<dyn Fn(&HashSet<String>) + Send + Sync>;

pub struct Watched<K> {
    kind: &'static str,
    client: Option<kube::Client>,
    shutdown: CancellationToken,
    wake: Wake,
    entries: Mutex<HashMap<NamespacedName, WatchedObject<K>>>,
}

struct WatchedObject<K> {
    users: Arc<Mutex<HashSet<String>>>,
    /// Whether anybody was told of the object, or that it did not come. Until then its users wait, and need no
    /// waking when it does.
    told: Arc<AtomicBool>,
    informer: Informer<K>,
    stop: CancellationToken,
}

impl<K> Watched<K>
where
    K: Object<DynamicType = (), Scope = NamespaceResourceScope>
        + kube::Resource<Scope = kube::core::NamespaceResourceScope>,
{
    pub fn new(
        kind: &'static str,
        client: Option<kube::Client>,
        shutdown: CancellationToken,
        wake: Wake,
    ) -> Self {
        Self { kind, client, shutdown, wake, entries: Mutex::default() }
    }

    /// Says which objects a pod uses; an empty set when it is gone.
    pub fn set_used(&self, uid: &str, names: &BTreeSet<NamespacedName>) {
        let Some(client) = &self.client else { return };
        let mut entries = self.entries.lock();
        entries.retain(|key, entry| {
            if names.contains(key) {
                return true;
            }
            let mut users = entry.users.lock();
            users.remove(uid);
            if users.is_empty() {
                entry.stop.cancel();
            }
            !users.is_empty()
        });
        for key in names {
            let entry = entries.entry(key.clone()).or_insert_with(|| self.start(client, key));
            entry.users.lock().insert(uid.into());
        }
    }

    fn start(&self, client: &kube::Client, key: &NamespacedName) -> WatchedObject<K> {
        let stop = self.shutdown.child_token();
        let informers = Informers::new(client.clone(), stop.clone());
        let fields = Some(format!("metadata.name={}", key.name));
        let informer = informers.in_namespace(&key.namespace, Selection { fields, labels: None });
        let users: Arc<Mutex<HashSet<String>>> = Arc::default();
        let told: Arc<AtomicBool> = Arc::default();
        let (wake, woken, is_told) = (self.wake.clone(), users.clone(), told.clone());
        informer.handle(move |_| {
            if is_told.load(Ordering::SeqCst) {
                wake(&woken.lock());
            }
        });
        WatchedObject { users, told, informer, stop }
    }

    /// The object, or `None` if it does not exist.
    pub async fn get(&self, key: &NamespacedName) -> Result<Option<Arc<K>>, Error> {
        let entry = self.entries.lock().get(key).map(|entry| (entry.informer.clone(), entry.told.clone()));
        let Some((informer, told)) = entry else {
            return Err(Error::NotReferenced { kind: self.kind, key: key.clone() });
        };
        let came = informer.has_synced() || tokio::time::timeout(FIRST_READ, informer.synced()).await.is_ok();
        // before it is read: a change that finds this unset is in what is read
        told.store(true, Ordering::SeqCst);
        if !came {
            return Err(Error::Timeout { kind: self.kind, key: key.clone() });
        }
        Ok(informer.get(key))
    }
}

pub struct Objects {
    pub config_maps: Watched<ConfigMap>,
    pub secrets: Watched<Secret>,
}

impl Objects {
    pub fn new(client: Option<kube::Client>, shutdown: CancellationToken, wake: Wake) -> Self {
        Self {
            config_maps: Watched::new("configmap", client.clone(), shutdown.clone(), wake.clone()),
            secrets: Watched::new("secret", client, shutdown, wake),
        }
    }

    pub fn register(&self, pod: &Pod) {
        self.config_maps.set_used(pod::uid(pod), &config_map_names(pod));
        self.secrets.set_used(pod::uid(pod), &secret_names(pod));
    }

    pub fn unregister(&self, uid: &str) {
        self.config_maps.set_used(uid, &BTreeSet::new());
        self.secrets.set_used(uid, &BTreeSet::new());
    }
}

pub fn config_map_names(pod: &Pod) -> BTreeSet<NamespacedName> {
    let mut names = BTreeSet::new();
    for volume in pod::spec(pod).volumes.iter().flatten() {
        names.extend(volume.config_map.iter().map(|source| source.name.clone()));
        for source in volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten()) {
            names.extend(source.config_map.iter().map(|source| source.name.clone()));
        }
    }
    for each in pod::containers(pod) {
        for source in each.container.env_from.iter().flatten() {
            names.extend(source.config_map_ref.iter().map(|source| source.name.clone()));
        }
        for variable in each.container.env.iter().flatten() {
            let reference = variable.value_from.as_ref().and_then(|from| from.config_map_key_ref.as_ref());
            names.extend(reference.map(|reference| reference.name.clone()));
        }
    }
    in_namespace(pod, names)
}

pub fn secret_names(pod: &Pod) -> BTreeSet<NamespacedName> {
    let mut names = BTreeSet::new();
    for reference in pod::spec(pod).image_pull_secrets.iter().flatten() {
        names.insert(reference.name.clone());
    }
    for volume in pod::spec(pod).volumes.iter().flatten() {
        names.extend(volume.secret.iter().filter_map(|source| source.secret_name.clone()));
        for source in volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten()) {
            names.extend(source.secret.iter().map(|source| source.name.clone()));
        }
    }
    for each in pod::containers(pod) {
        for source in each.container.env_from.iter().flatten() {
            names.extend(source.secret_ref.iter().map(|source| source.name.clone()));
        }
        for variable in each.container.env.iter().flatten() {
            let reference = variable.value_from.as_ref().and_then(|from| from.secret_key_ref.as_ref());
            names.extend(reference.map(|reference| reference.name.clone()));
        }
    }
    in_namespace(pod, names)
}

fn in_namespace(pod: &Pod, names: BTreeSet<String>) -> BTreeSet<NamespacedName> {
    let named = names.into_iter().filter(|name| !name.is_empty());
    named.map(|name| NamespacedName::new(pod::namespace(pod), name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_reference_of_a_pod_is_found() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "ns"},
            "spec": {
                "imagePullSecrets": [{"name": "pull"}],
                "volumes": [
                    {"name": "a", "configMap": {"name": "cm-volume"}},
                    {"name": "b", "secret": {"secretName": "s-volume"}},
                    {"name": "c", "projected": {"sources": [{"configMap": {"name": "cm-projected"}}, {"secret": {"name": "s-projected"}}]}},
                ],
                "initContainers": [{"name": "i", "envFrom": [{"configMapRef": {"name": "cm-from"}}, {"secretRef": {"name": "s-from"}}]}],
                "containers": [{"name": "c", "env": [
                    {"name": "x", "valueFrom": {"configMapKeyRef": {"name": "cm-key", "key": "k"}}},
                    {"name": "y", "valueFrom": {"secretKeyRef": {"name": "s-key", "key": "k"}}},
                ]}],
            },
        }))
        .expect("the pod is well formed");
        let shown = |names: BTreeSet<NamespacedName>| -> Vec<String> {
            names.iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            shown(config_map_names(&pod)),
            ["ns/cm-from", "ns/cm-key", "ns/cm-projected", "ns/cm-volume"]
        );
        assert_eq!(
            shown(secret_names(&pod)),
            ["ns/pull", "ns/s-from", "ns/s-key", "ns/s-projected", "ns/s-volume"]
        );
    }
}
