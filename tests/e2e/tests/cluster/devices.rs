//! Devices of claims: a driver that registers at the kubelet prepares them before a pod starts and takes them back after
//! its end, over restarts of the kubelet and of the driver. The runtime is Debian's, which knows no CDI.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use ferry_plugins_api::dra;
use ferry_plugins_api::dra::dra_plugin_server::{DraPlugin, DraPluginServer};
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use crate::cluster::Cluster;
use crate::host::{ferry, run};
use crate::registration;
use crate::volumes::{apply, get};

const DRIVER: &str = "devices.example.com";
/// What the class stands for.
const RESOURCE: &str = "example.com/device";

/// What the driver has done, over its own restarts.
#[derive(Default)]
struct Record {
    /// Names of claims by their uids.
    prepared: BTreeMap<String, String>,
    /// The claims of each call.
    calls: Vec<String>,
}

/// A driver, as far as the kubelet is concerned. Its CDI specification says which claim a container has.
#[derive(Clone)]
struct Driver {
    kubelet: PathBuf,
    specification: PathBuf,
    record: Arc<Mutex<Record>>,
}

impl Driver {
    fn new(cluster: &Cluster) -> Driver {
        let directory = Path::new("/var/run/cdi");
        std::fs::create_dir_all(directory).unwrap();
        let specification = directory.join(format!("ferry-test-{}.json", std::process::id()));
        Driver { kubelet: cluster.data_dir().join("kubelet"), specification, record: Arc::default() }
    }

    fn registration(&self) -> PathBuf {
        self.kubelet.join("plugins_registry").join(format!("{DRIVER}-reg.sock"))
    }

    fn endpoint(&self) -> PathBuf {
        self.kubelet.join("plugins").join(DRIVER).join("dra.sock")
    }

    /// Serves until the returned runtime is dropped.
    fn start(&self) -> Running {
        std::fs::create_dir_all(self.endpoint().parent().unwrap()).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let calls = UnixListenerStream::new(UnixListener::bind(self.endpoint()).unwrap());
            let server = tonic::transport::Server::builder().add_service(DraPluginServer::new(self.clone()));
            tokio::spawn(server.serve_with_incoming(calls));
            let info = registration::info("DRAPlugin", DRIVER, &self.endpoint(), "v1.DRAPlugin");
            tokio::spawn(registration::serve(info, &self.registration()));
        });
        Running { runtime: Some(runtime), sockets: [self.registration(), self.endpoint()] }
    }

    fn write_specification(&self, record: &Record) {
        let device = |(uid, name): (&String, &String)| {
            json!({"name": uid, "containerEdits": {
                "env": [format!("CLAIM={name}")],
                "deviceNodes": [{"path": "/dev/given", "hostPath": "/dev/null"}],
            }})
        };
        let specification = json!({
            "cdiVersion": "0.6.0", "kind": format!("{DRIVER}/claim"),
            "devices": record.prepared.iter().map(device).collect::<Vec<_>>(),
            "containerEdits": {"env": ["DRIVER=yes"], "hooks": [{"hookName": "createRuntime", "path": "/bin/true"}]},
        });
        let fresh = self.specification.with_extension("new");
        std::fs::write(&fresh, specification.to_string()).unwrap();
        std::fs::rename(fresh, &self.specification).unwrap();
    }

    fn calls(&self) -> Vec<String> {
        self.record.lock().unwrap().calls.clone()
    }
}

struct Running {
    runtime: Option<tokio::runtime::Runtime>,
    sockets: [PathBuf; 2],
}

/// As a driver's pod ends: it removes its sockets.
impl Drop for Running {
    fn drop(&mut self) {
        for socket in &self.sockets {
            let _ = std::fs::remove_file(socket);
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The names of a call's claims, in order.
fn called(call: &str, claims: &[dra::Claim]) -> String {
    let mut names: Vec<&str> = claims.iter().map(|claim| claim.name.as_str()).collect();
    names.sort_unstable();
    format!("{call} {}", names.join(","))
}

/// The only request of a claim; the scheduler names those of the claims that it makes.
fn request_of(claim: &str) -> &'static str {
    if claim.contains("-extended-resources-") { "container-0-request-0" } else { "device" }
}

#[tonic::async_trait]
impl DraPlugin for Driver {
    async fn node_prepare_resources(
        &self,
        request: Request<dra::NodePrepareResourcesRequest>,
    ) -> Result<Response<dra::NodePrepareResourcesResponse>, Status> {
        let asked = request.into_inner().claims;
        let mut record = self.record.lock().unwrap();
        record.calls.push(called("prepare", &asked));
        record.prepared.extend(asked.iter().map(|claim| (claim.uid.clone(), claim.name.clone())));
        self.write_specification(&record);
        let device = |claim: &dra::Claim| dra::Device {
            request_names: vec![request_of(&claim.name).into()],
            pool_name: "pool".into(),
            device_name: "device".into(),
            cdi_device_ids: vec![format!("{DRIVER}/claim={}", claim.uid)],
            share_id: None,
        };
        let claims = asked.iter().map(|claim| {
            let devices = vec![device(claim)];
            (claim.uid.clone(), dra::NodePrepareResourceResponse { devices, error: String::new() })
        });
        Ok(Response::new(dra::NodePrepareResourcesResponse { claims: claims.collect() }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<dra::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<dra::NodeUnprepareResourcesResponse>, Status> {
        let asked = request.into_inner().claims;
        let mut record = self.record.lock().unwrap();
        record.calls.push(called("unprepare", &asked));
        record.prepared.retain(|uid, _| asked.iter().all(|claim| &claim.uid != uid));
        self.write_specification(&record);
        let done = |claim: &dra::Claim| (claim.uid.clone(), dra::NodeUnprepareResourceResponse::default());
        let claims = asked.iter().map(done).collect();
        Ok(Response::new(dra::NodeUnprepareResourcesResponse { claims }))
    }
}

#[test]
fn a_claims_device_reaches_its_container() {
    let Some(binary) = ferry() else { return };
    let cluster = Cluster::new(binary, &[]);
    cluster.up();
    let driver = Driver::new(&cluster);
    publish(&cluster);
    let running = a_pod_waits_for_its_driver(&cluster, &driver);
    a_restarted_kubelet_knows_what_is_prepared(&cluster, &driver);
    a_shared_claim_is_prepared_once_and_given_back_by_the_last(&cluster, &driver);
    let running = a_pod_ends_when_its_driver_is_back(&cluster, &driver, running);
    an_extended_resource_is_a_device_of_its_class(&cluster, &driver);

    // Nothing is left: neither here, nor at the driver, nor, when the kubelet starts without it, of what it published.
    assert_eq!(driver.record.lock().unwrap().prepared, BTreeMap::new());
    let state = std::fs::read_to_string(driver.kubelet.join("dra_manager_state")).unwrap();
    assert!(state.contains(r#"\"ClaimInfoStateList\":[]"#), "{state}");
    cluster.until("the template's claim is gone", || {
        (get(&cluster, &["resourceclaims"], ".items[*].metadata.name") == "shared").then_some(())
    });
    assert_eq!(get(&cluster, &["resourceslices"], ".items[*].spec.driver"), DRIVER);
    drop(running);
    restart(&cluster);
    cluster.until("the slices of a driver that did not come back are removed", || {
        get(&cluster, &["resourceslices"], ".items[*].spec.driver").is_empty().then_some(())
    });
    std::fs::remove_file(&driver.specification).unwrap();
}

/// Two devices of the node, a class of them, and a template and a claim for one each.
fn publish(cluster: &Cluster) {
    let node = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    let spec = json!({"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": "any"}}]}});
    let selector = format!("device.driver == \"{DRIVER}\"");
    let object = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    apply(
        cluster,
        &[
            object(
                "DeviceClass",
                "any",
                json!({"selectors": [{"cel": {"expression": selector}}], "extendedResourceName": RESOURCE}),
            ),
            object(
                "ResourceSlice",
                "slice",
                json!({"nodeName": node, "driver": DRIVER, "devices": [{"name": "a"}, {"name": "b"}],
                    "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}),
            ),
            object("ResourceClaimTemplate", "template", json!({"spec": spec})),
            object("ResourceClaim", "shared", spec),
        ],
    );
}

fn create(cluster: &Cluster, pod: &str, source: &str) {
    let container = r#""command":["sh","-c","until test -e /tmp/end; do sleep 0.1; done"],"resources":{"claims":[{"name":"mine","request":"device"}]}"#;
    let spec = format!(r#","terminationGracePeriodSeconds":1,"resourceClaims":[{{"name":"mine",{source}}}]"#);
    cluster.create_pod(pod, container, &spec);
}

fn restart(cluster: &Cluster) {
    run(Command::new("kill").args(["-KILL", &cluster.status()["pid"].to_string()]));
    cluster.up();
}

fn told(cluster: &Cluster, pod: &str, reason: &str, words: &str) {
    cluster.until(&format!("{pod} is told {reason}: {words}"), || {
        let selector = format!("involvedObject.name={pod},reason={reason}");
        let path = "jsonpath={.items[*].message}";
        let said = cluster.kubectl(&["get", "events", "--field-selector", &selector, "-o", path]);
        said.contains(words).then_some(())
    });
}

fn seen_inside(cluster: &Cluster, pod: &str) -> String {
    let script = "echo $DRIVER $CLAIM; test -c /dev/given && echo given";
    cluster.kubectl(&["exec", pod, "--", "sh", "-c", script])
}

fn a_pod_waits_for_its_driver(cluster: &Cluster, driver: &Driver) -> Running {
    create(cluster, "own", r#""resourceClaimTemplateName":"template""#);
    let missing = format!("prepare dynamic resources: DRA driver {DRIVER} is not registered");
    told(cluster, "own", "FailedPrepareDynamicResources", &missing);
    let running = driver.start();
    cluster.ready_pod("own");
    let claim = cluster.field("own", ".status.resourceClaimStatuses[0].resourceClaimName");
    assert_eq!(seen_inside(cluster, "own"), format!("yes {claim}\ngiven\n"));
    assert_eq!(driver.calls(), [format!("prepare {claim}")]);
    told(cluster, "own", "DeviceIncomplete", "1 hooks");
    let uid = get(cluster, &["resourceclaim", &claim], ".metadata.uid");
    let health = cluster.field("own", ".status.containerStatuses[0].allocatedResourcesStatus");
    let health: Value = serde_json::from_str(&health).unwrap_or_else(|error| panic!("{error}: {health}"));
    let resource = json!({"resourceID": format!("{DRIVER}/claim={uid}"), "health": "Unknown"});
    assert_eq!(health, json!([{"name": "claim:mine/device", "resources": [resource]}]));
    running
}

fn a_restarted_kubelet_knows_what_is_prepared(cluster: &Cluster, driver: &Driver) {
    let before = driver.calls();
    restart(cluster);
    cluster.ready_pod("own");
    // A container that is started anew has its device; neither the claim is prepared again nor the slices removed.
    cluster.kubectl(&["exec", "own", "--", "touch", "/tmp/end"]);
    cluster.until("the container runs again", || {
        (cluster.field("own", ".status.containerStatuses[0].restartCount") == "1").then_some(())
    });
    cluster.ready_pod("own");
    assert!(seen_inside(cluster, "own").starts_with("yes own-"));
    assert_eq!(driver.calls(), before);
    assert_eq!(get(cluster, &["resourceslices"], ".items[*].spec.driver"), DRIVER);
}

fn a_shared_claim_is_prepared_once_and_given_back_by_the_last(cluster: &Cluster, driver: &Driver) {
    for pod in ["first", "second"] {
        create(cluster, pod, r#""resourceClaimName":"shared""#);
        cluster.ready_pod(pod);
        assert_eq!(seen_inside(cluster, pod), "yes shared\ngiven\n");
    }
    let calls = |call: &str| driver.calls().iter().filter(|each| *each == call).count();
    assert_eq!(calls("prepare shared"), 1);
    cluster.kubectl(&["delete", "pod", "first"]);
    assert_eq!(calls("unprepare shared"), 0);
    assert_eq!(seen_inside(cluster, "second"), "yes shared\ngiven\n");
    // Gone from the API at once, and all the same given back.
    cluster.kubectl(&["delete", "pod", "second", "--force", "--grace-period=0"]);
    cluster.until("the claim is given back", || (calls("unprepare shared") == 1).then_some(()));
}

fn an_extended_resource_is_a_device_of_its_class(cluster: &Cluster, driver: &Driver) {
    let before = driver.calls().len();
    let container =
        format!(r#""command":["sh","-c","sleep 600"],"resources":{{"limits":{{"{RESOURCE}":"1"}}}}"#);
    cluster.create_pod("extended", &container, r#","terminationGracePeriodSeconds":1"#);
    cluster.ready_pod("extended");
    let claim = cluster.field("extended", ".status.extendedResourceClaimStatus.resourceClaimName");
    assert!(claim.starts_with("extended-extended-resources-"), "{claim}");
    assert_eq!(seen_inside(cluster, "extended"), format!("yes {claim}\ngiven\n"));
    assert_eq!(get(cluster, &["resourceclaim", &claim], ".status.reservedFor[*].name"), "extended");
    cluster.kubectl(&["delete", "pod", "extended"]);
    assert_eq!(driver.calls()[before..], [format!("prepare {claim}"), format!("unprepare {claim}")]);
}

fn a_pod_ends_when_its_driver_is_back(cluster: &Cluster, driver: &Driver, running: Running) -> Running {
    drop(running);
    cluster.kubectl(&["delete", "pod", "own", "--wait=false"]);
    let missing = format!("unprepare dynamic resources: DRA driver {DRIVER} is not registered");
    told(cluster, "own", "FailedSync", &missing);
    assert_eq!(
        cluster.field("own", ".status.phase"),
        "Running",
        "its device is not to be given to others yet"
    );
    let running = driver.start();
    cluster.until("the pod is gone", || cluster.field("own", ".metadata.name").is_empty().then_some(()));
    assert_eq!(driver.calls().last().map(|call| call.starts_with("unprepare own-")), Some(true));
    running
}
