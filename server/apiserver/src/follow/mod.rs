//! Keeps deciders up to date from the registry's caches: what RBAC, the Node authorizer and bootstrap tokens
//! know comes from here. The caches hold every object already, so nothing is kept a second time.

mod mentions;

use std::sync::Arc;

use ferry_api::GroupResource;
use ferry_auth::authenticate::{BootstrapTokens, bootstrap_token};
use ferry_auth::authorize::rbac::{self, Change as RbacChange};
use ferry_auth::authorize::{NodeAuthorizer, Rbac};
use ferry_registry::Registry;
use ferry_registry::cache::{Cache, Change, Entry, Filter, Watcher};
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
                        if let Some(pod) = mentions::changed_pod(entry, previous) {
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
