//! API priority and fairness: the objects that the server keeps, how it classifies requests, and what a flood of one user
//! does to others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ferry_store::{
    Committed, Embedded, Error, Found, Page, Range, Revision, Store, Txn, Usage, Watch, embedded,
};
use ferry_testkit::{Answer, TestServer, send};
use futures::FutureExt;
use http::Method;
use http_body_util::BodyExt;
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

const SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
const LEVELS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const SCHEMA_UID: &str = "x-kubernetes-pf-flowschema-uid";
const LEVEL_UID: &str = "x-kubernetes-pf-prioritylevel-uid";
/// Nothing is waited for any longer.
const PATIENCE: Duration = Duration::from_secs(60);

async fn until<T>(what: &str, mut found: impl AsyncFnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(found) = found().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("waited for {what}"))
}

/// May do everything, and is not exempt.
async fn user(server: &TestServer, name: &str) -> Client {
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}],
    });
    server.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await.expect(201);
    let client = server.user(name, &["system:authenticated"]);
    until("the right to be granted", async || (get(&client, MAPS).await.code == 200).then_some(())).await;
    client
}

async fn get(client: &Client, path: &str) -> Answer {
    send(client, Method::GET, path, &[], Vec::new()).await
}

async fn write(client: &Client, method: Method, path: &str, object: &Value) -> Answer {
    let headers = [("content-type", "application/json")];
    send(client, method, path, &headers, object.to_string().into_bytes()).await
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

fn schema(name: &str, level: &str, precedence: i32, user: &str) -> Value {
    json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": name},
        "spec": {
            "priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence,
            "distinguisherMethod": {"type": "ByUser"},
            "rules": [{
                "subjects": [{"kind": "User", "user": {"name": user}}],
                "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"]}],
            }],
        },
    })
}

fn level(name: &str) -> Value {
    json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration", "metadata": {"name": name},
        "spec": {"type": "Limited", "limited": {
            "nominalConcurrencyShares": 1,
            "limitResponse": {"type": "Queue", "queuing": {"queues": 4, "handSize": 2, "queueLengthLimit": 5}},
        }},
    })
}

#[tokio::test]
async fn the_server_keeps_upstreams_objects() {
    let server = TestServer::start().await;
    let items =
        async |path: &str| server.get(path).await.expect(200)["items"].as_array().cloned().expect("items");
    let mut schemas: Vec<String> = items(SCHEMAS)
        .await
        .iter()
        .map(|item| {
            let spec = &item["spec"];
            assert_eq!(item["metadata"]["annotations"]["apf.kubernetes.io/autoupdate-spec"], "true");
            let text = |value: &Value| value.as_str().unwrap_or("-").to_string();
            format!(
                "{} {} {} {}",
                spec["matchingPrecedence"],
                text(&item["metadata"]["name"]),
                text(&spec["priorityLevelConfiguration"]["name"]),
                text(&spec["distinguisherMethod"]["type"])
            )
        })
        .collect();
    schemas.sort_by_key(|line| line.split(' ').next().and_then(|number| number.parse::<i32>().ok()));
    let expected = [
        "1 exempt exempt -",
        "2 probes exempt -",
        "100 system-leader-election leader-election ByUser",
        "400 system-node-high node-high ByUser",
        "500 system-nodes system ByUser",
        "800 kube-controller-manager workload-high ByNamespace",
        "800 kube-scheduler workload-high ByNamespace",
        "900 kube-system-service-accounts workload-high ByNamespace",
        "9000 service-accounts workload-low ByUser",
        "9900 global-default global-default ByUser",
        "10000 catch-all catch-all ByUser",
    ];
    assert_eq!(schemas, expected);
    let levels: Vec<String> = items(LEVELS)
        .await
        .iter()
        .map(|item| {
            let spec = &item["spec"];
            let seats = if spec["type"] == "Exempt" { &spec["exempt"] } else { &spec["limited"] };
            let queuing = &seats["limitResponse"]["queuing"];
            format!(
                "{} {} {} {} {}/{}/{}",
                item["metadata"]["name"].as_str().unwrap_or(""),
                seats["nominalConcurrencyShares"],
                seats["lendablePercent"],
                seats["limitResponse"]["type"].as_str().unwrap_or("-"),
                queuing["queues"],
                queuing["handSize"],
                queuing["queueLengthLimit"]
            )
        })
        .collect();
    let expected = [
        "catch-all 5 0 Reject null/null/null",
        "exempt 0 0 - null/null/null",
        "global-default 20 50 Queue 128/6/50",
        "leader-election 10 0 Queue 16/4/50",
        "node-high 40 25 Queue 64/6/50",
        "system 30 33 Queue 64/6/50",
        "workload-high 40 50 Queue 128/6/50",
        "workload-low 100 90 Queue 128/6/50",
    ];
    assert_eq!(levels, expected);
    // What is deleted comes back, and mandatory specs are restored.
    let uid = server.get(&format!("{SCHEMAS}/catch-all")).await.expect(200)["metadata"]["uid"].clone();
    server.delete(&format!("{SCHEMAS}/catch-all")).await.expect(200);
    until("the schema to come back", async || {
        let schema = server.get(&format!("{SCHEMAS}/catch-all")).await;
        (schema.code == 200 && schema.json()["metadata"]["uid"] != uid).then_some(())
    })
    .await;
    let patch = json!({"spec": {"limited": {"nominalConcurrencyShares": 7}}});
    let merge = "merge";
    server.patch(&format!("{LEVELS}/catch-all"), merge, &patch).await.expect(200);
    until("the spec to be restored", async || {
        let level = server.get(&format!("{LEVELS}/catch-all")).await.expect(200);
        (level["spec"]["limited"]["nominalConcurrencyShares"] == 5).then_some(())
    })
    .await;
}

#[tokio::test]
async fn requests_are_classified_by_flow_schemas() {
    let server = TestServer::start().await;
    let uid = async |path: &str| {
        let object = server.get(path).await.expect(200);
        object["metadata"]["uid"].as_str().expect("a uid").to_string()
    };
    let jane = user(&server, "jane").await;
    let answer = get(&jane, MAPS).await;
    assert_eq!(answer.header(SCHEMA_UID), uid(&format!("{SCHEMAS}/global-default")).await);
    assert_eq!(answer.header(LEVEL_UID), uid(&format!("{LEVELS}/global-default")).await);
    // A refusal is classified, too.
    let nobody = server.user("nobody", &["system:authenticated"]);
    let refused = get(&nobody, MAPS).await;
    assert_eq!((refused.code, refused.header(SCHEMA_UID)), (403, answer.header(SCHEMA_UID)));
    assert_eq!(server.get(MAPS).await.header(SCHEMA_UID), uid(&format!("{SCHEMAS}/exempt")).await);

    // A schema whose level does not exist has no effect, and says so.
    server.post(SCHEMAS, &schema("janes", "janes", 150, "jane")).await.expect(201);
    let condition = async |status: &str| {
        let dangling = async || {
            let schema = server.get(&format!("{SCHEMAS}/janes")).await.expect(200);
            let condition = schema["status"]["conditions"][0].clone();
            (condition["status"] == status).then_some(condition)
        };
        until("the condition", dangling).await
    };
    let dangling = condition("True").await;
    assert_eq!((&dangling["type"], &dangling["reason"]), (&json!("Dangling"), &json!("NotFound")));
    let message = "This FlowSchema references the PriorityLevelConfiguration object named \"janes\" but there is no such object";
    assert_eq!(dangling["message"], message);
    assert_eq!(get(&jane, MAPS).await.header(SCHEMA_UID), answer.header(SCHEMA_UID));
    server.post(LEVELS, &level("janes")).await.expect(201);
    assert_eq!(condition("False").await["reason"], "Found");
    let own = uid(&format!("{SCHEMAS}/janes")).await;
    until("the schema to count", async || (get(&jane, MAPS).await.header(SCHEMA_UID) == own).then_some(()))
        .await;
    assert_eq!(get(&jane, MAPS).await.header(LEVEL_UID), uid(&format!("{LEVELS}/janes")).await);
    assert_eq!(get(&jane, "/version").await.header(SCHEMA_UID), answer.header(SCHEMA_UID));

    // The level is among the tables and metrics, which are not for everybody.
    let path = "/debug/api_priority_and_fairness/dump_priority_levels";
    assert_eq!(get(&nobody, path).await.code, 403);
    let table = server.get(path).await;
    let table = String::from_utf8_lossy(&table.bytes).into_owned();
    assert!(table.starts_with("PriorityLevelName, ActiveQueues, IsIdle, IsQuiescing, "), "{table}");
    assert_eq!(table.lines().filter(|line| line.starts_with("janes,")).count(), 1, "{table}");
    let metrics = server.get("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.bytes).into_owned();
    for line in [
        "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"workload-low\"} 244",
        "apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"janes\",priority_level=\"janes\"}",
    ] {
        assert!(metrics.lines().any(|found| found.starts_with(line)), "{line}: {metrics}");
    }
    for table in ["dump_queues", "dump_requests?includeRequestDetails=1"] {
        assert_eq!(server.get(&format!("/debug/api_priority_and_fairness/{table}")).await.code, 200);
    }
}

/// A store whose current revision is told to nobody while it is closed, but for those who are let through: lists wait,
/// writes do not.
struct Gated {
    store: Arc<dyn Store>,
    gate: Arc<Gate>,
}

struct Gate {
    closed: AtomicBool,
    through: Semaphore,
}

#[async_trait::async_trait]
impl Store for Gated {
    async fn current_revision(&self) -> Result<Revision, Error> {
        if self.gate.closed.load(Ordering::SeqCst) {
            self.gate.through.acquire().await.expect("it is never closed for good").forget();
        }
        self.store.current_revision().await
    }

    async fn commit(&self, txn: Txn) -> Result<Committed, Error> {
        self.store.commit(txn).await
    }

    async fn get(&self, key: &str, at: Option<Revision>) -> Result<Found, Error> {
        self.store.get(key, at).await
    }

    async fn range(&self, range: Range) -> Result<Page, Error> {
        self.store.range(range).await
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, Error> {
        self.store.watch(prefix, from).await
    }

    async fn compact(&self, at: Revision) -> Result<(), Error> {
        self.store.compact(at).await
    }

    async fn usage(&self) -> Result<Usage, Error> {
        self.store.usage().await
    }

    async fn snapshot(
        &self,
    ) -> Result<futures::stream::BoxStream<'static, Result<bytes::Bytes, Error>>, Error> {
        self.store.snapshot().await
    }

    async fn close(&self) -> Result<(), Error> {
        self.store.close().await
    }
}

#[tokio::test]
async fn a_flood_of_lists_does_not_refuse_other_users() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = embedded::Config::new(directory.path().join("store"));
    let store: Arc<dyn Store> = Arc::new(Embedded::open(config).expect("an empty store"));
    let gate = Arc::new(Gate { closed: AtomicBool::new(false), through: Semaphore::new(0) });
    let gated = Arc::new(Gated { store, gate: gate.clone() });
    let server = TestServer::start_on(gated, directory, |config| {
        (config.max_requests_in_flight, config.max_mutating_requests_in_flight) = (20, 10);
        // A quarter of it is how long a request waits in its queue.
        config.request_timeout = 4 * PATIENCE;
    })
    .await;
    let (greedy, jane) = (user(&server, "greedy").await, user(&server, "jane").await);
    let node = server.user("system:node:n", &["system:nodes", "system:authenticated"]);
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "n"}, "spec": {"holderIdentity": "n"}});
    let mut lease = write(&node, Method::POST, LEASES, &lease).await.expect(201);

    // Lists hold the seats of their level; more wait, until their queues are full.
    gate.closed.store(true, Ordering::SeqCst);
    let (refused, listed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut flood = tokio::task::JoinSet::new();
    for _ in 0..400 {
        let (greedy, refused, listed) = (greedy.clone(), refused.clone(), listed.clone());
        flood.spawn(async move {
            let answer = get(&greedy, MAPS).await;
            match answer.code {
                200 => listed.fetch_add(1, Ordering::SeqCst),
                _ => {
                    assert_eq!(answer.expect(429)["message"], "Too many requests, please try again later.");
                    assert!(!answer.header("retry-after").is_empty());
                    refused.fetch_add(1, Ordering::SeqCst)
                }
            };
        });
    }
    until("the flood to be refused", async || (refused.load(Ordering::SeqCst) >= 50).then_some(())).await;

    // Neither a node nor an administrator notices.
    for number in 0..20 {
        lease["spec"]["leaseDurationSeconds"] = (40 + number).into();
        lease = write(&node, Method::PUT, &format!("{LEASES}/n"), &lease).await.expect(200);
        server.post(MAPS, &map(&format!("admin-{number}"))).await.expect(201);
    }
    assert_eq!(listed.load(Ordering::SeqCst), 0);

    // Another user of the same level is among the next that get a seat, again and again.
    for number in 0..5 {
        let before = listed.load(Ordering::SeqCst);
        let (name, jane) = (format!("jane-{number}"), jane.clone());
        let mut writing = tokio::spawn(async move { write(&jane, Method::POST, MAPS, &map(&name)).await });
        let let_through = async {
            loop {
                gate.through.add_permits(1);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let answer = tokio::select! {
            answer = &mut writing => answer.expect("it runs"),
            () = let_through => unreachable!("it goes on for ever"),
            () = tokio::time::sleep(PATIENCE) => panic!("jane waits"),
        };
        answer.expect(201);
        let passed = listed.load(Ordering::SeqCst) - before;
        assert!(passed <= 100, "{passed} lists went first");
    }
    gate.closed.store(false, Ordering::SeqCst);
    gate.through.add_permits(1000);
    flood.join_all().await;
    let (refused, listed) = (refused.load(Ordering::SeqCst), listed.load(Ordering::SeqCst));
    assert_eq!(refused + listed, 400);
    let metrics = server.get("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.bytes).into_owned();
    let line = "apiserver_flowcontrol_rejected_requests_total{flow_schema=\"global-default\",priority_level=\"global-default\",reason=\"queue-full\"}";
    assert!(metrics.lines().any(|found| found == format!("{line} {refused}")), "{refused}: {metrics}");
}

#[tokio::test]
async fn watches_return_their_seats_after_the_initial_events() {
    let server = TestServer::start_with(|config| {
        (config.max_requests_in_flight, config.max_mutating_requests_in_flight) = (20, 10);
    })
    .await;
    let jane = user(&server, "jane").await;
    let mut watches = Vec::new();
    for _ in 0..60 {
        let request = http::Request::get("/api/v1/namespaces?watch=1&resourceVersion=0");
        let response = jane.send(request.body(kube::client::Body::empty()).expect("a request")).await;
        let mut body = response.expect("an answer").into_body();
        let first = tokio::time::timeout(PATIENCE, body.frame()).await.expect("an event");
        assert!(first.is_some_and(|frame| frame.is_ok()));
        // All initial events came together; the next one is yet to happen.
        assert!(body.frame().now_or_never().is_none());
        watches.push(body);
    }
    get(&jane, MAPS).await.expect(200);
    let requests = server.get("/debug/api_priority_and_fairness/dump_requests?includeRequestDetails=1").await;
    let requests = String::from_utf8_lossy(&requests.bytes).into_owned();
    assert_eq!(requests.lines().filter(|line| line.contains("watch,")).count(), 0, "{requests}");
}

#[tokio::test]
async fn without_priority_and_fairness_two_limits_apply() {
    let server = TestServer::start_with(|config| config.priority_and_fairness = false).await;
    let jane = user(&server, "jane").await;
    let answer = get(&jane, MAPS).await;
    assert_eq!((answer.code, answer.header(SCHEMA_UID)), (200, ""));
    assert_eq!(server.get("/debug/api_priority_and_fairness/dump_queues").await.code, 404);
}
