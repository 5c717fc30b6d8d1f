//! Every namespace has the ConfigMap `kube-root-ca.crt`, by which pods know the API server.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferry_client::{Attempt, Event, NamespacedName, Outcome, Queue};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, ObjectMeta, PostParams};

use crate::context::{Context, Running, enqueue_own};
use crate::service_account::{is_active, settled};

const CONTROLLER: &str = "root-ca-certificate-publisher-controller";
const NAME: &str = "kube-root-ca.crt";
const DESCRIPTION: (&str, &str) = (
    "kubernetes.io/description",
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the \
     internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes \
     clusters.",
);

/// The ConfigMap as it should be, if it is not so already.
fn plan(bundle: &str, current: Option<&ConfigMap>) -> Option<ConfigMap> {
    let data = BTreeMap::from([("ca.crt".to_string(), bundle.to_string())]);
    let mut next = current.cloned().unwrap_or_else(|| ConfigMap {
        metadata: ObjectMeta { name: Some(NAME.into()), ..Default::default() },
        ..Default::default()
    });
    next.metadata.annotations.get_or_insert_default().insert(DESCRIPTION.0.into(), DESCRIPTION.1.into());
    next.data = Some(data);
    (current != Some(&next)).then_some(next)
}

pub fn start(context: &Context) -> Running {
    let Some(bundle) =
        context.config.root_ca.as_ref().and_then(|bytes| String::from_utf8(bytes.clone()).ok())
    else {
        tracing::info!("no root CA is configured; it is not published");
        return Box::pin(std::future::ready(()));
    };
    let queue: Queue<NamespacedName> = Queue::default();
    let namespaces = context.informers.of::<Namespace>();
    let maps = context.informers.selected::<ConfigMap>(ferry_client::Selection {
        fields: Some(format!("metadata.name={NAME}")),
        labels: None,
    });
    enqueue_own(&namespaces, &queue);
    let wakes = queue.clone();
    maps.handle(move |event: &Event<ConfigMap>| {
        let key = event.key();
        if key.name == NAME {
            wakes.add_caused(NamespacedName::cluster(key.namespace), event.revision());
        }
    });
    let (ready, also) = (namespaces.clone(), maps.clone());
    let synced = async move {
        ready.synced().await;
        also.synced().await;
    };
    let client = context.client.clone();
    let known = Arc::new((namespaces, maps, bundle));
    context.reconcile(CONTROLLER, "namespaces", queue, synced, move |key| {
        let (client, known) = (client.clone(), known.clone());
        async move {
            let (namespaces, maps, bundle) = &*known;
            if !namespaces.get(&key).is_some_and(|namespace| is_active(&namespace)) {
                return Ok(Outcome::Done);
            }
            let current = maps.get(&NamespacedName::new(key.name.clone(), NAME));
            let Some(next) = plan(bundle, current.as_deref()) else { return Ok(Outcome::Done) };
            let api: Api<ConfigMap> = Api::namespaced(client, &key.name);
            match current {
                None => settled(api.create(&PostParams::default(), &next).await),
                Some(_) => api
                    .replace(NAME, &PostParams::default(), &next)
                    .await
                    .attempting("write root CA")
                    .map(|_| Outcome::Done),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundle_is_written_once_and_put_right_when_someone_changes_it() {
        let mut map = plan("PEM", None).expect("is missing");
        assert_eq!(map.data.as_ref().unwrap()["ca.crt"], "PEM");
        assert_eq!(plan("PEM", Some(&map)), None);
        map.data = Some(BTreeMap::from([("ca.crt".into(), "forged".into()), ("more".into(), "x".into())]));
        assert_eq!(plan("PEM", Some(&map)).unwrap().data.unwrap().len(), 1);
        assert_eq!(plan("NEW", plan("PEM", None).as_ref()).unwrap().data.unwrap()["ca.crt"], "NEW");
    }
}
