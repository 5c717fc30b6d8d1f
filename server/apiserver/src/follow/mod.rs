//! Keeps deciders up to date from the registry's caches: what RBAC, the Node authorizer and bootstrap tokens
//! know comes from here. The caches hold every object already, so nothing is kept a second time.

use std::sync::{Arc, LazyLock};

use ferry_api::read::members;
use ferry_api::{GroupResource, GroupVersionKind, kinds};
use ferry_auth::authenticate::{BootstrapTokens, bootstrap_token};
use ferry_auth::authorize::rbac::{self, Change as RbacChange};
use ferry_auth::authorize::{NodeAuthorizer, Rbac};
use ferry_registry::Registry;
use ferry_registry::cache::{Cache, Change, Entry, Filter, Watcher};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;

/// How the objects of one resource reach a decider.
pub struct Feed<D> {
    pub group: &'static str,
    pub plural: &'static str,
    /// Takes over all changes of one moment together.
    pub apply: fn(&D, &mut dyn Iterator<Item = Delta<'_>>),
}

/// One object that came or changed, or went.
pub enum Delta<'a> {
    Set { entry: &'a Entry, previous: Option<&'a Entry> },
    Gone(&'a Entry),
}

/// Tells the decider what there is, then every change for as long as the server lives.
pub fn follow<D: Send + Sync + 'static>(registry: &Registry, decider: &Arc<D>, feeds: &[Feed<D>]) {
    for feed in feeds {
        let resource = GroupResource::new(feed.group, feed.plural);
        let Some(resource) = registry.resource(&resource) else { continue };
        let (cache, decider, apply) = (resource.cache.clone(), decider.clone(), feed.apply);
        let (snapshot, _, watcher) = cache.watch_now(Filter::default());
        apply(&decider, &mut snapshot.values().map(|entry| Delta::Set { entry, previous: None }));
        let known = snapshot.values().cloned().collect();
        tokio::spawn(follow_one(cache, watcher, known, decider, apply));
    }
}

async fn follow_one<D>(
    cache: Arc<Cache>,
    mut watcher: Watcher,
    mut known: Vec<Arc<Entry>>,
    decider: Arc<D>,
    apply: fn(&D, &mut dyn Iterator<Item = Delta<'_>>),
) {
    loop {
        match watcher.next().await {
            Ok(delivered) => {
                let mut deltas = delivered.iter().map(|(change, event)| match change {
                    Change::Deleted => Delta::Gone(&event.entry),
                    Change::Added | Change::Modified => {
                        Delta::Set { entry: &event.entry, previous: event.previous.as_deref() }
                    }
                });
                apply(&decider, &mut deltas);
            }
            // The cache was filled anew: what was known and is gone has to be taken out.
            Err(_) => {
                let (snapshot, _, fresh) = cache.watch_now(Filter::default());
                let gone = known.iter().filter(|entry| !snapshot.contains_key(&entry.key));
                let there = snapshot.values().map(|entry| Delta::Set { entry, previous: None });
                apply(&decider, &mut gone.map(|entry| Delta::Gone(entry)).chain(there));
                known = snapshot.values().cloned().collect();
                watcher = fresh;
            }
        }
    }
}

/// An object that cannot be read decides nothing; it is the log's matter, not a request's.
fn view<T: DeserializeOwned>(entry: &Entry) -> Option<T> {
    serde_json::from_slice(&entry.json)
        .inspect_err(|error| tracing::error!(key = %entry.key, %error, "an object cannot be read"))
        .ok()
}

macro_rules! rbac_feed {
    ($plural:literal, $set:ident, $entry:ident => $removed:expr) => {
        Feed {
            group: rbac::GROUP,
            plural: $plural,
            apply: |rbac, deltas| {
                rbac.apply(deltas.filter_map(|delta| match delta {
                    Delta::Set { entry, .. } => view(entry).map(RbacChange::$set),
                    Delta::Gone($entry) => Some($removed),
                }));
            },
        }
    };
}

pub const RBAC: &[Feed<Rbac>] = &[
    rbac_feed!("roles", Role, entry => RbacChange::RemoveRole {
        namespace: entry.namespace().into(),
        name: entry.name().into(),
    }),
    rbac_feed!("clusterroles", ClusterRole, entry => RbacChange::RemoveClusterRole {
        name: entry.name().into(),
    }),
    rbac_feed!("rolebindings", RoleBinding, entry => RbacChange::RemoveRoleBinding {
        namespace: entry.namespace().into(),
        name: entry.name().into(),
    }),
    rbac_feed!("clusterrolebindings", ClusterRoleBinding, entry => RbacChange::RemoveClusterRoleBinding {
        name: entry.name().into(),
    }),
];

macro_rules! node_feed {
    ($group:literal, $plural:literal, $set:ident, $entry:ident, $node:ident => $remove:expr) => {
        Feed {
            group: $group,
            plural: $plural,
            apply: |$node, deltas| {
                for delta in deltas {
                    match delta {
                        Delta::Set { entry, .. } => {
                            if let Some(object) = view(entry) {
                                $node.$set(&object);
                            }
                        }
                        Delta::Gone($entry) => $remove,
                    }
                }
            },
        }
    };
}

pub const NODE: &[Feed<NodeAuthorizer>] = &[
    Feed {
        group: "",
        plural: "pods",
        apply: |node, deltas| {
            for delta in deltas {
                match delta {
                    Delta::Set { entry, previous } => {
                        if let Some(pod) = changed_pod(entry, previous) {
                            node.set_pod(&pod);
                        }
                    }
                    Delta::Gone(entry) => node.remove_pod(entry.namespace(), entry.name()),
                }
            }
        },
    },
    node_feed!("", "persistentvolumes", set_persistent_volume, entry, node => {
        node.remove_persistent_volume(entry.name());
    }),
    node_feed!("storage.k8s.io", "volumeattachments", set_volume_attachment, entry, node => {
        node.remove_volume_attachment(entry.name());
    }),
    node_feed!("resource.k8s.io", "resourceslices", set_resource_slice, entry, node => {
        node.remove_resource_slice(entry.name());
    }),
    node_feed!("certificates.k8s.io", "podcertificaterequests", set_pod_certificate_request, entry, node => {
        node.remove_pod_certificate_request(entry.namespace(), entry.name());
    }),
];

/// A pod without a node lets no node read anything.
fn is_bound(pod: &Entry) -> bool {
    static NODE_NAME: LazyLock<Option<usize>> = LazyLock::new(|| {
        let row = kinds::builtin_row(&GroupVersionKind::new("", "v1", "Pod"))?;
        let selectable = ferry_registry::kinds::strategy(row).selectable();
        selectable.iter().position(|field| field.field == "spec.nodeName")
    });
    NODE_NAME.is_none_or(|at| !pod.fields[at].is_empty())
}

/// What a pod lets its node read follows from its spec, from the claims made for it, and from whether it is a mirror. A
/// pod's status changes often; finding out that nothing else did is far cheaper than reading the pod.
#[derive(PartialEq)]
struct Mentions<'a> {
    spec: &'a [u8],
    annotations: Option<&'a [u8]>,
    claims: Option<&'a [u8]>,
    extended_claim: Option<&'a [u8]>,
}

impl<'a> Mentions<'a> {
    fn of(pod: &'a Entry) -> Option<Mentions<'a>> {
        let [metadata, spec, status] = members(&pod.json, ["metadata", "spec", "status"])?;
        let [annotations] = members(metadata?, ["annotations"])?;
        let claims = ["resourceClaimStatuses", "extendedResourceClaimStatus"];
        let [claims, extended_claim] = members(status.unwrap_or(b"{}"), claims)?;
        Some(Mentions { spec: spec?, annotations, claims, extended_claim })
    }

    fn read(&self, pod: &Entry) -> Result<Pod, serde_json::Error> {
        fn part<T: DeserializeOwned>(json: Option<&[u8]>) -> Result<Option<T>, serde_json::Error> {
            json.map(serde_json::from_slice).transpose()
        }
        Ok(Pod {
            metadata: ObjectMeta {
                name: Some(pod.name().to_string()),
                namespace: Some(pod.namespace().to_string()),
                annotations: part(self.annotations)?,
                ..ObjectMeta::default()
            },
            spec: part(Some(self.spec))?,
            status: Some(PodStatus {
                resource_claim_statuses: part(self.claims)?,
                extended_resource_claim_status: part(self.extended_claim)?,
                ..PodStatus::default()
            }),
        })
    }
}

/// A pod whose node may read something else than before: it was bound, or mentions something else.
fn changed_pod(entry: &Entry, previous: Option<&Entry>) -> Option<Pod> {
    if !is_bound(entry) {
        return None;
    }
    // Written by others, in a form of their own.
    let Some(mentions) = Mentions::of(entry) else { return view(entry) };
    match previous.filter(|previous| is_bound(previous)) {
        Some(previous) if Mentions::of(previous).as_ref() == Some(&mentions) => None,
        _ => mentions
            .read(entry)
            .inspect_err(|error| tracing::error!(key = %entry.key, %error, "a pod cannot be read"))
            .ok(),
    }
}

pub const BOOTSTRAP_TOKENS: &[Feed<BootstrapTokens>] = &[Feed {
    group: "",
    plural: "secrets",
    apply: |tokens, deltas| {
        let is_token = |entry: &Entry| {
            entry.namespace() == bootstrap_token::SECRET_NAMESPACE
                && entry.name().starts_with(bootstrap_token::SECRET_NAME_PREFIX)
        };
        for delta in deltas {
            match delta {
                Delta::Set { entry, .. } if is_token(entry) => {
                    if let Some(secret) = view(entry) {
                        tokens.set(&secret);
                    }
                }
                Delta::Gone(entry) if is_token(entry) => tokens.remove(entry.name()),
                Delta::Set { .. } | Delta::Gone(_) => {}
            }
        }
    },
}];

#[cfg(test)]
mod tests {
    use super::*;
    use ferry_registry::cache::peek::Paths;
    use ferry_store::Revision;
    use serde_json::{Value, json};

    fn pod(spec: Value, status: Value) -> Entry {
        let row = kinds::builtin_row(&GroupVersionKind::new("", "v1", "Pod")).expect("a row");
        let paths = Paths::new(ferry_registry::kinds::strategy(row).selectable());
        let stored =
            json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec, "status": status}).to_string();
        Entry::from_stored("ns/p".into(), &stored.into(), Revision(1), &paths).expect("JSON")
    }

    #[test]
    fn a_pod_is_read_when_it_is_bound_or_mentions_something_else() {
        let spec = |node: &str| json!({"containers": [], "nodeName": node, "serviceAccountName": "a"});
        let pending = pod(spec(""), json!({}));
        let bound = pod(spec("n"), json!({"phase": "Pending"}));
        let running = pod(spec("n"), json!({"phase": "Running"}));
        let claiming =
            pod(spec("n"), json!({"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "made"}]}));

        assert!(changed_pod(&pending, None).is_none(), "no node reads it");
        let read = changed_pod(&bound, Some(&pending)).expect("it was bound");
        let whole: Pod = view(&bound).expect("a pod");
        let metadata = ObjectMeta { resource_version: None, ..whole.metadata };
        assert_eq!((read.spec, read.metadata), (whole.spec, metadata));
        assert!(changed_pod(&bound, None).is_some(), "it was there when the server started");
        assert!(changed_pod(&running, Some(&bound)).is_none(), "only its status changed");
        let read =
            changed_pod(&claiming, Some(&running)).and_then(|pod| pod.status).expect("a claim was made");
        let claims = read.resource_claim_statuses.expect("claims");
        assert_eq!(claims[0].resource_claim_name.as_deref(), Some("made"));
    }
}
