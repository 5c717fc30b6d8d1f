use super::*;
use std::convert::Infallible;
use std::task::{Context, Poll};

use ferry_plugins_api::dra;
use ferry_plugins_api::dra::dra_plugin_server::{DraPlugin, DraPluginServer};
use serde_json::json;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

const DRIVER: &str = "d.example.com";

/// A driver that notes its calls and fails as long as it is broken.
#[derive(Clone, Default)]
struct Played {
    calls: Arc<Mutex<Vec<String>>>,
    problem: Arc<Mutex<String>>,
}

impl Played {
    fn note(&self, call: &str, claims: &[dra::Claim]) -> String {
        let names: Vec<&str> = claims.iter().map(|claim| claim.name.as_str()).collect();
        self.calls.lock().push(format!("{call} {}", names.join(",")));
        self.problem.lock().clone()
    }
}

#[tonic::async_trait]
impl DraPlugin for Played {
    async fn node_prepare_resources(
        &self,
        request: Request<dra::NodePrepareResourcesRequest>,
    ) -> Result<Response<dra::NodePrepareResourcesResponse>, Status> {
        let asked = request.into_inner().claims;
        let error = self.note("prepare", &asked);
        let device = |claim: &dra::Claim| {
            let cdi_device_ids = vec![format!("v/c={}", claim.name)];
            dra::Device { cdi_device_ids, ..dra::Device::default() }
        };
        let claims = asked.iter().map(|claim| {
            let devices = vec![device(claim)];
            (claim.uid.clone(), dra::NodePrepareResourceResponse { devices, error: error.clone() })
        });
        Ok(Response::new(dra::NodePrepareResourcesResponse { claims: claims.collect() }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<dra::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<dra::NodeUnprepareResourcesResponse>, Status> {
        let asked = request.into_inner().claims;
        let error = self.note("unprepare", &asked);
        let answer = |claim: &dra::Claim| {
            (claim.uid.clone(), dra::NodeUnprepareResourceResponse { error: error.clone() })
        };
        Ok(Response::new(dra::NodeUnprepareResourcesResponse { claims: asked.iter().map(answer).collect() }))
    }
}

/// The same driver as one that knows `v1beta1` alone.
#[derive(Clone)]
struct Older(DraPluginServer<Played>);

impl tonic::server::NamedService for Older {
    const NAME: &'static str = "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin";
}

impl tower::Service<http::Request<tonic::body::Body>> for Older {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = <DraPluginServer<Played> as tower::Service<http::Request<tonic::body::Body>>>::Future;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<tonic::body::Body>) -> Self::Future {
        let path = request.uri().path().replace(".v1beta1.", ".v1.");
        *request.uri_mut() = path.parse().expect("a path");
        self.0.call(request)
    }
}

fn serve(directory: &Path, played: &Played) -> String {
    let socket = directory.join("dra.sock");
    let incoming = UnixListenerStream::new(UnixListener::bind(&socket).expect("a socket"));
    let older = Older(DraPluginServer::new(played.clone()));
    tokio::spawn(tonic::transport::Server::builder().add_service(older).serve_with_incoming(incoming));
    socket.display().to_string()
}

/// An API server that has every claim that is asked for, allocated and reserved for the pod `u`.
fn client() -> kube::Client {
    let answer = |request: http::Request<kube::client::Body>| {
        let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let result = json!({"driver": DRIVER, "pool": "p", "device": "a", "request": "r"});
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
            "spec": {},
            "status": {
                "allocation": {"devices": {"results": [result]}},
                "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
            },
        });
        let body = kube::client::Body::from(claim.to_string().into_bytes());
        std::future::ready(Ok::<_, Infallible>(http::Response::new(body)))
    };
    kube::Client::new(tower::service_fn(answer), "default")
}

fn devices(directory: &Path) -> Arc<Devices> {
    Arc::new(Devices::new(Some(client()), directory, Arc::new(|_: &_| {})).expect("a good checkpoint"))
}

fn pod() -> Pod {
    let claims =
        json!([{"name": "a", "resourceClaimName": "one"}, {"name": "b", "resourceClaimName": "two"}]);
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "u"},
        "spec": {
            "resourceClaims": claims,
            "containers": [{"name": "c", "resources": {"claims": [{"name": "b"}]}}],
        },
    }))
    .expect("a pod")
}

#[tokio::test]
async fn claims_are_prepared_in_one_call_noted_and_taken_back_after_a_restart() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let (pod, played, stop) = (pod(), Played::default(), CancellationToken::new());
    let _stopped = stop.clone().drop_guard();
    let before = devices(directory.path());
    let said = before.prepare(&pod).await.expect_err("no driver").to_string();
    assert_eq!(said, "DRA driver d.example.com is not registered");
    assert!(!before.are_held("u"), "a pod that could not start can go");

    let endpoint = serve(directory.path(), &played);
    let versions = ["v1beta1.DRAPlugin".to_owned()];
    before.register(DRIVER, &endpoint, &versions, &stop).expect("a driver");
    *played.problem.lock() = "broken".into();
    let said = before.prepare(&pod).await.expect_err("it is broken").to_string();
    assert!(said.starts_with("NodePrepareResources failed for ResourceClaim "), "{said}");
    assert!(said.ends_with(": broken"), "{said}");
    assert!(before.are_held("u"), "what was asked for may have been done");
    played.problem.lock().clear();
    before.prepare(&pod).await.expect("it works now");
    before.prepare(&pod).await.expect("and is not asked again");
    let container = &pod::spec(&pod).containers[0];
    assert_eq!(before.cdi_devices(&pod, container).expect("prepared"), ["v/c=two"]);

    let after = devices(directory.path());
    assert!(after.are_held("u"));
    assert_eq!(after.cdi_devices(&pod, container).expect("known"), ["v/c=two"]);
    let said = after.unprepare("u").await.expect_err("it has not come back yet").to_string();
    assert_eq!(said, "DRA driver d.example.com is not registered");
    after.register(DRIVER, &endpoint, &versions, &stop).expect("a driver");
    after.unprepare("u").await.expect("it is back");
    after.unprepare("u").await.expect("nothing is left to do");
    assert!(!after.are_held("u"));
    assert_eq!(*played.calls.lock(), ["prepare one,two", "prepare one,two", "unprepare one,two"]);
    assert_eq!(checkpoint::load(&directory.path().join(STATE_FILE)).expect("written"), vec![]);
}

#[tokio::test]
async fn a_driver_that_is_registered_and_not_there_is_told_of() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let devices = devices(directory.path());
    let stop = CancellationToken::new();
    let _stopped = stop.clone().drop_guard();
    devices.register(DRIVER, "/nowhere/dra.sock", &["v1.DRAPlugin".into()], &stop).expect("a driver");
    let said = devices.prepare(&pod()).await.expect_err("nobody answers").to_string();
    assert!(said.starts_with("NodePrepareResources: rpc error: code = Unavailable desc = "), "{said}");
}
