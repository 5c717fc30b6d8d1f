//! RBAC: the policy a cluster starts with is written through the API, and every role and binding that
//! changes reaches the authorizer from the registry's caches.

use std::sync::Arc;

use ferry_api::GroupResource;
use ferry_auth::Rbac;
use ferry_auth::authorize::rbac::Change as RbacChange;
use ferry_auth::bootstrap_policy::{self, Policy};
use ferry_registry::Registry;
use ferry_registry::cache::{Cache, Change, Entry, Filter};
use futures::stream::{FuturesUnordered, StreamExt};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

const GROUP: &str = "rbac.authorization.k8s.io";

/// How one entry of a kind becomes a change of the authorizer.
type Read = fn(&Entry) -> Option<RbacChange>;
type Remove = fn(&Entry) -> RbacChange;

const KINDS: &[(&str, Read, Remove)] = &[
    (
        "roles",
        |entry| view(entry).map(RbacChange::Role),
        |entry| RbacChange::RemoveRole { namespace: entry.namespace().into(), name: entry.name().into() },
    ),
    (
        "clusterroles",
        |entry| view(entry).map(RbacChange::ClusterRole),
        |entry| RbacChange::RemoveClusterRole { name: entry.name().into() },
    ),
    (
        "rolebindings",
        |entry| view(entry).map(RbacChange::RoleBinding),
        |entry| RbacChange::RemoveRoleBinding {
            namespace: entry.namespace().into(),
            name: entry.name().into(),
        },
    ),
    (
        "clusterrolebindings",
        |entry| view(entry).map(RbacChange::ClusterRoleBinding),
        |entry| RbacChange::RemoveClusterRoleBinding { name: entry.name().into() },
    ),
];

fn view<T: DeserializeOwned>(entry: &Entry) -> Option<T> {
    serde_json::from_slice(&entry.json)
        .inspect_err(|error| tracing::error!(key = %entry.key, %error, "a role or binding cannot be read"))
        .ok()
}

/// Fills the authorizer with what there is, then keeps it up to date for as long as the server lives.
pub fn follow(registry: &Registry, rbac: &Arc<Rbac>) {
    for (plural, read, remove) in KINDS {
        let Some(resource) = registry.resource(&GroupResource::new(GROUP, *plural)) else { continue };
        let (cache, rbac) = (resource.cache.clone(), rbac.clone());
        let (snapshot, _, watcher) = cache.watch_now(Filter::default());
        rbac.apply(snapshot.values().filter_map(|entry| read(entry)));
        tokio::spawn(follow_one(cache, watcher, rbac, *read, *remove));
    }
}

async fn follow_one(
    cache: Arc<Cache>,
    mut watcher: ferry_registry::cache::Watcher,
    rbac: Arc<Rbac>,
    read: Read,
    remove: Remove,
) {
    let mut known: Vec<Arc<Entry>> = cache.snapshot().0.values().cloned().collect();
    loop {
        match watcher.next().await {
            Ok(delivered) => rbac.apply(delivered.iter().filter_map(|(change, event)| match change {
                Change::Deleted => Some(remove(&event.entry)),
                Change::Added | Change::Modified => read(&event.entry),
            })),
            // The cache was filled anew: what was known and is gone has to be taken out.
            Err(_) => {
                let (snapshot, _, fresh) = cache.watch_now(Filter::default());
                let gone = known
                    .iter()
                    .filter(|entry| !snapshot.contains_key(&entry.key))
                    .map(|entry| remove(entry));
                rbac.apply(gone.chain(snapshot.values().filter_map(|entry| read(entry))));
                known = snapshot.values().cloned().collect();
                watcher = fresh;
            }
        }
    }
}

/// Writes what is missing of the built-in policy. Requests go out together, so that the store writes them
/// in few batches.
pub async fn bootstrap(client: &Client) -> Result<(), kube::Error> {
    let mut span = ferry_trace::span("apiserver.policy");
    let params = ListParams::default();
    let existing = Policy {
        cluster_roles: Api::all(client.clone()).list(&params).await?.items,
        cluster_role_bindings: Api::all(client.clone()).list(&params).await?.items,
        roles: Api::all(client.clone()).list(&params).await?.items,
        role_bindings: Api::all(client.clone()).list(&params).await?.items,
    };
    let changes = bootstrap_policy::reconcile::plan(&existing, &bootstrap_policy::policy());
    span.set("changes", !changes.is_empty());
    let Policy { cluster_roles, cluster_role_bindings, roles, role_bindings } = changes.create;
    create_all::<ClusterRole>(client, cluster_roles, |client, _| Api::all(client)).await?;
    create_all::<Role>(client, roles, Api::namespaced).await?;
    create_all::<ClusterRoleBinding>(client, cluster_role_bindings, |client, _| Api::all(client)).await?;
    create_all::<RoleBinding>(client, role_bindings, Api::namespaced).await?;

    let everywhere = PostParams::default();
    for role in changes.update.cluster_roles {
        Api::<ClusterRole>::all(client.clone()).replace(name(&role), &everywhere, &role).await?;
    }
    for binding in changes.update.cluster_role_bindings {
        Api::<ClusterRoleBinding>::all(client.clone()).replace(name(&binding), &everywhere, &binding).await?;
    }
    for role in changes.update.roles {
        Api::<Role>::namespaced(client.clone(), namespace(&role))
            .replace(name(&role), &everywhere, &role)
            .await?;
    }
    for binding in changes.update.role_bindings {
        let api = Api::<RoleBinding>::namespaced(client.clone(), namespace(&binding));
        api.replace(name(&binding), &everywhere, &binding).await?;
    }
    for binding in changes.recreate.cluster_role_bindings {
        let api = Api::<ClusterRoleBinding>::all(client.clone());
        api.delete(name(&binding), &DeleteParams::default()).await?;
        api.create(&everywhere, &binding).await?;
    }
    for binding in changes.recreate.role_bindings {
        let api = Api::<RoleBinding>::namespaced(client.clone(), namespace(&binding));
        api.delete(name(&binding), &DeleteParams::default()).await?;
        api.create(&everywhere, &binding).await?;
    }
    Ok(())
}

fn name<K: Resource>(object: &K) -> &str {
    object.meta().name.as_deref().unwrap_or("")
}

fn namespace<K: Resource>(object: &K) -> &str {
    object.meta().namespace.as_deref().unwrap_or("")
}

async fn create_all<K>(
    client: &Client,
    objects: Vec<K>,
    api: fn(Client, &str) -> Api<K>,
) -> Result<(), kube::Error>
where
    K: Resource + Clone + serde::Serialize + DeserializeOwned + std::fmt::Debug,
{
    let params = PostParams::default();
    let mut creating: FuturesUnordered<_> = objects
        .iter()
        .map(|object| {
            let (api, params) = (api(client.clone(), namespace(object)), &params);
            async move { api.create(params, object).await }
        })
        .collect();
    while let Some(created) = creating.next().await {
        match created {
            Ok(_) => {}
            // Another server of the same cluster was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
