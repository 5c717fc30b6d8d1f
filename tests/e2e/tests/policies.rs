//! ValidatingAdmissionPolicies against the real server: what they judge, with which parameters, and what
//! their bindings make of it.

use ferry_e2e::audited::AuditedServer;
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

#[tokio::test]
async fn parameters_are_selected_by_label_and_each_has_its_say() {
    let server = TestServer::start().await;
    let limit = |name: &str, value: &str, labels: Value| {
        let mut map = config_map(name, value);
        map["metadata"]["labels"] = labels;
        map
    };
    for (name, value) in [("wide", "5"), ("narrow", "3")] {
        server.post(MAPS, &limit(name, value, json!({"limits": "yes"}))).await.expect(201);
    }
    server.post(MAPS, &limit("other", "1", json!({}))).await.expect(201);
    policy(
        &server,
        "selected",
        json!({
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "validations": [{
                "expression": "object.data.k.size() <= int(params.data.k)",
                "messageExpression": "'more than ' + params.data.k",
            }],
        }),
    )
    .await;
    let reference = json!({"selector": {"matchLabels": {"limits": "yes"}}, "namespace": "default", "parameterNotFoundAction": "Deny"});
    bind(&server, "selected", json!({"paramRef": reference})).await;
    server.post(MAPS, &config_map("a", "123")).await.expect(201);
    let refused = server.post(MAPS, &config_map("b", "1234")).await.expect(422);
    assert!(refused["message"].as_str().is_some_and(|words| words.ends_with("more than 3")), "{refused}");
    // What is selected no more counts no more; nothing selected is nothing found.
    let unlabelled = json!({"metadata": {"labels": null}, "data": {"k": "1"}});
    server.patch(&format!("{MAPS}/narrow"), "merge", &unlabelled).await.expect(200);
    server.post(MAPS, &config_map("b", "1234")).await.expect(201);
    server.patch(&format!("{MAPS}/wide"), "merge", &unlabelled).await.expect(200);
    let refused = server.post(MAPS, &config_map("c", "1")).await.expect(422);
    assert!(
        refused["message"].as_str().is_some_and(|words| words.contains("no params found for policy binding")),
        "{refused}"
    );
}

#[tokio::test]
async fn the_audit_log_tells_what_policies_found() {
    let audited = AuditedServer::start("Metadata", |_| {}).await;
    let server = &audited.server;
    for value in ["3", "2"] {
        let mut map = config_map(&format!("limit-{value}"), value);
        map["metadata"]["labels"] = json!({"limits": "yes"});
        server.post(MAPS, &map).await.expect(201);
    }
    policy(
        server,
        "noted",
        json!({
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "validations": [{"expression": "object.data.k.size() <= int(params.data.k)", "message": "too long"}],
            "auditAnnotations": [
                {"key": "limit", "valueExpression": "'limit ' + params.data.k"},
                {"key": "silent", "valueExpression": "null"},
            ],
        }),
    )
    .await;
    let reference = json!({"selector": {"matchLabels": {"limits": "yes"}}, "namespace": "default", "parameterNotFoundAction": "Deny"});
    bind(server, "noted", json!({"paramRef": reference, "validationActions": ["Audit"]})).await;
    audited.ask("POST", MAPS, "judged", &config_map("a", "123")).await.expect(201);
    let annotations = audited.line("judged").await["annotations"].clone();
    assert_eq!(annotations["noted/limit"], "limit 2, limit 3");
    assert_eq!(annotations["noted/silent"], Value::Null);
    let key = "validation.policy.admission.k8s.io/validation_failure";
    let told: Value = serde_json::from_str(annotations[key].as_str().expect("a text")).expect("JSON");
    assert_eq!(
        told,
        json!([{"message": "too long", "policy": "noted", "binding": "noted-binding", "expressionIndex": 0,
            "validationActions": ["Audit"]}])
    );
}

const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
const MUTATING_BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings";

/// A policy that changes config maps, and its binding.
async fn mutate(server: &TestServer, name: &str, spec: Value, binding: Value) {
    let mut whole = json!({
        "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]},
        ]},
    });
    for (field, value) in spec.as_object().expect("a spec") {
        whole[field] = value.clone();
    }
    let object = |kind: &str, spec: &Value| json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    server.post(MUTATING, &object("MutatingAdmissionPolicy", &whole)).await.expect(201);
    let mut bound = json!({"policyName": name});
    for (field, value) in binding.as_object().expect("a spec") {
        bound[field] = value.clone();
    }
    server.post(MUTATING_BINDINGS, &object("MutatingAdmissionPolicyBinding", &bound)).await.expect(201);
}

fn apply(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

fn json_patch(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

#[tokio::test]
async fn a_policy_changes_an_object_by_configuration_and_by_patch() {
    let server = TestServer::start().await;
    let sidecar = "Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{
        containers: [Object.spec.template.spec.containers{name: 'sidecar', image: variables.image}]}}}}";
    let deployments = json!({"resourceRules": [
        {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["deployments"]},
    ]});
    mutate(
        &server,
        "sidecars",
        json!({
            "matchConstraints": deployments,
            "matchConditions": [{"name": "wanted", "expression": "object.metadata.name != 'plain'"}],
            "variables": [{"name": "image", "expression": "'proxy:' + string(object.spec.replicas)"}],
            "mutations": [
                apply(sidecar),
                json_patch("[JSONPatch{op: 'add', path: '/metadata/annotations', value: {'by': 'policy'}},
                    JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('example.com/x'),
                        value: string(object.spec.template.spec.containers.size())}]"),
            ],
        }),
        json!({}),
    )
    .await;
    let deployment = |name: &str| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": {"a": "b"}},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": {
                "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "app", "image": "app:1"}]}}}})
    };
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let made = server.post(path, &deployment("web")).await.expect(201);
    let containers = made["spec"]["template"]["spec"]["containers"].as_array().expect("containers");
    let names: Vec<(&Value, &Value)> = containers.iter().map(|one| (&one["name"], &one["image"])).collect();
    let expected = [(&json!("app"), &json!("app:1")), (&json!("sidecar"), &json!("proxy:2"))];
    assert!(names.len() == 2 && expected.iter().all(|one| names.contains(one)), "{names:?}");
    assert!(
        containers.iter().all(|one| one["terminationMessagePath"] == "/dev/termination-log"),
        "defaults are set"
    );
    assert_eq!(made["metadata"]["annotations"]["by"], "policy");
    assert_eq!(made["metadata"]["labels"]["example.com/x"], "2", "each sees what those before it did");
    let plain = server.post(path, &deployment("plain")).await.expect(201);
    assert_eq!(plain["spec"]["template"]["spec"]["containers"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_policy_takes_parameters_and_is_asked_again_when_others_changed_the_object() {
    let server = TestServer::start().await;
    let mut limits = config_map("limits", "from params");
    limits["metadata"]["labels"] = json!({"limits": "yes"});
    server.post(MAPS, &limits).await.expect(201);
    let count = |field: &str| {
        json_patch(&format!(
            "[JSONPatch{{op: 'add', path: '/data/{field}', value: (has(object.data.{field}) ? object.data.{field} : '') + '1'}}]"
        ))
    };
    mutate(
        &server,
        "a-again",
        json!({"mutations": [count("again")], "reinvocationPolicy": "IfNeeded"}),
        json!({}),
    )
    .await;
    mutate(&server, "b-once", json!({"mutations": [count("once")]}), json!({})).await;
    let reference = json!({"selector": {"matchLabels": {"limits": "yes"}}, "namespace": "default", "parameterNotFoundAction": "Deny"});
    mutate(
        &server,
        "c-params",
        json!({
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "mutations": [apply("Object{data: {'given': params.data.k}}")],
        }),
        json!({"paramRef": reference}),
    )
    .await;
    let made = server.post(MAPS, &config_map("a", "x")).await.expect(201);
    assert_eq!(made["data"], json!({"k": "x", "again": "11", "once": "1", "given": "from params"}));
}

#[tokio::test]
async fn a_policy_that_cannot_do_it_refuses_unless_it_is_to_be_ignored() {
    let server = TestServer::start().await;
    let deployments = json!({"resourceRules": [
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]},
    ]});
    // A list that is replaced in one piece would lose what is not said.
    let atomic = "Object{spec: Object.spec{containers: [Object.spec.containers{name: 'c', command: ['x']}]}}";
    mutate(
        &server,
        "atomic",
        json!({"matchConstraints": deployments, "mutations": [apply(atomic)]}),
        json!({}),
    )
    .await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let refused = server.post(pods, &pod).await.expect(403);
    assert_eq!(
        refused["message"],
        "policy 'atomic' with binding 'atomic' denied request: error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.containers[0].command"
    );
    assert_eq!(refused["reason"], "Invalid");
    let ignore = json!({"spec": {"failurePolicy": "Ignore"}});
    server.patch(&format!("{MUTATING}/atomic"), "merge", &ignore).await.expect(200);
    assert_eq!(server.post(pods, &pod).await.expect(201)["spec"]["containers"][0]["command"], Value::Null);
    // A patch that tests for something else does nothing.
    let test =
        "[JSONPatch{op: 'test', path: '/data/k', value: 'other'}, JSONPatch{op: 'remove', path: '/data/k'}]";
    mutate(&server, "tests", json!({"mutations": [json_patch(test)]}), json!({})).await;
    assert_eq!(server.post(MAPS, &config_map("a", "x")).await.expect(201)["data"]["k"], "x");
}
