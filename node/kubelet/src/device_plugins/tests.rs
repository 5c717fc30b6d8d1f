use super::*;
use std::collections::BTreeSet;
use std::time::Duration;

use ferry_plugins_api::deviceplugin as api;
use ferry_plugins_api::deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use ferry_plugins_api::deviceplugin::registration_client::RegistrationClient;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status};

const RESOURCE: &str = "example.com/gpu";

/// A plugin that notes its calls.
#[derive(Clone)]
struct Played {
    calls: Arc<Mutex<Vec<String>>>,
    devices: watch::Sender<Vec<api::Device>>,
    preferred: Vec<String>,
    /// Ends what it says of its devices, as its own end does.
    end: CancellationToken,
}

fn listed(ids: &[(&str, &str, &[i64])]) -> Vec<api::Device> {
    let device = |(id, health, nodes): &(&str, &str, &[i64])| api::Device {
        id: id.to_string(),
        health: health.to_string(),
        topology: (!nodes.is_empty())
            .then(|| api::TopologyInfo { nodes: nodes.iter().map(|id| api::NumaNode { id: *id }).collect() }),
    };
    ids.iter().map(device).collect()
}

#[tonic::async_trait]
impl DevicePlugin for Played {
    type ListAndWatchStream = ReceiverStream<Result<api::ListAndWatchResponse, Status>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<api::Empty>,
    ) -> Result<Response<api::DevicePluginOptions>, Status> {
        let get_preferred_allocation_available = !self.preferred.is_empty();
        Ok(Response::new(api::DevicePluginOptions {
            pre_start_required: true,
            get_preferred_allocation_available,
        }))
    }

    async fn list_and_watch(
        &self,
        _: Request<api::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let (said, stream) = mpsc::channel(1);
        let (mut devices, end) = (self.devices.subscribe(), self.end.clone());
        tokio::spawn(async move {
            loop {
                let now = devices.borrow_and_update().clone();
                if said.send(Ok(api::ListAndWatchResponse { devices: now })).await.is_err() {
                    return;
                }
                tokio::select! {
                    () = said.closed() => return,
                    () = end.cancelled() => return,
                    changed = devices.changed() => if changed.is_err() { return },
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<api::PreferredAllocationRequest>,
    ) -> Result<Response<api::PreferredAllocationResponse>, Status> {
        let asked = &request.get_ref().container_requests[0];
        let available = asked.available_device_i_ds.join(",");
        self.calls.lock().push(format!("prefer {} of {available}", asked.allocation_size));
        let device_i_ds = self.preferred.clone();
        let container_responses = vec![api::ContainerPreferredAllocationResponse { device_i_ds }];
        Ok(Response::new(api::PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<api::AllocateRequest>,
    ) -> Result<Response<api::AllocateResponse>, Status> {
        let ids = request.get_ref().container_requests[0].devices_ids.join(",");
        self.calls.lock().push(format!("allocate {ids}"));
        let envs = [("DEVICES".to_owned(), ids)].into();
        let container_responses = vec![api::ContainerAllocateResponse { envs, ..Default::default() }];
        Ok(Response::new(api::AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<api::PreStartContainerRequest>,
    ) -> Result<Response<api::PreStartContainerResponse>, Status> {
        self.calls.lock().push(format!("start {}", request.get_ref().devices_ids.join(",")));
        Ok(Response::new(api::PreStartContainerResponse {}))
    }
}

impl Played {
    fn new(devices: &[(&str, &str, &[i64])], preferred: &[&str]) -> Self {
        let preferred = preferred.iter().map(ToString::to_string).collect();
        let devices = watch::Sender::new(listed(devices));
        Self { calls: Arc::default(), devices, preferred, end: CancellationToken::new() }
    }

    /// Serves below the kubelet's directory and registers.
    async fn start(&self, root: &Path) {
        let directory = root.join(SOCKETS);
        let listener = crate::grpc_socket::bind(&directory.join("gpu.sock")).expect("a socket");
        let service = DevicePluginServer::new(self.clone());
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
        let request = api::RegisterRequest {
            version: "v1beta1".into(),
            endpoint: "gpu.sock".into(),
            resource_name: RESOURCE.into(),
            options: None,
        };
        let socket = directory.join("kubelet.sock").display().to_string();
        let channel = crate::cri::unix_channel(&socket).expect("a path");
        RegistrationClient::new(channel).register(request).await.expect("registered");
    }
}

/// A kubelet's part, with its socket open.
async fn kubelet(root: &Path, stop: &CancellationToken) -> (Arc<DevicePlugins>, JoinHandle<()>) {
    let plugins = Arc::new(DevicePlugins::new(root, Arc::new(|_: &_| {})).expect("a good checkpoint"));
    let serving = tokio::spawn(registration::run(plugins.clone(), stop.clone()));
    let socket = root.join(SOCKETS).join("kubelet.sock");
    until(|| tokio::net::UnixStream::connect(socket.clone()), Result::is_ok).await;
    (plugins, serving)
}

async fn until<T, F: Future<Output = T>>(mut look: impl FnMut() -> F, is_it: impl Fn(&T) -> bool) {
    let waiting = async {
        while !is_it(&look().await) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("it comes to be so");
}

/// What the node's status has of the resource.
fn shown(plugins: &DevicePlugins) -> Option<(String, String)> {
    let (mut capacity, mut allocatable) = (BTreeMap::new(), BTreeMap::new());
    plugins.add_to(&mut capacity, &mut allocatable);
    Some((capacity.remove(RESOURCE)?.0, allocatable.remove(RESOURCE)?.0))
}

async fn until_shown(plugins: &DevicePlugins, capacity: &str, allocatable: &str) {
    let expected = Some((capacity.to_owned(), allocatable.to_owned()));
    until(|| std::future::ready(shown(plugins)), |shown| *shown == expected).await;
}

fn pod(uid: &str, containers: Value, init_containers: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": uid, "namespace": "default", "uid": uid},
        "spec": {"containers": containers, "initContainers": init_containers},
    }))
    .expect("a pod")
}

fn wants(name: &str, count: usize) -> Value {
    json!({"name": name, "resources": {"limits": {RESOURCE: count.to_string(), "cpu": "1"}}})
}

#[tokio::test]
async fn a_pod_has_its_devices_until_it_has_stopped_over_a_restart() {
    let root = tempfile::tempdir().expect("a directory can be made");
    std::fs::create_dir(root.path().join(SOCKETS)).expect("a directory can be made");
    let stop = CancellationToken::new();
    let (before, serving) = kubelet(root.path(), &stop).await;
    let pod = pod("u", json!([wants("c", 2)]), json!([]));
    assert_eq!(shown(&before), None);
    before.allocate(&pod).await.expect("a resource without a plugin is none of the kubelet's");

    let played =
        Played::new(&[("a", "Healthy", &[]), ("b", "Healthy", &[0, 1]), ("c", "Healthy", &[])], &["c", "b"]);
    played.start(root.path()).await;
    until_shown(&before, "3", "3").await;
    before.allocate(&pod).await.expect("there are enough");
    before.allocate(&pod).await.expect("it has them");
    assert_eq!(*played.calls.lock(), ["prefer 2 of a,b,c", "allocate b,c"]);
    let second = self::pod("v", json!([wants("c", 2)]), json!([]));
    let said = before.allocate(&second).await.expect_err("one is left").to_string();
    assert_eq!(
        said,
        "requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1"
    );
    assert!(!before.is_held_by("v"));

    stop.cancel();
    before.stopped().await;
    serving.await.expect("it ends by itself");
    let stop = CancellationToken::new();
    let _stopped = stop.clone().drop_guard();
    let (after, _) = kubelet(root.path(), &stop).await;
    assert_eq!(shown(&after), Some(("0".into(), "0".into())), "its plugin has not come yet");
    after.allocate(&pod).await.expect("a pod keeps what it was given");
    let said = after.allocate(&second).await.expect_err("nobody to ask").to_string();
    assert_eq!(said, "no healthy devices present; cannot allocate unhealthy devices example.com/gpu");
    played.start(root.path()).await;
    until_shown(&after, "3", "3").await;
    let mut config = cri::ContainerConfig::default();
    let container = &pod::spec(&pod).containers[0];
    after.prepare(&pod, container, &mut config).await.expect("it may start");
    assert_eq!((config.envs[0].key.as_str(), config.envs[0].value.as_slice()), ("DEVICES", &b"b,c"[..]));
    assert_eq!(played.calls.lock().last().map(String::as_str), Some("start b,c"));
    let given: Vec<_> = after.given("u", "c").into_iter().map(|given| (given.device, given.nodes)).collect();
    assert_eq!(given, [("b".into(), vec![0, 1]), ("c".into(), vec![])]);

    played.devices.send_replace(listed(&[
        ("a", "Healthy", &[]),
        ("b", "Unhealthy", &[]),
        ("c", "Healthy", &[]),
    ]));
    until_shown(&after, "3", "2").await;
    let status = json!({"containerStatuses": [
        {"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0},
    ]});
    let mut status: PodStatus = serde_json::from_value(status).expect("a status");
    after.show(&pod, &mut status);
    let statuses = &status.container_statuses.expect("as above")[0].allocated_resources_status;
    assert_eq!(
        serde_json::to_value(statuses).expect("JSON"),
        json!([{"name": RESOURCE, "resources": [
            {"resourceID": "b", "health": "Unhealthy"}, {"resourceID": "c", "health": "Healthy"},
        ]}])
    );

    assert!(after.release("u"));
    played.end.cancel();
    until_shown(&after, "3", "0").await;
    let said = after.allocate(&second).await.expect_err("the plugin is gone").to_string();
    assert_eq!(said, "no healthy devices present; cannot allocate unhealthy devices example.com/gpu");
}

#[test]
fn init_containers_hand_their_devices_on_and_sidecars_keep_theirs() {
    let mut sidecar = wants("s", 1);
    sidecar["restartPolicy"] = json!("Always");
    let pod = pod("u", json!([wants("c", 2), wants("d", 1)]), json!([wants("i", 2), sidecar]));
    let mut state = State::default();
    let ids: [(&str, &str, &[i64]); 4] =
        [("a", "Healthy", &[]), ("b", "Healthy", &[]), ("c", "Healthy", &[]), ("d", "Healthy", &[])];
    state.take_in(RESOURCE, listed(&ids));
    let mut given = |container: &str, required: usize| -> Vec<String> {
        let candidates = state.candidates(&pod, container, RESOURCE, required).expect("there are enough");
        let chosen = candidates.expect("it has none yet").choose(&[]);
        let devices = state.by_node(RESOURCE, &chosen);
        let allocation = Allocation { devices, ..Allocation::default() };
        state.allocations.insert("u", container, RESOURCE, allocation);
        chosen.into_iter().collect()
    };
    assert_eq!(given("i", 2), ["a", "b"]);
    assert_eq!(given("s", 1), ["a"], "what an init container had");
    assert_eq!(given("c", 2), ["b", "c"], "what is left of that, and another");
    assert_eq!(given("d", 1), ["d"]);
}

#[test]
fn allocatable_devices_are_healthy_and_free() {
    let pod = pod("u", json!([wants("c", 2)]), json!([]));
    let now = Instant::now();
    let mut state = State::default();
    let said = |state: &State, required| {
        let candidates = state.candidates(&pod, "c", RESOURCE, required);
        candidates.map(|candidates| candidates.map(|candidates| candidates.choose(&["x".into(), "b".into()])))
    };
    assert_eq!(said(&state, 1), Err(state::Error::Unregistered(RESOURCE.into())));
    let changed = state
        .take_in(RESOURCE, listed(&[("a", "Healthy", &[]), ("b", "Healthy", &[]), ("z", "Unhealthy", &[])]));
    assert_eq!(changed, BTreeSet::from(["a".into(), "b".into(), "z".into()]));
    assert_eq!(
        said(&state, 1),
        Ok(Some(BTreeSet::from(["b".into()]))),
        "the plugin's choice, where it is one"
    );
    let (resource, requested, available) = (RESOURCE.into(), 3, 2);
    assert_eq!(said(&state, 3), Err(state::Error::Unavailable { resource, requested, available }));
    let devices = state.by_node(RESOURCE, &BTreeSet::from(["a".into(), "b".into()]));
    state.allocations.insert("u", "c", RESOURCE, Allocation { devices, ..Allocation::default() });
    assert_eq!(said(&state, 2), Ok(None));
    let said_changed = said(&state, 1).expect_err("a request does not change").to_string();
    assert_eq!(
        said_changed,
        r#"pod "u" container "c" changed request for resource "example.com/gpu" from 2 to 1"#
    );
    state.take_in(RESOURCE, listed(&[("a", "Healthy", &[]), ("b", "Unhealthy", &[])]));
    assert_eq!(said(&state, 2), Err(state::Error::NoLongerHealthy(RESOURCE.into())));

    state.set_gone(RESOURCE, now);
    state.set_gone(RESOURCE, now + Duration::from_secs(9));
    let count = |state: &mut State, now| state.counts(now).0[RESOURCE];
    let (capacity, allocatable) = (2, 0);
    assert_eq!(count(&mut state, now), state::Count { capacity, allocatable });
    let (counts, is_less) = state.counts(now + state::GRACE);
    assert_eq!((counts[RESOURCE], is_less), (state::Count::default(), true));
    assert!(state.registered().is_empty());
    assert!(state.is_of_plugin(RESOURCE), "a pod has some of it");
    state.take_in(RESOURCE, listed(&[("a", "Healthy", &[])]));
    assert_eq!(count(&mut state, now + state::GRACE * 2), state::Count { capacity: 1, allocatable: 1 });
}

/// The first request of a client in Go that dials the socket by its path: its headers, as Go's encoder writes them, name
/// that path as authority.
#[tokio::test]
async fn a_client_that_names_the_sockets_path_as_authority_is_answered() {
    const HEADERS: &str = "8386459563b8632a4615f6966321360d263d4c6d2cc6424b6741a754587b8ec545868346a8b0f5b632d054aa2c3217b98855aba2d98d5215161eb6c65a0a95d072755f8b1d75d0620d263d4c4d65647a8a9acac8b4c7602bbc15c140027465864d833505b11f40899acac8b24d494f6a7f847df7dfa7";
    use prost::Message;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let mut frame = u32::try_from(payload.len()).expect("short").to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags, 0, 0, 0, stream]);
        frame.extend(payload);
        frame
    };
    let root = tempfile::tempdir().expect("a directory can be made");
    let stop = CancellationToken::new();
    let _stopped = stop.clone().drop_guard();
    let (_plugins, _) = kubelet(root.path(), &stop).await;
    let byte = |at: usize| u8::from_str_radix(&HEADERS[at..at + 2], 16).expect("hexadecimal");
    let headers: Vec<u8> = (0..HEADERS.len()).step_by(2).map(byte).collect();
    let request = api::RegisterRequest { version: "v1alpha".into(), ..Default::default() }.encode_to_vec();
    let mut message = vec![0, 0, 0, 0, u8::try_from(request.len()).expect("short")];
    message.extend(request);

    let socket = root.path().join(SOCKETS).join("kubelet.sock");
    let mut stream = tokio::net::UnixStream::connect(socket).await.expect("it listens");
    let mut said = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    said.extend([frame(4, 0, 0, &[]), frame(1, 4, 1, &headers), frame(0, 1, 1, &message)].concat());
    stream.write_all(&said).await.expect("sent");
    let answered = async {
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.expect("a frame");
            let length = usize::from(head[1]) << 8 | usize::from(head[2]);
            let mut payload = vec![0; length];
            stream.read_exact(&mut payload).await.expect("a whole frame");
            // of the stream: headers, or a reset
            if head[8] == 1 && matches!(head[3], 1 | 3) {
                return (head[3], payload);
            }
        }
    };
    let answered = tokio::time::timeout(Duration::from_secs(60), answered).await.expect("an answer");
    assert_eq!(answered.0, 1, "headers, and no reset: {answered:x?}");
}
