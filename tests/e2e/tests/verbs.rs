//! The verbs through the API, as clients see them: codes, words and revisions.

use ferry_testkit::TestServer;
use http::Method;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn config_map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": value}})
}

fn revision(object: &Value) -> i64 {
    object["metadata"]["resourceVersion"].as_str().expect("a revision").parse().expect("a number")
}

#[tokio::test]
async fn an_object_lives_through_all_verbs() {
    let server = TestServer::start().await;
    let created = server.post(MAPS, &config_map("a", "1")).await.expect(201);
    assert_eq!(created["metadata"]["namespace"], "default");
    assert!(created["metadata"]["uid"].is_string());
    let one = format!("{MAPS}/a");
    assert_eq!(server.get(&one).await.expect(200), created);

    let mut changed = created.clone();
    changed["data"]["k"] = "2".into();
    let updated = server.put(&one, &changed).await.expect(200);
    assert!(revision(&updated) > revision(&created));
    // The old revision is a conflict now, and says so in upstream's words.
    let conflict = server.put(&one, &changed).await.expect(409);
    assert_eq!(
        conflict["message"],
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again"
    );

    for (kind, patch, expected) in [
        ("merge", json!({"data": {"k": "3"}}), "3"),
        ("strategic-merge", json!({"data": {"k": "4"}}), "4"),
        ("json", json!([{"op": "replace", "path": "/data/k", "value": "5"}]), "5"),
    ] {
        let patched = server.patch(&one, kind, &patch).await.expect(200);
        assert_eq!(patched["data"]["k"], expected, "{kind}");
    }

    let list = server.get(&format!("{MAPS}?labelSelector=none%3Dsuch")).await.expect(200);
    assert_eq!(list["items"], json!([]));
    let status = server.delete(&one).await.expect(200);
    assert_eq!(status["status"], "Success");
    assert_eq!(status["details"]["uid"], created["metadata"]["uid"]);
    assert_eq!(server.get(&one).await.expect(404)["message"], "configmaps \"a\" not found");
}

#[tokio::test]
async fn a_write_that_changes_nothing_keeps_its_revision() {
    let server = TestServer::start().await;
    let created = server.post(MAPS, &config_map("a", "1")).await.expect(201);
    let again = server.put(&format!("{MAPS}/a"), &created).await.expect(200);
    assert_eq!(revision(&again), revision(&created));
    let patched = server.patch(&format!("{MAPS}/a"), "merge", &json!({"data": {"k": "1"}})).await.expect(200);
    assert_eq!(revision(&patched), revision(&created));
}

#[tokio::test]
async fn refusals_say_what_is_wrong() {
    let server = TestServer::start().await;
    server.post(MAPS, &config_map("a", "1")).await.expect(201);
    let exists = server.post(MAPS, &config_map("a", "1")).await.expect(409);
    assert_eq!(
        (&exists["reason"], &exists["message"]),
        (&json!("AlreadyExists"), &json!("configmaps \"a\" already exists"))
    );

    let invalid = server.post(MAPS, &config_map("Not_A_Name", "1")).await.expect(422);
    assert_eq!(invalid["reason"], "Invalid");
    assert_eq!(invalid["details"]["causes"][0]["field"], "metadata.name");

    let nowhere = server.post("/api/v1/namespaces/none/configmaps", &config_map("a", "1")).await.expect(404);
    assert_eq!(nowhere["message"], "namespaces \"none\" not found");
    let elsewhere =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b", "namespace": "other"}});
    server.post(MAPS, &elsewhere).await.expect(400);

    let answers = [
        (server.send(Method::POST, MAPS, "text/plain", "x").await, 415),
        (server.send(Method::POST, MAPS, "application/json", "{").await, 400),
        (server.send(Method::POST, &format!("{MAPS}/a"), "application/json", "{}").await, 405),
        (server.send(Method::PATCH, &format!("{MAPS}/a"), "application/x-unknown", "{}").await, 415),
        (server.send(Method::POST, MAPS, "application/json", vec![b' '; 4 << 20]).await, 413),
        (server.get("/api/v1/nosuchthings").await, 404),
        (server.get(&format!("{MAPS}?resourceVersion=x")).await, 400),
        (server.get(&format!("{MAPS}?labelSelector=%21%21")).await, 400),
        (server.get(&format!("{MAPS}?fieldSelector=data.k%3D1")).await, 400),
        (server.get(&format!("{MAPS}?limit=1&continue=zzz")).await, 400),
    ];
    for (answer, code) in answers {
        assert_eq!(answer.expect(code)["kind"], "Status");
    }
    // A group that nobody serves is no API at all.
    assert_eq!(server.get("/apis/none.example/v1/things").await.code, 404);
    // None of it left anything behind.
    assert_eq!(server.get(MAPS).await.expect(200)["items"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn unknown_and_duplicate_fields_are_refused_warned_about_or_dropped() {
    let server = TestServer::start().await;
    let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"datum":1,"data":{"k":"1"},"data":{"k":"2"}}"#;
    let strict =
        server.send(Method::POST, &format!("{MAPS}?fieldValidation=Strict"), "application/json", body).await;
    let message = strict.expect(400)["message"].as_str().expect("words").to_string();
    assert!(
        message.contains("unknown field \"datum\"") && message.contains("duplicate field \"data\""),
        "{message}"
    );
    let warned = server
        .send(Method::POST, &format!("{MAPS}?fieldValidation=Warn&dryRun=All"), "application/json", body)
        .await;
    warned.expect(201);
    let warnings: Vec<_> = warned.headers.get_all("warning").iter().collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    let ignored =
        server.send(Method::POST, &format!("{MAPS}?fieldValidation=Ignore"), "application/json", body).await;
    assert_eq!(ignored.expect(201).get("datum"), None);
    assert!(ignored.headers.get("warning").is_none());
}

#[tokio::test]
async fn dry_run_answers_as_if_and_writes_nothing() {
    let server = TestServer::start().await;
    let would = server.post(&format!("{MAPS}?dryRun=All"), &config_map("a", "1")).await.expect(201);
    assert!(would["metadata"]["uid"].is_string());
    server.get(&format!("{MAPS}/a")).await.expect(404);
    server.post(MAPS, &config_map("a", "1")).await.expect(201);
    server.delete(&format!("{MAPS}/a?dryRun=All")).await.expect(200);
    server.patch(&format!("{MAPS}/a?dryRun=All"), "merge", &json!({"data": {"k": "9"}})).await.expect(200);
    assert_eq!(server.get(&format!("{MAPS}/a")).await.expect(200)["data"]["k"], "1");
}

#[tokio::test]
async fn finalizers_hold_an_object_until_the_last_is_gone() {
    let server = TestServer::start().await;
    let mut map = config_map("a", "1");
    map["metadata"]["finalizers"] = json!(["example.com/hold"]);
    server.post(MAPS, &map).await.expect(201);
    let one = format!("{MAPS}/a");
    let terminating = server.delete(&one).await.expect(200);
    assert!(terminating["metadata"]["deletionTimestamp"].is_string());
    let refused = server
        .patch(&one, "merge", &json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}}))
        .await;
    assert_eq!(refused.expect(422)["details"]["causes"][0]["field"], "metadata.finalizers");
    server.patch(&one, "merge", &json!({"metadata": {"finalizers": null}})).await.expect(200);
    server.get(&one).await.expect(404);
}

#[tokio::test]
async fn preconditions_protect_against_deleting_another_object() {
    let server = TestServer::start().await;
    server.post(MAPS, &config_map("a", "1")).await.expect(201);
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "another"}});
    let one = format!("{MAPS}/a");
    let refused = server.send(Method::DELETE, &one, "application/json", options.to_string()).await;
    assert_eq!(refused.expect(409)["reason"], "Conflict");
    server.get(&one).await.expect(200);
}

#[tokio::test]
async fn pages_of_one_list_are_of_one_revision() {
    let server = TestServer::start().await;
    for number in 0..10 {
        server.post(MAPS, &config_map(&format!("m{number}"), "1")).await.expect(201);
    }
    let first = server.get(&format!("{MAPS}?limit=4")).await.expect(200);
    let token = first["metadata"]["continue"].as_str().expect("more").to_string();
    assert_eq!(first["metadata"]["remainingItemCount"], 6);
    server.delete(&format!("{MAPS}/m5")).await.expect(200);
    server.post(MAPS, &config_map("m55", "1")).await.expect(201);
    let rest = server.get(&format!("{MAPS}?limit=100&continue={token}")).await.expect(200);
    assert_eq!(rest["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let names: Vec<&str> = rest["items"]
        .as_array()
        .expect("items")
        .iter()
        .filter_map(|item| item["metadata"]["name"].as_str())
        .collect();
    assert_eq!(names, ["m4", "m5", "m6", "m7", "m8", "m9"]);
    // The same list by its revision, from history.
    let exact = format!(
        "{MAPS}?resourceVersion={}&resourceVersionMatch=Exact",
        first["metadata"]["resourceVersion"].as_str().expect("a revision")
    );
    assert_eq!(server.get(&exact).await.expect(200)["items"].as_array().map(Vec::len), Some(10));
}

#[tokio::test]
async fn generated_names_are_free_ones() {
    let server = TestServer::start().await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "web-"}});
    let one = server.post(MAPS, &map).await.expect(201);
    let two = server.post(MAPS, &map).await.expect(201);
    let (one, two) = (one["metadata"]["name"].as_str(), two["metadata"]["name"].as_str());
    assert!(one.is_some_and(|name| name.starts_with("web-") && name.len() == 9));
    assert_ne!(one, two);
}

#[tokio::test]
async fn apply_merges_owns_and_conflicts() {
    let server = TestServer::start().await;
    let one = format!("{MAPS}/a");
    let apply = |manager: &str, force: bool| format!("{one}?fieldManager={manager}&force={force}");
    let created = server.patch(&apply("one", false), "apply", &config_map("a", "1")).await.expect(201);
    assert_eq!(created["metadata"]["managedFields"][0]["operation"], "Apply");
    let conflict = server.patch(&apply("two", false), "apply", &config_map("a", "2")).await.expect(409);
    assert_eq!(conflict["details"]["causes"][0]["reason"], "FieldManagerConflict");
    assert_eq!(conflict["details"]["causes"][0]["field"], ".data.k");
    let forced = server.patch(&apply("two", true), "apply", &config_map("a", "2")).await.expect(200);
    assert_eq!(forced["data"]["k"], "2");
    // What its last owner no longer applies goes away.
    let mut empty = config_map("a", "2");
    empty["data"] = json!({});
    let cleared = server.patch(&apply("two", false), "apply", &empty).await.expect(200);
    assert!(cleared["data"]["k"].is_null(), "{cleared:#}");
}

#[tokio::test]
async fn of_those_that_apply_a_new_object_at_once_none_is_refused() {
    let server = TestServer::start().await;
    for round in 0..20 {
        let name = format!("a{round}");
        let apply = (0..4).map(|manager| {
            let (server, name) = (&server, &name);
            async move {
                let mut own = config_map(name, "1");
                own["data"] = json!({format!("of-{manager}"): "1"});
                let path = format!("{MAPS}/{name}?fieldManager=manager-{manager}");
                server.patch(&path, "apply", &own).await.code
            }
        });
        let mut answers = futures::future::join_all(apply).await;
        answers.sort_unstable();
        assert_eq!(answers, [200, 200, 200, 201], "{name}");
        let object = server.get(&format!("{MAPS}/{name}")).await.expect(200);
        assert_eq!(object["data"].as_object().map(serde_json::Map::len), Some(4), "{object:#}");
    }
}

#[tokio::test]
async fn an_applied_scale_owns_the_replicas_and_nothing_else() {
    let server = TestServer::start().await;
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
        "replicas": 2, "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    server.post(&format!("{deployments}?fieldManager=creator"), &deployment).await.expect(201);
    let one = format!("{deployments}/web");
    let apply = |manager: &str, force: bool| format!("{one}/scale?fieldManager={manager}&force={force}");
    let scale = |replicas: i64| json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "web"}, "spec": {"replicas": replicas}});
    let owners = |object: &Value| -> Vec<String> {
        let rows = object["metadata"]["managedFields"].as_array().expect("managers").clone();
        let owns = |row: &&Value| !row["fieldsV1"]["f:spec"]["f:replicas"].is_null();
        let name = |row: &Value| format!("{}/{}/{}", row["manager"], row["operation"], row["subresource"]);
        rows.iter().filter(owns).map(name).map(|name| name.replace('"', "")).collect()
    };

    // The same value is owned together; another one is a conflict.
    server.patch(&apply("scaler", false), "apply", &scale(2)).await.expect(200);
    assert_eq!(owners(&server.get(&one).await.expect(200)), ["scaler/Apply/scale", "creator/Update/null"]);
    let conflict = server.patch(&apply("scaler", false), "apply", &scale(3)).await.expect(409);
    assert_eq!(
        conflict["message"],
        "Apply failed with 1 conflict: conflict with \"creator\" using autoscaling/v1: .spec.replicas"
    );
    let scaled = server.patch(&apply("scaler", true), "apply", &scale(3)).await.expect(200);
    assert_eq!((&scaled["kind"], &scaled["spec"]["replicas"]), (&json!("Scale"), &json!(3)));
    let live = server.get(&one).await.expect(200);
    assert_eq!(owners(&live), ["scaler/Apply/scale"]);
    assert_eq!(live["spec"]["template"]["spec"]["containers"][0]["image"], "i");
    let conflict = server.patch(&apply("other", false), "apply", &scale(4)).await.expect(409);
    assert_eq!(
        conflict["message"],
        "Apply failed with 1 conflict: conflict with \"scaler\" with subresource \"scale\": .spec.replicas"
    );

    // A patch of the scale takes the replicas over, and what is no scale is refused.
    server
        .patch(&format!("{one}/scale?fieldManager=patcher"), "merge", &json!({"spec": {"replicas": 5}}))
        .await
        .expect(200);
    assert_eq!(owners(&server.get(&one).await.expect(200)), ["patcher/Update/scale"]);
    let refused = server.patch(&apply("scaler", true), "apply", &deployment).await.expect(400);
    assert_eq!(refused["message"], "invalid object type: apps/v1, Kind=Deployment");
    server.patch(&apply("scaler", true), "apply", &scale(-1)).await.expect(422);
    server.patch(&format!("{deployments}/none/scale?fieldManager=a"), "apply", &scale(1)).await.expect(400);
}

#[tokio::test]
async fn a_volumes_claim_is_owned_field_by_field() {
    let server = TestServer::start().await;
    let volume = |claim: Value| {
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/v"}, "claimRef": claim}})
    };
    let one = "/api/v1/persistentvolumes/v";
    let applied = volume(json!({"namespace": "default", "name": "c"}));
    server.patch(&format!("{one}?fieldManager=person"), "apply", &applied).await.expect(201);
    // The binder writes the uid beside it; the person may apply again without taking it away.
    server
        .patch(&format!("{one}?fieldManager=binder"), "merge", &json!({"spec": {"claimRef": {"uid": "u"}}}))
        .await
        .expect(200);
    let again = server.patch(&format!("{one}?fieldManager=person"), "apply", &applied).await.expect(200);
    assert_eq!(again["spec"]["claimRef"]["uid"], "u");
}

#[tokio::test]
async fn many_are_deleted_at_once_by_selector() {
    let server = TestServer::start().await;
    for (name, tier) in [("a", "x"), ("b", "x"), ("c", "y")] {
        let mut map = config_map(name, "1");
        map["metadata"]["labels"] = json!({"tier": tier});
        server.post(MAPS, &map).await.expect(201);
    }
    let gone = server.delete(&format!("{MAPS}?labelSelector=tier%3Dx")).await.expect(200);
    assert_eq!(gone["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(server.get(MAPS).await.expect(200)["items"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn status_and_spec_are_written_apart() {
    let server = TestServer::start().await;
    let nodes = "/api/v1/nodes";
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"capacity": {"cpu": "2"}}});
    server.post(nodes, &node).await.expect(201);
    let spec = server
        .patch(
            "/api/v1/nodes/n",
            "merge",
            &json!({"spec": {"unschedulable": true}, "status": {"phase": "x"}}),
        )
        .await
        .expect(200);
    assert!(spec["status"]["phase"].is_null());
    let status = server
        .patch(
            "/api/v1/nodes/n/status",
            "merge",
            &json!({"spec": {"unschedulable": false}, "status": {"phase": "Running"}}),
        )
        .await
        .expect(200);
    assert_eq!(
        (&status["spec"]["unschedulable"], &status["status"]["phase"]),
        (&json!(true), &json!("Running"))
    );
}

/// The owner of an evicted pod tells a disruption from a failure by the condition, so it comes with the mark.
#[tokio::test]
async fn an_evicted_pod_says_that_it_was_disrupted() {
    let server = TestServer::start().await;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"nodeName": "n", "serviceAccountName": "s", "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "i"}]},
    });
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "s"}});
    server.post("/api/v1/namespaces/default/serviceaccounts", &account).await.expect(201);
    server.post("/api/v1/namespaces/default/pods", &pod).await.expect(201);
    let one = "/api/v1/namespaces/default/pods/p";
    let status = json!({"status": {"phase": "Running"}});
    server.patch(&format!("{one}/status"), "merge", &status).await.expect(200);
    let eviction = |dry_run: Value| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}, "deleteOptions": {"dryRun": dry_run}});
    server.post(&format!("{one}/eviction"), &eviction(json!(["All"]))).await.expect(201);
    let untouched = server.get(one).await.expect(200);
    assert!(untouched["metadata"]["deletionTimestamp"].is_null());
    server.post(&format!("{one}/eviction"), &eviction(json!([]))).await.expect(201);
    let evicted = server.get(one).await.expect(200);
    assert!(evicted["metadata"]["deletionTimestamp"].is_string());
    let conditions = evicted["status"]["conditions"].as_array().expect("conditions");
    let disrupted = conditions.iter().find(|condition| condition["type"] == "DisruptionTarget");
    let disrupted = disrupted.expect("a condition that says so");
    assert_eq!(
        (&disrupted["status"], &disrupted["reason"]),
        (&json!("True"), &json!("EvictionByEvictionAPI"))
    );
}

#[tokio::test]
async fn a_write_through_another_version_owns_the_fields_of_that_version() {
    let server = TestServer::start().await;
    let autoscalers = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
    let autoscaler = |percent: u32| {
        json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"}, "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
            "maxReplicas": 3, "targetCPUUtilizationPercentage": percent}})
    };
    server.post(autoscalers, &autoscaler(50)).await.expect(201);
    let written = server.put(&format!("{autoscalers}/h"), &autoscaler(60)).await.expect(200);
    let entries = written["metadata"]["managedFields"].as_array().expect("field owners");
    assert_eq!(entries.len(), 1, "{entries:?}");
    assert_eq!(entries[0]["apiVersion"], "autoscaling/v1");
    let spec = &entries[0]["fieldsV1"]["f:spec"];
    assert!(spec.get("f:targetCPUUtilizationPercentage").is_some(), "{spec}");
    assert!(spec.get("f:metrics").is_none(), "{spec}");
}

/// Pods of the cluster itself ask for them by name.
#[tokio::test]
async fn a_new_cluster_has_the_systems_priority_classes() {
    let server = TestServer::start().await;
    for (name, value) in [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)]
    {
        let path = format!("/apis/scheduling.k8s.io/v1/priorityclasses/{name}");
        assert_eq!(server.get(&path).await.expect(200)["value"], value);
    }
}

/// kubectl validates lists with it, and gives up on a type that Go cannot read.
#[tokio::test]
async fn the_openapi_document_in_protobuf_has_a_type_that_go_reads() {
    let server = TestServer::start().await;
    for sign in ['@', '.'] {
        let form = format!("application/com.github.proto-openapi.spec.v2{sign}v1.0+protobuf");
        let headers = [("accept", &*form)];
        let answer =
            ferry_testkit::send(&server.admin(), Method::GET, "/openapi/v2", &headers, Vec::new()).await;
        assert_eq!(answer.code, 200);
        let answered = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
        assert_eq!(answer.header("content-type"), answered);
    }
}

/// A write that is accepted says what of it is deprecated, ignored or surprising, as upstream's does.
#[tokio::test]
async fn writes_are_answered_with_warnings() {
    let server = TestServer::start().await;
    let annotation = "container.apparmor.security.beta.kubernetes.io/c";
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "annotations": {annotation: "runtime/default"}},
        "spec": {
            "nodeSelector": {"beta.kubernetes.io/os": "linux"},
            "containers": [{"name": "c", "image": "i", "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}],
        },
    });
    let made = server.post("/api/v1/namespaces/default/pods", &pod).await;
    let said: Vec<_> = made.headers.get_all("warning").iter().collect();
    for warning in [
        r#"299 - "metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: deprecated since v1.30; use the \"appArmorProfile\" field instead""#,
        r#"299 - "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead""#,
        r#"299 - "spec.containers[0].env[1]: hides previous definition of \"A\", which may be dropped when using apply""#,
    ] {
        assert!(said.iter().any(|said| *said == warning), "{warning}\n{said:?}");
    }
    let profile = &made.expect(201)["spec"]["containers"][0]["securityContext"]["appArmorProfile"];
    assert_eq!(*profile, json!({"type": "RuntimeDefault"}));

    let services = "/api/v1/namespaces/default/services";
    let service = |distribution: &str| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
            "spec": {"ports": [{"port": 1}], "trafficDistribution": distribution}})
    };
    assert_eq!(server.post(services, &service("PreferSameZone")).await.header("warning"), "");
    let patch = json!({"spec": {"trafficDistribution": "PreferClose"}});
    let changed = server.patch(&format!("{services}/s"), "merge", &patch).await;
    let warning =
        r#"299 - "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"""#;
    assert_eq!((changed.code, changed.header("warning")), (200, warning));
}

#[tokio::test]
async fn a_scale_has_columns_of_its_own() {
    let server = TestServer::start().await;
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"a": "b"}}, "template": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]},
        }},
    });
    server.post(deployments, &deployment).await.expect(201);
    let headers = [("accept", "application/json;as=Table;g=meta.k8s.io;v=v1")];
    let path = format!("{deployments}/d/scale");
    let answer = ferry_testkit::send(&server.admin(), Method::GET, &path, &headers, Vec::new()).await;
    let table = answer.expect(200);
    assert_eq!(table["kind"], "Table");
    let names: Vec<&Value> = table["columnDefinitions"]
        .as_array()
        .expect("columns")
        .iter()
        .map(|column| &column["name"])
        .collect();
    assert_eq!(names, ["Name", "Desired", "Available", "Age"]);
    let cells = table["rows"][0]["cells"].as_array().expect("cells");
    assert_eq!(cells[..3], [json!("d"), json!(3), json!(0)]);
}
