//! Keeps the deciders up to date from the process' shared informers.
//!
//! Each `feed_` function adds a handler and gives back a future that is ready when the first list
//! has arrived. A server that is asked before that refuses what it does not know yet; it should
//! not call itself ready.

use std::sync::Arc;

use ferry_client::{Event, Informer, Informers, NamespacedName, Selection};
use futures::future::{BoxFuture, FutureExt, join_all};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, Pod, Secret, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
    resource::v1::ResourceSlice,
    storage::v1::VolumeAttachment,
};
use kube::{Api, Client, Resource};

use crate::{
    Answer,
    authenticate::{
        BootstrapTokens, bootstrap_token,
        service_account::{BoundKind, BoundObject, BoundObjects},
    },
    authorize::{NodeAuthorizer, Rbac, rbac::Change},
};

/// Ready when the lists behind it have arrived.
pub type Synced = BoxFuture<'static, ()>;

pub fn feed_rbac(informers: &Informers, rbac: &Arc<Rbac>) -> Synced {
    let apply = |rbac: &Arc<Rbac>| {
        let rbac = rbac.clone();
        move |change| rbac.apply([change])
    };
    all([
        on_change(
            &informers.of::<ClusterRole>(),
            apply(rbac),
            |role| Change::ClusterRole(role.clone()),
            |key| Change::RemoveClusterRole { name: key.name },
        ),
        on_change(
            &informers.of::<Role>(),
            apply(rbac),
            |role| Change::Role(role.clone()),
            |key| Change::RemoveRole { namespace: key.namespace, name: key.name },
        ),
        on_change(
            &informers.of::<ClusterRoleBinding>(),
            apply(rbac),
            |binding| Change::ClusterRoleBinding(binding.clone()),
            |key| Change::RemoveClusterRoleBinding { name: key.name },
        ),
        on_change(
            &informers.of::<RoleBinding>(),
            apply(rbac),
            |binding| Change::RoleBinding(binding.clone()),
            |key| Change::RemoveRoleBinding { namespace: key.namespace, name: key.name },
        ),
    ])
}

/// Runs `apply` with what an object became, or with the key of one that is gone.
fn on_change<K, C>(
    informer: &Informer<K>,
    apply: impl Fn(C) + Send + Sync + 'static,
    set: impl Fn(&K) -> C + Send + Sync + 'static,
    remove: impl Fn(NamespacedName) -> C + Send + Sync + 'static,
) -> Synced
where
    K: ferry_client::informer::Object<DynamicType = ()>,
    C: 'static,
{
    informer.handle(move |event| {
        let change = if event.is_deleted() { remove(event.key()) } else { set(event.object()) };
        apply(change);
    });
    synced(informer)
}

fn synced<K: ferry_client::informer::Object<DynamicType = ()>>(informer: &Informer<K>) -> Synced {
    let informer = informer.clone();
    async move { informer.synced().await }.boxed()
}

fn all<const N: usize>(lists: [Synced; N]) -> Synced {
    join_all(lists).map(|_| ()).boxed()
}

pub fn feed_node(informers: &Informers, node: &Arc<NodeAuthorizer>) -> Synced {
    let pods = informers.of::<Pod>();
    pods.handle({
        let node = node.clone();
        move |event| {
            let key = event.key();
            match event {
                Event::Deleted { .. } => node.remove_pod(&key.namespace, &key.name),
                _ => node.set_pod(event.object()),
            }
        }
    });
    let volumes = informers.of::<PersistentVolume>();
    volumes.handle({
        let node = node.clone();
        move |event| match event {
            Event::Deleted { .. } => node.remove_persistent_volume(&event.key().name),
            _ => node.set_persistent_volume(event.object()),
        }
    });
    let attachments = informers.of::<VolumeAttachment>();
    attachments.handle({
        let node = node.clone();
        move |event| match event {
            Event::Deleted { .. } => node.remove_volume_attachment(&event.key().name),
            _ => node.set_volume_attachment(event.object()),
        }
    });
    let slices = informers.of::<ResourceSlice>();
    slices.handle({
        let node = node.clone();
        move |event| match event {
            Event::Deleted { .. } => node.remove_resource_slice(&event.key().name),
            _ => node.set_resource_slice(event.object()),
        }
    });
    all([synced(&pods), synced(&volumes), synced(&attachments), synced(&slices)])
}

/// Only Secrets of the one type are watched; the server keeps no copy of all the others.
pub fn feed_bootstrap_tokens(informers: &Informers, tokens: &Arc<BootstrapTokens>) -> Synced {
    let fields = Some(format!("type={}", bootstrap_token::SECRET_TYPE));
    let selection = Selection { fields, ..Selection::default() };
    let secrets = informers.in_namespace::<Secret>(bootstrap_token::SECRET_NAMESPACE, selection);
    let tokens = tokens.clone();
    secrets.handle(move |event| match event {
        Event::Deleted { last, .. } => tokens.remove(last.metadata.name.as_deref().unwrap_or("")),
        _ => tokens.set(event.object()),
    });
    synced(&secrets)
}

/// What tokens are bound to, from the informers; what they do not have (yet), from the API.
pub struct CachedObjects {
    client: Client,
    accounts: Informer<ServiceAccount>,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
}

impl CachedObjects {
    pub fn new(informers: &Informers) -> Self {
        CachedObjects {
            client: informers.client().clone(),
            accounts: informers.of(),
            pods: informers.of(),
            nodes: informers.of(),
        }
    }

    /// A failed read counts as a missing object: a token is refused rather than believed.
    async fn live(&self, kind: BoundKind, namespace: &str, name: &str) -> Option<BoundObject> {
        async fn read<K>(api: Api<K>, name: &str) -> Option<K>
        where
            K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
        {
            match api.get_opt(name).await {
                Ok(found) => found,
                Err(error) => {
                    tracing::warn!(%error, name, "an object that a token is bound to cannot be read");
                    None
                }
            }
        }
        let client = self.client.clone();
        match kind {
            BoundKind::ServiceAccount => {
                read::<ServiceAccount>(Api::namespaced(client, namespace), name).await.as_ref().map(bound)
            }
            BoundKind::Pod => read::<Pod>(Api::namespaced(client, namespace), name).await.as_ref().map(bound),
            BoundKind::Node => read::<Node>(Api::all(client), name).await.as_ref().map(bound),
            BoundKind::Secret => {
                let secret = read::<Secret>(Api::namespaced(client, namespace), name).await?;
                let token = secret.data.as_ref().and_then(|data| data.get("token"));
                let labels = secret.metadata.labels.as_ref();
                let invalid =
                    labels.and_then(|labels| labels.get("kubernetes.io/legacy-token-invalid-since"));
                Some(BoundObject {
                    token: token.map_or(Vec::new(), |token| token.0.clone()),
                    invalidated: invalid.is_some_and(|since| !since.is_empty()),
                    ..bound(&secret)
                })
            }
        }
    }
}

fn bound<K: Resource>(object: &K) -> BoundObject {
    let metadata = object.meta();
    BoundObject {
        uid: metadata.uid.clone().unwrap_or_default(),
        deleted: metadata.deletion_timestamp.as_ref().map(|time| time.0.into()),
        ..BoundObject::default()
    }
}

impl BoundObjects for CachedObjects {
    fn find<'a>(
        &'a self,
        kind: BoundKind,
        namespace: &'a str,
        name: &'a str,
    ) -> Answer<'a, Option<BoundObject>> {
        let key = NamespacedName::new(namespace, name);
        let cached = match kind {
            BoundKind::ServiceAccount => self.accounts.get(&key).map(|account| bound(&*account)),
            BoundKind::Pod => self.pods.get(&key).map(|pod| bound(&*pod)),
            BoundKind::Node => self.nodes.get(&key).map(|node| bound(&*node)),
            // Tokens kept in Secrets are rare; a copy of every Secret in memory would not be.
            BoundKind::Secret => None,
        };
        match cached {
            Some(object) => Answer::Now(Some(object)),
            None => Answer::Later(self.live(kind, namespace, name).boxed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, convert::Infallible};

    use bytes::Bytes;
    use futures::{StreamExt, stream};
    use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
    use hyper::body::Frame;
    use k8s_openapi::ByteString;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        attributes::Attributes,
        authenticate::{Outcome, TokenAuthenticator},
        user::User,
    };

    /// Answers lists from a table, single objects from the same, and watches with one event each.
    fn client(lists: BTreeMap<&'static str, Value>, event: Value) -> Client {
        let (lists, event) = (Arc::new(lists), Arc::new(event));
        ferry_client::over(tower::service_fn(move |request: http::Request<Body>| {
            let (lists, event) = (lists.clone(), event.clone());
            async move { Ok::<_, Infallible>(answer(&lists, &event, &request)) }
        }))
    }

    fn answer(
        lists: &BTreeMap<&'static str, Value>,
        event: &Value,
        request: &http::Request<Body>,
    ) -> http::Response<UnsyncBoxBody<Bytes, Infallible>> {
        let path = request.uri().path();
        let whole = |code: u16, body: Value| {
            let body = Full::new(Bytes::from(body.to_string()));
            http::Response::builder().status(code).body(body.boxed_unsync()).unwrap()
        };
        if request.uri().query().is_some_and(|query| query.contains("watch=true")) {
            let lines = event.get(path).map(|event| Ok(Frame::data(Bytes::from(format!("{event}\n")))));
            let body = StreamBody::new(stream::iter(lines).chain(stream::pending()));
            return http::Response::new(body.boxed_unsync());
        }
        let items = lists.get(path).cloned().unwrap_or(json!([]));
        if lists.contains_key(path) || !path.contains("/missing") && !path.ends_with("/late") {
            return whole(200, json!({"metadata": {"resourceVersion": "5"}, "items": items}));
        }
        match path.ends_with("/late") {
            true => whole(200, json!({"metadata": {"name": "late", "namespace": "ns", "uid": "late-uid"}})),
            false => whole(
                404,
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound", "message": "", "code": 404}),
            ),
        }
    }

    #[tokio::test]
    async fn what_informers_see_decides() {
        let rbac_path = |resource: &str| format!("/apis/rbac.authorization.k8s.io/v1/{resource}");
        let secret = json!({
            "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
            "type": "bootstrap.kubernetes.io/token",
            "data": {
                "token-id": ByteString(b"abcdef".to_vec()),
                "token-secret": ByteString(b"0123456789abcdef".to_vec()),
                "usage-bootstrap-authentication": ByteString(b"true".to_vec()),
            },
        });
        let lists = BTreeMap::from([
            (
                "/apis/rbac.authorization.k8s.io/v1/clusterroles",
                json!([{"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}]),
            ),
            (
                "/api/v1/pods",
                json!([{"metadata": {"name": "web", "namespace": "ns", "uid": "web-uid"}, "spec": {"nodeName": "n1", "containers": [], "imagePullSecrets": [{"name": "pull"}]}}]),
            ),
            ("/api/v1/namespaces/kube-system/secrets", json!([secret])),
        ]);
        // The binding comes by watch, after the list.
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "b", "resourceVersion": "6"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "User", "name": "jane"}],
        });
        let events = json!({rbac_path("clusterrolebindings"): {"type": "ADDED", "object": binding}});
        let shutdown = ferry_client::CancellationToken::new();
        let informers = Informers::new(client(lists, events), shutdown.clone());

        let (rbac, node, tokens) =
            (Arc::new(Rbac::new()), Arc::new(NodeAuthorizer::new()), Arc::new(BootstrapTokens::new()));
        let arrived = Arc::new(tokio::sync::Notify::new());
        informers.of::<ClusterRoleBinding>().handle({
            let arrived = arrived.clone();
            move |_| arrived.notify_one()
        });
        feed_rbac(&informers, &rbac).await;
        feed_node(&informers, &node).await;
        feed_bootstrap_tokens(&informers, &tokens).await;
        tokio::time::timeout(std::time::Duration::from_secs(10), arrived.notified())
            .await
            .expect("the binding comes");
        // Handlers run in the order they were added: ours was first, RBAC's is told right after.
        let jane = User::new("jane");
        let get_pods = Attributes::resource(&jane, "get", "", "pods");
        let mut rounds = 0;
        while !rbac.decide(&get_pods).is_allowed() {
            rounds += 1;
            assert!(rounds < 10_000, "the binding never took effect");
            tokio::task::yield_now().await;
        }

        let n1 = User::new("system:node:n1").with_groups(["system:nodes"]);
        let pull =
            Attributes { namespace: "ns", name: "pull", ..Attributes::resource(&n1, "get", "", "secrets") };
        assert!(node.decide(&pull).is_allowed());
        let found = tokens
            .authenticate_token("abcdef.0123456789abcdef", &[], std::time::SystemTime::now())
            .get()
            .await;
        assert!(matches!(found, Ok(Outcome::Authenticated(_))));

        let objects = CachedObjects::new(&informers);
        let find = async |name| objects.find(BoundKind::Pod, "ns", name).get().await.map(|object| object.uid);
        assert_eq!(find("web").await.as_deref(), Some("web-uid"));
        assert_eq!(find("late").await.as_deref(), Some("late-uid"), "not in the cache, but in the API");
        assert_eq!(find("missing").await, None);
        shutdown.cancel();
        informers.stopped().await;
    }
}
