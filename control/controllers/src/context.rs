//! What a controller is given, and how all of them are run.

use std::sync::Arc;

use ferry_client::events::Events;
use ferry_client::informer::Object;
use ferry_client::reconcile::Key;
use ferry_client::{
    CancellationToken, Client, Error, Informer, Informers, NamespacedName, Outcome, Queue, Recorder, Workers,
};
use futures::future::{BoxFuture, join_all};
use k8s_openapi::api::core::v1::Pod;

use crate::config::Config;
use crate::pods;
use crate::table::Row;

/// Everything a controller may use. Cloning shares.
#[derive(Clone)]
pub struct Context {
    pub client: Client,
    pub informers: Informers,
    pub config: Arc<Config>,
    pub shutdown: CancellationToken,
    events: Arc<Events>,
}

/// A client for a ServiceAccount in kube-system, by its name.
pub type Accounts = Arc<dyn Fn(&'static str) -> Client + Send + Sync>;

/// A controller that is set up: what runs until the shutdown.
pub type Running = BoxFuture<'static, ()>;

impl Context {
    pub fn recorder(&self, controller: &'static str) -> Recorder {
        self.events.recorder(controller)
    }

    /// Runs a reconcile function over a queue, once `synced` says its informers are complete:
    /// a decision on half a list could delete the other half.
    pub fn reconcile<K, F, Fut>(
        &self,
        controller: &'static str,
        resource: &'static str,
        queue: Queue<K>,
        synced: impl Future<Output = ()> + Send + 'static,
        reconcile: F,
    ) -> Running
    where
        K: Key,
        F: Fn(K) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, Error>> + Send,
    {
        let workers = Workers { controller, resource, count: self.config.workers };
        let shutdown = self.shutdown.clone();
        Box::pin(async move {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = synced => {}
            }
            ferry_client::reconcile::run(workers, queue, shutdown, reconcile).await;
        })
    }
}

/// Puts the key of every changed object into the queue, with the revision that changed it.
pub fn enqueue_own<K: Object>(informer: &Informer<K>, queue: &Queue<NamespacedName>) {
    let queue = queue.clone();
    informer.handle(move |event| queue.add_caused(event.key(), event.revision()));
}

/// Runs controllers until `shutdown`, and waits for all they have started. They share what they
/// read; each writes with the client of its own account.
pub async fn run(
    client: Client,
    accounts: Accounts,
    config: Config,
    rows: Vec<&'static Row>,
    shutdown: CancellationToken,
) {
    let informers = Informers::new(client.clone(), shutdown.clone());
    informers.keep::<Pod>(&pods::KEPT);
    informers.trim(pods::trim);
    let events = Arc::new(Events::start(client.clone(), config.instance.clone(), shutdown.clone()));
    let context = Context { client, informers, config: Arc::new(config), shutdown, events };
    let started: Vec<Running> = rows
        .iter()
        .map(|row| {
            let client = match row.account {
                "" => context.client.clone(),
                account => accounts(account),
            };
            (row.start)(&Context { client, ..context.clone() })
        })
        .collect();
    // run when all have said what they follow: the collector, which follows everything, then watches nothing twice
    join_all(started.into_iter().map(tokio::spawn)).await;
    context.informers.stopped().await;
    context.events.stopped().await;
}
