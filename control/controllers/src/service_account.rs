//! Every namespace has a ServiceAccount `default`, so that pods always have an identity.

use std::sync::Arc;

use ferry_client::{Attempt, Error, Event, NamespacedName, Outcome, Queue, error};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{Api, ObjectMeta, PostParams};

use crate::context::{Context, Running, enqueue_own};

const CONTROLLER: &str = "serviceaccount-controller";
const DEFAULT: &str = "default";

pub fn is_active(namespace: &Namespace) -> bool {
    let phase = namespace.status.as_ref().and_then(|status| status.phase.as_deref());
    namespace.metadata.deletion_timestamp.is_none() && phase != Some("Terminating")
}

pub fn start(context: &Context) -> Running {
    let queue: Queue<NamespacedName> = Queue::default();
    let namespaces = context.informers.of::<Namespace>();
    let accounts = context.informers.of::<ServiceAccount>();
    enqueue_own(&namespaces, &queue);
    let wakes = queue.clone();
    accounts.handle(move |event: &Event<ServiceAccount>| {
        let key = event.key();
        if event.is_deleted() && key.name == DEFAULT {
            wakes.add_caused(NamespacedName::cluster(key.namespace), event.revision());
        }
    });
    let (ready, also) = (namespaces.clone(), accounts.clone());
    let synced = async move {
        ready.synced().await;
        also.synced().await;
    };
    let client = context.client.clone();
    let stores = Arc::new((namespaces, accounts));
    context.reconcile(CONTROLLER, "namespaces", queue, synced, move |key| {
        let (client, stores) = (client.clone(), stores.clone());
        async move {
            let (namespaces, accounts) = &*stores;
            let wanted = namespaces.get(&key).is_some_and(|namespace| is_active(&namespace));
            if !wanted || accounts.get(&NamespacedName::new(key.name.clone(), DEFAULT)).is_some() {
                return Ok(Outcome::Done);
            }
            let api: Api<ServiceAccount> = Api::namespaced(client, &key.name);
            let metadata = ObjectMeta { name: Some(DEFAULT.into()), ..Default::default() };
            settled(
                api.create(&PostParams::default(), &ServiceAccount { metadata, ..Default::default() }).await,
            )
        }
    })
}

/// Made, or there already, or no longer wanted.
pub fn settled<K>(created: Result<K, kube::Error>) -> Result<Outcome, Error> {
    match created {
        Err(refused) if error::is_already_exists(&refused) || error::is_namespace_terminating(&refused) => {
            Ok(Outcome::Done)
        }
        created => created.attempting("create").map(|_| Outcome::Done),
    }
}
