//! A definition that is deleted takes its objects with it, and nothing of it is left for one that is made anew.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use kube::api::{Api, ApiResource, DynamicObject, WatchEvent, WatchParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

use super::server::{DEFINITIONS, PATIENCE, Server, condition, names, namespace};
use super::widgets::{NAME, WIDGETS, definition, red};

#[tokio::test]
async fn a_definition_waits_for_objects_that_others_hold() {
    let Some(server) = Server::start().await else { return };
    server.define(&definition()).await;
    let mut held = red("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    server.post(WIDGETS, &held).await.expect(201);
    server.post(WIDGETS, &red("free")).await.expect(201);
    let marked = server.delete(&format!("{DEFINITIONS}/{NAME}")).await.expect(200);
    assert_eq!(marked["kind"], "CustomResourceDefinition");
    assert_eq!(condition(&marked, "Terminating"), ("True", "InstanceDeletionPending"));
    server.until(&format!("{WIDGETS}/free"), |answer| answer.code == 404).await;
    let waiting = server
        .definition_until(NAME, |it| condition(it, "Terminating") == ("True", "InstanceDeletionInProgress"))
        .await;
    assert_eq!(waiting["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    let refused = server.post(WIDGETS, &red("late")).await.expect(405);
    assert_eq!(refused["message"], "create not allowed while custom resource definition is terminating");
    let one = server.get(&format!("{WIDGETS}/held")).await.expect(200);
    assert!(one["metadata"]["deletionTimestamp"].is_string());
    server.merge(&format!("{WIDGETS}/held"), &json!({"metadata": {"finalizers": null}})).await.expect(200);
    server.until(&format!("{DEFINITIONS}/{NAME}"), |answer| answer.code == 404).await;
    server.until(WIDGETS, |answer| answer.code == 404).await;
}

#[tokio::test]
async fn objects_of_versions_that_are_not_served_go_as_well() {
    let Some(server) = Server::start().await else { return };
    server.define(&definition()).await;
    server.post("/api/v1/namespaces", &namespace("other")).await.expect(201);
    for place in ["default", "other"] {
        let path = format!("/apis/example.com/v1/namespaces/{place}/widgets");
        server.post(&path, &red("a")).await.expect(201);
    }
    server.change(NAME, |it| it["spec"]["versions"][0]["served"] = false.into()).await;
    server.until(WIDGETS, |answer| answer.code == 404).await;
    server.delete(&format!("{DEFINITIONS}/{NAME}")).await.expect(200);
    server.until(&format!("{DEFINITIONS}/{NAME}"), |answer| answer.code == 404).await;
    server.define(&definition()).await;
    assert_eq!(names(&server.get("/apis/example.com/v1/widgets").await.expect(200)), [""; 0]);
}

#[tokio::test]
async fn a_definition_made_anew_has_nothing_of_the_old_one() {
    let Some(server) = Server::start().await else { return };
    server.define(&definition()).await;
    server.post(WIDGETS, &red("a")).await.expect(201);
    let gvk = GroupVersionKind::gvk("example.com", "v1", "Widget");
    let resource = ApiResource::from_gvk_with_plural(&gvk, "widgets");
    let api: Api<DynamicObject> = Api::namespaced_with(server.client.clone(), "default", &resource);
    let events = api.watch(&WatchParams::default(), "0").await.expect("a watch");
    let watching = tokio::spawn(async move {
        // It ends by itself when there is nothing to watch any more.
        let told: Vec<WatchEvent<DynamicObject>> = events.try_collect().await.expect("events");
        told.iter().filter(|event| matches!(event, WatchEvent::Deleted(_))).count()
    });
    server.delete(&format!("{DEFINITIONS}/{NAME}")).await.expect(200);
    server.until(&format!("{DEFINITIONS}/{NAME}"), |answer| answer.code == 404).await;
    let deleted = tokio::time::timeout(PATIENCE, watching).await.expect("the watch ends").expect("no panic");
    assert_eq!(deleted, 1, "who watches sees the objects go with their definition");

    let mut other = definition();
    other["spec"]["scope"] = "Cluster".into();
    other["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"color": {"type": "string"}, "weight": {"type": "integer"}}}}});
    server.define(&other).await;
    let all = "/apis/example.com/v1/widgets";
    assert_eq!(names(&server.get(all).await.expect(200)), [""; 0]);
    let heavy = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": {"weight": 3, "size": 1}});
    let created = server.post(all, &heavy).await.expect(201);
    assert_eq!((&created["spec"], &created["metadata"]["namespace"]), (&json!({"weight": 3}), &Value::Null));
}

#[tokio::test]
async fn a_watch_of_a_definition_tells_its_whole_life() {
    let Some(server) = Server::start().await else { return };
    let start = server.get(DEFINITIONS).await.expect(200)["metadata"]["resourceVersion"].to_string();
    let start = start.trim_matches('"').to_string();
    server.define(&definition()).await;
    server.delete(&format!("{DEFINITIONS}/{NAME}")).await.expect(200);
    server.until(&format!("{DEFINITIONS}/{NAME}"), |answer| answer.code == 404).await;
    let path = format!("{DEFINITIONS}?watch=true&resourceVersion={start}&timeoutSeconds=1");
    let events = server.watch(&path).await;
    let types: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!((types.first(), types.last()), (Some(&"ADDED"), Some(&"DELETED")), "{types:?}");
    let last = &events.last().expect("events")["object"];
    assert_eq!(condition(last, "Terminating"), ("False", "InstanceDeletionCompleted"));
}

#[tokio::test]
async fn objects_wait_for_nobody_when_the_server_restarts_in_the_middle() {
    let Some(mut server) = Server::start().await else { return };
    server.define(&definition()).await;
    let mut held = red("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    server.post(WIDGETS, &held).await.expect(201);
    server.delete(&format!("{DEFINITIONS}/{NAME}")).await.expect(200);
    server.process.restart().await;
    server.client = server.process.admin().await;
    server.merge(&format!("{WIDGETS}/held"), &json!({"metadata": {"finalizers": null}})).await.expect(200);
    tokio::time::timeout(
        PATIENCE + Duration::from_secs(1),
        server.until(&format!("{DEFINITIONS}/{NAME}"), |answer| answer.code == 404),
    )
    .await
    .expect("it goes");
}

/// Writers go on until they are refused, and a watch is told the end of everything that they were told is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_while_its_definition_goes_is_gone_with_it_and_told_of() {
    let Some(server) = Server::start().await else { return };
    server.define(&definition()).await;
    let gvk = GroupVersionKind::gvk("example.com", "v1", "Widget");
    let resource = ApiResource::from_gvk_with_plural(&gvk, "widgets");
    let api: Api<DynamicObject> = Api::namespaced_with(server.client.clone(), "default", &resource);
    let mut events = api.watch(&WatchParams::default(), "0").await.expect("a watch").boxed();
    let watching = tokio::spawn(async move {
        let (mut added, mut deleted) = (BTreeSet::new(), BTreeSet::new());
        while let Some(event) = events.try_next().await.expect("events") {
            match event {
                WatchEvent::Added(object) => added.extend(object.metadata.name),
                WatchEvent::Deleted(object) => deleted.extend(object.metadata.name),
                _ => {}
            }
        }
        (added, deleted)
    });
    let count = AtomicUsize::new(0);
    let write = |writer: usize| {
        let (server, count) = (&server, &count);
        async move {
            let mut written = BTreeSet::new();
            loop {
                let name = format!("w{writer}-{}", written.len());
                match server.post(WIDGETS, &red(&name)).await.code {
                    201 => written.insert(name),
                    // While it is terminating, and when it is gone.
                    refused => break (written, refused),
                };
                count.fetch_add(1, Ordering::SeqCst);
            }
        }
    };
    let delete = async {
        while count.load(Ordering::SeqCst) < 40 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.delete(&format!("{DEFINITIONS}/{NAME}")).await.expect(200);
        server.until(&format!("{DEFINITIONS}/{NAME}"), |answer| answer.code == 404).await;
    };
    let (writers, ()) = futures::join!(futures::future::join_all((0..4).map(write)), delete);
    let (added, deleted) = tokio::time::timeout(PATIENCE, watching).await.expect("an end").expect("no panic");
    for (written, refused) in &writers {
        assert!(matches!(refused, 404 | 405), "{refused}");
        assert!(written.is_subset(&added), "{:?} were never told of", written.difference(&added));
    }
    assert_eq!(added, deleted);
    server.define(&definition()).await;
    assert_eq!(names(&server.get("/apis/example.com/v1/widgets").await.expect(200)), [""; 0]);
}
