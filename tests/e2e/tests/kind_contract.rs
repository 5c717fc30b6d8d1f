//! What every kind owes its clients, whether the table has it or a definition made it: a minimal object lives
//! through all verbs. A new row is tested before anyone writes a test for it.

use std::time::{Duration, Instant};

use ferry_api::{Kind, Scope};
use ferry_testkit::{Answer, TestServer, send};
use http::Method;
use serde_json::{Value, json};

const NAMESPACE: &str = "contract";
const VERBS: &[&str] = &["create", "get", "list", "update", "patch", "delete"];

#[tokio::test]
async fn a_minimal_object_of_every_kind_lives_through_all_verbs() {
    let server = server().await;
    let mut broken = Vec::new();
    for kind in ferry_api::kinds::builtin() {
        let complete = VERBS.iter().all(|verb| kind.verbs.iter().any(|have| have == verb));
        if !kind.by_default || !complete {
            continue;
        }
        if let Err(why) = contract(&server, kind, &minimal(kind)).await {
            broken.push(format!("{} {}: {why}", kind.api_version(), kind.kind));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[tokio::test]
async fn kinds_that_are_made_at_run_time_owe_the_same() {
    let server = server().await;
    let mut broken = Vec::new();
    for (plural, kind, scope) in [("things", "Thing", Scope::Namespaced), ("worlds", "World", Scope::Cluster)]
    {
        let row = Kind {
            group: "contract.example".into(),
            version: "v1".into(),
            kind: kind.into(),
            plural: plural.into(),
            scope,
            ..(**ferry_api::kinds::builtin().first().expect("kinds")).clone()
        };
        define(&server, &row).await;
        let object = json!({"apiVersion": "contract.example/v1", "kind": kind, "metadata": {"name": "contract"}, "spec": {"a": 1}});
        if let Err(why) = contract(&server, &row, &object).await {
            broken.push(format!("{kind}: {why}"));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// A definition of the row, once it is established.
async fn define(server: &TestServer, row: &Kind) {
    let name = format!("{}.{}", row.plural, row.group);
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": name},
        "spec": {
            "group": row.group, "scope": if row.is_namespaced() { "Namespaced" } else { "Cluster" },
            "names": {"plural": row.plural, "kind": row.kind},
            "versions": [{"name": row.version, "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    server.post(DEFINITIONS, &definition).await.expect(201);
    let give_up = Instant::now() + Duration::from_secs(60);
    loop {
        let now = server.get(&format!("{DEFINITIONS}/{name}")).await.expect(200);
        let conditions = now["status"]["conditions"].as_array().cloned().unwrap_or_default();
        if conditions.iter().any(|it| it["type"] == "Established" && it["status"] == "True") {
            return;
        }
        assert!(Instant::now() < give_up, "never established: {now}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn server() -> TestServer {
    let server = TestServer::start().await;
    let place = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    server.post("/api/v1/namespaces", &place).await.expect(201);
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    server.post(&format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts"), &account).await;
    server
}

async fn contract(server: &TestServer, kind: &Kind, object: &Value) -> Result<(), String> {
    let group = if kind.group.is_empty() { "/api".to_string() } else { format!("/apis/{}", kind.group) };
    let place = if kind.is_namespaced() { format!("/namespaces/{NAMESPACE}") } else { String::new() };
    let list = format!("{group}/{}{place}/{}", kind.version, kind.plural);
    let name = object["metadata"]["name"].as_str().ok_or("a minimal object has a name")?.to_string();
    let one = format!("{list}/{name}");

    let answer = server.post(&list, object).await;
    let created = answer.json();
    if answer.code != 201 {
        return Err(format!("create: {}", created["message"]));
    }
    let got = server.get(&one).await.json();
    let is_same_write = got["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"];
    if got["metadata"]["uid"] != created["metadata"]["uid"] || is_same_write && got != created {
        return Err(format!("get differs from create: {got} {created}"));
    }
    let listed = server.get(&list).await.json();
    let found = listed["items"]
        .as_array()
        .is_some_and(|items| items.iter().any(|item| item["metadata"]["uid"] == created["metadata"]["uid"]));
    if !found {
        return Err("list does not hold it".into());
    }
    table(server, &list, &name).await?;

    // The server itself may write in between, as it does to a new definition.
    let mut updated = update(server, &one, got).await;
    for _ in 0..20 {
        if updated.code != 409 {
            break;
        }
        updated = update(server, &one, server.get(&one).await.json()).await;
    }
    if updated.code != 200 || updated.json()["metadata"]["labels"]["contract"] != "updated" {
        return Err(format!("update: {}", updated.json()));
    }
    let patch = json!({"metadata": {"labels": {"contract": "patched"}}});
    let patched = server.patch(&one, "merge", &patch).await;
    if patched.code != 200 || patched.json()["metadata"]["labels"]["contract"] != "patched" {
        return Err(format!("patch: {}", patched.json()));
    }
    // Kinds that leave their dependents to themselves would wait for the garbage collector.
    // What protects an object while it is in use would hold it; its controller does not run here.
    server.patch(&one, "merge", &json!({"metadata": {"finalizers": null}})).await;
    let deleted = server.delete(&format!("{one}?propagationPolicy=Background")).await;
    if deleted.code != 200 {
        return Err(format!("delete: {}", deleted.json()));
    }
    // A namespace goes when its content is gone, which is a controller's work; a definition when the server emptied it.
    let give_up = Instant::now() + Duration::from_secs(60);
    loop {
        let gone = server.get(&one).await;
        if gone.code == 404 || kind.kind == "Namespace" {
            break;
        }
        if kind.kind != "CustomResourceDefinition" || Instant::now() > give_up {
            return Err(format!("it is still there after the delete: {}", gone.json()));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

async fn update(server: &TestServer, path: &str, mut object: Value) -> Answer {
    object["metadata"]["labels"]["contract"] = "updated".into();
    server.put(path, &object).await
}

/// As many cells as columns, and the object among the rows.
async fn table(server: &TestServer, list: &str, name: &str) -> Result<(), String> {
    let accept = ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    let table = send(&server.admin(), Method::GET, list, &[accept], Vec::new()).await.json();
    let columns = table["columnDefinitions"].as_array().ok_or("a table has columns")?;
    let rows = table["rows"].as_array().ok_or("a table has rows")?;
    let row = rows.iter().find(|row| row["object"]["metadata"]["name"] == name).ok_or("no row for it")?;
    let cells = row["cells"].as_array().ok_or("a row has cells")?;
    if cells.len() != columns.len() {
        return Err(format!("{} cells in {} columns", cells.len(), columns.len()));
    }
    for (cell, column) in cells.iter().zip(columns) {
        let fits = match column["type"].as_str() {
            Some("integer") => cell.is_i64(),
            // Some columns of upstream say "string" and hold a number or a boolean.
            _ => !cell.is_object() && !cell.is_array() && !cell.is_null(),
        };
        if !fits {
            return Err(format!("column {} holds {cell}", column["name"]));
        }
    }
    Ok(())
}

fn certificate_request() -> String {
    let key = rcgen::KeyPair::generate().expect("a key");
    let request =
        rcgen::CertificateParams::default().serialize_request(&key).and_then(|request| request.pem());
    base64::Engine::encode(&base64::prelude::BASE64_STANDARD, request.expect("a request"))
}

/// The least that a client must say of a kind.
fn minimal(kind: &Kind) -> Value {
    let labels = json!({"app": "a"});
    let pod = json!({"containers": [{"name": "a", "image": "a"}]});
    let ending = json!({"containers": [{"name": "a", "image": "a"}], "restartPolicy": "Never"});
    let template = json!({"metadata": {"labels": labels}, "spec": pod});
    let workload = json!({"selector": {"matchLabels": labels}, "template": template});
    let job = json!({"template": {"spec": ending}});
    let role = |kind: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "r"});
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let device = json!({"devices": {"requests": [{"name": "d", "exactly": {"deviceClassName": "c"}}]}});
    let (name, body) = match &*kind.kind {
        "APIService" => (
            "v1.contract.example",
            json!({"spec": {"group": "contract.example", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10, "insecureSkipTLSVerify": true, "service": {"namespace": "default", "name": "none"}}}),
        ),
        "CertificateSigningRequest" => (
            "contract",
            json!({"spec": {"request": certificate_request(), "signerName": "contract.example/signer", "usages": ["client auth"]}}),
        ),
        "ControllerRevision" => ("contract", json!({"revision": 1, "data": {}})),
        "CronJob" => ("contract", json!({"spec": {"schedule": "@hourly", "jobTemplate": {"spec": job}}})),
        "CSIDriver" => ("contract.example", json!({"spec": {}})),
        "CSINode" => ("contract", json!({"spec": {"drivers": []}})),
        "CSIStorageCapacity" => ("contract", json!({"storageClassName": "c"})),
        "CustomResourceDefinition" => (
            "things.contract.example",
            json!({"spec": {
                "group": "contract.example", "scope": "Namespaced",
                "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
            }}),
        ),
        "DaemonSet" | "Deployment" | "ReplicaSet" => ("contract", json!({"spec": workload})),
        "EndpointSlice" => ("contract", json!({"addressType": "IPv4", "endpoints": []})),
        "Event" if kind.group.is_empty() => {
            ("contract", json!({"involvedObject": {"namespace": NAMESPACE, "kind": "Pod", "name": "a"}}))
        }
        "Event" => (
            "contract",
            json!({"regarding": {"namespace": NAMESPACE, "kind": "Pod", "name": "a"}, "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal", "reason": "R", "action": "A", "reportingController": "contract.example/c", "reportingInstance": "i"}),
        ),
        "FlowSchema" => (
            "contract",
            json!({"spec": {"priorityLevelConfiguration": {"name": "exempt"}, "matchingPrecedence": 1000}}),
        ),
        "HorizontalPodAutoscaler" => (
            "contract",
            json!({"spec": {"maxReplicas": 2, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "a"}}}),
        ),
        "IPAddress" => (
            "192.0.2.1",
            json!({"spec": {"parentRef": {"resource": "services", "namespace": NAMESPACE, "name": "a"}}}),
        ),
        "Ingress" => (
            "contract",
            json!({"spec": {"defaultBackend": {"service": {"name": "a", "port": {"number": 80}}}}}),
        ),
        "IngressClass" => ("contract", json!({"spec": {"controller": "contract.example/c"}})),
        "Job" => ("contract", json!({"spec": job})),
        "LimitRange" => {
            ("contract", json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}}))
        }
        "MutatingAdmissionPolicy" | "ValidatingAdmissionPolicy" => (
            "contract",
            json!({"spec": {
                "failurePolicy": "Ignore",
                "matchConstraints": {"resourceRules": [{"apiGroups": ["contract.example"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["*"]}]},
                "validations": [{"expression": "true"}],
                "reinvocationPolicy": "Never",
                "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": "[]"}}],
            }}),
        ),
        "MutatingAdmissionPolicyBinding" => ("contract", json!({"spec": {"policyName": "p"}})),
        "ValidatingAdmissionPolicyBinding" => {
            ("contract", json!({"spec": {"policyName": "p", "validationActions": ["Deny"]}}))
        }
        "Namespace" => ("contract-of-namespaces", json!({})),
        "PersistentVolume" => (
            "contract",
            json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/none"}}}),
        ),
        "PersistentVolumeClaim" => ("contract", json!({"spec": claim})),
        "Pod" => ("contract", json!({"spec": pod})),
        "PodTemplate" => ("contract", json!({"template": template})),
        "PriorityClass" => ("contract", json!({"value": 1})),
        "PriorityLevelConfiguration" => (
            "contract",
            json!({"spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}}}),
        ),
        "ReplicationController" => ("contract", json!({"spec": {"template": template}})),
        "ResourceClaim" => ("contract", json!({"spec": device})),
        "ResourceClaimTemplate" => ("contract", json!({"spec": {"spec": device}})),
        "DeviceClass" => ("contract", json!({"spec": {}})),
        "ResourceSlice" => (
            "contract",
            json!({"spec": {"driver": "contract.example", "nodeName": "n", "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1}, "devices": []}}),
        ),
        "RoleBinding" => ("contract", json!({"roleRef": role("Role")})),
        "ClusterRoleBinding" => ("contract", json!({"roleRef": role("ClusterRole")})),
        "RuntimeClass" => ("contract", json!({"handler": "h"})),
        "Service" => ("contract", json!({"spec": {"ports": [{"port": 80}]}})),
        "ServiceCIDR" => ("contract", json!({"spec": {"cidrs": ["192.0.2.0/24"]}})),
        "StatefulSet" => ("contract", json!({"spec": workload})),
        "StorageClass" => ("contract", json!({"provisioner": "contract.example/p"})),
        "VolumeAttachment" => (
            "contract",
            json!({"spec": {"attacher": "a", "nodeName": "n", "source": {"persistentVolumeName": "v"}}}),
        ),
        "VolumeAttributesClass" => ("contract", json!({"driverName": "d", "parameters": {"a": "b"}})),
        _ => ("contract", json!({})),
    };
    let mut object = body;
    object["apiVersion"] = kind.api_version().into();
    object["kind"] = kind.kind.as_ref().into();
    object["metadata"]["name"] = name.into();
    // Fields that only one of two kinds of a shape knows are left to it.
    match &*kind.kind {
        "MutatingAdmissionPolicy" => remove(&mut object["spec"], &["validations"]),
        "ValidatingAdmissionPolicy" => remove(&mut object["spec"], &["mutations", "reinvocationPolicy"]),
        _ => {}
    }
    object
}

fn remove(spec: &mut Value, fields: &[&str]) {
    for field in fields {
        spec.as_object_mut().expect("a spec").remove(*field);
    }
}
