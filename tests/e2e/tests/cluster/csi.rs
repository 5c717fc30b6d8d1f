//! Volumes of a CSI driver: one that registers at the kubelet and binds directories. The test attaches, as a driver's
//! external-attacher would.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use ferry_plugins_api::csi;
use ferry_plugins_api::csi::node_server::{Node, NodeServer};
use ferry_plugins_api::csi::node_service_capability::{Rpc, Type, rpc};
use serde_json::json;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use crate::cluster::Cluster;
use crate::host::{ferry, run};
use crate::registration;
use crate::volumes::{apply, get};

const DRIVER: &str = "bind.example.com";

/// A driver whose volumes are directories; what it has done outlives its restarts.
#[derive(Clone)]
struct Driver {
    kubelet: PathBuf,
    data: PathBuf,
    calls: Arc<Mutex<Vec<String>>>,
}

impl Driver {
    fn new(cluster: &Cluster) -> Driver {
        let (kubelet, data) = (cluster.data_dir().join("kubelet"), cluster.data_dir().join("disks"));
        Driver { kubelet, data, calls: Arc::default() }
    }

    fn endpoint(&self) -> PathBuf {
        self.kubelet.join("plugins").join(DRIVER).join("csi.sock")
    }

    /// Serves until the runtime is dropped.
    fn start(&self) -> tokio::runtime::Runtime {
        let socket = self.kubelet.join("plugins_registry").join(format!("{DRIVER}-reg.sock"));
        std::fs::create_dir_all(self.endpoint().parent().unwrap()).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let calls = UnixListenerStream::new(UnixListener::bind(self.endpoint()).unwrap());
            let server = tonic::transport::Server::builder().add_service(NodeServer::new(self.clone()));
            tokio::spawn(server.serve_with_incoming(calls));
            let info = registration::info("CSIPlugin", DRIVER, &self.endpoint(), "1.0.0");
            tokio::spawn(registration::serve(info, &socket));
        });
        runtime
    }

    fn note(&self, call: &str) {
        self.calls.lock().unwrap().push(call.into());
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    fn bind(&self, volume: &str, target: &str) {
        let data = self.data.join(volume);
        std::fs::create_dir_all(&data).unwrap();
        std::fs::create_dir_all(target).unwrap();
        if !mounts().iter().any(|mount| mount == Path::new(target)) {
            run(Command::new("mount").arg("--bind").arg(data).arg(target));
        }
    }
}

fn unmount(target: &str) {
    if mounts().iter().any(|mount| mount == Path::new(target)) {
        run(Command::new("umount").arg(target));
    }
}

fn mounts() -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from).collect()
}

#[tonic::async_trait]
impl Node for Driver {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let device = request.publish_context.get("device").cloned().unwrap_or_default();
        self.note(&format!("stage {} {device}", request.volume_id));
        self.bind(&request.volume_id, &request.staging_target_path);
        Ok(Response::new(csi::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        self.note(&format!("unstage {}", request.get_ref().volume_id));
        unmount(&request.get_ref().staging_target_path);
        Ok(Response::new(csi::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let pod = request.volume_context.get("csi.storage.k8s.io/pod.name").cloned().unwrap_or_default();
        self.note(&format!("publish {pod}"));
        self.bind(&request.volume_id, &request.target_path);
        Ok(Response::new(csi::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        self.note("unpublish");
        unmount(&request.get_ref().target_path);
        Ok(Response::new(csi::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        _: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        Err(Status::unimplemented("no statistics"))
    }

    async fn node_expand_volume(
        &self,
        _: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        Err(Status::unimplemented("directories do not grow"))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        let r#type = Some(Type::Rpc(Rpc { r#type: rpc::Type::StageUnstageVolume as i32 }));
        let capabilities = vec![csi::NodeServiceCapability { r#type }];
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        let segments = [("topology.bind.example.com/node".to_owned(), "here".to_owned())].into();
        Ok(Response::new(csi::NodeGetInfoResponse {
            node_id: "here".into(),
            max_volumes_per_node: 5,
            accessible_topology: Some(csi::Topology { segments }),
        }))
    }
}

#[test]
fn a_drivers_volume_is_attached_mounted_and_taken_away() {
    let Some(binary) = ferry() else { return };
    let cluster = Cluster::new(binary, &[]);
    cluster.up();
    let driver = Driver::new(&cluster);
    publish(&cluster);
    let pod = |name: &str, volume: &str| {
        let container = r#""command":["sleep","1000"],"volumeMounts":[{"name":"data","mountPath":"/data"}]"#;
        let volumes = format!(r#","terminationGracePeriodSeconds":1,"volumes":[{{"name":"data",{volume}}}]"#);
        cluster.create_pod(name, container, &volumes);
    };
    pod("writer", r#""persistentVolumeClaim":{"claimName":"data"}"#);
    attach(&cluster);
    cluster.until("the pod is told that its driver is missing", || {
        let path = "jsonpath={.items[*].message}";
        let said = cluster.kubectl(&["get", "events", "--field-selector", "reason=FailedMount", "-o", path]);
        said.contains("not found in the list of registered CSI drivers").then_some(())
    });
    let running = driver.start();
    cluster.ready_pod("writer");
    assert_eq!(driver.calls(), ["stage disk sdb", "publish writer"]);
    assert_eq!(
        get(&cluster, &["csinodes"], &format!(".items[0].spec.drivers[?(@.name==\"{DRIVER}\")].nodeID")),
        "here"
    );
    let unique = format!("kubernetes.io/csi/{DRIVER}^disk");
    assert_eq!(get(&cluster, &["nodes"], ".items[0].status.volumesInUse[0]"), unique);
    assert_eq!(get(&cluster, &["nodes"], ".items[0].status.volumesAttached[0].name"), unique);
    cluster.kubectl(&["exec", "writer", "--", "sh", "-c", "echo kept > /data/file"]);
    assert_eq!(std::fs::read_to_string(driver.data.join("disk/file")).unwrap(), "kept\n");

    // an inline volume, which is nobody else's
    pod("scratch", &format!(r#""csi":{{"driver":"{DRIVER}"}}"#));
    cluster.ready_pod("scratch");
    cluster.kubectl(&["exec", "scratch", "--", "touch", "/data/file"]);

    // a kubelet that starts goes on with what is mounted
    let before = driver.calls();
    run(Command::new("kill").args(["-KILL", &cluster.status()["pid"].to_string()]));
    cluster.up();
    cluster.ready_pod("writer");
    assert_eq!(cluster.kubectl(&["exec", "writer", "--", "cat", "/data/file"]), "kept\n");
    assert_eq!(driver.calls(), before);
    cluster.kubectl(&["delete", "pod", "scratch"]);
    assert_eq!(driver.calls().last().map(String::as_str), Some("unpublish"));
    cluster.kubectl(&["delete", "pod", "writer"]);
    assert_eq!(driver.calls().last().map(String::as_str), Some("unstage disk"));
    cluster.until("the volume is detached", || {
        get(&cluster, &["volumeattachments"], ".items[*].metadata.name").is_empty().then_some(())
    });
    cluster.until("the node says so", || {
        let status = get(&cluster, &["nodes"], ".items[0].status");
        (!status.contains(&unique)).then_some(())
    });
    let left: Vec<PathBuf> =
        mounts().into_iter().filter(|mount| mount.to_string_lossy().contains("kubernetes.io~csi")).collect();
    assert!(!left.iter().any(|mount| mount.starts_with(cluster.data_dir())), "{left:?}");
    running.shutdown_background();
}

/// A driver that is attached, a volume of it and a claim that it is bound to.
fn publish(cluster: &Cluster) {
    let class = "by-hand";
    let storage = json!({"storage": "1Mi"});
    apply(
        cluster,
        &[
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
                "spec": {"podInfoOnMount": true, "volumeLifecycleModes": ["Persistent", "Ephemeral"]}}),
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": class},
                "provisioner": "kubernetes.io/no-provisioner"}),
            json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"},
                "spec": {"capacity": storage, "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                    "csi": {"driver": DRIVER, "volumeHandle": "disk"}}}),
            json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
                "spec": {"resources": {"requests": storage}, "accessModes": ["ReadWriteOnce"],
                    "storageClassName": class}}),
        ],
    );
}

/// Attaches what is to be attached.
fn attach(cluster: &Cluster) {
    let name = cluster.until("there is something to attach", || {
        let name = get(cluster, &["volumeattachments"], ".items[*].metadata.name");
        (!name.is_empty()).then_some(name)
    });
    assert!(name.starts_with("csi-") && name.len() == 68, "{name}");
    let attachment = |path: &str| get(cluster, &["volumeattachment", &name], path);
    assert_eq!(attachment(".spec.attacher"), DRIVER);
    assert_eq!(attachment(".spec.source.persistentVolumeName"), "disk");
    let status = json!({"status": {"attached": true, "attachmentMetadata": {"device": "sdb"}}}).to_string();
    let patch = ["patch", "volumeattachment", &name, "--subresource=status", "--type=merge", "-p", &status];
    cluster.kubectl(&patch);
}
