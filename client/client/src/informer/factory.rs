//! One informer per kind and selection in a process, however many ask.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;

use kube::core::{ApiResource, NamespaceResourceScope};
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::decode::Keep;
use super::{Informer, Metadata, Object, reflector};

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
    known: Mutex<HashMap<Wanted, Box<dyn Any + Send + Sync>>>,
}

/// Kind, namespace if not all, and selection.
type Wanted = (TypeId, Option<String>, Selection);

impl Informers {
    /// Everything stops when `shutdown` is cancelled.
    pub fn new(client: Client, shutdown: CancellationToken) -> Self {
        let shared = Shared { client, shutdown, tasks: TaskTracker::new(), known: Mutex::default() };
        Informers { shared: Arc::new(shared) }
    }

    pub fn client(&self) -> &Client {
        &self.shared.client
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
            Box::new(self.start(
                api(self.shared.client.clone()),
                selection,
                Keep::Object,
                self.shared.shutdown.child_token(),
            ))
        });
        informer.downcast_ref::<Informer<K>>().expect("is kept under its own type").clone()
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
        self.start(api, Selection::default(), Keep::Identity, both)
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
        keep: Keep,
        stop: CancellationToken,
    ) -> Informer<K> {
        let informer = Informer::new(keep);
        self.shared.tasks.spawn(reflector::run(api, selection, informer.clone(), stop));
        informer
    }
}
