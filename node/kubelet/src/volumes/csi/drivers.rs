//! The CSI drivers that are registered at this kubelet, and how their node services are called.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ferry_plugins_api::csi;
use ferry_plugins_api::csi::node_client::NodeClient;
use ferry_plugins_api::csi::node_service_capability::{Type, rpc};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::cri::unix_channel;
use crate::metrics;

/// A driver has this long to answer, as upstream gives it.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("driver name {0} not found in the list of registered CSI drivers")]
    NotRegistered(String),
    #[error("rpc error: code = {code:?} desc = {message}")]
    Call { code: tonic::Code, message: String },
}

/// A version of the protocol; 1.x is what drivers speak.
type Version = (u64, u64, u64);

/// A driver at its socket.
pub struct Driver {
    pub name: String,
    endpoint: String,
    version: Version,
    channel: Channel,
}

/// By name.
pub struct Drivers {
    registered: Mutex<BTreeMap<String, Arc<Driver>>>,
    /// Counts drivers that come and go.
    changes: watch::Sender<u64>,
}

impl Default for Drivers {
    fn default() -> Self {
        Self { registered: Mutex::default(), changes: watch::Sender::new(0) }
    }
}

impl Drivers {
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether a driver of this name could be taken up. In upstream's words.
    pub fn check(&self, caller: &str, name: &str, versions: &[String]) -> Result<(), String> {
        self.highest(caller, name, versions).map(|_| ())
    }

    fn highest(&self, caller: &str, name: &str, versions: &[String]) -> Result<Version, String> {
        let failed = format!("kubernetes.io/csi: {caller} for CSI driver {name:?} failed. ");
        if versions.is_empty() {
            return Err(failed + "Plugin returned an empty list for supported versions");
        }
        let Some(highest) = highest_supported(versions) else {
            return Err(format!("{failed}None of the versions specified {versions:?} are supported"));
        };
        match self.registered.lock().get(name).map(|driver| driver.version) {
            Some(other) if other >= highest => Err(format!(
                "{failed}Another driver with the same name is already registered with a higher supported version: \
                 \"{}.{}.{}\"",
                other.0, other.1, other.2
            )),
            _ => Ok(highest),
        }
    }

    pub fn add(&self, name: &str, endpoint: &str, versions: &[String]) -> Result<Arc<Driver>, String> {
        let version = self.highest("RegisterPlugin", name, versions)?;
        let channel = unix_channel(endpoint).map_err(|error| error.to_string())?;
        let driver = Driver { name: name.into(), endpoint: endpoint.into(), version, channel };
        let driver = Arc::new(driver);
        self.registered.lock().insert(name.into(), driver.clone());
        Ok(driver)
    }

    /// Tells whoever waits for a driver that one is ready to be used.
    pub fn tell(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Whether the driver that is gone was the one at this socket.
    pub fn remove(&self, name: &str, endpoint: &str) -> bool {
        let mut registered = self.registered.lock();
        let is_it = registered.get(name).is_some_and(|driver| driver.endpoint == endpoint);
        if is_it {
            registered.remove(name);
        }
        drop(registered);
        if is_it {
            self.tell();
        }
        is_it
    }

    pub fn get(&self, name: &str) -> Result<Arc<Driver>, Error> {
        let registered = self.registered.lock();
        registered.get(name).cloned().ok_or_else(|| Error::NotRegistered(name.into()))
    }
}

/// The highest of these versions that this kubelet speaks.
fn highest_supported(versions: &[String]) -> Option<Version> {
    let parsed = versions.iter().filter_map(|text| {
        let text = text.trim().strip_prefix('v').unwrap_or(text.trim());
        let mut parts = text.split('.').map(|part| part.parse::<u64>().ok());
        let version = (parts.next()??, parts.next()??, parts.next().unwrap_or(Some(0))?);
        (version.0 == 1).then_some(version)
    });
    parsed.max()
}

/// What a driver's node service can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    pub stage: bool,
    pub stats: bool,
    pub expand: bool,
    pub single_node_multi_writer: bool,
    pub mount_group: bool,
}

impl Capabilities {
    fn of(answer: &csi::NodeGetCapabilitiesResponse) -> Self {
        let has = |wanted: rpc::Type| {
            answer.capabilities.iter().any(|capability| match &capability.r#type {
                Some(Type::Rpc(rpc)) => rpc.r#type == wanted as i32,
                None => false,
            })
        };
        Self {
            stage: has(rpc::Type::StageUnstageVolume),
            stats: has(rpc::Type::GetVolumeStats),
            expand: has(rpc::Type::ExpandVolume),
            single_node_multi_writer: has(rpc::Type::SingleNodeMultiWriter),
            mount_group: has(rpc::Type::VolumeMountGroup),
        }
    }
}

impl Driver {
    fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }

    pub async fn info(&self) -> Result<csi::NodeGetInfoResponse, Error> {
        let mut node = self.node();
        self.call("NodeGetInfo", node.node_get_info(csi::NodeGetInfoRequest {})).await
    }

    pub async fn capabilities(&self) -> Result<Capabilities, Error> {
        let mut node = self.node();
        let asked = node.node_get_capabilities(csi::NodeGetCapabilitiesRequest {});
        Ok(Capabilities::of(&self.call("NodeGetCapabilities", asked).await?))
    }

    pub async fn stage(&self, request: csi::NodeStageVolumeRequest) -> Result<(), Error> {
        let mut node = self.node();
        self.call("NodeStageVolume", node.node_stage_volume(request)).await.map(|_| ())
    }

    pub async fn unstage(&self, request: csi::NodeUnstageVolumeRequest) -> Result<(), Error> {
        let mut node = self.node();
        self.call("NodeUnstageVolume", node.node_unstage_volume(request)).await.map(|_| ())
    }

    pub async fn publish(&self, request: csi::NodePublishVolumeRequest) -> Result<(), Error> {
        let mut node = self.node();
        self.call("NodePublishVolume", node.node_publish_volume(request)).await.map(|_| ())
    }

    pub async fn unpublish(&self, request: csi::NodeUnpublishVolumeRequest) -> Result<(), Error> {
        let mut node = self.node();
        self.call("NodeUnpublishVolume", node.node_unpublish_volume(request)).await.map(|_| ())
    }

    pub async fn expand(&self, request: csi::NodeExpandVolumeRequest) -> Result<(), Error> {
        let mut node = self.node();
        self.call("NodeExpandVolume", node.node_expand_volume(request)).await.map(|_| ())
    }

    pub async fn stats(
        &self,
        request: csi::NodeGetVolumeStatsRequest,
    ) -> Result<csi::NodeGetVolumeStatsResponse, Error> {
        let mut node = self.node();
        self.call("NodeGetVolumeStats", node.node_get_volume_stats(request)).await
    }

    async fn call<A>(
        &self,
        method: &'static str,
        asked: impl Future<Output = Result<tonic::Response<A>, tonic::Status>>,
    ) -> Result<A, Error> {
        let mut span = ferry_trace::span("kubelet.csi");
        span.set("driver", self.name.as_str()).set("call", method);
        let began = Instant::now();
        let late = || Err(tonic::Status::deadline_exceeded("context deadline exceeded"));
        let answer =
            tokio::time::timeout(CALL_TIMEOUT, span.in_scope(asked)).await.unwrap_or_else(|_| late());
        let code = answer.as_ref().map_or_else(tonic::Status::code, |_| tonic::Code::Ok);
        metrics::csi_called(&self.name, method, &format!("{code:?}"), began.elapsed());
        let answer = answer.map_err(|status| Error::Call { code, message: status.message().into() });
        answer.map(tonic::Response::into_inner).inspect_err(|error| {
            span.fail_unquoted(error);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_highest_version_of_the_first_generation_is_spoken() {
        let check = |names: &[&str], expected| assert_eq!(highest_supported(&versions(names)), expected);
        check(&["1.0.0"], Some((1, 0, 0)));
        check(&["0.3.0", "v1.10", "1.9.5"], Some((1, 10, 0)));
        check(&["0.3.0", "2.0.0"], None);
        check(&["one", "1", "1.x", ""], None);
    }

    #[tokio::test]
    async fn a_name_belongs_to_the_driver_of_the_highest_version() {
        let drivers = Drivers::default();
        let said = drivers.check("ValidatePlugin", "d", &[]).expect_err("nothing is spoken");
        assert!(said.ends_with("Plugin returned an empty list for supported versions"), "{said}");
        let said = drivers.check("ValidatePlugin", "d", &versions(&["0.3.0"])).expect_err("too old");
        assert!(said.contains(r#"None of the versions specified ["0.3.0"] are supported"#), "{said}");
        assert!(drivers.add("d", "/old.sock", &versions(&["1.0.0"])).is_ok());
        let said = drivers.check("RegisterPlugin", "d", &versions(&["1.0.0"])).expect_err("taken");
        assert!(said.contains("Another driver with the same name is already registered"), "{said}");
        assert!(drivers.add("d", "/new.sock", &versions(&["1.1.0"])).is_ok());
        assert!(!drivers.remove("d", "/old.sock"), "the one that took its place stays");
        assert!(drivers.get("d").is_ok());
        assert!(drivers.remove("d", "/new.sock"));
        let said = drivers.get("d").err().expect("it is gone").to_string();
        assert_eq!(said, "driver name d not found in the list of registered CSI drivers");
    }
}
