//! The container runtime interface, version 1: its messages (`ferry-cri-api`) and a client over the
//! runtime's unix socket.

use std::time::Duration;

use tokio_util::task::TaskTracker;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Streaming};
use tonic_prost::ProstCodec;

use ferry_client::coalesce::CoalescedWrites;

use crate::metrics;

pub use ferry_cri_api::v1::*;

/// The runtime answers most calls within this; pulling and stopping have
/// limits of their own.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// A sandbox's network may be slow to make.
const SANDBOX_TIMEOUT: Duration = Duration::from_secs(240);
/// Questions that need no work are answered within this, or the runtime hangs.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);
/// Image layers can be listed in answers of several megabytes.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("container runtime endpoint {endpoint:?} is not a unix socket address")]
    Endpoint { endpoint: String },
    /// The runtime's own words, as they go into a pod's status.
    #[error("rpc error: code = {code:?} desc = {message}")]
    Call { method: &'static str, code: Code, message: String },
    #[error("context deadline exceeded")]
    Timeout { method: &'static str },
}

impl Error {
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Call { code: Code::NotFound, .. })
    }

    /// Who has the name that was asked for: the id in the runtime's words,
    /// which is all it gives. The first are containerd's, the second CRI-O's.
    pub fn name_holder(&self) -> Option<&str> {
        let words = self.words();
        let after = |mark: &str| words.split_once(mark).map(|(_, rest)| rest);
        let rest = after("is reserved for \"").or_else(|| after("is already in use by \""))?;
        rest.split('"').next().filter(|id| !id.is_empty())
    }

    /// What the runtime said, without what kind of error it is.
    pub fn words(&self) -> &str {
        match self {
            Self::Call { message, .. } => message,
            Self::Endpoint { .. } | Self::Timeout { .. } => "",
        }
    }

    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Call { code: Code::Unimplemented, .. })
    }
}

/// Calls to the runtime. Cloning is cheap; all clones share one connection.
///
/// A call that makes, stops or removes something runs in a task of its own: whoever waits for it may go, the call ends
/// as the runtime ends it. One that is cancelled half way leaves what the runtime no longer shows, such as a `runc
/// init` in the pod's cgroup. Looking, running a command and pulling an image leave nothing, and end with their caller.
#[derive(Clone)]
pub struct Client {
    channel: Channel,
    changes: TaskTracker,
}

impl Client {
    /// Opens the socket lazily: a runtime that is down now may come up later.
    pub fn new(endpoint: &str) -> Result<Self, Error> {
        let changes = TaskTracker::new();
        changes.close();
        Ok(Self { channel: unix_channel(endpoint)?, changes })
    }

    /// The same connection; what is changed by it counts as a task of `changes` until the runtime is done.
    pub fn tracked(&self, changes: &TaskTracker) -> Self {
        Self { channel: self.channel.clone(), changes: changes.clone() }
    }

    pub async fn version(&self) -> Result<VersionResponse, Error> {
        let request = VersionRequest { version: "v1".into() };
        self.call("/runtime.v1.RuntimeService/Version", request, LOOK_TIMEOUT).await
    }

    pub async fn status(&self, verbose: bool) -> Result<StatusResponse, Error> {
        self.call("/runtime.v1.RuntimeService/Status", StatusRequest { verbose }, LOOK_TIMEOUT).await
    }

    pub async fn runtime_config(&self) -> Result<RuntimeConfigResponse, Error> {
        self.runtime("/runtime.v1.RuntimeService/RuntimeConfig", ()).await
    }

    /// Tells the runtime this node's pod range.
    pub async fn update_runtime_config(&self, pod_cidr: &str) -> Result<(), Error> {
        let network_config = Some(NetworkConfig { pod_cidr: pod_cidr.into() });
        let request = UpdateRuntimeConfigRequest { runtime_config: Some(RuntimeConfig { network_config }) };
        self.change("/runtime.v1.RuntimeService/UpdateRuntimeConfig", request, CALL_TIMEOUT).await
    }

    pub async fn container_events(&self) -> Result<Streaming<ContainerEventResponse>, Error> {
        const METHOD: &str = "/runtime.v1.RuntimeService/GetContainerEvents";
        let mut grpc = self.grpc(METHOD).await?;
        let codec = ProstCodec::<(), ContainerEventResponse>::default();
        let answer = grpc.server_streaming(Request::new(()), PathAndQuery::from_static(METHOD), codec).await;
        Ok(answer.map_err(|status| call_error(METHOD, status))?.into_inner())
    }

    pub async fn run_pod_sandbox(&self, config: PodSandboxConfig, handler: &str) -> Result<String, Error> {
        let request = RunPodSandboxRequest { config: Some(config), runtime_handler: handler.into() };
        let answer: RunPodSandboxResponse =
            self.change("/runtime.v1.RuntimeService/RunPodSandbox", request, SANDBOX_TIMEOUT).await?;
        Ok(answer.pod_sandbox_id)
    }

    pub async fn stop_pod_sandbox(&self, id: &str) -> Result<(), Error> {
        let request = StopPodSandboxRequest { pod_sandbox_id: id.into() };
        self.change("/runtime.v1.RuntimeService/StopPodSandbox", request, CALL_TIMEOUT).await
    }

    pub async fn remove_pod_sandbox(&self, id: &str) -> Result<(), Error> {
        let request = RemovePodSandboxRequest { pod_sandbox_id: id.into() };
        self.change("/runtime.v1.RuntimeService/RemovePodSandbox", request, CALL_TIMEOUT).await
    }

    pub async fn pod_sandbox_status(&self, id: &str) -> Result<PodSandboxStatusResponse, Error> {
        let request = PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose: false };
        self.runtime("/runtime.v1.RuntimeService/PodSandboxStatus", request).await
    }

    pub async fn list_pod_sandboxes(
        &self,
        filter: Option<PodSandboxFilter>,
    ) -> Result<Vec<PodSandbox>, Error> {
        let request = ListPodSandboxRequest { filter };
        let answer: ListPodSandboxResponse =
            self.call("/runtime.v1.RuntimeService/ListPodSandbox", request, LOOK_TIMEOUT).await?;
        Ok(answer.items)
    }

    pub async fn create_container(
        &self,
        sandbox: &str,
        config: ContainerConfig,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String, Error> {
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox.into(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let answer: CreateContainerResponse =
            self.change("/runtime.v1.RuntimeService/CreateContainer", request, CALL_TIMEOUT).await?;
        Ok(answer.container_id)
    }

    pub async fn start_container(&self, id: &str) -> Result<(), Error> {
        let request = StartContainerRequest { container_id: id.into() };
        self.change("/runtime.v1.RuntimeService/StartContainer", request, CALL_TIMEOUT).await
    }

    /// Signals the container and waits up to `grace` before it is killed.
    pub async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), Error> {
        let timeout = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        let request = StopContainerRequest { container_id: id.into(), timeout };
        self.change("/runtime.v1.RuntimeService/StopContainer", request, grace.saturating_add(CALL_TIMEOUT))
            .await
    }

    pub async fn remove_container(&self, id: &str) -> Result<(), Error> {
        let request = RemoveContainerRequest { container_id: id.into() };
        self.change("/runtime.v1.RuntimeService/RemoveContainer", request, CALL_TIMEOUT).await
    }

    pub async fn list_containers(&self, filter: Option<ContainerFilter>) -> Result<Vec<Container>, Error> {
        let request = ListContainersRequest { filter };
        let answer: ListContainersResponse =
            self.call("/runtime.v1.RuntimeService/ListContainers", request, LOOK_TIMEOUT).await?;
        Ok(answer.containers)
    }

    pub async fn container_status(&self, id: &str) -> Result<Option<ContainerStatus>, Error> {
        let request = ContainerStatusRequest { container_id: id.into(), verbose: false };
        let answer: ContainerStatusResponse =
            self.runtime("/runtime.v1.RuntimeService/ContainerStatus", request).await?;
        Ok(answer.status)
    }

    pub async fn update_container_resources(
        &self,
        id: &str,
        linux: LinuxContainerResources,
    ) -> Result<(), Error> {
        let request = UpdateContainerResourcesRequest {
            container_id: id.into(),
            linux: Some(linux),
            ..Default::default()
        };
        self.change("/runtime.v1.RuntimeService/UpdateContainerResources", request, CALL_TIMEOUT).await
    }

    pub async fn reopen_container_log(&self, id: &str) -> Result<(), Error> {
        let request = ReopenContainerLogRequest { container_id: id.into() };
        self.change("/runtime.v1.RuntimeService/ReopenContainerLog", request, CALL_TIMEOUT).await
    }

    /// Runs a command to its end. A timeout of zero waits for ever, so the
    /// call is bounded on this side too.
    pub async fn exec_sync(
        &self,
        id: &str,
        command: &[String],
        timeout: Duration,
    ) -> Result<ExecSyncResponse, Error> {
        let request = ExecSyncRequest {
            container_id: id.into(),
            cmd: command.to_vec(),
            timeout: i64::try_from(timeout.as_secs().max(1)).unwrap_or(i64::MAX),
        };
        self.call(
            "/runtime.v1.RuntimeService/ExecSync",
            request,
            timeout.saturating_add(Duration::from_secs(2)),
        )
        .await
    }

    /// The address where the runtime streams a command's input and output.
    pub async fn exec(&self, request: ExecRequest) -> Result<String, Error> {
        let answer: ExecResponse = self.runtime("/runtime.v1.RuntimeService/Exec", request).await?;
        Ok(answer.url)
    }

    pub async fn attach(&self, request: AttachRequest) -> Result<String, Error> {
        let answer: AttachResponse = self.runtime("/runtime.v1.RuntimeService/Attach", request).await?;
        Ok(answer.url)
    }

    pub async fn port_forward(&self, sandbox: &str, ports: Vec<i32>) -> Result<String, Error> {
        let request = PortForwardRequest { pod_sandbox_id: sandbox.into(), port: ports };
        let answer: PortForwardResponse =
            self.runtime("/runtime.v1.RuntimeService/PortForward", request).await?;
        Ok(answer.url)
    }

    pub async fn list_container_stats(&self) -> Result<Vec<ContainerStats>, Error> {
        let answer: ListContainerStatsResponse = self
            .runtime(
                "/runtime.v1.RuntimeService/ListContainerStats",
                ListContainerStatsRequest { filter: None },
            )
            .await?;
        Ok(answer.stats)
    }

    pub async fn list_images(&self) -> Result<Vec<Image>, Error> {
        let request = ListImagesRequest { filter: None };
        let answer: ListImagesResponse =
            self.call("/runtime.v1.ImageService/ListImages", request, LOOK_TIMEOUT).await?;
        Ok(answer.images)
    }

    pub async fn image_status(&self, image: ImageSpec) -> Result<Option<Image>, Error> {
        let request = ImageStatusRequest { image: Some(image), verbose: false };
        let answer: ImageStatusResponse =
            self.runtime("/runtime.v1.ImageService/ImageStatus", request).await?;
        Ok(answer.image)
    }

    /// No limit in time: a large image on a slow line takes what it takes,
    /// and the caller drops the call when the pod goes away.
    pub async fn pull_image(
        &self,
        image: ImageSpec,
        auth: Option<AuthConfig>,
        sandbox_config: Option<PodSandboxConfig>,
    ) -> Result<String, Error> {
        let request = PullImageRequest { image: Some(image), auth, sandbox_config };
        let answer: PullImageResponse =
            self.call("/runtime.v1.ImageService/PullImage", request, Duration::MAX).await?;
        Ok(answer.image_ref)
    }

    pub async fn remove_image(&self, image: ImageSpec) -> Result<(), Error> {
        let request = RemoveImageRequest { image: Some(image) };
        self.change("/runtime.v1.ImageService/RemoveImage", request, CALL_TIMEOUT).await
    }

    pub async fn image_fs_info(&self) -> Result<ImageFsInfoResponse, Error> {
        self.call("/runtime.v1.ImageService/ImageFsInfo", (), LOOK_TIMEOUT).await
    }

    async fn runtime<Q, A>(&self, method: &'static str, request: Q) -> Result<A, Error>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        self.call(method, request, CALL_TIMEOUT).await
    }

    /// A call that goes on when its caller does not.
    async fn change<Q, A>(&self, method: &'static str, request: Q, timeout: Duration) -> Result<A, Error>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let client = self.clone();
        let call = self.changes.spawn(async move { client.call(method, request, timeout).await });
        match call.await {
            Ok(answer) => answer,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // cancelled: the process is ending, and so is whoever waits here
            Err(_) => std::future::pending().await,
        }
    }

    async fn call<Q, A>(&self, method: &'static str, request: Q, timeout: Duration) -> Result<A, Error>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let unary = async {
            let mut grpc = self.grpc(method).await?;
            let codec = ProstCodec::<Q, A>::default();
            let answer = grpc.unary(Request::new(request), PathAndQuery::from_static(method), codec).await;
            answer.map(tonic::Response::into_inner).map_err(|status| call_error(method, status))
        };
        let began = std::time::Instant::now();
        let answer = tokio::time::timeout(timeout, unary).await.unwrap_or(Err(Error::Timeout { method }));
        metrics::runtime_called(method, began.elapsed(), answer.is_err());
        answer
    }

    async fn grpc(&self, method: &'static str) -> Result<Grpc<Channel>, Error> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        grpc.ready().await.map_err(|error| Error::Call {
            method,
            code: Code::Unavailable,
            message: format!("container runtime is not reachable: {error}"),
        })?;
        Ok(grpc)
    }
}

/// A gRPC channel over `unix:///path` (or a bare path).
pub(crate) fn unix_channel(endpoint: &str) -> Result<Channel, Error> {
    let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    if !path.starts_with('/') {
        return Err(Error::Endpoint { endpoint: endpoint.into() });
    }
    let path = path.to_string();
    // the address is never resolved: the connector below opens the socket
    let channel = Endpoint::from_static("http://runtime.invalid").connect_with_connector_lazy(
        tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move {
                let socket = tokio::net::UnixStream::connect(path).await?;
                Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(CoalescedWrites::new(socket)))
            }
        }),
    );
    Ok(channel)
}

pub(crate) fn call_error(method: &'static str, status: tonic::Status) -> Error {
    Error::Call { method, code: status.code(), message: status.message().to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_container_name_is_parsed_from_the_error() {
        let check = |words: &str, expected: Option<&str>| {
            let error = Error::Call { method: "", code: Code::Unknown, message: words.into() };
            assert_eq!(error.name_holder(), expected, "{words}");
        };
        check(
            "failed to reserve sandbox name \"web_default_uid_0\": name \"web_default_uid_0\" is reserved for \"4f1b\"",
            Some("4f1b"),
        );
        check(
            "the container name \"k8s_c_web_default_uid_0\" is already in use by \"77aa\". You have to remove it",
            Some("77aa"),
        );
        check("no space left on device", None);
        check("name \"a\" is reserved for \"\"", None);
    }
}
