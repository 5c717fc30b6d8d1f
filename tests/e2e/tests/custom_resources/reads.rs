//! Reads: tables, selectors, pages and watches.

use http::Method;
use serde_json::{Value, json};

use super::server::{Server, names, namespace};
use super::widgets::{WIDGETS, definition, red, widget};

#[tokio::test]
async fn printer_columns_are_the_columns_of_tables() {
    let Some(server) = Server::start().await else { return };
    server.define(&definition()).await;
    server.post(WIDGETS, &red("a")).await.expect(201);
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")];
    for path in [WIDGETS.to_string(), format!("{WIDGETS}/a")] {
        let table = server.send(Method::GET, &path, &accept, &Value::Null).await.expect(200);
        assert_eq!(table["kind"], "Table");
        let columns = table["columnDefinitions"].as_array().expect("columns");
        let found: Vec<(&str, &str, i64)> = columns
            .iter()
            .map(|column| {
                let text = |field: &str| column[field].as_str().unwrap_or("");
                (text("name"), text("type"), column["priority"].as_i64().unwrap_or(-1))
            })
            .collect();
        let expected =
            [("Name", "string", 0), ("Color", "string", 0), ("Size", "integer", 1), ("Age", "date", 0)];
        assert_eq!(found, expected);
        let cells = table["rows"][0]["cells"].as_array().expect("cells");
        assert_eq!(cells[..3], [json!("a"), json!("red"), json!(3)]);
    }
    let Some((done, text)) = server.kubectl(&["get", "wg", "-o", "wide"]).await else { return };
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(done, "{text}");
    assert_eq!(lines[0], ["NAME", "COLOR", "SIZE", "AGE"]);
    assert_eq!(lines[1][..3], ["a", "red", "3"]);
}

#[tokio::test]
async fn cells_are_what_upstream_makes_of_odd_values() {
    let Some(server) = Server::start().await else { return };
    let mut definition = definition();
    let version = &mut definition["spec"]["versions"][0];
    version["schema"]["openAPIV3Schema"]["properties"]["spec"] =
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    version["selectableFields"] = Value::Null;
    let cases = [
        ("number", "3", json!(3)),
        ("number", "3.0", json!(3)),
        ("number", "1.5", json!(1.5)),
        ("integer", "5.7", json!(5)),
        ("integer", "\"x\"", Value::Null),
        ("boolean", "\"true\"", Value::Null),
        ("date", "\"yesterday\"", json!("<invalid>")),
        ("date", "\"2999-01-01T00:00:00Z\"", json!("<invalid>")),
        ("string", "null", json!("<no value>")),
        ("string", "[1,{\"b\":2.5}]", json!("[1,{\"b\":2.5}]")),
    ];
    let columns = cases.iter().enumerate().map(|(at, (kind, _, _))| {
        json!({"name": format!("c{at}"), "type": kind, "jsonPath": format!(".spec.c{at}"), "priority": at as i32 - 1})
    });
    version["additionalPrinterColumns"] = columns.collect();
    server.define(&definition).await;
    let fields = cases
        .iter()
        .enumerate()
        .map(|(at, (_, value, _))| (format!("c{at}"), serde_json::from_str::<Value>(value).expect("JSON")));
    server.post(WIDGETS, &widget("a", Value::Object(fields.collect()))).await.expect(201);
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = server.send(Method::GET, &format!("{WIDGETS}/a"), &accept, &Value::Null).await.expect(200);
    let cells = table["rows"][0]["cells"].as_array().expect("cells");
    for (at, (kind, value, expected)) in cases.iter().enumerate() {
        assert_eq!(cells[at + 1].to_string(), expected.to_string(), "{kind} {value}");
    }
    assert_eq!(table["columnDefinitions"][1]["priority"], -1);
}

#[tokio::test]
async fn selectable_fields_select_in_lists_watches_and_deletions() {
    let Some(server) = Server::start().await else { return };
    server.define(&definition()).await;
    for (name, color) in [("a", "red"), ("b", "blue"), ("c", "red")] {
        server.post(WIDGETS, &widget(name, json!({"color": color}))).await.expect(201);
    }
    let reds = server.get(&format!("{WIDGETS}?fieldSelector=spec.color%3Dred")).await.expect(200);
    assert_eq!(names(&reds), ["a", "c"]);
    let others = server.get(&format!("{WIDGETS}?fieldSelector=spec.color!%3Dred,metadata.name%3Db")).await;
    assert_eq!(names(&others.expect(200)), ["b"]);
    let refused = server.get(&format!("{WIDGETS}?fieldSelector=spec.size%3D3")).await.expect(400);
    assert!(
        refused["message"].as_str().is_some_and(|text| text.contains("field label not supported: spec.size")),
        "{refused}"
    );
    // A watch tells of objects that come into the selection and leave it.
    let revision = reds["metadata"]["resourceVersion"].as_str().expect("a revision");
    let one = format!("{WIDGETS}/b");
    server.merge(&one, &json!({"spec": {"color": "red"}})).await.expect(200);
    server.merge(&one, &json!({"spec": {"color": "green"}})).await.expect(200);
    let path = format!(
        "{WIDGETS}?watch=true&resourceVersion={revision}&fieldSelector=spec.color%3Dred&timeoutSeconds=1"
    );
    let events = server.watch(&path).await;
    let told: Vec<(&str, &str)> = events
        .iter()
        .map(|event| {
            let name = event["object"]["metadata"]["name"].as_str().unwrap_or("");
            (event["type"].as_str().unwrap_or(""), name)
        })
        .collect();
    assert_eq!(told, [("ADDED", "b"), ("DELETED", "b")]);
    server.delete(&format!("{WIDGETS}?fieldSelector=spec.color%3Dred")).await.expect(200);
    assert_eq!(names(&server.get(WIDGETS).await.expect(200)), ["b"]);
}

#[tokio::test]
async fn lists_come_in_pages_and_watches_with_bookmarks() {
    let Some(server) = Server::start().await else { return };
    server.define(&definition()).await;
    server.post("/api/v1/namespaces", &namespace("other")).await.expect(201);
    for number in 0..7 {
        let place = if number % 2 == 0 { "default" } else { "other" };
        let path = format!("/apis/example.com/v1/namespaces/{place}/widgets");
        server.post(&path, &red(&format!("w{number}"))).await.expect(201);
    }
    let all = "/apis/example.com/v1/widgets";
    let (mut found, mut from) = (Vec::new(), String::new());
    for _ in 0..7 {
        let page = server.get(&format!("{all}?limit=3&continue={from}")).await.expect(200);
        assert_eq!(page["kind"], "WidgetList");
        found.extend(names(&page).into_iter().map(str::to_string));
        from = page["metadata"]["continue"].as_str().unwrap_or("").to_string();
        if from.is_empty() {
            break;
        }
    }
    found.sort();
    assert_eq!(found, ["w0", "w1", "w2", "w3", "w4", "w5", "w6"]);
    let path = format!(
        "{all}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1"
    );
    let events = server.watch(&path).await;
    assert_eq!(events.iter().filter(|event| event["type"] == "ADDED").count(), 7);
    let bookmark = events.iter().find(|event| event["type"] == "BOOKMARK").expect("a bookmark");
    let object = &bookmark["object"];
    assert_eq!((&object["kind"], &object["apiVersion"]), (&json!("Widget"), &json!("example.com/v1")));
    assert_eq!(object["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    let metadata = [("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")];
    let partial = server.send(Method::GET, all, &metadata, &Value::Null).await.expect(200);
    assert_eq!(
        (&partial["kind"], &partial["items"][0]["spec"]),
        (&json!("PartialObjectMetadataList"), &Value::Null)
    );
}

#[tokio::test]
async fn there_is_no_protobuf() {
    let Some(server) = Server::start().await else { return };
    server.define(&definition()).await;
    let protobuf = "application/vnd.kubernetes.protobuf";
    let answer = server.send(Method::GET, WIDGETS, &[("accept", protobuf)], &Value::Null).await;
    assert_eq!(answer.code, 406);
    // Upstream says so of every other form, and offers it with the others.
    for other in ["application/cbor", "text/html", "application/json;as=Table;v=v9;g=meta.k8s.io"] {
        let answer = server.send(Method::GET, WIDGETS, &[("accept", other)], &Value::Null).await;
        assert_eq!(
            answer.expect(406)["message"],
            "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf"
        );
    }
    let headers = [("content-type", protobuf)];
    let body = b"k8s\0".to_vec();
    let answer = ferry_testkit::send(&server.client, Method::POST, WIDGETS, &headers, body).await;
    assert_eq!(answer.code, 415);
    let both = [("accept", "application/vnd.kubernetes.protobuf,application/json")];
    let answer = server.send(Method::GET, WIDGETS, &both, &Value::Null).await;
    assert_eq!((answer.code, answer.header("content-type")), (200, "application/json"));
    server.post(WIDGETS, &red("a")).await.expect(201);
    let patch = json!({"spec": {"size": 4}});
    for path in [format!("{WIDGETS}/a"), format!("{WIDGETS}/a/scale")] {
        for form in ["application/strategic-merge-patch+json", "application/json", "application/cbor"] {
            let answer = server.send(Method::PATCH, &path, &[("content-type", form)], &patch).await;
            assert_eq!(
                answer.expect(415)["message"],
                "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
                "{path} {form}"
            );
        }
    }
}

#[tokio::test]
async fn objects_are_there_after_a_restart() {
    let Some(mut server) = Server::start().await else { return };
    server.define(&definition()).await;
    let created = server.post(WIDGETS, &red("a")).await.expect(201);
    server.process.restart().await;
    server.client = server.process.admin().await;
    // Definitions are served before the server answers at all.
    assert_eq!(server.get(&format!("{WIDGETS}/a")).await.expect(200), created);
    server.merge(&format!("{WIDGETS}/a"), &json!({"spec": {"size": 8}})).await.expect(200);
}
