//! ResourceQuota: refuses a write whose additional usage exceeds a quota of its namespace.
//!
//! The new count is written in the same transaction as the object itself, compared against the count it was
//! made from: a quota's status and the objects it counts are never apart, whatever fails or runs beside it.
//! Upstream writes the count first and the object afterwards, so that a failed write stays charged until the
//! quota controller recounts, and a recount between the two admits too much; neither can happen here.
//!
//! Requests of one namespace are serialized, so that many at once do not run into each other's comparisons;
//! between several servers the comparison alone decides.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ferry_api::quota::{self, Amounts, ClaimOfDevices, DeviceClasses, Item, Requirement};
use ferry_api::{GroupResource, Object, Quantity, Status};
use ferry_registry::strategy::TxnPart;
use ferry_registry::verbs::{Operation, Reservation};
use ferry_registry::{Registry, Resource};
use ferry_store::{Compare, Operation as StoreOperation, Revision};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuotaSpec, Service};
use k8s_openapi::api::resource::v1::ResourceClaim;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::OwnedMutexGuard;

use super::Context;
use crate::chain::{Phase, Plugin, Request};
use crate::configuration::BadConfiguration;
use crate::lookup::{in_namespace, lookup};

/// How long a request waits for the namespace's lock.
const PATIENCE: Duration = Duration::from_secs(10);

/// Never stored, or never counted.
const IGNORED: [(&str, &str); 10] = [
    ("", "bindings"),
    ("", "componentstatuses"),
    ("", "events"),
    ("events.k8s.io", "events"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authentication.k8s.io", "selfsubjectreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
];

pub fn make(context: &Context) -> Result<Arc<dyn Plugin>, BadConfiguration> {
    let configuration: Configuration = context.configuration.of("ResourceQuota")?;
    Ok(Arc::new(ResourceQuota {
        registry: context.registry.clone(),
        limited: configuration.limited_resources,
        locks: Arc::default(),
    }))
}

/// Of kind ResourceQuotaConfiguration: what may be used only where a quota covers it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Configuration {
    limited_resources: Vec<Limited>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Limited {
    api_group: String,
    resource: String,
    match_contains: Vec<String>,
    match_scopes: Vec<Requirement>,
}

struct ResourceQuota {
    registry: Arc<Registry>,
    limited: Vec<Limited>,
    locks: Arc<NamespaceLocks>,
}

#[async_trait]
impl Plugin for ResourceQuota {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Reserve]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        let (group, plural) = (&*request.call.kind.group, &*request.call.kind.plural);
        request.operation != Operation::Delete
            && !request.call.namespace.is_empty()
            && request.call.kind.is_namespaced()
            && !IGNORED.contains(&(group, plural))
            && may_change_use(request.operation, group, plural, request.call.subresource)
            && (!self.limited.is_empty() || self.has_quota(request.call.namespace))
    }

    async fn reserve(
        &self,
        request: &Request<'_>,
        object: &Object,
        old: Option<&Object>,
    ) -> Result<Reservation, Status> {
        let resource = request.resource();
        let claims = |new, old| Claims::read(&self.registry, request.call.namespace, new, old);
        let views = Views::read(&resource, object, old, claims)?;
        let Some(write) = views.write(request, &self.limited, Timestamp::now()) else {
            return Ok(Reservation::default());
        };
        let look = || -> Result<Vec<Quota>, Status> {
            let quotas = self.quotas(request.call.namespace)?;
            let changes = write.check(&quotas).map_err(|why| request.forbid(why))?;
            let changed = |(quota, used): (Quota, Option<Amounts>)| Some(Quota { used: used?, ..quota });
            Ok(quotas.into_iter().zip(changes).filter_map(changed).collect())
        };
        // Most that is refused, and all that no quota counts, needs no lock.
        if look()?.is_empty() || request.call.dry_run {
            return Ok(Reservation::default());
        }
        let lock = self.locks.clone().lock(request.call.namespace).await?;
        let resource = self.resource()?;
        let txn_parts = look()?.into_iter().map(|quota| quota.txn_part(&self.registry, &resource));
        let txn_parts = txn_parts.collect::<Result<_, Status>>()?;
        Ok(Reservation { txn_parts, lock: Some(Box::new(lock)) })
    }
}

impl ResourceQuota {
    fn resource(&self) -> Result<Arc<Resource>, Status> {
        self.registry
            .resource(&GroupResource::new("", "resourcequotas"))
            .ok_or_else(|| Status::internal("resource quotas are not served"))
    }

    fn has_quota(&self, namespace: &str) -> bool {
        self.resource().is_ok_and(|resource| !in_namespace(&resource, namespace).is_empty())
    }

    fn quotas(&self, namespace: &str) -> Result<Vec<Quota>, Status> {
        let resource = self.resource()?;
        let of_namespace = in_namespace(&resource, namespace);
        of_namespace.iter().map(|entry| Quota::read(entry.read_object()?, entry.revision)).collect()
    }
}

/// Which writes can change what is used at all.
fn may_change_use(operation: Operation, group: &str, plural: &str, subresource: &str) -> bool {
    let created = operation == Operation::Create;
    match (group, plural, subresource) {
        ("", "pods", "") | ("", "services", "") | ("", "persistentvolumeclaims", "") => true,
        ("", "pods", "resize") | ("", "persistentvolumeclaims", "status") => !created,
        ("resource.k8s.io", "resourceclaims", "") => true,
        (_, _, "") => created,
        _ => false,
    }
}

/// One request of a namespace after the other.
#[derive(Default)]
struct NamespaceLocks(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

struct NamespaceLock {
    locks: Arc<NamespaceLocks>,
    namespace: String,
    guard: Option<OwnedMutexGuard<()>>,
}

impl NamespaceLocks {
    async fn lock(self: Arc<NamespaceLocks>, namespace: &str) -> Result<NamespaceLock, Status> {
        let mutex = self.0.lock().entry(namespace.to_string()).or_default().clone();
        match tokio::time::timeout(PATIENCE, mutex.lock_owned()).await {
            Ok(guard) => Ok(NamespaceLock { locks: self, namespace: namespace.into(), guard: Some(guard) }),
            Err(_) => Err(Status::internal("resource quota evaluation timed out")),
        }
    }
}

impl Drop for NamespaceLock {
    fn drop(&mut self) {
        let mut locks = self.locks.0.lock();
        drop(self.guard.take());
        // Nobody waits for it: the table keeps no namespace for longer than it is written to.
        if locks.get(&self.namespace).is_some_and(|mutex| Arc::strong_count(mutex) == 1) {
            locks.remove(&self.namespace);
        }
    }
}

/// A quota as this server knows it.
#[derive(Debug, Clone)]
struct Quota {
    object: Object,
    revision: Revision,
    scopes: Vec<Requirement>,
    hard: Amounts,
    used: Amounts,
}

impl Quota {
    fn read(object: Object, revision: Revision) -> Result<Quota, Status> {
        let spec: ResourceQuotaSpec = match object.get(&["spec"]) {
            Some(spec) => ferry_api::view::of_value(spec)
                .map_err(|error| Status::internal(format!("a quota cannot be read: {error}")))?,
            None => ResourceQuotaSpec::default(),
        };
        let amounts = |field: &str| -> Amounts {
            let all = object.get(&["status", field]).and_then(Value::as_object).into_iter().flatten();
            all.filter_map(|(name, amount)| Some((name.clone(), Quantity::parse(amount.as_str()?).ok()?)))
                .collect()
        };
        let (hard, used) = (amounts("hard"), amounts("used"));
        Ok(Quota { scopes: quota::scopes(&spec), hard, used, object, revision })
    }

    /// Writes the new count, if nobody wrote another since it was read.
    fn txn_part(mut self, registry: &Registry, resource: &Resource) -> Result<TxnPart, Status> {
        let key = resource.store_key(self.object.namespace(), self.object.name());
        let used = self.used.iter().map(|(name, amount)| (name.clone(), amount.to_string().into()));
        let used: serde_json::Map<String, Value> = used.collect();
        self.object.section_mut("status").insert("used".into(), used.into());
        let value = registry.stored_form(&self.object)?;
        Ok(TxnPart {
            compare: Some(Compare::ModRevision { key: key.clone(), revision: self.revision }),
            operation: StoreOperation::Put { key, value, ttl: None },
        })
    }
}

/// The typed views that [`Item`]s borrow from.
enum Views {
    Pod(Box<Pod>, Option<Box<Pod>>),
    Service(Box<Service>, Option<Box<Service>>),
    Claim(Box<PersistentVolumeClaim>, Option<Box<PersistentVolumeClaim>>),
    ResourceClaim(Box<Claims>),
    Counted(GroupResource, bool),
}

/// A claim for devices, before and after the write, with the pods that they provide extended resources for.
struct Claims {
    new: (Box<ResourceClaim>, Option<Box<Pod>>),
    old: Option<(Box<ResourceClaim>, Option<Box<Pod>>)>,
    classes: DeviceClasses,
}

impl Claims {
    fn read(
        registry: &Registry,
        namespace: &str,
        new: Box<ResourceClaim>,
        old: Option<Box<ResourceClaim>>,
    ) -> Result<Claims, Status> {
        let mut classes = DeviceClasses::default();
        let resource = registry.resource(&GroupResource::new("resource.k8s.io", "deviceclasses"));
        for (_, entry) in resource.iter().flat_map(|resource| resource.cache.snapshot().0) {
            let class = entry.read_object()?;
            let named = class.get(&["spec", "extendedResourceName"]).and_then(Value::as_str);
            classes.add(class.name(), named);
        }
        // A pod or claim that cannot be read exempts nothing.
        let pod = |name: &str| lookup(registry, "", "pods", namespace, name).ok().flatten()?.view().ok();
        let claims = || -> Vec<Arc<ResourceClaim>> {
            let resource = registry.resource(&GroupResource::new("resource.k8s.io", "resourceclaims"));
            let entries = resource.iter().flat_map(|resource| in_namespace(resource, namespace));
            entries.filter_map(|entry| entry.read_object().ok()?.view().ok().map(Arc::new)).collect()
        };
        let with_pod = |claim: Box<ResourceClaim>| {
            let pod: Option<Box<Pod>> = quota::pod_of(&claim, pod, claims);
            (claim, pod)
        };
        Ok(Claims { new: with_pod(new), old: old.map(with_pod), classes })
    }

    fn item<'a>(&'a self, (claim, pod): &'a (Box<ResourceClaim>, Option<Box<Pod>>)) -> Item<'a> {
        Item::ResourceClaim(ClaimOfDevices { claim, classes: &self.classes, pod: pod.as_deref() })
    }
}

impl Views {
    fn read(
        resource: &GroupResource,
        new: &Object,
        old: Option<&Object>,
        claims: impl FnOnce(Box<ResourceClaim>, Option<Box<ResourceClaim>>) -> Result<Claims, Status>,
    ) -> Result<Views, Status> {
        fn both<T: serde::de::DeserializeOwned>(
            new: &Object,
            old: Option<&Object>,
        ) -> Result<(Box<T>, Option<Box<T>>), Status> {
            let view = |object: &Object| object.view::<T>().map(Box::new).map_err(Status::internal);
            Ok((view(new)?, old.map(view).transpose()?))
        }
        Ok(match (&*resource.group, &*resource.resource) {
            ("", "pods") => both(new, old).map(|(new, old)| Views::Pod(new, old))?,
            ("", "services") => both(new, old).map(|(new, old)| Views::Service(new, old))?,
            ("", "persistentvolumeclaims") => both(new, old).map(|(new, old)| Views::Claim(new, old))?,
            ("resource.k8s.io", "resourceclaims") => {
                let (claim, before) = both(new, old)?;
                Views::ResourceClaim(Box::new(claims(claim, before)?))
            }
            _ => Views::Counted(resource.clone(), old.is_some()),
        })
    }

    fn items(&self) -> (Item<'_>, Option<Item<'_>>) {
        match self {
            Views::Pod(new, old) => (Item::Pod(new), old.as_deref().map(Item::Pod)),
            Views::Service(new, old) => (Item::Service(new), old.as_deref().map(Item::Service)),
            Views::Claim(new, old) => (Item::Claim(new), old.as_deref().map(Item::Claim)),
            Views::ResourceClaim(claims) => {
                (claims.item(&claims.new), claims.old.as_ref().map(|old| claims.item(old)))
            }
            Views::Counted(resource, existed) => {
                (Item::Counted(resource), existed.then_some(Item::Counted(resource)))
            }
        }
    }

    /// `None` where this very write cannot change what is used.
    fn write<'a>(
        &'a self,
        request: &Request<'_>,
        limited: &'a [Limited],
        now: Timestamp,
    ) -> Option<Write<'a>> {
        // An update of a pod itself can only give it a deadline, which moves it between scopes.
        if let Views::Pod(new, Some(old)) = self
            && request.call.subresource.is_empty()
            && quota::is_terminating(new) == quota::is_terminating(old)
        {
            return None;
        }
        let (new, old) = self.items();
        let of_kind: Vec<&Limited> = limited
            .iter()
            .filter(|limited| {
                limited.api_group == request.call.kind.group && limited.resource == request.call.kind.plural
            })
            .collect();
        let scopes = limited.iter().flat_map(|limited| &limited.match_scopes);
        let limited_scopes = scopes.filter(|scope| new.has_scope(scope)).collect();
        let status = request.call.subresource == "status";
        Some(Write { new, old, limited: of_kind, limited_scopes, status, now })
    }
}

/// One write, against whatever quotas there are.
struct Write<'a> {
    new: Item<'a>,
    old: Option<Item<'a>>,
    limited: Vec<&'a Limited>,
    limited_scopes: Vec<&'a Requirement>,
    /// A write of the status is counted but never refused: what it tells has happened.
    status: bool,
    now: Timestamp,
}

impl Write<'_> {
    /// What each quota's use would be, `None` where it stays; or why the write is refused.
    fn check(&self, quotas: &[Quota]) -> Result<Vec<Option<Amounts>>, String> {
        let counts = |item: Item<'_>, quota: &Quota| quota.scopes.iter().all(|scope| item.has_scope(scope));
        let mut counting: Vec<&Quota> = Vec::new();
        for quota in quotas {
            let names = || quota.hard.keys().map(String::as_str).filter(|name| self.new.tracks(name));
            if names().next().is_none() || !counts(self.new, quota) {
                continue;
            }
            if let Some(why) = self.new.lacks(names()) {
                return Err(format!("failed quota: {}: {why}", quota.object.name()));
            }
            if names().any(|name| !quota.used.contains_key(name)) {
                let names: Vec<&str> = names().collect();
                return Err(format!(
                    "status unknown for quota: {}, resources: {}",
                    quota.object.name(),
                    names.join(",")
                ));
            }
            counting.push(quota);
        }
        let usage = self.new.usage(self.now);
        let negative: Vec<&str> =
            usage.iter().filter(|(_, amount)| amount.is_negative()).map(|(name, _)| name.as_str()).collect();
        if !negative.is_empty() {
            return Err(format!("quota usage is negative for resource(s): {}", negative.join(",")));
        }
        let more = |before: Option<Item<'_>>| grown(&usage, before.map(|item| item.usage(self.now)));
        let cost = |quota: &Quota| more(self.old.filter(|old| counts(*old, quota)));
        if self.is_free(&counting, &more, &cost) {
            return Ok(vec![None; quotas.len()]);
        }
        self.check_covered(&usage, quotas, &counting)?;
        quotas
            .iter()
            .map(|quota| {
                let counted = counting.iter().any(|counted| std::ptr::eq(*counted, quota));
                if counted { self.charged(quota, &cost(quota)) } else { Ok(None) }
            })
            .collect()
    }

    /// The write adds nothing to what is used.
    fn is_free(
        &self,
        counting: &[&Quota],
        more: &dyn Fn(Option<Item<'_>>) -> Amounts,
        cost: &dyn Fn(&Quota) -> Amounts,
    ) -> bool {
        match counting {
            [] => more(self.old).is_empty(),
            counting => counting.iter().all(|quota| cost(quota).is_empty()),
        }
    }

    /// What is limited by configuration may be used only under a quota that covers it.
    fn check_covered(&self, usage: &Amounts, quotas: &[Quota], counting: &[&Quota]) -> Result<(), String> {
        let is_limited = |name: &str| {
            self.limited.iter().any(|limited| limited.match_contains.iter().any(|part| name.contains(part)))
        };
        let consumed = usage.iter().filter(|(_, amount)| **amount > Quantity::ZERO).map(|(name, _)| name);
        let uncovered: Vec<&str> = consumed
            .filter(|name| is_limited(name) && !counting.iter().any(|quota| quota.hard.contains_key(*name)))
            .map(String::as_str)
            .collect();
        if !uncovered.is_empty() {
            return Err(format!("insufficient quota to consume: {}", uncovered.join(",")));
        }
        let covers = |scope: &&&Requirement| {
            let mut scopes = quotas.iter().flat_map(|quota| &quota.scopes);
            scopes.any(|known| known.scope_name == scope.scope_name && self.new.has_scope(known))
        };
        let uncovered: Vec<String> = self
            .limited_scopes
            .iter()
            .filter(|scope| !covers(scope))
            .map(|scope| {
                let values = scope.values.iter().flatten().cloned().collect::<Vec<_>>().join(" ");
                format!("{{{} {} [{values}]}}", scope.scope_name, scope.operator)
            })
            .collect();
        match uncovered.is_empty() {
            true => Ok(()),
            false => Err(format!("insufficient quota to match these scopes: [{}]", uncovered.join(" "))),
        }
    }

    fn charged(&self, quota: &Quota, cost: &Amounts) -> Result<Option<Amounts>, String> {
        let mut used = quota.used.clone();
        let mut exceeded: Vec<(&str, Quantity, Quantity, Quantity)> = Vec::new();
        let mut changed = false;
        for (name, amount) in cost {
            let Some(hard) = quota.hard.get(name) else { continue };
            let before = used.get(name).copied().unwrap_or(Quantity::ZERO);
            let after = before + *amount;
            if after > *hard && !self.status {
                exceeded.push((name, *amount, before, *hard));
            }
            used.insert(name.clone(), after);
            changed = true;
        }
        if exceeded.is_empty() {
            return Ok(changed.then_some(used));
        }
        let list = |of: fn(&(&str, Quantity, Quantity, Quantity)) -> Quantity| {
            let parts = exceeded.iter().map(|line| format!("{}={}", line.0, of(line)));
            parts.collect::<Vec<_>>().join(",")
        };
        Err(format!(
            "exceeded quota: {}, requested: {}, used: {}, limited: {}",
            quota.object.name(),
            list(|line| line.1),
            list(|line| line.2),
            list(|line| line.3)
        ))
    }
}

/// What is more than before; nothing is given back here, that is the quota controller's to see.
fn grown(usage: &Amounts, before: Option<Amounts>) -> Amounts {
    let before = before.unwrap_or_default();
    usage
        .iter()
        .filter_map(|(name, amount)| {
            let more = *amount - before.get(name).copied().unwrap_or(Quantity::ZERO);
            (more > Quantity::ZERO).then(|| (name.clone(), more))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn quota(spec: Value, used: Value) -> Quota {
        let hard = spec["hard"].clone();
        let object = json!({
            "metadata": {"name": "q", "namespace": "a"}, "spec": spec, "status": {"hard": hard, "used": used},
        });
        Quota::read(Object::from_value(object).expect("an object"), Revision(7)).expect("a quota")
    }

    fn pod(cpu: &str) -> Value {
        json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}})
    }

    fn check(
        resource: (&'static str, &'static str),
        new: Value,
        old: Option<Value>,
        quotas: &[Quota],
        limited: Value,
    ) -> Result<Vec<Option<String>>, String> {
        let object = |value: Value| Object::from_value(value).expect("an object");
        let old = old.map(object);
        let resource = GroupResource::new(resource.0, resource.1);
        let views = Views::read(&resource, &object(new), old.as_ref(), |new, _| {
            let classes = DeviceClasses::default();
            Ok(Claims { new: (new, None), old: None, classes })
        })
        .expect("well formed");
        let limited: Vec<Limited> = serde_json::from_value(limited).expect("limits");
        let (new, old) = views.items();
        let scopes = limited.iter().flat_map(|limited| &limited.match_scopes);
        let write = Write {
            limited: limited.iter().collect(),
            limited_scopes: scopes.filter(|scope| new.has_scope(scope)).collect(),
            new,
            old,
            status: false,
            now: Timestamp::UNIX_EPOCH,
        };
        let show = |used: Amounts| {
            used.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(",")
        };
        Ok(write.check(quotas)?.into_iter().map(|used| used.map(show)).collect())
    }

    const PODS: (&str, &str) = ("", "pods");

    #[test]
    fn quotas_charge_what_fits_and_refuse_the_rest() {
        let quotas = [
            quota(
                json!({"hard": {"pods": "2", "requests.cpu": "1"}}),
                json!({"pods": "1", "requests.cpu": "500m"}),
            ),
            quota(json!({"hard": {"services": "2"}}), json!({"services": "0"})),
        ];
        assert_eq!(
            check(PODS, pod("250m"), None, &quotas, json!([])),
            Ok(vec![Some("pods=2,requests.cpu=750m".into()), None])
        );
        assert_eq!(
            check(PODS, pod("600m"), None, &quotas, json!([])),
            Err("exceeded quota: q, requested: requests.cpu=600m, used: requests.cpu=500m, limited: requests.cpu=1"
                .into())
        );
        assert_eq!(
            check(PODS, json!({"spec": {"containers": [{"name": "c"}]}}), None, &quotas, json!([])),
            Err("failed quota: q: must specify requests.cpu for: c".into())
        );
    }

    #[test]
    fn an_update_costs_what_it_adds() {
        let quotas = [quota(json!({"hard": {"requests.cpu": "1"}}), json!({"requests.cpu": "500m"}))];
        let changed = |new: &str, old: &str| check(PODS, pod(new), Some(pod(old)), &quotas, json!([]));
        assert_eq!(changed("700m", "500m"), Ok(vec![Some("requests.cpu=700m".into())]));
        assert_eq!(changed("100m", "500m"), Ok(vec![None]));
        assert!(changed("1100m", "500m").is_err());
    }

    #[test]
    fn a_quota_that_was_never_counted_lets_nothing_through() {
        let quotas = [quota(json!({"hard": {"pods": "2"}}), json!({}))];
        assert_eq!(
            check(PODS, pod("1"), None, &quotas, json!([])),
            Err("status unknown for quota: q, resources: pods".into())
        );
    }

    #[test]
    fn a_pod_that_moves_into_a_scope_is_charged_in_full() {
        let quotas = [quota(json!({"hard": {"pods": "1"}, "scopes": ["Terminating"]}), json!({"pods": "1"}))];
        let mut ending = pod("1");
        ending["spec"]["activeDeadlineSeconds"] = 5.into();
        assert!(check(PODS, ending.clone(), Some(pod("1")), &quotas, json!([])).is_err());
        assert_eq!(check(PODS, pod("1"), None, &quotas, json!([])), Ok(vec![None]));
        assert_eq!(check(PODS, ending.clone(), Some(ending), &quotas, json!([])), Ok(vec![None]));
    }

    #[test]
    fn objects_are_counted_by_their_group() {
        let quotas = [quota(
            json!({"hard": {"count/deployments.apps": "1", "secrets": "1"}}),
            json!({"count/deployments.apps": "1", "secrets": "0"}),
        )];
        assert_eq!(
            check(("apps", "deployments"), json!({}), None, &quotas, json!([])),
            Err("exceeded quota: q, requested: count/deployments.apps=1, used: count/deployments.apps=1, limited: count/deployments.apps=1".into())
        );
        assert_eq!(
            check(("", "secrets"), json!({}), None, &quotas, json!([])),
            Ok(vec![Some("count/deployments.apps=1,secrets=1".into())])
        );
        assert_eq!(check(("", "configmaps"), json!({}), None, &quotas, json!([])), Ok(vec![None]));
    }

    #[test]
    fn limited_resources_need_a_covering_quota() {
        let limited = json!([{"resource": "pods", "matchContains": ["requests.cpu"]}]);
        assert_eq!(
            check(PODS, pod("1"), None, &[], limited.clone()),
            Err("insufficient quota to consume: requests.cpu".into())
        );
        let quotas = [quota(json!({"hard": {"requests.cpu": "1"}}), json!({"requests.cpu": "0"}))];
        assert!(check(PODS, pod("1"), None, &quotas, limited).is_ok());
        let scopes = json!([{"resource": "pods", "matchScopes": [
            {"scopeName": "PriorityClass", "operator": "In", "values": ["high", "higher"]},
        ]}]);
        let mut high = pod("1");
        high["spec"]["priorityClassName"] = "high".into();
        assert_eq!(
            check(PODS, high.clone(), None, &quotas, scopes.clone()),
            Err("insufficient quota to match these scopes: [{PriorityClass In [high higher]}]".into())
        );
        let covering = [quota(
            json!({"hard": {"pods": "9"}, "scopeSelector": {"matchExpressions": [
                {"scopeName": "PriorityClass", "operator": "Exists"},
            ]}}),
            json!({"pods": "0"}),
        )];
        assert!(check(PODS, high, None, &covering, scopes).is_ok());
    }

    #[tokio::test]
    async fn turns_of_a_namespace_leave_nothing_behind() {
        let locks: Arc<NamespaceLocks> = Arc::default();
        let first = locks.clone().lock("a").await.expect("free");
        let second = tokio::spawn({
            let locks = locks.clone();
            async move { locks.lock("a").await.map(drop) }
        });
        tokio::task::yield_now().await;
        assert!(!second.is_finished());
        drop(first);
        second.await.expect("runs").expect("the lock");
        assert!(locks.0.lock().is_empty());
    }
}
