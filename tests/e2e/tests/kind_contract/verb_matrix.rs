//! One right at a time: users who have a single verb on everything, or every verb on a single resource, ask for every path
//! of every kind. What their right covers is answered as the administrator is, everything else is refused with the right
//! that is missing. Writes are dry runs. Paths and rights follow from the table of kinds.

use std::time::{Duration, Instant};

use ferry_api::{Kind, Subresource, kinds};
use ferry_testkit::TestServer;
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use crate::{NAMESPACE, minimal, server};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const VERBS: &[&str] = &["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// Streams that a GET opens: since v1.35 they take the right to create besides the one to get.
const STREAMS: &[&str] = &["exec", "attach", "portforward"];

struct Ask {
    method: Method,
    path: String,
    content_type: &'static str,
    body: Value,
    /// `pods` or `pods/exec`.
    resource: String,
    /// The verbs that it takes, all of them.
    needs: Vec<&'static str>,
}

impl Ask {
    fn to(
        kind: &Kind,
        subresource: &str,
        method: Method,
        path: String,
        needs: &[&'static str],
        body: Value,
    ) -> Ask {
        let resource = match subresource {
            "" => kind.plural.to_string(),
            subresource => format!("{}/{subresource}", kind.plural),
        };
        let content_type = if method == Method::PATCH { MERGE } else { JSON };
        Ask { method, path, content_type, body, resource, needs: needs.to_vec() }
    }

    fn title(&self) -> String {
        format!("{} {} ({})", self.method, self.path, self.content_type)
    }
}

/// What a path asks for by a method, as upstream reads it.
fn verb_of(method: &Method, is_object: bool) -> &'static str {
    match (method.as_str(), is_object) {
        ("GET" | "HEAD", true) => "get",
        ("GET" | "HEAD", false) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "delete",
        _ => "deletecollection",
    }
}

const METHODS: [Method; 5] = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

/// The paths of a kind under its version: `rest` follows what every path begins with.
fn path(kind: &Kind, prefix: &str, rest: &str) -> String {
    let group = if kind.group.is_empty() { "/api".to_string() } else { format!("/apis/{}", kind.group) };
    let place = if kind.is_namespaced() { format!("/namespaces/{NAMESPACE}") } else { String::new() };
    format!("{group}/{}{prefix}{place}/{}{rest}", kind.version, kind.plural)
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().expect("a minimal object has a name")
}

/// What is asked before the object is there: all that may create it.
fn creating(kind: &Kind) -> Vec<Ask> {
    let object = minimal(kind);
    let one = format!("{}?dryRun=All&fieldManager=m", path(kind, "", &format!("/{}", name(&object))));
    let all = format!("{}?dryRun=All", path(kind, "", ""));
    let mut asks = vec![Ask::to(kind, "", Method::POST, all, &["create"], object.clone())];
    if !kind.is_virtual() {
        // A put or an apply that creates takes the right to create as well; whether it does, the administrator finds out.
        asks.push(Ask::to(kind, "", Method::PUT, one.clone(), &["update"], object.clone()));
        let apply = Ask::to(kind, "", Method::PATCH, one, &["patch"], object);
        asks.push(Ask { content_type: APPLY, ..apply });
    }
    asks
}

/// What is asked when the object is there: every method on every path.
fn asks(kind: &Kind) -> Vec<Ask> {
    let object = minimal(kind);
    let one = format!("/{}", name(&object));
    let mut asks = Vec::new();
    let mut ask = |subresource: &str, method: &Method, path: String, needs: &[&'static str], body: Value| {
        asks.push(Ask::to(kind, subresource, method.clone(), path, needs, body));
    };
    for method in &METHODS {
        let collection = format!("{}?dryRun=All", path(kind, "", ""));
        ask("", method, collection, &[verb_of(method, false)], object.clone());
        let single = format!("{}?dryRun=All", path(kind, "", &one));
        ask("", method, single, &[verb_of(method, true)], object.clone());
    }
    let get = &Method::GET;
    ask("", &Method::HEAD, path(kind, "", &one), &["get"], Value::Null);
    let selected = format!("?fieldSelector=metadata.name%3D{}", name(&object));
    ask("", get, path(kind, "", &selected), &["list"], Value::Null);
    ask("", get, path(kind, "", &format!("{selected}&watch=1&timeoutSeconds=1")), &["watch"], Value::Null);
    ask("", get, path(kind, "", "?watch=true&timeoutSeconds=1"), &["watch"], Value::Null);
    ask("", get, path(kind, "/watch", "?timeoutSeconds=1"), &["watch"], Value::Null);
    ask("", get, path(kind, "/watch", &format!("{one}?timeoutSeconds=1")), &["watch"], Value::Null);
    for subresource in &kind.subresources {
        for method in &METHODS {
            let verb = verb_of(method, true);
            let is_stream = STREAMS.contains(&&*subresource.name);
            let needs: &[&str] = if is_stream && method == get { &["get", "create"] } else { &[verb] };
            let body = body_of(kind, subresource, &object);
            let below = format!("{one}/{}", subresource.name);
            let rest = format!("{below}?dryRun=All&command=a&stdout=1&ports=80");
            ask(&subresource.name, method, path(kind, "", &rest), needs, body.clone());
            if subresource.name == "proxy" {
                ask(&subresource.name, method, path(kind, "", &format!("{below}/a/b")), needs, body);
            }
        }
    }
    asks
}

fn body_of(kind: &Kind, subresource: &Subresource, object: &Value) -> Value {
    let gvk = &subresource.kind;
    if gvk.kind == kind.kind {
        return object.clone();
    }
    let spec = match &*gvk.kind {
        "Scale" => json!({"replicas": 1}),
        "TokenRequest" => json!({"audiences": ["a"]}),
        _ => json!({}),
    };
    let target = json!({"apiVersion": "v1", "kind": "Node", "name": "contract"});
    let mut body =
        json!({"apiVersion": gvk.api_version(), "kind": gvk.kind, "metadata": {"name": name(object)}});
    match &*gvk.kind {
        "Binding" => body["target"] = target,
        "Eviction" => {}
        _ => body["spec"] = spec,
    }
    body
}

/// A user without any group, and with these rights: not even discovery is for them.
async fn user(server: &TestServer, name: &str, rules: Value) -> Client {
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules});
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}],
    });
    server.post(&format!("{RBAC}/clusterroles"), &role).await.expect(201);
    server.post(&format!("{RBAC}/clusterrolebindings"), &binding).await.expect(201);
    // Rights follow their objects a moment later, as they do upstream.
    let rule = &rules[0];
    let (resource, subresource) = match rule["resources"][0].as_str().unwrap_or("").split_once('/') {
        Some((resource, subresource)) => (json!(resource), json!(subresource)),
        None => (rule["resources"][0].clone(), json!("")),
    };
    let attributes = json!({"group": rule["apiGroups"][0], "resource": resource, "subresource": subresource, "verb": rule["verbs"][0]});
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {"user": name, "resourceAttributes": attributes},
    });
    let give_up = Instant::now() + Duration::from_secs(60);
    loop {
        let answer =
            server.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).await.expect(201);
        if answer["status"]["allowed"] == true {
            return server.user(name, &[]);
        }
        assert!(Instant::now() < give_up, "{name} never gets its rights: {answer}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The code of the answer, and what a refusal says. A watch is not read to its end.
async fn send(client: &Client, ask: &Ask) -> (u16, String) {
    let body = if ask.body.is_null() { Vec::new() } else { ask.body.to_string().into_bytes() };
    let request = Request::builder().method(ask.method.clone()).uri(&ask.path);
    let request = request.header("content-type", ask.content_type).body(Body::from(body));
    let response = client.send(request.expect("a well-formed request")).await.expect("the server answers");
    let code = response.status().as_u16();
    if code != 403 || ask.method == Method::HEAD {
        return (code, String::new());
    }
    let bytes = response.into_body().collect().await.expect("the body arrives").to_bytes();
    let status: Value = serde_json::from_slice(&bytes).expect("a Status");
    (code, status["message"].as_str().unwrap_or("").to_string())
}

/// Asks for everything by all users, each with the rights that it has; returns how many asks were allowed.
async fn check(admin: &Client, users: &[(&[&str], &Client)], ask: &Ask, faults: &mut Vec<String>) -> usize {
    let (expected, _) = send(admin, ask).await;
    let mut needs = ask.needs.clone();
    let creates = expected == 201 && matches!(ask.method, Method::PUT | Method::PATCH);
    if creates {
        needs.push("create");
    }
    let mut allowed = 0;
    for (verbs, client) in users {
        let missing: Vec<&str> = needs.iter().copied().filter(|verb| !verbs.contains(verb)).collect();
        let (code, message) = send(client, ask).await;
        let title = || format!("{} with {verbs:?}, needs {needs:?}", ask.title());
        if missing.is_empty() {
            allowed += 1;
            if code != expected {
                faults.push(format!("{}: {code} {message}, the administrator got {expected}", title()));
            }
            continue;
        }
        let told = missing
            .iter()
            .any(|verb| message.contains(&format!("cannot {verb} resource \"{}\"", ask.resource)));
        if code != 403 || (!told && ask.method != Method::HEAD) {
            faults.push(format!("{}: {code} {message}", title()));
        }
    }
    allowed
}

fn served() -> impl Iterator<Item = &'static Kind> {
    // Metrics are asked of kubelets, of which there are none.
    kinds::builtin()
        .iter()
        .map(AsRef::as_ref)
        .filter(|kind: &&Kind| kind.by_default && !kind.is_resource_metrics)
}

/// A role without rules, which everybody may bind: whoever binds one needs the rights in it.
async fn roles_to_bind(server: &TestServer) {
    for (path, kind) in [
        (format!("{RBAC}/clusterroles"), "ClusterRole"),
        (format!("{RBAC}/namespaces/{NAMESPACE}/roles"), "Role"),
    ] {
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": "r"}, "rules": []});
        server.post(&path, &role).await.expect(201);
    }
}

/// Makes the objects that the paths name.
async fn make(server: &TestServer, kind: &Kind) {
    if kind.is_stored() {
        let made = server.post(&path(kind, "", ""), &minimal(kind)).await;
        // Two versions of a kind share their objects.
        assert!([201, 409].contains(&made.code), "{}: {}", kind.gvk(), made.json());
    }
}

/// Approving takes the right to approve for the signer besides, which no single verb on resources gives.
fn takes_another_right(ask: &Ask) -> bool {
    ask.resource == "certificatesigningrequests/approval" && matches!(ask.method, Method::PUT | Method::PATCH)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_to_one_verb_allows_only_that_verb() {
    let server = server().await;
    roles_to_bind(&server).await;
    let mut clients = Vec::new();
    for verb in VERBS {
        let rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": [verb]}]);
        clients.push(([*verb], user(&server, &format!("only-{verb}"), rules).await));
    }
    let users: Vec<(&[&str], &Client)> = clients.iter().map(|(verbs, client)| (&verbs[..], client)).collect();
    let (admin, mut faults, mut asked, mut allowed) = (server.admin(), Vec::new(), 0, 0);
    for kind in served() {
        for ask in creating(kind) {
            asked += 1;
            allowed += check(&admin, &users, &ask, &mut faults).await;
        }
    }
    for kind in served() {
        make(&server, kind).await;
    }
    for kind in served() {
        for ask in asks(kind).iter().filter(|ask| !takes_another_right(ask)) {
            asked += 1;
            allowed += check(&admin, &users, ask, &mut faults).await;
        }
    }
    // The old prefix for proxies has a verb of its own.
    for ask in ["/api/v1/proxy/nodes/contract", "/api/v1/proxy/namespaces/contract/pods/contract"] {
        for (verbs, client) in &users {
            let request = Request::get(ask).body(Body::empty()).expect("a request");
            let code = client.send(request).await.expect("an answer").status().as_u16();
            if code != 403 {
                faults.push(format!("GET {ask} with {verbs:?}: {code}"));
            }
        }
    }
    assert!(faults.is_empty(), "{} of {asked} asks:\n{}", faults.len(), faults.join("\n"));
    assert!(asked > 1000 && allowed > 900, "{asked} asks, {allowed} allowed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_to_one_resource_allows_only_that_resource() {
    let server = server().await;
    roles_to_bind(&server).await;
    for kind in served() {
        make(&server, kind).await;
    }
    let (admin, mut faults, mut allowed) = (server.admin(), Vec::new(), 0);
    // Every kind once: another version of it is the same resource to an authorizer.
    let mut seen = std::collections::BTreeSet::new();
    for (index, kind) in served().filter(|kind| seen.insert(kind.group_resource().to_string())).enumerate() {
        let mut asks = asks(kind);
        asks.retain(|ask| !takes_another_right(ask));
        let mut resources: Vec<String> = asks.iter().map(|ask| ask.resource.clone()).collect();
        resources.sort_unstable();
        resources.dedup();
        for (number, resource) in resources.iter().enumerate() {
            let rules = json!([{"apiGroups": [kind.group], "resources": [resource], "verbs": VERBS}]);
            let client = user(&server, &format!("on-{index}-{number}"), rules).await;
            for ask in &asks {
                let verbs: &[&str] = if ask.resource == *resource { VERBS } else { &[] };
                allowed += check(&admin, &[(verbs, &client)], ask, &mut faults).await;
            }
        }
    }
    assert!(faults.is_empty(), "{}:\n{}", faults.len(), faults.join("\n"));
    assert!(allowed > 900, "{allowed} asks were allowed");
}
