//! ValidatingAdmissionPolicies against the real server: what they judge, with which parameters, and what
//! their bindings make of it.

use ferry_testkit::TestServer;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";

fn config_map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": value}})
}

/// A policy about config maps; `spec` adds to its spec or replaces parts of it.
async fn policy(server: &TestServer, name: &str, spec: Value) {
    let mut whole = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]},
        ]},
    });
    for (field, value) in spec.as_object().expect("a spec") {
        whole[field] = value.clone();
    }
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name}, "spec": whole});
    server.post(POLICIES, &policy).await.expect(201);
}

async fn bind(server: &TestServer, name: &str, spec: Value) {
    let mut whole = json!({"policyName": name, "validationActions": ["Deny"]});
    for (field, value) in spec.as_object().expect("a spec") {
        whole[field] = value.clone();
    }
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": format!("{name}-binding")}, "spec": whole});
    server.post(BINDINGS, &binding).await.expect(201);
}

#[tokio::test]
async fn a_policy_denies_in_its_own_words_once_it_is_bound() {
    let server = TestServer::start().await;
    policy(
        &server,
        "short",
        json!({
            "variables": [
                {"name": "value", "expression": "object.data.k"},
                {"name": "length", "expression": "variables.value.size()"},
            ],
            "validations": [
                {"expression": "variables.length < 5", "messageExpression": "'value has ' + string(variables.length) + ' characters'"},
                {"expression": "variables.value != 'no'", "message": "not that one", "reason": "Forbidden"},
                {"expression": "!has(object.data.forbidden)"},
            ],
        }),
    )
    .await;
    server.post(MAPS, &config_map("before", "long enough")).await.expect(201);
    bind(&server, "short", json!({})).await;
    server.post(MAPS, &config_map("good", "yes")).await.expect(201);
    let refused = server.post(MAPS, &config_map("long", "too long")).await.expect(422);
    assert_eq!(
        refused["message"],
        "configmaps \"long\" is forbidden: ValidatingAdmissionPolicy 'short' with binding 'short-binding' denied request: value has 8 characters"
    );
    assert_eq!(refused["reason"], "Invalid");
    let refused = server.post(MAPS, &config_map("no", "no")).await.expect(403);
    assert!(refused["message"].as_str().expect("a message").ends_with("denied request: not that one"));
    let refused = server
        .patch(&format!("{MAPS}/good"), "merge", &json!({"data": {"forbidden": "x"}}))
        .await
        .expect(422);
    assert!(
        refused["message"]
            .as_str()
            .expect("a message")
            .ends_with("failed expression: !has(object.data.forbidden)")
    );
}

#[tokio::test]
async fn bindings_warn_narrow_and_bring_parameters() {
    let server = TestServer::start().await;
    server.post(MAPS, &config_map("limits", "3")).await.expect(201);
    policy(
        &server,
        "limited",
        json!({
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConditions": [{"name": "not-limits", "expression": "object.metadata.name != 'limits'"}],
            "validations": [{"expression": "object.data.k.size() <= int(params.data.k)"}],
        }),
    )
    .await;
    let reference = |name: &str, action: &str| json!({"name": name, "namespace": "default", "parameterNotFoundAction": action});
    bind(
        &server,
        "limited",
        json!({"paramRef": reference("limits", "Deny"), "validationActions": ["Warn", "Audit"]}),
    )
    .await;
    let warned = server.post(MAPS, &config_map("a", "1234")).await;
    assert!(
        warned.header("warning").contains("Validation failed for ValidatingAdmissionPolicy 'limited' with binding 'limited-binding': failed expression: object.data.k.size() <= int(params.data.k)"),
        "{}", warned.header("warning")
    );
    warned.expect(201);
    let one = format!("{BINDINGS}/limited-binding");
    server.patch(&one, "merge", &json!({"spec": {"validationActions": ["Deny"]}})).await.expect(200);
    server.post(MAPS, &config_map("b", "1234")).await.expect(422);
    server.post(MAPS, &config_map("b", "123")).await.expect(201);
    let selected =
        json!({"spec": {"matchResources": {"objectSelector": {"matchLabels": {"strict": "yes"}}}}});
    server.patch(&one, "merge", &selected).await.expect(200);
    server.post(MAPS, &config_map("c", "1234")).await.expect(201);
    server
        .patch(&one, "merge", &json!({"spec": {"matchResources": null, "paramRef": {"name": "missing"}}}))
        .await
        .expect(200);
    let refused = server.post(MAPS, &config_map("d", "1")).await.expect(422);
    assert!(
        refused["message"]
            .as_str()
            .expect("a message")
            .contains("no params found for policy binding with `Deny` parameterNotFoundAction"),
        "{refused}"
    );
    server
        .patch(&one, "merge", &json!({"spec": {"paramRef": {"parameterNotFoundAction": "Allow"}}}))
        .await
        .expect(200);
    server.post(MAPS, &config_map("d", "12345")).await.expect(201);
}

#[tokio::test]
async fn an_expression_that_fails_counts_as_the_policy_says() {
    let server = TestServer::start().await;
    policy(&server, "breaks", json!({"validations": [{"expression": "object.missing.field == 1"}]})).await;
    bind(&server, "breaks", json!({})).await;
    let refused = server.post(MAPS, &config_map("a", "1")).await.expect(422);
    assert!(
        refused["message"].as_str().expect("a message").ends_with(
            "denied request: expression 'object.missing.field == 1' resulted in error: no such key: missing"
        ),
        "{refused}"
    );
    server
        .patch(&format!("{POLICIES}/breaks"), "merge", &json!({"spec": {"failurePolicy": "Ignore"}}))
        .await
        .expect(200);
    server.post(MAPS, &config_map("a", "1")).await.expect(201);
    // Policies themselves can always be repaired.
    let everything = json!({"resourceRules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}]});
    policy(&server, "all", json!({"matchConstraints": everything, "validations": [{"expression": "false"}]}))
        .await;
    bind(&server, "all", json!({})).await;
    server.post(MAPS, &config_map("b", "1")).await.expect(422);
    server.delete(&format!("{MAPS}/a")).await.expect(422);
    server.delete(&format!("{BINDINGS}/all-binding")).await.expect(200);
    server.delete(&format!("{MAPS}/a")).await.expect(200);
}
