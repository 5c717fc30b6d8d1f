//! Devices, from the pod that asks for one to the claim that gives it back, with the loops of all who take part but the
//! driver and the kubelet.

use std::time::Duration;

use ferry_client::CancellationToken;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::cluster::Cluster;

const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

fn slice(node: &str, devices: &[&str]) -> Value {
    let devices: Value = devices.iter().map(|name| json!({"name": name})).collect();
    json!({"metadata": {"name": format!("{node}-gpu")}, "spec": {"driver": "gpu.example.com", "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}, "devices": devices}})
}

fn one() -> Value {
    json!({"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}})
}

fn uses(entry: Value) -> Value {
    json!({"spec": {"resourceClaims": [entry]}})
}

impl Cluster {
    async fn devices(&self) {
        let class = json!({"metadata": {"name": "gpu"}, "spec": {"selectors": [
            {"cel": {"expression": "device.driver == 'gpu.example.com'"}}]}});
        self.server.post("/apis/resource.k8s.io/v1/deviceclasses", &class).await.expect(201);
    }

    /// Waits until a claim is as `wanted` says.
    async fn claim(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        for _ in 0..1500 {
            last = self.server.get(&format!("{CLAIMS}/{name}")).await.expect(200);
            if wanted(&last) {
                return last;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never: {last}");
    }

    /// Waits until these are all claims.
    async fn claims(&self, wanted: &[&str]) {
        let mut last = Vec::new();
        for _ in 0..1500 {
            let list = self.server.get(CLAIMS).await.expect(200);
            let names = list["items"].as_array().unwrap().iter();
            last = names.map(|claim| claim["metadata"]["name"].as_str().unwrap().to_owned()).collect();
            if last == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never: {last:?}");
    }
}

fn device(claim: &Value) -> Option<&str> {
    claim["status"]["allocation"]["devices"]["results"][0]["device"].as_str()
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_get_devices_and_give_them_back() {
    let cluster = Cluster::start().await;
    let stop = CancellationToken::new();
    let names = ["resourceclaim-controller", "device-taint-eviction-controller"].map(str::to_owned).to_vec();
    let config = ferry_controllers::Config { controllers: names, ..Default::default() };
    let controllers = tokio::spawn(ferry_controllers::run(cluster.server.admin(), config, stop.clone()));
    cluster.node("plain", "8", json!({})).await;
    cluster.node("with-gpu", "8", json!({})).await;
    cluster.devices().await;

    // without a device there is no place
    cluster.server.post(CLAIMS, &json!({"metadata": {"name": "own"}, "spec": one()})).await.expect(201);
    cluster.pod("first", "10m", uses(json!({"name": "gpu", "resourceClaimName": "own"}))).await;
    // how many nodes it counts is a matter of which it has heard of
    cluster
        .until("first", |pod| {
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            let mut messages = conditions.into_iter().flatten().filter_map(|one| one.message.as_deref());
            messages.any(|message| message.contains("cannot allocate all claims"))
        })
        .await;
    cluster.server.post(SLICES, &slice("with-gpu", &["gpu-0"])).await.expect(201);
    assert_eq!(cluster.bound("first").await, "with-gpu");
    let claim = cluster.claim("own", |claim| device(claim) == Some("gpu-0")).await;
    assert_eq!(claim["status"]["reservedFor"][0]["name"], "first");
    assert_eq!(claim["metadata"]["finalizers"], json!(["resource.kubernetes.io/delete-protection"]));

    // a claim is made from a template, and waits for the only device
    let template = json!({"metadata": {"name": "each"}, "spec": {"spec": one()}});
    let templates = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates";
    cluster.server.post(templates, &template).await.expect(201);
    cluster.pod("second", "10m", uses(json!({"name": "gpu", "resourceClaimTemplateName": "each"}))).await;
    let told = cluster
        .until("second", |pod| {
            let status = pod.status.as_ref();
            let made = status.and_then(|status| status.resource_claim_statuses.as_ref());
            let refused = status.and_then(|status| status.conditions.as_ref());
            made.is_some_and(|made| !made.is_empty()) && refused.is_some_and(|all| !all.is_empty())
        })
        .await;
    let statuses = told.status.unwrap().resource_claim_statuses.unwrap();
    let generated = statuses[0].resource_claim_name.clone().unwrap();
    assert!(generated.starts_with("second-gpu-"), "{generated}");

    // the first pod's end gives its device to the second
    cluster.server.delete("/api/v1/namespaces/default/pods/first?gracePeriodSeconds=0").await.expect(200);
    cluster.claim("own", |claim| claim["status"]["allocation"].is_null()).await;
    assert_eq!(cluster.bound("second").await, "with-gpu");
    cluster.claim(&generated, |claim| device(claim) == Some("gpu-0")).await;

    // a taint that nobody tolerates drives it out
    let taints = json!([{"op": "add", "path": "/spec/devices/0/taints",
        "value": [{"key": "example.com/broken", "effect": "NoExecute"}]}]);
    cluster.server.patch(&format!("{SLICES}/with-gpu-gpu"), "json", &taints).await.expect(200);
    cluster.until("second", |pod| pod.metadata.deletion_timestamp.is_some()).await;

    stop.cancel();
    controllers.await.unwrap().unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_device_is_given_twice() {
    let cluster = Cluster::start().await;
    cluster.node("a", "8", json!({})).await;
    cluster.devices().await;
    cluster.server.post(SLICES, &slice("a", &["gpu-0", "gpu-1", "gpu-2", "gpu-3"])).await.expect(201);
    for number in 0..4 {
        let claim = json!({"metadata": {"name": format!("c{number}")}, "spec": one()});
        cluster.server.post(CLAIMS, &claim).await.expect(201);
    }
    for number in 0..4 {
        let entry = json!({"name": "gpu", "resourceClaimName": format!("c{number}")});
        cluster.pod(&format!("p{number}"), "10m", uses(entry)).await;
    }
    let mut devices = Vec::new();
    for number in 0..4 {
        cluster.bound(&format!("p{number}")).await;
        let claim = cluster.claim(&format!("c{number}"), |claim| device(claim).is_some()).await;
        devices.push(device(&claim).unwrap().to_owned());
    }
    devices.sort();
    assert_eq!(devices, ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]);
    cluster.stop().await;
}

/// The claim that was made for a pod's extended resources.
fn extended_claim(pod: &Pod) -> Option<String> {
    Some(pod.status.as_ref()?.extended_resource_claim_status.as_ref()?.resource_claim_name.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn extended_resources_of_a_class_are_claimed_for_the_pod_and_given_back() {
    let cluster = Cluster::start().await;
    let stop = CancellationToken::new();
    let names = ["resourceclaim-controller", "garbage-collector-controller"].map(str::to_owned).to_vec();
    let config = ferry_controllers::Config { controllers: names, ..Default::default() };
    let controllers = tokio::spawn(ferry_controllers::run(cluster.server.admin(), config, stop.clone()));
    cluster.node("plain", "8", json!({})).await;
    cluster.node("with-gpu", "8", json!({})).await;
    cluster.server.post(SLICES, &slice("with-gpu", &["gpu-0"])).await.expect(201);
    let container = |name: &str, resources: Value| json!({"name": name, "image": "i", "resources": {"limits": resources}});
    let wants = |resource: &str| {
        let containers =
            [container("c", json!({"cpu": "10m"})), container("gpu", json!({"cpu": "10m", resource: "1"}))];
        json!({"spec": {"containers": containers}})
    };
    cluster.pod("first", "10m", wants("example.com/gpu")).await;
    let refused = |message: &'static str| {
        move |pod: &Pod| {
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            let mut messages = conditions.into_iter().flatten().filter_map(|one| one.message.as_deref());
            messages.any(|own| own.contains(message))
        }
    };
    // until a class stands for the resource, nobody has it
    cluster.until("first", refused("Insufficient example.com/gpu")).await;
    let class = json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}});
    cluster.server.post("/apis/resource.k8s.io/v1/deviceclasses", &class).await.expect(201);
    assert_eq!(cluster.bound("first").await, "with-gpu");
    let pod = cluster.pods().get("first").await.unwrap();
    let name = extended_claim(&pod).expect("the status names the claim before the pod is bound");
    assert!(name.starts_with("first-extended-resources-"), "{name}");
    let mapping =
        &pod.status.as_ref().unwrap().extended_resource_claim_status.as_ref().unwrap().request_mappings[0];
    let mapping = (&*mapping.container_name, &*mapping.resource_name, &*mapping.request_name);
    assert_eq!(mapping, ("gpu", "example.com/gpu", "container-1-request-1"));
    let claim = cluster.claim(&name, |claim| device(claim) == Some("gpu-0")).await;
    assert_eq!(claim["status"]["reservedFor"][0]["name"], "first");
    assert_eq!(claim["metadata"]["ownerReferences"][0]["uid"], json!(pod.metadata.uid));
    assert_eq!(claim["metadata"]["finalizers"], json!(["resource.kubernetes.io/delete-protection"]));

    // the only device is taken; the end of the pod that has it frees it, and its claim goes though the pod stays
    cluster.pod("second", "10m", wants("deviceclass.resource.kubernetes.io/gpu")).await;
    cluster.until("second", refused("cannot allocate all claims")).await;
    let ended = json!({"status": {"phase": "Succeeded"}});
    cluster.server.patch("/api/v1/namespaces/default/pods/first/status", "merge", &ended).await.expect(200);
    assert_eq!(cluster.bound("second").await, "with-gpu");
    let second = extended_claim(&cluster.pods().get("second").await.unwrap()).unwrap();
    cluster.claims(&[&second]).await;

    // a deleted pod's claim is the garbage collector's
    cluster.server.delete("/api/v1/namespaces/default/pods/second?gracePeriodSeconds=0").await.expect(200);
    cluster.claims(&[]).await;
    stop.cancel();
    controllers.await.unwrap().unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_device_is_given_twice_for_extended_resources() {
    let cluster = Cluster::start().await;
    cluster.node("a", "8", json!({})).await;
    let class = json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}});
    cluster.server.post("/apis/resource.k8s.io/v1/deviceclasses", &class).await.expect(201);
    cluster.server.post(SLICES, &slice("a", &["gpu-0", "gpu-1", "gpu-2", "gpu-3"])).await.expect(201);
    let resources = json!({"limits": {"cpu": "10m", "example.com/gpu": "1"}});
    let wants = json!({"spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]}});
    for number in 0..4 {
        cluster.pod(&format!("p{number}"), "10m", wants.clone()).await;
    }
    let mut devices = Vec::new();
    for number in 0..4 {
        let name = format!("p{number}");
        cluster.bound(&name).await;
        let claim = extended_claim(&cluster.pods().get(&name).await.unwrap()).unwrap();
        devices
            .push(device(&cluster.claim(&claim, |claim| device(claim).is_some()).await).unwrap().to_owned());
    }
    devices.sort();
    assert_eq!(devices, ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]);
    let list = cluster.server.get(CLAIMS).await.expect(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 4);
    cluster.stop().await;
}
