//! What no client would send: broken bodies in every format, broken HTTP, broken handshakes. Whatever comes,
//! the answer is a clear refusal, nothing is written, nothing panics, and the server goes on.
//!
//! The cases are drawn from a seed, so a failure is found again: `FERRY_FUZZ_SEED` and `FERRY_FUZZ_CASES`
//! choose other ones.

use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferry_api::{GroupVersionKind, Object, Schema, protobuf, yaml};
use ferry_testkit::raw::Raw;
use ferry_testkit::{TestServer, send};
use http::Method;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

static PANICS: AtomicUsize = AtomicUsize::new(0);

fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(set_hook);
}

fn set_hook() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        before(info);
    }));
}

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// A thing that a request can be about: where it is created, and a whole object of it.
struct Subject {
    collection: &'static str,
    gvk: GroupVersionKind,
    object: Value,
}

fn subjects() -> Vec<Subject> {
    let subject = |collection, gvk, mut object: Value| {
        object["metadata"] = json!({"name": "a", "labels": {"app": "a"}, "annotations": {"n": "1"}});
        Subject { collection, gvk, object }
    };
    let template = json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i",
        "ports": [{"containerPort": 80}], "env": [{"name": "A", "value": "b"}],
        "resources": {"limits": {"cpu": "100m", "memory": "1Gi"}}}]}});
    vec![
        subject(
            "/api/v1/namespaces/default/configmaps",
            GroupVersionKind::new("", "v1", "ConfigMap"),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "v"}, "binaryData": {"b": "AAEC"}}),
        ),
        subject(
            "/apis/apps/v1/namespaces/default/deployments",
            GroupVersionKind::new("apps", "v1", "Deployment"),
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 2,
                "selector": {"matchLabels": {"app": "a"}}, "template": template}}),
        ),
        subject(
            "/api/v1/namespaces/default/services",
            GroupVersionKind::new("", "v1", "Service"),
            json!({"apiVersion": "v1", "kind": "Service", "spec": {"selector": {"app": "a"},
                "ports": [{"port": 80, "targetPort": "http"}]}}),
        ),
        subject(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            GroupVersionKind::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
            json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": {
                "group": "g.example", "scope": "Cluster", "names": {"plural": "as", "kind": "A"}, "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}}),
        ),
    ]
}

/// Pieces that readers have stumbled over before.
const NASTY: &[&[u8]] = &[
    b"\x00",
    b"\xff\xfe",
    b"\"\\ud800\"",
    b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    b"{\"a\":{\"a\":{\"a\":",
    b"1e999999",
    b"-9223372036854775809",
    b"99999999999999999999999999",
    b"null",
    b"\"\"",
    b"&a [*a]",
    b"!!binary x",
    b"<<: 1",
    b"---\n---\n",
    b"k8s\0",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\r\n\r\n",
    b"%s%n",
];

fn mutate(random: &mut StdRng, bytes: &mut Vec<u8>) {
    for _ in 0..random.random_range(1..=4) {
        let at = random.random_range(0..=bytes.len());
        let until = random.random_range(at..=bytes.len().min(at + 40));
        match random.random_range(0..7) {
            0 => bytes.truncate(at),
            1 if at < bytes.len() => bytes[at] ^= 1 << random.random_range(0..8),
            2 if at < bytes.len() => bytes[at] = random.random(),
            3 => {
                let piece = NASTY.choose(random).expect("there are some");
                bytes.splice(at..until, piece.iter().copied());
            }
            4 => {
                let again = bytes[at..until].to_vec();
                bytes.splice(at..at, again);
            }
            5 => {
                bytes.drain(at..until);
            }
            _ => {
                let noise: Vec<u8> = (0..random.random_range(1..12)).map(|_| random.random()).collect();
                bytes.splice(at..at, noise);
            }
        }
    }
}

/// What the store has come to: unchanged when nothing was written.
async fn revision(server: &TestServer) -> String {
    let list = server.get("/api/v1/namespaces?limit=1").await.expect(200);
    list["metadata"]["resourceVersion"].as_str().expect("a revision").to_string()
}

/// A refusal says what it is.
fn check_status(code: u16, body: &[u8], case: &str) {
    let status: Value = serde_json::from_slice(body)
        .unwrap_or_else(|error| panic!("{case}: {code} with {error}: {}", String::from_utf8_lossy(body)));
    assert_eq!(status["kind"], "Status", "{case}: {status}");
    assert_eq!(status["code"], code, "{case}: {status}");
    assert!(!status["message"].as_str().unwrap_or("").is_empty(), "{case}: {status}");
    assert_ne!(status["reason"], "InternalError", "{case}: {status}");
}

fn body_case(random: &mut StdRng, subjects: &[Subject]) -> (Method, String, &'static str, Vec<u8>) {
    let subject = subjects.choose(random).expect("there are some");
    let object = Object::from_value(subject.object.clone()).expect("an object");
    let schema = Schema::builtin(&subject.gvk).expect("a built-in kind");
    let (content_type, mut body) = match random.random_range(0..7) {
        0 | 1 => ("application/json", object.to_json()),
        2 => ("application/yaml", yaml::encode(&object).into_bytes()),
        3 => {
            let bytes = protobuf::encode(&object, &schema).expect("a whole object");
            ("application/vnd.kubernetes.protobuf", bytes)
        }
        4 => (
            "application/json-patch+json",
            br#"[{"op":"replace","path":"/metadata/labels/app","value":"b"},{"op":"test","path":"/kind","value":"X"}]"#.to_vec(),
        ),
        5 => (
            *["application/merge-patch+json", "application/strategic-merge-patch+json"].choose(random).expect("two"),
            br#"{"metadata":{"labels":{"app":"b"}},"spec":{"template":{"spec":{"containers":[{"name":"c","$patch":"delete"}]}}}}"#.to_vec(),
        ),
        _ => ("application/apply-patch+yaml", yaml::encode(&object).into_bytes()),
    };
    mutate(random, &mut body);
    let one = format!("{}/a", subject.collection);
    let (method, path) = match content_type {
        patch if patch.contains("patch") => (Method::PATCH, format!("{one}?fieldManager=f")),
        _ => match random.random_range(0..3) {
            0 => (Method::PUT, one),
            1 => (Method::DELETE, format!("{one}?dryRun=All")),
            _ => (Method::POST, subject.collection.to_string()),
        },
    };
    (method, path, content_type, body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_bodies_are_refused_and_leave_nothing_behind() {
    count_panics();
    let seed = number("FERRY_FUZZ_SEED", 20_260_731);
    let mut random = StdRng::seed_from_u64(seed);
    let server = TestServer::start().await;
    let subjects = subjects();
    let (mut refused, mut before) = (0, revision(&server).await);
    for case in 0..number("FERRY_FUZZ_CASES", 1500) {
        let (method, path, content_type, body) = body_case(&mut random, &subjects);
        let title =
            format!("seed {seed} case {case}: {method} {path} {content_type} {}", body.escape_ascii());
        let answer = send(&server.admin(), method, &path, &[("content-type", content_type)], body).await;
        let after = revision(&server).await;
        if answer.code >= 400 {
            refused += 1;
            check_status(answer.code, &answer.bytes, &title);
            assert_eq!(after, before, "{title}: refused and written");
        }
        before = after;
    }
    assert!(refused > 500, "too few cases were broken: {refused}");
    assert_eq!(server.get("/readyz").await.code, 200);
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
}

const PATHS: &[&str] = &[
    "/api/v1/namespaces/default/configmaps",
    "/api/v1/namespaces/default/configmaps/a",
    "/api/v1/namespaces/../../etc",
    "/apis/apps/v1/deployments?limit=-1&continue=%%%",
    "/api/v1/pods?labelSelector=a%20in%20(&fieldSelector=%00",
    "/api/v1/watch/pods?timeoutSeconds=1&resourceVersion=99999999999999999999",
    "/api/v1/namespaces/default/pods/a/exec?command=%ff",
    "/openapi/v3/apis/%2e%2e",
    "//api//v1",
    "/api/v1/namespaces/default/configmaps?watch=true&timeoutSeconds=0x1",
    "*",
    "http://other/api",
    "/apis/\u{e9}",
    "/healthz?verbose=%",
    "/api/v1/namespaces/default/configmaps?resourceVersion=-1&resourceVersionMatch=Sideways",
];

const HEADERS: &[&str] = &[
    "Accept: application/json;as=Table;g=meta.k8s.io;v=v9",
    "Accept: */*;q=banana,,;;",
    "Accept: application/vnd.kubernetes.protobuf",
    "Content-Type: ;",
    "Content-Type: application/json; charset=\"",
    "Content-Encoding: gzip",
    "Accept-Encoding: gzip;q=,",
    "Impersonate-User: ",
    "Impersonate-Group: system:masters",
    "Impersonate-Extra-%zz: x",
    "Authorization: Bearer a b c",
    "Authorization: Basic !!!",
    "X-Remote-User: root",
    "traceparent: 00-zz",
    "baggage: ferry-cause=999999999999999999999",
    "If-None-Match: \"",
    "Expect: 100-continue",
    "Expect: 200-maybe",
    "Transfer-Encoding: chunked, gzip",
    "Content-Length: 18446744073709551616",
    "Content-Length: 5\r\nContent-Length: 6",
    "Content-Length: -1",
    "Host: a b",
    "X\u{0}Y: z",
    ": empty",
    "no-colon",
    " folded: x",
];

const HANDSHAKES: &[&str] = &[
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 99\r\nSec-WebSocket-Key: x",
    "Sec-WebSocket-Key: ",
    "Sec-WebSocket-Key: x\r\nSec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.!!!",
    "Sec-WebSocket-Key: x\r\nSec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.YQ, base64url.bearer.authorization.k8s.io.YQ",
    "Sec-WebSocket-Key: x\r\nSec-WebSocket-Protocol: ,,,",
    "Sec-WebSocket-Protocol: v9.channel.k8s.io",
];

const FRAMES: &[&str] = &[
    "0\r\n\r\n",
    "5\r\nhello\r\n0\r\n\r\n",
    "zz\r\nhello\r\n",
    "ffffffffffffffffff\r\nx",
    "5;ext=\"\r\nhel",
    "5\r\nhello0\r\n\r\n",
    "-1\r\n\r\n",
    "1\r\n{\r\n1\r\n}\r\n0\r\nTrailer: x\r\n\r\n",
];

/// A request in HTTP/1.1's own words, most of them wrong.
fn request(random: &mut StdRng) -> Vec<u8> {
    let mut pick = |from: &[&'static str]| *from.choose(random).expect("there are some");
    let method =
        pick(&["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "get", "BREW", "", "G T"]);
    let path = pick(PATHS);
    let version = pick(&["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/9.9", "", "HTTP/1.1 x"]);
    let mut text = format!("{method} {path} {version}\r\nHost: ferry\r\nConnection: close\r\n");
    let (upgrades, chunked) = (pick(&["yes", "no", "no"]) == "yes", pick(&["yes", "no", "no"]) == "yes");
    if upgrades {
        text = text.replace("Connection: close", "Connection: Upgrade");
        text.push_str(&format!(
            "Upgrade: {}\r\n{}\r\n",
            pick(&["websocket", "SPDY/3.1", "h2c", ""]),
            pick(HANDSHAKES)
        ));
    }
    if chunked {
        text.push_str(&format!("Transfer-Encoding: chunked\r\n{}\r\n\r\n{}", pick(HEADERS), pick(FRAMES)));
    } else {
        let body = pick(&["", "{", "{}", "[]", "null", "\u{0}"]);
        text.push_str(&format!("{}\r\n{}\r\n", pick(HEADERS), pick(HEADERS)));
        text.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
    }
    let mut bytes = text.into_bytes();
    if random.random_range(0..3) == 0 {
        mutate(random, &mut bytes);
    }
    bytes
}

/// The code and body of an answer; `None` where the server hung up without a word.
fn parse(answer: &[u8]) -> Option<(u16, String, Vec<u8>)> {
    let text = String::from_utf8_lossy(answer);
    let code = text.strip_prefix("HTTP/1.")?.get(2..5)?.parse().ok()?;
    let (head, _) = text.split_once("\r\n\r\n")?;
    let head = head.to_lowercase();
    // Behind it may stand the answer to what was left over of a broken request.
    let length =
        head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.trim().parse().ok());
    let body = &answer[head.len() + 4..];
    let body = &body[..length.unwrap_or(body.len()).min(body.len())];
    Some((code, head.clone(), body.to_vec()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_http_is_refused_and_harms_nobody() {
    count_panics();
    let seed = number("FERRY_FUZZ_SEED", 20_260_731);
    let mut random = StdRng::seed_from_u64(seed);
    let server = TestServer::start().await;
    let raw = Raw::new(&server);
    let before = revision(&server).await;
    let mut refused = 0;
    for case in 0..number("FERRY_FUZZ_CASES", 1500) / 3 {
        let bytes = request(&mut random);
        let title = format!("seed {seed} case {case}: {}", bytes.escape_ascii());
        let answer = raw.exchange(&bytes).await;
        let Some((code, head, body)) = parse(&answer) else {
            assert!(answer.is_empty(), "{title}: {}", answer.escape_ascii());
            continue;
        };
        if code >= 400 {
            refused += 1;
            // HTTP itself was broken: hyper's word, which has no body. Else the server says what is wrong.
            // A HEAD is told of a body that is not sent.
            if !bytes.starts_with(b"HEAD")
                && head.contains("content-type: application/json")
                && !head.contains("chunked")
                && !body.is_empty()
            {
                check_status(code, &body, &title);
            }
        }
    }
    assert!(refused > 50, "too few cases were broken: {refused}");
    assert_eq!(revision(&server).await, before, "something was written");
    assert_eq!(server.get("/readyz").await.code, 200);
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
}
