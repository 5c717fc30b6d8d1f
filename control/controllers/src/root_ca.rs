//! Every namespace has the ConfigMap `kube-root-ca.crt`, by which pods know the API server.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferry_client::{Attempt, Client, Error, Informer, NamespacedName, Outcome, Selection};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, ObjectMeta, PostParams};

use crate::context::{Context, Running};
use crate::service_account::{created_or_exists, is_active};

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
    let builder = context.controller(CONTROLLER);
    let by_name = Selection { fields: Some(format!("metadata.name={NAME}")), labels: None };
    let (namespaces, maps) = (builder.informer::<Namespace>(), builder.selected::<ConfigMap>(by_name));
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        namespaces: namespaces.clone(),
        maps: maps.clone(),
        bundle,
    });
    builder
        .of(&namespaces, controller)
        .watches(&maps, |_, event| vec![NamespacedName::cluster(event.key().namespace)])
        .run(Controller::reconcile)
}

struct Controller {
    client: Client,
    namespaces: Informer<Namespace>,
    maps: Informer<ConfigMap>,
    bundle: String,
}

impl Controller {
    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        if !self.namespaces.get(&key).is_some_and(|namespace| is_active(&namespace)) {
            return Ok(Outcome::Done);
        }
        let current = self.maps.get(&NamespacedName::new(key.name.clone(), NAME));
        let Some(next) = plan(&self.bundle, current.as_deref()) else { return Ok(Outcome::Done) };
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &key.name);
        match current {
            None => created_or_exists(api.create(&PostParams::default(), &next).await),
            Some(_) => api
                .replace(NAME, &PostParams::default(), &next)
                .await
                .attempting("write root CA")
                .map(|_| Outcome::Done),
        }
    }
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
