//! Writes the bootstrap roles and bindings of a cluster, through the API.

use ferry_auth::bootstrap_policy::{self, Policy};
use futures::stream::{FuturesUnordered, StreamExt};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::bootstrap::again_after_others;

/// Writes what is missing of the built-in policy. Requests go out together, so that the store writes them
/// in few batches.
pub async fn bootstrap(client: &Client) -> Result<(), kube::Error> {
    again_after_others(|| reconcile(client)).await
}

async fn reconcile(client: &Client) -> Result<(), kube::Error> {
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
