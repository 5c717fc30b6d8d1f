//! One device plugin, as the kubelet calls it.

use std::collections::BTreeSet;
use std::time::Duration;

use ferry_client::CancellationToken;
use ferry_plugins_api::deviceplugin::device_plugin_client::DevicePluginClient;
use ferry_plugins_api::deviceplugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreferredAllocationRequest,
};
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::state::Candidates;
use crate::cri::unix_channel;
use crate::metrics;

/// A plugin that registers answers within this, as upstream's dial does.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Upstream waits without end; here a plugin that hangs does not keep other pods from their devices for ever.
const ALLOCATE_TIMEOUT: Duration = Duration::from_secs(120);
/// Upstream's.
const PRE_START_TIMEOUT: Duration = Duration::from_secs(30);

/// In upstream's words.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to dial device plugin: {0}")]
    Dial(String),
    #[error("failed to get device plugin options: {0}")]
    Options(String),
    #[error("endpoint {0} has been stopped")]
    Stopped(String),
    #[error("device plugin GetPreferredAllocation rpc failed with err: {0}")]
    Preferred(String),
    #[error("{0}")]
    Allocate(String),
    #[error("no containers return in allocation response")]
    NoAnswer,
    #[error("device plugin PreStartContainer rpc failed with err: {0}")]
    PreStart(String),
}

pub struct Endpoint {
    pub resource: String,
    pub socket: String,
    pub options: DevicePluginOptions,
    client: DevicePluginClient<Channel>,
    /// Ends what goes on for it.
    pub gone: CancellationToken,
}

impl Endpoint {
    /// Opens the plugin's socket and asks what it can do.
    pub async fn connect(resource: &str, socket: &str, gone: CancellationToken) -> Result<Self, Error> {
        let channel = unix_channel(socket).map_err(|error| Error::Dial(error.to_string()))?;
        let mut client = DevicePluginClient::new(channel);
        let asked = within(CONNECT_TIMEOUT, client.get_device_plugin_options(Empty {})).await;
        let options = asked.map_err(|status| Error::Options(shown(&status)))?.into_inner();
        Ok(Self { resource: resource.into(), socket: socket.into(), options, client, gone })
    }

    pub async fn list_and_watch(&self) -> Result<Streaming<ListAndWatchResponse>, Status> {
        Ok(self.client.clone().list_and_watch(Empty {}).await?.into_inner())
    }

    /// The devices that the plugin would rather have given, if it has an opinion.
    pub async fn preferred(&self, candidates: &Candidates) -> Result<Vec<String>, Error> {
        if !self.options.get_preferred_allocation_available {
            return Ok(vec![]);
        }
        self.alive()?;
        let of_container = ContainerPreferredAllocationRequest {
            available_device_i_ds: candidates.available.union(&candidates.reused).cloned().collect(),
            must_include_device_i_ds: candidates.reused.iter().cloned().collect(),
            allocation_size: i32::try_from(candidates.required).unwrap_or(i32::MAX),
        };
        let request = PreferredAllocationRequest { container_requests: vec![of_container] };
        let mut client = self.client.clone();
        let asked = within(ALLOCATE_TIMEOUT, client.get_preferred_allocation(request)).await;
        let answer = asked.map_err(|status| Error::Preferred(shown(&status)))?.into_inner();
        let of_container = answer.container_responses.into_iter().next();
        Ok(of_container.map(|answer| answer.device_i_ds).unwrap_or_default())
    }

    pub async fn allocate(&self, devices: &BTreeSet<String>) -> Result<ContainerAllocateResponse, Error> {
        self.alive()?;
        let began = Instant::now();
        let devices_ids = devices.iter().cloned().collect();
        let request = AllocateRequest { container_requests: vec![ContainerAllocateRequest { devices_ids }] };
        let asked = within(ALLOCATE_TIMEOUT, self.client.clone().allocate(request)).await;
        metrics::plugin_allocated(&self.resource, began.elapsed());
        let answer = asked.map_err(|status| Error::Allocate(shown(&status)))?.into_inner();
        answer.container_responses.into_iter().next().ok_or(Error::NoAnswer)
    }

    /// Tells a plugin that asked for it that a container is about to start.
    pub async fn pre_start(&self, devices: Vec<String>) -> Result<(), Error> {
        self.alive().map_err(|error| Error::PreStart(error.to_string()))?;
        let request = PreStartContainerRequest { devices_ids: devices };
        let asked = within(PRE_START_TIMEOUT, self.client.clone().pre_start_container(request)).await;
        asked.map(drop).map_err(|status| Error::PreStart(shown(&status)))
    }

    fn alive(&self) -> Result<(), Error> {
        if self.gone.is_cancelled() { Err(Error::Stopped(self.resource.clone())) } else { Ok(()) }
    }
}

async fn within<T>(limit: Duration, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = || Err(Status::deadline_exceeded("context deadline exceeded"));
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| late())
}

fn shown(status: &Status) -> String {
    format!("rpc error: code = {:?} desc = {}", status.code(), status.message())
}
