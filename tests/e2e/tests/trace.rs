//! The trace as the server gives it out: who may read it, what is chosen, and that nothing secret is in it.

use std::time::Duration;

use ferry_testkit::{TestServer, send};
use ferry_trace::Record;
use futures::{AsyncBufReadExt, TryStreamExt};
use http::Method;
use serde_json::{Value, json};

/// The ring is the process's: one test's writes must not be another's last.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const TRACE: &str = "/ferry/v1/trace";

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}})
}

async fn records(server: &TestServer, query: &str) -> Vec<Record> {
    let answer = server.get(&format!("{TRACE}?{query}")).await.expect(200);
    serde_json::from_value(answer["records"].clone()).expect("records")
}

fn names(records: &[Record]) -> Vec<&str> {
    records.iter().map(|record| record.name.as_ref()).collect()
}

#[tokio::test]
async fn a_write_is_found_by_its_object_its_revision_and_as_the_last_one() {
    let _alone = ALONE.lock().await;
    let server = TestServer::start().await;
    let created = server.post(MAPS, &config_map("traced")).await.expect(201);
    let revision = created["metadata"]["resourceVersion"].as_str().expect("a revision").to_owned();
    for query in [
        "object=configmaps/default/traced".to_owned(),
        "object=configmap/traced".to_owned(),
        "object=cm/traced&namespace=default".to_owned(),
        format!("revision={revision}"),
        "last=true".to_owned(),
    ] {
        let found = records(&server, &query).await;
        let names = names(&found);
        for step in [
            "apiserver.request",
            "filter.authorization",
            "admission.validate",
            "registry.validate",
            "store.commit",
            "store.write",
            "watch.cache",
        ] {
            assert!(names.contains(&step), "{query}: no {step} in {names:?}");
        }
        // Another server in this process may have had a write of the same revision.
        let of_ours = |record: &&Record| record.object.as_deref() == Some("configmaps/default/traced");
        let commit = found.iter().filter(of_ours).find(|record| record.name == "store.commit");
        let commit = commit.unwrap_or_else(|| panic!("{query}: no commit of it in {names:?}"));
        assert_eq!(commit.committed.map(|revision| revision.to_string()), Some(revision.clone()), "{query}");
        let request = found.iter().find(|record| record.name == "apiserver.request").expect("was just seen");
        assert_eq!(request.attribute("user").and_then(|user| user.as_str()), Some("admin"), "{query}");
    }
    assert!(records(&server, "object=configmap/none").await.is_empty());
    server.get(&format!("{TRACE}?object=nonsense/x")).await.expect(400);
    server.get(&format!("{TRACE}?trace=xyz")).await.expect(400);
}

#[tokio::test]
async fn a_follower_hears_of_a_write_as_it_happens() {
    let _alone = ALONE.lock().await;
    let server = TestServer::start().await;
    let request = http::Request::get(format!("{TRACE}?follow=true")).body(Vec::new()).expect("a request");
    let mut lines = server.admin().request_stream(request).await.expect("a stream").lines();
    // Records of other tests in this process may come first; the first line of any sort says that it listens.
    assert!(lines.try_next().await.expect("a line").is_some(), "the server listens");
    server.post(MAPS, &config_map("followed")).await.expect(201);
    let heard = async {
        while let Some(line) = lines.try_next().await.expect("a line") {
            let record: Option<Record> = serde_json::from_str(&line).ok();
            if record.is_some_and(|record| record.object.as_deref() == Some("configmaps/default/followed")) {
                return true;
            }
        }
        false
    };
    assert!(tokio::time::timeout(Duration::from_secs(10), heard).await.expect("within ten seconds"));
}

/// What all nodes use says something about everybody's pods.
#[tokio::test]
async fn only_administrators_read_the_usage_of_the_last_hours() {
    let server = TestServer::start().await;
    assert_eq!(server.get("/ferry/v1/usage").await.expect(200)["samples"], json!([]), "nothing is known yet");
    for (name, group) in [("mallory", "system:authenticated"), ("system:node:n1", "system:nodes")] {
        let user = server.user(name, &[group]);
        assert_eq!(send(&user, Method::GET, "/ferry/v1/usage", &[], Vec::new()).await.code, 403, "{name}");
    }
}

#[tokio::test]
async fn only_administrators_read_and_components_hand_in() {
    let _alone = ALONE.lock().await;
    let server = TestServer::start().await;
    for (name, group, read, handed_in) in [
        ("mallory", "system:authenticated", 403, 403),
        ("system:serviceaccount:kube-system:default", "system:serviceaccounts", 403, 403),
        ("system:kube-controller-manager", "system:authenticated", 403, 200),
        ("system:kube-scheduler", "system:authenticated", 403, 200),
        ("system:kube-proxy", "system:authenticated", 403, 200),
        ("system:node:n1", "system:nodes", 403, 200),
        ("root", "system:masters", 200, 200),
    ] {
        let user = server.user(name, &[group]);
        for (method, expected) in [(Method::GET, read), (Method::POST, handed_in)] {
            let answer = send(&user, method.clone(), TRACE, &[], b"[]".to_vec()).await;
            assert_eq!(answer.code, expected, "{name} {method}");
        }
    }
}

/// A span with an id that this process has not given away: of two records with one id its own is told.
fn of_another_process(name: &'static str) -> Vec<Record> {
    let span = ferry_trace::span(name);
    let trace = span.context().trace;
    drop(span);
    let mut records = ferry_trace::ring().trace(trace);
    records[0].span = ferry_trace::span("test.id").context().span;
    records
}

#[tokio::test]
async fn what_is_handed_in_is_marked_and_bounded() {
    let _alone = ALONE.lock().await;
    let server = TestServer::start().await;
    let mut sent = of_another_process("test.sent");
    let trace = sent[0].trace;
    sent[0].committed = Some(1);
    let taken = server.post(TRACE, &json!(sent)).await.expect(200);
    assert_eq!(taken["taken"], 1);
    let marked = records(&server, &format!("trace={trace}")).await;
    let marked = marked.iter().find(|record| record.source.is_some()).expect("the one that was sent");
    assert_eq!((marked.source.as_deref(), marked.committed), (Some("admin"), None));
    let many: Vec<&Record> = std::iter::repeat_n(&sent[0], 513).collect();
    server.post(TRACE, &json!(many)).await.expect(400);
    server.post(TRACE, &json!("no spans")).await.expect(400);
    server.post(TRACE, &json!(["x".repeat(600 * 1024)])).await.expect(413);
    server.delete(TRACE).await.expect(405);
}

#[tokio::test]
async fn only_a_server_hands_over_what_it_keeps() {
    let _alone = ALONE.lock().await;
    let server = TestServer::start().await;
    let mut own = of_another_process("test.told");
    own[0].committed = Some(77);
    let packet = ferry_trace::packet::pack(&own).expect("packed");
    let path = format!("{TRACE}?server=192.0.2.7:6443");
    let headers = [("content-type", ferry_trace::packet::CONTENT_TYPE)];
    // An administrator, a node, and somebody who only bears the name.
    let name = "kube-apiserver-kubelet-client";
    let others =
        [("root", "system:masters"), ("system:node:n1", "system:nodes"), (name, "system:authenticated")];
    for (name, group) in others {
        let user = server.user(name, &[group]);
        assert_eq!(
            send(&user, Method::POST, &path, &headers, packet.clone()).await.code,
            403,
            "{name} {group}"
        );
    }
    let peer = server.user(name, &["system:masters"]);
    assert_eq!(send(&peer, Method::POST, &path, &headers, packet[..20].to_vec()).await.code, 400);
    assert_eq!(send(&peer, Method::POST, TRACE, &headers, packet.clone()).await.code, 403, "which server?");
    assert_eq!(send(&peer, Method::POST, &path, &headers, packet).await.code, 200);
    let told = records(&server, &format!("trace={}", own[0].trace)).await;
    let source = |record: &Record| record.source.clone().map(String::from);
    let told =
        told.iter().find(|record| source(record).is_some_and(|source| source == "server 192.0.2.7:6443"));
    assert_eq!(told.map(|record| record.committed), Some(Some(77)), "a server knows what it wrote");
}

#[tokio::test]
async fn a_watched_answer_comes_again_when_it_has_changed() {
    let _alone = ALONE.lock().await;
    let server = TestServer::start().await;
    server.post(MAPS, &config_map("watched")).await.expect(201);
    let path = format!("{TRACE}?object=cm/watched&story=chapters&watch=true");
    let request = http::Request::get(path).body(Vec::new()).expect("a request");
    let mut lines = server.admin().request_stream(request).await.expect("a stream").lines();
    let mut next = async || {
        let line = tokio::time::timeout(Duration::from_secs(30), lines.try_next()).await.expect("in time");
        let line = line.expect("is read").expect("goes on");
        let answer: Value = serde_json::from_str(&line).expect("an answer");
        assert!(answer["story"]["steps"].as_array().is_some_and(|steps| !steps.is_empty()), "{answer}");
        let records: Vec<Record> = serde_json::from_value(answer["records"].clone()).expect("records");
        records.iter().filter_map(|record| record.committed).max()
    };
    // What ended while the first answer was made may come as a second one.
    let created = next().await.expect("the creation");
    server.post(MAPS, &config_map("unwatched")).await.expect(201);
    let change = json!({"data": {"k": "w"}});
    let changed = server.patch(&format!("{MAPS}/watched"), "merge", &change).await.expect(200);
    let revision: i64 = changed["metadata"]["resourceVersion"]
        .as_str()
        .and_then(|text| text.parse().ok())
        .expect("a revision");
    assert!(revision > created + 1);
    while next().await != Some(revision) {}
}

/// The bodies that are posted to a collector on a real socket.
async fn collector() -> (String, tokio::sync::mpsc::Receiver<String>) {
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let (sender, received) = tokio::sync::mpsc::channel(64);
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a connection");
        let mut stream = BufReader::new(stream);
        loop {
            let mut length = 0;
            loop {
                let mut line = String::new();
                if stream.read_line(&mut line).await.expect("is read") == 0 {
                    return;
                }
                if let Some(said) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = said.trim().parse().expect("a number");
                }
                if line == "\r\n" {
                    break;
                }
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await.expect("is read");
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
            stream.write_all(answer).await.expect("is answered");
            if sender.send(String::from_utf8(body).expect("text")).await.is_err() {
                return;
            }
        }
    });
    (url, received)
}

#[tokio::test]
async fn a_collector_is_told_live() {
    let _alone = ALONE.lock().await;
    let server = TestServer::start().await;
    let client = ferry_timeline::fetch::connect(Some(server.kubeconfig())).await.expect("a client");
    let (url, mut received) = collector().await;
    let follower = tokio::spawn(async move { ferry_timeline::live::follow_all(&client, Some(&url)).await });
    let heard = async {
        // What is written before the follower listens is not told, so there is always another one.
        for number in 0.. {
            server.post(MAPS, &config_map(&format!("live-{number}"))).await.expect(201);
            let told = tokio::time::timeout(Duration::from_millis(500), received.recv()).await;
            let told = told.ok().flatten().unwrap_or_default();
            if told.contains("configmaps/default/live-") && told.contains("\"ferry-store\"") {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), heard).await.expect("within half a minute");
    assert!(!follower.is_finished(), "it goes on");
    follower.abort();
}

/// A controller of somebody else's that sends the trace it is in, as OpenTelemetry's libraries do.
#[tokio::test]
async fn a_foreign_program_is_in_the_picture_by_its_name() {
    let _alone = ALONE.lock().await;
    let server = TestServer::start().await;
    let foreign = ferry_trace::Context::generate();
    let operator = server.user("system:serviceaccount:acme:operator", &["system:masters"]);
    let headers = [
        ("traceparent", foreign.to_string()),
        ("user-agent", "acme-operator/v1.2 (linux/amd64)".to_owned()),
        ("content-type", "application/json".to_owned()),
    ];
    let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
    let body = config_map("foreign").to_string().into_bytes();
    assert_eq!(send(&operator, Method::POST, MAPS, &headers, body).await.code, 201);
    let told = server.get(&format!("{TRACE}?trace={}&story=chapters", foreign.trace)).await.expect(200);
    let records: Vec<Record> = serde_json::from_value(told["records"].clone()).expect("records");
    let request = records.iter().find(|record| record.name == "apiserver.request").expect("the request");
    assert_eq!((request.parent, request.text("program")), (Some(foreign.span), Some("acme-operator")));
    let steps = told["story"]["steps"].as_array().expect("steps");
    let step = steps.iter().find(|step| step["label"] == "create configmaps/default/foreign");
    let facts = step.and_then(|step| step["facts"].as_str()).expect("a line of its own");
    assert!(facts.contains("program=acme-operator"), "{facts}");
    let commit = records.iter().find(|record| record.committed.is_some()).expect("the commit");
    assert_eq!(commit.object.as_deref(), Some("configmaps/default/foreign"));
}

/// What `ferry trace` does, from outside: a kubeconfig, a connection, a question, a picture.
#[tokio::test]
async fn a_write_is_shown_as_a_waterfall() {
    use ferry_timeline::{chapters, fetch, waterfall};
    let _alone = ALONE.lock().await;
    let server = TestServer::start().await;
    server.post(MAPS, &config_map("shown")).await.expect(201);
    let client = fetch::connect(Some(server.kubeconfig())).await.expect("a client");
    let object = |object: &str| fetch::Selection::Object {
        object: object.into(),
        namespace: "default".into(),
        lives: fetch::Lives::Latest,
    };
    let shown = object("cm/shown");
    let records = fetch::records(&client, &shown).await.expect("records");
    let story = chapters::story(&records, chapters::Detail::Chapters);
    let style = waterfall::Style { width: 100, has_color: false };
    let text = waterfall::render(&story, &[], &style);
    for words in [
        "Command",
        "create configmaps/default/shown",
        "Authorization",
        "Admission",
        "Storage and watch",
        "commit configmaps/default/shown",
        "write to disk",
        "apply to the watch cache",
    ] {
        assert!(text.contains(words), "no {words:?} in\n{text}");
    }
    let refused = object("nonsense/x");
    let error = fetch::records(&client, &refused).await.expect_err("no such kind").to_string();
    assert!(error.contains("nonsense"), "{error}");
}

/// Values that must never be found in the trace: each stands where a user may put a secret.
const SECRETS: [&str; 12] = [
    "hunter2-data",
    "hunter2-env",
    "hunter2-bearer",
    "hunter2-query",
    "hunter2-invalid",
    "hunter2-annotation",
    "hunter2-changed",
    "hunter2-label",
    "hunter2-map",
    "hunter2-custom",
    "hunter2-agent",
    "hunter2-remark",
];

#[tokio::test]
async fn nothing_secret_is_ever_in_a_span() {
    let _alone = ALONE.lock().await;
    let server = TestServer::start().await;
    let [data, env, bearer, query, invalid, annotation, changed, label, map, custom, agent, remark] = SECRETS;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "annotations": {"a": annotation}},
        "stringData": {"password": data}});
    server.post("/api/v1/namespaces/default/secrets", &secret).await.expect(201);
    let container =
        json!({"name": "c", "image": "i", "env": [{"name": "TOKEN", "value": env}], "args": [env]});
    let pod =
        |spec: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
    server
        .post("/api/v1/namespaces/default/pods", &pod(json!({"containers": [container]})))
        .await
        .expect(201);
    // A refused value is quoted to whoever sent it, and to nobody else.
    let refused =
        json!({"containers": [container], "restartPolicy": invalid, "hostname": invalid.to_uppercase()});
    let answer = server.post("/api/v1/namespaces/default/pods", &pod(refused)).await.expect(422);
    assert!(answer["message"].as_str().is_some_and(|message| message.contains(invalid)), "{answer}");
    let patch = json!({"stringData": {"password": data}, "data": {"other": invalid}});
    server.patch("/api/v1/namespaces/default/secrets/s", "merge", &patch).await;
    server.post(&format!("{MAPS}?fieldManager={query}"), &config_map("q")).await.expect(201);
    // Of a program its name is told, not what else it says of itself, nor what is no name.
    let admin = server.user("root", &["system:masters"]);
    for (name, says) in [("named", format!("tool/1 ({remark})")), ("unnamed", format!("key={agent}"))] {
        let body = config_map(name).to_string().into_bytes();
        let headers = [("user-agent", says.as_str()), ("content-type", "application/json")];
        assert_eq!(send(&admin, Method::POST, MAPS, &headers, body).await.code, 201);
    }
    // Changes are told field by field: the fields, and no value that anybody may have filled in.
    let encoded = {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.encode(changed)
    };
    let change = json!({"data": {"password": encoded, "pin": "MTIzNDU2"}, "metadata": {"annotations": {"a": changed}}});
    server.patch("/api/v1/namespaces/default/secrets/s", "merge", &change).await.expect(200);
    let change = json!({"metadata": {"labels": {"image": label}, "annotations": {"status": changed}}});
    server.patch("/api/v1/namespaces/default/pods/p", "merge", &change).await.expect(200);
    let change = json!({"data": {"phase": map, "image": map, "reason": map}});
    server.patch(&format!("{MAPS}/q"), "merge", &change).await.expect(200);
    let template = |value: &str| {
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{
            "name": "c", "image": "i", "env": [{"name": "TOKEN", "value": value}], "args": [value], "command": [value],
        }]}})
    };
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template(env)}});
    server.post("/apis/apps/v1/namespaces/default/deployments", &deployment).await.expect(201);
    let change = json!({"spec": {"replicas": 4, "template": template(changed)}});
    server.patch("/apis/apps/v1/namespaces/default/deployments/d", "merge", &change).await.expect(200);
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "vaults.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "vaults", "singular": "vault", "kind": "Vault", "listKind": "VaultList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    server.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await.expect(201);
    let vaults = "/apis/example.com/v1/namespaces/default/vaults";
    let give_up = std::time::Instant::now() + Duration::from_secs(30);
    while server.get(vaults).await.code != 200 {
        assert!(std::time::Instant::now() < give_up, "the definition is not served");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let vault = json!({"apiVersion": "example.com/v1", "kind": "Vault", "metadata": {"name": "v"}, "spec": {"image": "x"}});
    server.post(vaults, &vault).await.expect(201);
    let change = json!({"spec": {"image": custom, "status": custom, "phase": custom}});
    server.patch(&format!("{vaults}/v"), "merge", &change).await.expect(200);
    // Over the wire, where credentials are looked at.
    let mut outside = kube::Config::new(server.url().parse().expect("an address"));
    outside.accept_invalid_certs = true;
    outside.auth_info.token = Some(bearer.to_owned().into());
    let outside = kube::Client::try_from(outside).expect("a client");
    assert_eq!(send(&outside, Method::POST, MAPS, &[], b"{}".to_vec()).await.code, 401);
    server
        .post(
            "/api/v1/namespaces/default/serviceaccounts",
            &json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "a"}}),
        )
        .await
        .expect(201);
    let request =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}});
    let issued =
        server.post("/api/v1/namespaces/default/serviceaccounts/a/token", &request).await.expect(201);
    let token = issued["status"]["token"].as_str().expect("a token").to_owned();
    let review =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    server.post("/apis/authentication.k8s.io/v1/tokenreviews", &review).await.expect(201);

    let others = secrets_in_requests(&server).await;
    let in_kinds = secrets_in_kinds(&server).await;
    let in_words = secrets_in_words_of_webhooks_and_policies(&server).await;

    let kept = serde_json::to_string(&ferry_trace::ring().all()).expect("records are JSON");
    assert!(kept.contains("secrets/default/s"), "the writes themselves are recorded");
    for path in ["data[password]", "metadata.labels[image]", "data[phase]", "spec.replicas=1→4", "spec.image"]
    {
        assert!(kept.contains(path), "the change of {path} is not told");
    }
    // The steps that hold them are recorded, so that looking for them says something.
    for step in ["/pods/p/exec", "/services/s/proxy/", "denied the request: …", "denied request: …"] {
        assert!(kept.contains(step), "{step} is not in the trace");
    }
    let fixed =
        SECRETS.iter().copied().chain([token.as_str(), encoded.as_str(), "MTIzNDU2"]).map(str::to_owned);
    for secret in fixed.chain(others).chain(in_kinds).chain(in_words) {
        assert!(!kept.contains(&secret), "{secret} is in the trace");
    }
}

/// Command lines, paths that a proxy passes on, and all headers that may hold something.
async fn secrets_in_requests(server: &TestServer) -> Vec<String> {
    use base64::Engine;
    let admin = server.user("root", &["system:masters"]);
    // Nobody is there to answer; that is none of the trace's business.
    for path in [
        "/api/v1/namespaces/default/pods/p/exec?container=c&command=hunter2-command&stdin=hunter2-stdin",
        "/api/v1/namespaces/default/services/s/proxy/hooks/hunter2-hook?token=hunter2-token",
        "/api/v1/namespaces/default/configmaps?access_token=hunter2-access&labelSelector=hunter2-selector",
    ] {
        send(&admin, Method::POST, path, &[], Vec::new()).await;
    }
    let headers = [
        ("cookie", "session=hunter2-cookie"),
        ("baggage", "customer=hunter2-baggage"),
        ("tracestate", "vendor=hunter2-tracestate"),
        ("x-forwarded-for", "hunter2-forwarded"),
        ("x-api-key", "hunter2-api-key"),
        ("impersonate-user", "alice"),
        ("impersonate-group", "system:masters"),
        ("impersonate-extra-pin", "hunter2-extra"),
        ("content-type", "application/json"),
    ];
    let body = config_map("headers").to_string().into_bytes();
    assert_eq!(send(&admin, Method::POST, MAPS, &headers, body).await.code, 201);
    // A body that is no object is quoted to whoever sent it.
    let plain = [("content-type", "application/json")];
    for wrong in
        [r#"{"data": {"a": ["hunter2-type"]}}"#, r#"{"immutable": "hunter2-boolean"}"#, "hunter2-body"]
    {
        assert_eq!(send(&admin, Method::POST, MAPS, &plain, wrong.into()).await.code, 400, "{wrong}");
    }
    let url = server.url().parse::<http::Uri>().expect("an address");
    for authorization in [
        format!("Basic {}", base64::prelude::BASE64_STANDARD.encode("root:hunter2-basic")),
        "Bearer hunter2.jwt.hunter2".to_owned(),
        "Negotiate hunter2-negotiate".to_owned(),
    ] {
        let mut config = kube::Config::new(url.clone());
        config.accept_invalid_certs = true;
        config.headers = vec![(
            http::header::AUTHORIZATION,
            http::HeaderValue::from_str(&authorization).expect("a header"),
        )];
        let outside = kube::Client::try_from(config).expect("a client");
        assert_eq!(
            send(&outside, Method::POST, MAPS, &plain, b"{}".to_vec()).await.code,
            401,
            "{authorization}"
        );
    }
    let encoded = base64::prelude::BASE64_STANDARD.encode("root:hunter2-basic");
    ["hunter2", &encoded].map(str::to_owned).into()
}

/// Values that users fill in where a field is no text of Kubernetes' own.
async fn secrets_in_kinds(server: &TestServer) -> Vec<String> {
    let volume = |text: &str| {
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "mountOptions": [format!("password={text}")],
            "csi": {"driver": "d", "volumeHandle": "h", "volumeAttributes": {"type": "x", "status": "x"}}}})
    };
    server.post("/api/v1/persistentvolumes", &volume("hunter2-mount")).await.expect(201);
    let change = json!({"spec": {"mountOptions": ["password=hunter2-mount-changed"]}});
    server.patch("/api/v1/persistentvolumes/v", "merge", &change).await;
    let selector = |text: &str| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
            "spec": {"ports": [{"port": 80}], "externalName": text, "selector": {"image": text, "type": text}}})
    };
    server.post("/api/v1/namespaces/default/services", &selector("hunter2-before")).await.expect(201);
    let change = json!({"spec": {"selector": {"image": "hunter2-image", "status": "hunter2-status"}}});
    server.patch("/api/v1/namespaces/default/services/s", "merge", &change).await.expect(200);
    // A custom resource may call anything a name, a type or a key.
    let vaults = "/apis/example.com/v1/namespaces/default/vaults";
    let vault = |secret: &str| {
        json!({"apiVersion": "example.com/v1", "kind": "Vault", "metadata": {"name": "w"}, "spec": {
            "keys": [{"key": secret}], "users": [{"name": format!("{secret} of alice")}], "texts": [secret]}})
    };
    server.post(vaults, &vault("hunter2-key")).await.expect(201);
    let changed = json!({"spec": vault("hunter2-key-changed")["spec"].clone()});
    server.patch(&format!("{vaults}/w"), "merge", &changed).await.expect(200);
    Vec::new()
}

/// A webhook and a policy that repeat a part of the object in what they say.
async fn secrets_in_words_of_webhooks_and_policies(server: &TestServer) -> Vec<String> {
    use ferry_e2e::webhook_server::{WebhookServer, configuration, deny};
    let webhook =
        WebhookServer::start(|_| deny("the password \"hunter2-weak\" is too weak: hunter2-bare")).await;
    let hook = webhook.webhook("judge.example.com");
    let configuration = configuration("ValidatingWebhookConfiguration", "judge", vec![hook]);
    let hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    server.post(hooks, &configuration).await.expect(201);
    let give_up = std::time::Instant::now() + Duration::from_secs(30);
    while server.post(MAPS, &config_map("judged")).await.code != 403 {
        assert!(std::time::Instant::now() < give_up, "the webhook is not asked");
        server.delete(&format!("{MAPS}/judged")).await;
    }
    server.delete(&format!("{hooks}/judge")).await.expect(200);
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "quotes"}, "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]},
            "validations": [{"expression": "!has(object.data.pin)", "messageExpression": "'the pin is ' + object.data.pin"}]}});
    let root = "/apis/admissionregistration.k8s.io/v1";
    server.post(&format!("{root}/validatingadmissionpolicies"), &policy).await.expect(201);
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "quotes"}, "spec": {"policyName": "quotes", "validationActions": ["Deny"]}});
    server.post(&format!("{root}/validatingadmissionpolicybindings"), &binding).await.expect(201);
    let pinned = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "pinned"}, "data": {"pin": "hunter2-pin"}});
    let give_up = std::time::Instant::now() + Duration::from_secs(30);
    loop {
        let answer = server.post(MAPS, &pinned).await;
        if answer.code == 422 {
            assert!(
                answer.json().to_string().contains("hunter2-pin"),
                "whoever sent it is told: {}",
                answer.json()
            );
            return Vec::new();
        }
        assert!(std::time::Instant::now() < give_up, "the policy is not asked: {}", answer.code);
        server.delete(&format!("{MAPS}/pinned")).await;
    }
}

/// Requests of nobody known leave nothing behind: they must not push out what is kept.
#[tokio::test]
async fn refused_credentials_are_not_recorded() {
    let _alone = ALONE.lock().await;
    let server = TestServer::start().await;
    let mut outside = kube::Config::new(server.url().parse().expect("an address"));
    outside.accept_invalid_certs = true;
    outside.auth_info.token = Some("nobodys".to_owned().into());
    let outside = kube::Client::try_from(outside).expect("a client");
    let before = ferry_trace::ring().latest();
    for _ in 0..10 {
        assert_eq!(send(&outside, Method::POST, MAPS, &[], b"{}".to_vec()).await.code, 401);
    }
    let after = ferry_trace::ring().after(before);
    let requests =
        after.iter().filter(|record| ["apiserver.request", "filter.authentication"].contains(&&*record.name));
    let refused: Vec<&Record> = requests.filter(|record| record.attribute("user").is_none()).collect();
    assert!(refused.is_empty(), "{refused:?}");
    // Whoever is known and may not is told by name.
    let mallory = server.user("mallory", &["system:authenticated"]);
    assert_eq!(send(&mallory, Method::POST, MAPS, &[], b"{}".to_vec()).await.code, 403);
    let after = ferry_trace::ring().after(before);
    assert!(
        after
            .iter()
            .any(|record| record.name == "apiserver.request" && record.text("user") == Some("mallory"))
    );
}
