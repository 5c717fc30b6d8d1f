//! Several versions of a custom resource, without a webhook: one object, as each version sees it.

use serde_json::{Value, json};

use super::server::{Server, names};
use super::widgets::{NAME, WIDGETS, definition_of, red, version};

const IN_V2: &str = "/apis/example.com/v2/namespaces/default/widgets";

/// v2 knows a field that v1 does not, and has no size.
fn two_versions() -> Value {
    let mut v2 = version("v2", false);
    let spec = &mut v2["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    spec["shape"] = json!({"type": "string", "default": "round"});
    spec.as_object_mut().expect("fields").remove("size");
    v2["additionalPrinterColumns"] = json!([{"name": "Shape", "type": "string", "jsonPath": ".spec.shape"}]);
    v2["selectableFields"] = json!([{"jsonPath": ".spec.shape"}]);
    definition_of("widgets", "Widget", json!([version("v1", true), v2]))
}

#[tokio::test]
async fn an_object_is_shown_in_every_version_by_its_schema() {
    let Some(server) = Server::start().await else { return };
    server.define(&two_versions()).await;
    server.post(WIDGETS, &red("a")).await.expect(201);
    let seen = server.get(&format!("{IN_V2}/a")).await.expect(200);
    // Defaults are those of the stored version; v2's are set in what is written through it.
    assert_eq!((&seen["apiVersion"], &seen["spec"]), (&json!("example.com/v2"), &json!({"color": "red"})));
    // What the stored version does not know is not stored.
    let written = json!({"apiVersion": "example.com/v2", "kind": "Widget", "metadata": {"name": "b"}, "spec": {"color": "blue", "shape": "flat"}});
    server.post(IN_V2, &written).await.expect(201);
    let stored = server.get(&format!("{WIDGETS}/b")).await.expect(200);
    assert_eq!(stored["spec"], json!({"color": "blue", "size": 3}));
    assert_eq!(names(&server.get(IN_V2).await.expect(200)), ["a", "b"]);
    // Each version selects by its own fields.
    server.get(&format!("{IN_V2}?fieldSelector=spec.shape%3Dround")).await.expect(200);
    server.get(&format!("{IN_V2}?fieldSelector=spec.color%3Dred")).await.expect(400);
    server.get(&format!("{WIDGETS}?fieldSelector=spec.shape%3Dround")).await.expect(400);
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = server.send(http::Method::GET, IN_V2, &accept, &Value::Null).await.expect(200);
    assert_eq!(table["columnDefinitions"][1]["name"], "Shape");
    assert_eq!(table["rows"][0]["cells"][1], Value::Null);
    // A watch speaks the version that it asks for.
    let revision = server.get(IN_V2).await.expect(200)["metadata"]["resourceVersion"].to_string();
    server.merge(&format!("{WIDGETS}/a"), &json!({"spec": {"color": "green"}})).await.expect(200);
    let revision = revision.trim_matches('"');
    let events =
        server.watch(&format!("{IN_V2}?watch=true&resourceVersion={revision}&timeoutSeconds=1")).await;
    assert_eq!(events[0]["object"]["apiVersion"], "example.com/v2");
    // An apply in one version and one in the other are of the same object.
    let mine = json!({"apiVersion": "example.com/v2", "kind": "Widget", "metadata": {"name": "a"}, "spec": {"color": "blue"}});
    let applied = server.apply(&format!("{IN_V2}/a?fieldManager=me&force=true"), &mine).await.expect(200);
    assert_eq!(applied["spec"]["color"], "blue");
}

#[tokio::test]
async fn writes_are_validated_by_the_schema_of_their_version() {
    let Some(server) = Server::start().await else { return };
    let mut definition = two_versions();
    let spec = &mut definition["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    // Required in v2, unknown to the version that is stored.
    spec["required"] = json!(["shape"]);
    spec["properties"]["shape"] = json!({"type": "string"});
    server.define(&definition).await;
    let widget = |spec: Value| json!({"apiVersion": "example.com/v2", "kind": "Widget", "metadata": {"name": "a"}, "spec": spec});
    server.post(IN_V2, &widget(json!({"color": "red"}))).await.expect(422);
    server.post(IN_V2, &widget(json!({"color": "red", "shape": "flat"}))).await.expect(201);
    let path = format!("{IN_V2}/a");
    let mut seen = server.get(&path).await.expect(200);
    assert_eq!(seen["spec"], json!({"color": "red"}), "what the stored version does not know is gone");
    seen["spec"] = json!({"color": "green"});
    server.put(&path, &seen).await.expect(422);
    seen["spec"] = json!({"color": "green", "shape": "flat"});
    server.put(&path, &seen).await.expect(200);
    server.merge(&path, &json!({"spec": {"color": "blue"}})).await.expect(422);
    let applied = widget(json!({"color": "blue", "shape": "flat"}));
    server.apply(&format!("{path}?fieldManager=me&force=true"), &applied).await.expect(200);
    assert_eq!(server.get(&format!("{WIDGETS}/a")).await.expect(200)["spec"]["color"], "blue");
}

#[tokio::test]
async fn the_stored_version_may_move_while_objects_lie_in_the_old_one() {
    let Some(server) = Server::start().await else { return };
    server.define(&two_versions()).await;
    server.post(WIDGETS, &red("old")).await.expect(201);
    const RESOURCES: &str = "/apis/example.com/v2";
    let before = server.get(RESOURCES).await.expect(200)["resources"][0]["storageVersionHash"].clone();
    server
        .change(NAME, |it| {
            it["spec"]["versions"][0]["storage"] = false.into();
            it["spec"]["versions"][1]["storage"] = true.into();
        })
        .await;
    let moved = server.established(NAME).await;
    assert_eq!(moved["status"]["storedVersions"], json!(["v1", "v2"]));
    let written = json!({"apiVersion": "example.com/v2", "kind": "Widget", "metadata": {"name": "new"}, "spec": {"color": "blue", "shape": "flat"}});
    // The move takes effect a moment after it is written.
    server.until(RESOURCES, |answer| answer.json()["resources"][0]["storageVersionHash"] != before).await;
    server.post(IN_V2, &written).await.expect(201);
    let new = server.until(&format!("{IN_V2}/new"), |answer| answer.code == 200).await.expect(200);
    assert_eq!(new["spec"]["shape"], "flat", "{new}");
    let old = server.get(&format!("{WIDGETS}/old")).await.expect(200);
    assert_eq!((&old["apiVersion"], &old["spec"]["color"]), (&json!("example.com/v1"), &json!("red")));
    assert_eq!(names(&server.get(WIDGETS).await.expect(200)), ["new", "old"]);
    // A migration writes each object once, says so, and the old version may go.
    let path = format!("{IN_V2}/old");
    let mut old = server.get(&path).await.expect(200);
    old["metadata"]["labels"] = json!({"migrated": "yes"});
    server.put(&path, &old).await.expect(200);
    let definition = format!("{}/{NAME}", super::server::DEFINITIONS);
    server
        .merge(&format!("{definition}/status"), &json!({"status": {"storedVersions": ["v2"]}}))
        .await
        .expect(200);
    server
        .change(NAME, |it| {
            it["spec"]["versions"].as_array_mut().expect("versions").remove(0);
        })
        .await;
    server.until(WIDGETS, |answer| answer.code == 404).await;
    assert_eq!(names(&server.get(IN_V2).await.expect(200)), ["new", "old"]);
    assert_eq!(server.get(&path).await.expect(200)["metadata"]["labels"]["migrated"], "yes");
}

#[tokio::test]
async fn clients_of_a_deprecated_version_are_warned() {
    let Some(server) = Server::start().await else { return };
    let mut definition = two_versions();
    definition["spec"]["versions"][0]["deprecated"] = true.into();
    definition["spec"]["versions"][1]["deprecated"] = true.into();
    definition["spec"]["versions"][1]["deprecationWarning"] = "use something else".into();
    server.define(&definition).await;
    let answer = server.get(WIDGETS).await;
    assert_eq!(answer.header("warning"), r#"299 - "example.com/v1 Widget is deprecated""#);
    assert_eq!(server.post(WIDGETS, &red("a")).await.header("warning"), answer.header("warning"));
    assert_eq!(server.get(IN_V2).await.header("warning"), r#"299 - "use something else""#);
}
