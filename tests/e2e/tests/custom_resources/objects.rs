//! Writes: objects are validated, pruned and defaulted by their schema, and have the subresources it gives them.

use http::Method;
use serde_json::{Value, json};

use super::server::{Server, causes};
use super::widgets::{NAME, WIDGETS, definition, red, widget};

#[tokio::test]
async fn objects_are_validated_pruned_and_defaulted() {
    let Some(server) = Server::start().await else { return };
    server.define(&definition()).await;
    let mut object = widget("a", json!({"color": "red", "unknown": 1, "free": {"anything": true}}));
    object["apart"] = json!({"x": 1});
    let created = server.post(WIDGETS, &object).await.expect(201);
    assert_eq!(created["spec"], json!({"color": "red", "size": 3, "free": {"anything": true}}));
    assert_eq!((&created["apart"], &created["metadata"]["generation"]), (&Value::Null, &json!(1)));
    assert_eq!(server.get(&format!("{WIDGETS}/a")).await.expect(200), created);

    // Every error at once, with upstream's words.
    let wrong = widget("b", json!({"color": "pink", "size": 0, "parts": [{"count": "two"}]}));
    let refused = server.post(WIDGETS, &wrong).await.expect(422);
    assert_eq!(refused["reason"], "Invalid");
    let mut told = causes(&refused);
    told.sort();
    let expected = [
        ("spec.color", r#"Unsupported value: "pink": supported values: "red", "green", "blue""#),
        (
            "spec.parts[0].count",
            r#"Invalid value: "string": spec.parts[0].count in body must be of type integer: "string""#,
        ),
        ("spec.parts[0].name", "Required value"),
        ("spec.size", "Invalid value: 0: spec.size in body should be greater than or equal to 1"),
    ];
    assert_eq!(told, expected.map(|(field, message)| (field.to_string(), message.to_string())));

    // What was wrong before an update stays where it is not touched.
    server
        .change(NAME, |it| {
            let spec = &mut it["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
            spec["properties"]["color"]["enum"] = json!(["green", "blue"]);
        })
        .await;
    server.until_refused(&red("c")).await;
    server.merge(&format!("{WIDGETS}/a"), &json!({"spec": {"size": 5}})).await.expect(200);
    server.merge(&format!("{WIDGETS}/a"), &json!({"spec": {"color": "black"}})).await.expect(422);

    for (what, code, answer) in [
        (
            "the kind",
            422,
            server
                .post(
                    WIDGETS,
                    &json!({"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": "a"}}),
                )
                .await,
        ),
        (
            "the version",
            400,
            server
                .post(
                    WIDGETS,
                    &json!({"apiVersion": "example.com/v2", "kind": "Widget", "metadata": {"name": "a"}}),
                )
                .await,
        ),
    ] {
        assert_eq!(answer.code, code, "{what} is another one: {}", answer.json());
    }
}

impl Server {
    /// A change of a definition takes effect a moment later: asks with a dry run until the object is refused.
    async fn until_refused(&self, object: &Value) {
        let path = format!("{WIDGETS}?dryRun=All");
        self.until_answer(Method::POST, &path, object, 422).await;
    }

    async fn until_answer(&self, method: Method, path: &str, object: &Value, code: u16) -> Value {
        let give_up = std::time::Instant::now() + super::server::PATIENCE;
        loop {
            let headers = [("content-type", "application/json")];
            let answer = self.send(method.clone(), path, &headers, object).await;
            if answer.code == code {
                return answer.json();
            }
            assert!(std::time::Instant::now() < give_up, "never {code}: {} {}", answer.code, answer.json());
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn a_default_that_came_later_shows_on_objects_that_were_there() {
    let Some(server) = Server::start().await else { return };
    server.define(&definition()).await;
    server.post(WIDGETS, &red("a")).await.expect(201);
    server
        .change(NAME, |it| {
            let spec = &mut it["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
            spec["properties"]["shape"] = json!({"type": "string", "default": "round"});
        })
        .await;
    let one = format!("{WIDGETS}/a");
    server.until(&one, |answer| answer.json()["spec"]["shape"] == "round").await;
    let listed = server.get(WIDGETS).await.expect(200);
    assert_eq!(listed["items"][0]["spec"]["shape"], "round");
    // It is stored by the next write only; that a read showed it changes no revision.
    let before = server.get(&one).await.expect(200);
    let patched = server.merge(&one, &json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    assert_eq!(patched["spec"]["shape"], "round");
    assert_eq!(patched["metadata"]["generation"], before["metadata"]["generation"], "labels are no change");
}

#[tokio::test]
async fn unknown_fields_are_refused_told_or_ignored_as_the_client_likes() {
    let Some(server) = Server::start().await else { return };
    server.define(&definition()).await;
    let object = widget("a", json!({"color": "red", "unknown": 1, "parts": [{"name": "a", "b": 1}]}));
    let strict = server.post(&format!("{WIDGETS}?fieldValidation=Strict"), &object).await.expect(400);
    let message = strict["message"].as_str().expect("words");
    for field in ["unknown field \"spec.unknown\"", "unknown field \"spec.parts[0].b\""] {
        assert!(message.contains(field), "{message}");
    }
    let warned = server.post(&format!("{WIDGETS}?fieldValidation=Warn&dryRun=All"), &object).await;
    assert_eq!(warned.code, 201);
    let warnings: Vec<&str> =
        warned.headers.get_all("warning").iter().filter_map(|value| value.to_str().ok()).collect();
    assert_eq!(
        warnings,
        [r#"299 - "unknown field \"spec.parts[0].b\"""#, r#"299 - "unknown field \"spec.unknown\"""#]
    );
    let ignored = server.post(&format!("{WIDGETS}?fieldValidation=Ignore&dryRun=All"), &object).await;
    assert_eq!((ignored.code, ignored.headers.get("warning")), (201, None));
    let twice = br#"{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"color":"red","color":"blue"}}"#;
    let headers = [("content-type", "application/json")];
    let path = format!("{WIDGETS}?fieldValidation=Strict");
    let answer = ferry_testkit::send(&server.client, Method::POST, &path, &headers, twice.to_vec()).await;
    let message = answer.expect(400)["message"].to_string();
    assert!(message.contains(r#"duplicate field \"spec.color\""#), "{message}");
    // Metadata is judged as strictly.
    let mut unknown_metadata = red("a");
    unknown_metadata["metadata"]["unknownMeta"] = "x".into();
    let strict = server.post(&path, &unknown_metadata).await.expect(400);
    assert!(
        strict["message"]
            .as_str()
            .is_some_and(|text| text.contains("unknown field \"metadata.unknownMeta\"")),
        "{strict}"
    );
}

#[tokio::test]
async fn status_and_scale_are_subresources_and_generation_counts_the_rest() {
    let Some(server) = Server::start().await else { return };
    server.define(&definition()).await;
    let mut object = widget("a", json!({"color": "red", "replicas": 2}));
    object["status"] = json!({"phase": "made up"});
    let created = server.post(WIDGETS, &object).await.expect(201);
    assert_eq!(created["status"], Value::Null, "a new object has no status");
    let one = format!("{WIDGETS}/a");
    let patch =
        json!({"spec": {"color": "blue"}, "status": {"phase": "Ready", "selector": "a=b", "replicas": 1}});
    let patched = server.merge(&format!("{one}/status"), &patch).await.expect(200);
    assert_eq!((&patched["spec"]["color"], &patched["status"]["phase"]), (&json!("red"), &json!("Ready")));
    assert_eq!(patched["metadata"]["generation"], 1);
    let patched = server.merge(&one, &patch).await.expect(200);
    assert_eq!((&patched["spec"]["color"], &patched["metadata"]["generation"]), (&json!("blue"), &json!(2)));
    let wrong = json!({"status": {"replicas": "many"}});
    server.merge(&format!("{one}/status"), &wrong).await.expect(422);
    let ignored = server.merge(&one, &json!({"status": {"phase": "other"}})).await.expect(200);
    assert_eq!(
        (&ignored["status"]["phase"], &ignored["metadata"]["generation"]),
        (&json!("Ready"), &json!(2))
    );

    let scale = server.get(&format!("{one}/scale")).await.expect(200);
    assert_eq!((&scale["kind"], &scale["apiVersion"]), (&json!("Scale"), &json!("autoscaling/v1")));
    assert_eq!(
        (&scale["spec"], &scale["status"]),
        (&json!({"replicas": 2}), &json!({"replicas": 1, "selector": "a=b"}))
    );
    let scaled = server.merge(&format!("{one}/scale"), &json!({"spec": {"replicas": 5}})).await.expect(200);
    assert_eq!(scaled["spec"]["replicas"], 5);
    let now = server.get(&one).await.expect(200);
    assert_eq!((&now["spec"]["replicas"], &now["metadata"]["generation"]), (&json!(5), &json!(3)));
    server.merge(&format!("{one}/scale"), &json!({"spec": {"replicas": -1}})).await.expect(422);
    let mut of_another = server.get(&format!("{one}/scale")).await.expect(200);
    of_another["metadata"]["uid"] = "another".into();
    of_another["metadata"]["resourceVersion"] = Value::Null;
    let refused = server.put(&format!("{one}/scale"), &of_another).await.expect(409);
    assert!(refused["message"].as_str().is_some_and(|text| text.contains("UID in precondition: another")));

    // Who never said how many has no scale to show; a write makes one.
    server.post(WIDGETS, &red("b")).await.expect(201);
    let scale = format!("{WIDGETS}/b/scale");
    let refused = server.get(&scale).await.expect(500);
    assert_eq!(
        (&refused["reason"], &refused["message"]),
        (
            &json!("InternalError"),
            &json!(r#"Internal error occurred: the spec replicas field ".spec.replicas" does not exist"#)
        )
    );
    server.merge(&scale, &json!({"spec": {"replicas": 2}})).await.expect(200);
    assert_eq!(server.get(&scale).await.expect(200)["spec"]["replicas"], 2);
}

#[tokio::test]
async fn a_status_without_its_subresource_is_a_field_like_any_other() {
    let Some(server) = Server::start().await else { return };
    let mut definition = definition();
    definition["spec"]["versions"][0]["subresources"] = Value::Null;
    server.define(&definition).await;
    let mut object = red("a");
    object["status"] = json!({"phase": "mine"});
    assert_eq!(server.post(WIDGETS, &object).await.expect(201)["status"]["phase"], "mine");
    let one = format!("{WIDGETS}/a");
    let patched = server.merge(&one, &json!({"status": {"phase": "other"}})).await.expect(200);
    assert_eq!(
        (&patched["status"]["phase"], &patched["metadata"]["generation"]),
        (&json!("other"), &json!(2))
    );
    server.get(&format!("{one}/status")).await.expect(404);
    server.get(&format!("{one}/scale")).await.expect(404);
}

#[tokio::test]
async fn fields_are_owned_and_lists_merged_by_their_keys() {
    let Some(server) = Server::start().await else { return };
    server.define(&definition()).await;
    let one = format!("{WIDGETS}/a");
    let mine = widget("a", json!({"color": "red", "parts": [{"name": "x", "count": 1}]}));
    let applied = server.apply(&format!("{one}?fieldManager=me"), &mine).await.expect(201);
    assert_eq!(applied["metadata"]["managedFields"][0]["manager"], "me");
    let theirs = widget("a", json!({"color": "red", "parts": [{"name": "y", "count": 2}]}));
    let merged = server.apply(&format!("{one}?fieldManager=them"), &theirs).await.expect(200);
    assert_eq!(merged["spec"]["parts"], json!([{"name": "x", "count": 1}, {"name": "y", "count": 2}]));
    let other = widget("a", json!({"color": "blue", "parts": [{"name": "x", "count": 7}]}));
    let conflict = server.apply(&format!("{one}?fieldManager=them"), &other).await.expect(409);
    let fields: Vec<String> = super::server::causes(&conflict).into_iter().map(|(field, _)| field).collect();
    assert_eq!(fields, [".spec.color", ".spec.parts[name=\"x\"].count"]);
    let forced = server.apply(&format!("{one}?fieldManager=them&force=true"), &other).await.expect(200);
    assert_eq!(forced["spec"]["parts"], json!([{"name": "x", "count": 7}]));
    // What nobody wants any more goes.
    let nothing = widget("a", json!({"color": "blue"}));
    let left = server.apply(&format!("{one}?fieldManager=them"), &nothing).await.expect(200);
    assert_eq!(left["spec"]["parts"], json!([{"name": "x"}]), "the first manager still has its key");
    let twice = widget("a", json!({"color": "blue", "parts": [{"name": "x"}, {"name": "x"}]}));
    let refused = server.apply(&format!("{one}?fieldManager=them"), &twice).await;
    assert!(refused.code >= 400, "{}", refused.json());
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let Some(server) = Server::start().await else { return };
    server.define(&definition()).await;
    let made = server.post(&format!("{WIDGETS}?dryRun=All"), &red("a")).await.expect(201);
    assert_eq!(made["spec"]["size"], 3);
    server.get(&format!("{WIDGETS}/a")).await.expect(404);
    let created = server.post(WIDGETS, &red("a")).await.expect(201);
    let one = format!("{WIDGETS}/a");
    server.merge(&format!("{one}?dryRun=All"), &json!({"spec": {"size": 9}})).await.expect(200);
    server.delete(&format!("{one}?dryRun=All")).await.expect(200);
    assert_eq!(server.get(&one).await.expect(200), created);
}

#[tokio::test]
async fn rights_are_asked_for_custom_resources_by_name() {
    let Some(server) = Server::start().await else { return };
    server.define(&definition()).await;
    server.post(WIDGETS, &red("a")).await.expect(201);
    let ask = |method: Method, path: String, body: Value| {
        let server = &server;
        async move {
            let headers = [("impersonate-user", "jane"), ("content-type", "application/merge-patch+json")];
            server.send(method, &path, &headers, &body).await
        }
    };
    let one = format!("{WIDGETS}/a");
    let refused = ask(Method::GET, one.clone(), Value::Null).await.expect(403);
    assert_eq!(
        refused["message"],
        r#"widgets.example.com "a" is forbidden: User "jane" cannot get resource "widgets" in API group "example.com" in the namespace "default""#
    );
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "painter"},
        "rules": [
            {"apiGroups": ["example.com"], "resources": ["widgets"], "verbs": ["get", "list"]},
            {"apiGroups": ["example.com"], "resources": ["widgets/status"], "verbs": ["patch"]},
        ],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "painter"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "painter"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "jane"}],
    });
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    server.post(&format!("{rbac}/roles"), &role).await.expect(201);
    server.post(&format!("{rbac}/rolebindings"), &binding).await.expect(201);
    let give_up = std::time::Instant::now() + super::server::PATIENCE;
    while ask(Method::GET, one.clone(), Value::Null).await.code != 200 {
        assert!(std::time::Instant::now() < give_up, "never allowed");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    ask(Method::GET, WIDGETS.to_string(), Value::Null).await.expect(200);
    ask(Method::PATCH, one.clone(), json!({"spec": {"size": 4}})).await.expect(403);
    ask(Method::PATCH, format!("{one}/status"), json!({"status": {"phase": "Ready"}})).await.expect(200);
}

#[tokio::test]
async fn rules_in_cel_judge_definitions_and_objects() {
    let Some(server) = Server::start().await else { return };
    let with_rule = |rule: Value| {
        let mut definition = definition();
        let spec = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        spec["x-kubernetes-validations"] = json!([rule]);
        definition
    };
    for (rule, why) in [("self.none > 1", "undefined field 'none'"), ("self.size >", "Syntax error")] {
        let refused =
            server.post(super::server::DEFINITIONS, &with_rule(json!({"rule": rule}))).await.expect(422);
        let (field, message) = &causes(&refused)[0];
        assert_eq!(
            field,
            "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule"
        );
        assert!(message.contains(why), "{message}");
    }
    server.define(&with_rule(json!({"rule": "self.size >= oldSelf.size", "message": "may only grow"}))).await;
    server.post(WIDGETS, &widget("a", json!({"color": "red", "size": 5}))).await.expect(201);
    let one = format!("{WIDGETS}/a");
    server.merge(&one, &json!({"spec": {"size": 6}})).await.expect(200);
    let refused = server.merge(&one, &json!({"spec": {"size": 2}})).await.expect(422);
    assert_eq!(causes(&refused), [("spec".to_string(), "Invalid value: may only grow".to_string())]);
}

#[tokio::test]
async fn an_apply_names_only_what_the_schema_has() {
    let Some(server) = Server::start().await else { return };
    let mut definition = definition();
    let spec = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    spec["properties"]["template"] = json!({
        "type": "object", "x-kubernetes-embedded-resource": true,
        "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string"}}}, "spec": {"type": "object"}},
    });
    server.define(&definition).await;
    let path = format!("{WIDGETS}/a?fieldManager=me&fieldValidation=Strict");
    let mut root = red("a");
    root["unknownField"] = "unknown".into();
    let mut nested = red("a");
    nested["metadata"]["unknownMeta"] = "unknown".into();
    nested["spec"]["template"] = json!({"apiVersion": "foo/v1", "kind": "Sub", "metadata": {"unknownSubMeta": "unknown", "name": "b"}});
    for (object, fields) in [
        (root, &[".unknownField"][..]),
        (nested, &[".metadata.unknownMeta", ".spec.template.metadata.unknownSubMeta"]),
    ] {
        let refused = server.apply(&path, &object).await;
        let message = refused.json()["message"].to_string();
        assert!(refused.code >= 400, "{message}");
        let told = |field: &&str| message.contains(&format!("{field}: field not declared in schema"));
        assert!(fields.iter().any(told), "{message}");
    }
    server.apply(&path, &red("a")).await.expect(201);
}
