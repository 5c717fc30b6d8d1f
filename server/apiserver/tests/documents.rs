//! How documents look as text: the order of discovery's fields, indented JSON, and the words of OpenAPI.

use bytes::Bytes;
use ferry_apiserver::filters::{Connection, handle};
use ferry_apiserver::run::{Config, Running, start};
use http_body_util::{BodyExt, Full};

struct Server {
    running: Running,
    _home: tempfile::TempDir,
}

impl Server {
    async fn start() -> Server {
        let home = tempfile::tempdir().unwrap();
        let mut config = Config::new(home.path());
        config.bind = ([127, 0, 0, 1], 0).into();
        config.token_auth_file = Some("tests/golden/answers/users.csv".into());
        let store = ferry_store::embedded::Config::new(home.path().join("store"));
        let store = ferry_store::Embedded::open(store).unwrap();
        Server { running: start(config, std::sync::Arc::new(store)).await.unwrap(), _home: home }
    }

    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> String {
        let mut request = http::Request::get(path).header("authorization", "Bearer admin-token");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::new())).unwrap();
        let response = handle(self.running.api.clone(), Connection::default(), request).await;
        assert_eq!(response.status(), 200, "{path}");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_look_as_upstreams() {
    let server = Server::start().await;

    // Upstream's shell suite looks for these very pieces.
    let core = server.get("/api/v1", &[]).await;
    assert!(core.starts_with(r#"{"kind":"APIResourceList","groupVersion":"v1","resources":["#), "{core}");
    let config_maps = r#"{"name":"configmaps","singularName":"configmap","namespaced":true,"kind":"ConfigMap","verbs":["create","delete","deletecollection","get","list","patch","update","watch"],"shortNames":["cm"],"storageVersionHash":"#;
    assert!(core.contains(config_maps), "{core}");
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let groups = server.get("/apis", &[("accept", aggregated)]).await;
    let head = r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[{"metadata":{"name":"apiregistration.k8s.io"},"versions":[{"version":"v1","resources":[{"resource":"apiservices","responseKind":{"group":"","version":"","kind":"APIService"},"scope":"Cluster","#;
    assert!(groups.starts_with(head), "{}", &groups[..400]);
    assert!(server.get("/version", &[]).await.starts_with("{\n  \"major\": \"1\",\n  \"minor\": \"36\",\n"));

    // People get indented JSON, programs when they ask.
    let (path, curl) = ("/api/v1/namespaces/kube-system", ("user-agent", "curl/8.0"));
    let plain = server.get(path, &[]).await;
    assert!(!plain.contains('\n'), "{plain}");
    let value: serde_json::Value = serde_json::from_str(&plain).unwrap();
    for (path, headers) in [
        (path.to_string(), vec![curl]),
        (format!("{path}?pretty=true"), vec![]),
        (path.to_string(), vec![("accept", "application/json;pretty=1")]),
    ] {
        let indented = server.get(&path, &headers).await;
        assert!(indented.contains("\n  \"kind\": \"Namespace\",\n"), "{indented}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&indented).unwrap(), value);
    }
    let list = server.get("/api/v1/namespaces", &[curl]).await;
    assert!(list.starts_with("{\n  \"kind\": \"NamespaceList\",\n"), "{list}");
    assert_eq!(server.get(&format!("{path}?pretty=false"), &[curl]).await, plain);

    // What people read in OpenAPI. The suite and the conformance tests look for these.
    let swagger = server.get("/openapi/v2", &[curl]).await;
    assert!(!swagger.contains("\n  "));
    for words in ["list of returned", "List of services", "Watch for changes to the described resources"] {
        assert!(swagger.contains(words), "{words}");
    }
    let apps: serde_json::Value =
        serde_json::from_str(&server.get("/openapi/v3/apis/apps/v1", &[]).await).unwrap();
    let schemas = &apps["components"]["schemas"];
    let deployment = &schemas["io.k8s.api.apps.v1.Deployment"];
    assert!(deployment["description"].as_str().is_some_and(|text| text.contains("pods")));
    let metadata = &deployment["properties"]["metadata"];
    assert!(metadata["description"].as_str().is_some_and(|text| text.contains("Standard object's metadata")));
    let created =
        &schemas["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]["properties"]["creationTimestamp"];
    let text = created["description"].as_str().unwrap_or("");
    assert!(text.contains("CreationTimestamp is a timestamp"), "{created}");

    server.running.stop().await;
}
