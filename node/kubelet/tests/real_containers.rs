//! The kubelet on a real containerd: static pods, no API server. What needs
//! an API server is tried through the whole cluster elsewhere.

mod support;

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

    input_is_half_closed(&node).await;
    exit_codes_are_told(&node).await;

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
    query: &str,
) -> tokio_tungstenite::WebSocketStream<tokio_rustls::client::TlsStream<tokio::net::TcpStream>> {
    let url = format!("wss://localhost:{}/exec/default/web-test-node/main?{query}", node.port());
    let mut request = url.into_client_request().expect("a request");
    request.headers_mut().insert("Sec-WebSocket-Protocol", "v5.channel.k8s.io".parse().expect("a value"));
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
    let mut socket = exec(node, "command=cat&input=1&output=1&error=1").await;
    socket.send(Message::binary(b"\0hello".to_vec())).await.expect("it is sent");
    // the end of input alone; the answer comes after it
    socket.send(Message::binary(vec![255, 0])).await.expect("it is sent");
    let (output, status) = answers(&mut socket).await;
    assert_eq!(output, "hello");
    assert_eq!(status["status"], "Success");
}

async fn exit_codes_are_told(node: &support::Node) {
    let mut socket = exec(node, "command=sh&command=-c&command=echo+out;+exit+7&output=1&error=1").await;
    let (output, status) = answers(&mut socket).await;
    assert_eq!(output, "out\n");
    assert_eq!(status["reason"], "NonZeroExitCode");
    assert_eq!(status["details"]["causes"][0]["message"], "7");
}
