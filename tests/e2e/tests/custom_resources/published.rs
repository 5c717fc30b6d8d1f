//! What clients learn of a custom resource: discovery, OpenAPI, and what kubectl makes of it.

use http::Method;
use serde_json::{Value, json};

use super::server::{DEFINITIONS, Server};
use super::widgets::{NAME, WIDGETS, definition, red};

#[tokio::test]
async fn a_definition_is_served_told_of_and_gone_when_it_is_deleted() {
    let Some(server) = Server::start().await else { return };
    let established = server.define(&definition()).await;
    assert_eq!(established["status"]["acceptedNames"]["listKind"], "WidgetList");
    assert_eq!(established["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(established["metadata"]["generation"], 1, "a status is no change");

    let group = server.get("/apis/example.com").await.expect(200);
    assert_eq!(group["preferredVersion"]["groupVersion"], "example.com/v1");
    let resources = server.get("/apis/example.com/v1").await.expect(200);
    let found: Vec<(&str, &str)> = resources["resources"]
        .as_array()
        .expect("resources")
        .iter()
        .map(|it| (it["name"].as_str().unwrap_or(""), it["kind"].as_str().unwrap_or("")))
        .collect();
    assert_eq!(found, [("widgets", "Widget"), ("widgets/status", "Widget"), ("widgets/scale", "Scale")]);
    let widgets = &resources["resources"][0];
    assert_eq!(
        (&widgets["shortNames"], &widgets["categories"], &widgets["singularName"]),
        (&json!(["wg"]), &json!(["all"]), &json!("widget"))
    );
    assert!(widgets["storageVersionHash"].as_str().is_some_and(|hash| !hash.is_empty()));
    let aggregated = [("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")];
    let groups = server.send(Method::GET, "/apis", &aggregated, &Value::Null).await.expect(200);
    let ours = groups["items"].as_array().expect("groups").iter();
    let ours: Vec<_> = ours.filter(|group| group["metadata"]["name"] == "example.com").collect();
    assert_eq!(ours.len(), 1);
    assert_eq!(ours[0]["versions"][0]["resources"][0]["resource"], "widgets");

    let v2 = server.get("/openapi/v2").await.expect(200);
    let published = &v2["definitions"]["com.example.v1.Widget"];
    assert_eq!(published["properties"]["spec"]["properties"]["color"]["description"], "Its color.");
    assert_eq!(
        published["x-kubernetes-group-version-kind"],
        json!([{"group": "example.com", "kind": "Widget", "version": "v1"}])
    );
    assert!(v2["paths"]["/apis/example.com/v1/namespaces/{namespace}/widgets/{name}"].is_object());
    let index = server.get("/openapi/v3").await.expect(200);
    let link = index["paths"]["apis/example.com/v1"]["serverRelativeURL"].as_str().expect("a link");
    let v3 = server.get(link).await.expect(200);
    assert_eq!(
        v3["components"]["schemas"]["com.example.v1.Widget"]["properties"]["spec"]["required"],
        json!(["color"])
    );
    assert!(v3["paths"]["/apis/example.com/v1/namespaces/{namespace}/widgets"].is_object());

    // A change is published, too.
    server
        .change(NAME, |it| {
            let schema = &mut it["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            schema["properties"]["spec"]["properties"]["shape"] =
                json!({"type": "string", "description": "Its shape."});
        })
        .await;
    server
        .until("/openapi/v2", |answer| {
            let spec = &answer.json()["definitions"]["com.example.v1.Widget"]["properties"]["spec"];
            spec["properties"]["shape"]["description"] == "Its shape."
        })
        .await;

    server.delete(&format!("{DEFINITIONS}/{NAME}")).await.expect(200);
    server.until(&format!("{DEFINITIONS}/{NAME}"), |answer| answer.code == 404).await;
    server.until("/apis/example.com", |answer| answer.code == 404).await;
    assert_eq!(server.get(WIDGETS).await.code, 404);
    let v2 = server.get("/openapi/v2").await.expect(200);
    assert_eq!(v2["definitions"]["com.example.v1.Widget"], Value::Null);
    let index = server.get("/openapi/v3").await.expect(200);
    assert_eq!(index["paths"]["apis/example.com/v1"], Value::Null);
}

#[tokio::test]
async fn unspecified_schemas_are_published_as_open() {
    let Some(server) = Server::start().await else { return };
    let mut definition = definition();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"spec": {"type": "object", "properties": {"color": {"type": "string"}}}}});
    server.define(&definition).await;
    let kept = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "anything": {"x": [1, "2"]}});
    let created = server.post(WIDGETS, &kept).await.expect(201);
    assert_eq!(created["anything"], kept["anything"]);
    let v2 = server.get("/openapi/v2").await.expect(200);
    let published = &v2["definitions"]["com.example.v1.Widget"];
    assert_eq!(published["type"], "object");
    assert_eq!(published["properties"], Value::Null, "clients that judge by v2 must let everything pass");
}

#[tokio::test]
async fn versions_that_are_not_served_are_not_told_of() {
    let Some(server) = Server::start().await else { return };
    let mut definition = definition();
    let versions = definition["spec"]["versions"].as_array_mut().expect("versions");
    versions.push(super::widgets::version("v2", false));
    server.define(&definition).await;
    server
        .until("/openapi/v2", |answer| answer.json()["definitions"]["com.example.v2.Widget"].is_object())
        .await;
    // A version may get another name as long as nothing is stored in it.
    server.change(NAME, |it| it["spec"]["versions"][1]["name"] = "v3".into()).await;
    server
        .until("/openapi/v2", |answer| answer.json()["definitions"]["com.example.v3.Widget"].is_object())
        .await;
    assert_eq!(server.get("/apis/example.com/v2").await.code, 404);
    server.change(NAME, |it| it["spec"]["versions"][1]["name"] = "v2".into()).await;
    server.until("/apis/example.com/v2", |answer| answer.code == 200).await;
    server.change(NAME, |it| it["spec"]["versions"][1]["served"] = false.into()).await;
    server.until("/apis/example.com/v2", |answer| answer.code == 404).await;
    let v2 = server.get("/openapi/v2").await.expect(200);
    assert_eq!(v2["definitions"]["com.example.v2.Widget"], Value::Null);
    assert!(v2["definitions"]["com.example.v1.Widget"].is_object());
    assert_eq!(server.get("/apis/example.com/v2/widgets").await.code, 404);
}

#[tokio::test]
async fn kubectl_works_with_custom_resources_as_with_built_in_ones() {
    let Some(server) = Server::start().await else { return };
    server.define(&definition()).await;
    let file = server.process.directory().join("widget.yaml");
    std::fs::write(&file, red("a").to_string()).expect("a file");
    let file = file.to_str().expect("a path");
    let steps: &[(&[&str], &str)] = &[
        (&["apply", "-f", file], "widget.example.com/a created"),
        (&["apply", "-f", file], "widget.example.com/a unchanged"),
        (&["get", "widget", "a", "-o", "jsonpath={.spec.size}"], "3"),
        (&["get", "wg"], "red"),
        (&["get", "all"], "widget.example.com/a"),
        (&["get", "widgets.v1.example.com", "a", "-o", "name"], "widget.example.com/a"),
        (&["scale", "--replicas=4", "widget/a"], "widget.example.com/a scaled"),
        (&["get", "widget", "a", "-o", "jsonpath={.spec.replicas}"], "4"),
        (&["patch", "widget", "a", "--type=merge", "-p", r#"{"spec":{"color":"blue"}}"#], "patched"),
        (&["label", "widget", "a", "tier=x"], "labeled"),
        (&["annotate", "widget", "a", "note=x"], "annotated"),
        (&["explain", "widget.spec.color"], "Its color."),
        (&["explain", "widget"], "A thing with a color."),
        (&["describe", "widget", "a"], "Color:"),
        (&["api-resources", "--api-group=example.com"], "widgets"),
        (
            &["wait", "--for=condition=established", "--timeout=30s", "crd/widgets.example.com"],
            "condition met",
        ),
        (&["delete", "-f", file], "deleted"),
    ];
    for (words, expected) in steps {
        let Some((done, text)) = server.kubectl(words).await else { return };
        assert!(done && text.contains(expected), "{words:?}: {text}");
    }
    // kubectl judges by the published schema before it sends anything.
    std::fs::write(file, super::widgets::widget("b", json!({"size": 3, "none": 1})).to_string())
        .expect("a file");
    let Some((done, text)) = server.kubectl(&["create", "-f", file]).await else { return };
    assert!(!done && text.contains("none"), "{text}");
    assert!(text.contains("unknown field") || text.contains("missing required field"), "{text}");
}
