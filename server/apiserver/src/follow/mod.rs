//! Feeds RBAC, the Node authorizer and bootstrap tokens from the registry's caches, which hold all objects already, so no
//! object is in memory twice.

mod pod_references;

use std::sync::Arc;

use ferry_api::GroupResource;
use ferry_auth::authenticate::{BootstrapTokens, bootstrap_token};
use ferry_auth::authorize::rbac::{self, Change as RbacChange};
use ferry_auth::authorize::{NodeAuthorizer, Rbac};
use ferry_registry::Registry;
use ferry_registry::cache::{self, Delta, Entry, Filter};
use serde::de::DeserializeOwned;

use crate::flow_control::{self, Fairness};
use pod_references::PodChange;

/// How the objects of one resource reach a decider.
pub struct Feed<D> {
    pub group: &'static str,
    pub plural: &'static str,
    /// The one namespace whose objects count; all when it is empty.
    pub namespace: &'static str,
    /// Takes over all changes of one moment together.
    pub apply: fn(&D, &mut dyn Iterator<Item = Delta<'_>>),
}

/// Tells the decider what there is, then every change for as long as the server lives.
pub fn follow<D: Send + Sync + 'static>(registry: &Registry, decider: &Arc<D>, feeds: &[Feed<D>]) {
    for feed in feeds {
        let resource = GroupResource::new(feed.group, feed.plural);
        let Some(resource) = registry.resource(&resource) else { continue };
        let filter = match feed.namespace {
            "" => Filter::default(),
            namespace => Filter::in_namespace(namespace),
        };
        let (decider, apply) = (decider.clone(), feed.apply);
        cache::follow(&resource.cache, filter, move |deltas| apply(&decider, deltas));
    }
}

/// None for an object that cannot be read. Deciders take it for gone: it must not go on granting what it granted.
pub fn object_of<T: DeserializeOwned>(entry: &Entry) -> Option<T> {
    ferry_api::view::of_json(&entry.json)
        .inspect_err(|error| tracing::error!(key = %entry.key, %error, "an object cannot be read"))
        .ok()
}

macro_rules! rbac_feed {
    ($plural:literal, $set:ident, $entry:ident => $removed:expr) => {
        Feed {
            group: rbac::GROUP,
            plural: $plural,
            namespace: "",
            apply: |rbac, deltas| {
                let removed = |$entry: &Entry| $removed;
                rbac.apply(deltas.map(|delta| match delta {
                    Delta::Set { entry, .. } => {
                        object_of(entry).map_or_else(|| removed(entry), RbacChange::$set)
                    }
                    Delta::Gone(entry) => removed(entry),
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
            namespace: "",
            apply: |$node, deltas| {
                let remove = |$entry: &Entry| $remove;
                for delta in deltas {
                    match delta {
                        Delta::Set { entry, .. } => match object_of(entry) {
                            Some(object) => $node.$set(&object),
                            None => remove(entry),
                        },
                        Delta::Gone(entry) => remove(entry),
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
        namespace: "",
        apply: |node, deltas| {
            for delta in deltas {
                let (entry, change) = match delta {
                    Delta::Set { entry, previous } => (entry, PodChange::between(entry, previous)),
                    Delta::Gone(entry) => (entry, PodChange::Gone),
                };
                match change {
                    PodChange::None => {}
                    PodChange::Set(pod) => node.set_pod(&pod),
                    PodChange::Gone => node.remove_pod(entry.namespace(), entry.name()),
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
    namespace: bootstrap_token::SECRET_NAMESPACE,
    apply: |tokens, deltas| {
        for delta in deltas {
            match delta {
                Delta::Set { entry, .. } if is_token(entry) => match object_of(entry) {
                    Some(secret) => tokens.set(&secret),
                    None => tokens.remove(entry.name()),
                },
                Delta::Gone(entry) if is_token(entry) => tokens.remove(entry.name()),
                Delta::Set { .. } | Delta::Gone(_) => {}
            }
        }
    },
}];

macro_rules! flow_control_feed {
    ($plural:literal, $set:ident) => {
        Feed {
            group: flow_control::GROUP,
            plural: $plural,
            namespace: "",
            apply: |fairness, deltas| {
                fairness.$set(deltas.map(|delta| match delta {
                    Delta::Set { entry, .. } => (entry.name().to_string(), object_of(entry)),
                    Delta::Gone(entry) => (entry.name().to_string(), None),
                }));
            },
        }
    };
}

pub const FLOW_CONTROL: &[Feed<Fairness>] = &[
    flow_control_feed!("prioritylevelconfigurations", set_levels),
    flow_control_feed!("flowschemas", set_schemas),
];

fn is_token(secret: &Entry) -> bool {
    secret.name().starts_with(bootstrap_token::SECRET_NAME_PREFIX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ferry_auth::User;
    use ferry_auth::attributes::Attributes;
    use ferry_registry::cache::Cache;
    use ferry_registry::cache::peek::Paths;
    use ferry_store::Revision;
    use serde_json::{Value, json};

    use super::*;

    fn entry(key: &str, revision: i64, object: Value) -> Entry {
        let stored = object.to_string().into();
        Entry::from_stored(key.into(), &stored, Revision(revision), &Paths::new(&[])).expect("JSON")
    }

    fn binding(revision: i64) -> Entry {
        entry(
            "admins",
            revision,
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "admins"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "all"},
                "subjects": [{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}],
            }),
        )
    }

    /// RBAC with a role for everything, fed from the cache of bindings.
    fn rbac(bindings: &Arc<Cache>) -> Arc<Rbac> {
        let rbac = Arc::new(Rbac::new());
        let role = json!({"metadata": {"name": "all"}, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]});
        rbac.apply([RbacChange::ClusterRole(serde_json::from_value(role).expect("a role"))]);
        let feed = RBAC.iter().find(|feed| feed.plural == "clusterrolebindings").expect("a feed");
        let (decider, apply) = (rbac.clone(), feed.apply);
        cache::follow(bindings, Filter::default(), move |deltas| apply(&decider, deltas));
        rbac
    }

    async fn decides(rbac: &Rbac, allowed: bool) {
        let user = User::new("jane");
        let question = Attributes::resource(&user, "get", "", "secrets");
        let wait = async {
            while rbac.decide(&question).is_allowed() != allowed {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect("it is decided so in the end");
    }

    #[tokio::test]
    async fn a_right_deleted_during_a_cache_refill_is_revoked() {
        let bindings = Arc::new(Cache::new(Paths::new(&[]), None));
        let rbac = rbac(&bindings);
        decides(&rbac, false).await;
        bindings.put(binding(5));
        decides(&rbac, true).await;
        bindings.reset([], Revision(9));
        decides(&rbac, false).await;
    }

    #[tokio::test]
    async fn a_binding_that_cannot_be_read_any_more_grants_nothing() {
        let bindings = Arc::new(Cache::new(Paths::new(&[]), None));
        bindings.put(binding(5));
        let rbac = rbac(&bindings);
        decides(&rbac, true).await;
        bindings.put(entry("admins", 6, json!({"metadata": {"name": "admins"}, "subjects": 5})));
        decides(&rbac, false).await;
        bindings.put(binding(7));
        decides(&rbac, true).await;
        bindings.put_unreadable("admins", Revision(8));
        decides(&rbac, false).await;
    }
}
