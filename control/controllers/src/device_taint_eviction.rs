//! Removes pods whose devices have NoExecute taints that their claims do not tolerate, or no longer. Taints come with the
//! ResourceSlices of drivers; DeviceTaintRules are off by default.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use ferry_api::device_taint::{Words, tolerates};
use ferry_client::{
    Attempt, Client, Error, Event, EventType, Index, Informer, NamespacedName, Outcome, Recorder,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{
    Device, DeviceRequestAllocationResult, DeviceTaint, DeviceToleration, ResourceClaim, ResourceSlice,
};
use parking_lot::Mutex;

use crate::context::{Context, Running};
use crate::pods::{self, is_deleting, is_finished, node_name};
use crate::resource_claim::claim_keys;

const CONTROLLER: &str = "device-taint-eviction-controller";
const NO_EXECUTE: &str = "NoExecute";

/// When a pod has to go because of one device, if it has to.
fn goes_at(result: &DeviceRequestAllocationResult, device: &Device, seen: Timestamp) -> Option<Timestamp> {
    let taints = device.taints.iter().flatten().filter(|taint| taint.effect == NO_EXECUTE);
    taints
        .filter_map(|taint| {
            let since = taint.time_added.as_ref().map_or(seen, |time| time.0);
            let tolerations = result.tolerations.iter().flatten();
            let mut fitting = tolerations.filter(|own| is_tolerated(own, taint)).peekable();
            if fitting.peek().is_none() {
                return Some(since);
            }
            let mut shortest: Option<i64> = None;
            for toleration in fitting {
                // one without an end tolerates it for ever
                let seconds = toleration.toleration_seconds?.max(0);
                shortest = Some(shortest.map_or(seconds, |other| other.min(seconds)));
            }
            let seconds = Duration::from_secs(shortest?.unsigned_abs());
            since.checked_add(seconds).ok()
        })
        .min()
}

fn is_tolerated(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    fn text(field: &Option<String>) -> &str {
        field.as_deref().unwrap_or("")
    }
    let own = Words {
        key: text(&toleration.key),
        value: text(&toleration.value),
        effect: text(&toleration.effect),
    };
    let taint = Words { key: &taint.key, value: text(&taint.value), effect: &taint.effect };
    own.effect == NO_EXECUTE && tolerates(own, text(&toleration.operator), taint)
}

fn results(claim: &ResourceClaim) -> &[DeviceRequestAllocationResult] {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    devices.and_then(|devices| devices.results.as_deref()).unwrap_or(&[])
}

fn pool(driver: &str, pool: &str) -> String {
    format!("{driver}/{pool}")
}

fn pools_of(claim: &ResourceClaim) -> Vec<String> {
    let pools: HashSet<String> =
        results(claim).iter().map(|result| pool(&result.driver, &result.pool)).collect();
    pools.into_iter().collect()
}

/// The tainted devices of a slice, for telling whether something changed.
fn tainted(slice: &ResourceSlice) -> Vec<(&str, &[DeviceTaint])> {
    let devices = slice.spec.devices.iter().flatten();
    let tainted = devices.filter_map(|device| Some((device.name.as_str(), device.taints.as_deref()?)));
    tainted.filter(|(_, taints)| taints.iter().any(|taint| taint.effect == NO_EXECUTE)).collect()
}

struct Controller {
    client: Client,
    pods: Informer<Pod>,
    by_claim: Index<Pod>,
    claims: Informer<ResourceClaim>,
    by_pool: Index<ResourceClaim>,
    slices: Index<ResourceSlice>,
    /// Pods whose end is decided and has not come.
    waiting: Mutex<HashSet<NamespacedName>>,
    recorder: Recorder,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let (pods, claims) = (builder.informer::<Pod>(), builder.informer::<ResourceClaim>());
    let slices = builder.informer::<ResourceSlice>();
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        by_claim: pods
            .index("resource claim", |pod| claim_keys(pod).iter().map(ToString::to_string).collect()),
        by_pool: claims.index("pool", pools_of),
        slices: slices.index("pool", |slice| vec![pool(&slice.spec.driver, &slice.spec.pool.name)]),
        pods: pods.clone(),
        claims: claims.clone(),
        waiting: Mutex::default(),
        recorder: context.recorder(CONTROLLER),
    });
    builder
        .keys_of::<Pod, _>(controller)
        .watches(&pods, |_, event| {
            let matters = event.is_deleted() || !node_name(event.object()).is_empty();
            if matters && !claim_keys(event.object()).is_empty() { vec![event.key()] } else { vec![] }
        })
        .watches(&claims, |controller, event| controller.users(&event.key()))
        .watches(&slices, |controller, event| controller.slice_changed(event))
        .run(Controller::reconcile)
}

impl Controller {
    fn users(&self, claim: &NamespacedName) -> Vec<NamespacedName> {
        self.by_claim.get(&claim.to_string()).iter().map(|pod| NamespacedName::of(&**pod)).collect()
    }

    fn slice_changed(&self, event: &Event<ResourceSlice>) -> Vec<NamespacedName> {
        let before = event.old().map(|old| tainted(old)).unwrap_or_default();
        let now = if event.is_deleted() { Vec::new() } else { tainted(event.object()) };
        if before == now && !event.is_deleted() {
            return Vec::new();
        }
        let spec = &event.object().spec;
        let claims = self.by_pool.get(&pool(&spec.driver, &spec.pool.name));
        claims.iter().flat_map(|claim| self.users(&NamespacedName::of(&**claim))).collect()
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let pod = self.pods.get(&key).filter(|pod| !is_deleting(pod) && !is_finished(pod));
        let Some(pod) = pod.filter(|pod| !node_name(pod).is_empty()) else {
            self.waiting.lock().remove(&key);
            return Ok(Outcome::Done);
        };
        let now = Timestamp::now();
        let Some(at) = self.goes_at(&pod, now) else {
            if self.waiting.lock().remove(&key) {
                let note = "Cancelling deletion";
                self.recorder.event(&*pod, EventType::Normal, "DeviceTaintManagerEviction", "Cancel", note);
            }
            return Ok(Outcome::Done);
        };
        self.waiting.lock().insert(key.clone());
        let left = Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO);
        if !left.is_zero() {
            return Ok(Outcome::After(left));
        }
        self.evict(&key, &pod).await?;
        self.waiting.lock().remove(&key);
        Ok(Outcome::Done)
    }

    /// When the first of the pod's devices drives it out.
    fn goes_at(&self, pod: &Pod, now: Timestamp) -> Option<Timestamp> {
        let claims = claim_keys(pod).into_iter().filter_map(|key| self.claims.get(&key));
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        let is_user = |claim: &Arc<ResourceClaim>| {
            let users = claim.status.as_ref().and_then(|status| status.reserved_for.as_ref());
            users.into_iter().flatten().any(|user| user.uid == uid)
        };
        let claims: Vec<Arc<ResourceClaim>> = claims.filter(is_user).collect();
        let results = claims.iter().flat_map(|claim| results(claim));
        results.filter_map(|result| self.goes_because_of(result, now)).min()
    }

    fn goes_because_of(&self, result: &DeviceRequestAllocationResult, now: Timestamp) -> Option<Timestamp> {
        let slices = self.slices.get(&pool(&result.driver, &result.pool));
        let newest = slices.iter().map(|slice| slice.spec.pool.generation).max()?;
        let current = slices.iter().filter(|slice| slice.spec.pool.generation == newest);
        let devices = current.flat_map(|slice| slice.spec.devices.iter().flatten());
        let mut own = devices.filter(|device| device.name == result.device);
        goes_at(result, own.next()?, now)
    }

    async fn evict(&self, key: &NamespacedName, pod: &Pod) -> Result<(), Error> {
        let mut span = ferry_trace::span("device-taint-eviction.evict");
        span.object("pods", &key.namespace, &key.name);
        let note = "Marking for deletion";
        self.recorder.event(pod, EventType::Normal, "DeviceTaintManagerEviction", "Evict", note);
        let because =
            ("DeletionByDeviceTaintManager", "Device Taint manager: deleting due to NoExecute taint");
        let evicted = span.in_scope(pods::evict(&self.client, pod, because)).await;
        evicted.attempting("evict pod")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::at;

    #[test]
    fn a_pod_goes_when_a_device_has_a_taint_that_its_claim_does_not_tolerate() {
        let check = |taints: Value, tolerations: Value, expected: Option<i64>| {
            let device: Device = serde_json::from_value(json!({"name": "g", "taints": taints})).unwrap();
            let result = json!({"request": "r", "driver": "d", "pool": "p", "device": "g", "tolerations": tolerations});
            let result: DeviceRequestAllocationResult = serde_json::from_value(result).unwrap();
            assert_eq!(goes_at(&result, &device, at(500)), expected.map(at), "{taints} {tolerations}");
        };
        let taint = |effect: &str| json!([{"key": "k", "effect": effect, "timeAdded": at(100).to_string()}]);
        let tolerates = |seconds: Value| json!([{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}]);
        check(json!([]), json!([]), None);
        check(taint("NoSchedule"), json!([]), None);
        check(taint("NoExecute"), json!([]), Some(100));
        check(json!([{"key": "k", "effect": "NoExecute"}]), json!([]), Some(500));
        check(taint("NoExecute"), tolerates(Value::Null), None);
        check(taint("NoExecute"), tolerates(json!(60)), Some(160));
        check(taint("NoExecute"), tolerates(json!(-5)), Some(100));
        // one that does not say for which effect tolerates no execution
        check(taint("NoExecute"), json!([{"key": "k", "operator": "Exists"}]), Some(100));
    }
}
