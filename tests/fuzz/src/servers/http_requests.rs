//! Whole requests to an API server in this process: method, path, query, headers and body, through all filters, decoding,
//! admission and validation. The first line is the caller (`admin`, `nobody`, or what its headers say), the second the
//! method and the path; headers follow, an empty line, the body. Writes are dry runs, so that no input depends on those
//! before it.

use std::sync::LazyLock;

use ferry_apiserver::filters::{Connection, handle};
use ferry_auth::User;
use ferry_auth::user::MASTERS;
use ferry_store::{Embedded, embedded};
use ferry_testkit::TestServer;
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::client::Body;
use tokio::runtime::Runtime;

use crate::samples;

/// What is read of an answer: watches have no end.
const FRAMES: usize = 4;

struct Subject {
    runtime: Runtime,
    server: TestServer,
}

static SUBJECT: LazyLock<Subject> = LazyLock::new(|| {
    // Decoding of long bodies asks for a runtime of several threads. The request itself runs on the caller's.
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().expect("a runtime");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let config = embedded::Config::new(directory.path().join("store"));
    let store = Embedded::in_memory(config).expect("a store in memory");
    let server = runtime.block_on(TestServer::start_on(std::sync::Arc::new(store), directory, |_| {}));
    Subject { runtime, server }
});

pub fn run(data: &[u8]) {
    let Some((caller, request)) = read(data) else { return };
    let identity = match caller {
        "admin" => Some(User::new("admin").with_groups([MASTERS])),
        "nobody" => Some(User::new("nobody")),
        _ => None,
    };
    let connection = Connection { identity: identity.map(std::sync::Arc::new), ..Connection::default() };
    let api = SUBJECT.server.running().api.clone();
    SUBJECT.runtime.block_on(async {
        let response = handle(api, connection, request).await;
        let is_internal = response.status() == 500;
        let mut body = response.into_body();
        for _ in 0..FRAMES {
            // A watch that waits for events has nothing to say.
            let Some(Some(Ok(frame))) = at_once(body.frame()).await else { break };
            let told =
                frame.data_ref().map(|data| String::from_utf8_lossy(data).into_owned()).unwrap_or_default();
            // Some refusals are internal errors upstream, too; a panic that the filters caught is none of them.
            assert!(!is_internal || !told.contains("caused apiserver to panic"), "{told}");
        }
    });
}

/// The value of a future that is there at once.
async fn at_once<F: Future + Unpin>(mut future: F) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match std::pin::Pin::new(&mut future).poll(context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

fn read(data: &[u8]) -> Option<(&str, Request<Body>)> {
    let end = data.windows(2).position(|pair| pair == b"\n\n")?;
    let (head, body) = (std::str::from_utf8(&data[..end]).ok()?, &data[end + 2..]);
    let mut lines = head.lines();
    let caller = lines.next()?;
    let (method, target) = lines.next()?.split_once(' ')?;
    let method = Method::from_bytes(method.as_bytes()).ok()?;
    let target =
        if matches!(method, Method::GET | Method::HEAD) { target.to_string() } else { dry_run(target) };
    let mut request = Request::builder().method(method).uri(target);
    for line in lines {
        let (name, value) = line.split_once(':')?;
        request = request.header(name, value.trim_start());
    }
    Some((caller, request.body(Body::from(body.to_vec())).ok()?))
}

fn dry_run(target: &str) -> String {
    match target.split_once('?') {
        Some((path, query)) => format!("{path}?dryRun=All&{query}"),
        None => format!("{target}?dryRun=All"),
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    const READS: &[&str] = &[
        "/api/v1/namespaces?limit=1&labelSelector=a%20in%20(b)&fieldSelector=metadata.name%3Ddefault",
        "/api/v1/namespaces/default?resourceVersion=0&resourceVersionMatch=Exact",
        "/api/v1/watch/namespaces/default?timeoutSeconds=1&allowWatchBookmarks=true",
        "/api/v1/pods?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1",
        "/apis/apps/v1/namespaces/default/deployments?continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ",
        "/openapi/v3/apis/apps/v1?hash=A",
        "/openapi/v2",
        "/apis",
        "/version",
        "/healthz?verbose&exclude=etcd",
        "/metrics",
        "/debug/api_priority_and_fairness/dump_requests?includeRequestDetails=1",
        "/logs/a%2e%2e/b",
        "/api/v1/namespaces/default/pods/a/log?tailLines=1&sinceTime=2026-01-02T03:04:05Z&limitBytes=1",
        "/api/v1/namespaces/default/services/https:a:80/proxy/x/y?z",
        "/.well-known/openid-configuration",
    ];
    const HEADERS: &[&str] = &[
        "Accept: application/json;as=Table;g=meta.k8s.io;v=v1,application/yaml;q=0.5,*/*",
        "Accept: application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        "Accept-Encoding: gzip;q=1\nIf-None-Match: \"a\"",
        "Impersonate-User: a\nImpersonate-Group: b\nImpersonate-Extra-c%2fd: e\nImpersonate-Uid: f",
        "Authorization: Bearer eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJhIn0.AA",
        "Upgrade: websocket\nConnection: Upgrade\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\nSec-WebSocket-Version: 13\nSec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.YQ, v5.channel.k8s.io",
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\nbaggage: ferry-cause=1",
    ];
    let mut seeds = Vec::new();
    for (index, path) in READS.iter().enumerate() {
        let headers = HEADERS[index % HEADERS.len()];
        let caller = if index % 5 == 4 { "-" } else { "admin" };
        seeds.push(format!("{caller}\nGET {path}\n{headers}\n\n").into_bytes());
    }
    for (kind, schema) in samples::kinds() {
        let Some(object) = samples::full(kind, schema) else { continue };
        let group = if kind.group.is_empty() { "/api".to_string() } else { format!("/apis/{}", kind.group) };
        let namespace = if kind.is_namespaced() { "/namespaces/default" } else { "" };
        let path = format!("{group}/{}{namespace}/{}", kind.version, kind.plural);
        let json = String::from_utf8(object.to_json()).unwrap_or_default();
        seeds.push(
            format!("admin\nPOST {path}?fieldValidation=Strict\nContent-Type: application/json\n\n{json}")
                .into_bytes(),
        );
        let small = format!(
            r#"{{"apiVersion":"{}","kind":"{}","metadata":{{"name":"text"}}}}"#,
            kind.api_version(),
            kind.kind
        );
        seeds.push(
            format!("admin\nPATCH {path}/text?fieldManager=f&force=true\nContent-Type: application/apply-patch+yaml\n\n{small}")
                .into_bytes(),
        );
    }
    let delete = r#"{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"a"},"propagationPolicy":"Orphan"}"#;
    seeds.push(format!("admin\nDELETE /api/v1/namespaces/default/configmaps?labelSelector=a\nContent-Type: application/json\n\n{delete}").into_bytes());
    seeds.push(
        b"admin\nPATCH /api/v1/namespaces/default\nContent-Type: application/json-patch+json\n\n[{\"op\":\"add\",\"path\":\"/metadata/labels/a\",\"value\":\"b\"}]"
            .to_vec(),
    );
    seeds.push(
        b"admin\nPATCH /api/v1/namespaces/default\nContent-Type: application/strategic-merge-patch+json\n\n{\"metadata\":{\"labels\":{\"a\":null}}}"
            .to_vec(),
    );
    seeds
}
