//! A driver that binds directories, and an API that answers from a map.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::{CancellationToken, Recorder};
use ferry_linux::mount;
use ferry_plugins_api::csi::node_server::{Node as NodeService, NodeServer};
use ferry_plugins_api::csi::node_service_capability::{Rpc, Type, rpc};
use ferry_plugins_api::csi::{self as api, NodeServiceCapability};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use super::attachment::Refused;
use super::mount::Claimed;
use super::record::is_mounted;
use super::request::Wanted;
use super::*;
use crate::plugins::{Handler, Plugin};
use crate::volumes::Mounted;

const DRIVER: &str = "bind.example.com";

/// What a driver was asked: the call, the path, and what it was told.
type Calls = Arc<Mutex<Vec<(&'static str, String, BTreeMap<String, String>)>>>;

/// Volumes are directories below `data`, staged and published by bind mounts.
#[derive(Clone)]
struct Binds {
    data: PathBuf,
    calls: Calls,
    /// Says no to what is staged.
    refuses: Arc<Mutex<bool>>,
    /// How many volumes the node can have.
    limit: Arc<Mutex<i64>>,
}

fn failed(error: io::Error) -> Status {
    Status::internal(error.to_string())
}

impl Binds {
    fn note(&self, call: &'static str, path: &str, told: std::collections::HashMap<String, String>) {
        self.calls.lock().push((call, path.to_owned(), told.into_iter().collect()));
    }

    fn bind(&self, volume: &str, target: &str) -> Result<(), Status> {
        let data = self.data.join(volume);
        std::fs::create_dir_all(&data).map_err(failed)?;
        std::fs::create_dir_all(target).map_err(failed)?;
        if !is_mounted(Path::new(target)).map_err(failed)? {
            mount::bind(&data, Path::new(target), false).map_err(failed)?;
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl NodeService for Binds {
    async fn node_stage_volume(
        &self,
        request: Request<api::NodeStageVolumeRequest>,
    ) -> Result<Response<api::NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let mut told = request.publish_context;
        told.extend(request.secrets);
        self.note("stage", &request.staging_target_path, told);
        if *self.refuses.lock() {
            return Err(Status::internal("no such disk"));
        }
        self.bind(&request.volume_id, &request.staging_target_path)?;
        Ok(Response::new(api::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<api::NodeUnstageVolumeRequest>,
    ) -> Result<Response<api::NodeUnstageVolumeResponse>, Status> {
        let path = request.into_inner().staging_target_path;
        self.note("unstage", &path, Default::default());
        mount::unmount(Path::new(&path)).map_err(failed)?;
        Ok(Response::new(api::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<api::NodePublishVolumeRequest>,
    ) -> Result<Response<api::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.note("publish", &request.target_path, request.volume_context);
        self.bind(&request.volume_id, &request.target_path)?;
        Ok(Response::new(api::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<api::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<api::NodeUnpublishVolumeResponse>, Status> {
        let path = request.into_inner().target_path;
        self.note("unpublish", &path, Default::default());
        mount::unmount(Path::new(&path)).map_err(failed)?;
        Ok(Response::new(api::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        _: Request<api::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<api::NodeGetVolumeStatsResponse>, Status> {
        let unit = api::volume_usage::Unit::Bytes as i32;
        let usage = vec![api::VolumeUsage { available: 1, total: 3, used: 2, unit }];
        Ok(Response::new(api::NodeGetVolumeStatsResponse { usage, volume_condition: None }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<api::NodeExpandVolumeRequest>,
    ) -> Result<Response<api::NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let bytes = request.capacity_range.map_or(0, |range| range.required_bytes);
        self.note("expand", &bytes.to_string(), Default::default());
        Ok(Response::new(api::NodeExpandVolumeResponse { capacity_bytes: bytes }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<api::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<api::NodeGetCapabilitiesResponse>, Status> {
        let all = [rpc::Type::StageUnstageVolume, rpc::Type::GetVolumeStats, rpc::Type::ExpandVolume]
            .map(|kind| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind as i32 })) });
        Ok(Response::new(api::NodeGetCapabilitiesResponse { capabilities: all.into() }))
    }

    async fn node_get_info(
        &self,
        _: Request<api::NodeGetInfoRequest>,
    ) -> Result<Response<api::NodeGetInfoResponse>, Status> {
        let segments = [("bind.example.com/node".to_owned(), "n".to_owned())].into();
        Ok(Response::new(api::NodeGetInfoResponse {
            node_id: "id-of-n".into(),
            max_volumes_per_node: *self.limit.lock(),
            accessible_topology: Some(api::Topology { segments }),
        }))
    }
}

/// Objects by the path that they are read at.
type Objects = Arc<Mutex<BTreeMap<String, Value>>>;

/// An API that answers what is in a map, and takes what is written.
fn client(objects: Objects) -> kube::Client {
    let answer = move |request: http::Request<Body>| {
        let objects = objects.clone();
        async move {
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            let bytes = request.into_body().collect_bytes().await.unwrap_or_default();
            let sent: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            let mut objects = objects.lock();
            let found = match method.as_str() {
                "GET" => objects.get(&path).cloned(),
                "PATCH" => objects.get_mut(&path).map(|object| {
                    merge(object, &sent);
                    object.clone()
                }),
                "POST" => {
                    let name = sent["metadata"]["name"].as_str().unwrap_or_default();
                    objects.insert(format!("{path}/{name}"), sent.clone());
                    Some(sent)
                }
                _ => {
                    objects.insert(path, sent.clone());
                    Some(sent)
                }
            };
            let (code, body) = match found {
                Some(object) => (200, object),
                None => (
                    404,
                    json!({"kind": "Status", "status": "Failure", "code": 404,
                    "reason": "NotFound", "message": "not found"}),
                ),
            };
            let body = Body::from(body.to_string().into_bytes());
            let response = http::Response::builder().status(code).body(body).expect("it has a status");
            Ok::<_, Infallible>(response)
        }
    };
    kube::Client::new(tower::service_fn(answer), "default")
}

fn merge(object: &mut Value, patch: &Value) {
    match (object.as_object_mut(), patch.as_object()) {
        (Some(fields), Some(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    fields.remove(key);
                } else {
                    merge(fields.entry(key).or_insert_with(|| json!({})), value);
                }
            }
        }
        _ => *object = patch.clone(),
    }
}

/// A kubelet's directory, an API and a driver.
struct Stage {
    folder: tempfile::TempDir,
    objects: Objects,
    node: watch::Sender<Option<Arc<Node>>>,
    calls: Calls,
    refuses: Arc<Mutex<bool>>,
    limit: Arc<Mutex<i64>>,
    stop: CancellationToken,
}

impl Stage {
    /// `None` without the right to mount.
    fn new(driver: Value) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a directory can be made");
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        std::fs::create_dir(&from).and_then(|()| std::fs::create_dir(&to)).expect("directories can be made");
        if let Err(error) = mount::bind(&from, &to, false) {
            ferry_skip::missing(&format!("the right to mount: {error}"));
            return None;
        }
        mount::unmount(&to).expect("it was mounted");
        let objects = Objects::default();
        let object = |kind: &str, value: Value| {
            let mut object = value;
            merge(&mut object, &json!({"kind": kind, "metadata": {"resourceVersion": "1"}}));
            object
        };
        let node = json!({"apiVersion": "v1", "metadata": {"name": "n", "uid": "node-uid"}});
        objects.lock().insert("/api/v1/nodes/n".into(), object("Node", node));
        let driver = json!({"apiVersion": "storage.k8s.io/v1", "metadata": {"name": DRIVER}, "spec": driver});
        objects
            .lock()
            .insert(format!("/apis/storage.k8s.io/v1/csidrivers/{DRIVER}"), object("CSIDriver", driver));
        let (refuses, calls) = (Arc::default(), Calls::default());
        let stop = CancellationToken::new();
        let limit = Arc::new(Mutex::new(7));
        Some(Self { folder, objects, node: watch::Sender::new(None), calls, refuses, limit, stop })
    }

    /// A kubelet that starts.
    fn kubelet(&self) -> Arc<Csi> {
        let client = client(self.objects.clone());
        let csi = Csi::new(Config {
            root_dir: &self.folder.path().join("kubelet"),
            node_name: "n",
            client: Some(client.clone()),
            tokens: Arc::new(Tokens::new(Some(client))),
            events: Recorder::silent(),
            node: self.node.subscribe(),
            in_use: InUse::default(),
        });
        Arc::new(csi.expect("what is there can be read"))
    }

    fn plugin(&self) -> Plugin {
        let endpoint = self.folder.path().join("csi.sock").to_string_lossy().into_owned();
        Plugin { name: DRIVER.into(), endpoint, versions: vec!["1.0.0".into()] }
    }

    /// The driver comes.
    fn serve(&self) {
        let listener = UnixListener::bind(self.folder.path().join("csi.sock")).expect("a socket");
        let binds = Binds {
            data: self.folder.path().join("data"),
            calls: self.calls.clone(),
            refuses: self.refuses.clone(),
            limit: self.limit.clone(),
        };
        let stop = self.stop.clone();
        let server = tonic::transport::Server::builder()
            .add_service(NodeServer::new(binds))
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop.cancelled_owned());
        tokio::spawn(server);
    }

    async fn register(&self, csi: &Csi) {
        let registration = csi.registration();
        let plugin = self.plugin();
        registration.validate(&plugin).expect("it is known");
        registration.register(&plugin, &self.stop).await.expect("it is taken up");
    }

    fn called(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.calls.lock()).into_iter().map(|(call, ..)| call).collect()
    }

    fn mounts(&self) -> Vec<PathBuf> {
        mount::mounts_below(self.folder.path()).expect("the table can be read")
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.stop.cancel();
        for target in mount::mounts_below(self.folder.path()).unwrap_or_default() {
            let _ = mount::unmount(&target);
        }
    }
}

fn pod(uid: &str) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": uid, "namespace": "default", "uid": uid},
        "spec": {"containers": [], "serviceAccountName": "sa"}}))
    .expect("a pod")
}

fn volume(size: &str) -> PersistentVolume {
    serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": {"capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"], "csi": {"driver": DRIVER, "volumeHandle": "disk"}}}))
    .expect("a volume")
}

fn wanted(volume: &PersistentVolume) -> Wanted {
    let spec = volume.spec.clone().expect("it has one");
    let source = spec.csi.clone().expect("it has one");
    Wanted::persistent(volume, &spec, &source, "n", false)
}

async fn set_up(csi: &Arc<Csi>, uid: &str) -> Result<Mounted, Failed> {
    csi.set_up(&pod(uid), wanted(&volume("1Gi")), None, &TaskTracker::new()).await
}

#[tokio::test]
async fn a_driver_is_shown_while_it_is_registered() {
    let Some(stage) = Stage::new(json!({"attachRequired": false})) else { return };
    let csi = stage.kubelet();
    stage.serve();
    stage.register(&csi).await;
    let shown = |path: &str| stage.objects.lock().get(path).cloned().unwrap_or_default();
    let node = shown("/api/v1/nodes/n");
    assert_eq!(node["metadata"]["labels"]["bind.example.com/node"], "n");
    assert_eq!(node["metadata"]["annotations"][node_info::NODE_ID], r#"{"bind.example.com":"id-of-n"}"#);
    let drivers = |object: &Value| object["spec"]["drivers"].as_array().cloned().unwrap_or_default();
    let own = shown("/apis/storage.k8s.io/v1/csinodes/n");
    let theirs = drivers(&own).into_iter().find(|driver| driver["name"] == DRIVER).expect("it is listed");
    assert_eq!(theirs["nodeID"], "id-of-n");
    assert_eq!(theirs["allocatable"]["count"], 7);
    assert_eq!(theirs["topologyKeys"], json!(["bind.example.com/node"]));

    csi.registration().deregister(DRIVER, &stage.plugin().endpoint);
    csi.stopped().await;
    let own = shown("/apis/storage.k8s.io/v1/csinodes/n");
    assert!(drivers(&own).iter().all(|driver| driver["name"] != DRIVER), "{own}");
    let node = shown("/api/v1/nodes/n");
    assert_eq!(node["metadata"]["annotations"][node_info::NODE_ID], Value::Null);
}

#[tokio::test]
async fn two_pods_share_what_is_staged_over_a_restart() {
    let Some(stage) = Stage::new(json!({"attachRequired": false})) else { return };
    let csi = stage.kubelet();
    stage.serve();
    let said = set_up(&csi, "a").await.expect_err("nobody is there").to_string();
    let words = "MountVolume.MountDevice failed for volume \"pv\" : kubernetes.io/csi: attacher.MountDevice failed to \
         create newCsiDriverClient: driver name bind.example.com not found in the list of registered CSI drivers";
    assert_eq!(said, words);
    stage.register(&csi).await;
    let mounted = set_up(&csi, "a").await.expect("it is mounted");
    set_up(&csi, "a").await.expect("it is mounted still");
    set_up(&csi, "b").await.expect("it is mounted");
    assert_eq!(stage.called(), ["stage", "publish", "publish"]);
    std::fs::write(mounted.path.join("file"), "kept").expect("it can be written to");
    let other = stage.folder.path().join("kubelet/pods/b/volumes/kubernetes.io~csi/pv/mount/file");
    assert_eq!(std::fs::read_to_string(other).expect("it is the same"), "kept");

    // a kubelet that starts takes back what is there, before the driver has come again
    let csi = stage.kubelet();
    assert_eq!(csi.in_use.names(), ["kubernetes.io/csi/bind.example.com^disk"]);
    set_up(&csi, "a").await.expect("it is mounted still");
    assert!(csi.tear_down("a").await.is_err(), "only the driver unmounts");
    stage.register(&csi).await;
    csi.tear_down("a").await.expect("it is taken away");
    assert_eq!(stage.called(), ["unpublish"], "another pod uses it");
    assert!(!csi.in_use.names().is_empty());
    // a pod that this kubelet has never seen
    csi.tear_down("b").await.expect("it is taken away");
    csi.tear_down("b").await.expect("what is gone is gone");
    assert_eq!(stage.called(), ["unpublish", "unstage"]);
    assert!(csi.in_use.names().is_empty() && stage.mounts().is_empty());
    assert_eq!(std::fs::read_to_string(stage.folder.path().join("data/disk/file")).expect("kept"), "kept");
}

#[tokio::test]
async fn unused_staged_volumes_are_unstaged() {
    let Some(stage) = Stage::new(json!({"attachRequired": false})) else { return };
    let csi = stage.kubelet();
    stage.serve();
    stage.register(&csi).await;
    *stage.refuses.lock() = true;
    let said = set_up(&csi, "a").await.expect_err("the driver says no").to_string();
    let words =
        "MountVolume.MountDevice failed for volume \"pv\" : rpc error: code = Internal desc = no such disk";
    assert_eq!(said, words);
    *stage.refuses.lock() = false;
    set_up(&csi, "a").await.expect("it is mounted");
    // the pod's directory went while nobody looked
    let pod = stage.folder.path().join("kubelet/pods/a");
    mount::unmount(&pod.join("volumes/kubernetes.io~csi/pv/mount")).expect("it was mounted");
    std::fs::remove_dir_all(&pod).expect("it can be removed");
    let csi = stage.kubelet();
    stage.register(&csi).await;
    stage.calls.lock().clear();
    csi.unstage_unused().await;
    assert_eq!(stage.called(), ["unstage"]);
    assert!(csi.in_use.names().is_empty() && stage.mounts().is_empty());
}

#[tokio::test]
async fn an_inline_volume_is_published_with_its_pod() {
    let modes =
        json!({"volumeLifecycleModes": ["Ephemeral"], "podInfoOnMount": true, "requiresRepublish": true});
    let Some(stage) = Stage::new(modes) else { return };
    let csi = stage.kubelet();
    stage.serve();
    stage.register(&csi).await;
    let source = serde_json::from_value(json!({"driver": DRIVER, "volumeAttributes": {"size": "1"}}));
    let wanted = Wanted::inline(&pod("a"), "scratch", &source.expect("a source"), "n");
    let set_up = || async {
        csi.set_up(&pod("a"), wanted.clone(), None, &TaskTracker::new()).await.expect("it is mounted")
    };
    let mounted = set_up().await;
    assert!(mounted.path.ends_with("pods/a/volumes/kubernetes.io~csi/scratch/mount"));
    let told = stage.calls.lock().last().map(|(_, _, told)| told.clone()).unwrap_or_default();
    assert_eq!(told.get("csi.storage.k8s.io/ephemeral").map(String::as_str), Some("true"));
    assert_eq!(told.get("csi.storage.k8s.io/pod.uid").map(String::as_str), Some("a"));
    assert_eq!(told.get("size").map(String::as_str), Some("1"));
    set_up().await;
    assert_eq!(stage.called(), ["publish"], "not again at once");
    csi.tear_down("a").await.expect("it is taken away");
    assert_eq!(stage.called(), ["unpublish"]);
    assert!(csi.in_use.names().is_empty() && stage.mounts().is_empty());
}

#[tokio::test]
async fn a_volume_is_waited_for_until_it_is_attached() {
    let Some(stage) = Stage::new(json!({})) else { return };
    let csi = stage.kubelet();
    stage.serve();
    stage.register(&csi).await;
    let waits = tokio::spawn({
        let csi = csi.clone();
        async move { set_up(&csi, "a").await.map(|_| ()) }
    });
    let mut changes = csi.in_use.changes();
    while csi.in_use.names().is_empty() {
        changes.changed().await.expect("it is there");
    }
    assert!(stage.called().is_empty() && !waits.is_finished());
    let record = wanted(&volume("1Gi")).record;
    let attachment = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {"name": record.attachment_id},
        "spec": {"attacher": DRIVER, "nodeName": "n", "source": {"persistentVolumeName": "pv"}},
        "status": {"attached": true, "attachmentMetadata": {"device": "sdb"}}});
    let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{}", record.attachment_id);
    stage.objects.lock().insert(path, attachment);
    let node = json!({"metadata": {"name": "n"}, "status": {"volumesInUse": csi.in_use.names()}});
    stage.node.send_replace(Some(Arc::new(serde_json::from_value(node).expect("a node"))));
    let done = tokio::time::timeout(Duration::from_secs(60), waits).await.expect("it goes on");
    done.expect("it ends").expect("it is mounted");
    let told = stage.calls.lock().first().map(|(_, _, told)| told.clone()).unwrap_or_default();
    assert_eq!(
        told.get("device").map(String::as_str),
        Some("sdb"),
        "the driver hears what the attacher knows"
    );
    csi.tear_down("a").await.expect("it is taken away");
    assert!(csi.in_use.names().is_empty() && stage.mounts().is_empty());
}

#[tokio::test]
async fn a_limit_that_a_volume_reached_is_asked_for_again() {
    let Some(stage) = Stage::new(json!({})) else { return };
    let csi = stage.kubelet();
    stage.serve();
    stage.register(&csi).await;
    let limit = || {
        let objects = stage.objects.lock();
        objects["/apis/storage.k8s.io/v1/csinodes/n"]["spec"]["drivers"][1]["allocatable"]["count"].clone()
    };
    assert_eq!(limit(), 7);
    *stage.limit.lock() = 3;
    let driver =
        |spec: Value| -> CSIDriver { serde_json::from_value(json!({"spec": spec})).expect("a driver") };
    let asked = driver(json!({"nodeAllocatableUpdatePeriodSeconds": 60}));
    let check = async |is_exhausted: bool, driver: &CSIDriver, exceeds: bool, shown: i64| {
        let refused = Refused { message: "full".into(), is_exhausted };
        let problem = csi.refused(refused, DRIVER, Some(driver)).await;
        assert_eq!(matches!(problem, Problem::AttachLimit(_)), exceeds, "{problem}");
        assert_eq!(limit(), shown);
    };
    check(false, &asked, false, 7).await;
    // without a period the limit stays as it is, and so does the pod
    check(true, &driver(json!({})), false, 7).await;
    check(true, &asked, true, 3).await;
    // a driver that is gone has no limit to show
    csi.registration().deregister(DRIVER, &stage.plugin().endpoint);
    *stage.limit.lock() = 2;
    csi.ask_again(DRIVER).await.expect("it is not asked");
}

#[tokio::test]
async fn a_volume_grows_and_is_measured() {
    let Some(stage) = Stage::new(json!({"attachRequired": false})) else { return };
    let csi = stage.kubelet();
    stage.serve();
    stage.register(&csi).await;
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "default"}, "status": {"capacity": {"storage": "1Gi"},
        "conditions": [{"type": "FileSystemResizePending", "status": "True"}]}});
    let path = "/api/v1/namespaces/default/persistentvolumeclaims/data/status";
    stage.objects.lock().insert(path.into(), claim.clone());
    let claim: PersistentVolumeClaim = serde_json::from_value(claim).expect("a claim");
    let volume = volume("2Gi");
    let claimed = Claimed { claim: &claim, volume: &volume };
    let mounted = csi.set_up(&pod("a"), wanted(&volume), Some(claimed), &TaskTracker::new()).await;
    let mounted = mounted.expect("it is mounted");
    assert_eq!(
        stage.calls.lock().last().map(|(call, size, _)| (*call, size.clone())),
        Some(("expand", "2147483648".into()))
    );
    let told = stage.objects.lock().get(path).cloned().unwrap_or_default();
    assert_eq!(told["status"]["capacity"]["storage"], "2Gi");

    let path = mounted.path.to_string_lossy().into_owned();
    let asked = stats::Asked { record: wanted(&volume).record, is_block: false, path };
    assert_eq!(csi.usage(&asked), None);
    csi.measure(vec![asked.clone()]).await;
    assert_eq!(csi.usage(&asked).map(|usage| (usage.capacity_bytes, usage.used_bytes)), Some((3, 2)));
    csi.tear_down("a").await.expect("it is taken away");
    assert!(stage.mounts().is_empty());
}
