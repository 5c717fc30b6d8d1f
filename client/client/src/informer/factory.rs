//! The shared informers of a process: one per kind and selection.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;

use kube::core::{ApiResource, NamespaceResourceScope};
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::reflector::{self, Source};
use super::{AnyInformer, Informer, Metadata, Object, Projection, Transform};

/// Which objects of a kind. The default is all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selection {
    pub fields: Option<String>,
    pub labels: Option<String>,
}

/// The informers of a process. Cloning shares them.
#[derive(Clone)]
pub struct Informers {
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    shutdown: CancellationToken,
    tasks: TaskTracker,
    known: Mutex<HashMap<InformerKey, Started>>,
    transforms: Mutex<HashMap<TypeId, Box<dyn Any + Send + Sync>>>,
    projections: Mutex<HashMap<TypeId, &'static Projection>>,
}

/// Kind, namespace if not all, and selection.
type InformerKey = (TypeId, Option<String>, Selection);

/// An informer, as its kind and as any kind.
struct Started {
    typed: Box<dyn Any + Send + Sync>,
    any: Arc<dyn AnyInformer>,
    group: String,
    plural: String,
}

impl Informers {
    /// Everything stops when `shutdown` is cancelled.
    pub fn new(client: Client, shutdown: CancellationToken) -> Self {
        let shared = Shared {
            client,
            shutdown,
            tasks: TaskTracker::new(),
            known: Mutex::default(),
            transforms: Mutex::default(),
            projections: Mutex::default(),
        };
        Informers { shared: Arc::new(shared) }
    }

    pub fn client(&self) -> &Client {
        &self.shared.client
    }

    pub fn shutdown(&self) -> &CancellationToken {
        &self.shared.shutdown
    }

    /// Has informers of a kind that are started from now on read only a part of each object, which must not be
    /// written back whole. Cheaper than [`Informers::transform`], which is for what is read once and then not kept.
    pub fn project<K: Object>(&self, projection: &'static Projection) {
        self.shared.projections.lock().insert(TypeId::of::<K>(), projection);
    }

    /// Has informers of a kind that are started from now on keep only what `transform` leaves of each object. What
    /// is trimmed must not be written back whole.
    pub fn transform<K: Object>(&self, transform: Transform<K>) {
        self.shared.transforms.lock().insert(TypeId::of::<K>(), Box::new(transform));
    }

    /// The informer of all objects of a kind; started when first asked for.
    pub fn of<K: Object<DynamicType = ()>>(&self) -> Informer<K> {
        self.selected(Selection::default())
    }

    /// The informer of some objects of a kind, say the pods of one node.
    pub fn selected<K: Object<DynamicType = ()>>(&self, selection: Selection) -> Informer<K> {
        self.share(None, selection, Api::all)
    }

    /// The same within one namespace, for those who may read no other.
    pub fn in_namespace<K>(&self, namespace: &str, selection: Selection) -> Informer<K>
    where
        K: Object<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        self.share(Some(namespace.to_owned()), selection, |client| Api::namespaced(client, namespace))
    }

    fn share<K: Object<DynamicType = ()>>(
        &self,
        namespace: Option<String>,
        selection: Selection,
        api: impl FnOnce(Client) -> Api<K>,
    ) -> Informer<K> {
        let mut known = self.shared.known.lock();
        let informer = known.entry((TypeId::of::<K>(), namespace, selection.clone())).or_insert_with(|| {
            let informer: Informer<K> = self.start(
                api(self.shared.client.clone()),
                selection,
                self.shared
                    .projections
                    .lock()
                    .get(&TypeId::of::<K>())
                    .copied()
                    .unwrap_or(&Projection::OBJECT),
                self.shared.shutdown.child_token(),
            );
            Started {
                typed: Box::new(informer.clone()),
                any: Arc::new(informer),
                group: K::group(&()).into_owned(),
                plural: K::plural(&()).into_owned(),
            }
        });
        informer.typed.downcast_ref::<Informer<K>>().expect("is kept under its own type").clone()
    }

    /// Follows any resource from discovery by metadata: by the informer of its kind if someone has asked for
    /// one, or by one of its own until `stop`.
    pub fn of_resource(&self, resource: &ApiResource, stop: &CancellationToken) -> Arc<dyn AnyInformer> {
        let known = self.shared.known.lock();
        let whole = known.iter().find(|((_, namespace, selection), known)| {
            let all = namespace.is_none() && *selection == Selection::default();
            all && (&known.group, &known.plural) == (&resource.group, &resource.plural)
        });
        match whole {
            Some((_, known)) => known.any.clone(),
            None => Arc::new(self.metadata(resource, stop)),
        }
    }

    /// An informer of any resource from discovery, by metadata; it lives until `stop` or the
    /// process' shutdown. Not shared: whoever follows discovery also knows when it ends.
    pub fn metadata(&self, resource: &ApiResource, stop: &CancellationToken) -> Informer<Metadata> {
        let api: Api<Metadata> = Api::all_with(self.shared.client.clone(), resource);
        let both = stop.child_token();
        let (either, process) = (both.clone(), self.shared.shutdown.clone());
        self.shared.tasks.spawn(async move {
            tokio::select! {
                () = process.cancelled() => either.cancel(),
                () = either.cancelled() => {}
            }
        });
        self.start(api, Selection::default(), &Projection::IDENTITY, both)
    }

    /// Waits until every list has ended; call after `shutdown` was cancelled.
    pub async fn stopped(&self) {
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    fn start<K: Object>(
        &self,
        api: Api<K>,
        selection: Selection,
        projection: &'static Projection,
        stop: CancellationToken,
    ) -> Informer<K> {
        let transform =
            self.shared.transforms.lock().get(&TypeId::of::<K>()).map(|transform| {
                *transform.downcast_ref::<Transform<K>>().expect("is kept under its own type")
            });
        let informer = Informer::new(projection, transform);
        let url = api.resource_url().to_owned();
        let source = Source { client: api.into_client(), url, selection };
        self.shared.tasks.spawn(reflector::run(source, Arc::new(informer.clone()), stop));
        informer
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use crate::test_server::{TestServer, until};

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_someone_follows_is_not_watched_again_for_those_who_follow_every_kind() {
        let server = TestServer::new();
        server.put("a");
        let shutdown = CancellationToken::new();
        let informers = Informers::new(server.client(), shutdown.clone());
        let resource = ApiResource::erase::<ConfigMap>(&());
        let typed = informers.of::<ConfigMap>();
        let followed = informers.of_resource(&resource, &CancellationToken::new());
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = told.clone();
        followed.handle_metadata(Box::new(move |changed| {
            let name = changed.object.metadata().name.clone().unwrap_or_default();
            log.lock().push(format!("{name} {} {:?}", changed.deleted, changed.revision));
        }));
        followed.synced().await;
        assert_eq!((typed.len(), server.lists()), (1, 1));
        server.delete("a");
        until(|| typed.is_empty()).await;
        assert_eq!(*told.lock(), ["a false Some(1)", "a true Some(2)"]);

        // of a kind that no one has asked for, metadata is enough
        let alone = Informers::new(server.client(), shutdown.clone());
        alone.of_resource(&resource, &CancellationToken::new()).synced().await;
        assert_eq!(server.lists(), 2);
        shutdown.cancel();
        informers.stopped().await;
        alone.stopped().await;
    }
}
