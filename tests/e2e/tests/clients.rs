//! Other people's clients, as they are: the Python client through a script of ours, kube-rs in this process.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ferry_testkit::TestServer;
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;

/// Debian's, which its package of the client is for; another may come first in the path.
const PYTHON: &str = "/usr/bin/python3";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_client_lists_watches_and_patches() {
    let installed = Command::new(PYTHON).args(["-c", "import kubernetes"]).output();
    if !installed.is_ok_and(|output| output.status.success()) {
        ferry_skip::missing("python3-kubernetes");
        return;
    }
    let server = TestServer::start().await;
    let script = Path::new("tests/clients/list_watch_patch.py");
    let mut command = Command::new(PYTHON);
    command.arg(script).env("KUBECONFIG", server.kubeconfig());
    let output = tokio::task::spawn_blocking(move || command.output().expect("python3 starts"));
    let output =
        tokio::time::timeout(Duration::from_secs(120), output).await.expect("in time").expect("it ends");
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("all seen"), "{said}");
}

fn config_map(name: &str) -> ConfigMap {
    let map = json!({"metadata": {"name": name, "labels": {"app": "kube-rs"}}, "data": {"value": "1"}});
    serde_json::from_value(map).expect("a ConfigMap")
}

#[tokio::test]
async fn kube_rs_lists_in_pages_watches_with_bookmarks_and_patches() {
    let server = TestServer::start().await;
    let api: Api<ConfigMap> = Api::namespaced(server.admin(), "default");
    for number in 0..12 {
        api.create(&PostParams::default(), &config_map(&format!("m{number:02}"))).await.expect("created");
    }
    let (mut names, mut revisions) = (Vec::new(), Vec::new());
    let mut page = ListParams::default().labels("app=kube-rs").limit(5);
    loop {
        let list = api.list(&page).await.expect("a page");
        names.extend(list.items.into_iter().filter_map(|map| map.metadata.name));
        revisions.push(list.metadata.resource_version.expect("a revision"));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => break,
        }
    }
    assert_eq!(names, (0..12).map(|number| format!("m{number:02}")).collect::<Vec<_>>());
    assert_eq!(revisions.len(), 3);
    revisions.dedup();
    assert_eq!(revisions.len(), 1, "pages of one list are of one revision");

    let merged = json!({"data": {"value": "2"}});
    let patched = api.patch("m01", &PatchParams::default(), &Patch::Merge(&merged)).await.expect("merged");
    let applied =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m01"}, "data": {"more": "x"}});
    let params = PatchParams::apply("kube-rs").force();
    let after = api.patch("m01", &params, &Patch::Apply(&applied)).await.expect("applied");
    let data = after.data.expect("data");
    assert_eq!((data["value"].as_str(), data["more"].as_str()), ("2", "x"));

    let from = patched.metadata.resource_version.expect("a revision");
    let params = WatchParams::default().timeout(3);
    let mut events = std::pin::pin!(api.watch(&params, &from).await.expect("a watch"));
    let (mut modified, mut bookmark) = (0, None);
    while let Some(event) = events.try_next().await.expect("an event") {
        match event {
            WatchEvent::Modified(map) => {
                assert_eq!(map.metadata.name.as_deref(), Some("m01"));
                modified += 1;
            }
            WatchEvent::Bookmark(mark) => bookmark = Some(mark.metadata.resource_version),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(modified, 1);
    assert_eq!(
        bookmark, after.metadata.resource_version,
        "the last bookmark says how far this watch has come"
    );
}
