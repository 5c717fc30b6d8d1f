//! Definitions: which are refused, who gets a name, and what nobody may take.

use serde_json::{Value, json};

use super::server::{DEFINITIONS, Server, causes, condition, names};
use super::widgets::{NAME, definition, definition_of, red, version};

#[tokio::test]
async fn all_errors_of_a_definition_are_reported_together() {
    let Some(server) = Server::start().await else { return };
    let mut wrong = definition();
    wrong["metadata"]["name"] = "gadgets.example.com".into();
    wrong["spec"]["scope"] = "Everywhere".into();
    wrong["spec"]["versions"][0]["storage"] = false.into();
    wrong["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["color"]
        ["type"] = "colour".into();
    let refused = server.post(DEFINITIONS, &wrong).await.expect(422);
    let told: Vec<String> = causes(&refused).into_iter().map(|(field, _)| field).collect();
    for field in [
        "metadata.name",
        "spec.scope",
        "spec.versions",
        "spec.validation.openAPIV3Schema.properties[spec].properties[color].type",
    ] {
        assert!(told.iter().any(|found| found == field), "{field} is missing: {refused:#}");
    }
    let mut unknown = definition();
    unknown["spec"]["nonsense"] = 1.into();
    let refused = server.post(&format!("{DEFINITIONS}?fieldValidation=Strict"), &unknown).await.expect(400);
    let message = refused["message"].to_string();
    assert!(message.contains("spec.nonsense"), "{message}");
    // Formats that nobody knows are allowed, and told of.
    let mut odd = definition();
    odd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["color"]["format"] =
        "colour".into();
    let answer = server.post(DEFINITIONS, &odd).await;
    assert_eq!((answer.code, answer.header("warning")), (201, r#"299 - "unrecognized format \"colour\"""#));
}

#[tokio::test]
async fn served_names_and_stored_versions_cannot_change() {
    let Some(server) = Server::start().await else { return };
    let mut definition = server.define(&definition()).await;
    let path = format!("{DEFINITIONS}/{NAME}");
    definition["spec"]["names"]["kind"] = "Gadget".into();
    definition["spec"]["scope"] = "Cluster".into();
    let refused = server.put(&path, &definition).await.expect(422);
    let mut fields: Vec<String> = causes(&refused).into_iter().map(|(field, _)| field).collect();
    fields.sort();
    assert_eq!(fields, ["spec.names.kind", "spec.scope"]);
    let removed = json!({"spec": {"versions": [version("v2", true)]}});
    let refused = server.merge(&path, &removed).await.expect(422);
    assert_eq!(causes(&refused)[0].0, "status.storedVersions[0]");
    // Its status is the server's: a client's is not taken from the main resource.
    let ignored = server.merge(&path, &json!({"status": {"storedVersions": ["v9"]}})).await.expect(200);
    assert_eq!(ignored["status"]["storedVersions"], json!(["v1"]));
    // Through the status subresource it is, and the spec is not.
    let patch =
        json!({"spec": {"scope": "Cluster"}, "status": {"conditions": [{"type": "Mine", "status": "True"}]}});
    let patched = server.merge(&format!("{path}/status"), &patch).await.expect(200);
    assert_eq!(patched["spec"]["scope"], "Namespaced");
    assert_eq!(condition(&patched, "Mine").0, "True");
    assert_eq!(patched["metadata"]["generation"], 1);
    // What the server says of it comes back, and the foreign condition stays; it was served all the time.
    server.get(super::widgets::WIDGETS).await.expect(200);
    let settled = server.established(NAME).await;
    assert_eq!(condition(&settled, "Mine").0, "True");
    let headers = [("content-type", "application/json-patch+json")];
    let patch = json!([{"op": "add", "path": "/status/conditions", "value": [{"message": "patched"}]}]);
    let patched =
        server.send(http::Method::PATCH, &format!("{path}/status"), &headers, &patch).await.expect(200);
    assert_eq!(patched["status"]["conditions"][0]["message"], "patched");
    server.established(NAME).await;
}

#[tokio::test]
async fn a_name_is_given_once_and_given_on_when_it_is_free() {
    let Some(server) = Server::start().await else { return };
    server.define(&definition()).await;
    let mut rival = definition_of("gadgets", "Widget", json!([version("v1", true)]));
    rival["spec"]["names"]["singular"] = "gadget".into();
    rival["spec"]["names"]["listKind"] = "GadgetList".into();
    server.post(DEFINITIONS, &rival).await.expect(201);
    let name = "gadgets.example.com";
    let refused = server.definition_until(name, |it| !condition(it, "NamesAccepted").0.is_empty()).await;
    assert_eq!(condition(&refused, "NamesAccepted"), ("False", "KindConflict"));
    assert_eq!(condition(&refused, "Established"), ("False", "NotAccepted"));
    assert_eq!(refused["status"]["acceptedNames"]["plural"], "gadgets");
    assert_eq!(refused["status"]["acceptedNames"]["kind"], "");
    assert_eq!(server.get("/apis/example.com/v1/gadgets").await.code, 404);
    server.delete(&format!("{DEFINITIONS}/{NAME}")).await.expect(200);
    server.established(name).await;
    server.get("/apis/example.com/v1/gadgets").await.expect(200);
}

#[tokio::test]
async fn of_many_definitions_that_come_at_once_one_gets_the_name() {
    let Some(server) = Server::start().await else { return };
    let plurals = ["as", "bs", "cs", "ds", "es", "fs"];
    let rivals = plurals.map(|plural| {
        let mut rival = definition_of(plural, "Widget", json!([version("v1", true)]));
        rival["spec"]["names"]["singular"] = format!("{plural}x").into();
        rival["spec"]["names"]["listKind"] = format!("{}List", plural.to_uppercase()).into();
        rival
    });
    let posts = rivals.iter().map(|rival| server.post(DEFINITIONS, rival));
    for answer in futures::future::join_all(posts).await {
        answer.expect(201);
    }
    let mut established = 0;
    for plural in plurals {
        let name = format!("{plural}.example.com");
        let settled = server.definition_until(&name, |it| !condition(it, "Established").0.is_empty()).await;
        established += usize::from(condition(&settled, "Established").0 == "True");
    }
    assert_eq!(established, 1);
}

fn in_a_builtin_group(plural: &str, kind: &str, versions: Value) -> Value {
    let mut definition = definition_of(plural, kind, versions);
    definition["metadata"]["name"] = format!("{plural}.networking.k8s.io").into();
    definition["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "unapproved, for tests"});
    definition["spec"]["group"] = "networking.k8s.io".into();
    definition
}

#[tokio::test]
async fn a_definition_cannot_replace_a_built_in_kind() {
    let Some(server) = Server::start().await else { return };
    let ingresses = "/apis/networking.k8s.io/v1/namespaces/default/ingresses";
    let ingress = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "a"},
        "spec": {"defaultBackend": {"service": {"name": "a", "port": {"number": 80}}}}});
    let created = server.post(ingresses, &ingress).await.expect(201);

    let simple = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
    };
    let taken = in_a_builtin_group("ingresses", "Mine", json!([simple("v1", true), simple("v7", false)]));
    server.post(DEFINITIONS, &taken).await.expect(201);
    let name = "ingresses.networking.k8s.io";
    let refused = server.definition_until(name, |it| !condition(it, "NamesAccepted").0.is_empty()).await;
    assert_eq!(condition(&refused, "NamesAccepted"), ("False", "PluralConflict"));
    server.get("/apis/networking.k8s.io/v7").await.expect(404);
    server.delete(&format!("{DEFINITIONS}/{name}")).await.expect(200);
    server.until(&format!("{DEFINITIONS}/{name}"), |answer| answer.code == 404).await;
    assert_eq!(server.get(&format!("{ingresses}/a")).await.expect(200), created, "the built-in ones stay");

    // A version that built-in kinds are in is theirs alone; another one of the group is not.
    let beside = in_a_builtin_group("gadgets", "Gadget", json!([simple("v1", true), simple("v7", false)]));
    server.define(&beside).await;
    let gadgets = "/apis/networking.k8s.io/v7/namespaces/default/gadgets";
    let gadget = json!({"apiVersion": "networking.k8s.io/v7", "kind": "Gadget", "metadata": {"name": "a"}});
    server.post(gadgets, &gadget).await.expect(201);
    server.get("/apis/networking.k8s.io/v1/gadgets").await.expect(404);
    let group = server.get("/apis/networking.k8s.io").await.expect(200);
    assert_eq!(group["preferredVersion"]["version"], "v1", "{group}");
    assert_eq!(names(&server.get(ingresses).await.expect(200)), ["a"]);
    let name = "gadgets.networking.k8s.io";
    server.delete(&format!("{DEFINITIONS}/{name}")).await.expect(200);
    server.until(&format!("{DEFINITIONS}/{name}"), |answer| answer.code == 404).await;
    server.until("/apis/networking.k8s.io/v7", |answer| answer.code == 404).await;
    assert_eq!(names(&server.get(ingresses).await.expect(200)), ["a"]);
    let approval = {
        let mut unapproved = beside.clone();
        unapproved["metadata"]["annotations"] = Value::Null;
        server.post(DEFINITIONS, &unapproved).await.expect(422)
    };
    assert_eq!(causes(&approval)[0].0, "metadata.annotations[api-approved.kubernetes.io]");
}

#[tokio::test]
async fn definitions_are_listed_selected_patched_and_deleted_together() {
    let Some(server) = Server::start().await else { return };
    for (plural, kind) in [("as", "A"), ("bs", "B"), ("cs", "C")] {
        let mut definition = definition_of(plural, kind, json!([version("v1", true)]));
        definition["metadata"]["labels"] = json!({"of": if plural == "cs" { "two" } else { "one" }});
        server.define(&definition).await;
    }
    let ones = format!("{DEFINITIONS}?labelSelector=of%3Done");
    assert_eq!(names(&server.get(&ones).await.expect(200)), ["as.example.com", "bs.example.com"]);
    server.delete(&ones).await.expect(200);
    server.until(&ones, |answer| names(&answer.json()).is_empty()).await;
    assert_eq!(names(&server.get(DEFINITIONS).await.expect(200)), ["cs.example.com"]);
    assert_eq!(server.get("/apis/example.com/v1/as").await.code, 404);
    let object = json!({"apiVersion": "example.com/v1", "kind": "C", "metadata": {"name": "a"}, "spec": red("a")["spec"]});
    server.post("/apis/example.com/v1/namespaces/default/cs", &object).await.expect(201);
}
