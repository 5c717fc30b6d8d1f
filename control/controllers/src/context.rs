//! What a controller is given, and how all of them are run.

use std::sync::Arc;

use ferry_client::controller::Builder;
use ferry_client::events::Events;
use ferry_client::{CancellationToken, Client, Informers, Recorder};
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use k8s_openapi::api::core::v1::Pod;

use crate::config::Config;
use crate::table::Row;
use crate::{metrics, pods};

/// Everything a controller may use. Cloning shares.
#[derive(Clone)]
pub struct Context {
    /// Writes, with the rights of the controller's own account.
    pub client: Client,
    /// Reads what informers do not keep, with the rights of the manager.
    pub reader: Client,
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

    /// Begins a controller. Its informers come from the builder, so that it waits for them.
    pub fn controller(&self, name: &'static str) -> Builder {
        Builder::new(name, self.informers.clone(), self.config.workers)
    }
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
    informers.project::<Pod>(&pods::KEPT);
    informers.transform(pods::trim);
    let events = Arc::new(Events::start(client.clone(), config.instance.clone(), shutdown.clone()));
    let context =
        Context { reader: client.clone(), client, informers, config: Arc::new(config), shutdown, events };
    let started: Vec<Running> = rows
        .iter()
        .map(|row| {
            let client = match row.account {
                "" => context.client.clone(),
                account => accounts(account),
            };
            let running = (row.start)(&Context { client, ..context.clone() });
            let work = async {
                metrics::running(row.name, true);
                running.await;
                metrics::running(row.name, false);
            };
            work.boxed()
        })
        .collect();
    // run when all have said what they follow: the collector, which follows everything, then watches nothing twice
    join_all(started.into_iter().map(tokio::spawn)).await;
    context.informers.stopped().await;
    context.events.stopped().await;
}
