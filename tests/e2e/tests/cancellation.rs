//! A client that vanishes: every verb's request is polled once, twice, three times … and then dropped, until it has an
//! answer. Whatever the client does, a write is done as a whole or not at all, what is done is in the audit log and what is
//! not done is not, seats and memory are given back, and the server goes on.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use ferry_apiserver::filters::{Connection, handle};
use ferry_e2e::audited::AuditedServer;
use futures::{Stream, StreamExt};
use http::{Method, Request};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::time::Instant;

const SPACE: &str = "/api/v1/namespaces/default";
const JANES: &str = "Bearer janes-token";
/// Large enough that what the dropped requests of this test would hold together is more than one user may.
const BODY: usize = 600 << 10;
const PIECE: usize = 24 << 10;
/// More polls than any request takes.
const MOST: usize = 400;

/// Whether the write was done; `None` where it was done in part.
type Judge = fn(&[Value]) -> Option<bool>;

/// One request, about the objects of a number.
struct Case {
    verb: &'static str,
    /// Objects that are there before: path of the collection, object.
    before: fn(usize) -> Vec<(String, Value)>,
    request: fn(usize) -> (Method, String, &'static str, Value),
    /// What writes nothing has no such question.
    done: Option<Judge>,
    /// What `done` looks at.
    looked_at: fn(usize) -> Vec<String>,
}

fn map(number: usize, word: &str, filling: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m{number}"), "labels": {"word": word, "number": format!("n{number}")}},
        "data": {"word": word, "filling": "x".repeat(filling)}})
}

fn pod(number: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("m{number}")}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

fn maps(_: usize) -> String {
    format!("{SPACE}/configmaps")
}

fn map_path(number: usize) -> String {
    format!("{SPACE}/configmaps/m{number}")
}

fn pod_path(number: usize) -> String {
    format!("{SPACE}/pods/m{number}")
}

fn one_map(number: usize) -> Vec<(String, Value)> {
    vec![(maps(number), map(number, "old", 1))]
}

fn one_pod(number: usize) -> Vec<(String, Value)> {
    vec![(format!("{SPACE}/pods"), pod(number))]
}

fn is_there(object: &Value) -> bool {
    object["kind"] != "Status"
}

/// A map is old or new in both of its places.
fn is_new(objects: &[Value]) -> Option<bool> {
    match (&objects[0]["data"]["word"], &objects[0]["metadata"]["labels"]["word"]) {
        (data, label) if data == "new" && label == "new" => Some(true),
        (data, label) if data == "old" && label == "old" => Some(false),
        _ => None,
    }
}

fn is_made(objects: &[Value]) -> Option<bool> {
    Some(is_there(&objects[0]))
}

fn are_gone(objects: &[Value]) -> Option<bool> {
    let there = objects.iter().filter(|object| is_there(object)).count();
    if there == 0 { Some(true) } else { (there == objects.len()).then_some(false) }
}

const JSON: &str = "application/json";

fn cases() -> Vec<Case> {
    vec![
        Case {
            verb: "create",
            before: |_| Vec::new(),
            request: |n| (Method::POST, maps(n), JSON, map(n, "new", BODY)),
            done: Some(is_made),
            looked_at: |n| vec![map_path(n)],
        },
        Case {
            verb: "update",
            before: one_map,
            request: |n| (Method::PUT, map_path(n), JSON, map(n, "new", BODY)),
            done: Some(is_new),
            looked_at: |n| vec![map_path(n)],
        },
        Case {
            verb: "patch",
            before: one_map,
            request: |n| {
                let patch = json!({"metadata": {"labels": {"word": "new"}}, "data": {"word": "new", "filling": "y".repeat(BODY)}});
                (Method::PATCH, map_path(n), "application/merge-patch+json", patch)
            },
            done: Some(is_new),
            looked_at: |n| vec![map_path(n)],
        },
        Case {
            verb: "apply",
            before: |_| Vec::new(),
            request: |n| {
                let path = format!("{}?fieldManager=jane&force=true", map_path(n));
                (Method::PATCH, path, "application/apply-patch+yaml", map(n, "new", BODY))
            },
            done: Some(is_made),
            looked_at: |n| vec![map_path(n)],
        },
        Case {
            verb: "delete",
            before: one_map,
            request: |n| {
                (Method::DELETE, map_path(n), JSON, json!({"kind": "DeleteOptions", "apiVersion": "v1"}))
            },
            done: Some(are_gone),
            looked_at: |n| vec![map_path(n)],
        },
        Case {
            verb: "deletecollection",
            before: |n| {
                let mut other = map(n, "old", 1);
                other["metadata"]["name"] = format!("m{n}-other").into();
                vec![(maps(n), map(n, "old", 1)), (maps(n), other)]
            },
            request: |n| {
                (Method::DELETE, format!("{}?labelSelector=number%3Dn{n}", maps(n)), JSON, Value::Null)
            },
            done: Some(are_gone),
            looked_at: |n| vec![map_path(n), format!("{}-other", map_path(n))],
        },
        Case {
            verb: "scale",
            before: |n| {
                let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
                let spec =
                    json!({"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template});
                let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": format!("m{n}")}, "spec": spec});
                vec![("/apis/apps/v1/namespaces/default/deployments".into(), object)]
            },
            request: |n| {
                let path = format!("/apis/apps/v1/namespaces/default/deployments/m{n}/scale");
                (Method::PATCH, path, "application/merge-patch+json", json!({"spec": {"replicas": 3}}))
            },
            done: Some(|objects| Some(objects[0]["spec"]["replicas"] == 3)),
            looked_at: |n| vec![format!("/apis/apps/v1/namespaces/default/deployments/m{n}")],
        },
        Case {
            verb: "status",
            before: one_pod,
            request: |n| {
                let patch = json!({"status": {"reason": "new", "message": "new"}});
                (
                    Method::PATCH,
                    format!("{}/status", pod_path(n)),
                    "application/strategic-merge-patch+json",
                    patch,
                )
            },
            done: Some(|objects| {
                let status = &objects[0]["status"];
                (status["reason"] == status["message"]).then(|| status["reason"] == "new")
            }),
            looked_at: |n| vec![pod_path(n)],
        },
        Case {
            verb: "binding",
            before: one_pod,
            request: |n| {
                let target = json!({"apiVersion": "v1", "kind": "Node", "name": "n"});
                let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": format!("m{n}")}, "target": target});
                (Method::POST, format!("{}/binding", pod_path(n)), JSON, binding)
            },
            done: Some(|objects| Some(objects[0]["spec"]["nodeName"] == "n")),
            looked_at: |n| vec![pod_path(n)],
        },
        Case {
            verb: "eviction",
            before: one_pod,
            request: |n| {
                let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": format!("m{n}")}});
                (Method::POST, format!("{}/eviction", pod_path(n)), JSON, eviction)
            },
            // A pod on no node goes at once.
            done: Some(are_gone),
            looked_at: |n| vec![pod_path(n)],
        },
        reads("get", |n| (Method::GET, map_path(n), JSON, Value::Null)),
        reads("list", |n| (Method::GET, maps(n), JSON, Value::Null)),
        reads("watch", |n| {
            (Method::GET, format!("{}?watch=1&timeoutSeconds=30", maps(n)), JSON, Value::Null)
        }),
        reads("log", |n| (Method::GET, format!("{}/log", pod_path(n)), JSON, Value::Null)),
        reads("proxy", |_| (Method::GET, format!("{SPACE}/services/none/proxy/"), JSON, Value::Null)),
        reads("review", |_| {
            let spec = json!({"user": "a", "resourceAttributes": {"verb": "get", "resource": "pods"}});
            let review =
                json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec});
            (Method::POST, "/apis/authorization.k8s.io/v1/subjectaccessreviews".into(), JSON, review)
        }),
        reads("token", |_| {
            let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["a"]}});
            (Method::POST, format!("{SPACE}/serviceaccounts/default/token"), JSON, request)
        }),
    ]
}

fn reads(verb: &'static str, request: fn(usize) -> (Method, String, &'static str, Value)) -> Case {
    Case { verb, before: one_map, request, done: None, looked_at: |_| Vec::new() }
}

type Pieces = StreamBody<Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, Infallible>> + Send>>>;

/// A body that comes in pieces, each a moment after the one before.
fn body(value: &Value) -> Pieces {
    let bytes = if value.is_null() { Bytes::new() } else { Bytes::from(value.to_string()) };
    let pieces = futures::stream::unfold(bytes, |mut left| async move {
        if left.is_empty() {
            return None;
        }
        tokio::task::yield_now().await;
        let piece = left.split_to(left.len().min(PIECE));
        Some((Ok(Frame::data(piece)), left))
    });
    StreamBody::new(pieces.boxed())
}

/// Polls a future so many times; dropped by then, unless it came to its end.
async fn polled<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let (mut future, mut count) = (Box::pin(future), 0);
    std::future::poll_fn(|context| {
        count += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if count >= polls => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(Instant::now() < give_up, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_may_disconnect_at_every_step_of_every_verb() {
    let files = tempfile::tempdir().expect("a directory");
    let users = files.path().join("users");
    std::fs::write(&users, "janes-token,jane,2\n").expect("written");
    let audited = AuditedServer::start("Metadata", |config| config.token_auth_file = Some(users)).await;
    let server = &audited.server;
    // Not of system:masters, whom no limit of seats concerns.
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "jane"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}],
    });
    server.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await.expect(201);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    server.post("/api/v1/nodes", &node).await.expect(201);
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    server.post(&format!("{SPACE}/serviceaccounts"), &account).await;
    let api = server.running().api.clone();
    // One connection for all, as of one client: what it holds of memory is counted together.
    let connection = Connection::default();
    let (mut number, mut written, mut unwritten, mut dropped) = (0, Vec::new(), Vec::new(), 0);
    for case in cases() {
        for polls in 1.. {
            assert!(polls < MOST, "{} never ends", case.verb);
            number += 1;
            for (path, object) in (case.before)(number) {
                server.post(&path, &object).await.expect(201);
            }
            let (method, path, content_type, value) = (case.request)(number);
            let id = format!("{}-{number}", case.verb);
            let request = Request::builder()
                .method(method)
                .uri(path)
                .header("authorization", JANES)
                .header("content-type", content_type)
                .header("audit-id", &id)
                .body(body(&value))
                .expect("a well-formed request");
            let answer = polled(polls, handle(api.clone(), connection.clone(), request)).await;
            eventually("a write that was begun ends", async || api.unfinished.is_empty()).await;
            let title = format!("{} after {polls} polls", case.verb);
            if let Some(done) = case.done {
                let mut objects = Vec::new();
                for path in (case.looked_at)(number) {
                    objects.push(server.get(&path).await.json());
                }
                let done = done(&objects).unwrap_or_else(|| panic!("{title}: done in part: {objects:?}"));
                if done {
                    written.push(id)
                } else {
                    unwritten.push(id)
                };
                if let Some(answer) = &answer {
                    assert!(done && answer.status().is_success(), "{title}: {}", answer.status());
                }
            }
            match answer {
                None => dropped += 1,
                Some(answer) => {
                    assert_ne!(answer.status(), 500, "{title}");
                    // Of what is read as it comes, one piece is taken, and the rest left.
                    let mut body = answer.into_body();
                    let _ = polled(2, body.frame()).await;
                    break;
                }
            }
        }
    }
    assert!(dropped > 60, "only {dropped} requests were dropped on their way");
    assert!(unwritten.len() > 10, "only {} writes were not done", unwritten.len());

    let codes = || {
        let lines = audited.lines().into_iter().filter(|line| line["stage"] == "ResponseComplete");
        let code = |line: &Value| line["responseStatus"]["code"].as_u64().unwrap_or(0);
        lines
            .map(|line| (line["auditID"].as_str().unwrap_or("").to_string(), code(&line)))
            .collect::<std::collections::BTreeMap<_, _>>()
    };
    eventually("what was written is in the audit log", async || {
        let codes = codes();
        written.iter().all(|id| codes.get(id).is_some_and(|code| (200..300).contains(code)))
    })
    .await;
    let codes = codes();
    for id in &unwritten {
        // A request without an answer has no code.
        let code = codes.get(id).copied().unwrap_or(0);
        assert!(code == 0 || code >= 400, "{id} is said to be written: {code}");
    }
    // The request that asks is of the level that has no seats.
    eventually("seats are given back", async || {
        let table = server.get("/debug/api_priority_and_fairness/dump_priority_levels").await;
        let table = String::from_utf8_lossy(&table.bytes).into_owned();
        let busy = |line: &&str| {
            let cells: Vec<&str> = line.split(',').map(str::trim).collect();
            cells.first() != Some(&"exempt") && (cells.get(4), cells.get(5)) != (Some(&"0"), Some(&"0"))
        };
        let rows = table.lines().skip(1).filter(|line| !line.trim().is_empty());
        table.lines().count() > 5 && rows.filter(busy).count() == 0
    })
    .await;
    // More than what is left where the bodies of dropped requests were still counted.
    let last = Request::post(maps(0)).header("authorization", JANES).header("content-type", JSON);
    let last = last.body(body(&map(0, "new", 1_000_000))).expect("a well-formed request");
    let answer = handle(api, connection, last).await;
    assert_eq!(answer.status(), 201);
}
