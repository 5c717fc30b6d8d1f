//! ResourceQuota: what a namespace uses, recounted whenever something in it changes. Admission
//! adds to the count as things are made; here it is put right and comes down again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use ferry_api::quantity::{Format, Quantity};
use ferry_client::{
    Attempt, CancellationToken, Client, Error, Event, Informer, Informers, Metadata, NamespacedName, Outcome,
    Queue, error,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuota, ResourceQuotaStatus, Service};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube::api::{Api, PostParams};
use parking_lot::Mutex;

use crate::context::{Context, Running, enqueue_own};
use crate::discovery::discover;
use crate::pods::{is_deleting, is_finished};
use crate::quota_usage::{self as usage, Usage, counted_resource};

const CONTROLLER: &str = "resourcequota-controller";

/// The status a quota should have: the limits it was given and the use of just those.
fn status(quota: &ResourceQuota, used: &Usage) -> ResourceQuotaStatus {
    let hard = quota.spec.as_ref().and_then(|spec| spec.hard.clone()).unwrap_or_default();
    let amount = |name: &String| {
        // What nobody uses is written as 0, in the way the limit is written.
        let zero = || {
            Quantity::from_value(
                0,
                hard.get(name)
                    .and_then(|hard| Quantity::parse(&hard.0).ok())
                    .map_or(Format::DecimalSi, |hard| hard.format()),
            )
        };
        used.get(name).copied().unwrap_or_else(zero)
    };
    let used: BTreeMap<String, ApiQuantity> =
        hard.keys().map(|name| (name.clone(), ApiQuantity(amount(name).to_string()))).collect();
    ResourceQuotaStatus { hard: Some(hard), used: Some(used) }
}

struct Controller {
    client: Client,
    informers: Informers,
    quotas: Informer<ResourceQuota>,
    pods: Informer<Pod>,
    services: Informer<Service>,
    claims: Informer<PersistentVolumeClaim>,
    /// Kinds that some quota counts by number, by `resource.group`.
    counted: Mutex<HashMap<String, Informer<Metadata>>>,
    queue: Queue<NamespacedName>,
    shutdown: CancellationToken,
}

pub fn start(context: &Context) -> Running {
    let queue: Queue<NamespacedName> = Queue::default();
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        informers: context.informers.clone(),
        quotas: context.informers.of(),
        pods: context.informers.of(),
        services: context.informers.of(),
        claims: context.informers.of(),
        counted: Mutex::default(),
        queue: queue.clone(),
        shutdown: context.shutdown.clone(),
    });
    enqueue_own(&controller.quotas, &queue);
    let waking = controller.clone();
    controller.pods.handle(move |event: &Event<Pod>| {
        let seen = |pod: &Pod| {
            (is_finished(pod), is_deleting(pod), pod.spec.as_ref().map(|spec| spec.resources.clone()))
        };
        if event.old().is_none_or(|old| seen(old) != seen(event.object())) {
            waking.wake(event);
        }
    });
    let waking = controller.clone();
    controller.services.handle(move |event: &Event<Service>| {
        if event.old().is_none_or(|old| old.spec != event.object().spec) {
            waking.wake(event);
        }
    });
    let waking = controller.clone();
    controller.claims.handle(move |event: &Event<PersistentVolumeClaim>| {
        if event.old().is_none_or(|old| old.spec != event.object().spec) {
            waking.wake(event);
        }
    });
    let ready = controller.clone();
    let synced = async move {
        ready.quotas.synced().await;
        ready.pods.synced().await;
        ready.services.synced().await;
        ready.claims.synced().await;
    };
    context.reconcile(CONTROLLER, "resourcequotas", queue, synced, move |key| {
        let controller = controller.clone();
        async move { controller.reconcile(key).await }
    })
}

impl Controller {
    fn wake<K: ferry_client::informer::Object>(&self, event: &Event<K>) {
        for quota in self.quotas.list_namespace(&event.key().namespace) {
            self.queue.add_caused(NamespacedName::of(&*quota), event.revision());
        }
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(quota) = self.quotas.get(&key) else { return Ok(Outcome::Done) };
        let used = self.clone().used(&quota, &key.namespace).await?;
        let mut next = (*quota).clone();
        next.status = Some(status(&quota, &used));
        if next.status != quota.status {
            let api: Api<ResourceQuota> = Api::namespaced(self.client.clone(), &key.namespace);
            let written = api.replace_status(&key.name, &PostParams::default(), &next).await;
            error::ignore_not_found(written).attempting("write usage")?;
        }
        // A pod that outstays its deletion stops counting without any event.
        let leaving =
            self.pods.list_namespace(&key.namespace).iter().any(|pod| is_deleting(pod) && !is_finished(pod));
        Ok(if leaving { Outcome::After(Duration::from_secs(30)) } else { Outcome::Done })
    }

    async fn used(self: Arc<Self>, quota: &ResourceQuota, namespace: &str) -> Result<Usage, Error> {
        let spec = quota.spec.clone().unwrap_or_default();
        let now = Timestamp::now();
        let mut total = Usage::new();
        for pod in self.pods.list_namespace(namespace) {
            if usage::counts(&pod, now) && usage::in_scope(&spec, &pod) {
                usage::add(&mut total, usage::of_pod(&pod));
            }
        }
        if usage::has_scopes(&spec) {
            // Scopes speak of pods only.
            return Ok(total);
        }
        for service in self.services.list_namespace(namespace) {
            usage::add(&mut total, usage::of_service(&service));
        }
        for claim in self.claims.list_namespace(namespace) {
            usage::add(&mut total, usage::of_claim(&claim));
        }
        for name in spec.hard.iter().flatten().map(|(name, _)| name) {
            let known =
                ["count/pods", "count/services", "count/persistentvolumeclaims"].contains(&name.as_str());
            if let Some(resource) = counted_resource(name).filter(|_| !known)
                && let Some(informer) = self.clone().informer_of(resource).await?
            {
                let count = informer.list_namespace(namespace).len();
                total.insert(name.clone(), Quantity::from_value(count as i64, Format::DecimalSi));
            }
        }
        Ok(total)
    }

    /// The informer of a counted kind, started when a quota first names it.
    async fn informer_of(self: Arc<Self>, resource: &str) -> Result<Option<Informer<Metadata>>, Error> {
        if let Some(known) = self.counted.lock().get(resource).cloned() {
            return Ok(Some(known));
        }
        let found = discover(&self.client).await.attempting("discover counted resources")?;
        let found = found
            .resources
            .into_iter()
            .find(|found| found.group_resource() == resource && found.namespaced && found.can("watch"));
        let Some(found) = found else { return Ok(None) };
        let informer = {
            let mut counted = self.counted.lock();
            let start = || {
                let informer = self.informers.metadata(&found.api, &self.shutdown);
                let waking = Arc::downgrade(&self);
                informer.handle(move |event: &Event<Metadata>| {
                    if event.old().is_none()
                        && let Some(controller) = waking.upgrade()
                    {
                        controller.wake(event);
                    }
                });
                informer
            };
            counted.entry(resource.into()).or_insert_with(start).clone()
        };
        informer.synced().await;
        Ok(Some(informer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::named;

    #[test]
    fn only_what_is_limited_is_told_and_nothing_is_zero() {
        let mut quota: ResourceQuota = named("q");
        let hard = [("pods", "10"), ("requests.memory", "1Gi"), ("count/configmaps", "5")];
        quota.spec.get_or_insert_default().hard = Some(
            hard.iter().map(|(name, value)| (name.to_string(), ApiQuantity(value.to_string()))).collect(),
        );
        let used = Usage::from([
            ("pods".to_string(), Quantity::from_value(3, Format::DecimalSi)),
            ("services".to_string(), usage::one()),
        ]);
        let status = status(&quota, &used);
        let used = status.used.unwrap();
        assert_eq!(used.len(), 3);
        assert_eq!((used["pods"].0.as_str(), used["requests.memory"].0.as_str()), ("3", "0"));
        assert_eq!(status.hard, quota.spec.unwrap().hard);
    }
}
