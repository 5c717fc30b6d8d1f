//! Admission plugins through a real server, as clients see them.

use ferry_testkit::{Answer, TestServer};
use futures::future::join_all;
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{
            "name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m"}},
        }]},
    })
}

fn message(answer: &Answer, code: u16) -> String {
    answer.expect(code)["message"].as_str().expect("words").to_string()
}

/// A quota that was counted once, as the quota controller does.
async fn quota(server: &TestServer, spec: Value) {
    let hard = spec["hard"].clone();
    let zeros: serde_json::Map<String, Value> =
        hard.as_object().expect("limits").keys().map(|name| (name.clone(), "0".into())).collect();
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": spec,
    });
    server.post(QUOTAS, &quota).await.expect(201);
    let status = json!({"status": {"hard": hard, "used": zeros}});
    server.patch(&format!("{QUOTAS}/q/status"), "merge", &status).await.expect(200);
}

async fn used(server: &TestServer) -> Value {
    server.get(&format!("{QUOTAS}/q")).await.expect(200)["status"]["used"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_clients_at_once_never_get_more_than_the_quota_has() {
    let server = TestServer::start().await;
    quota(&server, json!({"hard": {"pods": "20", "requests.cpu": "1500m"}})).await;
    let create = |number: usize| {
        let server = &server;
        async move { server.post(PODS, &pod(&format!("p{number}"))).await }
    };
    let answers = join_all((0..50).map(create)).await;
    let made = answers.iter().filter(|answer| answer.code == 201).count();
    assert_eq!(made, 15);
    for refused in answers.iter().filter(|answer| answer.code != 201) {
        let words = message(refused, 403);
        assert!(
            words.ends_with(
                "is forbidden: exceeded quota: q, requested: requests.cpu=100m, used: requests.cpu=1500m, limited: requests.cpu=1500m"
            ),
            "{words}"
        );
    }
    let pods = server.get(PODS).await.expect(200);
    assert_eq!(pods["items"].as_array().map(Vec::len), Some(15));
    assert_eq!(used(&server).await, json!({"pods": "15", "requests.cpu": "1500m"}));
}

#[tokio::test]
async fn a_write_that_does_not_happen_costs_nothing() {
    let server = TestServer::start().await;
    quota(&server, json!({"hard": {"pods": "2", "count/configmaps": "5"}})).await;
    server.post(&format!("{PODS}?dryRun=All"), &pod("a")).await.expect(201);
    assert_eq!(used(&server).await["pods"], "0");
    server.post(PODS, &pod("a")).await.expect(201);
    server.post(PODS, &pod("a")).await.expect(409);
    let mut invalid = pod("b");
    invalid["spec"]["containers"] = json!([]);
    server.post(PODS, &invalid).await.expect(422);
    assert_eq!(used(&server).await, json!({"pods": "1", "count/configmaps": "0"}));
    // A dry run is refused where the real one would be.
    server.post(PODS, &pod("b")).await.expect(201);
    server.post(&format!("{PODS}?dryRun=All"), &pod("c")).await.expect(403);
}

#[tokio::test]
async fn updates_that_use_more_are_charged_too() {
    let server = TestServer::start().await;
    quota(
        &server,
        json!({"hard": {"requests.cpu": "300m", "services.nodeports": "1", "requests.storage": "2Gi"}}),
    )
    .await;
    server.post(PODS, &pod("a")).await.expect(201);
    let resize = |cpu: &str| json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": "1"}}}]}});
    let path = format!("{PODS}/a/resize");
    let refused = server.patch(&path, "strategic-merge", &resize("400m")).await;
    assert_eq!(
        message(&refused, 403),
        "pods \"a\" is forbidden: exceeded quota: q, requested: requests.cpu=300m, used: requests.cpu=100m, limited: requests.cpu=300m"
    );
    server.patch(&path, "strategic-merge", &resize("250m")).await.expect(200);
    assert_eq!(used(&server).await["requests.cpu"], "250m");

    let services = "/api/v1/namespaces/default/services";
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]},
    });
    server.post(services, &service).await.expect(201);
    let refused =
        server.patch(&format!("{services}/s"), "merge", &json!({"spec": {"type": "NodePort"}})).await;
    assert!(message(&refused, 403).contains("requested: services.nodeports=2"), "{refused:?}");

    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "v"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "3Gi"}}},
    });
    assert!(message(&server.post(claims, &claim).await, 403).contains("limited: requests.storage=2Gi"));
}

#[tokio::test]
async fn a_pod_runs_as_an_account_that_exists() {
    let server = TestServer::start_with(|config| config.disable_admission_plugins.clear()).await;
    let refused = server.post(PODS, &pod("a")).await;
    assert_eq!(
        message(&refused, 403),
        "pods \"a\" is forbidden: error looking up service account default/default: serviceaccount \"default\" not found"
    );
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"},
        "imagePullSecrets": [{"name": "pull"}],
    });
    // The account comes while the pod's request waits for it.
    let wanted = pod("a");
    let (pod_answer, account_answer) =
        tokio::join!(server.post(PODS, &wanted), server.post(accounts, &account));
    account_answer.expect(201);
    let created = pod_answer.expect(201);
    assert_eq!(created["spec"]["serviceAccountName"], "default");
    assert_eq!(created["spec"]["serviceAccount"], "default");
    assert_eq!(created["spec"]["imagePullSecrets"], json!([{"name": "pull"}]));
    let volume = &created["spec"]["volumes"][0];
    let name = volume["name"].as_str().expect("a name");
    assert!(name.starts_with("kube-api-access-") && name.len() == "kube-api-access-".len() + 5, "{name}");
    assert_eq!(volume["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"], 3607);
    let mount = &created["spec"]["containers"][0]["volumeMounts"][0];
    assert_eq!(mount["name"], name);
    assert_eq!(mount["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount");

    let mut quiet = pod("b");
    quiet["spec"]["automountServiceAccountToken"] = false.into();
    assert!(server.post(PODS, &quiet).await.expect(201)["spec"]["volumes"].is_null());
    let mut stranger = pod("c");
    stranger["spec"]["serviceAccountName"] = "nobody".into();
    server.post(PODS, &stranger).await.expect(403);
}

#[tokio::test]
async fn limits_of_the_namespace_are_given_and_held() {
    let server = TestServer::start().await;
    let range = json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "r"},
        "spec": {"limits": [{
            "type": "Container", "default": {"memory": "2Gi"}, "defaultRequest": {"memory": "1Gi"}, "max": {"cpu": "1"},
        }]},
    });
    server.post("/api/v1/namespaces/default/limitranges", &range).await.expect(201);
    let created = server.post(PODS, &pod("a")).await.expect(201);
    let resources = &created["spec"]["containers"][0]["resources"];
    assert_eq!(
        (&resources["requests"]["memory"], &resources["limits"]["memory"]),
        (&json!("1Gi"), &json!("2Gi"))
    );
    assert_eq!(
        created["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: memory request for container c; memory limit for container c"
    );
    let mut greedy = pod("b");
    greedy["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "3".into();
    assert_eq!(
        message(&server.post(PODS, &greedy).await, 403),
        "pods \"b\" is forbidden: maximum cpu usage per Container is 1, but limit is 3"
    );
}

#[tokio::test]
async fn the_level_of_a_namespace_refuses_warns_and_is_told_of() {
    let server = TestServer::start().await;
    let label = |value: &str| json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": value}}});
    server.post(PODS, &pod("old")).await.expect(201);
    let refused = server.patch("/api/v1/namespaces/default", "merge", &label("strict")).await;
    assert!(
        message(&refused, 422).contains("must be one of privileged, baseline, restricted"),
        "{refused:?}"
    );
    // What is there and would be refused now is warned of.
    let changed = server.patch("/api/v1/namespaces/default", "merge", &label("restricted")).await;
    changed.expect(200);
    let warnings: Vec<&str> =
        changed.headers.get_all("warning").iter().filter_map(|value| value.to_str().ok()).collect();
    assert_eq!(
        warnings,
        [
            r#"299 - "existing pods in namespace \"default\" violate the new PodSecurity enforce level \"restricted:latest\"""#,
            r#"299 - "old: allowPrivilegeEscalation != false, unrestricted capabilities, runAsNonRoot != true, seccompProfile""#,
        ]
    );
    assert_eq!(
        message(&server.post(PODS, &pod("new")).await, 403),
        "pods \"new\" is forbidden: violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false (container \"c\" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \"c\" must set securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or container \"c\" must set securityContext.runAsNonRoot=true), seccompProfile (pod or container \"c\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
    );
    // A Deployment is made, with a warning: its pods will be refused.
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
            "metadata": {"labels": {"a": "b"}}, "spec": pod("x")["spec"],
        }},
    });
    let made = server.post("/apis/apps/v1/namespaces/default/deployments", &deployment).await;
    made.expect(201);
    assert!(
        made.header("warning").starts_with(r#"299 - "would violate PodSecurity \"restricted:latest\": "#),
        "{made:?}"
    );
}

#[tokio::test]
async fn users_namespaces_and_runtime_classes_are_exempt_from_levels_as_configured() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("admission.yaml");
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration",
        "plugins": [{"name": "PodSecurity", "configuration": {
            "apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration",
            "defaults": {"enforce": "restricted", "enforce-version": "latest"},
            "exemptions": {"usernames": ["operator"], "namespaces": ["trusted"], "runtimeClasses": ["sandboxed"]},
        }}],
    });
    std::fs::write(&file, configuration.to_string()).expect("written");
    let server = TestServer::start_with(|config| config.admission_configuration = Some(file)).await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "trusted"}});
    server.post("/api/v1/namespaces", &namespace).await.expect(201);
    let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "sandboxed"}, "handler": "h"});
    server.post("/apis/node.k8s.io/v1/runtimeclasses", &class).await.expect(201);

    // The defaults hold where nobody is exempt.
    assert!(
        message(&server.post(PODS, &pod("a")).await, 403)
            .contains("violates PodSecurity \"restricted:latest\"")
    );
    server.post("/api/v1/namespaces/trusted/pods", &pod("a")).await.expect(201);
    let mut sandboxed = pod("b");
    sandboxed["spec"]["runtimeClassName"] = "sandboxed".into();
    server.post(PODS, &sandboxed).await.expect(201);
    let operator = server.user("operator", &["system:masters"]);
    let headers = [("content-type", "application/json")];
    let body = pod("c").to_string().into_bytes();
    ferry_testkit::send(&operator, http::Method::POST, PODS, &headers, body).await.expect(201);
    let other = server.user("other", &["system:masters"]);
    let body = pod("d").to_string().into_bytes();
    ferry_testkit::send(&other, http::Method::POST, PODS, &headers, body).await.expect(403);
}

#[tokio::test]
async fn signers_are_acted_for_by_those_who_may() {
    let server = TestServer::start().await;
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "root");
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
    let key = rcgen::KeyPair::generate().expect("a key");
    let pem = params.serialize_request(&key).expect("a request").pem().expect("PEM");
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let request = |signer: &str| {
        json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "c"},
            "spec": {
                "signerName": signer, "usages": ["client auth"],
                "request": base64::Engine::encode(&base64::prelude::BASE64_STANDARD, &pem),
            },
        })
    };
    let refused = server.post(requests, &request("kubernetes.io/kube-apiserver-client")).await;
    assert_eq!(
        message(&refused, 403),
        "certificatesigningrequests.certificates.k8s.io \"c\" is forbidden: use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"
    );
    server.post(requests, &request("example.com/own")).await.expect(201);

    // Eve may approve, but not for this signer.
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = |rules: Value| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "approver"}, "rules": rules});
    let approve = json!({
        "apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests", "certificatesigningrequests/approval"],
        "verbs": ["get", "update", "patch"],
    });
    server.post(&format!("{rbac}/clusterroles"), &role(json!([approve]))).await.expect(201);
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "approver"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "approver"},
        "subjects": [{"kind": "User", "name": "eve", "apiGroup": "rbac.authorization.k8s.io"}],
    });
    server.post(&format!("{rbac}/clusterrolebindings"), &binding).await.expect(201);
    let eve = server.user("eve", &["system:authenticated"]);
    let approved = json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "R"}]}});
    let approve_it = || {
        let headers = [("content-type", "application/merge-patch+json")];
        let path = format!("{requests}/c/approval");
        let (eve, body) = (eve.clone(), approved.to_string().into_bytes());
        async move { ferry_testkit::send(&eve, http::Method::PATCH, &path, &headers, body).await }
    };
    assert_eq!(
        message(&approve_it().await, 403),
        "certificatesigningrequests.certificates.k8s.io \"c\" is forbidden: user not permitted to approve requests with signerName \"example.com/own\""
    );
    let signers = json!({"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "resourceNames": ["example.com/*"], "verbs": ["approve"]});
    server.put(&format!("{rbac}/clusterroles/approver"), &role(json!([approve, signers]))).await.expect(200);
    approve_it().await.expect(200);
}

/// A claim that the scheduler makes for a pod costs what the pod was not charged for already.
#[tokio::test]
async fn devices_are_charged_to_the_extended_resources_of_their_class() {
    let server = TestServer::start().await;
    let class = |resource: &str| {
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"},
            "spec": {"extendedResourceName": resource}})
    };
    server.post("/apis/resource.k8s.io/v1/deviceclasses", &class("example.com/gpu")).await.expect(201);
    let (named, own) = ("requests.example.com/gpu", "requests.deviceclass.resource.kubernetes.io/gpu");
    let devices = "gpu.deviceclass.resource.k8s.io/devices";
    quota(&server, json!({"hard": {named: "5", own: "9", devices: "9"}})).await;
    let amounts = json!({"example.com/gpu": "2"});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}]},
    });
    let pod = server.post("/api/v1/namespaces/default/pods", &pod).await.expect(201);
    assert_eq!(used(&server).await, json!({named: "2", own: "0", devices: "0"}));

    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let claim = |name: &str, metadata: Value, count: i64| {
        let mut claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata,
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", "count": count}}]}},
        });
        claim["metadata"]["name"] = name.into();
        claim
    };
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["metadata"]["uid"], "controller": true}]);
    let of_pod = json!({
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}, "ownerReferences": owner,
    });
    server.post(claims, &claim("of-pod", of_pod.clone(), 3)).await.expect(201);
    assert_eq!(used(&server).await, json!({named: "3", own: "3", devices: "3"}));
    // the pod pays for one claim only
    let refused = message(&server.post(claims, &claim("second", of_pod, 3)).await, 403);
    assert!(
        refused.contains(&format!(
            "exceeded quota: q, requested: {named}=3, used: {named}=3, limited: {named}=5"
        )),
        "{refused}"
    );
    server.post(claims, &claim("own", json!({}), 2)).await.expect(201);
    assert_eq!(used(&server).await, json!({named: "5", own: "5", devices: "5"}));
}
