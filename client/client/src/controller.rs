//! Builds a controller over the shared informers, modelled on kube-rs' `Controller`.
//!
//! ```text
//! let builder = Builder::new("job-controller", informers, 5);
//! let (jobs, pods) = (builder.informer::<Job>(), builder.informer::<Pod>());
//! let state = Arc::new(State { jobs: jobs.clone(), pods: pods.clone() });
//! builder.of(&jobs, state).owns(&pods).run(State::reconcile).await
//! ```
//!
//! The builder provides a work queue under the controller's name with upstream's metrics, keys with the revisions that
//! caused them, and a span for each reconcile. No work starts before all informers of the controller have synced: a
//! decision on half a list could delete the other half.

use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use kube::Resource;
use kube::core::NamespaceResourceScope;
use parking_lot::Mutex;

use crate::informer::{AnyInformer, Object};
use crate::reconcile::{self, Key, Reconcile, Workers};
use crate::{Error, Event, Informer, Informers, NamespacedName, Outcome, Queue, Selection};

/// Creates a controller's informers and records them, so that the controller waits until all are synced.
#[derive(Clone)]
pub struct Builder {
    name: &'static str,
    workers: usize,
    informers: Informers,
    read: Arc<Mutex<Vec<Arc<dyn AnyInformer>>>>,
}

/// A controller whose keys are of type `Q` and, unless `K` is `()`, name objects of kind `K`.
pub struct Controller<S, K, Q> {
    builder: Builder,
    resource: String,
    queue: Queue<Q>,
    state: Arc<S>,
    prepared: BoxFuture<'static, ()>,
    kind: PhantomData<fn() -> K>,
}

impl Builder {
    /// `workers` is how many keys the controller works on at a time.
    pub fn new(name: &'static str, informers: Informers, workers: usize) -> Self {
        Builder { name, workers, informers, read: Arc::default() }
    }

    pub fn workers(self, workers: usize) -> Self {
        Builder { workers, ..self }
    }

    /// The informer of all objects of a kind.
    pub fn informer<K: Object<DynamicType = ()>>(&self) -> Informer<K> {
        self.selected(Selection::default())
    }

    /// The informer of some objects of a kind.
    pub fn selected<K: Object<DynamicType = ()>>(&self, selection: Selection) -> Informer<K> {
        self.reads(self.informers.selected(selection))
    }

    /// The same within one namespace.
    pub fn in_namespace<K>(&self, namespace: &str, selection: Selection) -> Informer<K>
    where
        K: Object<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        self.reads(self.informers.in_namespace(namespace, selection))
    }

    fn reads<K: Object>(&self, informer: Informer<K>) -> Informer<K> {
        self.read.lock().push(Arc::new(informer.clone()));
        informer
    }

    /// A queue for [`Builder::over`].
    pub fn queue<Q: Key>(&self) -> Queue<Q> {
        Queue::named(self.name)
    }

    /// A controller of a kind; every change of such an object enqueues its key.
    pub fn of<K: Object<DynamicType = ()>, S: Send + Sync + 'static>(
        &self,
        own: &Informer<K>,
        state: Arc<S>,
    ) -> Controller<S, K, NamespacedName> {
        self.keys_of(state).watches(own, |_, event| vec![event.key()])
    }

    /// A controller of a kind that declares with [`Controller::watches`] which changes enqueue its keys.
    pub fn keys_of<K: Object<DynamicType = ()>, S>(&self, state: Arc<S>) -> Controller<S, K, NamespacedName> {
        let resource = match (K::plural(&()), K::group(&())) {
            (plural, group) if group.is_empty() => plural.into_owned(),
            (plural, group) => format!("{plural}.{group}"),
        };
        self.controller(resource, self.queue(), state)
    }

    /// A controller over a queue that other code fills too, with keys of any type.
    pub fn over<Q: Key, S>(
        &self,
        resource: &'static str,
        queue: Queue<Q>,
        state: Arc<S>,
    ) -> Controller<S, (), Q> {
        self.controller(resource.to_owned(), queue, state)
    }

    fn controller<S, K, Q>(&self, resource: String, queue: Queue<Q>, state: Arc<S>) -> Controller<S, K, Q> {
        let prepared = std::future::ready(()).boxed();
        Controller { builder: self.clone(), resource, queue, state, prepared, kind: PhantomData }
    }

    async fn synced(&self) {
        let read = self.read.lock().clone();
        join_all(read.iter().map(|informer| informer.synced())).await;
    }
}

impl<S: Send + Sync + 'static, K, Q: Key> Controller<S, K, Q> {
    /// Enqueues the keys that an event of another kind concerns. `keys` runs on the informer's task and must not block.
    pub fn watches<W: Object>(
        self,
        informer: &Informer<W>,
        keys: impl Fn(&S, &Event<W>) -> Vec<Q> + Send + Sync + 'static,
    ) -> Self {
        let (state, queue) = (self.state.clone(), self.queue.clone());
        informer.handle(move |event| {
            for key in keys(&state, event) {
                queue.add_caused(key, event.revision());
            }
        });
        self
    }

    /// A future that must complete, after the informers have synced, before the first key is processed.
    pub fn after(mut self, prepared: impl Future<Output = ()> + Send + 'static) -> Self {
        self.prepared = prepared.boxed();
        self
    }

    /// Works until the informers are shut down. Watches are in place when this returns, before the future is polled.
    pub fn run<F, Fut>(self, reconcile: F) -> BoxFuture<'static, ()>
    where
        F: Fn(Arc<S>, Q) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, Error>> + Send + 'static,
    {
        let Controller { builder, resource, queue, state, prepared, .. } = self;
        let reconcile = Box::new(move |key| reconcile(state.clone(), key).boxed());
        work(builder, resource, queue, prepared, reconcile).boxed()
    }
}

async fn work<Q: Key>(
    builder: Builder,
    resource: String,
    queue: Queue<Q>,
    prepared: BoxFuture<'static, ()>,
    reconcile: Reconcile<Q>,
) {
    let shutdown = builder.informers.shutdown().clone();
    let workers = Workers { controller: builder.name, resource, count: builder.workers };
    let ready = async {
        builder.synced().await;
        prepared.await;
    };
    if shutdown.run_until_cancelled(ready).await.is_some() {
        reconcile::run(workers, queue, shutdown, reconcile).await;
    }
}

impl<S: Send + Sync + 'static, K: Resource<DynamicType = ()>> Controller<S, K, NamespacedName> {
    /// Enqueues the current and the previous controller of a changed object.
    pub fn owns<W: Object>(self, owned: &Informer<W>) -> Self {
        self.watches(owned, |_, event| owners::<K, W>(event))
    }
}

/// The object of kind `O` that controls an object.
pub fn owner<O: Resource<DynamicType = ()>>(object: &impl Resource) -> Option<NamespacedName> {
    let mut owners = object.meta().owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    let namespace = object.meta().namespace.clone().unwrap_or_default();
    (owner.kind == O::kind(&()) && group == O::group(&()))
        .then(|| NamespacedName::new(namespace, owner.name.clone()))
}

/// The objects of kind `O` that controlled an object before an event, and after it.
pub fn owners<O: Resource<DynamicType = ()>, W: Resource>(event: &Event<W>) -> Vec<NamespacedName> {
    let now = owner::<O>(&**event.object());
    let before = event.old().and_then(|old| owner::<O>(&**old));
    before.filter(|before| Some(before) != now.as_ref()).into_iter().chain(now).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Node};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::test_server::{TestServer, until};

    #[derive(Default)]
    struct State {
        reconciled: Mutex<Vec<String>>,
    }

    impl State {
        async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
            self.reconciled.lock().push(key.to_string());
            Ok(Outcome::Done)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn work_begins_when_every_informer_has_synced_and_what_was_awaited_has_come() {
        let server = TestServer::new();
        server.put("a");
        let shutdown = CancellationToken::new();
        let informers = Informers::new(server.client(), shutdown.clone());
        let builder = Builder::new("test", informers.clone(), 1);
        let maps = builder.informer::<ConfigMap>();
        let state = Arc::new(State::default());
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let controller = builder
            .of(&maps, state.clone())
            .watches(&maps, |_, event| vec![NamespacedName::cluster(event.key().name)])
            .after(async { gone.await.expect("is sent") });
        let running = tokio::spawn(controller.run(State::reconcile));
        maps.synced().await;
        tokio::task::yield_now().await;
        assert!(state.reconciled.lock().is_empty(), "nothing before what is awaited");
        go.send(()).expect("is awaited");
        until(|| state.reconciled.lock().len() == 2).await;
        assert_eq!(*state.reconciled.lock(), ["default/a", "a"]);
        shutdown.cancel();
        running.await.expect("ends with the informers");
        informers.stopped().await;
    }

    #[test]
    fn the_owner_before_and_the_owner_now_are_woken() {
        let object = |api_version: &str, kind: &str, name: &str, controls: bool| {
            let owner = OwnerReference {
                api_version: api_version.into(),
                kind: kind.into(),
                name: name.into(),
                controller: Some(controls),
                ..Default::default()
            };
            let mut object = ConfigMap::default();
            object.metadata.namespace = Some("n".into());
            object.metadata.owner_references = Some(vec![owner]);
            Arc::new(object)
        };
        let check = |event: Event<ConfigMap>, expected: &[&str]| {
            let names: Vec<String> = owners::<Node, _>(&event).into_iter().map(|key| key.name).collect();
            assert_eq!(names, expected);
        };
        check(Event::Added(object("v1", "Node", "a", true)), &["a"]);
        check(Event::Added(object("v1", "Node", "a", false)), &[]);
        check(Event::Added(object("example.com/v1", "Node", "a", true)), &[]);
        check(Event::Added(object("v1", "Pod", "a", true)), &[]);
        let modified = |old: &str, new: &str| Event::Modified {
            old: object("v1", "Node", old, true),
            new: object("v1", "Node", new, true),
        };
        check(modified("a", "a"), &["a"]);
        check(modified("a", "b"), &["a", "b"]);
    }
}
