//! ResourceQuota: what a namespace uses, recounted when something in it stops using. Admission adds to the
//! count as things are made, in the transaction that makes them; here it comes down again.
//!
//! A count that comes down is made from fresh lists and written against the revision the quota had before them:
//! whatever was charged since then changed the quota, and the write is refused. So nothing is ever forgotten
//! that was charged, however far this process' informers are behind.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use ferry_api::quantity::{Format, Quantity};
use ferry_api::quota::{self, Amounts, ClaimOfDevices, DeviceClasses, Item, counted_resource};
use ferry_client::informer::Object;
use ferry_client::{
    Attempt, CancellationToken, Client, Error, Event, Informer, Informers, Metadata, NamespacedName, Outcome,
    Queue, error,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerStatus, PersistentVolumeClaim, Pod, ResourceQuota, ResourceQuotaSpec, ResourceQuotaStatus,
    Service,
};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube::api::{Api, ApiResource, ListParams, PostParams};
use parking_lot::Mutex;

use crate::context::{Context, Running};
use crate::discovery::discover;
use crate::pods::{is_deleting, is_finished};

const CONTROLLER: &str = "resourcequota-controller";
const RESOURCE_CLAIMS: &str = "resourceclaims.resource.k8s.io";
const DEVICE_CLASSES: &str = "deviceclasses.resource.k8s.io";

/// What there is in a namespace, as far as a quota speaks of it.
#[derive(Default)]
struct Content {
    pods: Vec<Arc<Pod>>,
    services: Vec<Arc<Service>>,
    claims: Vec<Arc<PersistentVolumeClaim>>,
    resource_claims: Vec<Arc<ResourceClaim>>,
    classes: DeviceClasses,
    /// Objects that are only counted, by the quota's own name for them.
    counted: BTreeMap<String, usize>,
}

/// How much of it the quota counts.
fn used(spec: &ResourceQuotaSpec, content: &Content, now: Timestamp) -> Amounts {
    let scopes = quota::scopes(spec);
    let pods = content.pods.iter().map(|pod| Item::Pod(pod));
    let services = content.services.iter().map(|service| Item::Service(service));
    let claims = content.claims.iter().map(|claim| Item::Claim(claim));
    let pod_of = |claim: &ResourceClaim| {
        let named = |pod: &&Arc<Pod>, name: &str| pod.metadata.name.as_deref() == Some(name);
        let find = |name: &str| content.pods.iter().find(|pod| named(pod, name)).cloned();
        quota::pod_of(claim, find, || content.resource_claims.clone())
    };
    let paying: Vec<Option<Arc<Pod>>> = content.resource_claims.iter().map(|claim| pod_of(claim)).collect();
    let resource_claims = content.resource_claims.iter().zip(&paying).map(|(claim, pod)| {
        Item::ResourceClaim(ClaimOfDevices { claim, classes: &content.classes, pod: pod.as_deref() })
    });
    let mut total = Amounts::new();
    for item in pods.chain(services).chain(claims).chain(resource_claims) {
        if scopes.iter().all(|scope| item.has_scope(scope)) {
            quota::add(&mut total, item.usage(now));
        }
    }
    if scopes.is_empty() {
        let number = |count: usize| Quantity::from_value(count as i64, Format::DecimalSi);
        total.extend(content.counted.iter().map(|(name, count)| (name.clone(), number(*count))));
    }
    total
}

/// The status a quota should have: the limits it was given and the use of just those.
fn status(quota: &ResourceQuota, used: &Amounts) -> ResourceQuotaStatus {
    let hard = quota.spec.as_ref().and_then(|spec| spec.hard.clone()).unwrap_or_default();
    let used: BTreeMap<String, ApiQuantity> = hard
        .keys()
        .map(|name| {
            let amount = used.get(name).copied().unwrap_or(Quantity::ZERO);
            (name.clone(), ApiQuantity(amount.to_string()))
        })
        .collect();
    ResourceQuotaStatus { hard: Some(hard), used: Some(used) }
}

/// A count that forgets some use is made from fresh lists, and so is the first one under new limits: what came
/// just before the limits was not charged, and no event of it will wake anyone.
fn needs_lists(new: &ResourceQuotaStatus, old: Option<&ResourceQuotaStatus>) -> bool {
    let limits =
        |status: Option<&ResourceQuotaStatus>| quota::read(status.and_then(|status| status.hard.as_ref()));
    let before = quota::read(old.and_then(|old| old.used.as_ref()));
    limits(Some(new)) != limits(old)
        || quota::read(new.used.as_ref())
            .iter()
            .any(|(name, amount)| before.get(name).is_some_and(|before| amount < before))
}

type CountedKind = (ApiResource, Informer<Metadata>);

struct Controller {
    client: Client,
    informers: Informers,
    quotas: Informer<ResourceQuota>,
    pods: Informer<Pod>,
    services: Informer<Service>,
    claims: Informer<PersistentVolumeClaim>,
    /// Kinds that some quota counts by number, by `resource.group` and whether they are in namespaces; and the classes of
    /// devices.
    counted: Mutex<HashMap<(String, bool), CountedKind>>,
    queue: Queue<NamespacedName>,
    shutdown: CancellationToken,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let queue = builder.queue();
    let (quotas, pods, services, claims) =
        (builder.informer(), builder.informer(), builder.informer(), builder.informer());
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        informers: context.informers.clone(),
        quotas: quotas.clone(),
        pods: pods.clone(),
        services: services.clone(),
        claims: claims.clone(),
        counted: Mutex::default(),
        queue: queue.clone(),
        shutdown: context.shutdown.clone(),
    });
    builder
        .over("resourcequotas", queue, controller)
        .watches(&quotas, |_, event| if quota_matters(event) { vec![event.key()] } else { vec![] })
        .watches(&pods, |it, event| it.quotas_if(pod_matters(event, Timestamp::now()), event))
        .watches(&services, |it, event| it.quotas_if(ends_or(event, |old, new| old.spec != new.spec), event))
        .watches(&claims, |it, event| it.quotas_if(ends_or(event, claim_matters), event))
        .run(Controller::reconcile)
}

fn claim_matters(old: &PersistentVolumeClaim, new: &PersistentVolumeClaim) -> bool {
    let allocated = |claim: &PersistentVolumeClaim| {
        claim.status.as_ref().and_then(|status| status.allocated_resources.clone())
    };
    old.spec != new.spec || allocated(old) != allocated(new)
}

/// Use that changed was written by admission or from here, and needs no recount; limits in the status that are
/// not the quota's own were written by somebody else.
fn quota_matters(event: &Event<ResourceQuota>) -> bool {
    let quota = event.object();
    let wanted = quota::read(quota.spec.as_ref().and_then(|spec| spec.hard.as_ref()));
    let told = quota::read(quota.status.as_ref().and_then(|status| status.hard.as_ref()));
    event.old().is_none_or(|old| old.spec != quota.spec) || wanted != told
}

/// The object went, or changed in a way that matters. What is made anew was charged already.
fn ends_or<K: Object>(event: &Event<K>, matters: impl Fn(&K, &K) -> bool) -> bool {
    match event {
        Event::Added(_) => false,
        Event::Modified { old, new } => matters(old, new),
        Event::Deleted { .. } => true,
    }
}

fn pod_matters(event: &Event<Pod>, now: Timestamp) -> bool {
    let held = |pod: &Pod| -> Vec<_> {
        let status = pod.status.as_ref();
        let statuses = status.into_iter().flat_map(|status| {
            status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten())
        });
        statuses.map(|status: &ContainerStatus| status.resources.clone()).collect()
    };
    let asked = |pod: &Pod| -> Vec<_> {
        let spec = pod.spec.iter();
        spec.flat_map(|spec| spec.containers.iter().map(|container| container.resources.clone())).collect()
    };
    let claim = |pod: &Pod| {
        let status = pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
        status.map(|status| status.resource_claim_name.clone())
    };
    ends_or(event, |old, new| {
        quota::counts(old, now) != quota::counts(new, now)
            || quota::is_terminating(old) != quota::is_terminating(new)
            || is_deleting(old) != is_deleting(new)
            || held(old) != held(new)
            || asked(old) != asked(new)
            || claim(old) != claim(new)
    })
}

impl Controller {
    /// The quotas of an object's namespace, if its change matters to them.
    fn quotas_if<K: Object>(&self, matters: bool, event: &Event<K>) -> Vec<NamespacedName> {
        if !matters {
            return Vec::new();
        }
        let quotas = self.quotas.list_namespace(&event.key().namespace);
        quotas.iter().map(|quota| NamespacedName::of(&**quota)).collect()
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        if self.quotas.get(&key).is_none() {
            return Ok(Outcome::Done);
        }
        // Read anew: what woke us may be newer than the quota this process has seen, charge included.
        let api: Api<ResourceQuota> = Api::namespaced(self.client.clone(), &key.namespace);
        // Listed by its name: upstream's policy lets this loop list quotas, not get one.
        let named = ListParams::default().fields(&format!("metadata.name={}", key.name));
        let listed = api.list(&named).await.attempting("read the quota")?;
        let Some(quota) = listed.items.into_iter().next() else {
            return Ok(Outcome::Done);
        };
        let spec = quota.spec.clone().unwrap_or_default();
        let known = self.clone().known(&spec, &key.namespace).await?;
        let mut next = status(&quota, &used(&spec, &known, Timestamp::now()));
        if needs_lists(&next, quota.status.as_ref()) {
            let listed = self.clone().listed(&spec, &key.namespace).await?;
            next = status(&quota, &used(&spec, &listed, Timestamp::now()));
        }
        self.write(&api, quota, next).await?;
        // A pod that outstays its deletion stops counting without any event.
        let leaving =
            self.pods.list_namespace(&key.namespace).iter().any(|pod| is_deleting(pod) && !is_finished(pod));
        Ok(if leaving { Outcome::After(Duration::from_secs(30)) } else { Outcome::Done })
    }

    async fn write(
        &self,
        api: &Api<ResourceQuota>,
        mut quota: ResourceQuota,
        status: ResourceQuotaStatus,
    ) -> Result<(), Error> {
        if quota.status.as_ref() == Some(&status) {
            return Ok(());
        }
        quota.status = Some(status);
        let name = quota.metadata.name.clone().unwrap_or_default();
        let written = api.replace_status(&name, &PostParams::default(), &quota).await;
        error::ignore_not_found(written).attempting("write usage")?;
        Ok(())
    }

    /// What the informers know; it may be a little behind.
    async fn known(self: Arc<Self>, spec: &ResourceQuotaSpec, namespace: &str) -> Result<Content, Error> {
        let mut content = Content {
            pods: self.pods.list_namespace(namespace),
            services: self.services.list_namespace(namespace),
            claims: self.claims.list_namespace(namespace),
            ..Content::default()
        };
        if counts_devices(spec) {
            self.clone().informer_of(RESOURCE_CLAIMS).await?;
            self.clone().read_devices(&mut content, namespace).await?;
        }
        for (name, resource) in only_counted(spec) {
            if let Some((_, informer)) = self.clone().informer_of(resource).await? {
                content.counted.insert(name.into(), informer.list_namespace(namespace).len());
            }
        }
        Ok(content)
    }

    /// What the server has now.
    async fn listed(self: Arc<Self>, spec: &ResourceQuotaSpec, namespace: &str) -> Result<Content, Error> {
        let mut content = Content {
            pods: list(&self.client, namespace).await?,
            services: list(&self.client, namespace).await?,
            claims: list(&self.client, namespace).await?,
            ..Content::default()
        };
        if counts_devices(spec) {
            self.clone().read_devices(&mut content, namespace).await?;
        }
        for (name, resource) in only_counted(spec) {
            if let Some((resource, _)) = self.clone().informer_of(resource).await? {
                let api: Api<Metadata> = Api::namespaced_with(self.client.clone(), namespace, &resource);
                let objects = api.list_metadata(&ListParams::default()).await;
                let objects = objects.attempting("list what is counted")?;
                content.counted.insert(name.into(), objects.items.len());
            }
        }
        Ok(content)
    }

    /// Claims for devices, and the classes that say what these count as. They may not be served.
    async fn read_devices(self: Arc<Self>, content: &mut Content, namespace: &str) -> Result<(), Error> {
        if self.clone().follow(DEVICE_CLASSES, false).await?.is_none() {
            return Ok(());
        }
        let classes: Api<DeviceClass> = Api::all(self.client.clone());
        let listed = classes.list(&ListParams::default()).await.attempting("list classes of devices")?;
        for class in listed.items {
            content.classes.add(class.metadata.name.unwrap_or_default(), class.spec.extended_resource_name);
        }
        content.resource_claims = list(&self.client, namespace).await?;
        Ok(())
    }

    /// Quotas that may count what a class stands for.
    fn quotas_of_devices(&self) -> Vec<NamespacedName> {
        let quotas = self.quotas.list();
        let counting = quotas.iter().filter(|quota| quota.spec.as_ref().is_some_and(counts_devices));
        counting.map(|quota| NamespacedName::of(&**quota)).collect()
    }

    /// The informer of a counted kind, started when a quota first names it.
    async fn informer_of(self: Arc<Self>, resource: &str) -> Result<Option<CountedKind>, Error> {
        self.follow(resource, true).await
    }

    /// What happens to objects of namespaces wakes the quotas there, other kinds those that count devices.
    async fn follow(self: Arc<Self>, resource: &str, namespaced: bool) -> Result<Option<CountedKind>, Error> {
        // A quota may name what is in no namespace; that counts nothing.
        let key = (resource.to_owned(), namespaced);
        if let Some(known) = self.counted.lock().get(&key).cloned() {
            return Ok(Some(known));
        }
        let found = discover(&self.client).await.attempting("discover counted resources")?;
        let found = found.resources.into_iter().find(|found| {
            found.group_resource() == resource && found.namespaced == namespaced && found.can("watch")
        });
        let Some(found) = found else { return Ok(None) };
        let counted = {
            let mut counted = self.counted.lock();
            let start = || {
                let informer = self.informers.metadata(&found.api, &self.shutdown);
                let waking = Arc::downgrade(&self);
                informer.handle(move |event: &Event<Metadata>| {
                    let Some(controller) = waking.upgrade() else { return };
                    let keys = match namespaced {
                        true => controller.quotas_if(ends_or(event, |_, _| false), event),
                        false => controller.quotas_of_devices(),
                    };
                    for key in keys {
                        controller.queue.add_caused(key, event.revision());
                    }
                });
                (found.api.clone(), informer)
            };
            counted.entry(key).or_insert_with(start).clone()
        };
        counted.1.synced().await;
        Ok(Some(counted))
    }
}

async fn list<K>(client: &Client, namespace: &str) -> Result<Vec<Arc<K>>, Error>
where
    K: Object + kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
    <K as kube::Resource>::DynamicType: Default,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let objects = api.list(&ListParams::default()).await.attempting("list what is counted")?;
    Ok(objects.items.into_iter().map(Arc::new).collect())
}

fn counts_devices(spec: &ResourceQuotaSpec) -> bool {
    spec.hard.iter().flatten().any(|(name, _)| quota::may_count_devices(name))
}

/// Names of the quota that count objects of a kind that is measured in no other way, with the resource.
fn only_counted(spec: &ResourceQuotaSpec) -> impl Iterator<Item = (&str, &str)> {
    const MEASURED: [&str; 3] = ["pods", "services", "persistentvolumeclaims"];
    let names = spec.hard.iter().flatten().map(|(name, _)| name.as_str());
    names
        .filter_map(|name| Some((name, counted_resource(name)?)))
        .filter(|(_, resource)| !MEASURED.contains(resource))
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
        let number = |count| Quantity::from_value(count, Format::DecimalSi);
        let used = Amounts::from([("pods".to_string(), number(3)), ("services".to_string(), number(1))]);
        let status = status(&quota, &used);
        let used = status.used.unwrap();
        assert_eq!(used.len(), 3);
        assert_eq!((used["pods"].0.as_str(), used["requests.memory"].0.as_str()), ("3", "0"));
        assert_eq!(status.hard, quota.spec.unwrap().hard);
    }

    #[test]
    fn a_count_that_forgets_something_or_is_the_first_is_made_from_lists() {
        let told = |pods: &str| ResourceQuotaStatus {
            used: Some(BTreeMap::from([("pods".to_string(), ApiQuantity(pods.into()))])),
            ..Default::default()
        };
        assert!(needs_lists(&told("2"), Some(&told("3"))));
        assert!(!needs_lists(&told("3"), Some(&told("3"))));
        assert!(!needs_lists(&told("4"), Some(&told("3"))));
        let limited = ResourceQuotaStatus {
            hard: Some(BTreeMap::from([("pods".to_string(), ApiQuantity("9".into()))])),
            ..told("4")
        };
        assert!(needs_lists(&limited, None));
        assert!(needs_lists(&limited, Some(&told("4"))));
    }

    #[test]
    fn a_pod_and_its_claim_are_charged_once_for_a_device() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "u"},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"example.com/gpu": "2"}}}]},
        }))
        .unwrap();
        let claim = |name: &str, owners: serde_json::Value, count: i64| -> ResourceClaim {
            let annotations = serde_json::json!({"resource.kubernetes.io/extended-resource-claim": "true"});
            let exactly =
                serde_json::json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count});
            serde_json::from_value(serde_json::json!({
                "metadata": {"name": name, "annotations": annotations, "ownerReferences": owners},
                "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
            }))
            .unwrap()
        };
        let owner = serde_json::json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}]);
        let mut classes = DeviceClasses::default();
        classes.add("gpu", Some("example.com/gpu"));
        let content = Content {
            pods: vec![Arc::new(pod)],
            resource_claims: vec![
                Arc::new(claim("of-pod", owner, 2)),
                Arc::new(claim("own", serde_json::json!([]), 1)),
            ],
            classes,
            ..Content::default()
        };
        let all = used(&ResourceQuotaSpec::default(), &content, Timestamp::UNIX_EPOCH);
        let count = |name: &str| all.get(name).map(|amount| amount.value());
        assert_eq!(count("requests.example.com/gpu"), Some(3));
        assert_eq!(count("requests.deviceclass.resource.kubernetes.io/gpu"), Some(3));
        assert_eq!(count("gpu.deviceclass.resource.k8s.io/devices"), Some(3));
        assert_eq!(count("count/resourceclaims.resource.k8s.io"), Some(2));
    }

    #[test]
    fn scopes_leave_out_what_they_do_not_speak_of() {
        let content = Content {
            services: vec![Arc::new(named("s"))],
            counted: BTreeMap::from([("count/secrets".to_string(), 4)]),
            ..Content::default()
        };
        let mut spec = ResourceQuotaSpec::default();
        let all = used(&spec, &content, Timestamp::UNIX_EPOCH);
        assert_eq!((all["services"].value(), all["count/secrets"].value()), (1, 4));
        spec.scopes = Some(vec!["BestEffort".into()]);
        assert!(used(&spec, &content, Timestamp::UNIX_EPOCH).is_empty());
    }
}
