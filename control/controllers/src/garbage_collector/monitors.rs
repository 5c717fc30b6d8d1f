//! Follows every kind there is, as discovery changes: by the informer that other loops have of it, or else by one of
//! metadata.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::informer::AnyInformer;
use ferry_client::{CancellationToken, error};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use parking_lot::RwLock;
use tokio::sync::Notify;

use super::Collector;
use crate::context::Context;
use crate::discovery::{Resource, discover};

/// Kinds by group and kind, for references; only those seen in discovery.
pub type Kinds = Arc<RwLock<HashMap<(String, String), Arc<Resource>>>>;

/// Events own nothing, are owned by nothing and come in masses.
const IGNORED: [&str; 2] = ["events", "events.events.k8s.io"];

struct Monitor {
    informer: Arc<dyn AnyInformer>,
    resource: Arc<Resource>,
    stop: CancellationToken,
}

/// Runs until the shutdown; `ready` is told when the first set of informers is complete.
pub async fn follow(context: Context, collector: Arc<Collector>, kinds: Kinds, ready: CancellationToken) {
    let changed = Arc::new(Notify::new());
    let definitions = context.informers.of::<CustomResourceDefinition>();
    let services = context.informers.of::<APIService>();
    let wakes = changed.clone();
    definitions.handle(move |_| wakes.notify_one());
    let wakes = changed.clone();
    services.handle(move |_| wakes.notify_one());
    let mut monitors: HashMap<String, Monitor> = HashMap::new();
    loop {
        match discover(&context.client).await {
            Ok(found) => {
                let complete = found.failures.is_empty();
                for failure in &found.failures {
                    tracing::warn!(failure, "a group is missing in discovery; keeping its objects");
                }
                update(&context, &collector, &kinds, &mut monitors, found.resources, complete);
                if !ready.is_cancelled() {
                    let all = monitors.values().map(|monitor| monitor.informer.synced());
                    // One kind that cannot be listed must not keep all others from being collected.
                    let _ =
                        tokio::time::timeout(Duration::from_secs(30), futures::future::join_all(all)).await;
                    ready.cancel();
                }
            }
            Err(failed) => tracing::warn!(error = error::message(&failed), "discovery failed"),
        }
        // A definition is told before its resource is served; so one more look after a while.
        let settle = async {
            changed.notified().await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        tokio::select! {
            () = context.shutdown.cancelled() => return,
            () = settle => {}
            () = tokio::time::sleep(Duration::from_secs(300)) => {}
        }
    }
}

fn update(
    context: &Context,
    collector: &Arc<Collector>,
    kinds: &Kinds,
    monitors: &mut HashMap<String, Monitor>,
    found: Vec<Resource>,
    complete: bool,
) {
    let found: HashMap<String, Arc<Resource>> = found
        .into_iter()
        .filter(|resource| !IGNORED.contains(&resource.group_resource().as_str()))
        .map(|resource| (resource.group_resource(), Arc::new(resource)))
        .collect();
    if complete {
        kinds.write().clear();
        let gone: Vec<String> = monitors.keys().filter(|name| !found.contains_key(*name)).cloned().collect();
        for monitor in gone.iter().filter_map(|name| monitors.remove(name)) {
            monitor.stop.cancel();
            collector.forget(&monitor.resource);
        }
    }
    for (name, resource) in found {
        let key = (resource.api.group.clone(), resource.api.kind.clone());
        kinds.write().insert(key, resource.clone());
        let collectable = ["list", "watch", "delete"].iter().all(|verb| resource.can(verb));
        if collectable && !monitors.contains_key(&name) {
            let stop = CancellationToken::new();
            let informer = context.informers.of_resource(&resource.api, &stop);
            let (listening, of, stopped) = (collector.clone(), resource.clone(), stop.clone());
            informer.handle_metadata(Box::new(move |changed| {
                if !stopped.is_cancelled() {
                    listening.object_changed(&of, changed);
                }
            }));
            monitors.insert(name, Monitor { informer, resource, stop });
        }
    }
}
