//! HorizontalPodAutoscalers on the processes, with a metrics server in the test: what it measures sets the size.

use std::sync::Arc;

use base64::Engine;
use ferry_e2e::responder::{Asked, Reply, Responder};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Event, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::processes::Cluster;
use super::{hollow, until};

/// What the metrics server measures.
#[derive(Default)]
struct Load {
    /// Of which CPU there are values.
    pods: Vec<String>,
    /// In thousandths of a core, shared by the pods.
    cpu: i64,
    requests: i64,
    queue: i64,
}

const APIS: [(&str, &str); 3] = [
    ("metrics.k8s.io", "v1beta1"),
    ("custom.metrics.k8s.io", "v1beta2"),
    ("external.metrics.k8s.io", "v1beta1"),
];

fn answer(load: &Load, asked: &Asked) -> Reply {
    let now = Timestamp::now().to_string();
    let items: Vec<Value> = match asked.path.as_str() {
        "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods" => {
            assert!(asked.uri.contains("labelSelector=app%3Dweb"), "{}", asked.uri);
            let each = load.cpu / load.pods.len().max(1) as i64;
            let pod = |name: &String| {
                json!({"metadata": {"name": name}, "timestamp": now, "window": "15s",
                    "containers": [{"name": "web", "usage": {"cpu": format!("{each}m")}}]})
            };
            load.pods.iter().map(pod).collect()
        }
        "/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/*/requests" => {
            let each = load.requests / load.pods.len().max(1) as i64;
            let pod = |name: &String| {
                json!({"describedObject": {"kind": "Pod", "name": name}, "metric": {"name": "requests"},
                    "timestamp": now, "value": each.to_string()})
            };
            load.pods.iter().map(pod).collect()
        }
        "/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/services/front/requests" => {
            vec![
                json!({"describedObject": {"kind": "Service", "name": "front"}, "metric": {"name": "requests"},
                "timestamp": now, "value": load.requests.to_string()}),
            ]
        }
        "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/queue" => {
            assert!(asked.uri.contains("labelSelector=name%3Djobs"), "{}", asked.uri);
            vec![json!({"metricName": "queue", "timestamp": now, "value": load.queue.to_string()})]
        }
        path => {
            let served = APIS.iter().find(|(group, version)| path == format!("/apis/{group}/{version}"));
            let Some((group, version)) = served else { return Reply::Json(404, json!({})) };
            let list = json!({"kind": "APIResourceList", "apiVersion": "v1",
                "groupVersion": format!("{group}/{version}"), "resources": []});
            return Reply::Json(200, list);
        }
    };
    Reply::Json(200, json!({"metadata": {}, "items": items}))
}

async fn create<K>(api: &Api<K>, object: Value)
where
    K: Resource + Clone + std::fmt::Debug + serde::Serialize + DeserializeOwned,
{
    let object = serde_json::from_value(object).expect("is of its kind");
    api.create(&PostParams::default(), &object).await.expect("it is made");
}

/// Registers the metrics server for all three APIs, and follows the pods that it measures.
async fn register(client: &Client, server: &Responder) {
    let ca = base64::prelude::BASE64_STANDARD.encode(&server.ca_pem);
    let services: Api<Service> = Api::default_namespaced(client.clone());
    create(
        &services,
        json!({"metadata": {"name": "metrics"}, "spec": {"ports": [{"name": "https", "port": 443}]}}),
    )
    .await;
    let slices: Api<EndpointSlice> = Api::default_namespaced(client.clone());
    create(
        &slices,
        json!({"addressType": "IPv4", "metadata": {"name": "metrics-1", "labels": {"kubernetes.io/service-name": "metrics"}},
            "ports": [{"name": "https", "port": server.port()}], "endpoints": [{"addresses": ["127.0.0.1"]}]}),
    )
    .await;
    for (group, version) in APIS {
        let registrations: Api<APIService> = Api::all(client.clone());
        let name = format!("{version}.{group}");
        create(
            &registrations,
            json!({"metadata": {"name": name}, "spec": {"group": group, "version": version, "caBundle": ca,
                "groupPriorityMinimum": 100, "versionPriority": 100,
                "service": {"namespace": "default", "name": "metrics"}}}),
        )
        .await;
        until(&format!("{name} is available"), || async {
            let conditions = registrations.get(&name).await.ok()?.status?.conditions?;
            conditions.iter().any(|one| one.type_ == "Available" && one.status == "True").then_some(())
        })
        .await;
    }
}

fn follow_pods(client: Client, load: Arc<Mutex<Load>>) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let pods: Api<Pod> = Api::default_namespaced(client);
        loop {
            if let Ok(list) = pods.list(&ListParams::default().labels("app=web")).await {
                load.lock().pods = list.items.iter().map(ResourceExt::name_any).collect();
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    })
}

fn resource_metric() -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}})
}

/// Waits for a size that a status of the autoscaler tells of.
async fn until_size(client: &Client, wanted: i32) -> HorizontalPodAutoscaler {
    let autoscalers: Api<HorizontalPodAutoscaler> = Api::default_namespaced(client.clone());
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    until(&format!("{wanted} replicas"), || async {
        let replicas = deployments.get("web").await.ok()?.spec?.replicas?;
        let found = autoscalers.get("web").await.ok()?;
        let status = found.status.as_ref()?;
        let told = status.current_replicas == Some(wanted) && status.desired_replicas == wanted;
        (replicas == wanted && told).then_some(found)
    })
    .await
}

fn condition(autoscaler: &HorizontalPodAutoscaler, kind: &str) -> (String, String) {
    let conditions = autoscaler.status.as_ref().and_then(|status| status.conditions.as_ref());
    let found = conditions.into_iter().flatten().find(|one| one.type_ == kind);
    found.map_or_else(Default::default, |one| (one.status.clone(), one.reason.clone().unwrap_or_default()))
}

async fn measure_by(client: &Client, metric: Value) {
    let autoscalers: Api<HorizontalPodAutoscaler> = Api::default_namespaced(client.clone());
    let patch = json!({"spec": {"metrics": [metric]}});
    autoscalers.patch("web", &PatchParams::default(), &Patch::Merge(&patch)).await.expect("another metric");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_grows_and_shrinks_with_what_is_measured() {
    let Some(cluster) = Cluster::start().await else { return };
    let client = cluster.client.clone();
    let kubelets = hollow::kubelets(client.clone());
    hollow::node(&client, "n", 100).await;
    let _manager = cluster.controller_manager_without("horizontal-pod-autoscaler-controller");
    let (_scheduler, _autoscaler) = (cluster.scheduler(), cluster.horizontal_pod_autoscaler());

    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let container = json!({"name": "web", "image": "one", "resources": {"requests": {"cpu": "100m"}}});
    create(
        &deployments,
        json!({"metadata": {"name": "web"}, "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}}}}),
    )
    .await;
    let autoscalers: Api<HorizontalPodAutoscaler> = Api::default_namespaced(client.clone());
    create(
        &autoscalers,
        json!({"metadata": {"name": "web"}, "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 2, "maxReplicas": 8, "metrics": [resource_metric()],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}}),
    )
    .await;
    // Nobody measures yet, and the size stays.
    until("it says that there are no metrics", || async {
        let found = autoscalers.get("web").await.ok()?;
        let active = condition(&found, "ScalingActive");
        (active == ("False".into(), "FailedGetResourceMetric".into())).then_some(())
    })
    .await;
    assert_eq!(deployments.get("web").await.expect("is there").spec.and_then(|spec| spec.replicas), Some(2));

    let load = Arc::new(Mutex::new(Load { cpu: 200, ..Load::default() }));
    let measured = load.clone();
    let server =
        Responder::start_as(&["metrics.default.svc".into()], move |asked| answer(&measured.lock(), asked))
            .await;
    let following = follow_pods(client.clone(), load.clone());
    register(&client, &server).await;

    // all of two requests is twice the target; of four it is the target
    until_size(&client, 4).await;
    let found = until("the utilization is told", || async {
        let found = autoscalers.get("web").await.ok()?;
        let metric = found.status.as_ref()?.current_metrics.as_ref()?.first()?.resource.clone()?;
        (metric.current.average_utilization == Some(50)).then_some(found)
    })
    .await;
    assert_eq!(condition(&found, "AbleToScale"), ("True".into(), "ReadyForNewScale".into()));
    assert_eq!(condition(&found, "ScalingActive"), ("True".into(), "ValidMetricFound".into()));
    assert_eq!(condition(&found, "ScalingLimited"), ("False".into(), "DesiredWithinRange".into()));

    load.lock().cpu = 40;
    let found = until_size(&client, 2).await;
    assert_eq!(condition(&found, "ScalingActive").0, "True");
    let events: Api<Event> = Api::default_namespaced(client.clone());
    until("both changes are told", || async {
        let events = events.list(&ListParams::default().fields("reason=SuccessfulRescale")).await.ok()?;
        let told = |note: &str| events.items.iter().any(|event| event.message.as_deref() == Some(note));
        let up = "New size: 4; reason: cpu resource utilization (percentage of request) above target";
        (told(up) && told("New size: 2; reason: All metrics below target")).then_some(())
    })
    .await;

    // the same by a metric of the pods, and by one of their service
    load.lock().requests = 30;
    let target = json!({"type": "AverageValue", "averageValue": "5"});
    measure_by(&client, json!({"type": "Pods", "pods": {"metric": {"name": "requests"}, "target": target}}))
        .await;
    until_size(&client, 6).await;
    load.lock().requests = 300;
    let object = json!({"apiVersion": "v1", "kind": "Service", "name": "front"});
    let target = json!({"type": "Value", "value": "600"});
    measure_by(
        &client,
        json!({"type": "Object", "object": {"metric": {"name": "requests"}, "describedObject": object, "target": target}}),
    )
    .await;
    // half of the target, however many there are: down to the fewest
    until_size(&client, 2).await;
    following.abort();
    kubelets.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anything_with_a_scale_follows_an_external_metric() {
    let Some(cluster) = Cluster::start().await else { return };
    let client = cluster.client.clone();
    let _autoscaler = cluster.horizontal_pod_autoscaler();
    let load = Arc::new(Mutex::new(Load { queue: 10, ..Load::default() }));
    let measured = load.clone();
    let server =
        Responder::start_as(&["metrics.default.svc".into()], move |asked| answer(&measured.lock(), asked))
            .await;
    register(&client, &server).await;

    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let scale = json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector"});
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "selector": {"type": "string"}}}}}});
    create(
        &definitions,
        json!({"metadata": {"name": "gadgets.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema,
                "subresources": {"scale": scale, "status": {}}}]}}),
    )
    .await;
    let kind = GroupVersionKind::gvk("example.com", "v1", "Gadget");
    let gadgets: Api<DynamicObject> =
        Api::default_namespaced_with(client.clone(), &ApiResource::from_gvk_with_plural(&kind, "gadgets"));
    let gadget = json!({"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": "g"}, "spec": {"replicas": 1}});
    let gadget: DynamicObject = serde_json::from_value(gadget).expect("an object");
    until("gadgets are served", || async { gadgets.create(&PostParams::default(), &gadget).await.ok() })
        .await;
    let status = json!({"status": {"replicas": 1, "selector": "app=gadget"}});
    gadgets.patch_status("g", &PatchParams::default(), &Patch::Merge(&status)).await.expect("a status");

    let autoscalers: Api<HorizontalPodAutoscaler> = Api::default_namespaced(client.clone());
    let metric = json!({"name": "queue", "selector": {"matchLabels": {"name": "jobs"}}});
    create(
        &autoscalers,
        json!({"metadata": {"name": "g"}, "spec": {
            "scaleTargetRef": {"apiVersion": "example.com/v1", "kind": "Gadget", "name": "g"},
            "maxReplicas": 10,
            "metrics": [{"type": "External", "external": {"metric": metric, "target": {"type": "AverageValue", "averageValue": "2"}}}]}}),
    )
    .await;
    until("five gadgets for ten in the queue", || async {
        let found = gadgets.get("g").await.ok()?;
        (found.data["spec"]["replicas"] == 5).then_some(())
    })
    .await;
    // the target of another autoscaler that does not exist is said so
    create(
        &autoscalers,
        json!({"metadata": {"name": "lost"}, "spec": {"maxReplicas": 2,
            "scaleTargetRef": {"apiVersion": "example.com/v1", "kind": "Widget", "name": "w"}}}),
    )
    .await;
    until("it says that it has no target", || async {
        let found = autoscalers.get("lost").await.ok()?;
        (condition(&found, "AbleToScale") == ("False".into(), "FailedGetScale".into())).then_some(())
    })
    .await;
}
