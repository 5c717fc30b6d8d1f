//! Device plugins: one that registers at the kubelet's socket has its devices in the node's status, and pods that ask for
//! some have what it answers, over restarts of the kubelet; it may also come as other plugins do.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferry_plugins_api::deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use ferry_plugins_api::deviceplugin::registration_client::RegistrationClient;
use ferry_plugins_api::deviceplugin::{self as api, Empty};
use ferry_plugins_api::podresources as resources;
use ferry_plugins_api::podresources::pod_resources_lister_client::PodResourcesListerClient;
use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Response, Status};

use crate::cluster::Cluster;
use crate::host::{ferry, run};
use crate::registration;
use crate::volumes::get;

const RESOURCE: &str = "devices.example.com/pen";

/// A plugin of three devices.
#[derive(Clone)]
struct Plugin {
    kubelet: PathBuf,
    /// The devices of each Allocate.
    allocated: Arc<Mutex<Vec<String>>>,
}

/// How a plugin comes.
#[derive(Clone, Copy)]
enum Comes {
    /// It calls the kubelet, again whenever the kubelet's socket is another.
    Calling,
    /// It puts a socket where the kubelet looks.
    Watched,
}

impl Plugin {
    fn new(cluster: &Cluster) -> Plugin {
        Plugin { kubelet: cluster.data_dir().join("kubelet"), allocated: Arc::default() }
    }

    fn sockets(&self) -> PathBuf {
        self.kubelet.join("device-plugins")
    }

    fn registration(&self) -> PathBuf {
        self.kubelet.join("plugins_registry").join("pen-reg.sock")
    }

    /// What the plugin mounts: a directory of the host.
    fn mounted(&self) -> PathBuf {
        self.kubelet.join("pens")
    }

    /// Serves until the returned runtime is dropped.
    fn start(&self, comes: Comes) -> Running {
        std::fs::create_dir_all(self.mounted()).unwrap();
        std::fs::write(self.mounted().join("ink"), "blue").unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        match comes {
            Comes::Calling => runtime.spawn(self.clone().call_the_kubelet()),
            Comes::Watched => {
                // the kubelet removed what was here, and never looks here by itself
                let endpoint = self.kubelet.join("plugins").join("pen.sock");
                let _ = std::fs::remove_file(&endpoint);
                runtime.block_on(async { self.serve(&endpoint) });
                let _enter = runtime.enter();
                let socket = self.kubelet.join("plugins").join("pen.sock");
                let info = registration::info("DevicePlugin", RESOURCE, &socket, "v1beta1");
                runtime.spawn(registration::serve(info, &self.registration()))
            }
        };
        Running { runtime: Some(runtime), registration: self.registration() }
    }

    fn serve(&self, endpoint: &Path) {
        let calls = UnixListenerStream::new(UnixListener::bind(endpoint).unwrap());
        let server = tonic::transport::Server::builder().add_service(DevicePluginServer::new(self.clone()));
        tokio::spawn(server.serve_with_incoming(calls));
    }

    async fn call_the_kubelet(self) {
        let socket = self.sockets().join("kubelet.sock");
        let mut known = None;
        loop {
            let made = std::fs::metadata(&socket)
                .ok()
                .map(|metadata| (metadata.ino(), metadata.ctime(), metadata.ctime_nsec()));
            if made.is_some() && made != known {
                let endpoint = self.sockets().join("pen.sock");
                let _ = std::fs::remove_file(&endpoint);
                self.serve(&endpoint);
                let request = api::RegisterRequest {
                    version: "v1beta1".into(),
                    endpoint: "pen.sock".into(),
                    resource_name: RESOURCE.into(),
                    options: None,
                };
                if RegistrationClient::new(channel(socket.clone())).register(request).await.is_ok() {
                    known = made;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn channel(socket: PathBuf) -> Channel {
    // the address is never resolved: the connector opens the socket
    Endpoint::from_static("http://kubelet.invalid").connect_with_connector_lazy(tower::service_fn(
        move |_: Uri| {
            let socket = socket.clone();
            async move {
                Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(UnixStream::connect(socket).await?))
            }
        },
    ))
}

struct Running {
    runtime: Option<tokio::runtime::Runtime>,
    registration: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.registration);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = ReceiverStream<Result<api::ListAndWatchResponse, Status>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<api::DevicePluginOptions>, Status> {
        Ok(Response::new(api::DevicePluginOptions::default()))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let (said, stream) = mpsc::channel(1);
        let topology = Some(api::TopologyInfo { nodes: vec![api::NumaNode { id: 0 }] });
        let device = |id: &str| api::Device {
            id: id.into(),
            health: "Healthy".into(),
            topology: topology.clone().filter(|_| id == "a"),
        };
        let devices = ["a", "b", "c"].map(device).to_vec();
        said.send(Ok(api::ListAndWatchResponse { devices })).await.unwrap();
        // what is said stays so until one of the two is gone
        tokio::spawn(async move { said.closed().await });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<api::PreferredAllocationRequest>,
    ) -> Result<Response<api::PreferredAllocationResponse>, Status> {
        Err(Status::unimplemented("no preference"))
    }

    async fn allocate(
        &self,
        request: Request<api::AllocateRequest>,
    ) -> Result<Response<api::AllocateResponse>, Status> {
        let ids = request.into_inner().container_requests.remove(0).devices_ids.join(",");
        self.allocated.lock().unwrap().push(ids.clone());
        let answer = api::ContainerAllocateResponse {
            envs: [("PENS".to_owned(), ids)].into(),
            mounts: vec![api::Mount {
                container_path: "/pens".into(),
                host_path: self.mounted().to_str().unwrap().into(),
                read_only: true,
            }],
            devices: vec![api::DeviceSpec {
                container_path: "/dev/pen".into(),
                host_path: "/dev/null".into(),
                permissions: "rw".into(),
            }],
            ..Default::default()
        };
        Ok(Response::new(api::AllocateResponse { container_responses: vec![answer] }))
    }

    async fn pre_start_container(
        &self,
        _: Request<api::PreStartContainerRequest>,
    ) -> Result<Response<api::PreStartContainerResponse>, Status> {
        Err(Status::unimplemented("nobody asked for this"))
    }
}

#[test]
fn a_plugins_devices_reach_the_containers_that_ask_for_them() {
    let Some(binary) = ferry() else { return };
    let cluster = Cluster::new(binary, &[]);
    cluster.up();
    let plugin = Plugin::new(&cluster);
    let running = plugin.start(Comes::Calling);
    until_node_has(&cluster, "3", "3");
    create(&cluster, "first", 2, "");
    cluster.ready_pod("first");
    let pens = seen_inside(&cluster, "first");
    assert_eq!(*plugin.allocated.lock().unwrap(), std::slice::from_ref(&pens));
    others_cannot_have_them(&cluster);
    pod_resources_tell_of_them(&plugin, &pens);
    a_restarted_kubelet_leaves_them(&cluster, &plugin, &pens);

    // What a pod had the next one is given.
    cluster.kubectl(&["delete", "pod", "first"]);
    cluster.ready_pod("second");
    assert_eq!(seen_inside(&cluster, "second").split(',').count(), 2);
    drop(running);
    until_node_has(&cluster, "3", "0");
    let running = plugin.start(Comes::Watched);
    until_node_has(&cluster, "3", "3");
    drop(running);
    until_node_has(&cluster, "3", "0");
}

fn until_node_has(cluster: &Cluster, capacity: &str, allocatable: &str) {
    cluster.until(&format!("the node has {capacity} pens, {allocatable} of them to give"), || {
        let status = get(cluster, &["nodes"], ".items[0].status");
        let status: Value = serde_json::from_str(&status).unwrap_or_default();
        let shown = (status["capacity"][RESOURCE].as_str(), status["allocatable"][RESOURCE].as_str());
        (shown == (Some(capacity), Some(allocatable))).then_some(())
    });
}

fn create(cluster: &Cluster, pod: &str, count: usize, spec: &str) {
    let container = format!(
        r#""command":["sh","-c","until test -e /tmp/end; do sleep 0.1; done"],"resources":{{"limits":{{"{RESOURCE}":{count}}}}}"#
    );
    cluster.create_pod(pod, &container, &format!(r#","terminationGracePeriodSeconds":1{spec}"#));
}

/// The devices that a container was told of, if it has what goes with them.
fn seen_inside(cluster: &Cluster, pod: &str) -> String {
    let script = "test -c /dev/pen && test \"$(cat /pens/ink)\" = blue && ! touch /pens/ink && echo $PENS";
    cluster.kubectl(&["exec", pod, "--", "sh", "-c", script]).trim().to_owned()
}

fn others_cannot_have_them(cluster: &Cluster) {
    create(cluster, "second", 2, "");
    cluster.until("the second pod is told that too few are left", || {
        let said = cluster.field("second", ".status.conditions[?(@.type==\"PodScheduled\")].message");
        said.contains(&format!("Insufficient {RESOURCE}")).then_some(())
    });
    let node = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    create(cluster, "forced", 2, &format!(r#","nodeName":"{node}""#));
    cluster.until("a pod that is bound past the scheduler fails", || {
        (cluster.field("forced", ".status.reason") == "UnexpectedAdmissionError").then_some(())
    });
    assert_eq!(cluster.field("forced", ".status.phase"), "Failed");
    assert_eq!(
        cluster.field("forced", ".status.message"),
        format!(
            "Pod was rejected: Allocate failed due to requested number of devices unavailable for {RESOURCE}. \
             Requested: 2, Available: 1, which is unexpected"
        )
    );
    cluster.kubectl(&["delete", "pod", "forced"]);
}

fn pod_resources_tell_of_them(plugin: &Plugin, pens: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let socket = plugin.kubelet.join("pod-resources").join("kubelet.sock");
        let mut client = PodResourcesListerClient::new(channel(socket));
        let pods =
            client.list(resources::ListPodResourcesRequest {}).await.unwrap().into_inner().pod_resources;
        let first = pods.iter().find(|pod| pod.name == "first").expect("it is listed");
        let devices = &first.containers[0].devices;
        let ids: Vec<&str> = devices.iter().flat_map(|each| &each.device_ids).map(String::as_str).collect();
        assert_eq!(ids.join(","), pens);
        assert!(devices.iter().all(|each| each.resource_name == RESOURCE));
        let near = |id: &str| {
            devices.iter().find(|each| each.device_ids == [id]).map(|each| each.topology.is_some())
        };
        assert!(near("a").is_none_or(|is_near| is_near) && near("b").is_none_or(|is_near| !is_near));
        let asked =
            resources::GetPodResourcesRequest { pod_name: "first".into(), pod_namespace: "default".into() };
        let of_one = client.get(asked).await.unwrap().into_inner().pod_resources;
        assert_eq!(of_one.as_ref(), Some(first));
        let all = client.get_allocatable_resources(resources::AllocatableResourcesRequest {}).await.unwrap();
        assert_eq!(all.into_inner().devices.len(), 3);
    });
}

fn a_restarted_kubelet_leaves_them(cluster: &Cluster, plugin: &Plugin, pens: &str) {
    let before = plugin.allocated.lock().unwrap().clone();
    run(Command::new("kill").args(["-KILL", &cluster.status()["pid"].to_string()]));
    cluster.up();
    until_node_has(cluster, "3", "3");
    cluster.kubectl(&["exec", "first", "--", "touch", "/tmp/end"]);
    cluster.until("the container runs again", || {
        (cluster.field("first", ".status.containerStatuses[0].restartCount") == "1").then_some(())
    });
    cluster.ready_pod("first");
    assert_eq!(seen_inside(cluster, "first"), pens);
    assert_eq!(*plugin.allocated.lock().unwrap(), before);
    let health = cluster.field("first", ".status.containerStatuses[0].allocatedResourcesStatus");
    let health: Value = serde_json::from_str(&health).unwrap_or_else(|error| panic!("{error}: {health}"));
    let healthy = |id: &str| json!({"resourceID": id, "health": "Healthy"});
    let expected: Vec<Value> = pens.split(',').map(healthy).collect();
    assert_eq!(health, json!([{"name": RESOURCE, "resources": expected}]));
    assert_eq!(cluster.field("second", ".status.phase"), "Pending");
}
