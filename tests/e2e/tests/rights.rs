//! Who may do what, where one request could be taken for another: an update that creates, a read that opens a stream, a
//! request for a certificate that holds two, an address that leads back to the server, a webhook that nobody can read.

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ferry_store::{
    Committed, Durability, Embedded, Error, Found, Operation, Page, Range, Revision, Store, Txn, Usage,
    Watch, embedded,
};
use ferry_testkit::{Answer, TestServer, send};
use http::Method;
use kube::Client;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// Gives jane these rights in all namespaces.
async fn jane(server: &TestServer, rules: Value) -> Client {
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "jane"}, "rules": rules});
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "jane"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "jane"},
        "subjects": [{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}],
    });
    server.post(&format!("{RBAC}/clusterroles"), &role).await.expect(201);
    server.post(&format!("{RBAC}/clusterrolebindings"), &binding).await.expect(201);
    server.user("jane", &["system:authenticated"])
}

async fn ask(client: &Client, method: Method, path: &str, content_type: &str, body: &Value) -> Answer {
    send(client, method, path, &[("content-type", content_type)], body.to_string().into_bytes()).await
}

fn lease(name: &str) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": {"holderIdentity": "me"}})
}

#[tokio::test]
async fn an_update_that_creates_needs_the_create_right() {
    let server = TestServer::start().await;
    let rules = json!([
        {"apiGroups": ["coordination.k8s.io", ""], "resources": ["leases", "pods", "secrets"], "verbs": ["get", "update", "patch"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["allowed"], "verbs": ["create"]},
    ]);
    let jane = jane(&server, rules).await;
    let (put, apply) = ("application/json", "application/apply-patch+yaml");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let token = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "t", "annotations": {"kubernetes.io/service-account.name": "default"}},
        "type": "kubernetes.io/service-account-token",
    });
    let cases = [
        (Method::PUT, format!("{LEASES}/l"), put, lease("l"), "leases.coordination.k8s.io \"l\"", "leases"),
        (
            Method::PATCH,
            format!("{LEASES}/l?fieldManager=m"),
            apply,
            lease("l"),
            "leases.coordination.k8s.io \"l\"",
            "leases",
        ),
        (Method::PATCH, format!("{PODS}/p?fieldManager=m"), apply, pod, "pods \"p\"", "pods"),
        (
            Method::PATCH,
            "/api/v1/namespaces/default/secrets/t?fieldManager=m".into(),
            apply,
            token,
            "secrets \"t\"",
            "secrets",
        ),
    ];
    for (method, path, content_type, object, subject, resource) in cases {
        let refused = ask(&jane, method, &path, content_type, &object).await.expect(403);
        let message = refused["message"].as_str().unwrap_or("");
        let expected = format!("{subject} is forbidden: User \"jane\" cannot create resource \"{resource}\"");
        assert!(message.starts_with(&expected), "{path}: {message}");
        let path = path.split('?').next().unwrap_or("");
        server.get(path).await.expect(404);
    }
    // The right may be for one name; and what exists is only updated.
    ask(&jane, Method::PUT, &format!("{LEASES}/allowed"), put, &lease("allowed")).await.expect(201);
    let existing = server.post(LEASES, &lease("l")).await.expect(201);
    ask(&jane, Method::PUT, &format!("{LEASES}/l"), put, &existing).await.expect(200);
    let path = format!("{LEASES}/l?fieldManager=m&force=true");
    ask(&jane, Method::PATCH, &path, apply, &lease("l")).await.expect(200);
}

#[tokio::test]
async fn streams_opened_with_get_need_the_create_right() {
    let server = TestServer::start().await;
    let rules = json!([{
        "apiGroups": [""], "verbs": ["get", "watch", "list", "update", "patch", "delete"],
        "resources": ["pods", "pods/exec", "pods/attach", "pods/portforward"],
    }]);
    let jane = jane(&server, rules).await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    server.post(PODS, &pod).await.expect(201);
    for action in ["exec", "attach", "portforward"] {
        let path = format!("{PODS}/p/{action}?command=sh&stdin=1&ports=80");
        let refused = send(&jane, Method::GET, &path, &[], Vec::new()).await.expect(403);
        let expected = format!("cannot create resource \"pods/{action}\"");
        assert!(refused["message"].as_str().is_some_and(|words| words.contains(&expected)), "{refused}");
        for method in [Method::PUT, Method::PATCH, Method::DELETE] {
            send(&jane, method, &path, &[], Vec::new()).await.expect(405);
        }
        let watched = format!("/api/v1/watch/namespaces/default/pods/p/{action}?command=sh");
        send(&jane, Method::GET, &watched, &[], Vec::new()).await.expect(404);
        server.get(&watched).await.expect(404);
        // Who may create comes as far as the pod, which is on no node.
        server.get(&path).await.expect(400);
    }
}

#[tokio::test]
async fn proxies_refuse_loopback_and_link_local_addresses() {
    let server = TestServer::start().await;
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    server.post(PODS, &pod).await.expect(201);
    // Another way to write the first is refused before it comes to a proxy.
    pod["status"] = json!({"podIP": "::ffff:127.0.0.1", "podIPs": [{"ip": "::ffff:127.0.0.1"}]});
    server.put(&format!("{PODS}/p/status"), &pod).await.expect(422);
    for address in ["127.0.0.1", "::1", "169.254.169.254", "fe80::1", "0.0.0.0"] {
        pod["status"] = json!({"podIP": address, "podIPs": [{"ip": address}]});
        server.put(&format!("{PODS}/p/status"), &pod).await.expect(200);
        let refused = server.get(&format!("{PODS}/p:80/proxy/")).await.expect(400);
        assert_eq!(refused["message"], "address not allowed", "{address}");
    }
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    server.post("/api/v1/nodes", &node).await.expect(201);
    for address in ["127.0.0.1", "169.254.169.254"] {
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
        server.patch("/api/v1/nodes/n/status", "merge", &status).await.expect(200);
        let refused = server.get("/api/v1/nodes/n:8080/proxy/").await.expect(400);
        assert_eq!(refused["message"], "address not allowed", "{address}");
    }
    // A name that means the server itself.
    let status = json!({"status": {"addresses": [{"type": "Hostname", "address": "localhost"}]}});
    server.patch("/api/v1/nodes/n/status", "merge", &status).await.expect(200);
    assert_eq!(server.get("/api/v1/nodes/n:8080/proxy/").await.expect(400)["message"], "address not allowed");
}

/// A node says itself where its kubelet is, and the server shows kubelets a certificate of an administrator's.
#[tokio::test]
async fn a_node_cannot_name_an_api_server_as_its_kubelet() {
    let server = TestServer::start().await;
    let jane =
        jane(&server, json!([{"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["get", "create"]}]))
            .await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    server.post("/api/v1/nodes", &node).await.expect(201);
    let status = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": server.running().address.port()}},
    }});
    let of_node = server.user("system:node:n", &["system:nodes", "system:authenticated"]);
    ask(&of_node, Method::PATCH, "/api/v1/nodes/n/status", "application/merge-patch+json", &status)
        .await
        .expect(200);
    let secrets = "/api/v1/nodes/n/proxy/api/v1/namespaces/default/configmaps";
    let refused = send(&jane, Method::GET, secrets, &[], Vec::new()).await.expect(500);
    let message = refused["message"].as_str().unwrap_or("");
    assert!(message.ends_with("not the kubelet of n: it is an API server"), "{message}");
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    ask(&jane, Method::POST, secrets, "application/json", &map).await.expect(500);
    server.get("/api/v1/namespaces/default/configmaps/m").await.expect(404);
}

/// Whoever reads a log follows a redirect with the credentials of its own.
#[tokio::test]
async fn redirects_of_kubelets_are_refused() {
    let server = TestServer::start().await;
    let names = ["127.0.0.1".to_string()].into();
    let own = server.running().pki.serving_certificate(
        "system:node:n",
        &["system:nodes"],
        &names,
        std::time::SystemTime::now(),
    );
    let own = own.expect("a certificate");
    let chain = CertificateDer::pem_slice_iter(own.certificate.as_bytes()).collect::<Result<Vec<_>, _>>();
    let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).expect("a key");
    let tls = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("known protocols")
        .with_no_client_auth()
        .with_single_cert(chain.expect("certificates"), key)
        .expect("a pair");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("it listens").port();
    let kubelet = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let mut stream = acceptor.accept(stream).await.expect("a server that believes it");
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.expect("a request"));
            }
            let moved =
                b"HTTP/1.1 302 Found\r\nlocation: https://elsewhere.example/\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(moved).await.expect("an answer");
        }
    });
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    server.post("/api/v1/nodes", &node).await.expect(201);
    let status = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }});
    server.patch("/api/v1/nodes/n/status", "merge", &status).await.expect(200);
    let account = "/api/v1/namespaces/default/serviceaccounts";
    let object = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    server.post(account, &object).await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    server.post(PODS, &pod).await.expect(201);
    let answer = server.get(&format!("{PODS}/p/log")).await;
    assert_eq!((answer.code, answer.header("location")), (502, ""));
    // What is proxied is a page of its own, whose redirects are passed on.
    let answer = server.get("/api/v1/nodes/n/proxy/x").await;
    assert_eq!((answer.code, answer.header("location")), (302, "https://elsewhere.example/"));
    kubelet.abort();
}

/// Each driver is asked about.
#[tokio::test]
async fn a_claims_status_that_tells_of_countless_drivers_is_refused() {
    let server = TestServer::start().await;
    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let request = json!({"name": "r", "exactly": {"deviceClassName": "c"}});
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"},
        "spec": {"devices": {"requests": [request]}}});
    server.post(claims, &claim).await.expect(201);
    let device =
        |number: usize| json!({"driver": format!("d{number}.example.com"), "pool": "p", "device": "d"});
    let status = json!({"status": {
        "allocation": {"devices": {"results": []}},
        "devices": (0..10_000).map(device).collect::<Vec<_>>(),
    }});
    let refused = server.patch(&format!("{claims}/c/status"), "merge", &status).await.expect(422);
    let message = refused["message"].as_str().unwrap_or("");
    assert!(message.contains("status.devices: Too many: 10000: must have at most 64 items"), "{message}");
}

#[tokio::test]
async fn a_certificate_request_with_two_pem_blocks_is_refused() {
    let server = TestServer::start().await;
    let body = |organization: &str, name: &str| {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = rcgen::KeyPair::generate().expect("a key");
        BASE64_STANDARD.encode(params.serialize_request(&key).expect("a request").der())
    };
    let (begin, end) = ("-----BEGIN CERTIFICATE REQUEST-----", "-----END CERTIFICATE REQUEST-----");
    let (masters, node) = (body("system:masters", "root"), body("system:nodes", "system:node:n1"));
    let post = |name: &'static str, pem: String| {
        let request = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
            "spec": {
                "signerName": "kubernetes.io/kube-apiserver-client-kubelet", "usages": ["digital signature", "client auth"],
                "request": BASE64_STANDARD.encode(pem),
            },
        });
        let server = &server;
        async move { server.post("/apis/certificates.k8s.io/v1/certificatesigningrequests", &request).await }
    };
    post("hidden", format!("{begin}{masters}{end}\n{node}\n{end}\n")).await.expect(422);
    post("second", format!("{begin}\n{node}\n{end}\n{begin}\n{masters}\n{end}\n")).await.expect(422);
    post("one", format!("a note before it\n{begin}\n{node}\n{end}\n")).await.expect(201);
}

/// Deletes what is created under a name that begins with `doomed` before the create is answered.
struct Hasty(Arc<dyn Store>);

#[async_trait::async_trait]
impl Store for Hasty {
    async fn commit(&self, txn: Txn) -> Result<Committed, Error> {
        let doomed = txn.operations.iter().find_map(|operation| match operation {
            Operation::Put { key, .. } if key.contains("/doomed") => Some(key.clone()),
            _ => None,
        });
        let committed = self.0.commit(txn).await?;
        let Some(key) = doomed else { return Ok(committed) };
        let operations = vec![Operation::Delete { key }];
        self.0.commit(Txn { compare: Vec::new(), operations, durability: Durability::Sync }).await
    }

    async fn get(&self, key: &str, at: Option<Revision>) -> Result<Found, Error> {
        self.0.get(key, at).await
    }

    async fn range(&self, range: Range) -> Result<Page, Error> {
        self.0.range(range).await
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, Error> {
        self.0.watch(prefix, from).await
    }

    async fn current_revision(&self) -> Result<Revision, Error> {
        self.0.current_revision().await
    }

    async fn compact(&self, at: Revision) -> Result<(), Error> {
        self.0.compact(at).await
    }

    async fn usage(&self) -> Result<Usage, Error> {
        self.0.usage().await
    }

    async fn snapshot(
        &self,
    ) -> Result<futures::stream::BoxStream<'static, Result<bytes::Bytes, Error>>, Error> {
        self.0.snapshot().await
    }

    async fn close(&self) -> Result<(), Error> {
        self.0.close().await
    }
}

async fn start_on(wrap: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>) -> (TestServer, Arc<dyn Store>) {
    let directory = tempfile::tempdir().expect("a directory");
    let config = embedded::Config::new(directory.path().join("store"));
    let store: Arc<dyn Store> = Arc::new(Embedded::open(config).expect("an empty store"));
    (TestServer::start_on(wrap(store.clone()), directory, |_| {}).await, store)
}

#[tokio::test]
async fn a_create_is_answered_though_the_object_is_deleted_at_once() {
    let (server, _) = start_on(|store| Arc::new(Hasty(store))).await;
    let map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "doomed"}, "data": {"k": "v"}});
    let created = server.post("/api/v1/namespaces/default/configmaps", &map).await.expect(201);
    assert_eq!(created["data"]["k"], "v");
    assert!(created["metadata"]["uid"].is_string() && created["metadata"]["resourceVersion"].is_string());
    server.get("/api/v1/namespaces/default/configmaps/doomed").await.expect(404);
}

#[tokio::test]
async fn undecodable_webhooks_and_policies_fail_by_their_failure_policy() {
    let (server, store) = start_on(|store| store).await;
    let server = &server;
    let write = async |key: &str, value: Option<Value>| {
        let key = format!("/registry/{key}").into();
        let operation = match value {
            Some(Value::String(raw)) => Operation::Put { key, value: raw.into(), ttl: None },
            Some(value) => Operation::Put { key, value: value.to_string().into(), ttl: None },
            None => Operation::Delete { key },
        };
        let txn = Txn { compare: Vec::new(), operations: vec![operation], durability: Durability::Sync };
        store.commit(txn).await.expect("written");
    };
    let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let maps = "/api/v1/namespaces/default/configmaps";
    // A read that must be fresh waits until the server has seen what was written beside it.
    let post = async |name: &str| {
        server.get("/api/v1/namespaces/default/secrets").await.expect(200);
        server.post(maps, &map(name)).await
    };
    let hooks = |kind: &str, policy: Value| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "x", "uid": "u"},
            "webhooks": [{"name": 5, "failurePolicy": policy}],
        })
    };
    for kind in ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"] {
        let key = format!("{}s/x", kind.to_lowercase());
        for (number, (policy, code)) in
            [(json!("Fail"), 500), (Value::Null, 500), (json!("Ignore"), 201)].into_iter().enumerate()
        {
            write(&key, Some(hooks(kind, policy))).await;
            post(&format!("{}-{number}", kind.to_lowercase())).await.expect(code);
        }
        write(&key, Some("no object at all".into())).await;
        post(&format!("{}-raw", kind.to_lowercase())).await.expect(500);
        write(&key, None).await;
        post(&format!("{}-gone", kind.to_lowercase())).await.expect(201);
    }
    for kind in ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"] {
        let plural =
            kind.to_lowercase().replace("policy", "policies").replace("policiesbinding", "policybindings");
        let key = format!("{plural}/x");
        let broken = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "x", "uid": "u"},
            "spec": {"policyName": 5, "validations": 5},
        });
        write(&key, Some(broken)).await;
        post(&format!("{}-broken", kind.to_lowercase())).await.expect(500);
        write(&key, None).await;
        post(&format!("{}-gone", kind.to_lowercase())).await.expect(201);
    }
}

#[tokio::test]
async fn fields_are_owned_in_the_version_they_were_written_in() {
    let server = TestServer::start().await;
    let scaler = |max: i64| {
        json!({
            "apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
            "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "maxReplicas": max, "targetCPUUtilizationPercentage": 50},
        })
    };
    let path = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
    let first = server.post(&format!("{path}?fieldManager=creator"), &scaler(3)).await.expect(201);
    let second = server.put(&format!("{path}/h?fieldManager=changer"), &scaler(5)).await.expect(200);
    let fields = |object: &Value, manager: &str| {
        let rows = object["metadata"]["managedFields"].as_array().expect("managers");
        let row = rows.iter().find(|row| row["manager"] == manager).expect("a manager");
        assert_eq!(row["apiVersion"], "autoscaling/v1");
        row["fieldsV1"]["f:spec"].clone()
    };
    let expected = json!({
        "f:maxReplicas": {}, "f:scaleTargetRef": {}, "f:targetCPUUtilizationPercentage": {},
    });
    let own = |mut fields: Value| {
        if let Some(target) = fields.get_mut("f:scaleTargetRef") {
            *target = json!({});
        }
        fields
    };
    let created = own(fields(&first, "creator"));
    for field in expected.as_object().expect("fields").keys() {
        assert!(created.get(field).is_some(), "{field} in {created}");
    }
    assert!(created.get("f:metrics").is_none(), "{created}");
    assert_eq!(fields(&second, "changer"), json!({"f:maxReplicas": {}}));
    assert!(fields(&second, "creator").get("f:maxReplicas").is_none());
    // Seen from the other version, the same fields belong to the same manager.
    let path = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/h?fieldManager=other";
    let patch = json!({"spec": {"metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}}]}});
    let third = server.patch(path, "merge", &patch).await.expect(200);
    assert!(fields(&third, "creator").get("f:targetCPUUtilizationPercentage").is_none(), "{third:#}");
}
