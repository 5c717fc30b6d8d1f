//! What every kind owes its clients, whether the table has it or a definition made it: a minimal object lives
//! through all verbs. A new row is tested before anyone writes a test for it.

mod minimal;
mod verb_matrix;

use std::time::{Duration, Instant};

use ferry_api::{Kind, Scope};
use ferry_testkit::{Answer, TestServer, send};
use http::Method;
use minimal::minimal;
use serde_json::{Value, json};

const NAMESPACE: &str = "contract";
const VERBS: &[&str] = &["create", "get", "list", "update", "patch", "delete"];

#[tokio::test]
async fn a_minimal_object_of_every_kind_lives_through_all_verbs() {
    let server = server().await;
    let mut broken = Vec::new();
    for kind in ferry_api::kinds::builtin() {
        let complete = VERBS.iter().all(|verb| kind.verbs.iter().any(|have| have == verb));
        if !kind.by_default || !complete {
            continue;
        }
        if let Err(why) = contract(&server, kind, &minimal(kind)).await {
            broken.push(format!("{} {}: {why}", kind.api_version(), kind.kind));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[tokio::test]
async fn custom_kinds_pass_the_same_contract() {
    let server = server().await;
    let mut broken = Vec::new();
    for (plural, kind, scope) in [("things", "Thing", Scope::Namespaced), ("worlds", "World", Scope::Cluster)]
    {
        let row = Kind {
            group: "contract.example".into(),
            version: "v1".into(),
            kind: kind.into(),
            plural: plural.into(),
            scope,
            ..(**ferry_api::kinds::builtin().first().expect("kinds")).clone()
        };
        define(&server, &row).await;
        let object = json!({"apiVersion": "contract.example/v1", "kind": kind, "metadata": {"name": "contract"}, "spec": {"a": 1}});
        if let Err(why) = contract(&server, &row, &object).await {
            broken.push(format!("{kind}: {why}"));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// A definition of the row, once it is established.
async fn define(server: &TestServer, row: &Kind) {
    let name = format!("{}.{}", row.plural, row.group);
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": name},
        "spec": {
            "group": row.group, "scope": if row.is_namespaced() { "Namespaced" } else { "Cluster" },
            "names": {"plural": row.plural, "kind": row.kind},
            "versions": [{"name": row.version, "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    server.post(DEFINITIONS, &definition).await.expect(201);
    let give_up = Instant::now() + Duration::from_secs(60);
    loop {
        let now = server.get(&format!("{DEFINITIONS}/{name}")).await.expect(200);
        let conditions = now["status"]["conditions"].as_array().cloned().unwrap_or_default();
        if conditions.iter().any(|it| it["type"] == "Established" && it["status"] == "True") {
            return;
        }
        assert!(Instant::now() < give_up, "never established: {now}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn server() -> TestServer {
    let server = TestServer::start().await;
    let place = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    server.post("/api/v1/namespaces", &place).await.expect(201);
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    server.post(&format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts"), &account).await;
    server
}

async fn contract(server: &TestServer, kind: &Kind, object: &Value) -> Result<(), String> {
    let group = if kind.group.is_empty() { "/api".to_string() } else { format!("/apis/{}", kind.group) };
    let place = if kind.is_namespaced() { format!("/namespaces/{NAMESPACE}") } else { String::new() };
    let list = format!("{group}/{}{place}/{}", kind.version, kind.plural);
    let name = object["metadata"]["name"].as_str().ok_or("a minimal object has a name")?.to_string();
    let one = format!("{list}/{name}");

    let answer = server.post(&list, object).await;
    let created = answer.json();
    if answer.code != 201 {
        return Err(format!("create: {}", created["message"]));
    }
    let got = server.get(&one).await.json();
    let is_same_write = got["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"];
    if got["metadata"]["uid"] != created["metadata"]["uid"] || is_same_write && got != created {
        return Err(format!("get differs from create: {got} {created}"));
    }
    let listed = server.get(&list).await.json();
    let found = listed["items"]
        .as_array()
        .is_some_and(|items| items.iter().any(|item| item["metadata"]["uid"] == created["metadata"]["uid"]));
    if !found {
        return Err("list does not hold it".into());
    }
    table(server, &list, &name).await?;

    // The server itself may write in between, as it does to a new definition.
    let mut updated = update(server, &one, got).await;
    for _ in 0..20 {
        if updated.code != 409 {
            break;
        }
        updated = update(server, &one, server.get(&one).await.json()).await;
    }
    if updated.code != 200 || updated.json()["metadata"]["labels"]["contract"] != "updated" {
        return Err(format!("update: {}", updated.json()));
    }
    let patch = json!({"metadata": {"labels": {"contract": "patched"}}});
    let patched = server.patch(&one, "merge", &patch).await;
    if patched.code != 200 || patched.json()["metadata"]["labels"]["contract"] != "patched" {
        return Err(format!("patch: {}", patched.json()));
    }
    // Kinds that leave their dependents to themselves would wait for the garbage collector.
    // What protects an object while it is in use would hold it; its controller does not run here.
    server.patch(&one, "merge", &json!({"metadata": {"finalizers": null}})).await;
    let deleted = server.delete(&format!("{one}?propagationPolicy=Background")).await;
    if deleted.code != 200 {
        return Err(format!("delete: {}", deleted.json()));
    }
    // A namespace goes when its content is gone, which is a controller's work; a definition when the server emptied it.
    let give_up = Instant::now() + Duration::from_secs(60);
    loop {
        let gone = server.get(&one).await;
        if gone.code == 404 || kind.kind == "Namespace" {
            break;
        }
        if kind.kind != "CustomResourceDefinition" || Instant::now() > give_up {
            return Err(format!("it is still there after the delete: {}", gone.json()));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

async fn update(server: &TestServer, path: &str, mut object: Value) -> Answer {
    object["metadata"]["labels"]["contract"] = "updated".into();
    server.put(path, &object).await
}

/// As many cells as columns, and the object among the rows.
async fn table(server: &TestServer, list: &str, name: &str) -> Result<(), String> {
    let accept = ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    let table = send(&server.admin(), Method::GET, list, &[accept], Vec::new()).await.json();
    let columns = table["columnDefinitions"].as_array().ok_or("a table has columns")?;
    let rows = table["rows"].as_array().ok_or("a table has rows")?;
    let row = rows.iter().find(|row| row["object"]["metadata"]["name"] == name).ok_or("no row for it")?;
    let cells = row["cells"].as_array().ok_or("a row has cells")?;
    if cells.len() != columns.len() {
        return Err(format!("{} cells in {} columns", cells.len(), columns.len()));
    }
    for (cell, column) in cells.iter().zip(columns) {
        let fits = match column["type"].as_str() {
            Some("integer") => cell.is_i64(),
            // Some columns of upstream say "string" and hold a number or a boolean.
            _ => !cell.is_object() && !cell.is_array() && !cell.is_null(),
        };
        if !fits {
            return Err(format!("column {} holds {cell}", column["name"]));
        }
    }
    Ok(())
}
