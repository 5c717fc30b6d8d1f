//! Every namespace has a ServiceAccount `default`, so that pods always have an identity.

use std::sync::Arc;

use ferry_client::{Attempt, Client, Error, Informer, NamespacedName, Outcome, error};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{Api, ObjectMeta, PostParams};

use crate::context::{Context, Running};

const CONTROLLER: &str = "serviceaccount-controller";
const DEFAULT: &str = "default";

pub fn is_active(namespace: &Namespace) -> bool {
    let phase = namespace.status.as_ref().and_then(|status| status.phase.as_deref());
    namespace.metadata.deletion_timestamp.is_none() && phase != Some("Terminating")
}

struct Controller {
    client: Client,
    namespaces: Informer<Namespace>,
    accounts: Informer<ServiceAccount>,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let (namespaces, accounts) = (builder.informer(), builder.informer());
    let controller = Controller {
        client: context.client.clone(),
        namespaces: namespaces.clone(),
        accounts: accounts.clone(),
    };
    builder
        .of(&namespaces, Arc::new(controller))
        .watches(&accounts, |_, event| {
            let key = event.key();
            let gone = event.is_deleted() && key.name == DEFAULT;
            if gone { vec![NamespacedName::cluster(key.namespace)] } else { vec![] }
        })
        .run(Controller::reconcile)
}

impl Controller {
    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let wanted = self.namespaces.get(&key).is_some_and(|namespace| is_active(&namespace));
        if !wanted || self.accounts.get(&NamespacedName::new(key.name.clone(), DEFAULT)).is_some() {
            return Ok(Outcome::Done);
        }
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &key.name);
        let metadata = ObjectMeta { name: Some(DEFAULT.into()), ..Default::default() };
        let account = ServiceAccount { metadata, ..Default::default() };
        created_or_exists(api.create(&PostParams::default(), &account).await)
    }
}

/// Made, or there already, or no longer wanted.
pub fn created_or_exists<K>(created: Result<K, kube::Error>) -> Result<Outcome, Error> {
    match created {
        Err(refused) if error::is_already_exists(&refused) || error::is_namespace_terminating(&refused) => {
            Ok(Outcome::Done)
        }
        created => created.attempting("create").map(|_| Outcome::Done),
    }
}
