//! Writes the bootstrap roles and bindings of a cluster, through the API.

use ferry_auth::bootstrap_policy::{self, Policy};
use futures::stream::{FuturesUnordered, StreamExt};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::bootstrap::again_after_others;

/// The whole of the built-in policy, for a cluster that has nothing yet.
pub fn objects() -> Result<Vec<Value>, serde_json::Error> {
    let Policy { cluster_roles, cluster_role_bindings, roles, role_bindings } = bootstrap_policy::policy();
    let mut objects = Vec::new();
    add(&mut objects, cluster_roles)?;
    add(&mut objects, cluster_role_bindings)?;
    add(&mut objects, roles)?;
    add(&mut objects, role_bindings)?;
    Ok(objects)
}

fn add<K: Serialize>(objects: &mut Vec<Value>, added: Vec<K>) -> Result<(), serde_json::Error> {
    for object in added {
        objects.push(serde_json::to_value(object)?);
    }
    Ok(())
}

/// Writes what is missing of the built-in policy. Requests go out together, so that the store writes them
/// in few batches.
pub async fn bootstrap(client: &Client) -> Result<(), kube::Error> {
    again_after_others(|| reconcile(client)).await
}

async fn reconcile(client: &Client) -> Result<(), kube::Error> {
    let mut span = ferry_trace::span("apiserver.policy");
    let params = ListParams::default();
    let api = (
        Api::all(client.clone()),
        Api::all(client.clone()),
        Api::all(client.clone()),
        Api::all(client.clone()),
    );
    let (cluster_roles, cluster_role_bindings, roles, role_bindings) =
        tokio::try_join!(api.0.list(&params), api.1.list(&params), api.2.list(&params), api.3.list(&params))?;
    let existing = Policy {
        cluster_roles: cluster_roles.items,
        cluster_role_bindings: cluster_role_bindings.items,
        roles: roles.items,
        role_bindings: role_bindings.items,
    };
    let changes = bootstrap_policy::reconcile::plan(&existing, &bootstrap_policy::policy());
    span.set("changes", !changes.is_empty());
    let Policy { cluster_roles, cluster_role_bindings, roles, role_bindings } = changes.create;
    // A binding that is there before its role grants nothing yet.
    tokio::try_join!(
        create_all::<ClusterRole>(client, cluster_roles, |client, _| Api::all(client)),
        create_all::<Role>(client, roles, Api::namespaced),
        create_all::<ClusterRoleBinding>(client, cluster_role_bindings, |client, _| Api::all(client)),
        create_all::<RoleBinding>(client, role_bindings, Api::namespaced),
    )?;

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
