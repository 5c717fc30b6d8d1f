//! Watches as clients see them: nothing missing, nothing twice, bookmarks, and how they end.

use std::sync::Arc;
use std::time::Duration;

use ferry_store::{Embedded, embedded};
use ferry_testkit::TestServer;
use futures::{AsyncBufReadExt, AsyncReadExt, TryStreamExt};
use http::Request;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn config_map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"v": value}}, "data": {"k": value}})
}

/// Events of a watch until `count` have come.
async fn events(server: &TestServer, query: &str, count: usize) -> Vec<Value> {
    let request = Request::get(format!("{MAPS}?watch=true&{query}")).body(Vec::new()).expect("a request");
    let lines = server.admin().request_stream(request).await.expect("a stream").lines();
    let read = async {
        let mut lines = std::pin::pin!(lines);
        let mut events = Vec::new();
        while events.len() < count {
            match lines.try_next().await.expect("a line") {
                Some(line) => events.push(serde_json::from_str(&line).expect("an event")),
                None => break,
            }
        }
        events
    };
    tokio::time::timeout(Duration::from_secs(30), read).await.expect("the events come")
}

fn summary(events: &[Value]) -> Vec<(String, String)> {
    events
        .iter()
        .map(|event| {
            (
                event["type"].as_str().unwrap_or("").into(),
                event["object"]["metadata"]["name"].as_str().unwrap_or("").into(),
            )
        })
        .collect()
}

#[tokio::test]
async fn a_watch_from_a_revision_sees_every_change_after_it_in_order() {
    let server = TestServer::start().await;
    let start = server.get(MAPS).await.expect(200)["metadata"]["resourceVersion"]
        .as_str()
        .expect("a revision")
        .to_string();
    for number in 0..20 {
        server.post(MAPS, &config_map(&format!("m{number}"), "1")).await.expect(201);
    }
    server.patch(&format!("{MAPS}/m3"), "merge", &json!({"data": {"k": "2"}})).await.expect(200);
    server.delete(&format!("{MAPS}/m3")).await.expect(200);
    let seen = events(&server, &format!("resourceVersion={start}"), 22).await;
    let revisions: Vec<i64> = seen
        .iter()
        .map(|event| {
            event["object"]["metadata"]["resourceVersion"]
                .as_str()
                .expect("a revision")
                .parse()
                .expect("a number")
        })
        .collect();
    assert!(revisions.is_sorted_by(|a, b| a < b), "{revisions:?}");
    let summary = summary(&seen);
    assert_eq!(summary[20], ("MODIFIED".into(), "m3".into()));
    assert_eq!(summary[21], ("DELETED".into(), "m3".into()));
}

#[tokio::test]
async fn an_object_that_leaves_the_selector_is_deleted_to_its_watcher() {
    let server = TestServer::start().await;
    let start = server.get(MAPS).await.expect(200)["metadata"]["resourceVersion"]
        .as_str()
        .expect("a revision")
        .to_string();
    server.post(MAPS, &config_map("a", "1")).await.expect(201);
    server
        .patch(&format!("{MAPS}/a"), "merge", &json!({"metadata": {"labels": {"v": "2"}}}))
        .await
        .expect(200);
    let seen = events(&server, &format!("resourceVersion={start}&labelSelector=v%3D1"), 2).await;
    assert_eq!(summary(&seen), [("ADDED".into(), "a".into()), ("DELETED".into(), "a".into())]);
    assert_eq!(seen[1]["object"]["metadata"]["labels"]["v"], "1");
}

#[tokio::test]
async fn initial_events_end_with_a_bookmark() {
    let server = TestServer::start().await;
    server.post(MAPS, &config_map("a", "1")).await.expect(201);
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let seen = events(&server, query, 2).await;
    assert_eq!(seen[0]["type"], "ADDED");
    assert_eq!(seen[1]["type"], "BOOKMARK");
    assert_eq!(seen[1]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
}

#[tokio::test]
async fn a_watch_that_ends_says_where_to_go_on() {
    let server = TestServer::start().await;
    let now =
        server.post(MAPS, &config_map("a", "1")).await.expect(201)["metadata"]["resourceVersion"].clone();
    let now = now.as_str().expect("a revision");
    // Something else happens, which this watch does not see but has to know of.
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
    let later = server.post("/api/v1/namespaces/default/secrets", &secret).await.expect(201);
    let query = format!("resourceVersion={now}&allowWatchBookmarks=true&timeoutSeconds=3");
    let seen = events(&server, &query, 100).await;
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0]["type"], "BOOKMARK");
    assert_eq!(seen[0]["object"]["metadata"]["resourceVersion"], later["metadata"]["resourceVersion"]);
}

#[tokio::test]
async fn metadata_alone_is_watched_and_listed_in_protobuf() {
    let server = TestServer::start().await;
    server.post(MAPS, &config_map("a", "1")).await.expect(201);
    let watch = format!("{MAPS}?watch=true&timeoutSeconds=1");
    for (path, kind) in [(MAPS, "PartialObjectMetadataList"), (&*watch, "PartialObjectMetadata")] {
        let accept = format!("application/vnd.kubernetes.protobuf;as={kind};g=meta.k8s.io;v=v1");
        let request = Request::get(path).header("accept", accept).body(Vec::new()).expect("a request");
        let stream = server.admin().request_stream(request).await.expect("a stream");
        let mut bytes = Vec::new();
        let mut stream = std::pin::pin!(stream);
        stream.read_to_end(&mut bytes).await.expect("the answer");
        let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(
            has("k8s\0") && has(kind) && has("meta.k8s.io/v1"),
            "{kind}: {}",
            String::from_utf8_lossy(&bytes)
        );
        assert!(!has("ERROR") && !has("\"metadata\""), "{kind}: {}", String::from_utf8_lossy(&bytes));
    }
}

#[tokio::test]
async fn a_watch_ends_after_its_time() {
    let server = TestServer::start().await;
    let seen = events(&server, "timeoutSeconds=1&resourceVersion=0", 100).await;
    assert!(seen.len() < 100);
}

#[tokio::test]
async fn a_revision_that_is_gone_is_said_to_be() {
    let server = TestServer::start().await;
    let ahead = server.get(&format!("{MAPS}?watch=true&resourceVersion=999999")).await;
    assert_eq!(ahead.expect(504)["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    // A server that was started anew remembers no events of before.
    let directory = server.stop().await;
    let store =
        Embedded::open(embedded::Config::new(directory.path().join("store"))).expect("the same store");
    let server = TestServer::start_on(Arc::new(store), directory, |_| {}).await;
    // By an event, not by the answer's code: kube-rs' watcher would ask for the same revision again and again.
    let gone = events(&server, "resourceVersion=2&timeoutSeconds=5", 2).await;
    assert_eq!(gone.len(), 1, "{gone:?}");
    assert_eq!((&gone[0]["type"], &gone[0]["object"]["code"]), (&"ERROR".into(), &410.into()));
    assert_eq!(gone[0]["object"]["reason"], "Expired");
}

#[tokio::test]
async fn kube_rs_follows_with_its_own_watcher() {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use kube::api::{PostParams, WatchEvent, WatchParams};
    let server = TestServer::start().await;
    let api: Api<ConfigMap> = Api::namespaced(server.admin(), "default");
    let version =
        api.list(&Default::default()).await.expect("a list").metadata.resource_version.expect("a revision");
    let mut stream = std::pin::pin!(api.watch(&WatchParams::default(), &version).await.expect("a watch"));
    let map: ConfigMap = serde_json::from_value(config_map("a", "1")).expect("a ConfigMap");
    api.create(&PostParams::default(), &map).await.expect("created");
    let event = tokio::time::timeout(Duration::from_secs(10), stream.try_next())
        .await
        .expect("in time")
        .expect("no error");
    assert!(matches!(event, Some(WatchEvent::Added(found)) if found.metadata.name.as_deref() == Some("a")));
}
