//! The kubelet on a real containerd: static pods, no API server. What needs
//! an API server is tried through the whole cluster elsewhere.

mod support;

use std::time::Duration;

use ferry_kubelet::cri;
use ferry_kubelet::images::distribution::{BlobBody, Question, Registry};
use ferry_kubelet::images::{containerd, oci};
use ferry_kubelet::runtime::{labels, view};
use ferry_kubelet::streaming::spdy::{Role, Session};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use support::{IMAGE, eventually, node};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

fn container(name: &str, script: &str) -> Value {
    json!({"name": name, "image": IMAGE, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script]})
}

fn phase_is(phase: &'static str) -> impl Fn(&Value) -> bool {
    move |pod| pod["status"]["phase"] == phase
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|each| each["type"] == "Ready" && each["status"] == "True"))
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_run_are_reached_survive_a_restart_and_leave_nothing() {
    let Some(mut node) = node().await else { return };
    node.start_kubelet();

    let mut main = container(
        "main",
        "cat /data/made; echo problem >&2; trap 'exit 0' TERM; while true; do sleep 0.1; done",
    );
    main["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    main["readinessProbe"] = json!({"exec": {"command": ["cat", "/data/made"]}, "periodSeconds": 1});
    let mut first = container("first", "echo from-init > /data/made");
    first["volumeMounts"] = main["volumeMounts"].clone();
    node.run_pod(
        "web",
        json!({
            "hostNetwork": true,
            "terminationGracePeriodSeconds": 5,
            "initContainers": [first],
            "containers": [main],
            "volumes": [{"name": "data", "emptyDir": {}}],
        }),
    );
    node.run_pod("once", json!({"hostNetwork": true, "restartPolicy": "Never", "containers": [container("c", "echo bye > /dev/termination-log")]}));
    node.run_pod(
        "fails",
        json!({"hostNetwork": true, "restartPolicy": "Never", "containers": [container("c", "exit 3")]}),
    );
    node.run_pod("crashes", json!({"hostNetwork": true, "containers": [container("c", "exit 1")]}));

    let web = node.wait_for("web", "becomes ready", is_ready).await;
    let id = web["status"]["containerStatuses"][0]["containerID"].clone();
    assert!(id.as_str().is_some_and(|id| id.starts_with("containerd://")), "{id}");
    assert_eq!(web["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"], 0);

    let once = node.wait_for("once", "succeeds", phase_is("Succeeded")).await;
    assert_eq!(once["status"]["containerStatuses"][0]["state"]["terminated"]["message"], "bye\n");
    let fails = node.wait_for("fails", "fails", phase_is("Failed")).await;
    assert_eq!(fails["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 3);
    let crashed = |pod: &Value| {
        let status = &pod["status"]["containerStatuses"][0];
        status["state"]["waiting"]["reason"] == "CrashLoopBackOff"
            && status["restartCount"].as_i64() >= Some(1)
    };
    node.wait_for("crashes", "is held back", crashed).await;

    let (status, log) =
        node.get("/containerLogs/default/web-test-node/main").await.expect("the log is served");
    assert_eq!(status, 200);
    assert!(log.contains("from-init\n") && log.contains("problem\n"), "{log}");
    let (status, _) = node.get("/containerLogs/default/none/main").await.expect("an answer");
    assert_eq!(status, 404);
    let (_, summary) = node.get("/stats/summary").await.expect("statistics are served");
    let summary: Value = serde_json::from_str(&summary).expect("JSON");
    assert!(
        summary["pods"]
            .as_array()
            .is_some_and(|pods| pods.iter().any(|pod| pod["podRef"]["name"] == "web-test-node"))
    );

    for protocol in ["v5.channel.k8s.io", "v4.channel.k8s.io"] {
        exit_codes_are_told(&node, protocol).await;
    }
    input_is_half_closed(&node).await;
    commands_are_carried_over_spdy(&node).await;
    let (status, settings) = node.get("/configz").await.expect("settings are served");
    let settings: Value = serde_json::from_str(&settings).expect("JSON");
    assert_eq!((status, &settings["kubeletconfig"]["kind"]), (200, &json!("KubeletConfiguration")));

    // a kubelet that goes and comes back changes nothing
    node.stop_kubelet().await;
    assert!(!node.cgroup_processes().is_empty(), "containers go on without a kubelet");
    node.start_kubelet();
    let web = node.wait_for("web", "is taken over", is_ready).await;
    assert_eq!(web["status"]["containerStatuses"][0]["containerID"], id);
    assert_eq!(web["status"]["containerStatuses"][0]["restartCount"], 0);

    for name in ["web", "once", "fails", "crashes"] {
        node.delete_pod(name);
    }
    eventually("all sandboxes are gone", async || {
        node.runtime.list_pod_sandboxes(None).await.ok().filter(Vec::is_empty)
    })
    .await;
    eventually("all directories are gone", async || {
        let left = |path: &str| std::fs::read_dir(node.path(path)).map_or(0, Iterator::count);
        (left("kubelet/pods") == 0 && left("logs/pods") == 0).then_some(())
    })
    .await;
    assert!(node.cgroup_processes().is_empty());
    node.stop_kubelet().await;
}

/// Opens an exec over WebSocket, the way kubectl does.
async fn exec(
    node: &support::Node,
    protocol: &str,
    query: &str,
) -> tokio_tungstenite::WebSocketStream<tokio_rustls::client::TlsStream<tokio::net::TcpStream>> {
    let url = format!("wss://localhost:{}/exec/default/web-test-node/main?{query}", node.port());
    let mut request = url.into_client_request().expect("a request");
    request.headers_mut().insert("Sec-WebSocket-Protocol", protocol.parse().expect("a value"));
    let stream = node.connect().await.expect("the kubelet listens");
    let (socket, _) = tokio_tungstenite::client_async(request, stream).await.expect("it is upgraded");
    socket
}

/// Everything from one channel, and the final status.
async fn answers<S>(socket: &mut S) -> (String, Value)
where
    S: futures::Stream<Item = Result<Message, tokio_tungstenite::tungstenite::Error>> + Unpin,
{
    let (mut output, mut status) = (Vec::new(), Value::Null);
    while let Some(Ok(Message::Binary(bytes))) = socket.next().await {
        match bytes.split_first() {
            Some((1, text)) => output.extend_from_slice(text),
            Some((3, text)) if !text.is_empty() => status = serde_json::from_slice(text).expect("a status"),
            _ => {}
        }
    }
    (String::from_utf8(output).expect("text"), status)
}

async fn input_is_half_closed(node: &support::Node) {
    let mut socket = exec(node, "v5.channel.k8s.io", "command=cat&input=1&output=1&error=1").await;
    socket.send(Message::binary(b"\0hello".to_vec())).await.expect("it is sent");
    // the end of input alone; the answer comes after it
    socket.send(Message::binary(vec![255, 0])).await.expect("it is sent");
    let (output, status) = answers(&mut socket).await;
    assert_eq!(output, "hello");
    assert_eq!(status["status"], "Success");
}

async fn exit_codes_are_told(node: &support::Node, protocol: &str) {
    let mut socket =
        exec(node, protocol, "command=sh&command=-c&command=echo+out;+exit+7&output=1&error=1").await;
    let (output, status) = answers(&mut socket).await;
    assert_eq!(output, "out\n");
    assert_eq!(status["reason"], "NonZeroExitCode");
    assert_eq!(status["details"]["causes"][0]["message"], "7");
}

/// As older clients do it: the connection becomes SPDY/3.1, one stream for each thing.
async fn commands_are_carried_over_spdy(node: &support::Node) {
    let stream = hyper_util::rt::TokioIo::new(node.connect().await.expect("the kubelet listens"));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.expect("HTTP");
    tokio::spawn(connection.with_upgrades());
    let request =
        http::Request::post("/exec/default/web-test-node/main?command=cat&input=1&output=1&error=1")
            .header("Host", "localhost")
            .header("Connection", "Upgrade")
            .header("Upgrade", "SPDY/3.1")
            .header("X-Stream-Protocol-Version", "v4.channel.k8s.io")
            .body(http_body_util::Empty::<bytes::Bytes>::new());
    let answer = sender.send_request(request.expect("a request")).await.expect("an answer");
    assert_eq!(answer.status(), 101);
    assert_eq!(answer.headers()["x-stream-protocol-version"], "v4.channel.k8s.io");
    let upgraded = hyper::upgrade::on(answer).await.expect("it is upgraded");
    let (session, _) = Session::start(hyper_util::rt::TokioIo::new(upgraded), Role::Client);
    let open = async |kind: &str| {
        session.open(vec![("streamtype".into(), kind.into())]).await.expect("a stream opens")
    };
    let mut error = open("error").await;
    let mut stdin = open("stdin").await;
    let mut stdout = open("stdout").await;
    let _stderr = open("stderr").await;
    stdin.writer.write(bytes::Bytes::from_static(b"over spdy")).await.expect("it is sent");
    // the end of input alone; the answer comes after it
    stdin.writer.close().await.expect("it is closed");
    assert_eq!(stdout.reader.read_to_end(1024).await, b"over spdy");
    let status: Value = serde_json::from_slice(&error.reader.read_to_end(1024).await).expect("a status");
    assert_eq!(status["status"], "Success");
}

/// A name inside the runtime that is taken by what nobody says is whose: by a crash, or by hand.
#[tokio::test(flavor = "multi_thread")]
async fn mounts_in_a_volume_reach_where_they_are_let() {
    let Some(mut node) = node().await else { return };
    node.start_kubelet();
    let mounts =
        |propagation: &str| json!([{"name": "shared", "mountPath": "/v", "mountPropagation": propagation}]);
    let stays = "trap 'exit 0' TERM; while true; do sleep 0.1; done";
    let mut master = container(
        "master",
        &format!(
            "/bin/busybox mkdir /v/m; /bin/busybox mount -t tmpfs m /v/m && touch /v/m/made; touch /v/done; {stays}"
        ),
    );
    master["securityContext"] = json!({"privileged": true});
    master["volumeMounts"] = mounts("Bidirectional");
    let waits = |test: &str| format!("until [ -e /v/done ]; do sleep 0.1; done; {test} && {stays}");
    let mut slave =
        container("slave", &format!("until [ -e /v/m/made ]; do sleep 0.1; done; touch /v/slave; {stays}"));
    slave["volumeMounts"] = mounts("HostToContainer");
    slave["readinessProbe"] =
        json!({"exec": {"command": ["ls", "/v/m/made", "/v/slave"]}, "periodSeconds": 1});
    let mut private = container("private", &waits("[ ! -e /v/m/made ]"));
    private["volumeMounts"] = mounts("None");
    private["readinessProbe"] = json!({"exec": {"command": ["ls", "/v/done"]}, "periodSeconds": 1});
    let spec = json!({
        "hostNetwork": true,
        "terminationGracePeriodSeconds": 1,
        "restartPolicy": "Never",
        "containers": [master, slave, private],
        "volumes": [{"name": "shared", "emptyDir": {}}],
    });
    node.run_pod("mounts", spec);
    node.wait_for("mounts", "sees its mounts", is_ready).await;

    let (status, running) = node.get("/runningpods/").await.expect("it is served");
    let running: Value = serde_json::from_str(&running).expect("JSON");
    assert_eq!((status, &running["items"][0]["metadata"]["name"]), (200, &json!("mounts-test-node")));
    let names: Vec<&Value> = running["items"][0]["spec"]["containers"]
        .as_array()
        .map(|all| all.iter().map(|each| &each["name"]).collect())
        .unwrap_or_default();
    assert_eq!(names.len(), 3, "{running}");

    let (status, health) = node.get("/healthz?verbose").await.expect("it is served");
    assert_eq!(
        (status, health.as_str()),
        (200, "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n")
    );
    for check in ["ping", "log", "syncloop"] {
        let answer = node.get(&format!("/healthz/{check}")).await.expect("it is served");
        assert_eq!(answer, (200, "ok".into()), "{check}");
    }
    assert_eq!(node.get("/healthz/none").await.map(|answer| answer.0), Ok(404));
    let (_, slis) = node.get("/metrics/slis").await.expect("it is served");
    assert!(slis.contains("kubernetes_healthcheck{name=\"syncloop\",type=\"healthz\"} 1\n"), "{slis}");

    node.delete_pod("mounts");
    eventually("the volume with its mount is gone", async || {
        let left = std::fs::read_dir(node.path("kubelet/pods")).map_or(0, Iterator::count);
        (left == 0).then_some(())
    })
    .await;
    let (_, metrics) = node.get("/metrics").await.expect("it is served");
    let ended = metrics.lines().find(|line| {
        line.starts_with("kubelet_terminated_containers_total{container_type=\"container\",exit_code=\"0\"")
    });
    assert!(ended.is_some(), "{metrics}");
    node.stop_kubelet().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_taken_in_the_runtime_are_freed() {
    let Some(mut node) = node().await else { return };
    node.start_kubelet();
    let runs = "trap 'exit 0' TERM; while true; do sleep 0.1; done";
    let spec = |image: &str| {
        let mut container = container("c", runs);
        container["image"] = json!(image);
        container["imagePullPolicy"] = json!("Never");
        json!({"hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": [container]})
    };
    node.run_pod("sandbox", spec(IMAGE));
    node.wait_for("sandbox", "becomes ready", is_ready).await;

    // the pod's sandbox is made anew under its name, without the labels by which the kubelet finds its own
    node.stop_kubelet().await;
    let sandboxes = node.runtime.list_pod_sandboxes(None).await.expect("sandboxes are listed");
    let own = sandboxes.first().expect("there is one");
    node.runtime.stop_pod_sandbox(&own.id).await.expect("it stops");
    node.runtime.remove_pod_sandbox(&own.id).await.expect("it is removed");
    let host = cri::NamespaceOption { network: cri::NamespaceMode::Node as i32, ..Default::default() };
    let config = cri::PodSandboxConfig {
        metadata: own.metadata.clone(),
        linux: Some(cri::LinuxPodSandboxConfig {
            security_context: Some(cri::LinuxSandboxSecurityContext {
                namespace_options: Some(host),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let holder = node.runtime.run_pod_sandbox(config.clone(), "").await.expect("the name is free");
    node.start_kubelet();
    node.wait_for("sandbox", "becomes ready again", is_ready).await;
    let (sandboxes, _) = node.has().await;
    assert!(sandboxes.len() == 1 && sandboxes[0] != holder, "{sandboxes:?}");

    // a container of the name that another needs, which waits for its image
    const LATER: &str = "docker.io/library/later:test";
    node.run_pod("container", spec(LATER));
    let waits = |pod: &Value| {
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        waiting["reason"] == "ErrImageNeverPull"
    };
    let pod = node.wait_for("container", "waits for its image", waits).await;
    let uid = pod["metadata"]["uid"].as_str().expect("it has one").to_string();
    let sandboxes = node.runtime.list_pod_sandboxes(None).await.expect("sandboxes are listed");
    let of_pod = |sandbox: &&cri::PodSandbox| sandbox.metadata.as_ref().is_some_and(|data| data.uid == uid);
    let sandbox = sandboxes.iter().find(of_pod).expect("it has a sandbox");
    let foreign = cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: "c".into(), attempt: 0 }),
        image: Some(cri::ImageSpec { image: IMAGE.into(), ..Default::default() }),
        command: vec!["sleep".into(), "3600".into()],
        ..Default::default()
    };
    let config = cri::PodSandboxConfig { metadata: sandbox.metadata.clone(), ..config };
    let holder = node.runtime.create_container(&sandbox.id, foreign, config).await.expect("the name is free");
    node.import(LATER).await;
    node.wait_for("container", "becomes ready", is_ready).await;
    let (_, containers) = node.has().await;
    assert!(containers.len() == 2 && !containers.contains(&holder), "{containers:?}");

    node.delete_pod("sandbox");
    node.delete_pod("container");
    eventually("all is gone", async || (node.has().await == (vec![], vec![])).then_some(())).await;
    node.stop_kubelet().await;
}

/// Asks for the start of a container and is gone after a moment, as a kubelet is that is killed.
fn asks_and_dies(endpoint: &str, id: String, after: Duration) {
    let runtime = cri::Client::new(endpoint).expect("a socket's path");
    let caller = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let caller = caller.expect("threads can be made");
    let _ = caller.block_on(async {
        let asked = tokio::spawn(async move { runtime.start_container(&id).await });
        tokio::time::timeout(after, asked).await
    });
    caller.shutdown_background();
}

/// What became of a container; one that was not asked for in time stays as it was made.
async fn settled(node: &support::Node, id: &str) -> cri::ContainerStatus {
    let looks = std::cell::Cell::new(0);
    let ended = async || {
        looks.set(looks.get() + 1);
        let status = node.runtime.container_status(id).await.expect("it is there")?;
        let is_created = status.state == cri::ContainerState::ContainerCreated as i32;
        let is_exited = status.state == cri::ContainerState::ContainerExited as i32;
        (is_exited || (is_created && looks.get() > 40)).then_some(status)
    };
    eventually("the start has ended one way or the other", ended).await
}

/// A container of a pod, whose start was interrupted. At whatever moment that was, it counts as created.
async fn interrupted(node: &support::Node, sandbox: &cri::PodSandbox, image: &str) -> String {
    let mut last: Option<String> = None;
    let config = cri::PodSandboxConfig { metadata: sandbox.metadata.clone(), ..Default::default() };
    for attempt in 0..12 {
        let mut labels = sandbox.labels.clone();
        labels.insert(labels::CONTAINER_NAME.into(), "c".into());
        let container = cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata { name: "c".into(), attempt }),
            image: Some(cri::ImageSpec { image: image.into(), ..Default::default() }),
            command: vec!["true".into()],
            labels,
            ..Default::default()
        };
        let created = node.runtime.create_container(&sandbox.id, container, config.clone()).await;
        let id = created.expect("it is made");
        let (endpoint, asked) = (node.endpoint(), id.clone());
        let after = Duration::from_millis(u64::from(5 + 5 * attempt));
        let died = tokio::task::spawn_blocking(move || asks_and_dies(&endpoint, asked, after));
        died.await.expect("it does not panic");
        let status = settled(node, &id).await;
        let superseded = if status.reason == "StartError" {
            assert_eq!(view::container(&status, "").state, view::State::Created, "{status:?}");
            last.replace(id)
        } else {
            Some(id)
        };
        if let Some(id) = superseded {
            // not while containerd has not given the start up yet
            let removed = async || node.runtime.remove_container(&id).await.ok();
            eventually("it is removed", removed).await;
        }
    }
    last.expect("a start that takes some milliseconds is interrupted at one of them")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_whose_start_was_interrupted_is_started_anew() {
    const LATER: &str = "docker.io/library/once:test";
    let Some(mut node) = node().await else { return };
    node.start_kubelet();
    let mut once = container("c", "exit 0");
    once["image"] = json!(LATER);
    once["imagePullPolicy"] = json!("Never");
    node.run_pod("once", json!({"hostNetwork": true, "restartPolicy": "Never", "containers": [once]}));
    let waits = |pod: &Value| {
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        waiting["reason"] == "ErrImageNeverPull"
    };
    node.wait_for("once", "waits for its image", waits).await;
    node.stop_kubelet().await;

    node.import(LATER).await;
    let sandboxes = node.runtime.list_pod_sandboxes(None).await.expect("sandboxes are listed");
    let sandbox = sandboxes.first().expect("there is one");
    let interrupted = interrupted(&node, sandbox, LATER).await;

    node.start_kubelet();
    node.wait_for("once", "has run", phase_is("Succeeded")).await;
    let (_, containers) = node.has().await;
    assert!(!containers.contains(&interrupted), "{containers:?}");
    node.delete_pod("once");
    eventually("all is gone", async || (node.has().await == (vec![], vec![])).then_some(())).await;
    node.stop_kubelet().await;
}

/// An image that is to be asked for each time is not asked for where it was loaded by hand.
#[tokio::test(flavor = "multi_thread")]
async fn a_loaded_image_counts_as_just_pulled() {
    let Some(mut node) = node().await else { return };
    node.load("registry.invalid/loaded:latest").await;
    node.start_kubelet();
    let spec = |image: &str| {
        let mut container = container("c", "trap 'exit 0' TERM; while true; do sleep 0.1; done");
        container["image"] = json!(image);
        container["imagePullPolicy"] = json!("Always");
        json!({"hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": [container]})
    };
    node.run_pod("loaded", spec("registry.invalid/loaded"));
    node.wait_for("loaded", "becomes ready", is_ready).await;

    // one that Ferry did not load must be pulled, and says why it is not
    node.import("registry.invalid/imported:latest").await;
    node.run_pod("imported", spec("registry.invalid/imported"));
    let waits = |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["waiting"].clone();
    let pod = node.wait_for("imported", "fails", |pod| waits(pod)["message"].is_string()).await;
    let message = waits(&pod)["message"].as_str().expect("text").to_string();
    assert!(message.contains("registry.invalid cannot be reached"), "{message}");
    assert!(message.contains("no network") && message.contains("ferry image load"), "{message}");
    node.stop_kubelet().await;
}

/// The registry of loaded images, as any client of registries asks it.
#[tokio::test(flavor = "multi_thread")]
async fn only_loaded_images_are_served_to_nodes() {
    let Some(node) = node().await else { return };
    node.load("docker.io/library/loaded:1").await;
    let registry = Registry::new(containerd::Client::new(&node.endpoint()).expect("a socket's path"));
    let ask = async |path: &str, meant: Option<&str>, range: Option<&str>| {
        let question = Question {
            method: http::Method::GET,
            path: path.into(),
            registry: meant.map(str::to_string),
            range: range.map(str::to_string),
        };
        let (head, answer) = registry.answer(&question).await.into_parts();
        let body = match answer {
            BlobBody::Bytes(bytes) => bytes.to_vec(),
            BlobBody::Stream(pieces) => pieces.collect::<Vec<_>>().await.concat(),
        };
        let length = head.headers[http::header::CONTENT_LENGTH].to_str().expect("text").to_string();
        assert_eq!(length, body.len().to_string(), "{path}");
        (head.status.as_u16(), head.headers, body)
    };
    assert_eq!(ask("/v2/", None, None).await.0, 200);
    let by_tag = "/v2/library/loaded/manifests/1";
    let (status, headers, manifest) = ask(by_tag, Some("docker.io"), None).await;
    assert_eq!(status, 200);
    let digest = headers["docker-content-digest"].to_str().expect("text");
    assert_eq!(digest, oci::digest(&manifest));
    let by_digest = format!("/v2/library/loaded/manifests/{digest}");
    assert_eq!(ask(&by_digest, None, None).await.2, manifest);

    let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("a manifest");
    let layer = manifest["layers"][0]["digest"].as_str().expect("a layer");
    let blob = format!("/v2/library/loaded/blobs/{layer}");
    let (status, _, whole) = ask(&blob, None, None).await;
    assert_eq!((status, oci::digest(&whole).as_str()), (200, layer));
    let (status, headers, part) = ask(&blob, None, Some("bytes=1000000-1000009")).await;
    assert_eq!((status, part.as_slice()), (206, &whole[1_000_000..1_000_010]));
    let told = format!("bytes 1000000-1000009/{}", whole.len());
    assert_eq!(headers[http::header::CONTENT_RANGE], told.as_str());

    // the same content under a name that nobody loaded, and another registry's image of that name
    for (path, meant) in [
        ("/v2/library/busybox/manifests/test", None),
        (&blob.replace("loaded", "busybox"), None),
        (by_tag, Some("registry.example")),
        ("/v2/library/loaded/manifests/2", None),
        (&format!("/v2/library/loaded/blobs/sha256:{}", "0".repeat(64)), None),
        ("/v2/library/loaded/tags/list", None),
    ] {
        assert_eq!(ask(path, meant, None).await.0, 404, "{path} {meant:?}");
    }
}
