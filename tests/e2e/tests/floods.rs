//! Clients that send much, or read nothing, over HTTP/2: what the server holds for them is bounded, others are served,
//! and nothing that was written escapes the audit log.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use ferry_e2e::audited::AuditedServer;
use ferry_e2e::binary::{Process, ferry};
use ferry_testkit::outside::Outside;
use futures::future::join_all;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MEGABYTE: usize = 1 << 20;
/// No answer is waited for any longer.
const PATIENCE: Duration = Duration::from_secs(60);

async fn connect(outside: &Outside, builder: &Builder) -> SendRequest<Bytes> {
    let stream = outside.connect_http2().await;
    let (client, connection) = builder.handshake::<_, Bytes>(stream).await.expect("HTTP/2");
    tokio::spawn(connection);
    client.ready().await.expect("open")
}

/// A request whose body is still to come, unless it `is_whole`.
async fn begin(
    client: &mut SendRequest<Bytes>,
    (method, path): (&str, &str),
    headers: &[(&str, &str)],
    is_whole: bool,
) -> (ResponseFuture, SendStream<Bytes>) {
    let mut request = http::Request::builder().method(method).uri(format!("https://127.0.0.1{path}"));
    for (name, value) in headers {
        request = request.header(*name, http::HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
    }
    *client = client.clone().ready().await.expect("open");
    client.send_request(request.body(()).expect("a request"), is_whole).expect("sent")
}

/// Code and body of an answer that is read to its end.
async fn read(answer: ResponseFuture) -> (u16, Vec<u8>) {
    let read = async {
        let (head, mut body) = answer.await.expect("an answer").into_parts();
        let mut bytes = Vec::new();
        while let Some(data) = body.data().await {
            let data = data.expect("the whole answer");
            body.flow_control().release_capacity(data.len()).expect("as much as was read");
            bytes.extend_from_slice(&data);
        }
        (head.status.as_u16(), bytes)
    };
    tokio::time::timeout(PATIENCE, read).await.expect("an answer in time")
}

async fn ask(
    client: &mut SendRequest<Bytes>,
    line: (&str, &str),
    headers: &[(&str, &str)],
) -> (u16, Vec<u8>) {
    let (answer, _) = begin(client, line, headers, true).await;
    read(answer).await
}

fn map(name: &str, bytes: usize) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "x".repeat(bytes)}})
        .to_string()
}

const ADMIN: (&str, &str) = ("authorization", "Bearer root-token");
const JANE: (&str, &str) = ("authorization", "Bearer janes-token");
const MAX: (&str, &str) = ("authorization", "Bearer max-token");
const JSON: (&str, &str) = ("content-type", "application/json");

const USERS: &str = "root-token,root,1,system:masters\njanes-token,jane,2\nmax-token,max,3,system:masters\n";

/// The server as a process of its own; `None` where its binary is not built.
async fn process() -> Option<Process> {
    let binary = ferry()?;
    let process = Process::apiserver(&binary, |directory| {
        let users = directory.join("users.csv");
        std::fs::write(&users, USERS).expect("written");
        vec!["--token-auth-file".into(), users.display().to_string()]
    });
    Some(process.await)
}

async fn audited(
    change: impl FnOnce(&mut ferry_apiserver::run::Config),
) -> (AuditedServer, tempfile::TempDir) {
    let files = tempfile::tempdir().expect("a directory");
    let users = files.path().join("users");
    std::fs::write(&users, USERS).expect("written");
    let audited = AuditedServer::start("Metadata", |config| {
        config.token_auth_file = Some(users);
        change(config);
    });
    (audited.await, files)
}

/// Sends as much of `length` bytes as the server takes in before `give_up`, and leaves the body at that.
async fn pour(mut body: SendStream<Bytes>, length: usize) -> SendStream<Bytes> {
    let mut left = length;
    while left > 0 {
        body.reserve_capacity(left.min(64 * 1024));
        let capacity = std::future::poll_fn(|context| body.poll_capacity(context));
        let Ok(Some(Ok(room))) = tokio::time::timeout(Duration::from_millis(500), capacity).await else {
            break;
        };
        let piece = room.min(left);
        if body.send_data(vec![b'x'; piece].into(), false).is_err() {
            break;
        }
        left -= piece;
    }
    body
}

/// How much more memory the server holds than before, as soon as that is less than `most`: what only passed through it,
/// the allocator gives back a moment later.
async fn held_memory(process: &Process, before: usize, most: usize) -> usize {
    let give_up = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let grown = process.resident_bytes().saturating_sub(before);
        if grown < most || tokio::time::Instant::now() > give_up {
            return grown;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_bodies_take_little_memory() {
    let Some(process) = process().await else { return };
    let outside = process.outside();
    let before = process.resident_bytes();
    // Nobody's bodies on a path that takes none, and those of a user who may write.
    for (line, headers) in [(("GET", "/version"), &[] as &[_]), (("POST", MAPS), &[ADMIN, JSON])] {
        let mut client = connect(&outside, &Builder::new()).await;
        let mut pouring = Vec::new();
        for _ in 0..100 {
            let (answer, body) = begin(&mut client, line, headers, false).await;
            pouring.push(async move { (pour(body, 2 * MEGABYTE).await, answer) });
        }
        let held = join_all(pouring).await;
        let grown = held_memory(&process, before, 64 * MEGABYTE).await;
        assert!(grown < 64 * MEGABYTE, "{line:?}: {} MB", grown / MEGABYTE);
        let mut other = connect(&outside, &Builder::new()).await;
        assert_eq!(ask(&mut other, ("GET", "/readyz"), &[]).await.0, 200);
        drop(held);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_responses_take_little_memory() {
    let Some(process) = process().await else { return };
    let outside = process.outside();
    let mut admin = connect(&outside, &Builder::new()).await;
    for number in 0..12 {
        let (answer, mut body) = begin(&mut admin, ("POST", MAPS), &[ADMIN, JSON], false).await;
        body.send_data(map(&format!("map-{number}"), MEGABYTE - 1000).into(), true).expect("sent");
        assert_eq!(read(answer).await.0, 201);
    }
    let before = process.resident_bytes();
    let protobuf = ("accept", "application/vnd.kubernetes.protobuf");
    let partial = ("accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
    let watch = format!("{MAPS}?watch=true");
    let one = format!("{MAPS}/map-1");
    let everything = ("accept", "*/*");
    // A window of nothing, and one without bounds on a connection that is not read from.
    for window in [0, 1 << 30] {
        let mut held = Vec::new();
        for (path, accept) in [
            (MAPS, everything),
            (MAPS, protobuf),
            (MAPS, partial),
            (watch.as_str(), everything),
            (one.as_str(), everything),
        ] {
            let builder =
                Builder::new().initial_window_size(window).initial_connection_window_size(1 << 30).clone();
            let stream = outside.connect_http2().await;
            let (client, connection) = builder.handshake::<_, Bytes>(stream).await.expect("HTTP/2");
            let connection = tokio::spawn(connection);
            let mut client = client.ready().await.expect("open");
            for _ in 0..100 {
                held.push(begin(&mut client, ("GET", path), &[ADMIN, accept], true).await.0);
            }
            if window > 0 {
                // The requests leave; nothing is read after that.
                tokio::time::sleep(Duration::from_millis(300)).await;
                connection.abort();
            } else {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            assert_eq!(ask(&mut admin, ("GET", "/readyz"), &[]).await.0, 200);
            let grown = held_memory(&process, before, 128 * MEGABYTE).await;
            assert!(grown < 128 * MEGABYTE, "{path} {accept:?} {window}: {} MB", grown / MEGABYTE);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_bodies_hold_no_seats() {
    let (audited, _files) = audited(|config| config.max_mutating_requests_in_flight = 4).await;
    let outside = audited.server.outside(None);
    let mut slow = Vec::new();
    for (who, bodies) in [(JANE, 100), (MAX, 100)] {
        let mut client = connect(&outside, &Builder::new()).await;
        for _ in 0..bodies {
            let (answer, mut body) = begin(&mut client, ("POST", MAPS), &[who, JSON], false).await;
            body.send_data("{".into(), false).expect("sent");
            slow.push((answer, body));
        }
    }
    let mut root = connect(&outside, &Builder::new()).await;
    for number in 0..20 {
        let (answer, mut body) = begin(&mut root, ("POST", MAPS), &[ADMIN, JSON], false).await;
        body.send_data(map(&format!("map-{number}"), 10).into(), true).expect("sent");
        let (code, said) = read(answer).await;
        assert_eq!(code, 201, "{}", String::from_utf8_lossy(&said));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_write_is_audited_even_if_its_client_disconnects() {
    let (audited, _files) = audited(|_| {}).await;
    let outside = audited.server.outside(None);
    let mut client = connect(&outside, &Builder::new()).await;
    for number in 0..200_u64 {
        // A connection on which too much is taken back is ended.
        if number % 10 == 0 {
            client = connect(&outside, &Builder::new()).await;
        }
        let id = format!("write-{number}");
        let headers = [ADMIN, JSON, ("audit-id", id.as_str())];
        let (answer, mut body) = begin(&mut client, ("POST", MAPS), &headers, false).await;
        body.send_data(map(&format!("map-{number}"), 10).into(), true).expect("sent");
        // Some are turned away from at once, some while they are written.
        if number % 2 == 0 {
            tokio::time::sleep(Duration::from_micros(37 * (number % 40))).await;
            body.send_reset(Reason::CANCEL);
        } else {
            drop(answer);
        }
    }
    let codes = |lines: &[Value]| {
        let mut codes: HashMap<String, Vec<Value>> = HashMap::new();
        for line in lines {
            let name = line["auditID"].as_str().unwrap_or("").to_string();
            codes.entry(name).or_default().push(line["responseStatus"]["code"].clone());
        }
        codes
    };
    // All that was begun has come to its end when the last object and its line are there.
    let mut last = connect(&outside, &Builder::new()).await;
    let give_up = tokio::time::Instant::now() + PATIENCE;
    loop {
        let (_, list) = ask(&mut last, ("GET", MAPS), &[ADMIN]).await;
        let list: Value = serde_json::from_slice(&list).expect("JSON");
        let names: Vec<&str> = list["items"]
            .as_array()
            .expect("items")
            .iter()
            .filter_map(|item| item["metadata"]["name"].as_str())
            .collect();
        let codes = codes(&audited.lines());
        let unheard: Vec<&&str> = names
            .iter()
            .filter(|name| name.starts_with("map-"))
            .filter(|name| codes.get(&name.replace("map", "write")) != Some(&vec![json!(201)]))
            .collect();
        if unheard.is_empty() && names.iter().filter(|name| name.starts_with("map-")).count() > 20 {
            return;
        }
        assert!(
            tokio::time::Instant::now() < give_up,
            "{} of {} have no line: {unheard:?}",
            unheard.len(),
            names.len()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_requests_get_the_complete_response() {
    let (audited, _files) = audited(|_| {}).await;
    let outside = audited.server.outside(None);
    let mut client = connect(&outside, &Builder::new()).await;
    for length in [10, 70_000, 2 * MEGABYTE] {
        for _ in 0..10 {
            let (answer, mut body) = begin(&mut client, ("POST", MAPS), &[JANE, JSON], false).await;
            let sent = map("refused", length);
            let half = sent.len() / 2;
            body.send_data(Bytes::copy_from_slice(&sent.as_bytes()[..half]), false).expect("sent");
            let (code, said) = tokio::join!(read(answer), async {
                tokio::task::yield_now().await;
                // A client that is answered may still be sending; it is not reset for that.
                body.send_data(Bytes::copy_from_slice(&sent.as_bytes()[half..]), true).expect("open");
            })
            .0;
            let said: Value = serde_json::from_slice(&said).expect("a whole Status");
            assert_eq!((code, &said["reason"]), (403, &json!("Forbidden")));
        }
    }
    // One that never comes to its end is told so: without an error.
    let (answer, mut body) = begin(&mut client, ("POST", MAPS), &[JANE, JSON], false).await;
    body.send_data("{".into(), false).expect("sent");
    assert_eq!(read(answer).await.0, 403);
    let reset = std::future::poll_fn(|context| body.poll_reset(context));
    let reset = tokio::time::timeout(PATIENCE, reset).await.expect("in time").expect("a reason");
    assert_eq!(reset, Reason::NO_ERROR);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_user_name_header_gives_no_rights() {
    let (audited, _files) = audited(|_| {}).await;
    let outside = audited.server.outside(None);
    let mut client = connect(&outside, &Builder::new()).await;
    let root = ("impersonate-user", "root");
    for (number, headers) in [
        vec![("impersonate-user", "jürgen")],
        vec![root, ("impersonate-group", "prüfer")],
        vec![root, ("impersonate-uid", "ü")],
        vec![root, ("impersonate-extra-scopes", "ü")],
        vec![("x-remote-user", "jürgen")],
        vec![("content-type", "ü")],
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("unreadable-{number}");
        let mut all = vec![ADMIN, ("audit-id", id.as_str())];
        all.extend(&headers);
        let (code, said) = ask(&mut client, ("GET", MAPS), &all).await;
        assert_eq!(code, 400, "{headers:?}: {}", String::from_utf8_lossy(&said));
        assert_eq!(audited.line(&id).await["responseStatus"]["code"], 400);
    }
    let (code, _) = ask(&mut client, ("GET", MAPS), &[("authorization", "Bearer ü")]).await;
    assert_eq!(code, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_headers_are_audited_over_http2() {
    let (audited, _files) = audited(|_| {}).await;
    let outside = audited.server.outside(None);
    let mut client = connect(&outside, &Builder::new()).await;
    for length in [150_000, 250_000] {
        let (id, long) = (format!("long-{length}"), "x".repeat(length));
        let headers = [("audit-id", id.as_str()), ("x-long", long.as_str())];
        assert_eq!(ask(&mut client, ("GET", "/version"), &headers).await.0, 431);
        assert_eq!(audited.line(&id).await["responseStatus"]["code"], 431);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_headers_take_little_memory() {
    let Some(process) = process().await else { return };
    let outside = process.outside();
    let before = process.resident_bytes();
    let frame = |kind: u8, stream: u32, payload: &[u8]| {
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        [&length[1..], &[kind, 0], &stream.to_be_bytes(), payload].concat()
    };
    // GET https://x/, then headers of 8,000 bytes each, none of them the last: HEADERS, CONTINUATION, CONTINUATION, ...
    let mut block = b"\x82\x87\x84\x41\x01x".to_vec();
    while block.len() < 3 * MEGABYTE / 2 {
        block.extend_from_slice(b"\x00\x01a\x7f\xc1\x3d");
        block.extend_from_slice(&[b'v'; 8000]);
    }
    let mut said = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    said.extend(frame(4, 0, b""));
    for (index, piece) in block.chunks(16384).enumerate() {
        said.extend(frame(if index == 0 { 1 } else { 9 }, 1, piece));
    }
    let mut held = Vec::new();
    for _ in 0..200 {
        let mut stream = outside.connect_http2().await;
        // The server may have enough of it before the end.
        let _ = stream.write_all(&said).await;
        held.push(stream);
    }
    let grown = held_memory(&process, before, 128 * MEGABYTE).await;
    assert!(grown < 128 * MEGABYTE, "{} MB", grown / MEGABYTE);
    let mut other = connect(&outside, &Builder::new()).await;
    assert_eq!(ask(&mut other, ("GET", "/readyz"), &[]).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_are_taken_back_at_once_hold_nobody_up() {
    let Some(process) = process().await else { return };
    let outside = process.outside();
    let mut client = connect(&outside, &Builder::new()).await;
    for _ in 0..5000 {
        let request = http::Request::get("https://127.0.0.1/version").body(()).expect("a request");
        // The server may end such a connection.
        let Ok(ready) = client.clone().ready().await else { break };
        client = ready;
        let Ok((_, mut stream)) = client.send_request(request, false) else { break };
        stream.send_reset(Reason::CANCEL);
    }
    let mut other = connect(&outside, &Builder::new()).await;
    assert_eq!(ask(&mut other, ("GET", "/readyz"), &[]).await.0, 200);
    assert_eq!(ask(&mut other, ("GET", MAPS), &[ADMIN]).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_do_not_exclude_clients() {
    let Some(process) = process().await else { return };
    let mut known = connect(&process.outside(), &Builder::new()).await;
    assert_eq!(ask(&mut known, ("GET", MAPS), &[ADMIN]).await.0, 200);
    let mut silent = Vec::new();
    for _ in 0..1500 {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", process.port())).await;
        silent.push(stream.expect("the server listens"));
    }
    let mut other = connect(&process.outside(), &Builder::new()).await;
    assert_eq!(ask(&mut other, ("GET", "/readyz"), &[]).await.0, 200);
    assert_eq!(ask(&mut known, ("GET", MAPS), &[ADMIN]).await.0, 200, "a known one is kept");
    // The oldest are ended long before the time for a handshake is over.
    let mut byte = [0; 1];
    let first = silent.first().expect("many");
    let ended = tokio::time::timeout(Duration::from_secs(5), async {
        loop {
            first.readable().await.expect("open");
            match first.try_read(&mut byte) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                ended => return ended,
            }
        }
    });
    assert!(matches!(ended.await.expect("in time"), Ok(0) | Err(_)));
}

/// Code, `Retry-After` and message of the head of an answer, and its body to go on with.
async fn head(answer: ResponseFuture) -> (u16, Option<String>, h2::RecvStream) {
    let answer = tokio::time::timeout(PATIENCE, answer).await.expect("in time").expect("an answer");
    let retry = answer.headers().get("retry-after").map(|value| value.to_str().expect("text").to_owned());
    (answer.status().as_u16(), retry, answer.into_body())
}

async fn message(mut body: h2::RecvStream) -> String {
    let mut bytes = Vec::new();
    while let Some(data) = body.data().await {
        bytes.extend_from_slice(&data.expect("the whole answer"));
    }
    let status: Value = serde_json::from_slice(&bytes).expect("a Status");
    status["message"].as_str().expect("a message").to_owned()
}

const WATCH: &str = "/api/v1/namespaces/default/configmaps?watch=1";

/// A watch over WebSocket, after its handshake.
async fn websocket_watch(outside: &Outside) -> impl tokio::io::AsyncRead {
    let mut stream = outside.connect().await;
    let request = format!(
        "GET {WATCH} HTTP/1.1\r\nhost: x\r\n{}: {}\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        MAX.0, MAX.1
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut line = [0; 12];
    stream.read_exact(&mut line).await.expect("an answer");
    assert_eq!(&line, b"HTTP/1.1 101");
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_of_one_user_are_limited() {
    const MOST: usize = 20;
    let (audited, _files) = audited(|config| config.max_long_running_of_user = MOST).await;
    let outside = audited.server.outside(None);
    let mut client = connect(&outside, &Builder::new()).await;
    let mut watches = Vec::new();
    for _ in 0..MOST {
        let (code, _, body) = head(begin(&mut client, ("GET", WATCH), &[ADMIN], true).await.0).await;
        assert_eq!(code, 200);
        watches.push(body);
    }
    let refused = [ADMIN, ("audit-id", "one-too-many")];
    let (code, retry, body) = head(begin(&mut client, ("GET", WATCH), &refused, true).await.0).await;
    assert_eq!((code, retry.as_deref()), (429, Some("5")));
    assert_eq!(
        message(body).await,
        "user \"root\" holds too many watches and streams: end some of them, or try again later"
    );
    let line = audited.line("one-too-many").await;
    assert_eq!((&line["responseStatus"]["code"], &line["user"]["username"]), (&json!(429), &json!("root")));
    // What does not last goes on, on another connection as well, and others have their own.
    assert_eq!(ask(&mut client, ("GET", MAPS), &[ADMIN]).await.0, 200);
    let mut other = connect(&outside, &Builder::new()).await;
    assert_eq!(head(begin(&mut other, ("GET", WATCH), &[ADMIN], true).await.0).await.0, 429);
    let mut sockets = Vec::new();
    for _ in 0..MOST {
        sockets.push(websocket_watch(&outside).await);
    }
    assert_eq!(head(begin(&mut other, ("GET", WATCH), &[MAX], true).await.0).await.0, 429);

    // Both sorts give their places back when they end.
    watches.pop();
    sockets.pop();
    for who in [ADMIN, MAX] {
        let give_up = tokio::time::Instant::now() + PATIENCE;
        while head(begin(&mut other, ("GET", WATCH), &[who], true).await.0).await.0 != 200 {
            assert!(tokio::time::Instant::now() < give_up, "{who:?} has no place");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_one_user_are_limited() {
    const MOST: usize = 5;
    let (audited, _files) = audited(|config| config.max_connections_of_user = MOST).await;
    let outside = audited.server.outside(None);
    let mut kept = Vec::new();
    for _ in 0..MOST {
        let mut client = connect(&outside, &Builder::new()).await;
        assert_eq!(ask(&mut client, ("GET", MAPS), &[ADMIN]).await.0, 200);
        kept.push(client);
    }
    let mut further = connect(&outside, &Builder::new()).await;
    let (code, retry, body) = head(begin(&mut further, ("GET", MAPS), &[ADMIN], true).await.0).await;
    assert_eq!((code, retry.as_deref()), (429, Some("5")));
    assert_eq!(
        message(body).await,
        "user \"root\" holds too many connections: close some of them, or try again later"
    );
    // The connection is not lost: it may be somebody else's, and is this user's when there is room.
    assert_eq!(ask(&mut further, ("GET", "/readyz"), &[]).await.0, 200);
    assert_eq!(ask(&mut kept[0], ("GET", MAPS), &[ADMIN]).await.0, 200);
    let mut others = connect(&outside, &Builder::new()).await;
    assert_eq!(ask(&mut others, ("GET", MAPS), &[MAX]).await.0, 200);
    kept.pop();
    let give_up = tokio::time::Instant::now() + PATIENCE;
    while ask(&mut further, ("GET", MAPS), &[ADMIN]).await.0 != 200 {
        assert!(tokio::time::Instant::now() < give_up, "there is room now");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The figures that the limits are made of (docs/security.md).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_and_an_idle_watch_take_little_memory() {
    const CONNECTIONS: usize = 100;
    const WATCHES: usize = 60;
    let Some(process) = process().await else { return };
    let outside = process.outside();
    let open = async |count: usize| {
        let mut clients = Vec::new();
        for _ in 0..count {
            let mut client = connect(&outside, &Builder::new()).await;
            assert_eq!(ask(&mut client, ("GET", MAPS), &[ADMIN]).await.0, 200);
            clients.push(client);
        }
        clients
    };
    // What the first ones need besides is not theirs alone.
    let mut warm = open(1).await;
    let _first = head(begin(&mut warm[0], ("GET", WATCH), &[ADMIN], true).await.0).await;
    let before = process.resident_bytes();
    let mut clients = open(CONNECTIONS).await;
    let connected = process.resident_bytes();
    let mut watches = Vec::new();
    for client in &mut clients {
        for _ in 0..WATCHES {
            let (code, _, body) = head(begin(client, ("GET", WATCH), &[ADMIN], true).await.0).await;
            assert_eq!(code, 200);
            watches.push(body);
        }
    }
    let watching = process.resident_bytes();
    let each = |from: usize, to: usize, count: usize| to.saturating_sub(from) as f64 / count as f64 / 1024.0;
    let connection = each(before, connected, CONNECTIONS);
    let watch = each(connected, watching, watches.len());
    println!("{connection:.1} KB a connection, {watch:.1} KB a watch");
    assert!(connection < 64.0, "{connection} KB a connection");
    assert!(watch < 8.0, "{watch} KB a watch");
}
