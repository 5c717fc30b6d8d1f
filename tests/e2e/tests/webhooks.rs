//! Webhooks against the real server, with real webhook servers: what they are asked, what they may do, and
//! what becomes of a request when they hang, lie or break.

use std::sync::Arc;

use ferry_e2e::audited::AuditedServer;
use ferry_e2e::webhook_server::{Reply, WebhookServer, allow, configuration, deny, patch};
use ferry_testkit::{Answer, TestServer};
use http::Method;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}})
}

async fn mutate_with(server: &TestServer, name: &str, webhooks: Vec<Value>) {
    server.post(MUTATING, &configuration("MutatingWebhookConfiguration", name, webhooks)).await.expect(201);
}

async fn validate_with(server: &TestServer, name: &str, webhooks: Vec<Value>) {
    server
        .post(VALIDATING, &configuration("ValidatingWebhookConfiguration", name, webhooks))
        .await
        .expect(201);
}

async fn create(server: &TestServer, name: &str) -> Answer {
    server.post(MAPS, &config_map(name)).await
}

fn with(mut webhook: Value, field: &str, value: Value) -> Value {
    webhook[field] = value;
    webhook
}

#[tokio::test]
async fn a_mutating_webhook_changes_the_object_and_sees_the_whole_request() {
    let server = TestServer::start().await;
    let hook = WebhookServer::start(|_| {
        patch(&json!([{"op": "add", "path": "/data/added", "value": "by webhook"}]))
    })
    .await;
    mutate_with(&server, "adds", vec![hook.webhook("adds.example.com")]).await;
    let created = create(&server, "a").await.expect(201);
    assert_eq!(created["data"], json!({"k": "v", "added": "by webhook"}));

    let review = hook.last();
    assert_eq!(review["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(review["path"], "/review?timeout=5s");
    let request = &review["request"];
    assert_eq!(request["kind"], json!({"group": "", "version": "v1", "kind": "ConfigMap"}));
    assert_eq!(request["resource"], json!({"group": "", "version": "v1", "resource": "configmaps"}));
    assert_eq!(request["requestKind"], request["kind"]);
    assert_eq!((&request["name"], &request["namespace"]), (&json!("a"), &json!("default")));
    assert_eq!(request["operation"], "CREATE");
    assert_eq!(request["userInfo"]["username"], "admin");
    assert_eq!(request["object"]["data"], json!({"k": "v"}));
    assert_eq!(request["oldObject"], Value::Null);
    assert_eq!(request["dryRun"], false);
    assert_eq!(request["options"]["kind"], "CreateOptions");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn validating_webhooks_refuse_in_their_own_words_and_are_asked_at_once() {
    let server = TestServer::start().await;
    let barrier = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let released = barrier.clone();
    // The first waits for the second: asked one after the other, it would time out.
    let first = WebhookServer::start(move |_| {
        let barrier = barrier.clone();
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async move { drop(barrier.acquire().await) })
        });
        Reply::Response(json!({"allowed": true, "warnings": ["take care"], "auditAnnotations": {"k": "v"}}))
    });
    let first = first.await;
    let second = WebhookServer::start(move |review| {
        released.add_permits(1);
        match review["request"]["object"]["metadata"]["name"].as_str() {
            Some("bad") => deny("the name is bad"),
            _ => allow(),
        }
    })
    .await;
    validate_with(&server, "two", vec![first.webhook("a.example.com"), second.webhook("b.example.com")])
        .await;
    let created = create(&server, "good").await;
    assert_eq!(created.header("warning"), "299 - \"take care\"");
    created.expect(201);
    let refused = create(&server, "bad").await.expect(403);
    assert_eq!(refused["message"], "admission webhook \"b.example.com\" denied the request: the name is bad");
    assert_eq!(refused["reason"], "Forbidden");
    server.get(&format!("{MAPS}/bad")).await.expect(404);
}

#[tokio::test]
async fn a_webhook_that_cannot_be_asked_closes_or_opens_as_its_policy_says() {
    let server = TestServer::start().await;
    type Case = (&'static str, fn() -> Reply, &'static str);
    let answers: [Case; 6] = [
        ("hangs", || Reply::Hang, "context deadline exceeded"),
        (
            "garbage",
            || Reply::Raw(200, b"<html>".to_vec()),
            "received invalid webhook response: couldn't get version/kind; json parse error",
        ),
        (
            "fails",
            || Reply::Raw(500, b"broken".to_vec()),
            "failed to call webhook: an error on the server (\"broken\") has prevented the request from succeeding",
        ),
        (
            "other-uid",
            || {
                Reply::Raw(200, json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": "x", "allowed": true}}).to_string().into_bytes())
            },
            "expected response.uid=",
        ),
        (
            "bad-patch",
            || Reply::Response(json!({"allowed": true, "patch": "W10=", "patchType": "Merge"})),
            "webhook returned invalid response.patchType of \"Merge\"",
        ),
        ("empty", || Reply::Raw(200, Vec::new()), "json parse error"),
    ];
    for (name, answer, expected) in answers {
        let hook = WebhookServer::start(move |_| answer()).await;
        let webhook = with(hook.webhook(&format!("{name}.example.com")), "timeoutSeconds", json!(1));
        mutate_with(&server, name, vec![webhook]).await;
        let failed = create(&server, name).await.expect(500);
        let message = failed["message"].as_str().expect("a message");
        let start = format!("Internal error occurred: failed calling webhook \"{name}.example.com\": ");
        assert!(message.starts_with(&start) && message.contains(expected), "{name}: {message}");

        let one = format!("{MUTATING}/{name}");
        let open = json!([{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}]);
        server.patch(&one, "json", &open).await.expect(200);
        create(&server, name).await.expect(201);
        server.delete(&one).await.expect(200);
    }
}

#[tokio::test]
async fn a_webhook_nobody_listens_for_or_of_another_authority_is_told_in_clear_words() {
    let server = TestServer::start().await;
    let hook = WebhookServer::start(|_| allow()).await;
    let stranger = WebhookServer::start(|_| allow()).await;
    let mut webhook = hook.webhook("stranger.example.com");
    webhook["clientConfig"]["caBundle"] = stranger.ca_bundle.clone().into();
    validate_with(&server, "stranger", vec![webhook]).await;
    let failed = create(&server, "a").await.expect(500);
    let url = hook.url.clone();
    assert_eq!(
        failed["message"],
        format!(
            "Internal error occurred: failed calling webhook \"stranger.example.com\": failed to call webhook: Post \"{url}?timeout=5s\": tls: failed to verify certificate: x509: certificate signed by unknown authority"
        )
    );
    assert_eq!(hook.count(), 0);
    server.delete(&format!("{VALIDATING}/stranger")).await.expect(200);

    let webhook = hook.webhook("gone.example.com");
    let port = hook.port;
    drop(hook);
    validate_with(&server, "gone", vec![webhook]).await;
    let message = create(&server, "a").await.expect(500)["message"].clone();
    assert_eq!(
        message,
        format!(
            "Internal error occurred: failed calling webhook \"gone.example.com\": failed to call webhook: Post \"{url}?timeout=5s\": dial tcp 127.0.0.1:{port}: connect: connection refused"
        )
    );
}

#[tokio::test]
async fn a_patch_does_not_do_what_the_writer_could_not() {
    let server = TestServer::start().await;
    let operations: std::sync::Arc<parking_lot::Mutex<Value>> = std::sync::Arc::default();
    let given = operations.clone();
    let hook = WebhookServer::start(move |_| patch(&given.lock())).await;
    mutate_with(&server, "patches", vec![hook.webhook("patches.example.com")]).await;
    let add = |path: &str, value: Value| json!([{"op": "add", "path": path, "value": value}]);
    for (change, code, expected) in [
        (
            add("/metadata/namespace", json!("kube-system")),
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (add("/data/bad%20key%", json!("x")), 422, "a valid config key must consist of"),
        (add("/kind", json!("Secret")), 500, "the changed object is v1, Kind=Secret, not v1, Kind=ConfigMap"),
        (add("/data", json!("text")), 500, "cannot unmarshal"),
        (add("/no/such/place", json!(1)), 500, ""),
        (json!({"not": "a patch"}), 500, ""),
    ] {
        *operations.lock() = change.clone();
        let failed = create(&server, "a").await.expect(code);
        let message = failed["message"].as_str().expect("a message");
        assert!(message.contains(expected), "{change}: {message}");
    }
    // What only the server sets stays the server's, and unknown fields fall away.
    *operations.lock() = json!([
        {"op": "add", "path": "/metadata/uid", "value": "mine"},
        {"op": "add", "path": "/metadata/creationTimestamp", "value": "2001-01-01T00:00:00Z"},
        {"op": "add", "path": "/nonsense", "value": 1},
    ]);
    let created = create(&server, "a").await.expect(201);
    assert_ne!(created["metadata"]["uid"], "mine");
    assert_ne!(created["metadata"]["creationTimestamp"], "2001-01-01T00:00:00Z");
    assert_eq!(created["nonsense"], Value::Null);
    server.get("/api/v1/namespaces/kube-system/configmaps/a").await.expect(404);
}

#[tokio::test]
async fn rules_selectors_and_conditions_choose_what_is_asked() {
    let server = TestServer::start().await;
    let hook = WebhookServer::start(|_| allow()).await;
    let rules = |operations: Value, groups: &str, resources: Value| json!([{"operations": operations, "apiGroups": [groups], "apiVersions": ["*"], "resources": resources}]);
    let base = || with(hook.webhook("x.example.com"), "rules", rules(json!(["*"]), "*", json!(["*/*"])));
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other", "labels": {"team": "x"}}});
    server.post("/api/v1/namespaces", &namespace).await.expect(201);
    let mut number = 0;
    let mut check = async |webhook: Value, path: &str, expected: bool| {
        validate_with(&server, "x", vec![webhook.clone()]).await;
        let before = hook.count();
        number += 1;
        let mut object = config_map(&format!("m{number}"));
        object["metadata"]["labels"] = json!({"app": "web"});
        server.post(path, &object).await.expect(201);
        assert_eq!(hook.count() > before, expected, "{webhook}");
        server.delete(&format!("{VALIDATING}/x")).await.expect(200);
        assert_eq!(hook.count(), before + usize::from(expected), "configurations themselves are exempt");
    };
    check(base(), MAPS, true).await;
    check(with(base(), "rules", rules(json!(["UPDATE"]), "*", json!(["*"]))), MAPS, false).await;
    check(with(base(), "rules", rules(json!(["CREATE"]), "apps", json!(["*"]))), MAPS, false).await;
    check(with(base(), "rules", rules(json!(["CREATE"]), "", json!(["pods", "configmaps"]))), MAPS, true)
        .await;
    check(with(base(), "objectSelector", json!({"matchLabels": {"app": "web"}})), MAPS, true).await;
    check(with(base(), "objectSelector", json!({"matchLabels": {"app": "db"}})), MAPS, false).await;
    let team = json!({"matchExpressions": [{"key": "team", "operator": "Exists"}]});
    check(with(base(), "namespaceSelector", team.clone()), MAPS, false).await;
    check(with(base(), "namespaceSelector", team), "/api/v1/namespaces/other/configmaps", true).await;
    let condition =
        |expression: &str| with(base(), "matchConditions", json!([{"name": "c", "expression": expression}]));
    check(
        condition("object.metadata.labels.app == 'web' && request.userInfo.username == 'admin'"),
        MAPS,
        true,
    )
    .await;
    check(condition("object.metadata.name.startsWith('x')"), MAPS, false).await;
    check(condition("oldObject == null && namespaceObject.metadata.name == 'default'"), MAPS, true).await;
    check(condition("authorizer.group('').resource('secrets').check('delete').allowed()"), MAPS, true).await;
    check(condition("!authorizer.serviceAccount('default', 'nobody').group('').resource('secrets').check('delete').allowed()"), MAPS, true).await;

    // A condition that cannot be evaluated counts as the failure policy says.
    validate_with(&server, "x", vec![condition("object.missing.field == 1")]).await;
    let failed = create(&server, "fails").await.expect(403);
    assert!(failed["message"].as_str().expect("a message").contains("no such key: missing"), "{failed}");
}

#[tokio::test]
async fn one_version_of_a_resource_stands_for_the_others_unless_it_must_be_exact() {
    let server = TestServer::start().await;
    let hook = WebhookServer::start(|review| match review["request"]["operation"].as_str() {
        Some("CREATE") => patch(&json!([{"op": "add", "path": "/metadata/labels", "value": {"seen": "v2"}}])),
        _ => allow(),
    })
    .await;
    let rules = json!([{"operations": ["*"], "apiGroups": ["autoscaling"], "apiVersions": ["v2"], "resources": ["horizontalpodautoscalers"]}]);
    let webhook = with(hook.webhook("hpa.example.com"), "rules", rules);
    mutate_with(&server, "hpa", vec![webhook.clone()]).await;
    let hpa = |name: &str| {
        json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": name},
            "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}})
    };
    let path = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
    let created = server.post(path, &hpa("a")).await.expect(201);
    assert_eq!(created["apiVersion"], "autoscaling/v1");
    assert_eq!(created["metadata"]["labels"]["seen"], "v2");
    assert_eq!(created["spec"]["targetCPUUtilizationPercentage"], 50);
    let request = hook.last()["request"].clone();
    assert_eq!(request["kind"]["version"], "v2");
    assert_eq!(request["requestKind"]["version"], "v1");
    assert_eq!(request["object"]["spec"]["metrics"][0]["resource"]["name"], "cpu");

    server.delete(&format!("{MUTATING}/hpa")).await.expect(200);
    mutate_with(&server, "hpa", vec![with(webhook, "matchPolicy", json!("Exact"))]).await;
    let seen = hook.count();
    server.post(path, &hpa("b")).await.expect(201);
    assert_eq!(hook.count(), seen);
}

#[tokio::test]
async fn webhooks_are_asked_about_updates_and_deletions_with_the_old_object() {
    let server = TestServer::start().await;
    let hook = WebhookServer::start(|review| match review["request"]["operation"].as_str() {
        Some("DELETE") if review["request"]["oldObject"]["data"]["k"] == "keep" => deny("it is to be kept"),
        _ => allow(),
    })
    .await;
    let mut webhook = hook.webhook("keeps.example.com");
    webhook["rules"][0]["operations"] = json!(["UPDATE", "DELETE"]);
    validate_with(&server, "keeps", vec![webhook.clone()]).await;
    mutate_with(&server, "keeps", vec![webhook]).await;
    create(&server, "a").await.expect(201);
    let one = format!("{MAPS}/a");
    server.patch(&one, "merge", &json!({"data": {"k": "keep"}})).await.expect(200);
    let request = hook.last()["request"].clone();
    assert_eq!(request["operation"], "UPDATE");
    assert_eq!(
        (&request["oldObject"]["data"]["k"], &request["object"]["data"]["k"]),
        (&json!("v"), &json!("keep"))
    );
    assert_eq!(request["options"]["kind"], "PatchOptions");
    let refused = server.delete(&one).await.expect(403);
    assert_eq!(
        refused["message"],
        "admission webhook \"keeps.example.com\" denied the request: it is to be kept"
    );
    assert_eq!(hook.last()["request"]["object"], Value::Null);
    let many = server.send(Method::DELETE, MAPS, "application/json", "").await;
    assert_eq!(many.code, 403);
    server.get(&one).await.expect(200);
}

#[tokio::test]
async fn a_webhook_is_asked_again_when_another_changed_the_object_after_it() {
    let server = TestServer::start().await;
    let counted = || {
        WebhookServer::start(|review| {
            let seen = review["request"]["object"]["data"]["seen"].as_str().unwrap_or("");
            patch(&json!([{"op": "add", "path": "/data/seen", "value": format!("{seen}1")}]))
        })
    };
    let (again, once) = (counted().await, counted().await);
    let changes = WebhookServer::start(|review| match review["request"]["object"]["data"].get("changed") {
        None => patch(&json!([{"op": "add", "path": "/data/changed", "value": "yes"}])),
        Some(_) => allow(),
    })
    .await;
    mutate_with(
        &server,
        "order",
        vec![
            with(again.webhook("again.example.com"), "reinvocationPolicy", json!("IfNeeded")),
            once.webhook("once.example.com"),
            changes.webhook("changes.example.com"),
        ],
    )
    .await;
    let created = create(&server, "a").await.expect(201);
    assert_eq!((again.count(), once.count(), changes.count()), (2, 1, 1));
    assert_eq!(created["data"]["seen"], "111");
    // What the webhook sees is what those before it made of the object.
    assert_eq!(again.last()["request"]["object"]["data"]["changed"], "yes");
}

#[tokio::test]
async fn dry_run_reaches_only_webhooks_without_side_effects() {
    let server = TestServer::start().await;
    let hook = WebhookServer::start(|_| allow()).await;
    let webhook = with(hook.webhook("dry.example.com"), "sideEffects", json!("NoneOnDryRun"));
    validate_with(&server, "dry", vec![webhook]).await;
    server.post(&format!("{MAPS}?dryRun=All"), &config_map("a")).await.expect(201);
    assert_eq!(hook.last()["request"]["dryRun"], true);
    server.get(&format!("{MAPS}/a")).await.expect(404);
    // Configurations that say less can come from an old store only; the API refuses them.
    let some = with(hook.webhook("some.example.com"), "sideEffects", json!("Some"));
    let refused = server
        .post(VALIDATING, &configuration("ValidatingWebhookConfiguration", "some", vec![some]))
        .await
        .expect(422);
    assert!(refused["message"].as_str().expect("a message").contains("Unsupported value: \"Some\""));
}

#[tokio::test]
async fn the_old_review_and_webhooks_behind_a_service() {
    let server = TestServer::start().await;
    let hook = WebhookServer::start_as(&["hook.default.svc".into()], |review| {
        assert_eq!(review["apiVersion"], "admission.k8s.io/v1beta1");
        patch(&json!([{"op": "add", "path": "/data/old", "value": "review"}]))
    })
    .await;
    let mut webhook =
        with(hook.webhook("svc.example.com"), "admissionReviewVersions", json!(["v0", "v1beta1", "v1"]));
    webhook["clientConfig"] = json!({
        "caBundle": hook.ca_bundle, "service": {"namespace": "default", "name": "hook", "path": "/here"},
    });
    mutate_with(&server, "svc", vec![webhook]).await;
    let missing = create(&server, "a").await.expect(500);
    assert!(
        missing["message"].as_str().expect("a message").contains("service \"hook\" not found"),
        "{missing}"
    );

    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hook"},
        "spec": {"ports": [{"port": 443, "targetPort": hook.port}], "selector": {"app": "hook"}}});
    server.post("/api/v1/namespaces/default/services", &service).await.expect(201);
    let nobody = create(&server, "a").await.expect(500);
    assert!(
        nobody["message"]
            .as_str()
            .expect("a message")
            .contains("no endpoints available for service \"hook\"")
    );

    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "hook-1", "labels": {"kubernetes.io/service-name": "hook"}},
        "ports": [{"name": "", "port": hook.port, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": true}}]});
    server.post("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", &slice).await.expect(201);
    let created = create(&server, "a").await.expect(201);
    assert_eq!(created["data"]["old"], "review");
    assert_eq!(hook.last()["path"], "/here?timeout=5s");
}

#[tokio::test]
async fn a_connection_is_asked_about_before_it_is_made() {
    let server = TestServer::start().await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    server.post("/api/v1/namespaces/default/serviceaccounts", &account).await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i"}]}});
    server.post("/api/v1/namespaces/default/pods", &pod).await.expect(201);
    let hook = WebhookServer::start(|_| deny("attaching to pods is not allowed")).await;
    let rules = json!([{"operations": ["CONNECT"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/attach", "pods/exec"]}]);
    let webhook = with(hook.webhook("attach.example.com"), "rules", rules);
    validate_with(&server, "attach", vec![webhook.clone()]).await;
    let attach = "/api/v1/namespaces/default/pods/p/attach?container=c&stdin=true";
    let refused = server.send(Method::POST, attach, "", "").await.expect(403);
    assert_eq!(
        refused["message"],
        "admission webhook \"attach.example.com\" denied the request: attaching to pods is not allowed"
    );
    let request = hook.last()["request"].clone();
    assert_eq!((&request["operation"], &request["subResource"]), (&json!("CONNECT"), &json!("attach")));
    assert_eq!(request["kind"]["kind"], "PodAttachOptions");
    assert_eq!(
        request["object"],
        json!({"apiVersion": "v1", "kind": "PodAttachOptions", "container": "c", "stdin": true})
    );
    // Mutating webhooks have their say as well.
    server.delete(&format!("{VALIDATING}/attach")).await.expect(200);
    mutate_with(&server, "attach", vec![webhook]).await;
    server.send(Method::POST, attach, "", "").await.expect(403);
    // Whoever is not denied goes on to the node, which this pod does not have.
    let other = "/api/v1/namespaces/default/pods/p/portforward?ports=80";
    let failed = server.send(Method::POST, other, "", "").await.expect(400);
    assert_eq!(failed["message"], "pod p does not have a host assigned");
}

#[tokio::test]
async fn a_subresource_is_asked_about_as_the_kind_it_has() {
    let server = TestServer::start().await;
    let hook = WebhookServer::start(|review| match review["request"]["object"]["kind"].as_str() {
        Some("Scale") => patch(&json!([{"op": "replace", "path": "/spec/replicas", "value": 3}])),
        Some("Binding") => {
            patch(&json!([{"op": "add", "path": "/metadata/annotations", "value": {"by": "hook"}}]))
        }
        Some("Eviction") => deny("it stays"),
        _ => allow(),
    })
    .await;
    let rules = json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"],
        "resources": ["deployments/scale", "pods/binding", "pods/eviction", "serviceaccounts/token"]}]);
    mutate_with(&server, "subs", vec![with(hook.webhook("subs.example.com"), "rules", rules)]).await;
    let asked = |kind: (&str, &str, &str), resource: &str, operation: &str| {
        let request = hook.last()["request"].clone();
        let (group, version, kind) = kind;
        assert_eq!(request["kind"], json!({"group": group, "version": version, "kind": kind}), "{request}");
        assert_eq!(request["requestKind"], request["kind"]);
        let place =
            format!("{}/{}", request["resource"]["resource"], request["subResource"]).replace('"', "");
        assert_eq!((place.as_str(), request["operation"].as_str()), (resource, Some(operation)), "{request}");
        request
    };

    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    server.post(deployments, &deployment).await.expect(201);
    assert_eq!(hook.count(), 0, "only subresources are asked about");
    let scale = format!("{deployments}/d/scale");
    let scaled = server.patch(&scale, "merge", &json!({"spec": {"replicas": 9}})).await.expect(200);
    assert_eq!(scaled["spec"]["replicas"], 3, "the webhook has its say");
    let request = asked(("autoscaling", "v1", "Scale"), "deployments/scale", "UPDATE");
    assert_eq!(
        (&request["oldObject"]["spec"]["replicas"], &request["object"]["spec"]["replicas"]),
        (&json!(1), &json!(9))
    );

    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    server.post(pods, &pod).await.expect(201);
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    server.post(&format!("{pods}/p/binding"), &binding).await.expect(201);
    let request = asked(("", "v1", "Binding"), "pods/binding", "CREATE");
    assert_eq!((&request["object"]["target"]["name"], &request["oldObject"]), (&json!("n"), &Value::Null));
    let bound = server.get(&format!("{pods}/p")).await.expect(200);
    assert_eq!(
        (&bound["spec"]["nodeName"], &bound["metadata"]["annotations"]["by"]),
        (&json!("n"), &json!("hook"))
    );

    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    let refused = server.post(&format!("{pods}/p/eviction"), &eviction).await.expect(403);
    assert_eq!(refused["message"], "admission webhook \"subs.example.com\" denied the request: it stays");
    asked(("policy", "v1", "Eviction"), "pods/eviction", "CREATE");

    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    server.post(accounts, &account).await.expect(201);
    let token = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    server.post(&format!("{accounts}/robot/token"), &token).await.expect(201);
    asked(("authentication.k8s.io", "v1", "TokenRequest"), "serviceaccounts/token", "CREATE");
}

/// A pod that was Pending when its eviction was asked for, and serves by the time the webhook has answered.
#[tokio::test]
async fn a_pod_that_becomes_ready_during_its_eviction_is_kept_by_its_budget() {
    let server = TestServer::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"app": "web"}},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    server.post(pods, &pod).await.expect(201);
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    server.post(budgets, &budget).await.expect(201);
    let counted = json!({"status": {"observedGeneration": 1, "currentHealthy": 1, "desiredHealthy": 1,
        "disruptionsAllowed": 0, "expectedPods": 1}});
    server.patch(&format!("{budgets}/b/status"), "merge", &counted).await.expect(200);

    let pod_is_ready = Arc::new(Semaphore::new(0));
    let until = pod_is_ready.clone();
    let hook = WebhookServer::start(move |review| {
        let response = json!({"uid": review["request"]["uid"], "allowed": true});
        let answer =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        Reply::Late(until.clone(), 200, answer.to_string().into_bytes())
    })
    .await;
    let rules = json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/eviction"]}]);
    validate_with(&server, "waits", vec![with(hook.webhook("waits.example.com"), "rules", rules)]).await;

    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    let path = format!("{pods}/p/eviction");
    let becomes_ready = async {
        while hook.count() == 0 {
            tokio::task::yield_now().await;
        }
        let status =
            json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        server.patch(&format!("{pods}/p/status"), "merge", &status).await.expect(200);
        pod_is_ready.close();
    };
    let (evicted, ()) = tokio::join!(server.post(&path, &eviction), becomes_ready);
    evicted.expect(429);
    let pod = server.get(&format!("{pods}/p")).await.expect(200);
    assert!(pod["metadata"]["deletionTimestamp"].is_null());
}

#[tokio::test]
async fn the_audit_log_tells_what_webhooks_did() {
    let audited = AuditedServer::start("Request", |_| {}).await;
    let server = &audited.server;
    let changes = WebhookServer::start(|_| {
        let patch = base64::Engine::encode(
            &base64::prelude::BASE64_STANDARD,
            json!([{"op": "add", "path": "/data/added", "value": "x"}]).to_string(),
        );
        Reply::Response(json!({"allowed": true, "patchType": "JSONPatch", "patch": patch,
            "auditAnnotations": {"why": "it was missing"}}))
    })
    .await;
    let fails = WebhookServer::start(|_| Reply::Raw(500, Vec::new())).await;
    let open = with(fails.webhook("open.example.com"), "failurePolicy", json!("Ignore"));
    mutate_with(server, "both", vec![changes.webhook("changes.example.com"), open]).await;
    audited.ask("POST", MAPS, "hooked", &config_map("a")).await.expect(201);
    let annotations = audited.line("hooked").await["annotations"].clone();
    assert_eq!(annotations["changes.example.com/why"], "it was missing");
    let key = "mutation.webhook.admission.k8s.io/round_0_index_0";
    let told: Value = serde_json::from_str(annotations[key].as_str().expect("a text")).expect("JSON");
    assert_eq!(told, json!({"configuration": "both", "webhook": "changes.example.com", "mutated": true}));
    let key = "patch.webhook.admission.k8s.io/round_0_index_0";
    let told: Value = serde_json::from_str(annotations[key].as_str().expect("a text")).expect("JSON");
    assert_eq!(told["patch"], json!([{"op": "add", "path": "/data/added", "value": "x"}]));
    assert_eq!(
        annotations["failed-open.mutation.webhook.admission.k8s.io/round_0_index_1"],
        "open.example.com"
    );
}
