//! Custom resources whose versions a webhook converts: what it is asked, what clients of each version see, and what
//! becomes of requests when it is late, gone or wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ferry_e2e::webhook_server::{Reply, WebhookServer};
use ferry_testkit::TestServer;
use futures::{AsyncBufReadExt, FutureExt, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";
const V1: &str = "/apis/example.com/v1/namespaces/default/widgets";
const V2: &str = "/apis/example.com/v2/namespaces/default/widgets";

/// `spec.size` of v1 is `spec.dimensions.size` in v2.
fn version(name: &str, storage: bool) -> Value {
    let size = json!({"type": "integer", "minimum": 1});
    let spec = match name {
        "v1" => json!({"size": size}),
        _ => json!({"dimensions": {"type": "object", "properties": {"size": size}}}),
    };
    json!({
        "name": name, "served": true, "storage": storage, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "properties": spec},
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }}},
    })
}

fn definition(hook: &WebhookServer, storage: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [version("v1", storage == "v1"), version("v2", storage == "v2")],
            "conversion": {"strategy": "Webhook", "webhook": {
                "conversionReviewVersions": ["v1"],
                "clientConfig": {"url": hook.url, "caBundle": hook.ca_bundle},
            }},
        },
    })
}

fn widget(name: &str, size: i64) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": size}})
}

/// What an honest webhook makes of a review.
fn converted(review: &Value) -> Value {
    let to = review["request"]["desiredAPIVersion"].clone();
    let objects = review["request"]["objects"].as_array().expect("objects").iter().map(|object| {
        let mut object = object.clone();
        let size = object.pointer("/spec/size").or(object.pointer("/spec/dimensions/size")).cloned();
        object["spec"] = match (size, to == "example.com/v1") {
            (None, _) => json!({}),
            (Some(size), true) => json!({"size": size}),
            (Some(size), false) => json!({"dimensions": {"size": size}}),
        };
        object["apiVersion"] = to.clone();
        object
    });
    let objects: Vec<Value> = objects.collect();
    review_of(review, json!({"result": {"status": "Success"}, "convertedObjects": objects}))
}

fn review_of(review: &Value, mut response: Value) -> Value {
    response["uid"] = review["request"]["uid"].clone();
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response})
}

fn say(review: &Value) -> Reply {
    Reply::Raw(200, review.to_string().into_bytes())
}

async fn serve(server: &TestServer, definition: &Value) {
    server.post(DEFINITIONS, definition).await.expect(201);
    served(server).await;
}

/// Waits until both versions are served.
async fn served(server: &TestServer) {
    for _ in 0..200 {
        if server.get(V1).await.code == 200 && server.get(V2).await.code == 200 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("the definition is not served: {}", server.get(DEFINITION).await.expect(200));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_each_version_see_and_write_their_own_fields() {
    let server = TestServer::start().await;
    let hook = WebhookServer::start(|review| say(&converted(review))).await;
    serve(&server, &definition(&hook, "v1")).await;
    for (name, size) in [("a", 1), ("b", 2), ("c", 3)] {
        server.post(V1, &widget(name, size)).await.expect(201);
    }
    assert_eq!(hook.count(), 0, "nothing is converted that is read and written as it is stored");

    let read = server.get(&format!("{V2}/a")).await.expect(200);
    assert_eq!(
        (&read["apiVersion"], &read["spec"]),
        (&json!("example.com/v2"), &json!({"dimensions": {"size": 1}}))
    );
    let before = hook.count();
    let list = server.get(V2).await.expect(200);
    let sizes: Vec<&Value> =
        list["items"].as_array().expect("items").iter().map(|it| &it["spec"]["dimensions"]["size"]).collect();
    assert_eq!(sizes, [&json!(1), &json!(2), &json!(3)]);
    assert_eq!(hook.count(), before + 1, "one call converts what is left of a list");
    assert_eq!(
        hook.last()["request"]["objects"].as_array().map(Vec::len),
        Some(2),
        "what was converted is kept"
    );

    let mut changed = read.clone();
    changed["spec"]["dimensions"]["size"] = json!(7);
    server.put(&format!("{V2}/a"), &changed).await.expect(200);
    let stored = server.get(&format!("{V1}/a")).await.expect(200);
    assert_eq!((&stored["spec"], &stored["metadata"]["generation"]), (&json!({"size": 7}), &json!(2)));
    let patched =
        server.patch(&format!("{V2}/a"), "merge", &json!({"spec": {"dimensions": {"size": 8}}})).await;
    assert_eq!(patched.expect(200)["spec"]["dimensions"]["size"], 8);
    server.patch(&format!("{V2}/a/status"), "merge", &json!({"status": {"ready": true}})).await.expect(200);
    let seen = server.get(&format!("{V1}/a")).await.expect(200);
    assert_eq!((&seen["spec"]["size"], &seen["status"]["ready"]), (&json!(8), &json!(true)));

    // Each version is judged by its own schema.
    changed["spec"]["dimensions"]["size"] = json!(0);
    changed["metadata"]["resourceVersion"] = seen["metadata"]["resourceVersion"].clone();
    let refused = server.put(&format!("{V2}/a"), &changed).await.expect(422);
    let message = refused["message"].as_str().expect("a message");
    assert!(message.contains("spec.dimensions.size: Invalid value: 0"), "{message}");
    server.delete(&format!("{V2}/a")).await.expect(200);
    server.get(&format!("{V1}/a")).await.expect(404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_converted_and_a_watch_in_another_version_misses_none() {
    let server = TestServer::start().await;
    let hook = WebhookServer::start(|review| say(&converted(review))).await;
    serve(&server, &definition(&hook, "v1")).await;
    server.post(V1, &widget("a", 1)).await.expect(201);
    let request = http::Request::get(format!("{V2}?watch=1")).body(Vec::new()).expect("a request");
    let mut lines = server.admin().request_stream(request).await.expect("a watch").lines();
    let mut next = async || {
        let line =
            tokio::time::timeout(Duration::from_secs(20), lines.try_next()).await.expect("an event in time");
        let event: Value = serde_json::from_str(&line.expect("a line").expect("an event")).expect("JSON");
        (event["type"].clone(), event["object"]["spec"]["dimensions"]["size"].clone())
    };
    assert_eq!(next().await, (json!("ADDED"), json!(1)));
    server.patch(&format!("{V1}/a"), "merge", &json!({"spec": {"size": 5}})).await.expect(200);
    assert_eq!(next().await, (json!("MODIFIED"), json!(5)));
    server.post(V1, &widget("b", 6)).await.expect(201);
    assert_eq!(next().await, (json!("ADDED"), json!(6)));
    server.delete(&format!("{V1}/a")).await.expect(200);
    assert_eq!(next().await, (json!("DELETED"), json!(5)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_field_selector_asks_for_fields_of_its_own_version() {
    let server = TestServer::start().await;
    let hook = WebhookServer::start(|review| say(&converted(review))).await;
    let mut definition = definition(&hook, "v1");
    definition["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.size"}]);
    definition["spec"]["versions"][1]["selectableFields"] = json!([{"jsonPath": ".spec.dimensions.size"}]);
    serve(&server, &definition).await;
    server.post(V1, &widget("a", 1)).await.expect(201);
    let ones = format!("{V2}?fieldSelector=spec.dimensions.size%3D1");
    let request = http::Request::get(format!("{ones}&watch=1")).body(Vec::new()).expect("a request");
    let mut lines = server.admin().request_stream(request).await.expect("a watch").lines();
    let mut next = async || {
        let line =
            tokio::time::timeout(Duration::from_secs(20), lines.try_next()).await.expect("an event in time");
        let event: Value = serde_json::from_str(&line.expect("a line").expect("an event")).expect("JSON");
        let object = &event["object"];
        let size = object["spec"]["dimensions"]["size"].as_i64();
        (event["type"].clone(), object["metadata"]["name"].clone(), size)
    };
    assert_eq!(next().await, (json!("ADDED"), json!("a"), Some(1)));
    for (name, size) in [("b", 2), ("c", 1), ("d", 1)] {
        server.post(V1, &widget(name, size)).await.expect(201);
    }
    assert_eq!(next().await, (json!("ADDED"), json!("c"), Some(1)));
    assert_eq!(next().await, (json!("ADDED"), json!("d"), Some(1)));

    let names = async |path: &str| {
        let list = server.get(path).await.expect(200);
        let items = list["items"].as_array().expect("items").iter();
        items.map(|item| item["metadata"]["name"].as_str().expect("a name").to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&ones).await, ["a", "c", "d"]);
    assert_eq!(names(&format!("{V1}?fieldSelector=spec.size%3D2")).await, ["b"]);
    assert_eq!(
        names(&format!("{V2}?fieldSelector=spec.dimensions.size!%3D1,metadata.name%3Db")).await,
        ["b"]
    );
    let page = server.get(&format!("{ones}&limit=2")).await.expect(200);
    let rest = format!("{ones}&limit=2&continue={}", page["metadata"]["continue"].as_str().expect("more"));
    assert_eq!(names(&rest).await, ["d"]);

    // What changes is gone for those who select what it was, and there for those who select what it is.
    server.patch(&format!("{V1}/a"), "merge", &json!({"spec": {"size": 3}})).await.expect(200);
    assert_eq!(next().await, (json!("DELETED"), json!("a"), Some(1)));
    server.patch(&format!("{V1}/b"), "merge", &json!({"spec": {"size": 1}})).await.expect(200);
    assert_eq!(next().await, (json!("ADDED"), json!("b"), Some(1)));
    server.delete(&format!("{V1}/c")).await.expect(200);
    assert_eq!(next().await, (json!("DELETED"), json!("c"), Some(1)));
    server.delete(&ones).await.expect(200);
    assert_eq!(names(V1).await, ["a"], "a deletion of many selects as a list does");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_keep_the_version_they_were_stored_in_when_another_becomes_the_stored_one() {
    let server = TestServer::start().await;
    let hook = WebhookServer::start(|review| say(&converted(review))).await;
    serve(&server, &definition(&hook, "v1")).await;
    server.post(V1, &widget("old", 1)).await.expect(201);
    let mut moved = server.get(DEFINITION).await.expect(200);
    moved["spec"]["versions"] = json!([version("v1", false), version("v2", true)]);
    let moved = server.put(DEFINITION, &moved).await.expect(200);
    assert_eq!(moved["status"]["storedVersions"], json!(["v1", "v2"]));
    let new = json!({"apiVersion": "example.com/v2", "kind": "Widget", "metadata": {"name": "new"}, "spec": {"dimensions": {"size": 2}}});
    // The change of the definition may not have been taken in yet: either version can be written all the time.
    server.post(V2, &new).await.expect(201);
    for (path, pointer) in [(V1, "/spec/size"), (V2, "/spec/dimensions/size")] {
        for (name, size) in [("old", 1), ("new", 2)] {
            let read = server.get(&format!("{path}/{name}")).await.expect(200);
            assert_eq!(read.pointer(pointer), Some(&json!(size)), "{path}/{name}: {read}");
        }
    }
    // A write moves the object.
    server
        .patch(&format!("{V1}/old"), "merge", &json!({"metadata": {"labels": {"a": "b"}}}))
        .await
        .expect(200);
    let read = server.get(&format!("{V2}/old")).await.expect(200);
    assert_eq!(
        (&read["spec"]["dimensions"]["size"], &read["metadata"]["labels"]["a"]),
        (&json!(1), &json!("b"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_conversion_webhook_fails_the_request_without_data_loss() {
    let server = TestServer::start().await;
    type Answer = Box<dyn Fn(&Value) -> Reply + Send + Sync>;
    let answer: Arc<Mutex<Answer>> = Arc::new(Mutex::new(Box::new(|review| say(&converted(review)))));
    let given = answer.clone();
    let hook = WebhookServer::start(move |review| given.lock()(review)).await;
    serve(&server, &definition(&hook, "v1")).await;
    server.post(V1, &widget("a", 1)).await.expect(201);

    let changed = |change: fn(&mut Value)| -> Answer {
        Box::new(move |review| {
            let mut answer = converted(review);
            change(&mut answer["response"]);
            say(&answer)
        })
    };
    // What a kube-apiserver 1.36.4 says of them, after the words that all begin with.
    let wrong: Vec<(&str, Answer)> = vec![
        (
            "failed: couldn't get version/kind; json parse error: ",
            Box::new(|_| Reply::Raw(200, b"<html>".to_vec())),
        ),
        (
            "failed: an error on the server (\"broken\") has prevented the request from succeeding",
            Box::new(|_| Reply::Raw(500, b"broken".to_vec())),
        ),
        (
            "failed: denied",
            Box::new(|_| {
                let status =
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "denied"});
                Reply::Raw(403, status.to_string().into_bytes())
            }),
        ),
        (
            "failed: no way",
            changed(|response| response["result"] = json!({"status": "Failed", "message": "no way"})),
        ),
        ("returned 0 objects, expected 1", changed(|response| response["convertedObjects"] = json!([]))),
        (
            "returned invalid object: must have the same name: ",
            changed(|response| response["convertedObjects"][0]["metadata"]["name"] = "other".into()),
        ),
        (
            "returned invalid object at index 0: invalid groupVersion (expected example.com/v",
            changed(|response| response["convertedObjects"][0]["apiVersion"] = "example.com/v9".into()),
        ),
    ];
    for (expected, wrong) in wrong {
        *answer.lock() = wrong;
        for failed in [server.get(&format!("{V2}/a")).await, server.get(V2).await] {
            let failed = failed.expect(500);
            let message = failed["message"].as_str().expect("a message");
            let start = "conversion webhook for example.com/v1, Kind=Widget ";
            assert!(message.starts_with(&format!("{start}{expected}")), "{expected}: {message}");
            assert_eq!(failed["reason"], Value::Null, "upstream gives none");
        }
        let put = json!({"apiVersion": "example.com/v2", "kind": "Widget", "metadata": {"name": "b"}, "spec": {"dimensions": {"size": 2}}});
        server.post(V2, &put).await.expect(500);
        server.get(&format!("{V1}/b")).await.expect(404);
        // Who asks for what is stored is not troubled.
        assert_eq!(server.get(&format!("{V1}/a")).await.expect(200)["spec"]["size"], 1);
    }
    *answer.lock() = Box::new(|review| say(&converted(review)));
    assert_eq!(server.get(&format!("{V2}/a")).await.expect(200)["spec"]["dimensions"]["size"], 1);
}

/// v2 knows a field that v1 has no place for: what a client writes is judged as it was written, not as it comes back from the
/// stored version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_is_judged_before_a_webhook_makes_something_else_of_it() {
    let server = TestServer::start().await;
    let hook = WebhookServer::start(|review| say(&converted(review))).await;
    let mut definition = definition(&hook, "v1");
    let schema = &mut definition["spec"]["versions"][1]["schema"]["openAPIV3Schema"];
    schema["properties"]["spec"]["properties"]["shape"] =
        json!({"type": "string", "enum": ["flat", "round"]});
    schema["properties"]["spec"]["required"] = json!(["shape"]);
    schema["properties"]["status"]["default"] = json!({"ready": false});
    serve(&server, &definition).await;
    let widget = |spec: Value| json!({"apiVersion": "example.com/v2", "kind": "Widget", "metadata": {"name": "a"}, "spec": spec});
    server.post(V2, &widget(json!({"dimensions": {"size": 1}}))).await.expect(422);
    let before = hook.count();
    server.post(V2, &widget(json!({"dimensions": {"size": 1}, "shape": "flat"}))).await.expect(201);
    assert_eq!(hook.count(), before + 2, "to be stored, and to be answered");
    let path = format!("{V2}/a");
    let mut seen = server.get(&path).await.expect(200);
    assert_eq!(seen["spec"], json!({"dimensions": {"size": 1}}), "the webhook lost it");
    seen["spec"]["dimensions"]["size"] = json!(2);
    server.put(&path, &seen).await.expect(422);
    seen["spec"] = json!({"dimensions": {"size": 2}, "shape": "square"});
    server.put(&path, &seen).await.expect(422);
    seen["spec"]["shape"] = "round".into();
    server.put(&path, &seen).await.expect(200);
    server.patch(&path, "merge", &json!({"spec": {"dimensions": {"size": 3}}})).await.expect(422);
    let change = json!({"spec": {"dimensions": {"size": 3}, "shape": "flat"}});
    server.patch(&path, "merge", &change).await.expect(200);
    server.patch(&format!("{path}/status"), "merge", &json!({"status": {"ready": true}})).await.expect(200);
    assert_eq!(server.get(&format!("{V1}/a")).await.expect(200)["spec"], json!({"size": 3}));
}

/// What is not done in this time is held up. Longer than a webhook may take.
const PATIENCE: Duration = Duration::from_secs(50);

/// A watch's next event: its type, and the size that it shows or what it says.
async fn next_event(
    lines: &mut (impl futures::Stream<Item = std::io::Result<String>> + Unpin),
) -> (String, Value) {
    let line = tokio::time::timeout(PATIENCE, lines.try_next()).await.expect("an event in time");
    let event: Value = serde_json::from_str(&line.expect("a line").expect("an event")).expect("JSON");
    let object = &event["object"];
    let size = object.pointer("/spec/size").or(object.pointer("/spec/dimensions/size"));
    let shown = size.unwrap_or(&object["message"]).clone();
    (event["type"].as_str().expect("a type").to_string(), shown)
}

/// The clock is moved to where the webhook's time is over: that takes one thread, and no 30 seconds.
#[tokio::test]
async fn a_slow_conversion_webhook_fails_only_its_own_requests() {
    let server = TestServer::start().await;
    let (released, is_late) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicBool::new(false)));
    let (until, late) = (released.clone(), is_late.clone());
    let hook = WebhookServer::start(move |review| match late.load(Ordering::SeqCst) {
        false => say(&converted(review)),
        true => Reply::Late(until.clone(), 200, converted(review).to_string().into_bytes()),
    });
    let hook = hook.await;
    serve(&server, &definition(&hook, "v1")).await;
    server.post(V1, &widget("a", 1)).await.expect(201);
    let watch = async |path: &str| {
        let request = http::Request::get(path).body(Vec::new()).expect("a request");
        server.admin().request_stream(request).await.expect("a watch").lines()
    };
    let (mut stored, mut other) =
        (watch(&format!("{V1}?watch=1")).await, watch(&format!("{V2}?watch=1")).await);
    for lines in [&mut stored, &mut other] {
        assert_eq!(next_event(lines).await, ("ADDED".into(), json!(1)));
    }
    server.post(V1, &widget("b", 2)).await.expect(201);
    for lines in [&mut stored, &mut other] {
        assert_eq!(next_event(lines).await, ("ADDED".into(), json!(2)));
    }

    is_late.store(true, Ordering::SeqCst);
    let asked = hook.count();
    // Nothing of "b" is left converted by this, and the watch asks for it too.
    server.patch(&format!("{V1}/b"), "merge", &json!({"spec": {"size": 3}})).await.expect(200);
    let made = json!({"apiVersion": "example.com/v2", "kind": "Widget", "metadata": {"name": "c"}, "spec": {"dimensions": {"size": 4}}});
    let change = json!({"spec": {"dimensions": {"size": 5}}});
    let answered = AtomicUsize::new(0);
    let one = format!("{V2}/b");
    let count = || {
        answered.fetch_add(1, Ordering::SeqCst);
    };
    let waiting = async {
        futures::join!(
            server.get(&one).inspect(|_| count()),
            server.get(V2).inspect(|_| count()),
            server.post(V2, &made).inspect(|_| count()),
            server.patch(&one, "merge", &change).inspect(|_| count()),
            next_event(&mut other).inspect(|_| count()),
        )
    };
    let meanwhile = async {
        let all_asked = async {
            while hook.count() < asked + 5 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, all_asked).await.expect("the webhook is asked");
        let others = async {
            // The stored version, of the same object too, and other kinds.
            assert_eq!(server.get(&format!("{V1}/b")).await.expect(200)["spec"]["size"], 3);
            assert_eq!(server.get(V1).await.expect(200)["items"].as_array().map(Vec::len), Some(2));
            server.patch(&format!("{V1}/b"), "merge", &json!({"spec": {"size": 6}})).await.expect(200);
            server.post(V1, &widget("d", 7)).await.expect(201);
            for (event, size) in [("MODIFIED", 3), ("MODIFIED", 6), ("ADDED", 7)] {
                assert_eq!(next_event(&mut stored).await, (event.into(), json!(size)));
            }
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
            server.post("/api/v1/namespaces/default/configmaps", &map).await.expect(201);
        };
        tokio::time::timeout(PATIENCE, others).await.expect("nothing else is held up");
        assert_eq!(answered.load(Ordering::SeqCst), 0, "the webhook has not answered yet");
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(30)).await;
        tokio::time::resume();
    };
    let ((get, list, post, patch, event), ()) = tokio::join!(waiting, meanwhile);
    let says = |version: &str| {
        let start = format!("conversion webhook for example.com/{version}, Kind=Widget failed: ");
        json!(format!("{start}Post \"{}?timeout=30s\": context deadline exceeded", hook.url))
    };
    for (answer, version) in [(get, "v1"), (list, "v1"), (post, "v2"), (patch, "v1")] {
        let failed = answer.expect(500);
        assert_eq!((&failed["message"], &failed["reason"]), (&says(version), &Value::Null));
    }
    assert_eq!(event, ("ERROR".into(), says("v1")));

    // What is answered now is too late for everybody.
    released.close();
    is_late.store(false, Ordering::SeqCst);
    server.get(&format!("{V1}/c")).await.expect(404);
    let sizes = |list: &Value, pointer: &str| {
        let items = list["items"].as_array().expect("items").iter();
        items.map(|item| item.pointer(pointer).and_then(Value::as_i64)).collect::<Vec<_>>()
    };
    for (path, pointer) in [(V1, "/spec/size"), (V2, "/spec/dimensions/size")] {
        assert_eq!(sizes(&server.get(path).await.expect(200), pointer), [Some(1), Some(6), Some(7)]);
    }
    server.patch(&format!("{V2}/b"), "merge", &change).await.expect(200);
    assert_eq!(next_event(&mut stored).await, ("MODIFIED".into(), json!(5)));
}

/// Who applies or writes what, by the version that it is written in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn managers_are_asked_in_the_version_that_they_wrote_through() {
    let server = TestServer::start().await;
    let hook = WebhookServer::start(|review| say(&converted(review))).await;
    serve(&server, &definition(&hook, "v1")).await;
    let apply = async |version: &str, manager: &str, query: &str, spec: Value| {
        let applied = json!({"apiVersion": format!("example.com/{version}"), "kind": "Widget", "spec": spec});
        let path = format!("/apis/example.com/{version}/namespaces/default/widgets/a");
        server.patch(&format!("{path}?fieldManager={manager}{query}"), "apply", &applied).await
    };
    apply("v1", "tool", "", json!({"size": 1})).await.expect(201);

    // Another manager meets the field under its other name; who forces takes it.
    let refused = apply("v2", "person", "", json!({"dimensions": {"size": 2}})).await.expect(409);
    assert_eq!(
        refused["message"], "Apply failed with 1 conflict: conflict with \"tool\": .spec.size",
        "{refused}"
    );
    apply("v2", "person", "", json!({"dimensions": {"size": 1}})).await.expect(200);
    apply("v2", "person", "&force=true", json!({"dimensions": {"size": 2}})).await.expect(200);
    let managers = async || {
        let read = server.get(&format!("{V1}/a")).await.expect(200);
        let entries = read["metadata"]["managedFields"].as_array().expect("managers").iter();
        entries.map(|entry| entry["manager"].as_str().expect("a name").to_string()).collect::<Vec<_>>()
    };
    assert_eq!(managers().await, ["person"], "the field is no longer the tool's");

    // Who moves to the other version and leaves the field out gives it up, and nobody else has it.
    apply("v1", "person", "", json!({})).await.expect(200);
    assert_eq!(server.get(&format!("{V2}/a")).await.expect(200)["spec"], json!({}));

    // A write through one version takes a field from those who set it through the other.
    apply("v1", "tool", "", json!({"size": 4})).await.expect(200);
    let write = json!({"spec": {"dimensions": {"size": 5}}});
    server.patch(&format!("{V2}/a?fieldManager=editor"), "merge", &write).await.expect(200);
    assert_eq!(
        managers().await,
        ["person", "editor"],
        "the person still has the empty spec, and the tool nothing"
    );
}

/// A list in the other version is one call of the webhook, and a page is one of its own objects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_objects_are_converted_at_once() {
    const OBJECTS: usize = 10_000;
    let server = TestServer::start().await;
    let hook = WebhookServer::start(|review| say(&converted(review))).await;
    serve(&server, &definition(&hook, "v1")).await;
    let create = |number: usize| {
        let server = &server;
        async move { server.post(V1, &widget(&format!("w{number}"), 1 + number as i64)).await.expect(201) }
    };
    futures::stream::iter((0..OBJECTS).map(create)).buffer_unordered(32).for_each(async |_| {}).await;
    let before = hook.count();
    let page = server.get(&format!("{V2}?limit=10")).await.expect(200);
    assert_eq!(page["items"].as_array().map(Vec::len), Some(10));
    assert_eq!(hook.last()["request"]["objects"].as_array().map(Vec::len), Some(10));
    let list = server.get(V2).await.expect(200);
    assert_eq!(hook.count(), before + 2);
    let items = list["items"].as_array().expect("items");
    assert_eq!(items.len(), OBJECTS);
    for item in items {
        let name = item["metadata"]["name"].as_str().expect("a name");
        assert_eq!(format!("w{}", item["spec"]["dimensions"]["size"].as_i64().expect("a size") - 1), name);
    }
}
